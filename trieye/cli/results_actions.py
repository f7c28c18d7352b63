"""What the actions of `trieye results` do."""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
from rich.console import Console

from trieye.cli.given_sweep import directory_of
from trieye.config.base import did_you_mean
from trieye.exceptions import ConfigurationError
from trieye.results import hyperparameters, selection, statistics, tables
from trieye.results.aggregates import Aggregate
from trieye.results.aligned import Floats
from trieye.results.curves import aggregate_curves
from trieye.results.groups import Groups, Scoring
from trieye.results.hyperparameters import Mode, Selection
from trieye.results.loading import load
from trieye.results.results import Results
from trieye.results.runs import typed

_OPERATORS = {">=": "ge", "<=": "le", "!=": "ne", ">": "gt", "<": "lt", "=": "eq"}
_MOST_PROBLEMS = 10
_MOST_PAIRS = 15
_MOST_CONFIGS = 20
_MOST_COLUMNS = 5


class Asked:
    """What was asked for on the command line, of the runs that are there."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.all_runs = load(places_of(options))
        self.results = chosen(self.all_runs, options.where, strict=options.strict)
        self.console = Console()

    @cached_property
    def scoring(self) -> Scoring:
        """How runs come to numbers."""
        names = self.options.metric or self._objective()
        last, steps = last_of(self.options.last)
        return Scoring(
            metric=[name.strip() for name in names.split(",")],
            last=last,
            steps=steps,
            partial=self.options.partial,
            ranges=dict(map(range_of, self.options.range)),
        )

    @property
    def mode(self) -> Mode:
        """Which scores are better."""
        modes = {run.params["loop.mode"] for run in self.results if "loop.mode" in run.params}
        return "min" if self.options.min or modes == {"min"} else "max"

    @property
    def stat(self) -> Aggregate:
        """The figure of many runs."""
        return cast("Aggregate", self.options.stat)

    @property
    def intervals(self) -> dict[str, Any]:
        """The options of all intervals."""
        if not 0 < self.options.confidence < 1:
            raise ConfigurationError(f"--confidence {self.options.confidence:g}: it is between 0 and 1, such as 0.95")
        return {"confidence": self.options.confidence}

    @property
    def title(self) -> str:
        """What the figures are."""
        return f"{self.scoring.name}, {_last_words(self.options.last)} of each run"

    def groups(self, *, by: Sequence[str] | None = None) -> Groups:
        """Return the groups that are compared."""
        keys = [key.strip() for key in self.options.by.split(",") if key.strip()] if by is None else by
        made = Groups.of(self.results, keys, self.options.task)
        return made.best(self.scoring, self.mode) if self.options.best else made

    def _objective(self) -> str:
        named = {str(run.params["loop.objective"]) for run in self.results if "loop.objective" in run.params}
        metrics = self.results.metrics()
        held = [name for name in sorted(named) if name in metrics]
        if len(held) != 1:
            shown = ", ".join(metrics[:_MOST_CONFIGS]) + (", ..." if len(metrics) > _MOST_CONFIGS else "")
            raise ConfigurationError(f"which metric? name one by --metric (of: {shown or 'none'})")
        return held[0]

    def plain(self, held: Any) -> None:
        """Print what was found as JSON, with what was left out."""
        jobs = {
            sweep: [
                {"index": job.index, "state": job.how, "values": job.values}
                for job in of_sweep
                if job.how != "completed"
            ]
            for sweep, of_sweep in self._jobs().items()
        }
        about = {"metric": self.scoring.name, "problems": self.results.problems, "jobs": jobs}
        print(json.dumps(_plain({**about, **held}), allow_nan=False))

    def _jobs(self) -> Mapping[str, Sequence[Any]]:
        return self.all_runs.status().jobs

    def tell(self) -> None:
        """Say what was left out, and which jobs are missing."""
        console = Console(stderr=True, soft_wrap=True, highlight=False)
        for sweep, jobs in self._jobs().items():
            without = [job for job in jobs if job.how != "completed"]
            if without:
                numbers = ", ".join(f"{job.index} ({job.how})" for job in without[:_MOST_PROBLEMS])
                more = ", ..." if len(without) > _MOST_PROBLEMS else ""
                console.print(
                    f"{sweep}: {len(without)} of {len(jobs)} jobs are not completed: {numbers}{more}",
                    style="yellow",
                    markup=False,
                )
                console.print(f"run them: trieye sweep relaunch {sweep}", markup=False)
        problems = self.results.problems
        for text in problems[:_MOST_PROBLEMS]:
            console.print(text, style="yellow", markup=False)
        if len(problems) > _MOST_PROBLEMS:
            console.print(f"and {len(problems) - _MOST_PROBLEMS} more of this kind: --json has them all")


def table(options: argparse.Namespace) -> int:
    """Show figures of each group."""
    asked = Asked(options)
    groups = asked.groups()
    scores = groups.scores(asked.scoring)
    median: Aggregate = "run_median" if len(groups.tasks) == 1 else "median"  # that of one task's mean is the mean
    names: dict[Aggregate, None] = dict.fromkeys([asked.stat, "iqm", median, "mean"])
    found = {
        label: {name: statistics.aggregate(held, name, **asked.intervals) for name in names}
        for label, held in zip(groups.labels, scores, strict=True)
    }
    order = sorted(found, key=lambda label: _rank(found[label][asked.stat].value, asked.mode))
    rows = {label: found[label] for label in order}
    if options.json:
        values = dict(zip(groups.labels, groups.values, strict=True))
        asked.plain(
            {"groups": [{"label": label, "values": values[label], **figures} for label, figures in rows.items()]}
        )
        return 0
    shown = {label: {**figures, "std": _spread(scores[groups.labels.index(label)])} for label, figures in rows.items()}
    asked.console.print(
        tables.scores_table(shown, asked.stat, title=asked.title, confidence=options.confidence), highlight=False
    )
    if options.out is not None:
        from trieye.results import plots

        figures = {label: figures[asked.stat] for label, figures in rows.items()}
        _save(plots.intervals(figures, f"{asked.scoring.name} ({asked.stat})", labels=groups.labels), options.out)
    asked.tell()
    return 0


def curve(options: argparse.Namespace) -> int:
    """Show the learning curves of each group."""
    asked = Asked(options)
    groups = asked.groups()
    grid, curves = groups.curves(asked.scoring, options.x, options.grid)
    bands = {
        label: aggregate_curves(values, grid, asked.stat, **asked.intervals)
        for label, values in zip(groups.labels, curves, strict=True)
    }
    name = asked.scoring.name
    counted = {run.axis for run in asked.results}
    x = counted.pop() if options.x == "step" and len(counted) == 1 else options.x
    if options.json:
        asked.plain({"x": x, "curves": [{"label": label, "band": band} for label, band in bands.items()]})
        return 0
    if options.out is not None:
        from trieye.results import plots

        runs = {
            label: np.moveaxis(held, -1, 0).reshape(len(grid), -1).T
            for label, held in zip(groups.labels, curves, strict=True)
        }
        what = f"{asked.stat}, {options.confidence:.0%} CI"
        _save(plots.curves(bands, name, x, what=what, runs=runs if options.runs else None), options.out)
    else:
        from trieye.results.terminal import curves as in_terminal

        print(in_terminal(bands, name, x, asked.console))
    asked.tell()
    return 0


def compare(options: argparse.Namespace) -> int:
    """Show which group is better, how surely and by how much."""
    asked = Asked(options)
    by_place = len(options.places) > 1 and not options.by
    groups = asked.groups(by=["place"] if by_place else None)
    if len(groups.labels) == 1:
        raise ConfigurationError(f"there is one group only, {groups.labels[0]}; say by what to compare (--by)")
    scores = groups.scores(asked.scoring)
    numbers = [(x, y) for x in range(len(scores)) for y in range(x + 1, len(scores))]
    pairs = []
    for x, y in numbers[: None if options.json else _MOST_PAIRS]:
        sides = (scores[x], scores[y]) if asked.mode == "max" else (-scores[x], -scores[y])
        chance = statistics.probability_of_improvement(*sides, **asked.intervals)
        gap = statistics.difference(scores[x], scores[y], asked.stat, **asked.intervals)
        pairs.append((groups.labels[x], groups.labels[y], chance, gap))
    if options.json:
        asked.plain(
            {"pairs": [dict(zip(("x", "y", "probability", "difference"), pair, strict=True)) for pair in pairs]}
        )
        return 0
    better = "more" if asked.mode == "max" else "less"
    title = f"{asked.title}; {better} is better"
    asked.console.print(tables.pairs_table(pairs, asked.stat, title=title), highlight=False)
    if len(numbers) > len(pairs):
        asked.console.print(f"and {len(numbers) - len(pairs)} more pairs: --json has them all", highlight=False)
    if len(groups.labels) <= _MOST_COLUMNS and (found := groups.differences()):
        asked.console.print(tables.differences_table(found, groups.labels), highlight=False)
    if options.out is not None:
        from trieye.results import plots

        _save(plots.profiles(profiles_of(groups, scores, asked), asked.scoring.name), options.out)
    asked.tell()
    return 0


def profiles_of(groups: Groups, scores: Sequence[Floats], asked: Asked) -> dict[str, statistics.Band]:
    """Return the performance profile of each group, at the scores of all of them."""
    every = np.unique(np.concatenate([held[~np.isnan(held)] for held in scores]))
    if not len(every):
        raise ConfigurationError(f"{asked.scoring.name}: no run has a value that counts")
    low, high = every[0], every[-1]
    at = np.linspace(low - 0.02 * (high - low or 1.0), high, 200)
    return {
        label: statistics.performance_profile(held, at, **asked.intervals)
        for label, held in zip(groups.labels, scores, strict=True)
    }


def sensitivity(options: argparse.Namespace) -> int:
    """Show what a parameter matters."""
    asked = Asked(options)
    key = selection.resolve(options.param, asked.results.runs)
    lines = {}
    labels: list[str] = []
    for name, groups in outer_groups(asked).items():
        params = [{options.param: _value(groups, place, key)} for place in range(len(groups.labels))]
        known = [place for place, held in enumerate(params) if held[options.param] is not selection.MISSING]
        stacked = _stacked([groups.scores(asked.scoring)[place] for place in known])
        labels = [groups.labels[place] for place in known]
        lines[name] = hyperparameters.sensitivity(
            stacked, [params[place] for place in known], options.param, asked.stat, mode=asked.mode, **asked.intervals
        )
    if options.json:
        asked.plain({"param": key, "lines": [{"label": name, "settings": list(held)} for name, held in lines.items()]})
        return 0
    asked.console.print(tables.settings_table(lines, options.param, labels, title=asked.title), highlight=False)
    if options.out is not None:
        from trieye.results import plots

        _save(plots.sensitivity(lines, options.param, f"{asked.scoring.name} ({asked.stat})"), options.out)
    asked.tell()
    return 0


def select(options: argparse.Namespace) -> int:
    """Show the best config of each group, and run it again on fresh seeds."""
    asked = Asked(options)
    if options.rerun is not None and options.rerun < 1:
        raise ConfigurationError(f"--rerun {options.rerun}: it has to be 1 or more")
    found: dict[str, tuple[Groups, Selection]] = {}
    for name, groups in outer_groups(asked).items():
        stacked = _stacked(groups.scores(asked.scoring))
        found[name] = groups, hyperparameters.select(stacked, asked.stat, mode=asked.mode, **asked.intervals)
    if options.json and options.rerun is None:
        asked.plain({"groups": [_plain_selection(name, *held) for name, held in found.items()]})
        return 0
    for name, (groups, chosen_) in found.items():
        title = f"{name}: {asked.title}" if name else asked.title
        shown = tables.selection_table(chosen_, groups.labels, asked.stat, title=title, most=_MOST_CONFIGS)
        asked.console.print(shown, highlight=False)
    asked.tell()
    if options.rerun is None:
        flattered = "the best of many looks better than it is: --rerun N shows how it does on fresh seeds"
        asked.console.print(
            flattered if any(len(held.estimates) > 1 for _, held in found.values()) else "", style="dim"
        )
        return 0
    from trieye.cli.results_rerun import rerun

    return rerun(asked, found)


def report(options: argparse.Namespace) -> int:
    """Write a page with all of it."""
    raise NotImplementedError


def export(options: argparse.Namespace) -> int:
    """Write the points of all runs as one table."""
    from trieye.results.conversion import write_table

    results = chosen(load(places_of(options)), options.where, strict=options.strict)
    metrics = None if options.metric is None else [name.strip() for name in options.metric.split(",")]
    if metrics is not None:
        known = results.metrics()
        for name in metrics:
            if name not in known:
                raise ConfigurationError(f"{name}: no run has it{did_you_mean(name, known)}")
    points = results.to_arrow(metrics)
    write_table(points, options.out)
    print(f"{points.num_rows:,} points of {len(results)} runs written to {options.out}")
    for text in results.problems:
        print(text, file=sys.stderr)
    return 0


def places_of(options: argparse.Namespace) -> list[str]:
    """Return the places that were given, else the newest sweep.

    Raises:
        ConfigurationError: There is no sweep here.
    """
    return options.places or [str(directory_of(None))]


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


def _last_words(text: str) -> str:
    return f"mean of the last {text} of the points" if text.endswith("%") else f"mean of the last {text} steps"


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


def outer_groups(asked: Asked) -> dict[str, Groups]:
    """Return the configs of each group of `--by`, each as a group of its own; all of them if nothing was said."""
    keys = [selection.resolve(key.strip(), asked.results.runs) for key in asked.options.by.split(",") if key.strip()]
    if not keys:
        return {"": Groups.of(asked.results, (), asked.options.task)}
    found = {}
    for runs in selection.grouped(asked.results.runs, keys).values():
        held = asked.results.only(runs)
        label = Groups.of(held, keys, asked.options.task).labels[0]
        found[label] = Groups.of(held, (), asked.options.task)
    return found


def _value(groups: Groups, place: int, key: str) -> Any:
    number = next(number for number in groups.rows[place] if number is not None)
    first = next(run for run in groups.results.table[number] if run is not None)
    return selection.value_of(first, key)


def _stacked(scores: Sequence[Floats]) -> Floats:
    """Return scores `[config, seed, task]` of configs that may have different numbers of seeds."""
    num = max((len(held) for held in scores), default=0)
    if not num:
        raise ConfigurationError("no config has a run")
    fill = [np.full((num - len(held), *held.shape[1:]), np.nan) for held in scores]
    return np.stack([np.concatenate([held, rest]) for held, rest in zip(scores, fill, strict=True)])


def _spread(scores: Floats) -> statistics.Estimate:
    held = scores[~np.isnan(scores)]
    value = float(held.std(ddof=1)) if len(held) > 1 else np.nan
    return statistics.Estimate(value, None, None, len(held), 0)


def _rank(value: float, mode: Mode) -> float:
    return np.inf if np.isnan(value) else -value if mode == "max" else value


def _save(figure: Any, path: Path) -> None:
    from trieye.results import plots

    plots.save(figure, path)
    print(f"written to {path}")


def _plain_selection(name: str, groups: Groups, found: Selection) -> dict[str, Any]:
    configs = [
        {"label": label, "values": values, "estimate": estimate, "p_best": chance, "p_as_good": close}
        for label, values, estimate, chance, close in zip(
            groups.labels, groups.values, found.estimates, found.p_best.tolist(), found.p_as_good.tolist(), strict=True
        )
    ]
    not_worse = [groups.labels[place] for place in found.not_worse]
    return {"label": name, "best": groups.labels[found.best], "not_worse": not_worse, "configs": configs}


def _plain(held: Any) -> Any:
    """Return what JSON can hold: null in the place of NaN."""
    if is_dataclass(held) and not isinstance(held, type):
        held = {field.name: getattr(held, field.name) for field in fields(held)}
    if isinstance(held, np.ndarray | np.generic):
        held = held.tolist()
    if isinstance(held, Mapping):
        return {str(key): _plain(value) for key, value in held.items()}
    if isinstance(held, list | tuple):
        return [_plain(value) for value in held]
    return None if isinstance(held, float) and not np.isfinite(held) else held
