"""ModelState: all of a model that a training goes on with; the functions that bring it back."""

from collections import deque
from collections.abc import Callable, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, cast
from weakref import WeakKeyDictionary

import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.running_mean_std import RunningMeanStd

from trieye.checkpoints.store import Which, load_checkpoint
from trieye.exceptions import CheckpointError, ConfigurationError
from trieye.integrations.sb3.replay_rows import ReplayRows
from trieye.run.run import Run
from trieye.snapshot.generators import generator_state, set_generator_state

_NOT_COUNTERS = ("_total_timesteps", "_num_timesteps_at_start", "_stats_window_size")
_MOMENTS = ("mean", "var", "count")

KEY, REPLAY_KEY = "model", "transitions"
"""Names of the model, and of what its replay buffer holds, in a checkpoint."""


class ModelState:
    """Weights, optimizers, counters, moments of `VecNormalize` and the generator of random actions of a model.

    Args:
        model: The model.
    """

    def __init__(self, model: BaseAlgorithm) -> None:
        self._model = model

    def state_dict(self) -> dict[str, Any]:
        """Return the state, whose tensors are those of the model."""
        model = self._model
        held: dict[str, Any] = {
            "parameters": model.get_parameters(),
            "variables": {name: attrgetter(name)(model).detach() for name in self._variables()},
            "counters": self.counters(),
            "episodes": {
                name: [_plain(one) for one in getattr(model, name) or ()]
                for name in ("ep_info_buffer", "ep_success_buffer")
            },
            "actions": generator_state(model.action_space.np_random),
        }
        normalizer = model.get_vec_normalize_env()
        if normalizer is not None:
            held["normalizer"] = {
                name: {moment: getattr(one, moment) for moment in _MOMENTS} for name, one in _moments(normalizer)
            }
        return held

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        model = self._model
        model.set_parameters(state["parameters"], exact_match=True, device=model.device)
        for name, value in state["variables"].items():
            attrgetter(name)(model).data = value.to(model.device)
        self.load_counters(state)
        set_generator_state(model.action_space.np_random, state["actions"])
        self.load_moments(state)

    def load_counters(self, state: Mapping[str, Any]) -> None:
        """Take over what `learn` sets back when it begins."""
        vars(self._model).update(state["counters"])
        for name, held in state["episodes"].items():
            setattr(self._model, name, deque(held, maxlen=self._model._stats_window_size))  # noqa: SLF001 - docs/private_apis.md

    def load_moments(self, state: Mapping[str, Any]) -> None:
        """Take over the moments of `VecNormalize`, which the reset of an environment changes."""
        normalizer = self._model.get_vec_normalize_env()
        if normalizer is not None:
            for name, one in _moments(normalizer):
                for moment in _MOMENTS:
                    setattr(one, moment, state["normalizer"][name][moment])

    def counters(self) -> dict[str, Any]:
        """Return the numbers that a model changes while it learns, those of sb3-contrib among them."""
        names = [name for name, value in vars(self._model).items() if name[0] == "_" and type(value) in {int, float}]
        names += [name for name in ("num_timesteps", "exploration_rate") if hasattr(self._model, name)]
        return {name: getattr(self._model, name) for name in names if name not in _NOT_COUNTERS}

    def _variables(self) -> list[str]:
        names = self._model._get_torch_save_params()[1]  # noqa: SLF001 - docs/private_apis.md
        return [name for name in names if isinstance(attrgetter(name)(self._model), torch.Tensor)]


class Restored:
    """What a model was brought to, for a training that goes on: `learn` begins at zero otherwise.

    Attributes:
        timesteps: Where it goes on; None: it begins.
        rows: What its replay buffer holds; None: it has none.
        evaluation: The state of the evaluations, and which call of `learn` saved the checkpoint at which timestep.
        state: That of the model.
        calls: Calls of `learn` so far, over all attempts.
    """

    _of: ClassVar["WeakKeyDictionary[BaseAlgorithm, Restored]"] = WeakKeyDictionary()

    def __init__(self, model: BaseAlgorithm, run: Run, total: int | None = None) -> None:
        buffer = getattr(model, "replay_buffer", None)
        self.rows = None if buffer is None else ReplayRows(buffer)
        self.evaluation: dict[str, Any] = {}
        self.calls, self._total, self._run_name = 0, total, run.name
        objects: dict[str, Any] = {KEY: ModelState(model), "evaluation": self} | (
            {} if self.rows is None else {REPLAY_KEY: self.rows}
        )
        self.timesteps = run.step if run.restore(**objects) else None
        self.state: Mapping[str, Any] = run.restored.get(KEY, {})
        self._of[model] = self

    @classmethod
    def of(cls, model: BaseAlgorithm, run: Run, total: int | None = None) -> "Restored":
        """Return that of a model, which is restored now if it was not before.

        Args:
            model: The model.
            run: Its run.
            total: The timestep at which the current call of `learn` ends; None outside of one.
        """
        return cls._of.get(model) or cls(model, run, total)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the state of the evaluations; refuse a checkpoint that a later call of `learn` saved."""
        self.evaluation = dict(state)
        if self._total is not None:
            self._check(self._total)

    def begin_call(self, total: int) -> None:
        """Count a call of `learn`.

        Args:
            total: The timestep at which it ends.

        Raises:
            ConfigurationError: A later call saved the checkpoint, so the model has weights from after this call.
        """
        self._check(total)
        saved_in = self.evaluation.get("learn_calls", 0) if total >= self.evaluation.get("timesteps", 0) else 0
        self.calls = max(self.calls + 1, saved_in)

    def _check(self, total: int) -> None:
        timesteps, saved_in = self.evaluation.get("timesteps", 0), self.evaluation.get("learn_calls", 0)
        if total < timesteps and self.calls + 1 < saved_in:
            raise ConfigurationError(
                f"learn() number {self.calls + 1} ends at timestep {total}, and run {self._run_name!r} was saved at "
                f"{timesteps} by its learn() number {saved_in}: what the program does after this call, such as "
                "model.save(), would get later weights. Let it skip the calls that are complete: "
                "model = restore_or_new(make_model, run), then while model.num_timesteps < total: "
                "model.learn(chunk - model.num_timesteps % chunk, reset_num_timesteps=False, callback=callback)"
            )


def restore_or_new(make_model: Callable[[], BaseAlgorithm], run: Run) -> BaseAlgorithm:
    """Make a model, and bring it to where the run stopped, if that was started before.

    `RunCallback` does that by itself when `learn` begins; this is for a program that looks at the model before. With
    the callback, `model.learn(total)` makes the timesteps that are left of `total`.

    Args:
        make_model: What makes the model, as for a new training.
        run: The run, open.

    Raises:
        CheckpointError: What was saved does not fit the model; the model is as it was made.
    """
    model = make_model()
    Restored.of(model, run)
    return model


def load_model(make_model: Callable[[], BaseAlgorithm], run_dir: str | Path, which: Which = "best") -> BaseAlgorithm:
    """Make a model, and give it the weights and moments of a checkpoint; the run is not opened.

    Args:
        make_model: What makes the model.
        run_dir: Directory of the run.
        which: The best one by its evaluation, the newest one, or that of a step.

    Raises:
        CheckpointError: There is no such checkpoint, or it is not of such a model.
    """
    found, model = load_checkpoint(run_dir, which), make_model()
    if KEY not in found.objects:
        raise CheckpointError(f"{found.path} holds no model of stable-baselines3: RunCallback did not save it")
    ModelState(model).load_state_dict(found.objects[KEY])
    return model


def _moments(normalizer: Any) -> list[tuple[str, RunningMeanStd]]:
    of_obs = normalizer.obs_rms if normalizer.norm_obs else {}
    named = of_obs if isinstance(of_obs, dict) else {"": of_obs}
    return [
        *((f"obs.{name}", one) for name, one in named.items()),
        ("returns", cast("RunningMeanStd", normalizer.ret_rms)),
    ]


def _plain(value: Any) -> Any:
    """Return what an episode's end said as plain numbers, as far as it is numbers."""
    if isinstance(value, Mapping):
        return {name: _plain(held) for name, held in value.items()}
    return value.item() if hasattr(value, "item") and getattr(value, "size", 1) == 1 else value
