"""Trial: trains an experiment one evaluation at a time in a separate run; independent of Ray."""

import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trieye.checkpoints.store import CheckpointStore, check
from trieye.config import TrieyeConfig
from trieye.exceptions import CheckpointError, noted
from trieye.experiment.experiment import Experiment
from trieye.experiment.loop import Loop
from trieye.files.atomic import link_or_copy
from trieye.files.run_files import CHECKPOINT_PREFIX, RunFiles
from trieye.process.progress import say
from trieye.run.run import Run
from trieye.snapshot.generators import seed_all

HYPERPARAMETERS = "tune/"
"""Prefix of the metrics that record the current hyperparameter values of a trial."""

DAMAGE = "damage"
"""Key of a result: the damaged checkpoint that the newest checkpoint of the trial's own run replaced."""


@dataclass
class _OpenTrial:
    run: Run
    experiment: Experiment[Any]
    loop: Loop


class Trial:
    """One trial: the operations of `ray.tune.Trainable`, as a plain object.

    A checkpoint contains all counters, but not the name of the trial. A trial whose run exists resumes from the run's
    newest checkpoint, unless `restore` sets another one.

    Args:
        kind: The experiment class.
        config: The config of the trial, with its run name.
        values: Values that a study chose, by key.
        group: Directory of the study, or None.

    Raises:
        Exception: Errors of the experiment propagate; the run is recorded as failed.
    """

    def __init__(
        self,
        kind: type[Experiment[Any]],
        config: TrieyeConfig,
        values: Mapping[str, Any] | None = None,
        group: str | None = None,
    ) -> None:
        self._kind, self._config, self._values, self._group = kind, config, dict(values or {}), group
        self._open_trial: _OpenTrial | None = None
        self._spare_experiment: Experiment[Any] | None = None
        self._result: dict[str, Any] = {}
        self._step: int | None = None
        self._damage: str | None = None

    @property
    def evaluations(self) -> int:
        """Number of evaluations over all processes, including evaluations before a restored state."""
        return int(self._result.get("training_iteration", 0))

    @property
    def run_dir(self) -> Path:
        """The run directory."""
        return RunFiles(self._config.trieye.persistence).run_base_dir

    def iterate(self) -> dict[str, Any]:
        """Train until the next evaluation, or to the end.

        Returns:
            The metrics of the evaluation; `training_iteration`, the number of evaluations; `step`, `env_steps`,
            `updates`; `time_train_s`; `best_objective`; `done`, whether a limit is reached, and `stop_reason`;
            `damage`, if a damaged checkpoint was replaced since the last result.
        """
        if self._result.get("done"):
            return self._result
        open_trial = self._ensure_open()
        try:
            metrics = self._advanced(open_trial)
            if open_trial.loop.reason is None:  # Tune does not save a trial before it restores another state into it
                open_trial.loop.save()
                open_trial.run.wait_for_saves()
        except BaseException as error:
            self._fail(error)
            raise
        self._result = self._result_of(open_trial, metrics)
        self._step = open_trial.run.step
        if self._result["done"]:  # a reported end must survive a crash of this process
            self.close()
        return self._result

    def _advanced(self, open_trial: _OpenTrial) -> Mapping[str, float]:
        loop, num_before = open_trial.loop, open_trial.loop.progress.evaluations
        metrics: Mapping[str, float] = {}
        while loop.reason is None and loop.progress.evaluations == num_before:
            metrics = loop.advance() or metrics
        if loop.reason is not None:
            loop.end()
        return metrics

    def _hyperparameters(self) -> dict[str, float]:
        numbers = {key: value for key, value in self._values.items() if isinstance(value, int | float)}
        return {f"{HYPERPARAMETERS}{key}": float(value) for key, value in numbers.items()}

    def _result_of(self, open_trial: _OpenTrial, metrics: Mapping[str, float]) -> dict[str, Any]:
        progress, loop_config = open_trial.loop.progress, self._config.loop
        result: dict[str, Any] = {name: float(value) for name, value in metrics.items()}
        best_objective = progress.best
        if (objective := result.get(loop_config.objective, best_objective)) is not None:
            worst = -math.inf if loop_config.mode == "max" else math.inf  # in every comparison of a scheduler
            result[loop_config.objective] = objective if math.isfinite(objective) else worst
        damage, self._damage = self._damage, None
        return result | {
            **({} if damage is None else {DAMAGE: damage}),
            "training_iteration": progress.evaluations,
            "step": open_trial.run.step,
            "env_steps": progress.env_steps,
            "updates": progress.updates,
            "time_train_s": progress.time_s,
            "best_objective": best_objective,
            "done": open_trial.loop.reason is not None,
            "stop_reason": open_trial.loop.reason,
            "attempt": open_trial.run.attempt,
        }

    def save(self, directory: Path) -> None:
        """Save a complete copy of the state to a directory, as a checkpoint of the run.

        Raises:
            CheckpointError: The state could not be saved.
        """
        if not self._result.get("done"):
            open_trial = self._ensure_open()
            open_trial.loop.save()
            open_trial.run.wait_for_saves()
            self._step = open_trial.run.step
        paths = RunFiles(self._config.trieye.persistence)
        source = CheckpointStore(paths.checkpoint_dir, read_only=True).path(self._step or 0)
        shutil.copytree(source, directory / source.name, copy_function=_as_copied)

    def restore(self, directory: Path) -> None:
        """Restore the complete state that `save` wrote to a directory, from this trial or another one.

        If the checkpoint is damaged, the trial resumes from the newest checkpoint of its run, and its next result
        reports the damage.

        Raises:
            CheckpointError: There is no checkpoint, it does not fit, or it is damaged and the run has none either.
        """
        checkpoints = sorted(directory.glob(f"{CHECKPOINT_PREFIX}*"))
        if not checkpoints:
            raise CheckpointError(f"{directory} contains no checkpoint of a trial, {CHECKPOINT_PREFIX}<step>")
        self._leave()
        try:
            open_trial = self._ensure_open(checkpoints[0])
        except CheckpointError:
            self._damage = self._damage_of(checkpoints[0])
            if self._damage is None:
                raise
            say(f"run {self._config.run_name!r} resumes from the newest checkpoint of the run: {self._damage}")
            open_trial = self._ensure_open()
        progress = open_trial.loop.progress
        self._result = {"training_iteration": progress.evaluations, "time_train_s": progress.time_s}
        self._step = open_trial.run.step

    def _damage_of(self, checkpoint: Path) -> str | None:
        """Describe the damage of a checkpoint; None if it is intact, or if the run has no checkpoint to replace it."""
        try:
            check(checkpoint)
        except CheckpointError as error:
            own_store = CheckpointStore(RunFiles(self._config.trieye.persistence).checkpoint_dir, read_only=True)
            return str(error) if own_store.entries() else None
        return None

    def reset(self, config: TrieyeConfig, values: Mapping[str, Any]) -> None:
        """Close this trial, and continue as another trial in the same process.

        The experiment is created again, unless its `reset_config` accepts the config and a restore follows.

        Args:
            config: The config of the other trial.
            values: Values that a study chose, by key.
        """
        self._leave(config)
        self._config, self._values, self._result, self._step = config, dict(values), {}, None

    def export_model(self, directory: Path) -> list[Path]:
        """Write the trained model for use elsewhere, and return the files."""
        return self._ensure_open().experiment.export_model(directory)

    def close(self) -> None:
        """Close the trial; its run is finished if a limit is reached, else it can be resumed elsewhere."""
        self._leave()
        self._drop_spare()

    def _ensure_open(self, checkpoint: Path | None = None) -> _OpenTrial:
        if self._open_trial is not None:
            return self._open_trial
        run = Run(self._config, group=self._group)
        run.open()
        try:
            seed_all(self._config.seed)
            if checkpoint is None:
                self._drop_spare()
            if (experiment := self._spare_experiment) is not None:
                self._spare_experiment = None
                experiment.enter(run)
            else:
                experiment = self._kind(self._config, run)
            self._open_trial = _OpenTrial(run, experiment, Loop(experiment, run, constants=self._hyperparameters()))
            self._open_trial.loop.begin(checkpoint)
        except BaseException as error:
            if self._open_trial is None:
                with noted(error, "closing the run"):
                    run.__exit__(type(error), error, error.__traceback__)
            self._fail(error)
            raise
        return self._open_trial

    def _fail(self, error: BaseException) -> None:
        open_trial, self._open_trial = self._open_trial, None
        if open_trial is not None:
            with noted(error, "cleanup() of the experiment"):
                open_trial.experiment.cleanup()
            with noted(error, "closing the run"):
                open_trial.run.__exit__(type(error), error, error.__traceback__)

    def _leave(self, config: TrieyeConfig | None = None) -> None:
        """Close the run; retain the experiment for a trial with another config, if its `reset_config` accepts it."""
        open_trial, self._open_trial = self._open_trial, None
        if open_trial is None:
            return
        try:
            if config is not None and open_trial.experiment.reset_config(config):
                self._spare_experiment = open_trial.experiment
            else:
                open_trial.experiment.cleanup()
        except BaseException as error:
            open_trial.run.__exit__(type(error), error, error.__traceback__)
            raise
        open_trial.run.close("FINISHED" if open_trial.loop.reason is not None else "KILLED")

    def _drop_spare(self) -> None:
        spare, self._spare_experiment = self._spare_experiment, None
        if spare is not None:
            spare.cleanup()


def _as_copied(source: str, target: str) -> None:
    link_or_copy(Path(source), Path(target))  # files of a checkpoint are immutable
