"""Report: a comparison of runs as a self-contained HTML page."""

import base64
import hashlib
import itertools
import math
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
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
from trieye.results import hyperparameters, plots, selection, statistics
from trieye.results.aggregates import Aggregate
from trieye.results.aligned import Floats, XAxis
from trieye.results.curves import aggregate_curves
from trieye.results.groups import Pair, RunGroups, ScoreDefinition
from trieye.results.hyperparameters import Mode, Setting
from trieye.results.origins import Origin, Versions
from trieye.results.runs import LoadedRun, is_seed
from trieye.results.statistics import Band, Estimate
from trieye.results.tables import COVERAGE, SEPARATE, interval, is_separate, number
from trieye.run.provenance import Provenance
from trieye.sweeps.status import ENDED
from trieye.version import VERSION

MAX_BYTES = 1_000_000
"""Maximum page size; long lists are truncated to meet it, with a note."""

_MOST_LINES = (1000, 300, 100, 30)
_MOST_DRAWN = 10
_MOST_SENSITIVITIES = 6
_LONGEST_VALUE = 200
_FEW_VALUES = 2


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Options of a report.

    Attributes:
        title: Title of the page.
        sources: Locations of the runs, as typed.
        command: Command that regenerates the page.
        created: Creation time.
        working_dir: Base directory of displayed paths.
        directory: Directory of the page, the base of its links; None: the page is not a file and has no links.
        by: Parameters to group by.
        task: The parameter that distinguishes environments; None: a single environment.
        stat: Aggregate of the runs of a group.
        mode: Whether higher or lower scores are better.
        confidence: Confidence level of the intervals.
        x: Axis of the curves.
    """

    title: str
    sources: Sequence[str]
    command: str
    created: datetime = field(default_factory=lambda: datetime.now().astimezone())
    working_dir: Path = field(default_factory=Path.cwd)
    directory: Path | None
    by: Sequence[str] = ()
    task: str | None = None
    stat: Aggregate = "iqm"
    mode: Mode = "max"
    confidence: float = 0.95
    x: XAxis = "step"

    def shown(self, text: str) -> str:
        """Return a text with paths relative to `working_dir`, without secrets."""
        path_start = rf"(?<![^\s'\"(=]){re.escape(f'{self.working_dir}{os.sep}')}"
        return redacted_text(re.sub(path_start, "", text) if text != str(self.working_dir) else ".")

    def link(self, target: str) -> str:
        """Return the link from the page file to a directory; empty if the page is not a file."""
        if self.directory is None or not Path(target).is_dir():
            return ""
        return f"{quote(os.fsencode(os.path.relpath(target, self.directory)))}/"


class Line(NamedTuple):
    """The figures of a group: the main figure, and others by name; `color` is its color index if it is plotted."""

    label: str
    color: int | None
    main: Estimate
    others: Mapping[str, float]


class Picture(NamedTuple):
    """A plot and its text alternative."""

    title: str
    svg: Markup
    seen: str


class RunLine(NamedTuple):
    """A row of the table of runs."""

    run: LoadedRun
    label: str
    task: str
    value: float
    step: int | None
    duration_s: float | None
    origin: Origin | None


class Report:
    """Computes and renders a report.

    Args:
        groups: The compared groups.
        scoring: Score definition.
        comparison: Options of the report.

    Raises:
        ConfigurationError: No run has the metric, or a group has several configs.
    """

    def __init__(self, groups: RunGroups, scoring: ScoreDefinition, comparison: Comparison) -> None:
        self.groups, self.scoring, self.comparison = groups, scoring, comparison
        self.scores = groups.scores(scoring)
        self._intervals: dict[str, Any] = {"confidence": comparison.confidence}
        self._mains = [statistics.aggregate(scores, comparison.stat, **self._intervals) for scores in self.scores]
        mode = hyperparameters.figure_mode(comparison.stat, comparison.mode)
        self.ranked = hyperparameters.ranked(self._mains, groups.penalties(scoring), mode)
        self.drawn = sorted(group for group in self.ranked[:_MOST_DRAWN] if not math.isnan(self._mains[group].value))
        self.shown = self.drawn or range(len(self._mains))[:_MOST_DRAWN]

    def html(self) -> str:
        """Return the page."""
        environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
        environment.filters |= {"number": number, "interval": interval, "sha256": _sha256, "duration": _duration}
        environment.filters |= {"value": _value, "shown": self.comparison.shown}
        environment.tests["separate"] = is_separate
        template = environment.from_string(files("trieye.results").joinpath("report.html.jinja").read_text("utf-8"))
        context = {**self._about(), "results": self.groups.results, "version": VERSION}
        page = ""
        for limit in _MOST_LINES:
            page = template.render(report=self, comparison=self.comparison, scoring=self.scoring, most=limit, **context)
            if len(page.encode("utf-8", "backslashreplace")) <= MAX_BYTES:
                break
        return page

    def _about(self) -> dict[str, Any]:
        status = self.groups.results.status()
        origins = self.origins.values()
        provenances = [one.provenance for one in origins if one is not None and one.provenance is not None]
        return {
            "lines": self.lines(self.scores, self.groups.tasks),
            "tasks": self.tasks(),
            "pictures": list(self.pictures()),
            "pairs": self.pairs(),
            "separate": SEPARATE,
            "coverage": COVERAGE,
            "sensitivities": list(self.sensitivities()),
            "runs": self.runs(),
            "provenances": provenances,
            "versions": Versions.of(provenances),
            "commits": Counter(map(_commit, provenances)).most_common(),
            "machines": Counter(map(_machine, provenances)).most_common(),
            "jobs": {
                sweep: (jobs, [job for job in jobs if job.how not in ENDED]) for sweep, jobs in status.jobs.items()
            },
            "ended_badly": [(how, path) for how, paths in status.runs.items() if how != "completed" for path in paths],
        }

    # figures

    def lines(self, scores: Sequence[Floats], tasks: Sequence[str]) -> list[Line]:
        """Return the figures of each group, best first.

        Args:
            scores: Scores of each group, `[seed, task]`.
            tasks: The tasks; with one task, `median` is the median of its runs, as the median of one mean is the mean.
        """
        is_one = len(tasks) == 1
        stat: Aggregate = "run_median" if is_one and self.comparison.stat == "median" else self.comparison.stat
        stats: dict[str, Aggregate] = {"median": "run_median"} if is_one else {"median of tasks": "median"}
        stats |= {name: name for name in cast("tuple[Aggregate, ...]", ("iqm", "mean"))}
        stats = {name: other for name, other in stats.items() if other != stat}
        lines = []
        for group in self.ranked:
            table = scores[group]
            main = statistics.aggregate(table, stat, **self._intervals)
            other_stats = {name: statistics.aggregate(table, other, resamples=1).value for name, other in stats.items()}
            other_stats |= {"std": statistics.spread(table).value} if is_one else {}
            lines.append(Line(self.groups.labels[group], self._color(group), main, other_stats))
        return lines

    def tasks(self) -> dict[str, list[Line]]:
        """Return the figures of each group in each task, if there are several tasks."""
        tasks = self.groups.tasks
        if len(tasks) == 1:
            return {}
        return {
            task: self.lines([table[:, [column]] for table in self.scores], [task]) for column, task in enumerate(tasks)
        }

    def _color(self, group: int) -> int | None:
        return self.drawn.index(group) % len(plots.COLORS) if group in self.drawn else None

    def pairs(self) -> list[Pair]:
        """Return the pairwise comparisons of the plotted groups; X ranks above Y."""
        indices = itertools.combinations([group for group in self.ranked if group in self.drawn], 2)
        stat, mode = self.comparison.stat, self.comparison.mode
        return self.groups.pairs(indices, self.scoring, stat, mode=mode, **self._intervals)

    # plots

    def pictures(self) -> Iterator[Picture]:
        """Yield learning curves, intervals and performance profiles of the plotted groups."""
        labels = [self.groups.labels[group] for group in self.drawn]
        name, stat_label = self.scoring.name, f"{self.comparison.stat}, {self.comparison.confidence:.0%} CI"
        bands, x = self._bands()
        if bands:
            figure = plots.curves(bands, name, x, what=stat_label)
            yield self._picture("Learning curves", figure, f"{name} over {x}: a line with its band for each of", bands)
        if not self.drawn:
            return
        scores = {self.groups.labels[group]: self.scores[group] for group in self.drawn}
        profiles = statistics.performance_profiles(scores, name, **self._intervals)
        caption = f"fraction of runs with more than each value of {name}: a line with its band for each of"
        yield self._picture("Performance profiles", plots.profiles(profiles, name), caption, profiles)
        rows = {self.groups.labels[group]: self._mains[group] for group in self.ranked if group in self.drawn}
        figure = plots.intervals(rows, f"{name} ({stat_label})", labels=labels)
        yield self._picture("Figures and intervals", figure, f"{name}: a point with its interval for each of", rows)

    def _bands(self) -> tuple[dict[str, Band], str]:
        """Return the plotted curves and the name of their x axis."""
        grid, curves = self.groups.curves(self.scoring, self.comparison.x)
        axes = {run.axis for run in self.groups.results.runs}
        x = axes.pop() if self.comparison.x == "step" and len(axes) == 1 else self.comparison.x
        stat = self.comparison.stat
        bands = {
            self.groups.labels[group]: aggregate_curves(curves[group], grid, stat, **self._intervals)
            for group in self.shown
        }
        return bands, x

    def _picture(self, title: str, figure: Figure, caption: str, labels: Mapping[str, Any]) -> Picture:
        name = "".join(letter if letter.isalnum() and letter.isascii() else "-" for letter in title.lower())
        return Picture(title, Markup(plots.inline(figure, name)), f"{caption} {', '.join(labels)}")  # noqa: S704 - escaped

    def sensitivities(self) -> Iterator[Picture]:
        """Yield a sensitivity plot of each parameter that shows more than the comparison of groups."""
        task = (
            None if self.comparison.task is None else selection.resolve(self.comparison.task, self.groups.results.runs)
        )
        outer = RunGroups.by_config(self.groups.results, self.comparison.by, self.comparison.task)
        keys = {key for groups in outer.values() for key in groups.keys}
        excluded_keys = {selection.resolve(key, self.groups.results.runs) for key in self.comparison.by} | {task}
        compared_keys = selection.compared_by(self.groups.results.runs)
        params = self._distinct(key for key in compared_keys if key in keys - excluded_keys)
        for key in params[:_MOST_SENSITIVITIES]:
            lines = {label: settings for label, groups in outer.items() if (settings := self._settings(groups, key))}
            values = {selection.as_key(setting.value) for settings in lines.values() for setting in settings}
            is_line = len(values) > _FEW_VALUES and not any(isinstance(value, str | bool) for value in values)
            if len(values) >= _FEW_VALUES and (is_line or len(params) > 1):
                figure = plots.sensitivity(lines, key, f"{self.scoring.name} ({self.comparison.stat})")
                caption = f"{self.scoring.name} for each value of {key}: {', '.join(map(str, sorted(values, key=str)))}"
                yield Picture(key, Markup(plots.inline(figure, f"of-{params.index(key)}")), caption)  # noqa: S704 - escaped

    def _distinct(self, keys: Iterable[str]) -> list[str]:
        """Return one parameter of each set that partitions the runs identically, such as a class and its module."""
        by_partition: dict[tuple[int, ...], str] = {}
        for key in keys:
            values = [selection.identity(value) for value in self._values(key)]
            by_partition.setdefault(tuple(map(values.index, values)), key)
        return list(by_partition.values())

    def _settings(self, groups: RunGroups, key: str) -> tuple[Setting, ...]:
        stat, mode = self.comparison.stat, self.comparison.mode
        try:
            return groups.sensitivity(key, self.scoring, stat, mode=mode, **self._intervals)
        except ConfigurationError:  # the configs differ in parameters not varied in sweeps, among which --best selected
            return ()

    # parameters and runs

    def differences(self) -> dict[str, list[Any]]:
        """Return the differing parameters of the plotted groups, with the value of each group."""
        differences = self.groups.differences()
        return {key: redacted([values[group] for group in self.shown], key) for key, values in differences.items()}

    @cached_property
    def same(self) -> dict[str, Any]:
        """The parameters with the same value in all runs."""
        varying = set(selection.varying(self.groups.results.runs))
        params = self.groups.results.runs[0].params
        return {key: redacted(value, key) for key, value in params.items() if key not in varying and not is_seed(key)}

    def within(self) -> dict[str, list[Any]]:
        """Return the parameters that vary within groups, such as the task, with all their values."""
        differing_keys = self.groups.differences().keys()
        values_by_key: dict[str, list[Any]] = {}
        for key in selection.varying(self.groups.results.runs):
            if key not in differing_keys:
                values = {selection.identity(value): value for value in self._values(key)}
                values_by_key[key] = redacted(list(values.values()), key)
        return values_by_key

    def _values(self, key: str) -> list[Any]:
        return [selection.value_or_none(run, key) for run in self.groups.results.runs]

    @cached_property
    def origins(self) -> dict[str, Origin | None]:
        """Origin of each run, by path."""
        return {run.path: Origin.of(run) for run in self.groups.results.runs}

    def runs(self) -> list[RunLine]:
        """Return all runs: runs of the best group first, runs without a group last."""
        results, scoring = self.groups.results, self.scoring
        config_and_value = {
            run.path: (config, float(value))
            for config, row_values in enumerate(self.groups.final_scores(scoring))
            for run, value in zip(results.table[config], row_values, strict=True)
            if run is not None
        }
        group_and_task = {
            config: (group, task) for group, row in enumerate(self.groups.rows) for task, config in enumerate(row)
        }
        lines = []
        for run, points in zip(results.runs, results.series(scoring.metric), strict=True):
            config, value = config_and_value.get(run.path, (None, math.nan))
            group, task = (None, None) if config is None else group_and_task.get(config, (None, None))
            origin = self.origins[run.path]
            duration = _lasted(run, points.times) if origin is None or origin.duration_s is None else origin.duration_s
            label = "" if group is None else self.groups.labels[group]
            step = run.step if run.step is not None else int(points.steps.max()) if len(points.steps) else None
            shown_task = "" if task is None else self.groups.tasks[task]
            lines.append(RunLine(run, label, shown_task, value, step, duration, origin))
        rank = {self.groups.labels[group]: number for number, group in enumerate(self.ranked)}
        return sorted(
            lines, key=lambda line: (rank.get(line.label, len(rank)), line.task, line.run.seed or 0, line.run.name)
        )

    def command(self, *words: str) -> str:
        """Return a trieye command line with paths relative to `working_dir`."""
        return shlex.join(["trieye", *map(self.comparison.shown, words)])


def _commit(provenance: Provenance) -> tuple[str, ...]:
    commit = provenance.commit
    if commit is None:
        return "not in a repository", "", "", ""
    untracked_text = f"{len(commit.untracked)} untracked files" if commit.untracked else ""
    state = ", ".join(filter(None, ("uncommitted changes" if commit.is_dirty else "", untracked_text))) or "clean"
    return commit.sha[:12], commit.branch, commit.remote, state


def _machine(provenance: Provenance) -> tuple[str, ...]:
    machine = provenance.machine
    memory = f"{machine.memory_bytes / (1 << 30):.0f} GiB"
    return machine.host, machine.system, machine.cpu, str(machine.num_cpus), memory, ", ".join(machine.gpus) or "none"


def _lasted(run: LoadedRun, times: Floats) -> float | None:
    """Return for how many seconds a run logged, for runs without a recorded end."""
    if not np.isfinite(times).any():  # no points, or points of a CSV file, which have no times
        return None
    return float(times.max() - (times.min() if math.isnan(run.created) else run.created))


def _duration(seconds: float | None) -> str:
    return "-" if seconds is None else str(timedelta(seconds=round(seconds)))


def _value(value: Any) -> str:
    text = "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."


def _sha256(text: str) -> str:
    """Return the Content-Security-Policy source that allows a script."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
