"""as_trainable: wraps an experiment in a Ray Tune trainable, which only forwards to `Trial`."""

import os
import sys
import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from socket import gethostname
from typing import Any, ClassVar

from ray.tune import PlacementGroupFactory, Trainable

from trieye.config import LoopConfig, TrieyeConfig
from trieye.config.fingerprint import leaves
from trieye.config.tune import TuneConfig
from trieye.exceptions import ConfigurationError
from trieye.experiment.experiment import Experiment
from trieye.experiment.loop import check_limits, checked
from trieye.process.output import printing_to
from trieye.sweeps.grid import shown
from trieye.sweeps.jobs import OUTPUT
from trieye.tune.ended import overrides_of
from trieye.tune.trial import Trial
from trieye.tune.values import named, with_values

_OUTSIDE = "default"
"""Trial id that Tune sets outside of a study."""


@dataclass(frozen=True)
class StudyPlace:
    """Directories of a study.

    Attributes:
        directory: Absolute directory of the study; trial 3 has the subdirectory `3`.
        working_dir: Directory where the study was started and trials run.
        path: `sys.path` of the process that started the study.
    """

    directory: Path
    working_dir: Path
    path: tuple[str, ...] = ()


def as_trainable(
    experiment: type[Experiment[Any]] | str, base_config: TrieyeConfig, place: StudyPlace | None = None
) -> type[Trainable]:
    """Return a subclass of `ray.tune.Trainable` that trains an experiment, for `ray.tune.Tuner` and its schedulers.

    One iteration of Tune is one evaluation. Each trial is a separate run, `<run_name>_<index>`. Its hub is a thread of
    the trial's process, or an actor if the config has explorers, which are actors as well.

    Example:
        trainable = trieye.as_trainable(MyExperiment, config)
        tune.Tuner(trainable, param_space={"agent.lr": tune.loguniform(1e-5, 1e-2)}).fit()

    Args:
        experiment: A class, or an import path such as `my_agent.dqn:DQN`.
        base_config: The config of all trials, whose values the parameters of a trial override, as `{"agent.lr": 1e-3}`
            or nested dicts.
        place: Directories of the study; None: trials are runs outside of a study.

    Raises:
        ConfigurationError: The config sets no limit, or the experiment cannot be imported.
    """
    check_limits(base_config)
    kind = checked(experiment, base_config)
    attributes = {"experiment": kind, "base_config": base_config, "study_place": place, "__doc__": kind.__doc__}
    return type(f"{kind.__name__}Trainable", (ExperimentTrainable,), attributes)


def index_of(trial_id: str) -> int | None:
    """Return the index of a trial in its study; None outside of a study."""
    _, _, suffix = trial_id.rpartition("_")
    return int(suffix) if suffix.isdecimal() else None


def run_name_of(base: TrieyeConfig, index: int | str) -> str:
    """Return the run name of a trial."""
    return f"{base.run_name}_{index}"


class ExperimentTrainable(Trainable):  # type: ignore[misc]  # Ray has no types for us
    """An experiment under Ray Tune; `as_trainable` creates subclasses.

    Attributes:
        experiment: The experiment to train.
        base_config: The config of all trials.
        study_place: Directories of the study, or None.
    """

    experiment: ClassVar[type[Experiment[Any]]]
    base_config: ClassVar[TrieyeConfig]
    study_place: ClassVar[StudyPlace | None]

    def setup(self, config: dict[str, Any]) -> None:
        """Receive the values of a trial; the run and experiment are created later, since a restore may follow."""
        self._own_name = uuid.uuid4().hex[:8]
        self._printing = ExitStack()
        trial_config, values = self._config_of(config)
        self._enter_working_dir()
        group = None if self.study_place is None else str(self.study_place.directory)
        self._trial = Trial(self.experiment, trial_config, values, group)

    def step(self) -> dict[str, Any]:
        """Train until the next evaluation."""
        return dict(self._trial.iterate())

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Save a copy of the state to a directory."""
        self._trial.save(Path(checkpoint_dir))

    def restore(self, checkpoint_path: Any) -> None:
        """Restore a state that `save` returned; after an error, the counters are unchanged."""
        attributes = dict(vars(self))
        try:
            super().restore(checkpoint_path)
        except BaseException:
            self.__dict__.update(attributes)
            raise

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Restore the state and counters of this trial or of another trial."""
        self._trial.restore(Path(checkpoint))
        self._iteration = self._trial.evaluations

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Continue as another trial in the same process."""
        self._own_name = uuid.uuid4().hex[:8]
        trial_config, values = self._config_of(new_config)
        self._trial.reset(trial_config, values)
        self._last_result = None
        self._enter_working_dir()
        return True

    def cleanup(self) -> None:
        """Close the trial, which may have ended or may be resumed by Tune."""
        try:
            self._trial.close()
        finally:
            self._printing.close()

    def _export_model(self, export_formats: list[str], export_dir: str) -> dict[str, str]:
        exported_files = self._trial.export_model(Path(export_dir))
        return {
            path.name: str(path) for path in exported_files if not export_formats or path.suffix[1:] in export_formats
        }

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> PlacementGroupFactory:
        """Return the resources of a trial's process and its explorers."""
        del config
        tune, explorer = cls.base_config.tune, getattr(cls.base_config, "explorer", None)
        bundles = [{"CPU": tune.num_cpus, "GPU": tune.num_gpus}]
        if explorer is None or not explorer.num:
            return PlacementGroupFactory(_nonzero(bundles))
        explorer_resources = {"CPU": explorer.num_cpus, "GPU": explorer.num_gpus, **explorer.resources}
        bundles += [explorer_resources] * explorer.num if any(explorer_resources.values()) else []
        strategies = {"spread": "SPREAD", "pack": "PACK", "learner": "STRICT_PACK"}
        return PlacementGroupFactory(_nonzero(bundles), strategy=strategies[explorer.placement])

    def _config_of(self, config: Mapping[str, Any]) -> tuple[TrieyeConfig, dict[str, Any]]:
        values = {key: _plain(value) for key, value in leaves(config)}
        base = self.base_config
        index = None if self.study_place is None else index_of(self.trial_id)
        own_name = self._own_name if self.trial_id == _OUTSIDE else self.trial_id
        name = run_name_of(base, own_name if index is None else index)
        explorer, runtime = getattr(base, "explorer", None), base.runtime
        if explorer is None or not explorer.num:
            runtime = runtime.model_copy(update={"kind": "local", "address": None})
        title = " ".join(shown(overrides_of(values), values))
        tags = {**({"mlflow.runName": title} if title and self.study_place is not None else {}), **base.tags}
        trial_config = with_values(base, values)
        loop = trial_config.loop if self.study_place is None else _until(trial_config.loop, base.tune.target)
        return named(trial_config, name, runtime=runtime, tune=TuneConfig(), tags=tags, loop=loop), values

    def _enter_working_dir(self) -> None:
        """Change back to the working directory of the study, and redirect output to the trial's file."""
        if self.study_place is None:
            return
        try:
            os.chdir(self.study_place.working_dir)
        except FileNotFoundError as error:
            raise ConfigurationError(
                f"the study was started in {self.study_place.working_dir}, which does not exist on this machine "
                f"({gethostname()}): all nodes of its trials must share this directory and persistence.root_data_dir"
            ) from error
        sys.path += [path for path in self.study_place.path if path not in sys.path]
        self._printing.close()
        index = index_of(self.trial_id)
        if index is not None:
            self._printing.enter_context(printing_to(self.study_place.directory / str(index) / OUTPUT))


def _until(loop: LoopConfig, target: float | None) -> LoopConfig:
    """Return the limits of a trial, which also ends at the target of its study."""
    if target is None or not loop.evaluate_every_steps:
        return loop
    targets = [target] if loop.target is None else [target, loop.target]
    return loop.model_copy(update={"target": min(targets) if loop.mode == "max" else max(targets)})


def _nonzero(bundles: list[dict[str, float]]) -> list[dict[str, float]]:
    return [{name: amount for name, amount in bundle.items() if amount} for bundle in bundles]


def _plain(value: Any) -> Any:
    """Convert a drawn NumPy value to a Python value."""
    return value.item() if hasattr(value, "item") else value
