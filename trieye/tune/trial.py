"""Trial: an experiment that is trained an evaluation at a time, in a run of its own; knows no Ray."""

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
"""What the metrics of a trial begin with that say with which values it trains now."""

DAMAGE = "damage"
"""Key of a result: which checkpoint was damaged, so that the trial went on from what its run had saved."""


@dataclass
class _Begun:
    run: Run
    experiment: Experiment[Any]
    loop: Loop


class Trial:
    """One trial: what `ray.tune.Trainable` asks of a training, as a plain object.

    All counters are in the checkpoint, its name is not. A trial whose run is there already goes on from what that saved
    last, unless a checkpoint is given.

    Args:
        kind: The experiment.
        config: The config of the trial, with the name of its run.
        values: Those of its values that a study chose, by key.
        group: The study that it belongs to; None: none.

    Raises:
        Exception: Whatever the experiment raises; the run is recorded as failed then.
    """

    def __init__(
        self,
        kind: type[Experiment[Any]],
        config: TrieyeConfig,
        values: Mapping[str, Any] | None = None,
        group: str | None = None,
    ) -> None:
        self._kind, self._config, self._values, self._group = kind, config, dict(values or {}), group
        self._open: _Begun | None = None
        self._spare: Experiment[Any] | None = None
        self._result: dict[str, Any] = {}
        self._step: int | None = None
        self._damage: str | None = None

    @property
    def evaluations(self) -> int:
        """Evaluations made, over all processes; those of a state that was taken over count, too."""
        return int(self._result.get("training_iteration", 0))

    @property
    def run_dir(self) -> Path:
        """Directory of its run."""
        return RunFiles(self._config.trieye.persistence).run_base_dir

    def iterate(self) -> dict[str, Any]:
        """Train until the next evaluation, or to the end.

        Returns:
            What the evaluation found; `training_iteration`, the number of evaluations; `step`, `env_steps`, `updates`;
            `time_train_s`; `best_objective`; `done`, whether a limit is reached, and `stop_reason`, which; `damage`, if
            a checkpoint was damaged since the last one.
        """
        if self._result.get("done"):
            return self._result
        begun = self._begun()
        try:
            found = self._advanced(begun)
            if begun.loop.reason is None:  # a trial that is made to take over a state is not asked to save first
                begun.loop.save()
                begun.run.wait_for_saves()
        except BaseException as error:
            self._fail(error)
            raise
        self._result = self._told(begun, found)
        self._step = begun.run.step
        if self._result["done"]:  # what is reported as done is done, whatever becomes of this process
            self.close()
        return self._result

    def _advanced(self, begun: _Begun) -> Mapping[str, float]:
        loop, before = begun.loop, begun.loop.progress.evaluations
        found: Mapping[str, float] = {}
        while loop.reason is None and loop.progress.evaluations == before:
            found = loop.advance() or found
        if loop.reason is not None:
            loop.end()
        return found

    def _hyperparameters(self) -> dict[str, float]:
        numbers = {key: value for key, value in self._values.items() if isinstance(value, int | float)}
        return {f"{HYPERPARAMETERS}{key}": float(value) for key, value in numbers.items()}

    def _told(self, begun: _Begun, found: Mapping[str, float]) -> dict[str, Any]:
        at, limits = begun.loop.progress, self._config.loop
        told: dict[str, Any] = {name: float(value) for name, value in found.items()}
        best = at.best
        if (objective := told.get(limits.objective, best)) is not None:
            worst = -math.inf if limits.mode == "max" else math.inf  # than anything that a scheduler compares it with
            told[limits.objective] = objective if math.isfinite(objective) else worst
        damage, self._damage = self._damage, None
        return told | {
            **({} if damage is None else {DAMAGE: damage}),
            "training_iteration": at.evaluations,
            "step": begun.run.step,
            "env_steps": at.env_steps,
            "updates": at.updates,
            "time_train_s": at.time_s,
            "best_objective": best,
            "done": begun.loop.reason is not None,
            "stop_reason": begun.loop.reason,
            "attempt": begun.run.attempt,
        }

    def save(self, directory: Path) -> None:
        """Put a copy of the state into a directory, as a checkpoint of the run; whole, or an error.

        Raises:
            CheckpointError: It could not be saved.
        """
        if not self._result.get("done"):
            begun = self._begun()
            begun.loop.save()
            begun.run.wait_for_saves()
            self._step = begun.run.step
        paths = RunFiles(self._config.trieye.persistence)
        source = CheckpointStore(paths.checkpoint_dir, read_only=True).path(self._step or 0)
        shutil.copytree(source, directory / source.name, copy_function=_as_copied)

    def restore(self, directory: Path) -> None:
        """Go on from what `save` put into a directory, this trial's or another's; all of it, or an error.

        In place of one that is damaged, the trial goes on from what its own run has saved, and its next result says so.

        Raises:
            CheckpointError: There is none, it does not fit, or it is damaged and the run has saved nothing.
        """
        found = sorted(directory.glob(f"{CHECKPOINT_PREFIX}*"))
        if not found:
            raise CheckpointError(f"{directory} holds no checkpoint of a trial, {CHECKPOINT_PREFIX}<step>")
        self._leave()
        try:
            begun = self._begun(found[0])
        except CheckpointError:
            self._damage = self._damage_of(found[0])
            if self._damage is None:
                raise
            say(f"run {self._config.run_name!r} goes on from what it has saved itself: {self._damage}")
            begun = self._begun()
        at = begun.loop.progress
        self._result = {"training_iteration": at.evaluations, "time_train_s": at.time_s}
        self._step = begun.run.step

    def _damage_of(self, checkpoint: Path) -> str | None:
        """Return what is damaged of a checkpoint; None if nothing is, or if the run has none in its place."""
        try:
            check(checkpoint)
        except CheckpointError as error:
            own = CheckpointStore(RunFiles(self._config.trieye.persistence).checkpoint_dir, read_only=True)
            return str(error) if own.entries() else None
        return None

    def reset(self, config: TrieyeConfig, values: Mapping[str, Any]) -> None:
        """Leave this trial, and become another one in the same process.

        The experiment is made anew, unless its `reset_config` agrees to the config and a state follows.

        Args:
            config: The config of the other trial.
            values: Those of its values that a study chose.
        """
        self._leave(config)
        self._config, self._values, self._result, self._step = config, dict(values), {}, None

    def export_model(self, directory: Path) -> list[Path]:
        """Write the trained model for use elsewhere, and return the files."""
        return self._begun().experiment.export_model(directory)

    def close(self) -> None:
        """Leave the trial: its run is finished if a limit is reached, and else goes on wherever it is begun again."""
        self._leave()
        self._drop_spare()

    def _begun(self, checkpoint: Path | None = None) -> _Begun:
        if self._open is not None:
            return self._open
        run = Run(self._config, group=self._group)
        run.open()
        experiment: Experiment[Any] | None = None
        try:
            seed_all(self._config.seed)
            experiment = self._entered(run) if checkpoint is not None else None
            if experiment is None:
                self._drop_spare()
                experiment = self._kind(self._config, run)
            self._open = _Begun(run, experiment, Loop(experiment, run, constants=self._hyperparameters()))
            self._open.loop.begin(checkpoint)
        except BaseException as error:
            if self._open is None:
                with noted(error, "closing the run"):
                    run.__exit__(type(error), error, error.__traceback__)
            self._fail(error)
            raise
        return self._open

    def _entered(self, run: Run) -> Experiment[Any] | None:
        experiment, self._spare = self._spare, None
        if experiment is not None:
            experiment.enter(run)
        return experiment

    def _fail(self, error: BaseException) -> None:
        begun, self._open = self._open, None
        if begun is not None:
            with noted(error, "cleanup() of the experiment"):
                begun.experiment.cleanup()
            with noted(error, "closing the run"):
                begun.run.__exit__(type(error), error, error.__traceback__)

    def _leave(self, config: TrieyeConfig | None = None) -> None:
        """Close the run; the experiment stays for a trial with another config, if it agrees to that."""
        begun, self._open = self._open, None
        if begun is None:
            return
        try:
            if config is not None and begun.experiment.reset_config(config):
                self._spare = begun.experiment
            else:
                begun.experiment.cleanup()
        except BaseException as error:
            begun.run.__exit__(type(error), error, error.__traceback__)
            raise
        begun.run.close("FINISHED" if begun.loop.reason is not None else "KILLED")

    def _drop_spare(self) -> None:
        spare, self._spare = self._spare, None
        if spare is not None:
            spare.cleanup()


def _as_copied(source: str, target: str) -> None:
    link_or_copy(Path(source), Path(target))  # nobody changes a file of a checkpoint
