"""Policy: a torch module that chooses actions; its parameters and buffers are published, saved and loaded."""

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
from trieye.run.media import number_of
from trieye.training.config import TrainingConfig
from trieye.training.spaces import Spaces, as_batch, columns_of, nested

ConfigT = TypeVar("ConfigT", bound=TrainingConfig, default=Any)
AgentT = TypeVar("AgentT", bound=AgentConfig, default=Any)

Obs = torch.Tensor | dict[str, torch.Tensor]
"""Observations `[n, ...]`; a dict with one tensor per key if the space is a `Dict`."""


@dataclass(slots=True)
class Context:
    """Inputs of `act` besides observations and state.

    Attributes:
        explore: Whether to explore; False in evaluations.
        env_steps: Argument of schedules: environment steps so far, or updates with `mode=train`.
        generator: Random generator on the policy's device. Draw all random numbers of `act` from it: it is saved, so
            a resumed run draws the same numbers.
    """

    explore: bool
    env_steps: int
    generator: torch.Generator


@dataclass(slots=True)
class Act:
    """Actions chosen by a policy.

    Attributes:
        action: `[n, ...]` in the form of the action space: int64 indices, or numbers within its bounds.
        extras: `[n, ...]` by name, stored with each row for training, such as log probability and value.
        state: State of a recurrent policy, tensors `[n, ...]` in the form of `initial_state`; passed to `act` with the
            next observations.
    """

    action: torch.Tensor
    extras: Mapping[str, torch.Tensor] = field(default_factory=dict)
    state: Any = None


class Policy(nn.Module, Generic[ConfigT, AgentT]):
    """A module that chooses actions, constructed from the config and the spaces alone.

    Engines, evaluations, explorers and `trieye.load_policy` call `cls(config, spaces)` and load the weights.
    Subclasses declare their config types, `class QPolicy(Policy[TrainConfig, DQNConfig])`, call
    `super().__init__(config, spaces)`, then create their networks.

    Args:
        config: The config of the run.
        spaces: The spaces of its environment.

    Attributes:
        config: The config of the run.
        agent: `config.agent`.
        spaces: The spaces of its environment.
        schedule_step: Argument of schedules in `predict`: `TrainEngine.schedule_step` at the time of the checkpoint.
        normalizer: Normalizes observations to mean 0 and standard deviation 1 with `env.normalize_observations`, else
            returns them unchanged. Call it in `act` and in the losses.
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
        """Choose actions; called in evaluation mode (no dropout, running statistics) and without gradients.

        Args:
            obs: `[n, ...]` on the policy's device.
            state: `Act.state` of the previous call, with the rows of `initial_state` where an episode begins; None for
                a policy without state.
            ctx: Exploration flag, schedule step and random generator.
        """
        raise NotImplementedError(f"{type(self).__name__} has no act()")

    def predict(self, obs: ArrayLike | Mapping[str, ArrayLike], deterministic: bool = True) -> NDArray[Any]:
        """Choose actions for NumPy observations, as environments of `trieye.make_env` return them.

        Args:
            obs: One observation or a batch `[n, ...]`; a dict of these if the space is a `Dict`.
            deterministic: Act as in evaluations. False explores, with a generator seeded from torch's global one.

        Returns:
            One action in the form of the action space, or a batch `[n, ...]`.

        Raises:
            ConfigurationError: The keys or shapes of `obs` do not match the space, or the policy is recurrent.
        """
        if self.initial_state(1) is not None:
            raise ConfigurationError(f"{_name(self)} is recurrent, and predict() does not carry its state; use act()")
        batch, is_single = as_batch(obs, self.spaces.observation)
        columns = {name: torch.from_numpy(column).to(self.device) for name, column in columns_of(batch).items()}
        seed = 0 if deterministic else int(torch.randint(1 << 62, ()))
        generator = torch.Generator(self.device).manual_seed(seed)
        with EvaluationMode(self), torch.inference_mode():
            act = self.act(nested(columns), None, Context(not deterministic, self.schedule_step, generator))
        actions = chosen_actions(self, act)
        return actions[0] if is_single else actions

    def initial_state(self, n: int) -> Any:
        """Return a recurrent policy's state at the start of `n` episodes: a tensor `[n, ...]` or a dict of them."""
        del n

    def on_episode(self, info: Mapping[str, Any]) -> Mapping[str, float]:
        """Return custom metrics of a finished episode, from the `info` of its last step.

        Names of trieye's own metrics, such as `return` and `length`, are errors.
        """
        del info
        return {}

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        tensors = chain(self.parameters(), self.buffers())  # lazy: a list of all of them takes four times as long
        return next((tensor.device for tensor in tensors), torch.device("cpu"))


_OWN_NAMES = {"return", "return_std", "length", "interrupted"} | {
    *("run", "checkpoint", "is_best", "step", "episodes", "returns"),
    *("return_mean", "return_min", "return_max", "length_mean"),
}
"""Names that trieye itself logs as `episode/<name>` or `eval/<name>`, and keys of the report of `trieye.evaluate`."""


def episode_metrics(policy: Policy, info: Mapping[str, Any], group: str) -> dict[str, float]:
    """Return the metrics of `Policy.on_episode` as numbers; `group` names them in errors: `episode` or `eval`.

    Raises:
        ConfigurationError: The result is not a dict, or trieye uses a returned name itself.
    """
    metrics: object = policy.on_episode(info)
    if not isinstance(metrics, Mapping):
        hint = "; is a `return` missing?" if metrics is None else ""
        raise ConfigurationError(
            f"{_name(policy)}.on_episode() returned {metrics!r:.80}; expected a dict of numbers{hint}"
        )
    if names := ", ".join(sorted(_OWN_NAMES & metrics.keys())):
        raise ConfigurationError(f"{_name(policy)}.on_episode() returns reserved names: {names}; rename them")
    return {name: number_of(f"{group}/{name}", value) for name, value in metrics.items()}


class EvaluationMode:
    """Context manager that puts all modules of a policy into evaluation mode and restores their modes on exit.

    It sets the flags directly: 9 µs for 11 modules, most of it for listing them.
    """

    def __init__(self, policy: Policy) -> None:
        modules = list(policy.modules())
        self._flags = [flags for module in modules if (flags := vars(module)).get("training")]
        # TorchScript modules keep the flag in C++
        self._scripted_modules = [module for module in modules if "training" not in vars(module) and module.training]

    def __enter__(self) -> None:
        self._set(is_training=False)

    def __exit__(self, *error: object) -> None:
        self._set(is_training=True)

    def _set(self, *, is_training: bool) -> None:
        for flags in self._flags:
            flags["training"] = is_training
        for module in self._scripted_modules:
            module.training = is_training


def chosen_actions(policy: Policy, act: object) -> NDArray[Any]:
    """Return the chosen actions `[n, ...]` as an array.

    Raises:
        ConfigurationError: `act()` did not return an `Act` with a tensor.
    """
    if isinstance(act, Act) and isinstance(act.action, torch.Tensor):
        return act.action.cpu().numpy()
    description = f"an Act with an action of type {_name(act.action)}" if isinstance(act, Act) else f"a {_name(act)}"
    raise ConfigurationError(f"{_name(policy)}.act() returned {description}; return trieye.Act(action) with a tensor")


def _name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def map_state(state: Any, change: Callable[..., torch.Tensor], *other_states: Any) -> Any:
    """Apply `change` to each tensor of a policy state, together with the same tensor of the other states."""
    if isinstance(state, dict):
        return {key: change(item, *(other[key] for other in other_states)) for key, item in state.items()}
    return None if state is None else change(state, *other_states)


class Moments(NamedTuple):
    """Number of observations, their mean, and their variance."""

    num: int
    mean: torch.Tensor
    variance: torch.Tensor

    @classmethod
    def of(cls, obs: torch.Tensor) -> Self:
        """Return the moments of observations `[n, ...]`, `n >= 1`."""
        obs = obs.float()
        return cls(len(obs), obs.mean(0), obs.var(0, unbiased=False))

    def cpu(self) -> Self:
        """Return a copy on the CPU, for other processes."""
        return self._replace(mean=self.mean.cpu(), variance=self.variance.cpu())


class Normalizer(nn.Module):
    """Normalizes observations by the mean and standard deviation of all observations collected so far, or of the data.

    The running moments are buffers: they are published, saved and loaded with the policy. Batches are merged by the
    parallel algorithm of Chan, Golub and LeVeque (1979). A deep copy of a policy, such as a target network, shares the
    normalizer, because the moments describe the observations, not the weights.

    Args:
        shape: Shape of one observation.
        clip: Bound of the absolute normalized values.
    """

    mean: torch.Tensor
    variance: torch.Tensor
    count: torch.Tensor

    def __init__(self, shape: tuple[int, ...], clip: float = 10.0) -> None:
        super().__init__()
        self.clip = clip
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("variance", torch.ones(shape))
        self.register_buffer("count", torch.tensor(0))  # an integer, because some devices (mps) have no float64

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """Normalize observations `[..., *shape]`."""
        return ((obs - self.mean) * (self.variance + 1e-8).rsqrt()).clamp(-self.clip, self.clip)

    def update(self, obs: torch.Tensor) -> None:
        """Update the moments with observations `[n, *shape]`."""
        if len(obs):
            self.merge(Moments.of(obs))

    @torch.no_grad()
    def merge(self, moments: Moments) -> None:
        """Merge moments of new observations into the running moments."""
        mean, variance = moments.mean.to(self.mean), moments.variance.to(self.mean)
        self.count += moments.num
        weight = moments.num / self.count  # of the new observations
        delta = mean - self.mean
        self.variance.lerp_(variance, weight).add_(delta.square() * weight * (1 - weight))
        self.mean.lerp_(mean, weight)


def merge_moments(policy: nn.Module, batches: Iterable[Moments]) -> None:
    """Merge moments of new observations into all normalizers of a policy."""
    normalizers = [module for module in policy.modules() if isinstance(module, Normalizer)]
    for moments in batches:
        for normalizer in normalizers:
            normalizer.merge(moments)
