"""Searches: choose the values of a job when it starts, from the results of earlier jobs."""

import math
import random
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from trieye.config.hydra.axes import Dimension
from trieye.config.hydra.conditions import same_value
from trieye.config.hydra.override_text import bare, values_of
from trieye.config.packages import load, require
from trieye.config.sweeper import SweeperConfig
from trieye.exceptions import JournalError, SerializationError
from trieye.hub.status import read_status
from trieye.process.progress import say
from trieye.process.terminal import Terminal
from trieye.sweeps.jobs import RUN, STOP_REASON, Done, Job, JobRecord, have_objectives
from trieye.sweeps.objectives import ObjectiveError, ObjectiveNames
from trieye.sweeps.report import importance_table
from trieye.sweeps.space import SearchSpace, drawn
from trieye.sweeps.status import JobStatus

_LOOK_S = 1.0
_FEWEST_COMPARED = 4
"""Completed jobs with a point at or before the step of a running job, before the median pruner stops it."""
_ASHA_FACTOR = 4
"""The best quarter of the jobs passes a rung of the pruner `asha`, and the next rung is at four times the steps."""
_MOST_POINTS = 1000
"""Points of a job that a pruner receives, evenly spaced: Optuna copies all points of a trial to add one."""
_OWN_DRAWS, _MOST_DRAWS = 5, 100
"""Draws of the sampler, and in total including random draws, to avoid the values of unfinished jobs."""
_FEWEST_TIED, _TIED_SHARE = 3, 0.8
"""Minimum number and share of trials with equal objectives for a warning about ties."""
_PACKAGES = {"cmaes": ("cmaes",), "gp": ("scipy", "torch")}
"""Packages that Optuna's samplers import at their first draw."""


class Search:
    """Chooses the values of jobs; this base class ignores all results.

    Args:
        space: The search space.
    """

    def __init__(self, space: SearchSpace) -> None:
        self._space = space

    def ask(self, index: int) -> tuple[str, ...]:
        """Return the overrides of a new job."""
        raise NotImplementedError

    def resume(self, index: int, recorded: Sequence[str]) -> tuple[str, ...]:
        """Return the overrides of a job that an earlier start of the sweep began.

        Args:
            index: Index of the job.
            recorded: The overrides in its record, without secrets.

        Raises:
            ConfigurationError: A secret among them was not passed again.
        """
        return self._space.resumed(index, recorded)

    def tell(self, index: int, overrides: Sequence[str], values: Sequence[float], *, is_pruned: bool) -> None:
        """Report the objectives of a job that `ask` or `resume` returned; none if it failed."""

    def report(self, index: int, points: Mapping[int, float]) -> None:
        """Report all points of a completed job by step; `tell` follows."""

    def reason_to_prune(self, index: int, step: int, value: float, best: float) -> str | None:
        """Report the newest point of a running job; return why it should be pruned, or None.

        Args:
            index: Index of the job.
            step: Step of the point.
            value: Its value.
            best: Best value of the job so far.
        """


class RandomSearch(Search):
    """Draws random values, which depend only on the seed, the index of the job and the keys of the space in order.

    Constant keys are drawn, too: leaving them out would change what recorded searches propose next.

    Args:
        space: The search space.
        seed: Seed of the draws.
    """

    def __init__(self, space: SearchSpace, seed: int) -> None:
        super().__init__(space)
        self._seed = seed

    def ask(self, index: int) -> tuple[str, ...]:
        """Return the overrides of a new job."""
        generator = random.Random(f"{self._seed}/{index}")  # noqa: S311 - no secret
        values = {bare(axis.key): drawn(axis, generator) for axis in self._space.dimensions}
        return self._space.overrides(values)  # inactive keys are drawn, too: conditions change no other value


class OptunaSearch(Search):
    """Chooses values with an Optuna sampler, and prunes with an Optuna pruner.

    Its study exists only in this process; `resume` and `tell` rebuild it when a sweep restarts. Each proposal has its
    own sampler, seeded with the seed of the search and the index of the job: a resumed search neither repeats its first
    proposals nor differs from an uninterrupted search.

    Args:
        space: The search space.
        options: The sampler, the pruner and the seed.
        *modes: `max` or `min` for each objective: whether a higher or lower value is better.

    Raises:
        ConfigurationError: Optuna or a package of the sampler is not installed.
    """

    def __init__(self, space: SearchSpace, options: SweeperConfig, *modes: str) -> None:
        super().__init__(space)
        optuna = load("optuna", "hydra.sweeper.kind=optuna", "set hydra.sweeper.kind=random")
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        for package in _PACKAGES.get(options.sampler, ()):
            require(package, f"hydra.sweeper.sampler={options.sampler}")
        self._optuna, self._options = optuna, options
        self._varying = {bare(axis.key): axis for axis in space.dimensions if len(axis.choices) != 1}
        pruner = optuna.pruners.NopPruner()
        if options.pruner == "asha":
            pruner = optuna.pruners.SuccessiveHalvingPruner(options.grace_steps or "auto", _ASHA_FACTOR)
        self._study = optuna.create_study(
            directions=["maximize" if mode == "max" else "minimize" for mode in modes],
            sampler=optuna.samplers.RandomSampler(),  # until the first proposal
            pruner=pruner,
        )
        self._trials: dict[int, Any] = {}

    def ask(self, index: int) -> tuple[str, ...]:
        """Return the overrides of a new job; values of an unfinished job are drawn again."""
        states = self._optuna.trial.TrialState
        trials = self._study.get_trials(deepcopy=False)
        unfinished_params = [trial.params for trial in trials if trial.state in (states.RUNNING, states.FAIL)]
        finished_params = [trial.params for trial in trials if trial.state in (states.COMPLETE, states.PRUNED)]
        for draw in range(_MOST_DRAWS):
            sampler = self._options.sampler if draw < _OWN_DRAWS else "random"
            seed = random.Random(f"{self._options.seed}/{index}/{draw}").getrandbits(32)  # noqa: S311 - no secret
            self._study.sampler = _sampler(self._optuna.samplers, sampler, seed)
            trial = self._study.ask()
            values = self._suggested(trial)
            if draw == _MOST_DRAWS - 1 or trial.params not in unfinished_params or trial.params in finished_params:
                break
            self._study.tell(trial, state=states.FAIL)
        self._trials[index] = trial
        return self._space.overrides(values)

    def _suggested(self, trial: Any) -> dict[str, str]:
        """Let the sampler choose the value of each key that exists, and return them with the constants."""
        values = self._space.constants()
        for name in self._space.order:
            if name in self._varying and self._space.conditions.is_active(name, values):
                value = _suggest(trial, name, self._varying[name])
                values[name] = repr(value) if isinstance(value, float) else str(value)
        return values

    def resume(self, index: int, recorded: Sequence[str]) -> tuple[str, ...]:
        """Return the overrides of a job from an earlier start of the sweep, and add it as a running trial."""
        overrides = self._space.resumed(index, recorded)
        if self._options.sampler == "cmaes":  # its state is in attributes of trials, which only asking again restores
            if self.ask(index) == overrides:
                return overrides
            self._study.tell(self._trials.pop(index), state=self._optuna.trial.TrialState.FAIL)
        words = values_of(overrides)
        with suppress(ValueError):  # not a number where the current search space has an interval
            values = {name: _read(words[name], axis) for name, axis in self._varying.items() if name in words}
            if values and all(_contains(self._varying[name], value) for name, value in values.items()):
                self._study.enqueue_trial(values)
                self._trials[index] = self._study.ask()
                self._suggested(self._trials[index])
        return overrides

    def tell(self, index: int, overrides: Sequence[str], values: Sequence[float], *, is_pruned: bool) -> None:
        """Report the objectives of a job that `ask` or `resume` returned; none if it failed."""
        if index not in self._trials:
            self.resume(index, overrides)
        trial, states = self._trials.pop(index, None), self._optuna.trial.TrialState
        if trial is None:
            return
        is_sound = len(values) == len(self._study.directions) and all(map(math.isfinite, values))
        state = states.FAIL if not is_sound else states.PRUNED if is_pruned else states.COMPLETE
        self._study.tell(trial, list(values) if state == states.COMPLETE else None, state=state)

    def report(self, index: int, points: Mapping[int, float]) -> None:
        """Report the points of a completed job by step, at most about `_MOST_POINTS`; `tell` follows."""
        trial = self._trials.get(index)
        if trial is not None:
            known_points = self._study.get_trials(deepcopy=False)[trial.number].intermediate_values
            steps = sorted(step for step, value in points.items() if math.isfinite(value))
            for step in sorted({*steps[:: math.ceil(len(steps) / _MOST_POINTS) or 1], *steps[-1:]}):
                if step not in known_points:
                    trial.report(points[step], step)
                while self._options.pruner == "asha" and trial.should_prune():
                    pass  # each call completes a rung that the job has reached

    def reason_to_prune(self, index: int, step: int, value: float, best: float) -> str | None:
        """Report the newest point of a running job; return why it should be pruned, or None."""
        trial = self._trials.get(index)
        if trial is None or not math.isfinite(value):
            return None
        trial.report(value, step)
        if step < self._options.grace_steps:
            return None
        if self._options.pruner == "median":
            return self._worse_than_median(step, best)
        return self._not_promoted(trial, step, value) if trial.should_prune() else None

    def _worse_than_median(self, step: int, best: float) -> str | None:
        """Compare the best value of a job with the median of completed jobs at the same step.

        A completed job counts with its last point at or before that step. `optuna.pruners.MedianPruner` requires points
        at equal steps, which jobs lack that evaluate at the ends of their episodes or rollouts.
        """
        optuna, trials = self._optuna, self._study.get_trials(deepcopy=False)
        is_max = self._study.direction == optuna.study.StudyDirection.MAXIMIZE
        curves = [one.intermediate_values for one in trials if one.state == optuna.trial.TrialState.COMPLETE]
        steps = [max((curve_step for curve_step in curve if curve_step <= step), default=None) for curve in curves]
        values = [curve[curve_step] for curve, curve_step in zip(curves, steps, strict=True) if curve_step is not None]
        if len(values) < _FEWEST_COMPARED:
            return None
        median = statistics.median(values)
        if not (best < median if is_max else best > median):
            return None
        return f"best {best:g} {'<' if is_max else '>'} {median:g}, the median of {len(values)} jobs up to step {step}"

    def _not_promoted(self, trial: Any, step: int, value: float) -> str:
        """Describe the rung at which the pruner of Optuna stopped a job."""
        attributes = [one.system_attrs for one in self._study.get_trials(deepcopy=False)]
        rungs = [name for name in attributes[trial.number] if name.startswith("completed_rung_")]
        newest_rung = max(rungs, key=lambda name: int(name.rpartition("_")[2]))
        num = sum(newest_rung in names for names in attributes)
        return f"{value:g} at step {step} is not among the best {max(1, num // _ASHA_FACTOR)} of {num} jobs there"


class JobQueue:
    """Yields jobs one at a time, because a search chooses the next job from earlier outcomes; this one has a list.

    Args:
        jobs: The jobs.
        directory: Directory of the sweep.
        num_objectives: Number of objectives.
    """

    def __init__(self, jobs: Iterable[Job], directory: Path, num_objectives: int = 1) -> None:
        self._jobs, self._directory = iter(jobs), directory
        self._names = ObjectiveNames(directory, num_objectives)

    def next(self) -> Job | None:
        """Return the next job; None if there is none, or none until another job has ended."""
        return next(self._jobs, None)

    def ended(self, job: Job, done: Done) -> Done:
        """Receive the outcome of a job, including jobs that ended before this start of the sweep.

        Returns:
            The outcome, with several objectives in the order of the first job.

        Raises:
            ObjectiveError: The job lacks the objectives of the sweep, and no job before has any.
        """
        done = self._names.applied(done)
        if isinstance(done.error, ObjectiveError) and not have_objectives(self._directory):
            raise ObjectiveError(f"job {job.index}: {done.error}") from done.error
        return done

    def to_prune(self, running: Sequence[Job]) -> Mapping[int, Done]:
        """Return the running jobs to prune, as they will have ended."""
        del running
        return {}

    def rated(self, pruned: Done) -> Done:
        """Return the outcome of a pruned job that has ended, with its objective."""
        return pruned


class SearchQueue(JobQueue):
    """The jobs of a search: first the jobs of earlier starts of the sweep, then new jobs.

    Args:
        search: Chooses the values.
        num_trials: Number of jobs.
        records: Records of the jobs of earlier starts, by index; the search receives all ended jobs at once, including
            jobs that this start does not select.
        directory: Directory of the sweep.
        objective: Metric whose points decide on pruning; None: no pruning.
        mode: `max` or `min`, whether a higher or a lower value of it is better.
        metric_key: Which of its values is the objective of a pruned job: `max`, `min` or `last`.
        num_objectives: Number of objectives.
    """

    def __init__(
        self,
        search: Search,
        num_trials: int,
        records: Mapping[int, JobRecord],
        directory: Path,
        objective: str | None,
        mode: str = "max",
        metric_key: str = "last",
        num_objectives: int = 1,
    ) -> None:
        new_indices = (index for index in range(num_trials) if index not in records)
        super().__init__(
            (Job(index, self._begun.get(index) or search.ask(index)) for index in (*sorted(records), *new_indices)),
            directory,
            num_objectives,
        )
        self._search = search
        self._objective, self._mode, self._metric_key = objective, mode, metric_key
        self._begun: dict[int, tuple[str, ...]] = {}
        self._reported = {index for index, record in records.items() if record.state in ("completed", "pruned")}
        for index, record in sorted(records.items()):
            self._begun[index] = search.resume(index, record.overrides)
            if index in self._reported:
                self._report_curve(index)
                done = self._names.applied(Done(index, record.objective))  # orders several objectives
                search.tell(index, self._begun[index], done.objectives, is_pruned=record.state == "pruned")
        self._last_step: dict[int, int] = {}
        self._look_at = 0.0

    def ended(self, job: Job, done: Done) -> Done:
        """Report the objectives of a job to the search; see `JobQueue.ended`."""
        done = super().ended(job, done)
        if job.index in self._reported:
            return done
        self._report_curve(job.index)
        self._search.tell(job.index, job.overrides, done.objectives, is_pruned=done.is_pruned)
        return done

    def to_prune(self, running: Sequence[Job]) -> Mapping[int, Done]:
        """Return the running jobs that the search prunes, as they will have ended, and tell them why."""
        outcomes: dict[int, Done] = {}
        if self._objective is None or time.monotonic() < self._look_at:
            return outcomes
        self._look_at = time.monotonic() + _LOOK_S
        for job in running:
            metric = self._metric(job.index)
            if metric is None or metric["step"] <= self._last_step.get(job.index, -1):
                continue
            self._last_step[job.index] = metric["step"]
            reason = self._search.reason_to_prune(job.index, metric["step"], metric["last"], metric[self._mode])
            if reason is not None:
                outcomes[job.index] = Done(job.index, metric[self._metric_key], is_pruned=True, reason=reason)
                with suppress(OSError):  # the job then stops as after Ctrl-C
                    (self._directory / str(job.index) / STOP_REASON).write_text(f"pruned: {reason}", "utf-8")
        return outcomes

    def rated(self, pruned: Done) -> Done:
        """Return the outcome of a pruned job that has ended, with its objective."""
        metric = self._metric(pruned.index)
        return pruned if metric is None else replace(pruned, value=metric[self._metric_key])

    def _report_curve(self, index: int) -> None:
        """Report all points of a job that has ended: those that `to_prune` reads may be seconds apart."""
        run_dir = self._directory / str(index) / RUN
        if self._objective is not None and run_dir.is_dir():
            from trieye.history.history import read_history

            with suppress(JournalError, SerializationError, OSError):  # its curve is not compared
                table = read_history(run_dir, [self._objective])
                pairs = zip(table["step"].to_pylist(), table["value"].to_pylist(), strict=True)
                self._search.report(index, dict(pairs))

    def _metric(self, index: int) -> dict[str, Any] | None:
        run_dir = self._directory / str(index) / RUN
        with suppress(JournalError, OSError):
            metric = read_status(run_dir).get("metrics", {}).get(self._objective) if run_dir.is_dir() else None
            return None if metric is None else dict(metric)
        return None


def _read(text: str, dimension: Dimension) -> Any:
    if dimension.choices:
        return next((choice for choice in dimension.choices if same_value(choice, text)), text)
    return int(text) if dimension.is_int else float(text)


def _contains(dimension: Dimension, value: Any) -> bool:
    return value in dimension.choices if dimension.choices else bool(dimension.low <= value <= dimension.high)


def _suggest(trial: Any, name: str, dimension: Dimension) -> Any:
    if dimension.choices:
        return trial.suggest_categorical(name, dimension.choices)
    if dimension.is_int:
        return trial.suggest_int(name, int(dimension.low), int(dimension.high), log=dimension.is_log)
    return trial.suggest_float(name, dimension.low, dimension.high, log=dimension.is_log)


def _sampler(samplers: Any, name: str, seed: int) -> Any:
    if name == "tpe":  # with parallel jobs: running trials count as bad ones
        return samplers.TPESampler(seed=seed, constant_liar=True)
    return {"random": samplers.RandomSampler, "cmaes": samplers.CmaEsSampler, "gp": samplers.GPSampler}[name](seed=seed)


def print_remarks(jobs: Sequence[JobStatus]) -> None:
    """Print the importance of the keys of a search, how many of its jobs repeat values, and whether objectives tie.

    Args:
        jobs: All jobs of the search.
    """
    if (table := importance_table(jobs)) is not None:
        Terminal().print(table)
    job_by_values = {tuple(job.values.items()): job for job in reversed(jobs) if job.record is not None}
    num = sum(job.record is not None for job in jobs)
    if num > len(job_by_values):
        say(f"{num - len(job_by_values)} of {num} trials repeat the values of an earlier one")
    values = [job.objective for job in job_by_values.values() if job.how == "completed" and job.objective is not None]
    value, num_tied = max(Counter(values).items(), key=lambda pair: pair[1], default=(0.0, 0))
    if num_tied >= max(_FEWEST_TIED, _TIED_SHARE * len(values)):
        say(
            f"warning: {num_tied} of {len(values)} trials with different values have the objective {value:g}, so the "
            "search cannot rank them. An early evaluation, such as of the untrained policy, may have reached this "
            "value already: train longer (loop.steps), evaluate later (loop.evaluate_every_steps) and on more "
            "episodes, or choose another loop.objective"
        )
