"""Runs, groups and score definition that the options of `trieye results` select."""

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from trieye.cli.arguments import DEFAULT_ROOT, sweep_directory
from trieye.cli.output import print_json
from trieye.exceptions import ConfigurationError
from trieye.process.terminal import Terminal
from trieye.process.text import command_text
from trieye.results.aggregates import Aggregate
from trieye.results.groups import RunGroups, ScoreDefinition
from trieye.results.hyperparameters import Mode, figure_mode
from trieye.results.loading import load
from trieye.results.results import Results
from trieye.results.runs import typed
from trieye.results.selection import NOT_COUNTED, distinct
from trieye.runs.finding import resolve, roots_of

_OPERATORS = {">=": "ge", "<=": "le", "!=": "ne", ">": "gt", "<": "lt", "=": "eq"}
_OPERATOR = re.compile("|".join(_OPERATORS))  # the longer ones first
_COMMA = re.compile(r",(?![^\[{]*[\]}])")  # outside of brackets
_MOST_PROBLEMS = 10
_MOST_METRICS = 20
_EQUAL_BUDGETS = 0.9
"""Smallest ratio of the steps of two groups that counts as equal budgets."""


class RunSelection:
    """The runs that the command line selects, with the options that score and group them.

    Attributes:
        options: Parsed options of the action.
        sources: Locations of the runs.
        all_runs: The runs of all sources.
        results: The runs that match --where.
        console: Terminal for the output.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.sources = sources_of(options)
        self.all_runs = load(self.sources)
        self.results = select_runs(self.all_runs, options.where, strict=options.strict)
        self.console = Terminal()

    @cached_property
    def scoring(self) -> ScoreDefinition:
        """Score definition: how a run becomes one number."""
        names = self.options.metric or self._objective()
        last, steps = last_of(self.options.last)
        return ScoreDefinition(
            metric=metrics_in(names, self.results),
            last=last,
            steps=steps,
            include_unfinished=self.options.include_unfinished,
            include_diverged=self.options.include_diverged,
            ranges=dict(map(range_of, self.options.range)),
        )

    @property
    def mode(self) -> Mode:
        """Whether higher or lower scores are better.

        Raises:
            ConfigurationError: --mode is not given, and the sources record different modes.
        """
        if self.options.mode is not None:
            return cast("Mode", self.options.mode)
        name = self.scoring.name
        source_by_mode = {mode: run.sweep or run.place for run in self.results if (mode := run.mode(name)) is not None}
        if len(source_by_mode) > 1:
            sources = (f"{mode} in {path.removeprefix(f'{Path.cwd()}/')}" for mode, path in source_by_mode.items())
            raise ConfigurationError(
                f"{name}: the recorded modes differ ({', '.join(sources)}); "
                "pass --mode min if lower values are better, else --mode max"
            )
        return cast("Mode", next(iter(source_by_mode), "max"))

    @property
    def stat(self) -> Aggregate:
        """Statistic over the runs of a group; with one task, `median` is the median over runs, not over task means.

        Raises:
            ConfigurationError: The statistic requires that higher scores are better, and lower scores are better.
        """
        stat, task = cast("Aggregate", self.options.stat), self.options.task
        if stat == "optimality_gap" and self.mode == "min":
            raise ConfigurationError(
                f"--stat optimality_gap: {self.scoring.name} is minimized, and the gap is a shortfall below a target; "
                "choose another --stat, or pass --mode max if higher is better"
            )
        is_one_task = task is None or len(self.results.split(task)) == 1
        return "run_median" if stat == "median" and is_one_task else stat

    @property
    def figure_mode(self) -> Mode:
        """Whether higher or lower values of the statistic are better."""
        return figure_mode(self.stat, self.mode)

    @property
    def intervals(self) -> dict[str, Any]:
        """Keyword arguments of the functions that compute intervals."""
        if not 0 < self.options.confidence < 1:
            raise ConfigurationError(
                f"--confidence {self.options.confidence:g}: must be between 0 and 1 (exclusive), such as 0.95"
            )
        return {"confidence": self.options.confidence}

    @property
    def title(self) -> str:
        """Title of tables: the metric and the part of each run that counts."""
        is_single = all(len(series.steps) <= 1 for series in self.results.series(self.scoring.metric))
        return self.scoring.name if is_single else f"{self.scoring.name}, {self.scoring.what} of each run"

    @property
    def by(self) -> list[str]:
        """Keys to group by."""
        return [key.strip() for key in self.options.by.split(",") if key.strip()]

    def groups(self, *, by: Sequence[str] | None = None) -> RunGroups:
        """Return the groups to compare."""
        groups = RunGroups.of(self.results, self.by if by is None else by, self.options.task)
        if len(groups.tasks) > 1 and not self.options.range:
            self.results.note(
                f"--task {self.options.task}",
                f"raw scores of {len(groups.tasks)} tasks are combined, so tasks with large scores dominate; normalize "
                f"each by --range, as in --range {groups.tasks[0]}=LOW:HIGH",
            )
        if self.options.best:
            groups = groups.best(self.scoring, self.mode)
        self._note_unequal_budgets(groups)
        return groups

    def excluded(self, by: Sequence[str]) -> str:
        """Return a message that names the groups of which --where excludes every run; empty if there is none."""
        if not self.options.where:
            return ""
        all_groups = RunGroups.of(self.all_runs, by, self.options.task)
        labels = all_groups.labels_without(self.results.runs)
        suffix = ", ..." if len(labels) > _MOST_PROBLEMS else ""
        conditions = " ".join(f"--where {condition}" for condition in self.options.where)
        return f"{conditions} excludes all runs of {', '.join(labels[:_MOST_PROBLEMS])}{suffix}" if labels else ""

    def _note_unequal_budgets(self, groups: RunGroups) -> None:
        """Note groups of one task that trained for different numbers of steps."""
        ended = [[run for run in runs if run.is_ended and run.step] for runs in groups.runs]
        comparable = {(run.axis, run.params.get("env.id")) for runs in ended for run in runs}
        steps = [max(run.step or 0 for run in runs) for runs in ended if runs]
        if len(comparable) == 1 and min(steps) < _EQUAL_BUDGETS * max(steps):
            ((axis, _),) = comparable
            unit = "steps" if axis == "step" else axis
            text = f"groups trained for {min(steps):,} to {max(steps):,} {unit}, which may explain the better score"
            self.results.note("unequal budgets", text)

    def _objective(self) -> str:
        objectives = {str(run.params.get("loop.objective", run.objective)) for run in self.results}
        metrics = self.results.metrics()
        logged_names = [name for name in sorted(objectives) if name in metrics]
        if len(logged_names) != 1:
            metrics_text = ", ".join(metrics[:_MOST_METRICS]) + (", ..." if len(metrics) > _MOST_METRICS else "")
            raise ConfigurationError(
                "no default metric: the runs have neither one loop.objective nor a returned number; add --metric "
                f"(choose from: {metrics_text or 'no metrics'})"
            )
        return logged_names[0]

    def print_json(self, document: Mapping[str, Any]) -> None:
        """Print the results of an action as JSON, with problems, unfinished jobs and diverged runs."""
        jobs = {
            sweep: [
                {"index": job.index, "state": job.how, "values": job.values}
                for job in sweep_jobs
                if job.how != "completed"
            ]
            for sweep, sweep_jobs in self._jobs().items()
        }
        diverged = self.results.diverged(self.scoring.metric)
        header = {"metric": self.scoring.name, "problems": self.results.problems, "jobs": jobs, "diverged": diverged}
        print_json(f"results.{self.options.action}", {**header, **document})

    def _jobs(self) -> Mapping[str, Sequence[Any]]:
        return self.all_runs.status().jobs

    def print_notes(self) -> None:
        """Print unfinished jobs, runs on other machines and skipped runs to stderr."""
        from trieye.sweeps.status import ENDED

        console = Terminal(stderr=True)
        for sweep, jobs in self._jobs().items():
            unfinished_jobs = [job for job in jobs if job.how not in ENDED]
            if unfinished_jobs:
                numbers = ", ".join(f"{job.index} ({job.how})" for job in unfinished_jobs[:_MOST_PROBLEMS])
                suffix = ", ..." if len(unfinished_jobs) > _MOST_PROBLEMS else ""
                console.print(
                    f"{sweep}: {len(unfinished_jobs)} of {len(jobs)} jobs are not completed: {numbers}{suffix}",
                    style="yellow",
                )
                only_words = ["--only", "removed"] if all(job.how == "removed" for job in unfinished_jobs) else []
                if not any(job.how in ("waiting", "running") for job in unfinished_jobs):  # else the sweep is being run
                    console.print(f"run them: {command_text('sweep', 'relaunch', Path(sweep), *only_words)}")
            remote_jobs = [job for job in jobs if job.how in ENDED and job.is_away]
            if remote_jobs:
                hosts = ", ".join(sorted({job.record.host for job in remote_jobs if job.record is not None}))
                console.print(
                    f"{sweep}: {len(remote_jobs)} runs are on other machines ({hosts}); copy them from "
                    f"persistence.mirror: {command_text('sweep', 'merge', Path(sweep))}",
                    style="yellow",
                )
        problems = self.results.problems
        if num_dropped := sum(f": {NOT_COUNTED}: " in text for text in problems):
            console.print(
                f"{num_dropped} of {len(self.results)} runs are not counted, because a newer or finished run has the "
                "same app, config and seed; to count such a run, pass it as SOURCE",
                style="yellow",
            )
        for text in problems[:_MOST_PROBLEMS]:
            console.print(text, style="yellow")
        if len(problems) > _MOST_PROBLEMS:
            console.print(f"{len(problems) - _MOST_PROBLEMS} more problems; --json lists all")


def sources_of(options: argparse.Namespace) -> list[str]:
    """Return the sources on the command line, else the newest sweep, else the only app.

    Raises:
        ConfigurationError: A name is unknown or ambiguous; or no source is passed, and there is neither a sweep nor
            exactly one app.
    """
    if options.sources:
        return [_source_of(name) for name in options.sources]
    try:
        return [str(sweep_directory(None))]
    except ConfigurationError:
        apps = sorted(_shown(path.parent) for root in roots_of(None) for path in root.glob("*/runs"))
        if not apps:
            raise ConfigurationError(
                f"no runs: no sweep in the working directory or below multirun/, and no app in {DEFAULT_ROOT} of the "
                "project; pass a run, an app or a sweep as SOURCE"
            ) from None
        if len(apps) > 1:
            raise ConfigurationError(f"several apps; pass one or more as SOURCE: {', '.join(apps)}") from None
        print(f"using the runs of {apps[0]}", file=sys.stderr)
        return apps


def _source_of(name: str) -> str:
    """Return the path of a source: app names first, then paths and addresses, then names of runs and sweeps."""
    path, roots = Path(name).expanduser(), roots_of(None)
    is_app = path.name == name and any((root / name).is_dir() for root in roots)
    if not is_app and (path.exists() or "://" in name or name.startswith("sqlite:")):
        return name
    return _shown(resolve(name, roots))


def _shown(path: Path) -> str:
    return str(path).removeprefix(f"{Path.cwd()}/")


def select_runs(results: Results, conditions: Sequence[str], *, strict: bool) -> Results:
    """Return the runs that match conditions such as `agent.lr>=1e-4`.

    Raises:
        ConfigurationError: A condition is malformed, or no run matches.
    """
    operands = [operand for text in conditions for operand in _operands_of(text)]
    if not len(results):
        reasons = "".join(f"; {text}" for text in results.problems[:_MOST_PROBLEMS])
        raise ConfigurationError(f"no runs to show{_empty_sweeps(results)}{reasons}")
    matching = [{run.path for run in results.where({name: value}, strict=strict)} for name, value in operands]
    selected = results.only(run for run in results if all(run.path in paths for paths in matching))
    if not len(selected):
        values = "; ".join(dict.fromkeys(distinct(name.rpartition("__")[0], results.runs) for name, _ in operands))
        raise ConfigurationError(f"--where {' '.join(conditions)}: none of {len(results)} runs match ({values})")
    return selected


def metrics_in(text: str, results: Results) -> list[str]:
    """Return the metrics in --metric: the whole text if a run logged it, else the names between its commas."""
    return [text] if "," in text and text in results.metrics() else [name.strip() for name in text.split(",")]


def _operands_of(text: str) -> list[tuple[str, Any]]:
    """Return the conditions of a --where as names and values for `Results.where`, all of which apply.

    Raises:
        ConfigurationError: The text has no operator, or an inequality has several values.
    """
    match = _OPERATOR.search(text)
    if match is None:
        raise ConfigurationError(
            f"--where {text}: expected KEY=VALUE, or another operator (choose from: {', '.join(_OPERATORS)})"
        )
    key, sign, value = text.partition(match[0])
    values = [typed(value.strip())]
    if isinstance(values[0], str):
        values = [typed(item.strip()) for item in _COMMA.split(value)]
    if sign == "=" and len(values) > 1:
        return [(f"{key.strip()}__in", values)]
    if sign != "!=" and len(values) > 1:
        raise ConfigurationError(f"--where {text}: {sign} takes one value; only = and != take several")
    return [(f"{key.strip()}__{_OPERATORS[sign]}", value) for value in values]


def _empty_sweeps(results: Results) -> str:
    """Return the reason why sweeps have no runs, with the next step."""
    status = results.status()
    if not status.jobs:
        return ""
    counts = ", ".join(f"{number} {how}" for how, number in status.counts.items())
    sweeps = " ".join(sweep.removeprefix(f"{Path.cwd()}/") for sweep in status.jobs)
    return (
        f": no job of {sweeps} has a trieye run, a returned number or dict, or TensorBoard, MLflow or CSV files in its "
        f"directory ({counts}); for the state of each job: trieye sweep status {sweeps}"
    )


def last_of(text: str) -> tuple[float, int | None]:
    """Parse --last: `10%` gives the fraction (0.1, None) of the points, `5000` the number of steps (1.0, 5000).

    Raises:
        ConfigurationError: The text is neither.
    """
    try:
        if text.endswith("%"):
            fraction = float(text[:-1]) / 100
            if 0 < fraction <= 1:
                return fraction, None
        elif int(text) >= 1:
            return 1.0, int(text)
    except ValueError:
        pass
    raise ConfigurationError(f"--last {text}: expected a percentage, such as 10%, or a number of steps, such as 5000")


def range_of(text: str) -> tuple[str, tuple[float, float]]:
    """Parse TASK=LOW:HIGH.

    Raises:
        ConfigurationError: The text has another form.
    """
    task, _, ends = text.rpartition("=")
    low, _, high = ends.partition(":")
    try:
        return task, (float(low), float(high))
    except ValueError:
        raise ConfigurationError(f"--range {text}: expected TASK=LOW:HIGH, such as CartPole-v1=0:500") from None
