"""ExperimentContract: tests that every experiment must pass, alone and under Ray Tune."""

# ruff: noqa: S101 - these are tests

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from trieye.config import TrieyeConfig
from trieye.exceptions import CheckpointError
from trieye.experiment.experiment import ConfigT, Experiment
from trieye.tune.trial import Trial
from trieye.tune.values import named, with_values

_COUNTED = ("training_iteration", "step", "env_steps", "updates", "done")


class ExperimentContract:
    """Inherited tests of an experiment: subclass it in a class that pytest collects, and set the class and the config.

    Each test runs trainings of `make_config`, so they should be small. With `UNDER_TUNE`, tests drive the experiment
    through `trieye.as_trainable`, like Ray Tune.
    """

    experiment_class: ClassVar[type[Experiment[Any]]]
    """The experiment class."""

    OTHER: ClassVar[Mapping[str, Any]] = {"seed": 1}
    """Values by key, as a study would choose them, that change the training."""

    UNDER_TUNE: ClassVar[bool] = False
    """Whether to drive the experiment through Ray Tune's trainable."""

    def make_config(self) -> TrieyeConfig:
        """Return the config of a training with three or more evaluations; the tests set its directory and sinks."""
        raise NotImplementedError

    def begin(self, root: Path, run_name: str = "run", values: Mapping[str, Any] | None = None) -> "Trial | _Tuned":
        """Return a driver of the experiment, with a run below `root`."""
        config = config_below(self.make_config(), root, run_name)
        if self.UNDER_TUNE:
            return _Tuned(self.experiment_class, config, values or {})
        return Trial(self.experiment_class, with_values(config, values or {}), values)

    def test_evaluations_arrive_in_order_and_the_last_is_marked(self, tmp_path: Path) -> None:
        """Each result has a finite objective."""
        driver, results = self.begin(tmp_path), list[Mapping[str, Any]]()
        while not results or not results[-1]["done"]:
            results.append(driver.iterate())
        driver.close()
        assert len(results) > 2, "make_config() must return a config with three or more evaluations"  # noqa: PLR2004
        assert [result["training_iteration"] for result in results] == list(range(1, len(results) + 1))
        objective = self.make_config().loop.objective
        assert all(math.isfinite(result[objective]) for result in results), f"{objective} is not finite"

    def test_saving_changes_nothing_and_a_restored_copy_continues_bit_exactly(self, tmp_path: Path) -> None:
        """A checkpoint contains all state that training depends on, including generators and counters."""
        reference = self.begin(tmp_path, "undisturbed")
        all_numbers = [self._numbers(reference.iterate()) for _ in range(3)]
        reference.close()
        driver = self.begin(tmp_path)
        first_numbers = self._numbers(driver.iterate())
        driver.save(tmp_path / "saved")
        later_numbers = [self._numbers(driver.iterate()) for _ in range(2)]
        driver.close()
        assert [first_numbers, *later_numbers] == all_numbers, "saving changes the training"
        copy = self.begin(tmp_path)
        copy.restore(tmp_path / "saved")
        assert [self._numbers(copy.iterate()) for _ in range(2)] == later_numbers, "the saved state is incomplete"
        copy.close()

    def test_reset_keeps_no_state_of_the_previous_trial(self, tmp_path: Path) -> None:
        """It starts from scratch or from a restored state like a new process, even if `reset_config` returns True."""
        fresh_driver = self.begin(tmp_path, "fresh", self.OTHER)
        numbers_from_scratch = self._numbers(fresh_driver.iterate())
        fresh_driver.save(tmp_path / "saved")
        fresh_driver.close()
        restored_driver = self.begin(tmp_path, "direct", self.OTHER)
        restored_driver.restore(tmp_path / "saved")
        numbers_after_restore = self._numbers(restored_driver.iterate())
        restored_driver.close()

        driver = self.begin(tmp_path)
        driver.iterate()
        driver.reset(with_values(config_below(self.make_config(), tmp_path, "second"), self.OTHER), self.OTHER)
        assert self._numbers(driver.iterate()) == numbers_from_scratch
        driver.reset(with_values(config_below(self.make_config(), tmp_path, "third"), self.OTHER), self.OTHER)
        driver.restore(tmp_path / "saved")
        assert self._numbers(driver.iterate()) == numbers_after_restore
        driver.close()

    def test_restoring_a_missing_state_changes_nothing(self, tmp_path: Path) -> None:
        """The error names the directory, and the training continues."""
        driver = self.begin(tmp_path)
        driver.iterate()
        (tmp_path / "empty").mkdir()
        message = ""
        try:
            driver.restore(tmp_path / "empty")
        except CheckpointError as error:
            message = str(error)
        assert str(tmp_path / "empty") in message
        assert driver.iterate()["training_iteration"] == 2  # noqa: PLR2004
        driver.close()

    def test_exported_files_are_in_the_requested_directory(self, tmp_path: Path) -> None:
        """`export_model` writes files only to its argument, or nothing."""
        driver = self.begin(tmp_path)
        driver.iterate()
        (tmp_path / "exported").mkdir()
        paths = driver.export_model(tmp_path / "exported")
        driver.close()
        assert [path for path in paths if not path.is_file() or tmp_path / "exported" not in path.parents] == []

    def _numbers(self, result: Mapping[str, Any]) -> dict[str, Any]:
        return {name: result[name] for name in (*_COUNTED, self.make_config().loop.objective)}


def config_below(config: ConfigT, root: Path, run_name: str) -> ConfigT:
    """Return the config of a local run below `root`, without sinks, mirror and states of other runs."""
    paths: dict[str, Any] = {"root_data_dir": str(root), "app_name": "contract", "resume_dirs": []}
    paths |= dict.fromkeys(("mirror", "load_checkpoint_path", "load_buffer_path"))
    return named(
        config.model_copy(update={"persistence": config.persistence.model_copy(update=paths)}),
        run_name,
        app_name="contract",
        runtime=config.runtime.model_copy(update={"kind": "local", "address": None}),
        sinks=type(config.sinks)(),
    )


class _Tuned:
    """Adapts a Ray Tune trainable to the interface of `Trial`."""

    def __init__(self, kind: type[Experiment[Any]], config: TrieyeConfig, values: Mapping[str, Any]) -> None:
        from trieye.tune.trainable import as_trainable  # imports Ray

        self._trainable = as_trainable(kind, config)(dict(values))

    def iterate(self) -> Mapping[str, Any]:
        return dict(self._trainable.train())

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
