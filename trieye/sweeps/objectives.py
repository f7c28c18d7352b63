"""Objectives of a sweep: the numbers by which its jobs are compared, and the Pareto-optimal jobs."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from trieye.config.fingerprint import json_of
from trieye.config.sweeper import SweeperConfig
from trieye.exceptions import ConfigurationError, TrieyeError
from trieye.files.run_files import CONFIGS
from trieye.sweeps.jobs import Done, JobRecord, records_in

_SCOPE = "hydra.sweeper.objective"
_MODE = "hydra.sweeper.mode"
_MEAN = re.compile(r"mean:(\d+)")


class ObjectiveError(ConfigurationError):
    """Raised if a completed job does not provide the objectives of the sweep; the other jobs would not either."""


@dataclass(frozen=True, slots=True)
class Objectives:
    """How the objectives of a job follow from its return value and its points.

    Attributes:
        options: Options of the sweeper.
        mode: Whether a higher or lower value is better: `max` or `min`, or one for each of several objectives.
    """

    options: SweeperConfig = field(default_factory=SweeperConfig)
    mode: str | Sequence[str] = "max"

    @property
    def modes(self) -> list[str]:
        """The modes of several objectives; empty for a single objective."""
        return [] if isinstance(self.mode, str) else list(self.mode)

    def applied(self, done: Done, run_dir: Path | None) -> Done:
        """Return the outcome of a completed job with its objectives as value, or with an `ObjectiveError`.

        Args:
            done: The outcome.
            run_dir: The run directory of the job; None if it started no run.
        """
        if done.error is not None:
            return done
        try:
            if self.modes:
                self._check(done)
            elif self.options.objective != "return":
                return replace(done, value=self._of_points(run_dir))
            elif self.options.kind == "optuna" and done.number is None and len(done.numbers) != 1:
                points = f", or set {_SCOPE}=last to use the points of the run" if run_dir is not None else ""
                raise ObjectiveError(
                    f"hydra.sweeper.kind=optuna compares jobs by one number, but the job returned {_shown(done)}; "
                    f"return a number, or a dict of two and set {_MODE}=[max,min]{points}"
                )
        except TrieyeError as error:
            return replace(done, error=error)
        return done

    def _check(self, done: Done) -> None:
        num = len(done.numbers) or int(done.number is not None)
        size = len(done.value) if isinstance(done.value, list | tuple) else num
        if not num == size == len(self.modes):
            returned = _shown(done) + (f" in a list of {size}" if num != size else "")
            raise ObjectiveError(
                f"{_MODE}=[{','.join(self.modes)}] expects {len(self.modes)} numbers, but the job returned "
                f"{returned}; return a list or a dict of numbers, such as {{'return': 90.4, 'time_s': 12.0}}"
            )

    def _of_points(self, run_dir: Path | None) -> float:
        scope = self.options.objective
        if run_dir is None or not run_dir.is_dir():
            raise ObjectiveError(
                f"{_SCOPE}={scope} reads the points of a trieye run, but the job started none; set "
                f"{_SCOPE}=return, which compares return values"
            )
        loop = json_of(run_dir / CONFIGS).get("loop", {})
        metric, run_mode = str(loop.get("objective")), loop.get("mode", "max")
        if self.options.mode is None and run_mode != self.mode:
            raise ObjectiveError(
                f"the run {run_dir.name!r} has loop.mode={run_mode}, but the sweep has the mode {self.mode}; set "
                f"{_MODE}={run_mode}, or {_MODE}={self.mode} to keep the mode of the sweep"
            )
        values = _values(run_dir, metric)
        if not values:
            raise ObjectiveError(
                f"{_SCOPE}={scope}: the run {run_dir.name!r} logged no point of loop.objective={metric}; set "
                f"loop.objective to a logged metric, or {_SCOPE}=return"
            )
        if scope == "last":
            return values[-1]
        if scope == "best":
            finite = [value for value in values if math.isfinite(value)]
            return (max if self.mode == "max" else min)(finite, default=math.nan)
        match = _MEAN.fullmatch(scope)
        last_values = values[-int(match[1]) :] if match is not None else values
        return sum(last_values) / len(last_values)


class ObjectiveNames:
    """The names of several objectives, in the order in which the first job of a sweep returned them.

    Args:
        directory: Directory of the sweep.
        num: Number of objectives.
    """

    def __init__(self, directory: Path, num: int) -> None:
        self._directory, self._num = directory, num
        self._names: list[str] = []

    def applied(self, done: Done) -> Done:
        """Return the outcome of a recorded job with its objectives in this order; other names are an `ObjectiveError`.

        The record gets the same order or error: the tables and the search pair objectives with modes by position.
        """
        record = JobRecord.read(self._directory / str(done.index)) if self._num > 1 else None
        if record is None or not self._has_all(record):
            return done
        if not self._names:
            first_record = min(filter(self._has_all, records_in(self._directory)), key=lambda one: one.index)
            self._names = list(first_record.objectives)
        names, numbers = self._names, record.objectives
        if list(numbers) == names:  # the job may have been killed before it returned them
            return done if done.numbers else replace(done, value=numbers)
        if numbers.keys() == set(names):
            done = replace(done, value={name: numbers[name] for name in names})
        else:
            error = ObjectiveError(
                f"the job returned {', '.join(numbers)}, but {_MODE} belongs to {', '.join(names)} of the first job"
            )
            is_new = bool(done.numbers)
            done = replace(done, value=None, error=error)
            if not is_new:  # an earlier start accepted the recorded objectives
                return done
            record.fail(f"ObjectiveError: {error}")
        record.rate(done)
        record.write(self._directory / str(done.index))
        return done

    def _has_all(self, record: JobRecord) -> bool:
        return record.state == "completed" and len(record.objectives) == self._num


def _shown(done: Done) -> str:
    if done.numbers:
        return f"{len(done.numbers)} numbers: {', '.join(done.numbers)}"
    return "None" if done.value is None else f"a value of type {type(done.value).__name__}"


def _values(run_dir: Path, metric: str) -> list[float]:
    """Return the values of a metric of a closed run in order, without superseded points."""
    from trieye.history.history import read_history

    table = read_history(run_dir, [metric])
    return [float(value) for value in table["value"].to_pylist()]


def pareto_optimal(values: Mapping[int, Sequence[float]], modes: Sequence[str]) -> list[int]:
    """Return the keys of the vectors that no other vector dominates, in order; NaN is never optimal.

    A vector dominates another one if it is at least as good in each objective, and better in one.
    """
    signs = [1.0 if mode == "min" else -1.0 for mode in modes]
    costs = {
        index: tuple(sign * value for sign, value in zip(signs, vector, strict=True))
        for index, vector in values.items()
        if len(vector) == len(signs) and not any(map(math.isnan, vector))
    }
    optimal_costs: dict[int, tuple[float, ...]] = {}
    for index, cost in sorted(costs.items(), key=lambda item: (item[1], item[0])):  # dominating vectors come first
        if not any(_dominates(other, cost) for other in optimal_costs.values()):
            optimal_costs[index] = cost
    return sorted(optimal_costs)


def _dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    return one != other and all(one_score <= other_score for one_score, other_score in zip(one, other, strict=True))
