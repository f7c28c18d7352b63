"""Environments: made as a config says, alone or many at once, and refused where no agent could use them."""

import contextlib
import functools
import traceback
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces.utils import flatten, flatten_space
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.wrappers import vector as vector_wrappers

from trieye.config.agent import ActionKind
from trieye.config.base import did_you_mean, nearest
from trieye.config.env import EnvConfig, WrapperConfig
from trieye.exceptions import ConfigurationError, EnvironmentLostError
from trieye.training.seeds import training_seed
from trieye.training.spaces import Spaces

_TRIED_STEPS = 10
_END_S = 2.0
_WITH_STATISTICS = {
    "NormalizeObservation": "env.normalize_observations",
    "NormalizeReward": "env.normalize_rewards",
}
_PLAIN = (gym.spaces.Box, gym.spaces.Discrete, gym.spaces.MultiDiscrete, gym.spaces.MultiBinary)
_ACTIONS = {"discrete": "Discrete ones from 0 on", "continuous": "a Box of floats with bounds"}
_TROUBLES = (gym.error.Error, ImportError, ValueError, TypeError, AttributeError, AssertionError)


def make_env(config: EnvConfig, *, render_mode: str | None = None, seed: int | None = None) -> Any:
    """Make one environment with its wrappers.

    Discrete observations come out as one-hot vectors, also as parts of a `Dict`; others that are neither a `Box` nor a
    `Dict` come out flat.

    Args:
        config: What to make.
        render_mode: `rgb_array` for pictures; None for none.
        seed: Seed of its spaces, which some environments sample; None leaves them unseeded.

    Raises:
        ConfigurationError: There is no such environment or wrapper, or it cannot be made.
    """
    if config.atari:
        _check_atari(config)
    arguments = _arguments(config) | ({"render_mode": render_mode} if render_mode else {})  # which some do not take
    try:
        env: Any = gym.make(config.id, disable_env_checker=True, **arguments)
    except _TROUBLES as error:
        raise _cannot_be_made(config, error) from error
    _refuse_own_statistics(env, f"env.id={config.id}")
    if config.atari:
        env = _wrapped(env, "env.atari", lambda: gym.wrappers.AtariPreprocessing(env))
    for name, wrapper in config.wrappers.items():
        if wrapper is not None:
            make = functools.partial(_class_of(name, wrapper), env, **wrapper.kwargs)
            env = _wrapped(env, f"env.wrappers.{name}", make)
            _refuse_own_statistics(env, f"env.wrappers.{name}.name={wrapper.name}")
    if config.frame_stack is not None:
        env = gym.wrappers.FrameStackObservation(env, config.frame_stack)
    space = env.observation_space
    if not isinstance(space, gym.spaces.Box | gym.spaces.Dict) and space.is_np_flattenable:
        env = gym.wrappers.FlattenObservation(env)
    elif _has_discrete_parts(space):
        env = OneHotParts(env)
    if seed is not None:
        seed_spaces(env, seed)
    return env


def _has_discrete_parts(space: Any) -> bool:
    return isinstance(space, gym.spaces.Dict) and any(map(_is_discrete, space.spaces.values()))


def _is_discrete(space: Any) -> bool:
    return isinstance(space, gym.spaces.Discrete | gym.spaces.MultiDiscrete)


def _with_one_hot_parts(space: Any) -> Any:
    parts = space.spaces.items()
    return gym.spaces.Dict([(key, flatten_space(part) if _is_discrete(part) else part) for key, part in parts])


class OneHotParts(gym.ObservationWrapper[Any, Any, Any]):
    """Makes one-hot vectors of the discrete parts of a `Dict`: their numbers mean nothing to a network."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.observation_space = _with_one_hot_parts(env.observation_space)

    @property
    def func(self) -> Callable[[Any], Any]:
        """What `VectorizeTransformObservation` applies to the observation of each member."""
        return self.observation

    def observation(self, observation: Any) -> Any:
        """Return the observation of one environment."""
        spaces: Any = self.env.observation_space
        return {
            key: flatten(spaces[key], part) if _is_discrete(spaces[key]) else part for key, part in observation.items()
        }


def seed_spaces(env: Any, seed: int) -> None:
    """Seed the action and observation spaces of an environment, or a vector, and of its wrappers."""
    layer = env
    while layer is not None:
        for number, kind in enumerate(("action_space", "observation_space")):
            for space in (getattr(layer, kind, None), getattr(layer, f"single_{kind}", None)):
                if isinstance(space, gym.Space):
                    space.seed(training_seed(seed, number))  # not that of `reset`: the draws would be correlated
        layer = layer.env if isinstance(layer, gym.Wrapper | VectorWrapper) else None


def _arguments(config: EnvConfig) -> dict[str, Any]:
    limits = {"max_episode_steps": config.max_episode_steps} if config.max_episode_steps is not None else {}
    skips = {"frameskip": 1} if config.atari else {}  # the wrapper skips, and needs the frames between
    return {**limits, **skips, **config.kwargs}


def _cannot_be_made(config: EnvConfig, error: BaseException) -> ConfigurationError:
    if isinstance(error, gym.error.UnregisteredEnv) and (match := nearest(config.id, gym.registry)):
        return ConfigurationError(f"env.id={config.id} is not registered with Gymnasium; did you mean {match!r}?")
    return ConfigurationError(f"env.id={config.id} cannot be made: {_line(error)}")


def _line(error: object) -> str:
    """Return what an error says, in one line; a bare assertion, as Gymnasium 1.1 has them, by what it asserts."""
    if isinstance(error, Exception) and not str(error):
        return f"{type(error).__name__} in `{traceback.extract_tb(error.__traceback__)[-1].line}`"
    return " ".join(str(error).split())


def _check_atari(config: EnvConfig) -> None:
    try:
        import_module("ale_py")  # registers its games
        import_module("cv2")
    except ImportError as error:
        raise ConfigurationError(
            f"env.atari=true needs ale-py and OpenCV: pip install 'trieye[atari]' ({error})"
        ) from error
    spec = gym.registry.get(config.id.rpartition(":")[2])
    if spec is not None and not str(spec.entry_point).startswith("ale_py"):
        raise ConfigurationError(
            f"env.atari=true: {config.id} is no game of ale-py, such as ALE/Pong-v5; leave env.atari out"
        )


def _class_of(name: str, wrapper: WrapperConfig) -> Callable[..., Any]:
    module, colon, attribute = wrapper.name.rpartition(":")
    try:
        home: Any = import_module(module) if colon else gym.wrappers
        found: Callable[..., Any] = getattr(home, attribute)
    except (ImportError, AttributeError) as error:
        known = [] if colon else gym.wrappers.__all__
        hint = did_you_mean(attribute, known)
        raise ConfigurationError(
            f"env.wrappers.{name}.name={wrapper.name}: there is no such class{hint} (a class of gymnasium.wrappers, or "
            f"module:Class): {error}"
        ) from error
    return found


def _wrapped(env: Any, key: str, make: Callable[[], Any]) -> Any:
    try:
        return make()
    except _TROUBLES as error:
        env.close()
        raise ConfigurationError(f"{key}: it does not go around this environment: {_line(error)}") from error


def _refuse_own_statistics(env: Any, key: str) -> None:
    """Refuse wrappers with their own moving statistics, which evaluations and explorers would not share."""
    while isinstance(env, gym.Wrapper | VectorWrapper):
        for name, instead in _WITH_STATISTICS.items():
            if isinstance(env, (getattr(gym.wrappers, name), getattr(vector_wrappers, name))):
                env.close()
                raise ConfigurationError(
                    f"{key}: {name} keeps moving statistics in each environment, and evaluations and explorers would "
                    f"have others than the training; leave it out, and set {instead}=true"
                )
        env = env.env


def make_envs(config: EnvConfig, *, seed: int | None = None) -> VectorEnv[Any, Any, Any]:
    """Make `env.num` environments that are stepped together and reset in the step after the end of an episode.

    Args:
        config: What to make.
        seed: Of the spaces of the first environment, the others count on from it; None leaves them unseeded.

    Raises:
        ConfigurationError: They cannot be made, or their own vector form resets them in another way.
    """
    if config.vector == "own":
        envs = _own_vector(config)
        if seed is not None:
            seed_spaces(envs, seed)
        return envs
    seeds = [None if seed is None else seed + member for member in range(config.num)]
    thunks = [functools.partial(make_env, config, seed=one) for one in seeds]
    if config.vector == "async":  # a fork would take the threads of this process with it, half alive
        return AsyncVectorEnv(thunks, context="forkserver", autoreset_mode=AutoresetMode.NEXT_STEP)
    return SyncVectorEnv(thunks, copy=False, autoreset_mode=AutoresetMode.NEXT_STEP)


class naming_lost_members:  # noqa: N801 - a context, which a generator would make cost ten times as much
    """Name the lost member of a vector and how its process ended, instead of Gymnasium's pipe error.

    Args:
        envs: The environments.
        config: What they are.
    """

    def __init__(self, envs: Any, config: EnvConfig) -> None:
        self._envs, self._config = envs, config

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Raise `EnvironmentLostError` instead of such an error."""
        if isinstance(error, ConnectionError | EOFError) and isinstance(self._envs, AsyncVectorEnv):
            raise EnvironmentLostError(self._what_happened()) from error

    def _what_happened(self) -> str:
        for process in self._envs.processes:
            process.join(_END_S / len(self._envs.processes))  # its pipe is closed before it has ended
        ended = {n: code for n, process in enumerate(self._envs.processes) if (code := process.exitcode) is not None}
        said = [f"{n} ({f'signal {-code}' if code < 0 else f'exit code {code}'})" for n, code in ended.items()]
        return (
            f"{self._config.id}: the process of an environment is gone (env.vector=async): "
            f"{', '.join(said) or 'its pipe is closed'}; an out-of-memory killer or a crash in C ends it without a word"
        )


def close_envs(envs: VectorEnv[Any, Any, Any], *, in_mid_call: bool) -> None:
    """Close environments; `in_mid_call`: one of their calls was cut off, and may never end."""
    if not (isinstance(envs, AsyncVectorEnv) and in_mid_call):
        envs.close()
        return
    # Gymnasium would wait for the call, and for processes that block SIGTERM, as those that Ray's workers start do
    for process, pipe in zip(envs.processes, envs.parent_pipes, strict=True):
        process.kill()
        if pipe is not None:
            pipe.close()
    for process in envs.processes:
        process.join(_END_S)
    envs.closed = True


def _own_vector(config: EnvConfig) -> VectorEnv[Any, Any, Any]:
    make: Any = gym.make_vec  # its types have no keyword arguments of the environment
    spec = gym.registry.get(config.id)
    if spec is not None and spec.vector_entry_point is None:
        raise ConfigurationError(f"env.vector=own: {config.id} has no vector form of its own; take env.vector=sync")
    try:
        envs: Any = make(config.id, config.num, vectorization_mode="vector_entry_point", **_arguments(config))
    except Exception as error:  # the border to the user's environment
        raise _cannot_be_made(config, error) from error
    if not isinstance(envs, VectorEnv):
        kind = f"{type(envs).__module__}.{type(envs).__qualname__}"
        raise ConfigurationError(
            f"env.vector=own: {config.id} makes a {kind}, which is no gymnasium.vector.VectorEnv; pools such as "
            "EnvPool need an adapter of that class, or take env.vector=sync"
        )
    _refuse_own_statistics(envs, f"env.id={config.id}")
    mode = envs.metadata.get("autoreset_mode")
    if mode != AutoresetMode.NEXT_STEP:
        envs.close()
        raise ConfigurationError(
            f"env.vector=own: {config.id} resets its members in the mode {getattr(mode, 'value', mode)}; needed is "
            f"{AutoresetMode.NEXT_STEP.value}, which env.kwargs may ask it for; or take env.vector=sync"
        )
    space = envs.single_observation_space
    if _has_discrete_parts(space):
        one_hot: Any = OneHotParts  # it has the used part of a TransformObservation
        return vector_wrappers.VectorizeTransformObservation(envs, one_hot)
    return envs if isinstance(space, gym.spaces.Box | gym.spaces.Dict) else vector_wrappers.FlattenObservation(envs)


def spaces_of(env: Any) -> Spaces:
    """Return the spaces of an environment, or of one member of a vector; continuous actions are float32."""
    of_vector = isinstance(env, VectorEnv)
    observation = env.single_observation_space if of_vector else env.observation_space
    return Spaces(observation, _in_float32(env.single_action_space if of_vector else env.action_space))


def _in_float32(space: Any) -> Any:
    """Convert a Box of other floats to float32, the dtype of networks, with bounds rounded inwards."""
    if not isinstance(space, gym.spaces.Box) or space.dtype.kind != "f" or space.dtype == np.float32:
        return space
    with np.errstate(over="ignore"):
        low, high = space.low.astype(np.float32), space.high.astype(np.float32)
    high = np.where(high > space.high, np.nextafter(high, np.float32(-np.inf)), high)
    low = np.where(low < space.low, np.nextafter(low, np.float32(np.inf)), low)
    return gym.spaces.Box(np.minimum(low, high), high, dtype=np.float32)


def action_kind(space: Any) -> ActionKind | None:
    """Return the kind of action: `discrete`, indices from 0; `continuous`, floats within bounds; None otherwise."""
    if isinstance(space, gym.spaces.Discrete):
        return "discrete" if space.start == 0 else None
    is_continuous = isinstance(space, gym.spaces.Box) and space.dtype.kind == "f" and space.is_bounded()
    return "continuous" if is_continuous else None


@functools.cache
def _looked_at(made: str) -> tuple[Spaces, bool, str | None]:
    """Return an environment's spaces, whether it makes pictures, what it does wrong; once for a sweep over seeds."""
    config = EnvConfig.model_validate_json(made)
    if config.vector == "own":
        _check_own_vector(config)
    with contextlib.closing(make_env(config)) as env:
        is_own = type(env.unwrapped).__module__.partition(".")[0] not in {"gymnasium", "ale_py"}
        has_pictures = "rgb_array" in env.metadata.get("render_modes", ())
        return spaces_of(env), has_pictures, _fault_of(env.unwrapped) if is_own else None


def _check_own_vector(config: EnvConfig) -> None:
    """Refuse a vector form whose spaces differ from the single form, which evaluations step."""
    with contextlib.closing(_own_vector(config)) as envs:
        of_vector = spaces_of(envs)
    spec = gym.registry.get(config.id)
    if spec is not None and spec.entry_point is None:
        raise ConfigurationError(
            f"env.vector=own: {config.id} has no single form, which evaluations step; register it with an entry_point, "
            "too"
        )
    with contextlib.closing(make_env(config)) as env:
        of_single = spaces_of(env)
    for name, one, other in zip(Spaces._fields, of_vector, of_single, strict=True):
        if not _are_alike(one, other):
            raise ConfigurationError(
                f"env.vector=own: {config.id} has the {name} space {one} in its vector form and {other} in its single "
                "form, which evaluations step"
            )


def _are_alike(one: Any, other: Any) -> bool:
    """Return whether a policy for one space fits the other; bounds may differ."""
    if isinstance(one, gym.spaces.Dict) and isinstance(other, gym.spaces.Dict):
        return list(one) == list(other) and all(_are_alike(one[key], other[key]) for key in one)
    if isinstance(one, gym.spaces.Box) and isinstance(other, gym.spaces.Box):
        return (one.shape, one.dtype) == (other.shape, other.dtype)
    return bool(one == other)


def spaces_of_config(config: EnvConfig) -> Spaces:
    """Return the spaces of an environment, which is made and closed for it if that was not done before.

    Raises:
        ConfigurationError: It cannot be made.
    """
    return _looked_at(_one_of(config).model_dump_json())[0]


def _one_of(config: EnvConfig) -> EnvConfig:
    return config.model_copy(update={"num": 1, "eval_episodes": 1, "eval_video": False})


def _fault_of(env: Any) -> str | None:
    """Return what the checker of Gymnasium finds wrong with an environment that is not of Gymnasium."""
    from gymnasium.utils.env_checker import check_env as checker_of_gymnasium

    try:
        with warnings.catch_warnings(action="ignore"):  # matters of taste
            checker_of_gymnasium(env, skip_render_check=True)
            return _fault_of_steps(env)
    except Exception as error:  # noqa: BLE001 - the border to the user's environment
        return f"{type(error).__name__}: {_line(error)}"


def _fault_of_steps(env: Any) -> str | None:
    """Return what is wrong with the observations of some steps, of which Gymnasium's checker only warns."""
    space = env.observation_space
    env.action_space.seed(0)
    env.reset(seed=0)
    for _ in range(_TRIED_STEPS):
        obs, _, terminated, truncated, _ = env.step(env.action_space.sample())
        same_type = np.asarray(obs, space.dtype) if isinstance(space, gym.spaces.Box) else obs  # float64 does no harm
        if not space.contains(same_type):
            return f"step() returned the observation {_line(repr(obs))}, which is not in {space}"
        if terminated or truncated:
            env.reset()
    return None


def check_env(config: EnvConfig, actions: tuple[ActionKind, ...]) -> None:
    """Make an environment and close it.

    Args:
        config: What to make.
        actions: What the agent can choose among.

    Raises:
        ConfigurationError: It cannot be made or breaks Gymnasium's rules, or the agent cannot use its spaces.
    """
    spaces, has_pictures, fault = _looked_at(_one_of(config).model_dump_json())
    if fault is not None:
        raise ConfigurationError(f"env.id={config.id} is not as Gymnasium wants an environment: {fault}")
    if config.eval_video and not has_pictures:
        raise ConfigurationError(
            f"env.eval_video=true: {config.id} makes no pictures, since `rgb_array` is not among its render_modes"
        )
    held = spaces.observation
    parts = held.spaces.values() if isinstance(held, gym.spaces.Dict) else (held,)
    if not all(isinstance(part, _PLAIN) for part in parts):
        raise ConfigurationError(
            f"env.id={config.id} has observations {held}; needed are Box, Discrete, MultiDiscrete, MultiBinary, or a "
            "Dict of those; env.wrappers.flat.name=FlattenObservation makes one vector of them"
        )
    if config.normalize_observations and not isinstance(held, gym.spaces.Box):
        raise ConfigurationError(f"env.normalize_observations=true needs observations in a Box, and these are {held}")
    kind = action_kind(spaces.action)
    if kind not in actions:
        wanted = " or ".join(_ACTIONS[one] for one in actions)
        raise ConfigurationError(f"env.id={config.id} has actions {spaces.action}; this agent needs {wanted}")
