"""as_trainable: an experiment as a class that Ray Tune trains; what is an actor only forwards to `Trial`."""

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

from trieye.config import TrieyeConfig
from trieye.config.tune import TuneConfig
from trieye.exceptions import ConfigurationError
from trieye.experiment.experiment import Experiment
from trieye.experiment.loop import check_limits, checked
from trieye.process.output import printing_to
from trieye.sweeps.grid import short
from trieye.sweeps.jobs import OUTPUT
from trieye.tune.trial import Trial
from trieye.tune.values import flat, named, with_values

INDEX = "trial"
"""Key of a trial's number, where its id does not end with that."""


_OUTSIDE = "default"
"""What Tune says that the id of a trial is where there is no study."""


@dataclass(frozen=True)
class StudyPlace:
    """Where the trials of a study belong.

    Attributes:
        directory: Of the study, absolute; the trial with the number 3 has `3` in it.
        working_dir: Where the study was begun; trials run there.
        path: Where the process that began it finds modules.
    """

    directory: Path
    working_dir: Path
    path: tuple[str, ...] = ()


def as_trainable(
    experiment: type[Experiment[Any]] | str, base_config: TrieyeConfig, place: StudyPlace | None = None
) -> type[Trainable]:
    """Return a subclass of `ray.tune.Trainable` that trains an experiment, for `ray.tune.Tuner` and its schedulers.

    One iteration of Tune is one evaluation. Each trial is a run of its own, `<run_name>_<number>`, whose hub is a
    thread of the process of the trial, or an actor if the config asks for explorers, which are actors, too.

    Example:
        trainable = trieye.as_trainable(MyExperiment, config)
        tune.Tuner(trainable, param_space={"agent.lr": tune.loguniform(1e-5, 1e-2)}).fit()

    Args:
        experiment: What to train: a class, or `my_agent.dqn:DQN`.
        base_config: The config of all trials. What a trial is given, `{"agent.lr": 1e-3}` or nested dicts, takes the
            place of its values.
        place: Where the trials belong; None: nowhere, each is a run and no more.

    Raises:
        ConfigurationError: The config sets no limit, or the experiment is not there.
    """
    check_limits(base_config)
    kind = checked(experiment, base_config)
    held = {"experiment": kind, "base_config": base_config, "place": place, "__doc__": kind.__doc__}
    return type(f"{kind.__name__}Trainable", (ExperimentTrainable,), held)


def index_of(trial_id: str, values: Mapping[str, Any]) -> int | None:
    """Return the number of a trial in its study; None outside of one."""
    if INDEX in values:
        return int(values[INDEX])
    _, _, number = trial_id.rpartition("_")
    return int(number) if number.isdecimal() else None


def run_name_of(base: TrieyeConfig, index: int | str) -> str:
    """Return the name of the run of a trial."""
    return f"{base.run_name}_{index}"


class ExperimentTrainable(Trainable):  # type: ignore[misc]  # Ray has no types for us
    """An experiment under Ray Tune; subclasses are made by `as_trainable`.

    Attributes:
        experiment: What to train.
        base_config: The config of all trials.
        place: Where the trials belong.
    """

    experiment: ClassVar[type[Experiment[Any]]]
    base_config: ClassVar[TrieyeConfig]
    place: ClassVar[StudyPlace | None]

    def setup(self, config: dict[str, Any]) -> None:
        """Take the values of a trial; nothing is made before it is known whether a state follows."""
        self._own_name = uuid.uuid4().hex[:8]
        self._printing = ExitStack()
        made, values = self._config_of(config)
        self._settle()
        group = None if self.place is None else str(self.place.directory)
        self._trial = Trial(self.experiment, made, values, group)

    def step(self) -> dict[str, Any]:
        """Train until the next evaluation."""
        return dict(self._trial.iterate())

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Put a copy of the state into a directory."""
        self._trial.save(Path(checkpoint_dir))

    def restore(self, checkpoint_path: Any) -> None:
        """Go on from what `save` returned; where that fails, the counters are what they were."""
        before = dict(vars(self))
        try:
            super().restore(checkpoint_path)
        except BaseException:
            self.__dict__.update(before)
            raise

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Go on from a copy of a state, of this trial or another one, with the counters that are in it."""
        self._trial.restore(Path(checkpoint))
        self._iteration = self._trial.evaluations

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Become another trial."""
        self._own_name = uuid.uuid4().hex[:8]
        made, values = self._config_of(new_config)
        self._trial.reset(made, values)
        self._last_result = None
        self._settle()
        return True

    def cleanup(self) -> None:
        """Leave the trial; whether it has ended is known to Tune alone."""
        try:
            self._trial.close()
        finally:
            self._printing.close()

    def _export_model(self, export_formats: list[str], export_dir: str) -> dict[str, str]:
        paths = self._trial.export_model(Path(export_dir))
        return {path.name: str(path) for path in paths if not export_formats or path.suffix[1:] in export_formats}

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> PlacementGroupFactory:
        """Return what a trial needs: its process, and its explorers."""
        del config
        asked, explorer = cls.base_config.tune, getattr(cls.base_config, "explorer", None)
        bundles = [{"CPU": asked.num_cpus, "GPU": asked.num_gpus}]
        if explorer is None or not explorer.num:
            return PlacementGroupFactory(_needed(bundles))
        need = {"CPU": explorer.num_cpus, "GPU": explorer.num_gpus, **explorer.resources}
        bundles += [need] * explorer.num if any(need.values()) else []
        strategies = {"spread": "SPREAD", "pack": "PACK", "learner": "STRICT_PACK"}
        return PlacementGroupFactory(_needed(bundles), strategy=strategies[explorer.placement])

    def _config_of(self, config: Mapping[str, Any]) -> tuple[TrieyeConfig, dict[str, Any]]:
        values = {key: _plain(value) for key, value in flat(config).items() if key != INDEX}
        base = self.base_config
        index = None if self.place is None else index_of(self.trial_id, config)
        own = self._own_name if self.trial_id == _OUTSIDE else self.trial_id
        name = run_name_of(base, own if index is None else index)
        explorer = getattr(base, "explorer", None)
        has_explorers = explorer is not None and explorer.num > 0
        kind = base.runtime.kind if has_explorers else "local"
        runtime = base.runtime.model_copy(
            update={"kind": kind, "address": base.runtime.address if has_explorers else None}
        )
        shown = " ".join(f"{key.rpartition('.')[2]}={short(str(value))}" for key, value in values.items())
        tags = {**({"mlflow.runName": shown} if shown and self.place is not None else {}), **base.tags}
        made = named(with_values(base, values), name, runtime=runtime, tune=TuneConfig(), tags=tags)
        return made, values

    def _settle(self) -> None:
        """Be where the study was begun, with what is printed in the file of the trial; Tune is where its files are."""
        if self.place is None:
            return
        try:
            os.chdir(self.place.working_dir)
        except FileNotFoundError as error:
            raise ConfigurationError(
                f"the study was begun in {self.place.working_dir}, which is not on this machine ({gethostname()}): the "
                "nodes that its trials run on have to share that directory, and persistence.root_data_dir"
            ) from error
        sys.path += [path for path in self.place.path if path not in sys.path]
        self._printing.close()
        index = index_of(self.trial_id, self.config)
        if index is not None:
            self._printing.enter_context(printing_to(self.place.directory / str(index) / OUTPUT))


def _needed(bundles: list[dict[str, float]]) -> list[dict[str, float]]:
    return [{name: need for name, need in each.items() if need} for each in bundles]


def _plain(value: Any) -> Any:
    """Return a value that was drawn as Python's own type, not NumPy's."""
    return value.item() if hasattr(value, "item") else value
