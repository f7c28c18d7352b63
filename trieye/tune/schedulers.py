"""Schedulers: the Ray Tune scheduler of a study, for early stopping and population-based training."""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.result import TRAINING_ITERATION
from ray.tune.schedulers import (
    AsyncHyperBandScheduler,
    FIFOScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
    TrialScheduler,
)

from trieye.config import TrieyeConfig
from trieye.exceptions import ConfigurationError
from trieye.tune.ended import reported_objectives
from trieye.tune.search import id_of
from trieye.tune.space import Space
from trieye.tune.trainable import index_of

_LONGEST = 1 << 20


class InStep(PopulationBasedTraining):  # type: ignore[misc]  # Ray has no types for us
    """Synchronous population-based training whose trials do not wait for failed or finished trials.

    Ray compares the population when the last trial reports. If that trial fails or is done, the others would stay
    paused forever.
    """

    def choose_trial_to_run(self, tune_controller: Any) -> Any:
        """Return the next trial; if all live trials wait for finished ones, compare the population first."""
        chosen_trial = super().choose_trial_to_run(tune_controller)
        if chosen_trial is not None:
            return chosen_trial
        states, now = self._trial_state, self._next_perturbation_sync
        trials = list(tune_controller.get_live_trials())
        waiting = [trial for trial in trials if trial.status == Trial.PAUSED and states[trial].last_train_time >= now]
        ended_trials = [trial for trial in trials if trial.is_finished()]
        if not waiting or len(waiting) + len(ended_trials) < len(trials):
            return None
        for trial in ended_trials:
            states[trial].last_train_time = max(states[trial].last_train_time, now)
        self.on_trial_result(tune_controller, waiting[0], states[waiting[0]].last_result)
        if (chosen_trial := super().choose_trial_to_run(tune_controller)) is None:
            # The trials were compared already; in a resumed study, Ray then sets the next interval to their own time.
            earliest_time = min(states[trial].last_train_time for trial in waiting)
            self._next_perturbation_sync: float = earliest_time + self._perturbation_interval
            chosen_trial = super().choose_trial_to_run(tune_controller)
        return chosen_trial


class GoingOn(TrialScheduler):  # type: ignore[misc]  # Ray has no types for us
    """A scheduler that receives the earlier results of each trial when a study resumes.

    Args:
        study: Directory of the study.
        **options: Options of the scheduler of Ray.
    """

    def __init__(self, study: Path, **options: Any) -> None:
        super().__init__(**options)
        self._study = study

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """Add a trial and replay its earlier results."""
        super().on_trial_add(tune_controller, trial)
        for iteration, value in reported_objectives(self._study / str(index_of(trial.trial_id))).items():
            self.replay(tune_controller, trial, {TRAINING_ITERATION: iteration, self.metric: value})

    def replay(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        """Process one earlier result, whose decision was already made."""
        raise NotImplementedError


class Halving(GoingOn, AsyncHyperBandScheduler):  # type: ignore[misc]  # likewise
    """Asynchronous successive halving for resumable studies."""

    replay = AsyncHyperBandScheduler.on_trial_result


class Median(GoingOn, MedianStoppingRule):  # type: ignore[misc]  # likewise
    """Median stopping rule for resumable studies."""

    replay = MedianStoppingRule.on_trial_complete  # stores the result without a decision


def scheduler_of(config: TrieyeConfig, space: Space, study: Path, ended: Iterable[int] = ()) -> Any:
    """Return the scheduler of a study.

    Args:
        config: The config of the study.
        space: Its search space.
        study: Its directory.
        ended: Indices of the trials that have ended, with which a resumed study compares the others.

    Raises:
        ConfigurationError: The scheduler compares running trials, but the config sets no evaluations.
    """
    tune = config.tune
    if tune.scheduler == "none":
        return FIFOScheduler()
    if not config.loop.evaluate_every_steps:
        raise ConfigurationError(
            f"tune.scheduler={tune.scheduler} compares running trials; set loop.evaluate_every_steps"
        )
    options = {"time_attr": TRAINING_ITERATION, "metric": config.loop.objective, "mode": config.loop.mode}
    if tune.scheduler == "pbt":
        return _pbt(config, space, options)
    scheduler = _stopper(config, study, options)
    for index in ended:
        scheduler.on_trial_add(None, Trial("ended", stub=True, trial_id=id_of(index)))
    return scheduler


def _stopper(config: TrieyeConfig, study: Path, options: Mapping[str, Any]) -> GoingOn:
    tune = config.tune
    if tune.scheduler == "median":
        return Median(study, grace_period=tune.grace_period, min_samples_required=2, hard_stop=True, **options)
    # Trials report themselves when they are done, after this number of evaluations or slightly more.
    max_evaluations = max(_evaluations_of(config), tune.grace_period)
    return Halving(
        study,
        grace_period=tune.grace_period,
        max_t=max_evaluations,
        reduction_factor=tune.reduction_factor,
        stop_last_trials=False,
        **options,
    )


def _pbt(config: TrieyeConfig, space: Space, options: Mapping[str, Any]) -> PopulationBasedTraining:
    tune = config.tune
    return (InStep if tune.synchronous else PopulationBasedTraining)(
        perturbation_interval=tune.perturbation_interval,
        hyperparam_mutations=space.mutations(),
        quantile_fraction=tune.quantile_fraction,
        resample_probability=tune.resample_probability,
        custom_explore_fn=space.clamp,
        synch=tune.synchronous,
        log_config=False,  # the hyperparameters of a trial are metrics of its run
        **options,
    )


def _evaluations_of(config: TrieyeConfig) -> int:
    """Return the maximum number of evaluations of a trial, from its limits."""
    limits = config.loop
    same_axis = [limits.steps, limits.env_steps if limits.axis == "env_steps" else None]
    set_limits = [steps for steps in same_axis if steps is not None]
    return math.ceil(min(set_limits) / limits.evaluate_every_steps) if set_limits else _LONGEST
