"""Report: all that is known of a comparison of runs as one page of HTML, which needs nothing beside itself."""

import base64
import hashlib
import itertools
import math
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple, cast
from urllib.parse import quote

import numpy as np
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from trieye.config.redaction import redacted, redacted_text
from trieye.exceptions import ConfigurationError
from trieye.results import plots, selection, statistics
from trieye.results.aggregates import Aggregate
from trieye.results.aligned import Floats, XAxis
from trieye.results.curves import aggregate_curves
from trieye.results.groups import Groups, Scoring
from trieye.results.hyperparameters import Mode, Setting
from trieye.results.origins import Origin, Versions, counted
from trieye.results.runs import LoadedRun, is_seed
from trieye.results.statistics import Band, Estimate
from trieye.results.tables import SEPARATE, interval, is_separate, number
from trieye.run.provenance import Provenance
from trieye.sweeps.status import ENDED

MAX_BYTES = 1_000_000
"""A page may be so large; of long lists it has fewer lines then, and says so."""

_MOST_LINES = (1000, 300, 100, 30)
_MOST_DRAWN = 10
_MOST_SENSITIVITIES = 6
_LONGEST_VALUE = 200
_FEW_VALUES = 2


@dataclass(frozen=True, kw_only=True)
class Question:
    """What a report answers.

    Attributes:
        title: Of the page.
        places: Where the runs are, as they were given.
        command: What makes the page again.
        made: When it was asked.
        here: Paths are shown as they are from this directory.
        beside: The directory of the page, to which links are relative; None: it has none, nor links.
        by: What groups have in common.
        task: The parameter that tells environments apart; None: there is one.
        stat: The figure of many runs.
        mode: Which scores are better.
        confidence: Of the intervals.
        x: What the axis of curves counts.
    """

    title: str
    places: Sequence[str]
    command: str
    made: datetime
    here: Path
    beside: Path | None
    by: Sequence[str] = ()
    task: str | None = None
    stat: Aggregate = "iqm"
    mode: Mode = "max"
    confidence: float = 0.95
    x: XAxis = "step"

    def shown(self, text: str) -> str:
        """Return a text in which paths are as they are from here, without secrets."""
        inside = f"{str(self.here).rstrip(os.sep)}{os.sep}"
        return redacted_text(text.replace(inside, "") if text != str(self.here) else ".")

    def link(self, directory: str) -> str:
        """Return the address of a directory, for a page that is read as a file; empty for one that is not."""
        if self.beside is None or not Path(directory).is_dir():
            return ""
        try:
            return f"{quote(os.path.relpath(directory, self.beside).replace(os.sep, '/'))}/"
        except ValueError:  # on another drive
            return Path(directory).as_uri()


class Line(NamedTuple):
    """What came of a group: its main figure, and others by name; `color` is its number where it is drawn."""

    label: str
    color: int | None
    main: Estimate
    others: Mapping[str, float]


class Pair(NamedTuple):
    """Two groups: how many runs each has, how likely a run of X is better than one of Y, and X less Y."""

    x: str
    y: str
    sizes: str
    chance: Estimate
    gap: Estimate


class Picture(NamedTuple):
    """A figure, and what those are told who do not see it."""

    title: str
    svg: Markup
    seen: str


class RunLine(NamedTuple):
    """A run, its value, and where to see more of it."""

    run: LoadedRun
    label: str
    task: str
    value: float
    step: int | None
    duration_s: float | None
    origin: Origin | None
    link: str
    shown: str


class Report:
    """The answer to a question.

    Args:
        groups: The groups that are compared.
        scoring: How runs come to numbers.
        question: What is asked.

    Raises:
        ConfigurationError: No run has the metric, or a group has several configs.
    """

    def __init__(self, groups: Groups, scoring: Scoring, question: Question) -> None:
        self.groups, self.scoring, self.question = groups, scoring, question
        self.scores = groups.scores(scoring)
        self._intervals: dict[str, Any] = {"confidence": question.confidence}
        mains = [statistics.aggregate(held, question.stat, **self._intervals) for held in self.scores]
        sign = 1 if question.mode == "min" or question.stat == "optimality_gap" else -1
        worst_last = [math.inf if math.isnan(main.value) else sign * main.value for main in mains]
        self._mains = mains
        penalties = groups.penalties(scoring)
        self.ranked = sorted(range(len(mains)), key=lambda place: (penalties[place], worst_last[place]))
        self.drawn = sorted(place for place in self.ranked[:_MOST_DRAWN] if not math.isnan(mains[place].value))

    def html(self) -> str:
        """Return the page."""
        environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
        environment.filters |= {"number": number, "interval": interval, "sha256": _sha256, "duration": _duration}
        environment.filters |= {"value": _value, "shown": self.question.shown}
        environment.tests["separate"] = is_separate
        template = environment.from_string(files("trieye.results").joinpath("report.html.jinja").read_text("utf-8"))
        about = {**self._about(), "results": self.groups.results, "version": version("trieye")}
        page = ""
        for most in _MOST_LINES:
            page = template.render(report=self, question=self.question, scoring=self.scoring, most=most, **about)
            if len(page.encode("utf-8", "backslashreplace")) <= MAX_BYTES:
                break
        return page

    def _about(self) -> dict[str, Any]:
        status = self.groups.results.status()
        known = [held.provenance for held in self.origins.values() if held is not None and held.provenance is not None]
        return {
            "lines": self.lines(self.scores, self.groups.tasks),
            "tasks": self.tasks(),
            "pictures": list(self.pictures()),
            "pairs": self.pairs(),
            "separate": SEPARATE,
            "sensitivities": list(self.sensitivities()),
            "runs": self.runs(),
            "provenances": known,
            "versions": Versions.of(known),
            "commits": counted(known, _commit),
            "machines": counted(known, _machine),
            "jobs": {
                sweep: (jobs, [job for job in jobs if job.how not in ENDED]) for sweep, jobs in status.jobs.items()
            },
            "ended_badly": [(how, path) for how, paths in status.runs.items() if how != "completed" for path in paths],
        }

    # figures

    def lines(self, scores: Sequence[Floats], tasks: Sequence[str]) -> list[Line]:
        """Return what came of each group, the best one first.

        Args:
            scores: Of each group, `[seed, task]`.
            tasks: The tasks; the median of one is that of its runs, since that of its mean would be the mean.
        """
        is_one = len(tasks) == 1
        stat: Aggregate = "run_median" if is_one and self.question.stat == "median" else self.question.stat
        named: dict[str, Aggregate] = {"median": "run_median"} if is_one else {"median of tasks": "median"}
        named |= {name: name for name in cast("tuple[Aggregate, ...]", ("iqm", "mean"))}
        named = {name: other for name, other in named.items() if other != stat}
        found = []
        for place in self.ranked:
            held = scores[place]
            main = statistics.aggregate(held, stat, **self._intervals)
            others = {name: statistics.aggregate(held, other, resamples=1).value for name, other in named.items()}
            if is_one:
                known = held[~np.isnan(held)]
                others["std"] = float(known.std(ddof=1)) if len(known) > 1 else math.nan
            found.append(Line(self.groups.labels[place], self._color(place), main, others))
        return found

    def tasks(self) -> dict[str, list[Line]]:
        """Return the same for each task, if there are several."""
        tasks = self.groups.tasks
        if len(tasks) == 1:
            return {}
        return {
            task: self.lines([held[:, [column]] for held in self.scores], [task]) for column, task in enumerate(tasks)
        }

    def _color(self, place: int) -> int | None:
        return self.drawn.index(place) % len(plots.COLORS) if place in self.drawn else None

    def pairs(self) -> list[Pair]:
        """Return the comparisons of the groups that are drawn, X before Y in the order of the best."""
        found, sizes = [], [int(np.isfinite(held).sum()) for held in self.scores]
        for x, y in itertools.combinations([place for place in self.ranked if place in self.drawn], 2):
            sign = 1 if self.question.mode == "max" else -1
            chance = statistics.probability_of_improvement(
                sign * self.scores[x], sign * self.scores[y], **self._intervals
            )
            gap = statistics.difference(self.scores[x], self.scores[y], self.question.stat, **self._intervals)
            counts = f"{sizes[x]} + {sizes[y]}"
            found.append(Pair(self.groups.labels[x], self.groups.labels[y], counts, chance, gap))
        return found

    @property
    def num_pairs(self) -> int:
        """How many comparisons there are of all groups."""
        return math.comb(len(self.groups.labels), 2)

    # pictures

    def pictures(self) -> Iterator[Picture]:
        """Yield learning curves, intervals and performance profiles of the groups that are drawn."""
        labels = [self.groups.labels[place] for place in self.drawn]
        name, what = self.scoring.name, f"{self.question.stat}, {self.question.confidence:.0%} CI"
        bands, x = self._bands()
        if bands:
            figure = plots.curves(bands, name, x, what=what)
            yield self._picture("Learning curves", figure, f"{name} over {x}: a line with its band for each of", bands)
        if not self.drawn:
            return
        scores = {self.groups.labels[place]: self.scores[place] for place in self.drawn}
        every = np.concatenate([held[~np.isnan(held)] for held in scores.values()])
        at = np.linspace(every.min() - 0.02 * (np.ptp(every) or 1.0), every.max(), 200)
        profiles = {
            label: statistics.performance_profile(held, at, **self._intervals) for label, held in scores.items()
        }
        seen = f"fraction of runs with more than each value of {name}: a line with its band for each of"
        yield self._picture("Performance profiles", plots.profiles(profiles, name), seen, profiles)
        rows = {self.groups.labels[place]: self._mains[place] for place in self.ranked if place in self.drawn}
        figure = plots.intervals(rows, f"{name} ({what})", labels=labels)
        yield self._picture("Figures and intervals", figure, f"{name}: a point with its interval for each of", rows)

    def _bands(self) -> tuple[dict[str, Band], str]:
        """Return the curves that are drawn, and what their axis counts."""
        grid, curves = self.groups.curves(self.scoring, self.question.x)
        counted = {run.axis for run in self.groups.results.runs}
        x = counted.pop() if self.question.x == "step" and len(counted) == 1 else self.question.x
        stat = self.question.stat
        found = {
            self.groups.labels[place]: aggregate_curves(curves[place], grid, stat, **self._intervals)
            for place in self.drawn
        }
        return found, x

    def _picture(self, title: str, figure: Figure, seen: str, labels: Mapping[str, Any]) -> Picture:
        name = "".join(letter if letter.isalnum() and letter.isascii() else "-" for letter in title.lower())
        return Picture(title, Markup(plots.inline(figure, name)), f"{seen} {', '.join(labels)}")  # noqa: S704 - escaped

    def sensitivities(self) -> Iterator[Picture]:
        """Yield what each parameter matters, where that says more than the groups do."""
        task = None if self.question.task is None else selection.resolve(self.question.task, self.groups.results.runs)
        outer = Groups.by_config(self.groups.results, self.question.by, self.question.task)
        keys = {key for groups in outer.values() for key in groups.keys}
        but = {selection.resolve(key, self.groups.results.runs) for key in self.question.by} | {task}
        asked = self._telling(key for key in selection.compared_by(self.groups.results.runs) if key in keys - but)
        for key in asked[:_MOST_SENSITIVITIES]:
            lines = {label: found for label, groups in outer.items() if (found := self._settings(groups, key))}
            values = {setting.value for settings in lines.values() for setting in settings}
            is_line = len(values) > _FEW_VALUES and not any(isinstance(value, str | bool) for value in values)
            if len(values) >= _FEW_VALUES and (is_line or len(asked) > 1):
                figure = plots.sensitivity(lines, key, f"{self.scoring.name} ({self.question.stat})")
                seen = f"{self.scoring.name} for each value of {key}: {', '.join(map(str, sorted(values, key=str)))}"
                yield Picture(key, Markup(plots.inline(figure, f"of-{asked.index(key)}")), seen)  # noqa: S704 - escaped

    def _telling(self, keys: Iterable[str]) -> list[str]:
        """Return one of each parameters that divide the runs alike, such as a class and its module."""
        found: dict[tuple[int, ...], str] = {}
        for key in keys:
            parts = [selection.identity(value) for value in self._values(key)]
            found.setdefault(tuple(map(parts.index, parts)), key)
        return list(found.values())

    def _settings(self, groups: Groups, key: str) -> tuple[Setting, ...]:
        stat, mode = self.question.stat, self.question.mode
        try:
            return groups.sensitivity(key, self.scoring, stat, mode=mode, **self._intervals)
        except ConfigurationError:  # its configs differ in more than varies in sweeps; --best has chosen among them
            return ()

    # what the runs are

    def differences(self) -> dict[str, list[Any]]:
        """Return the parameters in which the groups that are drawn differ, with the value of each."""
        places = self.drawn or range(len(self.groups.labels))[:_MOST_DRAWN]
        found = self.groups.differences()
        return {key: redacted([values[place] for place in places], key) for key, values in found.items()}

    @cached_property
    def same(self) -> dict[str, Any]:
        """The parameters that are the same in all runs."""
        varying = set(selection.varying(self.groups.results.runs))
        first = self.groups.results.runs[0].params
        return {key: redacted(value, key) for key, value in first.items() if key not in varying and not is_seed(key)}

    def within(self) -> dict[str, list[Any]]:
        """Return the parameters that vary within groups, such as the task, with all of their values."""
        differing = self.groups.differences().keys()
        found: dict[str, list[Any]] = {}
        for key in selection.varying(self.groups.results.runs):
            if key not in differing:
                held = {selection.identity(value): value for value in self._values(key)}
                found[key] = redacted(list(held.values()), key)
        return found

    def _values(self, key: str) -> Iterator[Any]:
        for run in self.groups.results.runs:
            value = selection.value_of(run, key)
            yield None if value is selection.MISSING else value

    @cached_property
    def origins(self) -> dict[str, Origin | None]:
        """Where each run came from, by its path."""
        return {run.path: Origin.of(run) for run in self.groups.results.runs}

    def runs(self) -> list[RunLine]:
        """Return all runs: those of the best group first, and those that do not count last."""
        results, scoring = self.groups.results, self.scoring
        values = results.values(
            scoring.metric, last=scoring.last, steps=scoring.steps, partial=scoring.partial, finite=scoring.finite
        )
        value_of = {
            run.path: float(value)
            for row, held in zip(results.table, values, strict=True)
            for run, value in zip(row, held, strict=True)
            if run is not None
        }
        place_of = {
            run.path: (place, task)
            for place, row in enumerate(self.groups.rows)
            for task, config in enumerate(row)
            for run in (results.table[config] if config is not None else [])
            if run is not None
        }
        found = []
        for run, points in zip(results.runs, results.series(scoring.metric), strict=True):
            place, task = place_of.get(run.path, (None, None))
            origin = self.origins[run.path]
            duration = _lasted(run, points.times) if origin is None or origin.duration_s is None else origin.duration_s
            label = "" if place is None else self.groups.labels[place]
            step = run.step if run.step is not None else int(points.steps.max()) if len(points.steps) else None
            link = self.question.link(run.path)
            where = self.question.shown(run.path)
            value = value_of.get(run.path, math.nan)
            shown_task = "" if task is None else self.groups.tasks[task]
            found.append(RunLine(run, label, shown_task, value, step, duration, origin, link, where))
        rank = {self.groups.labels[place]: number for number, place in enumerate(self.ranked)}
        return sorted(
            found, key=lambda line: (rank.get(line.label, len(rank)), line.task, line.run.seed or 0, line.run.name)
        )

    def command(self, *words: str) -> str:
        """Return a command of trieye as one types it here."""
        return shlex.join(["trieye", *map(self.question.shown, words)])


def _commit(found: Provenance) -> tuple[str, ...]:
    held = found.commit
    if held is None:
        return "in no repository", "", "", ""
    new = f"{len(held.untracked)} files that git does not know" if held.untracked else ""
    state = ", ".join(filter(None, ("uncommitted changes" if held.is_dirty else "", new))) or "as committed"
    return held.sha[:12], held.branch, held.remote, state


def _machine(found: Provenance) -> tuple[str, ...]:
    held = found.machine
    memory = f"{held.memory_bytes / (1 << 30):.0f} GiB"
    return held.host, held.system, held.cpu, str(held.num_cpus), memory, ", ".join(held.gpus) or "none"


def _lasted(run: LoadedRun, times: Floats) -> float | None:
    """Return for how long a run logged, if nobody noted its end."""
    if not len(times):
        return None
    return float(times.max() - (times.min() if math.isnan(run.created) else run.created))


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def _value(value: Any) -> str:
    text = "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."


def _sha256(text: str) -> str:
    """Return what a Content-Security-Policy calls a script that may run."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
