"""ExperimentContract: the tests that every experiment has to pass, alone and under Ray Tune."""

# ruff: noqa: S101 - these are tests

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol

from trieye.config import TrieyeConfig
from trieye.exceptions import CheckpointError
from trieye.experiment.experiment import Experiment
from trieye.tune.trial import Trial
from trieye.tune.values import named, with_values

_COUNTED = ("training_iteration", "step", "env_steps", "updates", "done")


class Driven(Protocol):
    """What drives an experiment, an evaluation at a time."""

    def iterate(self) -> Mapping[str, Any]:
        """Train until the next evaluation, and return its result."""

    def save(self, directory: Path) -> None:
        """Put a copy of the state into a directory, which is not there."""

    def restore(self, directory: Path) -> None:
        """Go on from a copy of a state."""

    def reset(self, config: Any, values: Mapping[str, Any]) -> None:
        """Become another trial, with other values."""

    def export_model(self, directory: Path) -> list[Path]:
        """Write the model into a directory."""

    def close(self) -> None:
        """Leave."""


class ExperimentContract:
    """Tests that an experiment inherits: subclass it, in a class that pytest collects, name it and give its config.

    Trainings of `make_config` are made by each test, so they should be small. With `UNDER_TUNE`, the experiment is
    driven as Ray Tune drives it, by `trieye.as_trainable`.
    """

    experiment_class: ClassVar[type[Experiment[Any]]]
    """The experiment."""

    OTHER: ClassVar[Mapping[str, Any]] = {"seed": 1}
    """Values by key, as a study would choose them, with which it trains otherwise."""

    UNDER_TUNE: ClassVar[bool] = False
    """Whether Ray Tune drives it."""

    def make_config(self) -> TrieyeConfig:
        """Return the config of a training that has three evaluations or more; its place and its sinks are set here."""
        raise NotImplementedError

    def begin(self, root: Path, run_name: str = "run", values: Mapping[str, Any] | None = None) -> Driven:
        """Return what drives an experiment in a run below `root`."""
        config = self._placed(root, run_name)
        if self.UNDER_TUNE:
            return _Tuned(self.experiment_class, config, values or {})
        return Trial(self.experiment_class, with_values(config, values or {}), values)

    def test_evaluations_come_one_after_another_and_the_last_one_says_so(self, tmp_path: Path) -> None:
        """Each has the objective, as a number."""
        driven, results = self.begin(tmp_path), list[Mapping[str, Any]]()
        while not results or not results[-1]["done"]:
            results.append(driven.iterate())
        driven.close()
        assert len(results) > 2, "give it a config with three evaluations or more"  # noqa: PLR2004
        assert [result["training_iteration"] for result in results] == list(range(1, len(results) + 1))
        objective = self.make_config().loop.objective
        assert all(math.isfinite(result[objective]) for result in results), f"{objective} is no number"

    def test_a_save_changes_nothing_and_another_process_goes_on_bit_for_bit(self, tmp_path: Path) -> None:
        """Nothing that training depends on is lost, generators and counters included."""
        undisturbed = self.begin(tmp_path, "undisturbed")
        whole = [self._numbers(undisturbed.iterate()) for _ in range(3)]
        undisturbed.close()
        driven = self.begin(tmp_path)
        first = self._numbers(driven.iterate())
        driven.save(tmp_path / "saved")
        rest = [self._numbers(driven.iterate()) for _ in range(2)]
        driven.close()
        assert [first, *rest] == whole, "saving changes the training"
        again = self.begin(tmp_path)
        again.restore(tmp_path / "saved")
        assert [self._numbers(again.iterate()) for _ in range(2)] == rest, "something was not saved"
        again.close()

    def test_a_process_that_becomes_another_trial_keeps_nothing_of_the_first_one(self, tmp_path: Path) -> None:
        """It begins anew, or goes on from a state, like a process of its own; also if `reset_config` agrees."""
        fresh = self.begin(tmp_path, "fresh", self.OTHER)
        alone = self._numbers(fresh.iterate())
        fresh.save(tmp_path / "saved")
        fresh.close()
        direct = self.begin(tmp_path, "direct", self.OTHER)
        direct.restore(tmp_path / "saved")
        onwards = self._numbers(direct.iterate())
        direct.close()

        driven = self.begin(tmp_path)
        driven.iterate()
        driven.reset(with_values(self._placed(tmp_path, "second"), self.OTHER), self.OTHER)
        assert self._numbers(driven.iterate()) == alone
        driven.reset(with_values(self._placed(tmp_path, "third"), self.OTHER), self.OTHER)
        driven.restore(tmp_path / "saved")
        assert self._numbers(driven.iterate()) == onwards
        driven.close()

    def test_a_state_that_is_not_there_changes_nothing(self, tmp_path: Path) -> None:
        """The error names the place, and the training goes on."""
        driven = self.begin(tmp_path)
        driven.iterate()
        (tmp_path / "empty").mkdir()
        said = ""
        try:
            driven.restore(tmp_path / "empty")
        except CheckpointError as error:
            said = str(error)
        assert str(tmp_path / "empty") in said
        assert driven.iterate()["training_iteration"] == 2  # noqa: PLR2004
        driven.close()

    def test_what_it_exports_is_in_the_directory_that_is_given(self, tmp_path: Path) -> None:
        """Files, or nothing."""
        driven = self.begin(tmp_path)
        driven.iterate()
        (tmp_path / "exported").mkdir()
        paths = driven.export_model(tmp_path / "exported")
        driven.close()
        assert [path for path in paths if not path.is_file() or tmp_path / "exported" not in path.parents] == []

    def _placed(self, root: Path, run_name: str) -> TrieyeConfig:
        config = self.make_config()
        place = {"root_data_dir": str(root), "app_name": "contract"}
        return named(
            config.model_copy(update={"persistence": config.persistence.model_copy(update=place)}),
            run_name,
            app_name="contract",
            runtime=config.runtime.model_copy(update={"kind": "local", "address": None}),
            sinks=type(config.sinks)(),
        )

    def _numbers(self, result: Mapping[str, Any]) -> dict[str, Any]:
        return {name: result[name] for name in (*_COUNTED, self.make_config().loop.objective)}


class _Tuned:
    """The calls of Ray Tune as those of a `Trial`."""

    def __init__(self, kind: type[Experiment[Any]], config: TrieyeConfig, values: Mapping[str, Any]) -> None:
        from trieye.tune.trainable import as_trainable  # with Ray

        self._trainable = as_trainable(kind, config)(dict(values))

    def iterate(self) -> Mapping[str, Any]:
        result: Mapping[str, Any] = self._trainable.train()
        return result

    def save(self, directory: Path) -> None:
        directory.mkdir()
        self._trainable.save(str(directory))

    def restore(self, directory: Path) -> None:
        self._trainable.restore(str(directory))

    def reset(self, config: Any, values: Mapping[str, Any]) -> None:
        del config
        assert self._trainable.reset(dict(values))

    def export_model(self, directory: Path) -> list[Path]:
        return [Path(path) for path in self._trainable.export_model([], str(directory)).values()]

    def close(self) -> None:
        self._trainable.stop()
