"""RunGroups: the compared groups of runs, one per row of a table or line of a plot, with one config per task."""

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trieye.config.base import did_you_mean
from trieye.exceptions import ConfigurationError
from trieye.results import hyperparameters, selection, statistics
from trieye.results.aggregates import Aggregate
from trieye.results.aligned import Between, Floats, XAxis, means_of
from trieye.results.hyperparameters import Mode, Setting
from trieye.results.results import Metric, Results
from trieye.results.runs import LoadedRun, as_text, is_seed, listed
from trieye.results.statistics import Estimate
from trieye.sweeps.grid import headings

Flags = NDArray[np.bool_]
Texts = dict[str, tuple[str, str]]
"""For each key of a group: `name=value`, and its text as the only key of a label."""

_MAX_KEYS = 6
_MAX_SHOWN = 4


@dataclass(frozen=True)
class ScoreDefinition:
    """Score definition: how a run becomes one number.

    Attributes:
        metric: The metric, or its names in several programs.
        last: The score is the mean of this fraction of the run's last points.
        steps: Number of last steps whose points count, which replaces `last`.
        include_unfinished: Whether unfinished runs count.
        include_diverged: Whether diverged runs count, by their last finite points, and rank like other runs.
        ranges: Lowest and highest score of each task, mapped to 0 and 1; None: raw scores.
    """

    metric: Metric
    last: float = 0.1
    steps: int | None = None
    include_unfinished: bool = False
    include_diverged: bool = False
    ranges: Mapping[str, tuple[float, float]] | None = None

    @property
    def name(self) -> str:
        """Name of the metric."""
        return self.metric if isinstance(self.metric, str) else self.metric[0]

    @property
    def what(self) -> str:
        """Description of the points of a run that count."""
        end = f"{100 * self.last:.4g}% of the points" if self.steps is None else f"{self.steps:,} steps"
        return f"mean of the last {end}"

    def scaled(self, values: Floats, tasks: Sequence[str]) -> Floats:
        """Normalize values `[seed, task, ...]` in place by the ranges of their tasks.

        Raises:
            ConfigurationError: A range has an unknown task or is empty, or only some tasks have a range.
        """
        for task, (low, high) in (self.ranges or {}).items():
            if task not in tasks:
                raise ConfigurationError(
                    f"range of {task}: unknown task{did_you_mean(task, tasks)} (choose from: {', '.join(tasks)})"
                )
            if not low < high:
                raise ConfigurationError(f"range of {task}: {low:g} is not below {high:g}")
            column = tasks.index(task)
            values[:, column] = (values[:, column] - low) / (high - low)
        missing_tasks = [task for task in tasks if task not in (self.ranges or {})]
        if self.ranges and missing_tasks:
            raise ConfigurationError(
                f"--range: {', '.join(missing_tasks)} have no range, and their raw scores cannot be combined with "
                f"normalized scores; set a range for each of {', '.join(tasks)}, or for none"
            )
        return values


class Pair(NamedTuple):
    """Comparison of two groups.

    Attributes:
        x, y: Labels of the groups.
        sizes: Number of scores of each group.
        chance: Probability that a run of X is better than a run of Y.
        gap: Difference of the aggregates, X minus Y.
        verdict: See `statistics.verdict`.
        reason: Reason of the verdict.
    """

    x: str
    y: str
    sizes: tuple[int, int]
    chance: Estimate
    gap: Estimate
    verdict: str
    reason: str


@dataclass(frozen=True, eq=False)
class RunGroups:
    """Runs grouped by the compared parameters.

    Attributes:
        results: The runs.
        labels: Name of each group.
        values: Values of the compared parameters of each group, without those that it lacks.
        tasks: Names of the tasks; a single empty name if no task parameter is set.
        keys: The compared parameters.
        candidates: Indices of the configs of each group and task.
    """

    results: Results
    labels: list[str]
    values: Sequence[Mapping[str, Any]]
    tasks: list[str]
    keys: Sequence[str]
    candidates: Sequence[Sequence[Sequence[int]]]

    @classmethod
    def of(cls, results: Results, by: Sequence[str] = (), task: str | None = None) -> "RunGroups":
        """Group runs.

        Args:
            results: The runs.
            by: Parameters to compare by; empty: the parameters varied in the sweeps, or else all that differ, and
                `results.by`.
            task: The parameter that distinguishes environments.

        Raises:
            ConfigurationError: There is no run, or a key is unknown or a seed.
        """
        if not len(results):
            raise ConfigurationError("no runs selected; relax --where")
        runs = results.runs
        task_key = None if task is None else selection.resolve(task, runs)
        default = dict.fromkeys([*selection.compared_by(runs), *results.by])
        keys = [selection.resolve(key, runs) for key in by] or [key for key in default if key != task_key]
        if seed := next(filter(is_seed, [*keys, task_key or ""]), None):
            raise ConfigurationError(
                f"{seed}: runs that differ only in their seed are replicates of one group; `trieye results report` "
                "lists the score of each run, and `trieye results curve --runs -o curve.png` draws their curves"
            )
        results = results.told_apart(keys)
        attributes = [] if by else [key for key in results.told_apart_by if key not in keys]
        firsts = [next(run for run in row if run is not None) for row in results.table]
        task_of_config = ["" if task_key is None else _text(run, task_key) for run in firsts]
        tasks = list(dict.fromkeys(task_of_config))
        groups: dict[tuple[Any, ...], tuple[dict[str, Any], list[list[int]]]] = {}
        for config_index, first_run in enumerate(firsts):
            values = {key: selection.value_of(first_run, key) for key in keys}
            values = {key: value for key, value in values.items() if value is not selection.MISSING}
            if keys and not values:  # a run of another program
                values[""] = _name_of(first_run)
            values |= {key: results.configs[config_index][key] for key in attributes}
            name = tuple((key, selection.identity(value)) for key, value in values.items())
            _, rows = groups.setdefault(name, (values, [[] for _ in tasks]))
            rows[tasks.index(task_of_config[config_index])].append(config_index)
        values_of, rows_of = zip(*groups.values(), strict=True)
        is_chosen = bool(by) or any(run.varied for run in runs)
        labels = _labels(values_of, keys if is_chosen else _telling(values_of, keys), attributes)
        if not [*keys, *attributes]:
            labels = [runs[0].name if len(runs) == 1 else "all runs"]
        return cls(results, labels, list(values_of), tasks, [*keys, *attributes], rows_of)

    @classmethod
    def by_config(cls, results: Results, by: Sequence[str] = (), task: str | None = None) -> dict[str, "RunGroups"]:
        """Return one group per config, by the label of the group of `by`; without `by`, under an empty label.

        Raises:
            ConfigurationError: There is no run, or a key is unknown or a seed.
        """
        if not by:
            return {"": cls.of(results, (), task)}
        outer, groups = cls.of(results, by, task), {}
        label_by_path = {
            run.path: label for label, runs in zip(outer.labels, outer.candidate_runs, strict=True) for run in runs
        }
        for runs in selection.grouped(results.runs, outer.keys).values():
            label = next(label_by_path[run.path] for run in runs if run.path in label_by_path)
            groups[label] = cls.of(results.only(runs), (), task)
        return groups

    @property
    def runs(self) -> list[list[LoadedRun]]:
        """The runs of each group, ordered by task.

        Raises:
            ConfigurationError: A group has several configs in a task.
        """
        table = self.results.table
        return [
            [run for number in row if number is not None for run in table[number] if run is not None]
            for row in self.rows
        ]

    @property
    def rows(self) -> list[list[int | None]]:
        """Index of the config of each group and task; None if the group has none.

        Raises:
            ConfigurationError: A group has several configs in a task.
        """
        rows: list[list[int | None]] = []
        for label, tasks in zip(self.labels, self.candidates, strict=True):
            for task, candidates in zip(self.tasks, tasks, strict=True):
                if len(candidates) > 1:
                    raise ConfigurationError(self._ambiguous(f"{label} in {task}" if task else label, candidates))
            rows.append([candidates[0] if candidates else None for candidates in tasks])
        return rows

    def labels_without(self, runs: Sequence[LoadedRun]) -> list[str]:
        """Return the labels of the groups that have none of the runs."""
        paths = {run.path for run in runs}
        groups = zip(self.labels, self.candidate_runs, strict=True)
        return [label for label, group in groups if not paths & {run.path for run in group}]

    @property
    def candidate_runs(self) -> list[list[LoadedRun]]:
        """The runs of all configs of each group."""
        table = self.results.table
        return [[run for task in tasks for number in task for run in table[number] if run] for tasks in self.candidates]

    def _ambiguous(self, name: str, candidates: Sequence[int]) -> str:
        configs = [self.results.configs[number] for number in candidates]
        differing_keys = [key for key in configs[0] if len({str(config[key]) for config in configs}) > 1]
        keys = listed(differing_keys, _MAX_SHOWN)
        by = ",".join([*self.keys, *_telling(configs, differing_keys)])
        sample = f"{differing_keys[0]}={configs[0][differing_keys[0]]}" if differing_keys else "KEY=VALUE"
        return (
            f"{name} is {len(candidates)} configs, which differ in {keys}; separate them by --by {shlex.quote(by)}, "
            f"select configs, as in --where {shlex.quote(sample)}, or take the best by --best, whose score is biased "
            "upwards"
        )

    def best(self, scoring: ScoreDefinition, mode: str) -> "RunGroups":
        """Return the same groups with only the config that has the best mean in each task; configs without come last.

        The selection biases scores upwards: the chosen config appears better than it is.

        Raises:
            ConfigurationError: No run has the metric.
        """
        sign = 1.0 if mode == "max" else -1.0
        means = [sign * mean for mean in means_of(self.final_scores(scoring))]
        num_diverged = [0] * len(means) if scoring.include_diverged else self.results.num_diverged(scoring.metric)

        def rank(config_index: int) -> tuple[bool, int, float]:
            return not np.isnan(means[config_index]), -num_diverged[config_index], means[config_index]

        best_candidates = [[[max(row, key=rank)] if row else [] for row in tasks] for tasks in self.candidates]
        return replace(self, candidates=best_candidates)

    def diverged(self, scoring: ScoreDefinition) -> list[int]:
        """Return the number of diverged runs of each group.

        Raises:
            ConfigurationError: No run has the metric, or a group has several configs.
        """
        num_diverged = self.results.num_diverged(scoring.metric)
        return [sum(num_diverged[number] for number in row if number is not None) for row in self.rows]

    def penalties(self, scoring: ScoreDefinition) -> list[int]:
        """Return the rank penalty per group, applied before scores: diverged runs, or 0 with `include_diverged`."""
        return [0] * len(self.labels) if scoring.include_diverged else self.diverged(scoring)

    def marked(self, scoring: ScoreDefinition) -> "RunGroups":
        """Return the same groups with the number of diverged runs in their labels.

        Raises:
            ConfigurationError: No run has the metric, or a group has several configs.
        """
        counts = zip(self.labels, self.diverged(scoring), self.runs, strict=True)
        labels = [f"{label} ({num} of {len(runs)} diverged)" if num else label for label, num, runs in counts]
        return replace(self, labels=labels)

    def scores(self, scoring: ScoreDefinition) -> list[Floats]:
        """Return the scores of each group, `[seed, task]`; NaN where a run is missing.

        Raises:
            ConfigurationError: No run has the metric, or a group has several configs.
        """
        values = self.final_scores(scoring)
        return [scoring.scaled(self._of(values, row), self.tasks) for row in self.rows]

    def sensitivity(
        self,
        key: str,
        scoring: ScoreDefinition,
        stat: Aggregate = "iqm",
        *,
        mode: Mode = "max",
        confidence: float = 0.95,
    ) -> tuple[Setting, ...]:
        """Return the figures for each value of a parameter, with groups as configs; empty if no group has it.

        Args:
            key: Full key of the parameter.
            scoring: Score definition.
            stat: Aggregate of the runs of a config.
            mode: Whether higher or lower scores are better.
            confidence: Confidence level of the intervals.

        Raises:
            ConfigurationError: No run has the metric, or a group has several configs.
        """
        values = [selection.value_of(runs[0], key) for runs in self.runs]
        params = [{} if value is selection.MISSING else {key: value} for value in values]
        if not any(params):
            return ()
        return hyperparameters.sensitivity(
            self.scores(scoring), params, key, stat, mode=mode, diverged=self.penalties(scoring), confidence=confidence
        )

    def aggregate(
        self, scoring: ScoreDefinition, stat: Aggregate = "iqm", *, confidence: float = 0.95
    ) -> dict[str, Estimate]:
        """Return the aggregate of each group with its interval, by label; seeds are replicates.

        Args:
            scoring: Score definition.
            stat: Name of the aggregate; see `trieye.results.aggregates`.
            confidence: Confidence level of the intervals.

        Raises:
            ConfigurationError: No run has the metric, or a group has several configs.
        """
        figures = [statistics.aggregate(scores, stat, confidence=confidence) for scores in self.scores(scoring)]
        return dict(zip(self.labels, figures, strict=True))

    def pairs(
        self,
        indices: Iterable[tuple[int, int]],
        scoring: ScoreDefinition,
        stat: Aggregate = "iqm",
        *,
        mode: Mode = "max",
        confidence: float = 0.95,
    ) -> list[Pair]:
        """Return comparisons of groups X and Y with these indices.

        Raises:
            ConfigurationError: No run has the metric, or a group has several configs.
        """
        sign, scores, penalties = 1 if mode == "max" else -1, self.scores(scoring), self.penalties(scoring)
        counts = [np.isfinite(group_scores).sum(axis=0) for group_scores in scores]
        pairs = []
        for x, y in indices:
            chance = statistics.probability_of_improvement(sign * scores[x], sign * scores[y], confidence=confidence)
            gap = statistics.difference(scores[x], scores[y], stat, confidence=confidence)
            num_runs, num_diverged = int(min(counts[x].min(), counts[y].min())), penalties[x] + penalties[y]
            verdict = statistics.verdict(gap, num_runs, num_diverged, stat=stat)
            sizes = int(counts[x].sum()), int(counts[y].sum())
            pairs.append(Pair(self.labels[x], self.labels[y], sizes, chance, gap, *verdict))
        return pairs

    def curves(
        self, scoring: ScoreDefinition, x: XAxis = "step", grid: int | Floats = 200, between: Between = "linear"
    ) -> tuple[Floats, list[Floats]]:
        """Return a grid `[point]` and the curves of each group on it, `[seed, task, point]`; NaN where missing.

        Without `include_unfinished`, unfinished runs are missing, unless no finished run has a curve.

        Raises:
            ConfigurationError: No run has the metric or the axis, or a group has several configs.
        """
        curve = self.results.curve(scoring.metric, x, grid, between)
        if not len(curve.x):
            reasons = "".join(f"; {text}" for text in self.results.problems[-_MAX_SHOWN:])  # curve() notes them last
            raise ConfigurationError(f"{scoring.name}: no run has points on the axis {x}{reasons}")
        if not scoring.include_unfinished:
            curve.y[self._unfinished(curve.mask)] = np.nan
        return curve.x, [scoring.scaled(self._of(curve.y, row), self.tasks) for row in self.rows]

    def _unfinished(self, mask: Flags) -> Flags:
        """Return which unfinished runs `[config, seed]` to omit, given a mask `[config, seed, point]`; note them."""
        table = self.results.table
        statuses = np.array([["" if run is None or run.is_ended else run.status for run in row] for row in table])
        has_curve = np.any(mask, axis=-1)
        is_omitted: Flags = has_curve & (statuses != "")
        counts = ", ".join(f"{number} {status}" for status, number in Counter(statuses[is_omitted].tolist()).items())
        if counts and (is_omitted == has_curve).all():
            self.results.note("no run has finished", f"the curves show the points so far of unfinished runs ({counts})")
            return np.zeros_like(is_omitted)
        if counts:
            self.results.note("unfinished runs", f"not in the curves without --include-unfinished ({counts})")
        return is_omitted

    def differences(self) -> dict[str, list[Any]]:
        """Return the parameters, except seeds, that differ between groups, with the value of each group or None."""
        firsts = [runs[0] for runs in self.candidate_runs]
        keys = dict.fromkeys(key for run in firsts for key in (*run.varied, *run.params) if selection.is_compared(key))
        return {
            key: [selection.value_or_none(run, key) for run in firsts]
            for key in keys
            if len({selection.identity(selection.value_of(run, key)) for run in firsts}) > 1
        }

    def final_scores(self, scoring: ScoreDefinition) -> Floats:
        """Return the score of each run, `[config, seed]`, in the order of the results."""
        return self.results.values(
            scoring.metric,
            last=scoring.last,
            steps=scoring.steps,
            include_unfinished=scoring.include_unfinished,
            include_diverged=scoring.include_diverged,
        )

    def _of(self, values: Floats, row: Sequence[int | None]) -> Floats:
        """Rearrange `[config, seed, ...]` to `[seed, task, ...]` for one group, with NaN rows for lost seeds."""
        numbers = [number for number in row if number is not None]
        runs = [run for number in numbers for run in self.results.table[number] if run is not None]
        columns = [
            column
            for column in range(len(self.results.seeds))
            if any(self.results.table[number][column] is not None for number in numbers)
        ]
        expected = set[int]().union(*map(self.results.seeds_near, {run.cohort: run for run in runs}.values()))
        num_lost = len(expected - {self.results.seeds[column] for column in columns})
        by_seed = np.full((len(columns) + num_lost, len(self.tasks), *values.shape[2:]), np.nan)
        for task, number in enumerate(row):
            if number is not None:
                by_seed[: len(columns), task] = values[number, columns]
        return by_seed


def _text(run: Any, key: str) -> str:
    value = selection.value_of(run, key)
    return "" if value is selection.MISSING else str(value)


def _name_of(run: Any) -> str:
    return f"{run.app} {run.params['tb_log_name']}" if "tb_log_name" in run.params else str(run.app)


def _telling(groups: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> list[str]:
    """Return as few keys as distinguish all groups; names of algorithms and environments come first."""
    telling_keys: list[str] = []
    num_groups = 1
    for key in sorted(keys, key=lambda key: key.rpartition(".")[2] not in {"kind", "id"}):
        distinct = {
            tuple(selection.identity(values.get(name, selection.MISSING)) for name in [*telling_keys, key])
            for values in groups
        }
        if len(distinct) > num_groups:
            telling_keys.append(key)
            num_groups = len(distinct)
    return telling_keys


def _labels(groups: Sequence[Mapping[str, Any]], keys: Sequence[str], attributes: Sequence[str]) -> list[str]:
    """Return a unique label for each group, from the keys whose values differ among the groups that have them."""
    differing_keys = [
        key for key in keys if len({selection.identity(values[key]) for values in groups if key in values}) > 1
    ]
    texts_of = _texts(groups, keys, attributes)
    candidates = [_label(texts, differing_keys, attributes) or _label(texts, keys, attributes) for texts in texts_of]
    labels = [
        label if label and candidates.count(label) == 1 else _label(texts, keys, attributes, len(keys)) or "other runs"
        for texts, label in zip(texts_of, candidates, strict=True)
    ]
    num_earlier = [labels[:index].count(label) for index, label in enumerate(labels)]
    return [f"{label} ({number + 1})" if number else label for label, number in zip(labels, num_earlier, strict=True)]


def _texts(groups: Sequence[Mapping[str, Any]], keys: Sequence[str], attributes: Sequence[str]) -> list[Texts]:
    """Return the texts of the keys of each group; numbers have six digits unless two values of the key share them."""
    texts_of: list[Texts] = [{"": (str(values[""]), "")} if "" in values else {} for values in groups]
    all_keys = [*keys, *attributes]
    for key, name in zip(all_keys, headings(all_keys), strict=True):
        values_of = {index: values[key] for index, values in enumerate(groups) if key in values}
        is_exact = len(set(map(_shown, values_of.values()))) < len(set(map(selection.identity, values_of.values())))
        for index, value in values_of.items():
            text = as_text(value) if is_exact else _shown(value)
            if value or key in keys:
                texts_of[index][key] = f"{name}={text}", text if isinstance(value, str) else f"{name}={text}"
    return texts_of


def _label(texts: Texts, keys: Sequence[str], attributes: Sequence[str], max_keys: int = _MAX_KEYS) -> str:
    key_texts, attribute_texts = ([texts[key] for key in part if key in texts] for part in (keys, attributes))
    if "" in texts:
        key_texts = [texts[""]]
    elif len(keys) + len(attributes) == 1:
        return "".join(alone for _, alone in key_texts + attribute_texts)
    ellipsis = ["..."] * (len(key_texts) > max_keys)
    return " ".join([*(text for text, _ in key_texts[:max_keys]), *ellipsis, *(text for text, _ in attribute_texts)])


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else as_text(value).removeprefix(f"{Path.cwd()}/")
