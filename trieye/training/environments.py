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
from trieye.exceptions import ConfigurationError
from trieye.training.seeds import training_seed
from trieye.training.spaces import Spaces

_TRIED_STEPS = 10
_PLAIN = (gym.spaces.Box, gym.spaces.Discrete, gym.spaces.MultiDiscrete, gym.spaces.MultiBinary)
_ACTIONS = {"discrete": "Discrete ones from 0 on", "continuous": "a Box with bounds"}
_TROUBLES = (gym.error.Error, ImportError, ValueError, TypeError, AttributeError, AssertionError)


def make_env(config: EnvConfig, *, render_mode: str | None = None, seed: int | None = None) -> Any:
    """Make one environment with its wrappers.

    Discrete observations come out as one-hot vectors, also as parts of a `Dict`; others that are neither a `Box` nor a
    `Dict` come out flat.

    Args:
        config: What to make.
        render_mode: `rgb_array` for pictures; None for none.
        seed: Of its spaces, from which some environments draw; None leaves them unseeded.

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
    if config.atari:
        env = _wrapped(env, "env.atari", lambda: gym.wrappers.AtariPreprocessing(env))
    for name, wrapper in config.wrappers.items():
        if wrapper is not None:
            make = functools.partial(_class_of(name, wrapper), env, **wrapper.kwargs)
            env = _wrapped(env, f"env.wrappers.{name}", make)
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


def _own_vector(config: EnvConfig) -> VectorEnv[Any, Any, Any]:
    make: Any = gym.make_vec  # its types have no keyword arguments of the environment
    spec = gym.registry.get(config.id)
    if spec is not None and spec.vector_entry_point is None:
        raise ConfigurationError(f"env.vector=own: {config.id} has no vector form of its own; take env.vector=sync")
    try:
        envs: Any = make(config.id, config.num, vectorization_mode="vector_entry_point", **_arguments(config))
    except _TROUBLES as error:
        raise _cannot_be_made(config, error) from error
    mode = envs.metadata.get("autoreset_mode")
    if mode != AutoresetMode.NEXT_STEP:
        envs.close()
        raise ConfigurationError(
            f"env.vector=own: {config.id} resets its members in the mode {getattr(mode, 'value', mode)}; needed is "
            f"{AutoresetMode.NEXT_STEP.value}, which env.kwargs may ask it for; or take env.vector=sync"
        )
    space = envs.single_observation_space
    if _has_discrete_parts(space):
        one_hot: Any = OneHotParts  # it has what is used of a TransformObservation
        return vector_wrappers.VectorizeTransformObservation(envs, one_hot)
    return envs if isinstance(space, gym.spaces.Box | gym.spaces.Dict) else vector_wrappers.FlattenObservation(envs)


def spaces_of(env: Any) -> Spaces:
    """Return the spaces of an environment, or of one member of a vector."""
    of_vector = isinstance(env, VectorEnv)
    observation = env.single_observation_space if of_vector else env.observation_space
    return Spaces(observation, env.single_action_space if of_vector else env.action_space)


def action_kind(space: Any) -> ActionKind | None:
    """Return what an action is: `discrete`, indices from 0 on; `continuous`, numbers within bounds; None otherwise."""
    if isinstance(space, gym.spaces.Discrete):
        return "discrete" if space.start == 0 else None
    return "continuous" if isinstance(space, gym.spaces.Box) and space.is_bounded() else None


@functools.cache
def _looked_at(made: str) -> tuple[Spaces, bool, str | None]:
    """Return an environment's spaces, whether it makes pictures, what it does wrong; once for a sweep over seeds."""
    config = EnvConfig.model_validate_json(made)
    if config.vector == "own":
        with contextlib.closing(_own_vector(config.model_copy(update={"num": 1}))) as envs:
            return spaces_of(envs), True, None
    with contextlib.closing(make_env(config)) as env:
        is_own = type(env.unwrapped).__module__.partition(".")[0] not in {"gymnasium", "ale_py"}
        has_pictures = "rgb_array" in env.metadata.get("render_modes", ())
        return spaces_of(env), has_pictures, _fault_of(env.unwrapped) if is_own else None


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
