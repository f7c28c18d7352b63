"""ModelState: the resumable state of a Stable-Baselines3 model, and the functions that restore it."""

from collections import deque
from collections.abc import Callable, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.running_mean_std import RunningMeanStd

from trieye.checkpoints.store import Which, load_checkpoint
from trieye.exceptions import CheckpointError, ConfigurationError
from trieye.integrations.sb3.replay_rows import ReplayRows
from trieye.run.run import Run
from trieye.snapshot.fitting import restore_objects
from trieye.snapshot.generators import generator_state, set_generator_state

_NOT_COUNTERS = ("_total_timesteps", "_num_timesteps_at_start", "_stats_window_size")
_EPISODES = ("ep_info_buffer", "ep_success_buffer")

KEY, REPLAY_KEY = "model", "transitions"
"""Names of the model and of its replay rows in a checkpoint."""


class ModelState:
    """State of a model: weights, optimizers, counters, `VecNormalize` moments and the generator of random actions.

    Args:
        model: The model.
    """

    def __init__(self, model: BaseAlgorithm) -> None:
        self._model = model

    def state_dict(self) -> dict[str, Any]:
        """Return the state; its tensors share memory with the model."""
        model = self._model
        names = model._get_torch_save_params()[1]  # noqa: SLF001 - docs/private_apis.md
        variables = {name: attrgetter(name)(model) for name in names}
        state: dict[str, Any] = {
            "parameters": model.get_parameters(),
            "variables": {name: item.detach() for name, item in variables.items() if isinstance(item, torch.Tensor)},
            "counters": self._counters(),
            "episodes": {name: [_plain(one) for one in getattr(model, name) or ()] for name in _EPISODES},
            "actions": generator_state(model.action_space.np_random),
        }
        normalizer = model.get_vec_normalize_env()
        if normalizer is not None:
            state["normalizer"] = {name: dict(vars(one)) for name, one in _moments(normalizer)}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state_dict` returned.

        Raises:
            CheckpointError: Only one of the model and the state has a `VecNormalize`; nothing is changed.
        """
        model = self._model
        if ("normalizer" in state) != (model.get_vec_normalize_env() is not None):
            name = "make_model" if "normalizer" not in state else "the checkpoint"
            raise CheckpointError(
                f"only {name} has a VecNormalize; create the environment in make_model as in the saved run"
            )
        model.set_parameters(state["parameters"], exact_match=True, device=model.device)
        for name, value in state["variables"].items():
            attrgetter(name)(model).data = value.to(model.device)
        self.load_counters(state)
        set_generator_state(model.action_space.np_random, state["actions"])
        self.load_moments(state)

    def load_counters(self, state: Mapping[str, Any]) -> None:
        """Restore the counters and episode statistics that `learn` resets at its start."""
        vars(self._model).update(state["counters"])
        for name, episodes in state["episodes"].items():
            setattr(self._model, name, deque(episodes, maxlen=self._model._stats_window_size))  # noqa: SLF001 - docs/private_apis.md

    def load_moments(self, state: Mapping[str, Any]) -> None:
        """Restore the `VecNormalize` moments, which an environment reset changes."""
        normalizer = self._model.get_vec_normalize_env()
        if normalizer is not None:
            for name, one in _moments(normalizer):
                vars(one).update(state["normalizer"][name])

    def _counters(self) -> dict[str, Any]:
        """Return the numbers that change during learning, including sb3-contrib models."""
        names = [name for name, value in vars(self._model).items() if name[0] == "_" and type(value) in {int, float}]
        names += [name for name in ("num_timesteps", "exploration_rate") if hasattr(self._model, name)]
        return {name: getattr(self._model, name) for name in names if name not in _NOT_COUNTERS}


class RestoredModel:
    """Restored state of a model in a run, because `learn` resets counters that a resumed training needs.

    Attributes:
        timesteps: Timestep to resume from; None: the training starts from scratch.
        rows: Rows of the replay buffer, shared by the runs of the model; None: the model has no buffer.
        evaluation: State of the evaluations, and the `learn` call and timestep of the checkpoint.
        state: State of the model.
        calls: Number of `learn` calls so far, over all attempts.
    """

    _of: ClassVar["WeakKeyDictionary[BaseAlgorithm, dict[Path, RestoredModel]]"] = WeakKeyDictionary()

    def __init__(self, model: BaseAlgorithm, run: Run, total: int | None = None) -> None:
        buffer, by_run_dir = getattr(model, "replay_buffer", None), self._of.setdefault(model, {})
        rows = None if buffer is None else ReplayRows(buffer)
        self.rows: ReplayRows | None = next((other.rows for other in by_run_dir.values()), rows)
        self.evaluation: dict[str, Any] = {}
        self.calls, self._total, self._run_name = 0, total, run.name
        self.timesteps = run.step if run.restore(**self.objects(model, self)) else None
        self.state: Mapping[str, Any] = run.restored.get(KEY, {})
        by_run_dir[run.dir] = self

    @classmethod
    def of(cls, model: BaseAlgorithm, run: Run, total: int | None = None) -> "RestoredModel":
        """Return the restored state of a model; the first call for each run restores the model.

        Args:
            model: The model.
            run: Its run.
            total: Last timestep of the current `learn` call; None outside of `learn`.
        """
        return cls._of.get(model, {}).get(run.dir) or cls(model, run, total)

    def objects(self, model: BaseAlgorithm, evaluation: Any) -> dict[str, Any]:
        """Return the objects of a checkpoint: the model, the state of its evaluations, its replay rows."""
        rows = {} if self.rows is None else {REPLAY_KEY: self.rows}
        return {KEY: ModelState(model), "evaluation": evaluation, **rows}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of the evaluations; refuse a checkpoint that a later `learn` call saved."""
        self.evaluation = dict(state)
        if self._total is not None:
            self._check(self._total)

    def begin_call(self, total: int) -> None:
        """Count a `learn` call.

        Args:
            total: Last timestep of the call.

        Raises:
            ConfigurationError: A later call saved the checkpoint, so the weights are newer than the end of this call.
        """
        self._check(total)
        saved_in = self.evaluation.get("learn_calls", 0) if total >= self.evaluation.get("timesteps", 0) else 0
        self.calls = max(self.calls + 1, saved_in)

    def _check(self, total: int) -> None:
        timesteps, saved_in = self.evaluation.get("timesteps", 0), self.evaluation.get("learn_calls", 0)
        if total < timesteps and self.calls + 1 < saved_in:
            raise ConfigurationError(
                f"learn() number {self.calls + 1} ends at timestep {total}, but the checkpoint of run "
                f"{self._run_name!r} is from timestep {timesteps}, in learn() number {saved_in}: statements after this "
                "call, such as model.save(), would use later weights. Skip the completed calls: "
                "model = restore_or_new(make_model, run), then while model.num_timesteps < total: "
                "model.learn(chunk - model.num_timesteps % chunk, reset_num_timesteps=False, callback=callback)"
            )


def restore_or_new(make_model: Callable[[], BaseAlgorithm], run: Run) -> BaseAlgorithm:
    """Create a model, and restore it from the newest checkpoint of the run, if any.

    `RunCallback` does this when `learn` starts; call this function only if the program uses the model earlier. With the
    callback, `model.learn(total)` trains only the remaining timesteps.

    Args:
        make_model: Creates the model, as for a new training.
        run: The open run.

    Raises:
        CheckpointError: The saved state does not fit the model, which stays unchanged.
    """
    model = make_model()
    RestoredModel.of(model, run)
    return model


def load_model(make_model: Callable[[], BaseAlgorithm], run_dir: str | Path, which: Which = "best") -> BaseAlgorithm:
    """Create a model with the weights and moments of a checkpoint, without opening the run.

    Args:
        make_model: Creates the model.
        run_dir: Directory of the run.
        which: `best` by evaluation, newest, or a step.

    Raises:
        CheckpointError: The checkpoint does not exist or does not fit the model.
    """
    checkpoint, model = load_checkpoint(run_dir, which), make_model()
    if KEY not in checkpoint.objects:
        raise CheckpointError(f"{checkpoint.path} has no Stable-Baselines3 model: RunCallback did not save it")
    restore_objects({KEY: checkpoint.objects[KEY]}, {KEY: ModelState(model)}, source=f"checkpoint {checkpoint.path}")
    return model


def _moments(normalizer: Any) -> list[tuple[str, RunningMeanStd]]:
    obs_rms = normalizer.obs_rms if normalizer.norm_obs else {}
    moments_by_key = obs_rms if isinstance(obs_rms, dict) else {"": obs_rms}
    return [*((f"obs.{name}", one) for name, one in moments_by_key.items()), ("returns", normalizer.ret_rms)]


def _plain(value: Any) -> Any:
    """Convert the numbers in an episode's info to plain Python numbers."""
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    return value.item() if hasattr(value, "item") and getattr(value, "size", 1) == 1 else value
