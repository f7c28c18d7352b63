"""Schedulers: what Ray Tune does with trials that are behind, as a config says."""

import math
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
from trieye.tune.space import Space
from trieye.tune.watching import Watching

_LONGEST = 1 << 20


class InStep(PopulationBasedTraining):  # type: ignore[misc]  # Ray has no types for us
    """Population-based training whose trials wait for one another, but for none that has failed or has ended.

    Ray compares the population when the last trial reports. If that one fails, or reports that it is done, the others
    would stay paused for ever.
    """

    def choose_trial_to_run(self, tune_controller: Any) -> Any:
        """Return the trial that goes on; if all that are left have waited for one that is gone, they are compared."""
        chosen = super().choose_trial_to_run(tune_controller)
        if chosen is not None:
            return chosen
        states, now = self._trial_state, self._next_perturbation_sync
        live = list(tune_controller.get_live_trials())
        waiting = [trial for trial in live if trial.status == Trial.PAUSED and states[trial].last_train_time >= now]
        gone = [trial for trial in live if trial.is_finished()]
        if not waiting or len(waiting) + len(gone) < len(live):
            return None
        for trial in gone:
            states[trial].last_train_time = max(states[trial].last_train_time, now)
        self.on_trial_result(tune_controller, waiting[0], states[waiting[0]].last_result)
        if (chosen := super().choose_trial_to_run(tune_controller)) is None:
            # they were compared already, by a driver that was killed before the next moment was written down
            earliest = min(states[trial].last_train_time for trial in waiting)
            self._next_perturbation_sync: float = earliest + self._perturbation_interval
            chosen = super().choose_trial_to_run(tune_controller)
        return chosen


class GoingOn(TrialScheduler):  # type: ignore[misc]  # Ray has no types for us
    """A scheduler that hears again, when a study goes on, what each trial reported before.

    Ray keeps the trials of a study, but nothing of its scheduler: those that go on would be compared with nobody.
    """

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """Take note of a trial, and of what it reported."""
        super().on_trial_add(tune_controller, trial)
        for result in Watching.watch.reported_by(trial) if Watching.watch is not None else ():
            self.hear_again(tune_controller, trial, result)

    def hear_again(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        """Take note of one result; what follows from it was decided then."""
        raise NotImplementedError


class Halving(GoingOn, AsyncHyperBandScheduler):  # type: ignore[misc]  # likewise
    """Asynchronous successive halving, of a study that may go on."""

    hear_again = AsyncHyperBandScheduler.on_trial_result


class Median(GoingOn, MedianStoppingRule):  # type: ignore[misc]  # likewise
    """Stopping what is worse than the median, in a study that may go on."""

    hear_again = MedianStoppingRule.on_trial_complete  # which keeps the result, and decides nothing


def scheduler_of(config: TrieyeConfig, space: Space) -> Any:
    """Return the scheduler of a study.

    Raises:
        ConfigurationError: Trials would be compared that are not evaluated on their way.
    """
    asked = config.tune
    if asked.scheduler == "none":
        return FIFOScheduler()
    if not config.loop.evaluate_every_steps:
        raise ConfigurationError(
            f"tune.scheduler={asked.scheduler} compares trials on their way; set loop.evaluate_every_steps"
        )
    if asked.scheduler == "median":
        return Median(time_attr=TRAINING_ITERATION, grace_period=asked.grace, min_samples_required=2, hard_stop=True)
    if asked.scheduler == "asha":
        # a trial is done when it says so, which is after as many evaluations or a few more
        longest = max(_evaluations_of(config), asked.grace)
        return Halving(
            time_attr=TRAINING_ITERATION,
            grace_period=asked.grace,
            max_t=longest,
            reduction_factor=asked.reduction,
            stop_last_trials=False,
        )
    return (InStep if asked.in_step else PopulationBasedTraining)(
        time_attr=TRAINING_ITERATION,
        perturbation_interval=asked.interval,
        hyperparam_mutations=space.mutations(),
        quantile_fraction=asked.quantile,
        resample_probability=asked.resample,
        custom_explore_fn=space.clamp,
        synch=asked.in_step,
        log_config=False,  # the hyperparameters of a trial are metrics of its run
    )


def _evaluations_of(config: TrieyeConfig) -> int:
    """Return how many evaluations a trial makes at most, as far as its limits tell."""
    limits = config.loop
    same_axis = [limits.steps, limits.env_steps if limits.axis == "env_steps" else None]
    known = [steps for steps in same_axis if steps is not None]
    return math.ceil(min(known) / limits.evaluate_every_steps) if known else _LONGEST
