"""Results: loaded runs, selected by their parameters and read as arrays; selecting reads no points."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray

from trieye.config.base import did_you_mean
from trieye.config.packages import load
from trieye.exceptions import ConfigurationError
from trieye.results import aligned, conversion, selection
from trieye.results.aligned import COUNTERS, AlignedCurves, Between, Floats, XAxis
from trieye.results.exported import table_with_runs
from trieye.results.point_cache import PointCache, by_source
from trieye.results.runs import NOTHING, LoadedRun, Problems, Series, listed
from trieye.results.state import Status, status
from trieye.stats.drops import NON_FINITE_METRIC

Mode = Literal["max", "min"] | Callable[[float, float], bool]
"""Which of two numbers is better; a function returns whether its first argument is better than the second."""

Metric = str | Sequence[str]
"""A metric, or its names in several programs; each run logs it under one name."""

_MAX_SHOWN = 10


class Results:
    """Runs and their points; selections share a cache of points.

    Arrays have the axes `[config, seed]`, indexed by `configs` and `seeds`: runs of one config differ only in their
    seed.

    Attributes:
        runs: The runs.
        by: Keys that distinguish configs in addition to parameters; see `told_apart`.
    """

    def __init__(self, runs: Sequence[LoadedRun], cache: PointCache, by: Sequence[str] = ()) -> None:
        self.runs = list(runs)
        self._cache, self.by = cache, by

    @classmethod
    def of(cls, runs: Sequence[LoadedRun], *, problems: Problems, sweeps: Mapping[str, Collection[int]]) -> Self:
        """Return results for loaded runs, the problems of loading them, and the seeds of each sweep."""
        return cls(runs, PointCache(problems, sweeps, runs))

    def __len__(self) -> int:
        return len(self.runs)

    def __iter__(self) -> Iterator[LoadedRun]:
        return iter(self.runs)

    def __repr__(self) -> str:
        problems = f", {len(self.problems)} problems" if self.problems else ""
        return f"<Results: {len(self.configs)} configs, {len(self.runs)} runs{problems}>"

    @property
    def problems(self) -> list[str]:
        """Messages about skipped data so far: damaged and foreign directories, lost points, duplicate runs."""
        return list(self._cache.problems.texts)

    def note(self, subject: object, reason: object) -> None:
        """Add a message to `problems`."""
        self._cache.problems.note(subject, reason)

    def status(self) -> Status:
        """Return the states of the jobs of all loaded sweeps, and of the runs outside of sweeps."""
        return status(self._cache.sweeps, self.runs)

    # selection

    def where(self, conditions: Mapping[str, Any] | None = None, *, strict: bool = False, **more: Any) -> Self:
        """Return the runs that meet all conditions: `where(algo="ppo", lr__ge=1e-4, seed__in=[0, 1])`.

        Args:
            conditions: Values by key. The last part of a dotted key is enough if it is unique. A key may have a suffix:
                `__ge`, `__le`, `__gt`, `__lt`, `__ne` or `__in`.
            strict: Whether runs without a parameter are rejected; by default they match, so that algorithms with
                different parameters can be compared.
            more: Further conditions.

        Raises:
            ConfigurationError: A key is unknown or ambiguous, or an operator is unknown.
        """
        items = {**(conditions or {}), **more}
        tests = [selection.condition(key, value, self.runs, strict=strict) for key, value in items.items()]
        return self.only(run for run in self.runs if all(test(run) for test in tests))

    def split(self, key: str) -> dict[Any, Self]:
        """Split the runs by their value of a parameter, in order of first appearance; None: None, or the run lacks it.

        Raises:
            ConfigurationError: The parameter is unknown or ambiguous.
        """
        key = selection.resolve(key, self.runs)
        parts: dict[Any, list[LoadedRun]] = {}
        for runs in selection.grouped(self.runs, [key]).values():
            parts.setdefault(selection.as_key(selection.value_or_none(runs[0], key)), []).extend(runs)
        return {value: self.only(runs) for value, runs in parts.items()}

    def slice(self, key: str, *, at: LoadedRun) -> dict[Any, Self]:
        """Return the runs that differ from `at` only in this parameter and the seed, by the parameter's value.

        Raises:
            ConfigurationError: The parameter is unknown or ambiguous.
        """
        key = selection.resolve(key, [*self.runs, at])
        near_runs = [run for run in self.runs if selection.differences(run.params, at.params) <= {key}]
        return self.only(near_runs).split(key) if near_runs else {}

    def find(self, run: LoadedRun, ignore: Sequence[str] = ()) -> LoadedRun | None:
        """Return the first run with the same parameters and seed as `run`, except for ignored parameters.

        Raises:
            ConfigurationError: An ignored parameter is unknown or ambiguous.
        """
        ignored_keys = {selection.resolve(key, [*self.runs, run]) for key in ignore}
        for candidate in self.runs:
            is_near = selection.differences(candidate.params, run.params) <= ignored_keys
            if is_near and ("seed" in ignored_keys or candidate.seed == run.seed):
                return candidate
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
        """Return the runs of the config with the best mean over seeds; the first of equal configs.

        A config without a value is never the best; a config with diverged runs is the best only if no other config with
        a value has fewer. With few seeds, the best of many configs appears better than it is.

        Args:
            metric: The metric.
            mode: `max`, `min`, or a function that returns whether its first argument is better.
            last: See `values`.
            steps: See `values`.
            reduce: See `values`.

        Raises:
            ConfigurationError: No run has the metric.
        """
        is_better = {"max": np.greater, "min": np.less}.get(mode, mode) if isinstance(mode, str) else mode
        if isinstance(is_better, str):
            raise ConfigurationError(f"mode={mode!r}: expected 'max', 'min', or a function of two numbers")
        values = self.values(metric, last=last, steps=steps, reduce=reduce)
        num_diverged = self.num_diverged(metric)
        means = aligned.means_of(values)
        numbers = [number for number, mean in enumerate(means) if not np.isnan(mean)]
        if not numbers:
            raise ConfigurationError(f"{metric}: no run has a finite value of this metric")
        fewest = min(num_diverged[number] for number in numbers)
        best_index, *other_indices = (number for number in numbers if num_diverged[number] == fewest)
        for number in other_indices:
            if is_better(means[number], means[best_index]):
                best_index = number
        return self.only(run for run in self._layout[2][best_index] if run is not None)

    def told_apart(self, by: Sequence[str]) -> Self:
        """Return the same runs, with configs also distinguished by these keys, such as `app`."""
        return type(self)(self.runs, self._cache, by)

    def only(self, runs: Iterable[LoadedRun]) -> Self:
        """Return results for a subset of the runs."""
        return type(self)(list(runs), self._cache, self.by)

    # layout of arrays

    @property
    def configs(self) -> list[dict[str, Any]]:
        """The varying parameters of each config; None where a config lacks one."""
        return self._layout[0]

    @property
    def seeds(self) -> list[int]:
        """The seeds of all configs; a run without a seed takes an unused one."""
        return self._layout[1]

    def seeds_near(self, run: LoadedRun) -> set[int]:
        """Return the expected seeds of this run's config.

        These are all seeds of its sweep, including jobs that never started but not runs of this config that are not
        selected. Outside of sweeps, they are the seeds of its app in its location, or none if the run was named itself.
        """
        if run.sweep in self._cache.sweeps:
            planned_seeds = self._cache.sweeps[run.sweep] if run.planned_seeds is None else run.planned_seeds
            return set(planned_seeds) - self._unselected_seeds.get(run.path, set())
        if run.is_named:
            return set()
        return {other.seed for other in self.runs if other.cohort == run.cohort and other.seed is not None}

    @property
    def table(self) -> list[list[LoadedRun | None]]:
        """The run of each config and seed; None where a run is missing."""
        return self._layout[2]

    @property
    def told_apart_by(self) -> list[str]:
        """The keys of `configs` that are not parameters: app, sweep and name, if needed to distinguish configs."""
        return self._layout[3]

    @cached_property
    def _unselected_seeds(self) -> Mapping[str, set[int]]:
        return selection.unselected_seeds(self.runs, self._cache.configs)

    @cached_property
    def _layout(self) -> tuple[list[dict[str, Any]], list[int], list[list[LoadedRun | None]], list[str]]:
        keys = list(dict.fromkeys([*selection.varying(self.runs), *self.by]))
        attributes = selection.identifying(self.runs, keys)
        groups = list(selection.grouped(self.runs, [*keys, *attributes]).values())
        seeds, rows_of_groups = selection.replicates(groups, self.note)
        name_keys = [selection.attribute("name", self.runs)] if any(len(rows) > 1 for rows in rows_of_groups) else []
        num_named = Counter(run.name for run in self.runs)
        configs, table = [], []
        for runs, rows in zip(groups, rows_of_groups, strict=True):
            values = {key: selection.as_key(selection.value_or_none(runs[0], key)) for key in (*keys, *attributes)}
            for row in rows:
                present_runs = [run for run in row if run is not None]
                name = present_runs[0].name if len(rows) > 1 and len(present_runs) == 1 else None
                if name is not None and num_named[name] > 1:
                    name = present_runs[0].path
                configs.append(values | dict.fromkeys(name_keys, name))
                table.append(row)
        return configs, seeds, table, [*attributes, *name_keys]

    # points

    def metrics(self) -> list[str]:
        """Return the names of the metrics of all runs."""
        return sorted({name for source, runs in by_source(self.runs) for name in source.metrics(runs)})

    def series(self, metric: Metric) -> list[Series]:
        """Return the points of each run; empty where a run lacks the metric.

        Args:
            metric: Its name, or synonymous names in several programs, such as `eval/return` and `eval/mean_reward`; the
                first name that a run has counts.

        Raises:
            ConfigurationError: No run has the metric.
        """
        return [series for series, _ in self._read(metric)]

    def diverged(self, metric: Metric) -> dict[str, int]:
        """Return the first step of the trailing NaN or infinite values of each diverged run, by path.

        Raises:
            ConfigurationError: No run has the metric.
        """
        steps = [aligned.diverged_at(*read) for read in self._read(metric)]
        step_by_path = {run.path: step for run, step in zip(self.runs, steps, strict=True) if step is not None}
        for path, step in step_by_path.items():
            text = f"diverged: {_named(metric)} is NaN or infinite from step {step} on"
            self.note(path, f"{text}; its finite points count only with include_diverged")
        return step_by_path

    def num_diverged(self, metric: Metric) -> list[int]:
        """Return the number of diverged runs of each config.

        Raises:
            ConfigurationError: No run has the metric.
        """
        diverged = self.diverged(metric)
        return [sum(run is not None and run.path in diverged for run in row) for row in self.table]

    def _read(self, metric: Metric) -> list[tuple[Series, Series]]:
        """Return the points of each run, and the markers of dropped non-finite values."""
        names = [metric] if isinstance(metric, str) else list(metric)
        points_of_runs = self._cache.points(self.runs, [*names, *(f"{NON_FINITE_METRIC}{name}" for name in names)])
        pairs = []
        for points in points_of_runs:
            own_names = [name for name in names if len(points.get(name, NOTHING).steps)]
            for name in own_names[1:]:
                self.note(name, f"not used for runs that also log {own_names[0]}; a list of metrics names alternatives")
            markers = [f"{NON_FINITE_METRIC}{name}" for name in own_names[:1] or names]
            dropped_points = next((points[one] for one in markers if len(points.get(one, NOTHING).steps)), NOTHING)
            pairs.append((points[own_names[0]] if own_names else NOTHING, dropped_points))
        if self.runs and not any(len(series.steps) or len(dropped_points.steps) for series, dropped_points in pairs):
            metrics = self.metrics()
            if set(names).isdisjoint(metrics):
                hint = did_you_mean(names[0], metrics)
                problem = f"no run logged it{hint} (logged metrics: {listed(metrics, _MAX_SHOWN)})"
            else:
                problem = "no run has its points in the history"
            close_hint = next(filter(None, map(_close_hint, self.runs)), "")
            raise ConfigurationError(f"{_named(metric)}: {problem}{close_hint}")
        return pairs

    def curve(
        self, metric: Metric, x: XAxis = "step", grid: int | Floats = 200, between: Between = "linear"
    ) -> AlignedCurves:
        """Return the curves of all runs on one grid, `[config, seed, grid]`.

        A curve is NaN before its first and after its last point, so a run that ended early is missing from there on.

        Args:
            metric: The metric.
            x: `step`: the step of each run; `env_steps` or `updates`; `wall_time`: seconds since the start of the run.
            grid: Number of grid points between the first and the last point of all runs; or coordinates `[grid]`. With
                a number, short runs between two of these points add their first and last point.
            between: Value between two points: `linear` interpolation, or the `last` value.

        Raises:
            ConfigurationError: No run has the metric, or the axis is unknown.
        """
        if x not in (axes := get_args(XAxis)):
            raise ConfigurationError(
                f"x={x!r}: unknown axis{did_you_mean(str(x), axes)} (choose from: {', '.join(axes)})"
            )
        series = self.series(metric)
        counters = self._counters(x)
        xs = [
            aligned.axis_of(run, one, x, counter) if len(one.steps) else None
            for run, one, counter in zip(self.runs, series, counters, strict=True)
        ]
        coordinates, heights, mask = aligned.on_grid(xs, [one.values for one in series], grid, between)
        self._note_axes(x, xs, series, mask)
        self._without_infinity(heights)
        return AlignedCurves(coordinates, self._arranged(heights, np.nan), self._arranged(mask, fill=False))

    def values(
        self,
        metric: Metric,
        *,
        last: float = 0.1,
        steps: int | None = None,
        reduce: Callable[[Floats], float] = np.mean,
        include_unfinished: bool = False,
        include_diverged: bool = False,
    ) -> Floats:
        """Return the final score of each run, `[config, seed]`; NaN where a run is missing or lacks the metric.

        Only finite points count. A run whose last values are not finite has diverged and has no score.

        Args:
            metric: The metric.
            last: Fraction of a run's points at its end, at least one point.
            steps: Number of steps at the end, which replaces `last`.
            reduce: Reduces the selected values to one number, such as `np.mean` or `np.max`.
            include_unfinished: Whether unfinished runs count, with their points so far.
            include_diverged: Whether diverged runs count, with their last finite points.

        Raises:
            ConfigurationError: No run has the metric.
        """
        if not 0 < last <= 1:
            raise ConfigurationError(
                f"last={last}: expected a fraction above 0 and up to 1; use steps= for a number of steps"
            )
        if steps is not None and steps < 1:
            raise ConfigurationError(f"steps={steps}: expected 1 or more")
        series, diverged = self.series(metric), self.diverged(metric)
        scores = [aligned.final(one.values, one.steps, last, steps, reduce) for one in series]
        counted_paths = {run.path for row in self.table for run in row if run is not None}
        for index, (run, one) in enumerate(zip(self.runs, series, strict=True)):
            if run.path in diverged and not include_diverged:
                scores[index] = np.nan
            if run.is_ended or run.path not in counted_paths:
                continue
            hint = _close_hint(run)
            if len(one.steps):
                progress_text = f"{run.status}, last {_named(metric)} at step {one.steps.max()}"
                counts = "its score includes only points up to this step"
                text = counts if include_unfinished else "not scored without --include-unfinished"
                self.note(run.path, f"{progress_text}: {text}{hint}")
            elif hint:
                step_text = "" if run.step is None else f" at step {run.step}"
                self.note(run.path, f"{run.status}{step_text}: its history has no points of {_named(metric)}{hint}")
            if not include_unfinished:
                scores[index] = np.nan
        values = np.array(scores, np.float64)
        self._without_infinity(values)
        return self._arranged(values, np.nan)

    def _without_infinity(self, values: Floats) -> None:
        """Replace infinite values `[run, ...]`, which have no mean or interval, by NaN in place."""
        for index in np.unique(np.nonzero(np.isinf(values))[0]).tolist():
            self.note(self.runs[index].path, "infinite values count as missing")
        values[np.isinf(values)] = np.nan

    def _counters(self, x: XAxis) -> list[Series | None]:
        names = COUNTERS.get(x, ())
        other_runs = [run for run in self.runs if names and run.axis != x]
        points = dict(zip((run.path for run in other_runs), self._cache.points(other_runs, names), strict=True))
        series = [next((one for name in names if len((one := points[run.path].get(name, NOTHING)).steps)), None)
                 if run.path in points else None for run in self.runs]  # fmt: skip
        return list(series)

    def _note_axes(
        self, x: XAxis, xs: Sequence[Floats | None], series: Sequence[Series], mask: NDArray[np.bool_]
    ) -> None:
        for run, coordinates, one, is_covered in zip(self.runs, xs, series, mask, strict=True):
            if len(one.steps) and (coordinates is None or np.isnan(coordinates).all()):
                reason = "its points have no times" if x == "wall_time" else f"it counts {run.axis}, and logs no {x}"
                self.note(run.path, f"not on the axis {x}: {reason}")
            elif len(one.steps) and not is_covered.any():
                self.note(run.path, "not in the curves: the grid has no point between its first and last; refine it")
        counted_axes = {run.axis for run, one in zip(self.runs, series, strict=True) if len(one.steps)}
        if x == "step" and len(counted_axes) > 1:
            self.note("x=step", f"the runs count {', '.join(sorted(counted_axes))}; choose one as x")

    def _arranged(self, by_run: NDArray[Any], fill: Any) -> NDArray[Any]:
        """Rearrange `[run, ...]` to `[config, seed, ...]`."""
        index_by_path = {run.path: number for number, run in enumerate(self.runs)}
        rows = self.table
        result = np.full((len(rows), len(self.seeds), *by_run.shape[1:]), fill, by_run.dtype)
        for row, runs in enumerate(rows):
            for column, run in enumerate(runs):
                if run is not None:
                    result[row, column] = by_run[index_by_path[run.path]]
        return result

    # other packages

    def to_arrow(self, metrics: Sequence[str] | None = None) -> Any:
        """Return points as a long `pyarrow.Table`: run, metric, seed, varying parameters, step, value, wall_time.

        Args:
            metrics: Only these; None: all.
        """
        return conversion.table(self.runs, self._logged(metrics))

    def export(self, path: Path, metrics: Sequence[str] | None = None) -> int:
        """Write `to_arrow` to a file and return its number of rows; `load` reads a `.parquet` file like the runs.

        A Parquet file contains the parameters, states and provenance of the runs, without users, hosts and paths.

        Args:
            path: The file; its suffix is .parquet, .csv or .feather.
            metrics: Only these; None: all.

        Raises:
            ConfigurationError: The suffix is unknown, or the file cannot be written.
        """
        is_parquet, points = path.suffix.lower() == ".parquet", self._logged(metrics)
        sweeps = self._cache.sweeps
        table = table_with_runs(self.runs, points, sweeps) if is_parquet else conversion.table(self.runs, points)
        conversion.write_table(table, path)
        return int(table.num_rows)

    def _logged(self, metrics: Sequence[str] | None) -> list[Mapping[str, Series]]:
        return [
            {name: one for name, one in by_name.items() if len(one.steps) and (metrics is None or name in metrics)}
            for by_name in self._cache.points(self.runs, metrics)
        ]

    def to_numpy(self, metrics: Sequence[str] | None = None) -> dict[str, NDArray[Any]]:
        """Return the columns of `to_arrow` as arrays, `[points]` each."""
        table = self.to_arrow(metrics)
        return {name: table[name].to_numpy() for name in table.column_names}

    def to_pandas(self, metrics: Sequence[str] | None = None) -> Any:
        """Return `to_arrow` as a `pandas.DataFrame`."""
        load("pandas", "to_pandas()")
        return self.to_arrow(metrics).to_pandas()

    def to_polars(self, metrics: Sequence[str] | None = None) -> Any:
        """Return `to_arrow` as a `polars.DataFrame`."""
        return load("polars", "to_polars()").from_arrow(self.to_arrow(metrics))

    def to_xarray(self, metric: Metric, x: XAxis = "step", grid: int | Floats = 200) -> Any:
        """Return `curve` as an `xarray.DataArray` with the dimensions config, seed and x."""
        name = metric if isinstance(metric, str) else metric[0]
        return conversion.xarray_of(self.curve(metric, x, grid), name, x, self.configs, self.seeds)

    def to_rliable(
        self, metric: Metric, algorithm: str, task: str | None = None, *, last: float = 0.1, steps: int | None = None
    ) -> dict[str, Floats]:
        """Return scores in the format of rliable, `[runs, tasks]` by algorithm; rliable is not required.

        Args:
            metric: The metric.
            algorithm: The parameter that distinguishes algorithms.
            task: The parameter that distinguishes environments; None: a single environment.
            last: See `values`.
            steps: See `values`.

        Raises:
            ConfigurationError: An algorithm has several configs in a task, or no seed with all tasks.
        """
        return conversion.rliable_scores(self, metric, algorithm, task, last=last, steps=steps)


def _named(metric: Metric) -> str:
    return metric if isinstance(metric, str) else " or ".join(metric)


def _close_hint(run: LoadedRun) -> str:
    needs_closing = run.status == "KILLED" and not run.is_closed
    return f"; `trieye close {run.path}` adds points that only the run's journal has" if needs_closing else ""
