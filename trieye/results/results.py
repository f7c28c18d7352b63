"""Results: runs that were found, selected by what they are and read as arrays; selecting reads nothing."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from trieye.config.base import did_you_mean
from trieye.exceptions import ConfigurationError
from trieye.results import aligned, selection
from trieye.results.aligned import COUNTERS, Between, Curve, Floats, XAxis
from trieye.results.point_cache import PointCache, by_source
from trieye.results.runs import NOTHING, LoadedRun, Problems, Series
from trieye.results.state import Status, status
from trieye.stats.drops import NON_FINITE_METRIC

Mode = Literal["max", "min"] | Callable[[float, float], bool]
"""Which of two numbers is better; or what tells whether the first one is."""

Metric = str | Sequence[str]
"""A metric; or its names in several programs, of which each run has one."""

_MAX_SHOWN = 10


class Results:
    """Runs, and what they logged. Objects that come of a selection share what was read.

    Arrays have the axes `[config, seed]`: a config is what runs have in common that differ in their seed only, and
    `configs` and `seeds` say what each place stands for.

    Attributes:
        runs: The runs.
    """

    def __init__(self, runs: Sequence[LoadedRun], found: PointCache, by: Sequence[str] = ()) -> None:
        self.runs = list(runs)
        self._found, self._by = found, by

    @classmethod
    def of(cls, runs: Sequence[LoadedRun], *, problems: Problems, sweeps: Mapping[str, Collection[int]]) -> Self:
        """Return runs that were found, with what was left out, and the seeds of each of their sweeps."""
        return cls(runs, PointCache(problems, sweeps))

    def __len__(self) -> int:
        return len(self.runs)

    def __iter__(self) -> Iterator[LoadedRun]:
        return iter(self.runs)

    def __repr__(self) -> str:
        problems = f", {len(self.problems)} problems" if self.problems else ""
        return f"<Results: {len(self.configs)} configs, {len(self.runs)} runs{problems}>"

    @property
    def problems(self) -> list[str]:
        """What was left out so far, and why: damaged and foreign directories, lost points, runs that count twice."""
        return list(self._found.problems.texts)

    def status(self) -> Status:
        """Return what became of the jobs of all sweeps that were loaded, and of the runs outside of them."""
        return status(self._found.sweeps, self.runs)

    # selection

    def where(self, conditions: Mapping[str, Any] | None = None, *, strict: bool = False, **more: Any) -> Self:
        """Return the runs that fit: `where(algo="ppo", lr__ge=1e-4, seed__in=[0, 1])`.

        Args:
            conditions: Values by key; a dotted key may be given by its last part where only one ends so. Behind a key
                may stand `__ge`, `__le`, `__gt`, `__lt`, `__ne` or `__in`.
            strict: A run that lacks a parameter does not fit; without it, it does, so that algorithms that have other
                parameters can be compared.
            more: Further conditions.

        Raises:
            ConfigurationError: No run knows a key, it may be several, or an operator is unknown.
        """
        asked = {**(conditions or {}), **more}
        tests = [selection.condition(key, value, self.runs, strict=strict) for key, value in asked.items()]
        return self.only(run for run in self.runs if all(test(run) for test in tests))

    def split(self, key: str) -> dict[Any, Self]:
        """Return the runs by their value of a parameter, in the order in which each is found; None if they lack it.

        Raises:
            ConfigurationError: No run has it, or it may be several.
        """
        key = selection.resolve(key, self.runs)
        groups = selection.grouped(self.runs, [key]).values()
        return {_shown(selection.value_of(runs[0], key)): self.only(runs) for runs in groups}

    def slice(self, key: str, *, at: LoadedRun) -> dict[Any, Self]:
        """Return the runs that differ from one in this parameter only, and in their seed, by their value of it.

        Raises:
            ConfigurationError: No run has it, or it may be several.
        """
        key = selection.resolve(key, [*self.runs, at])
        near = [run for run in self.runs if selection.differences(run.params, at.params) <= {key}]
        return self.only(near).split(key) if near else {}

    def find(self, run: LoadedRun, ignore: Sequence[str] = ()) -> LoadedRun | None:
        """Return the first run with the same parameters and seed as another one, but for those that are ignored.

        Raises:
            ConfigurationError: No run has an ignored parameter, or it may be several.
        """
        ignored = {selection.resolve(key, [*self.runs, run]) for key in ignore}
        for other in self.runs:
            is_near = selection.differences(other.params, run.params) <= ignored
            if is_near and ("seed" in ignored or other.seed == run.seed):
                return other
        return None

    def best(
        self,
        metric: Metric,
        mode: Mode = "max",
        *,
        last: float = 0.1,
        steps: int | None = None,
        reduce: Callable[[Floats], float] = np.mean,
    ) -> Self:
        """Return the runs of the config whose mean over seeds is best; the first of equal ones.

        A config without a value is never the best, and one with a diverged run only if each config has one. With few
        seeds the best of many configs looks better than it is.

        Args:
            metric: The metric.
            mode: Whether more or less is better, or a function that tells whether its first argument is better.
            last: See `values`.
            steps: See `values`.
            reduce: See `values`.

        Raises:
            ConfigurationError: No run has the metric.
        """
        is_better = {"max": np.greater, "min": np.less}.get(mode, mode) if isinstance(mode, str) else mode
        if isinstance(is_better, str):
            raise ConfigurationError(f"mode={mode!r}: it is max, min, or a function of two numbers")
        found = self.values(metric, last=last, steps=steps, reduce=reduce)
        diverged = self.num_diverged(metric)
        chosen: int | None = None
        means = [float(row[~np.isnan(row)].mean()) if not np.isnan(row).all() else np.nan for row in found]
        numbers = [number for number, mean in enumerate(means) if not np.isnan(mean)]
        fewest = min((diverged[number] for number in numbers), default=0)
        for number in numbers:
            if diverged[number] == fewest and (chosen is None or is_better(means[number], means[chosen])):
                chosen = number
        if chosen is None:
            raise ConfigurationError(f"{metric}: no run has a value of it that is a number")
        return self.only(run for run in self._layout[2][chosen] if run is not None)

    def told_apart(self, by: Sequence[str]) -> Self:
        """Return the same runs, which are of one config only if they also have these in common, such as their app."""
        return type(self)(self.runs, self._found, by)

    def only(self, runs: Iterable[LoadedRun]) -> Self:
        """Return some of these runs."""
        return type(self)(list(runs), self._found, self._by)

    # what the places of arrays stand for

    @property
    def configs(self) -> list[dict[str, Any]]:
        """The parameters that vary, for each config; None where it lacks one."""
        return self._layout[0]

    @property
    def seeds(self) -> list[int]:
        """The seeds of all configs; a run that tells none has a place that is free."""
        return self._layout[1]

    def seeds_near(self, run: LoadedRun) -> set[int]:
        """Return the seeds that a config of this run may be expected to have.

        These are all of its sweep, also those of jobs that never began; of a run outside of sweeps, those of its app.
        """
        if run.sweep in self._found.sweeps:
            return set(self._found.sweeps[run.sweep])
        near = (other for other in self.runs if (other.app, other.sweep) == (run.app, run.sweep))
        return {other.seed for other in near if other.seed is not None}

    @property
    def table(self) -> list[list[LoadedRun | None]]:
        """The run of each config and seed; None where it is missing."""
        return self._layout[2]

    @property
    def told_apart_by(self) -> list[str]:
        """The keys of `configs` that are no parameters: app, sweep and name, where these alone tell configs apart."""
        return self._layout[3]

    @cached_property
    def _layout(self) -> tuple[list[dict[str, Any]], list[int], list[list[LoadedRun | None]], list[str]]:
        keys = list(dict.fromkeys([*selection.varying(self.runs), *self._by]))
        attributes = selection.identifying(self.runs, keys)
        groups = list(selection.grouped(self.runs, [*keys, *attributes]).values())
        seeds, split = selection.replicates(groups, self._found.problems.note)
        named = [selection.attribute("name", self.runs)] if any(len(rows) > 1 for rows in split) else []
        num_named = Counter(run.name for run in self.runs)
        configs, table = [], []
        for runs, rows in zip(groups, split, strict=True):
            values = {key: _shown(selection.value_of(runs[0], key)) for key in (*keys, *attributes)}
            for row in rows:
                present = [run for run in row if run is not None]
                name = present[0].name if len(rows) > 1 and len(present) == 1 else None
                if name is not None and num_named[name] > 1:
                    name = present[0].path
                configs.append(values | dict.fromkeys(named, name))
                table.append(row)
        return configs, seeds, table, [*attributes, *named]

    # points

    def metrics(self) -> list[str]:
        """Return the names of the metrics that any run has."""
        return sorted({name for source, runs in by_source(self.runs) for name in source.metrics(runs)})

    def series(self, metric: Metric) -> list[Series]:
        """Return the points of each run; none where a run lacks the metric.

        Args:
            metric: Its name, or several that mean the same in runs of several programs, such as `eval/return` and
                `eval/mean_reward`: of each run the first one that it has.

        Raises:
            ConfigurationError: No run has it.
        """
        return [series for series, _ in self._read(metric)]

    def diverged(self, metric: Metric) -> dict[str, int]:
        """Return the runs whose last values are NaN or infinite: by path, the first step of those values.

        Raises:
            ConfigurationError: No run has the metric.
        """
        steps = [aligned.diverged_at(*read) for read in self._read(metric)]
        diverged = {run.path: step for run, step in zip(self.runs, steps, strict=True) if step is not None}
        for path, step in diverged.items():
            text = f"diverged: {_named(metric)} is NaN or infinite from step {step} on"
            self._found.problems.note(path, f"{text}; its finite points give a score only with --finite (finite=True)")
        return diverged

    def num_diverged(self, metric: Metric) -> list[int]:
        """Return the number of diverged runs of each config.

        Raises:
            ConfigurationError: No run has the metric.
        """
        diverged = self.diverged(metric)
        return [sum(run is not None and run.path in diverged for run in row) for row in self.table]

    def _read(self, metric: Metric) -> list[tuple[Series, Series]]:
        """Return the points of each run, and those that tell where non-finite values were dropped."""
        names = [metric] if isinstance(metric, str) else list(metric)
        found = self._found.points(self.runs, [*names, *(f"{NON_FINITE_METRIC}{name}" for name in names)])
        read = []
        for points in found:
            name = next((name for name in names if len(points.get(name, NOTHING).steps)), None)
            markers = [f"{NON_FINITE_METRIC}{one}" for one in ([name] if name else names)]
            dropped = next((points[one] for one in markers if len(points.get(one, NOTHING).steps)), NOTHING)
            read.append((points[name] if name else NOTHING, dropped))
        if self.runs and not any(len(series.steps) or len(dropped.steps) for series, dropped in read):
            known = self.metrics()
            more = ", ..." if len(known) > _MAX_SHOWN else ""
            shown = ", ".join(known[:_MAX_SHOWN]) + more
            hint = did_you_mean(names[0], known)
            killed = next((f"; `trieye close {run.path}` adds what only the journal of that run has"
                           for run in self.runs if _needs_closing(run)), "")  # fmt: skip
            raise ConfigurationError(f"{_named(metric)}: no run has it{hint} (known: {shown or 'none'}){killed}")
        return read

    def curve(self, metric: Metric, x: XAxis = "step", grid: int | Floats = 200, between: Between = "linear") -> Curve:
        """Return the curves of all runs on one grid, `[config, seed, grid]`.

        Before its first and after its last point a curve is NaN, so that a run that ended early is missing from there
        on.

        Args:
            metric: The metric.
            x: `step`: what each run counts; `env_steps` or `updates`; `wall_time`: seconds since the run was begun.
            grid: Number of places between the first and the last point of all; or the places, `[grid]`.
            between: Between two points, whether a curve is a straight line or stays where it was.

        Raises:
            ConfigurationError: No run has the metric.
        """
        series = self.series(metric)
        counters = self._counters(x)
        xs = [
            aligned.axis_of(run, one, x, counter) if len(one.steps) else None
            for run, one, counter in zip(self.runs, series, counters, strict=True)
        ]
        self._note_axes(x, xs, series)
        places, found, known = aligned.on_grid(xs, [one.values for one in series], grid, between)
        self._without_infinity(found)
        return Curve(places, self._arranged(found, np.nan), self._arranged(known, fill=False))

    def values(
        self,
        metric: Metric,
        *,
        last: float = 0.1,
        steps: int | None = None,
        reduce: Callable[[Floats], float] = np.mean,
        partial: bool = False,
        finite: bool = False,
    ) -> Floats:
        """Return what the end of each curve comes to, `[config, seed]`; NaN where a run is missing or lacks the metric.

        Only finite points count. A run whose last values are not finite has diverged and has no value.

        Args:
            metric: The metric.
            last: The last part of a run's points, at least one of them.
            steps: Instead, the points of a run's last so many steps.
            reduce: What makes a number of them, such as `np.mean` or `np.max`.
            partial: Whether runs count that have not come to their end, with what they have up to there.
            finite: Whether diverged runs count, with their last finite points.

        Raises:
            ConfigurationError: No run has the metric.
        """
        if not 0 < last <= 1:
            raise ConfigurationError(f"last={last}: it is a part of the points, above 0 and up to 1; or give steps=")
        if steps is not None and steps < 1:
            raise ConfigurationError(f"steps={steps}: there has to be one")
        series, diverged = self.series(metric), self.diverged(metric)
        found = [aligned.final(one.values, one.steps, last, steps, reduce) for one in series]
        counted = {run.path for row in self.table for run in row if run is not None}
        for number, (run, one) in enumerate(zip(self.runs, series, strict=True)):
            if run.path in diverged and not finite:
                found[number] = np.nan
            if run.is_ended or run.path not in counted:
                continue
            rest = f"; `trieye close {run.path}` adds what only its journal has" if _needs_closing(run) else ""
            if len(one.steps):
                reached = f"{run.status} at step {one.steps.max()}"
                counts = "its value is that of its points up to there"
                text = counts if partial else "it has no value, unless partial runs are to count"
                self._found.problems.note(run.path, f"{reached}: {text}{rest}")
            elif rest:
                at = "" if run.step is None else f" at step {run.step}"
                self._found.problems.note(
                    run.path, f"{run.status}{at}: its history has no points of {_named(metric)}{rest}"
                )
            if not partial:
                found[number] = np.nan
        values = np.array(found, np.float64)
        self._without_infinity(values)
        return self._arranged(values, np.nan)

    def _without_infinity(self, found: Floats) -> None:
        """Take infinite values `[run, ...]`, which no mean or interval has room for, as missing."""
        for number in np.unique(np.nonzero(np.isinf(found))[0]).tolist():
            self._found.problems.note(self.runs[number].path, "where its values are infinite, it counts as missing")
        found[np.isinf(found)] = np.nan

    def _counters(self, x: XAxis) -> list[Series | None]:
        names = COUNTERS.get(x, ())
        asking = [run for run in self.runs if names and run.axis != x]
        held = dict(zip((run.path for run in asking), self._found.points(asking, names), strict=True))
        first = [next((one for name in names if len((one := held[run.path].get(name, NOTHING)).steps)), None)
                 if run.path in held else None for run in self.runs]  # fmt: skip
        return list(first)

    def _note_axes(self, x: XAxis, xs: Sequence[Floats | None], series: Sequence[Series]) -> None:
        for run, places, one in zip(self.runs, xs, series, strict=True):
            if places is None and len(one.steps):
                self._found.problems.note(run.path, f"not on the axis {x}: it counts {run.axis}, and logs no {x}")
        counted = {run.axis for run, one in zip(self.runs, series, strict=True) if len(one.steps)}
        if x == "step" and len(counted) > 1:
            self._found.problems.note("x=step", f"the runs count {', '.join(sorted(counted))}; choose one of them as x")

    def _arranged(self, found: NDArray[Any], fill: Any) -> NDArray[Any]:
        """Return `[run, ...]` as `[config, seed, ...]`."""
        numbers = {run.path: number for number, run in enumerate(self.runs)}
        rows = self.table
        made = np.full((len(rows), len(self.seeds), *found.shape[1:]), fill, found.dtype)
        for row, runs in enumerate(rows):
            for column, run in enumerate(runs):
                if run is not None:
                    made[row, column] = found[numbers[run.path]]
        return made

    # other packages

    def to_arrow(self, metrics: Sequence[str] | None = None) -> Any:
        """Return points as one long `pyarrow.Table`: run, metric, seed, what varies, step, value, wall_time.

        Args:
            metrics: Only these; None: all.
        """
        from trieye.results import conversion

        points = self._found.points(self.runs, metrics)
        varying = selection.varying(self.runs)
        attributes = selection.identifying(self.runs, varying)
        keys = list(dict.fromkeys([*selection.compared_by(self.runs), *varying, *attributes]))
        params = [{key: selection.value_of(run, key) for key in keys} for run in self.runs]
        held = [{name: one for name, one in by_name.items() if len(one.steps)} for by_name in points]
        return conversion.table(self.runs, params, held)

    def to_numpy(self, metrics: Sequence[str] | None = None) -> dict[str, NDArray[Any]]:
        """Return the columns of `to_arrow` as arrays, `[points]` each."""
        table = self.to_arrow(metrics)
        return {name: table[name].to_numpy() for name in table.column_names}

    def to_pandas(self, metrics: Sequence[str] | None = None) -> Any:
        """Return `to_arrow` as a `pandas.DataFrame`."""
        from trieye.results import conversion

        conversion.package("pandas", "to_pandas()")
        return self.to_arrow(metrics).to_pandas()

    def to_polars(self, metrics: Sequence[str] | None = None) -> Any:
        """Return `to_arrow` as a `polars.DataFrame`."""
        from trieye.results import conversion

        return conversion.package("polars", "to_polars()").from_arrow(self.to_arrow(metrics))

    def to_xarray(self, metric: Metric, x: XAxis = "step", grid: int | Floats = 200) -> Any:
        """Return `curve` as an `xarray.DataArray` with the dimensions config, seed and x."""
        from trieye.results import conversion

        conversion.package("xarray", "to_xarray()")
        name = metric if isinstance(metric, str) else metric[0]
        return conversion.xarray_of(self.curve(metric, x, grid), name, x, self.configs, self.seeds)

    def to_rliable(
        self, metric: Metric, algorithm: str, task: str | None = None, *, last: float = 0.1, steps: int | None = None
    ) -> dict[str, Floats]:
        """Return the scores that rliable takes: for each algorithm `[runs, tasks]`, without rliable itself.

        Args:
            metric: The metric.
            algorithm: The parameter that tells algorithms apart.
            task: The parameter that tells environments apart; None: there is one.
            last: See `values`.
            steps: See `values`.

        Raises:
            ConfigurationError: An algorithm has several configs in a task, or no seed with all tasks.
        """
        tasks = [None] if task is None else list(self.split(task))
        made = {}
        for name, runs in self.split(algorithm).items():
            parts = [runs] if task is None else [_of_task(runs, task, one) for one in tasks]
            columns = [_by_seed(part, metric, last, steps, f"{algorithm}={name}") for part in parts]
            seeds = sorted(set.intersection(*(set(column) for column in columns)))
            if not seeds:
                raise ConfigurationError(f"{algorithm}={name}: no seed has a value of {metric} in every task")
            made[str(name)] = np.array([[column[seed] for column in columns] for seed in seeds])
            for seed in sorted(set().union(*columns) - set(seeds)):
                self._found.problems.note(f"{algorithm}={name}", f"seed {seed} is left out: it lacks a task")
        return made


def _named(metric: Metric) -> str:
    return metric if isinstance(metric, str) else " or ".join(metric)


def _needs_closing(run: LoadedRun) -> bool:
    return run.status == "KILLED" and not run.is_closed


def _shown(value: Any) -> Any:
    """Return a value as a key of a dictionary."""
    if value is selection.MISSING:
        return None
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _of_task(runs: Results, task: str, value: Any) -> Results:
    return runs.split(task).get(value, runs.where({f"{task}__in": []}, strict=True))


def _by_seed(runs: Results, metric: Metric, last: float, steps: int | None, name: str) -> dict[int, float]:
    if len(runs.configs) > 1:
        differ = ", ".join(runs.configs[0])
        raise ConfigurationError(f"{name}: its {len(runs.configs)} configs differ in {differ}; choose one with where()")
    if not len(runs):
        return {}
    found = runs.values(metric, last=last, steps=steps)
    return {seed: float(value) for seed, value in zip(runs.seeds, found[0], strict=True) if not np.isnan(value)}
