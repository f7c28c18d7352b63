"""What was asked for on the command line of `trieye results`: runs, groups of them, and how they come to numbers."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from trieye.cli.arguments import DEFAULT_ROOT, sweep_directory
from trieye.cli.output import print_json
from trieye.exceptions import ConfigurationError
from trieye.process.terminal import Terminal
from trieye.results.aggregates import Aggregate
from trieye.results.groups import RunGroups, ScoreDefinition
from trieye.results.hyperparameters import Mode
from trieye.results.loading import load
from trieye.results.results import Results
from trieye.results.runs import typed
from trieye.results.selection import NOT_COUNTED
from trieye.runs.finding import resolve, roots_of

_OPERATORS = {">=": "ge", "<=": "le", "!=": "ne", ">": "gt", "<": "lt", "=": "eq"}
_MOST_PROBLEMS = 10
_MOST_METRICS = 20


class Asked:
    """What was asked for on the command line, of the runs that are there."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.all_runs = load(places_of(options))
        self.results = chosen(self.all_runs, options.where, strict=options.strict)
        self.console = Terminal()

    @cached_property
    def scoring(self) -> ScoreDefinition:
        """How runs come to numbers."""
        names = self.options.metric or self._objective()
        last, steps = last_of(self.options.last)
        return ScoreDefinition(
            metric=[name.strip() for name in names.split(",")],
            last=last,
            steps=steps,
            include_unfinished=self.options.include_unfinished,
            include_diverged=self.options.include_diverged,
            ranges=dict(map(range_of, self.options.range)),
        )

    @property
    def mode(self) -> Mode:
        """Which scores are better."""
        modes = {run.params["loop.mode"] for run in self.results if "loop.mode" in run.params}
        return self.options.mode or ("min" if modes == {"min"} else "max")

    @property
    def stat(self) -> Aggregate:
        """The figure of many runs; the median of one task is that of its runs, since that of its mean is the mean."""
        stat, task = cast("Aggregate", self.options.stat), self.options.task
        is_one_task = task is None or len(self.results.split(task)) == 1
        return "run_median" if stat == "median" and is_one_task else stat

    @property
    def intervals(self) -> dict[str, Any]:
        """The options of all intervals."""
        if not 0 < self.options.confidence < 1:
            raise ConfigurationError(f"--confidence {self.options.confidence:g}: it is between 0 and 1, such as 0.95")
        return {"confidence": self.options.confidence}

    @property
    def title(self) -> str:
        """What the figures are."""
        return f"{self.scoring.name}, {self.scoring.what} of each run"

    @property
    def by(self) -> list[str]:
        """What groups have in common."""
        return [key.strip() for key in self.options.by.split(",") if key.strip()]

    def groups(self, *, by: Sequence[str] | None = None) -> RunGroups:
        """Return the groups that are compared."""
        made = RunGroups.of(self.results, self.by if by is None else by, self.options.task)
        return made.best(self.scoring, self.mode) if self.options.best else made

    def _objective(self) -> str:
        named = {str(run.params["loop.objective"]) for run in self.results if "loop.objective" in run.params}
        metrics = self.results.metrics()
        held = [name for name in sorted(named) if name in metrics]
        if len(held) != 1:
            shown = ", ".join(metrics[:_MOST_METRICS]) + (", ..." if len(metrics) > _MOST_METRICS else "")
            raise ConfigurationError(f"which metric? name one by --metric (of: {shown or 'none'})")
        return held[0]

    def print_json(self, document: Mapping[str, Any]) -> None:
        """Print the figures of an action as JSON, with what was left out of them."""
        jobs = {
            sweep: [
                {"index": job.index, "state": job.how, "values": job.values}
                for job in of_sweep
                if job.how != "completed"
            ]
            for sweep, of_sweep in self._jobs().items()
        }
        diverged = self.results.diverged(self.scoring.metric)
        about = {"metric": self.scoring.name, "problems": self.results.problems, "jobs": jobs, "diverged": diverged}
        print_json(f"results.{self.options.action}", {**about, **document})

    def _jobs(self) -> Mapping[str, Sequence[Any]]:
        return self.all_runs.status().jobs

    def tell(self) -> None:
        """Say what was left out, and which jobs are missing."""
        from trieye.sweeps.status import ENDED

        console = Terminal(stderr=True)
        for sweep, jobs in self._jobs().items():
            without = [job for job in jobs if job.how not in ENDED]
            if without:
                numbers = ", ".join(f"{job.index} ({job.how})" for job in without[:_MOST_PROBLEMS])
                more = ", ..." if len(without) > _MOST_PROBLEMS else ""
                console.print(
                    f"{sweep}: {len(without)} of {len(jobs)} jobs are not completed: {numbers}{more}",
                    style="yellow",
                )
                only = " --only removed" if all(job.how == "removed" for job in without) else ""
                console.print(f"run them: trieye sweep relaunch {sweep}{only}")
            away = [job for job in jobs if job.how in ENDED and job.is_away]
            if away:
                hosts = ", ".join(sorted({job.record.host for job in away if job.record is not None}))
                console.print(
                    f"{sweep}: {len(away)} runs are not here; they ran on {hosts}. What persistence.mirror has of them "
                    f"comes here by: trieye sweep merge {sweep}",
                    style="yellow",
                )
        problems = self.results.problems
        if num_dropped := sum(f": {NOT_COUNTED}: " in text for text in problems):
            console.print(
                f"{num_dropped} of {len(self.results)} runs are not counted: a newer or finished run has the same app, "
                "config and seed; to show such a run, too, name it itself",
                style="yellow",
            )
        for text in problems[:_MOST_PROBLEMS]:
            console.print(text, style="yellow")
        if len(problems) > _MOST_PROBLEMS:
            console.print(f"and {len(problems) - _MOST_PROBLEMS} more of this kind: --json has them all")


def places_of(options: argparse.Namespace) -> list[str]:
    """Return the places that the arguments name, else the newest sweep, else the only app.

    Raises:
        ConfigurationError: No place or several runs have that name; or no sweep is here, and no app or several.
    """
    if options.places:
        return [_place_of(name) for name in options.places]
    try:
        return [str(sweep_directory(None))]
    except ConfigurationError:
        apps = sorted(str(path.parent) for path in Path(DEFAULT_ROOT).glob("*/runs"))
        if not apps:
            raise
        if len(apps) > 1:
            raise ConfigurationError(f"which runs? name a directory, such as one of {', '.join(apps)}") from None
        print(f"runs of {apps[0]}", file=sys.stderr)
        return apps


def _place_of(name: str) -> str:
    """Return the path of a place: names of apps come first, then paths and addresses, then names of runs and sweeps."""
    path, roots = Path(name).expanduser(), roots_of(None)
    is_app = path.name == name and any((root / name).is_dir() for root in roots)
    if not is_app and (path.exists() or "://" in name or name.startswith("sqlite:")):
        return name
    return str(resolve(name, roots)).removeprefix(f"{Path.cwd()}/")


def chosen(results: Results, conditions: Sequence[str], *, strict: bool) -> Results:
    """Return the runs that fit conditions such as `agent.lr>=1e-4`.

    Raises:
        ConfigurationError: One is none, or no run is left.
    """
    asked: dict[str, Any] = {}
    for text in conditions:
        sign = next((sign for sign in _OPERATORS if sign in text), None)
        if sign is None:
            raise ConfigurationError(f"--where {text}: this is not KEY=VALUE, nor one with {', '.join(_OPERATORS)}")
        key, _, value = text.partition(sign)
        several = sign == "=" and "," in value
        suffix = "in" if several else _OPERATORS[sign]
        asked[f"{key.strip()}__{suffix}"] = [typed(one) for one in value.split(",")] if several else typed(value)
    left = results.where(asked, strict=strict) if asked else results
    if not len(left):
        raise ConfigurationError(f"--where {' '.join(conditions)}: none of {len(results)} runs fits")
    return left


def last_of(text: str) -> tuple[float, int | None]:
    """Return which end of a run counts: a part of its points, or the points of so many steps.

    Raises:
        ConfigurationError: It is neither.
    """
    try:
        if text.endswith("%"):
            part = float(text[:-1]) / 100
            if 0 < part <= 1:
                return part, None
        elif int(text) >= 1:
            return 1.0, int(text)
    except ValueError:
        pass
    raise ConfigurationError(f"--last {text}: give a part, such as 10%, or a number of steps, such as 5000")


def range_of(text: str) -> tuple[str, tuple[float, float]]:
    """Return a task and its range.

    Raises:
        ConfigurationError: It is none.
    """
    task, _, ends = text.rpartition("=")
    low, _, high = ends.partition(":")
    try:
        return task, (float(low), float(high))
    except ValueError:
        raise ConfigurationError(f"--range {text}: this is not TASK=LOW:HIGH, such as CartPole-v1=0:500") from None
