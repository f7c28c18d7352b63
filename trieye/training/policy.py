"""Policy: a torch module that acts; its parameters and buffers are what is published, saved and loaded."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Generic, NamedTuple, Self, cast

import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn
from typing_extensions import TypeVar

from trieye.config.agent import AgentConfig
from trieye.exceptions import ConfigurationError
from trieye.training.config import TrainingConfig
from trieye.training.spaces import Spaces, as_batch, columns_of, nested

ConfigT = TypeVar("ConfigT", bound=TrainingConfig, default=Any)
AgentT = TypeVar("AgentT", bound=AgentConfig, default=Any)

Obs = torch.Tensor | dict[str, torch.Tensor]
"""Observations `[n, ...]`, of each key if the space is a `Dict`."""


@dataclass(slots=True)
class Context:
    """What a policy is told beside observations.

    Attributes:
        explore: Whether to explore; False in evaluations.
        env_steps: What schedules are called with: environment steps made so far, or updates with `mode=train`.
        generator: Random generator on the policy's device, for all that is random in `act`: saved, so that a run that
            was killed goes on with the same numbers.
    """

    explore: bool
    env_steps: int
    generator: torch.Generator


@dataclass(slots=True)
class Act:
    """What a policy chose.

    Attributes:
        action: `[n, ...]`, as the action space wants them: int64 indices, or numbers within its bounds.
        extras: `[n, ...]` by name, kept beside each row for the training: the log probability, the value.
        state: Of a recurrent policy, tensors `[n, ...]` in the form of `initial_state`; given back with the next
            observations.
    """

    action: torch.Tensor
    extras: Mapping[str, torch.Tensor] = field(default_factory=dict)
    state: Any = None


class Policy(nn.Module, Generic[ConfigT, AgentT]):
    """A module that acts, made from the config and the spaces alone.

    Engines, evaluations, `trieye.load_policy`, and explorers make it by `cls(config, spaces)`, and load its weights.
    Subclasses name the types of their config, `class QPolicy(Policy[TrainConfig, DQNConfig])`, call
    `super().__init__(config, spaces)`, then make their networks.

    Args:
        config: The config of the run.
        spaces: The spaces of its environment.

    Attributes:
        config: Likewise.
        agent: `config.agent`.
        spaces: Likewise.
        schedule_step: What `predict` calls schedules with: `TrainEngine.schedule_step` when the loaded state was saved.
        normalizer: Makes observations of mean 0 and standard deviation 1 where `env.normalize_observations` says so,
            else returns them unchanged; `act` and the losses call it.
    """

    def __init__(self, config: ConfigT, spaces: Spaces) -> None:
        super().__init__()
        self.config, self.spaces = config, spaces
        self.agent = cast("AgentT", config.agent)
        self.schedule_step = 0
        self.normalizer: nn.Module = (
            Normalizer(spaces.observation.shape) if config.env.normalize_observations else nn.Identity()
        )

    def act(self, obs: Obs, state: Any, ctx: Context) -> Act:
        """Choose actions; called in evaluation mode (no dropout, running statistics), and without gradients.

        Args:
            obs: `[n, ...]` on the policy's device.
            state: What the last `act` gave as `state`, and that of `initial_state` where an episode begins; None if
                there is none.
            ctx: Whether to explore, and how far the training is.
        """
        raise NotImplementedError(f"{type(self).__name__} has no act()")

    def predict(self, obs: ArrayLike | Mapping[str, ArrayLike], deterministic: bool = True) -> NDArray[Any]:
        """Choose actions for NumPy observations, as `trieye.make_env` gives them.

        Args:
            obs: One observation, or several `[n, ...]`; a dict of such where the space is one.
            deterministic: Act as in evaluations; False explores, and draws from a generator that torch's global one
                seeds.

        Returns:
            The action in the form that the action space wants, or actions `[n, ...]`.

        Raises:
            ConfigurationError: `obs` does not have the keys and shapes of the space, or the policy is recurrent.
        """
        if self.initial_state(1) is not None:
            raise ConfigurationError(f"{_name(self)} is recurrent: predict() keeps no state; call act() with one")
        batch, is_single = as_batch(obs, self.spaces.observation)
        columns = {name: torch.from_numpy(column).to(self.device) for name, column in columns_of(batch).items()}
        seed = 0 if deterministic else int(torch.randint(1 << 62, ()))
        generator = torch.Generator(self.device).manual_seed(seed)
        with EvaluationMode(self), torch.inference_mode():
            act = self.act(nested(columns), None, Context(not deterministic, self.schedule_step, generator))
        actions = chosen_actions(self, act)
        return actions[0] if is_single else actions

    def initial_state(self, n: int) -> Any:
        """Return the state of a recurrent policy where `n` episodes begin: a tensor `[n, ...]` or a dict of such."""
        del n

    def on_episode(self, info: Mapping[str, Any]) -> Mapping[str, float]:
        """Return metrics of one's own of an episode that has ended, from the `info` of its last step."""
        del info
        return {}

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        tensors = chain(self.parameters(), self.buffers())  # lazy: listing all of them takes four times as long
        return next((tensor.device for tensor in tensors), torch.device("cpu"))


class EvaluationMode:
    """Context manager that puts all modules of a policy into evaluation mode and restores their modes on exit.

    It sets the flags directly: 9 µs for 11 modules, most of it for listing them.
    """

    def __init__(self, policy: Policy) -> None:
        modules = list(policy.modules())
        self._flags = [flags for module in modules if (flags := vars(module)).get("training")]
        # TorchScript modules keep the flag in C++
        self._scripted = [module for module in modules if "training" not in vars(module) and module.training]

    def __enter__(self) -> None:
        self._set(is_training=False)

    def __exit__(self, *error: object) -> None:
        self._set(is_training=True)

    def _set(self, *, is_training: bool) -> None:
        for flags in self._flags:
            flags["training"] = is_training
        for module in self._scripted:
            module.training = is_training


def chosen_actions(policy: Policy, act: object) -> NDArray[Any]:
    """Return the chosen actions, `[n, ...]`, for environments.

    Raises:
        ConfigurationError: `act()` did not return an `Act` with a tensor.
    """
    if isinstance(act, Act) and isinstance(act.action, torch.Tensor):
        actions: NDArray[Any] = act.action.cpu().numpy()
        return actions
    returned = f"an Act with an action of type {_name(act.action)}" if isinstance(act, Act) else f"a {_name(act)}"
    raise ConfigurationError(
        f"{_name(policy)}.act() returned {returned}; return trieye.Act(action) with a torch.Tensor"
    )


def _name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def mapped(state: Any, change: Callable[..., torch.Tensor], *others: Any) -> Any:
    """Return the state of a recurrent policy with each tensor changed, given those of other states in its place."""
    if isinstance(state, dict):
        return {key: change(item, *(other[key] for other in others)) for key, item in state.items()}
    return None if state is None else change(state, *others)


class Moments(NamedTuple):
    """Number of observations, their mean, and their variance."""

    num: int
    mean: torch.Tensor
    variance: torch.Tensor

    @classmethod
    def of(cls, obs: torch.Tensor) -> Self:
        """Return those of observations `[n, ...]`, at least one."""
        obs = obs.float()
        return cls(len(obs), obs.mean(0), obs.var(0, unbiased=False))

    def cpu(self) -> Self:
        """Return a copy on the CPU, for other processes."""
        return self._replace(mean=self.mean.cpu(), variance=self.variance.cpu())


class Normalizer(nn.Module):
    """Observations less their mean, over their standard deviation, of all that were collected so far.

    The running moments are buffers: they are published, saved and loaded with the policy. Batches are merged by the
    parallel algorithm of Chan, Golub and LeVeque (1979). A deep copy of a policy, such as a target network, shares it:
    what observations are like has no slow form.

    Args:
        shape: Of one observation.
        clip: Bound of what comes out.
    """

    mean: torch.Tensor
    variance: torch.Tensor
    count: torch.Tensor

    def __init__(self, shape: tuple[int, ...], clip: float = 10.0) -> None:
        super().__init__()
        self.clip = clip
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("variance", torch.ones(shape))
        self.register_buffer("count", torch.tensor(0))  # an integer, as some devices (mps) have no float64

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """Normalize `[..., *shape]`."""
        return ((obs - self.mean) * (self.variance + 1e-8).rsqrt()).clamp(-self.clip, self.clip)

    def update(self, obs: torch.Tensor) -> None:
        """Take observations `[n, *shape]` into account."""
        if len(obs):
            self.merge(Moments.of(obs))

    @torch.no_grad()
    def merge(self, found: Moments) -> None:
        """Take the moments of observations into account."""
        mean, variance = found.mean.to(self.mean), found.variance.to(self.mean)
        self.count += found.num
        weight = found.num / self.count  # of the new observations
        delta = mean - self.mean
        self.variance.lerp_(variance, weight).add_(delta.square() * weight * (1 - weight))
        self.mean.lerp_(mean, weight)


def merge_moments(policy: nn.Module, found: Iterable[Moments]) -> None:
    """Let all normalizers of a policy take moments of observations into account."""
    normalizers = [module for module in policy.modules() if isinstance(module, Normalizer)]
    for moments in found:
        for normalizer in normalizers:
            normalizer.merge(moments)
