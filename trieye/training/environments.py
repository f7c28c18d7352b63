"""Environments: creates them from the config, single or vectorized, and rejects unusable ones."""

import contextlib
import dataclasses
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
from trieye.config.packages import load
from trieye.exceptions import ConfigurationError, EnvironmentLostError
from trieye.training.envpool import EnvPoolVector
from trieye.training.seeds import training_seed
from trieye.training.spaces import Spaces

_VECTOR_FORMS = ("own", "envpool")
_CHECKED_STEPS = 10
_JOIN_TIMEOUT_S = 2.0
_STATISTICS_WRAPPERS = {
    "NormalizeObservation": "env.normalize_observations",
    "NormalizeReward": "env.normalize_rewards",
}
_SUPPORTED_PARTS = (gym.spaces.Box, gym.spaces.Discrete, gym.spaces.MultiDiscrete, gym.spaces.MultiBinary)
_ACTION_DESCRIPTIONS = {"discrete": "a Discrete space that starts at 0", "continuous": "a bounded Box of floats"}
_MAKE_ERRORS = (gym.error.Error, ImportError, ValueError, TypeError, AttributeError, AssertionError)


def make_env(config: EnvConfig, *, render_mode: str | None = None, seed: int | None = None) -> Any:
    """Create one environment with its wrappers.

    Discrete observations become one-hot vectors, also as parts of a `Dict`. Other observations that are neither a
    `Box` nor a `Dict` are flattened.

    Args:
        config: Config of the environment.
        render_mode: `rgb_array` for frames; None renders nothing.
        seed: Seed of its spaces, for environments that sample from them; None leaves them unseeded.

    Raises:
        ConfigurationError: The environment or a wrapper does not exist, or cannot be created.
    """
    atari_spec = _atari_spec(config) if config.atari else None
    arguments = _arguments(config) | ({"render_mode": render_mode} if render_mode else {})  # not accepted by all
    try:
        env: Any = gym.make(atari_spec or config.id, disable_env_checker=True, **arguments)
    except _MAKE_ERRORS as error:
        raise _creation_error(config, error) from error
    _reject_running_statistics(env, f"env.id={config.id}")
    if config.atari:
        env = _wrap(env, "env.atari", lambda: gym.wrappers.AtariPreprocessing(env))
    for name, wrapper in config.wrappers.items():
        if wrapper is not None:
            make_wrapper = functools.partial(_class_of(name, wrapper), env, **wrapper.kwargs)
            env = _wrap(env, f"env.wrappers.{name}", make_wrapper)
            _reject_running_statistics(env, f"env.wrappers.{name}.name={wrapper.name}")
    if config.frame_stack is not None:
        env = gym.wrappers.FrameStackObservation(env, config.frame_stack)
    space = env.observation_space
    if not isinstance(space, gym.spaces.Box | gym.spaces.Dict) and space.is_np_flattenable:
        env = gym.wrappers.FlattenObservation(env)
    elif _has_discrete_parts(space):
        env = OneHotParts(env)
    if env.action_space.dtype == np.float16:  # in which a Box does not contain float32 actions
        env = gym.wrappers.TransformAction(env, np.float16, _to_float32(env.action_space))
    if seed is not None:
        seed_spaces(env, seed)
    return env


def _has_discrete_parts(space: Any) -> bool:
    return isinstance(space, gym.spaces.Dict) and any(map(_is_discrete, space.spaces.values()))


def _is_discrete(space: Any) -> bool:
    return isinstance(space, gym.spaces.Discrete | gym.spaces.MultiDiscrete)


class OneHotParts(gym.ObservationWrapper[Any, Any, Any]):
    """Converts the discrete parts of a `Dict` to one-hot vectors, because networks cannot interpret their numbers."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        parts = env.observation_space.spaces.items()
        self.observation_space = gym.spaces.Dict(
            [(key, flatten_space(part) if _is_discrete(part) else part) for key, part in parts]
        )

    @property
    def func(self) -> Callable[[Any], Any]:
        """Function that `VectorizeTransformObservation` applies to the observation of each member."""
        return self.observation

    def observation(self, observation: Any) -> Any:
        """Return the converted observation of one environment."""
        spaces: Any = self.env.observation_space
        return {
            key: flatten(spaces[key], part) if _is_discrete(spaces[key]) else part for key, part in observation.items()
        }


def seed_spaces(env: Any, seed: int) -> None:
    """Seed the action and observation spaces of an environment or a vector environment, and of its wrappers."""
    layer = env
    while layer is not None:
        for index, kind in enumerate(("action_space", "observation_space")):
            for space in (getattr(layer, kind, None), getattr(layer, f"single_{kind}", None)):
                if isinstance(space, gym.Space):
                    space.seed(training_seed(seed, index))  # differs from the seed of `reset`: no correlated draws
        layer = layer.env if isinstance(layer, gym.Wrapper | VectorWrapper) else None


def _arguments(config: EnvConfig) -> dict[str, Any]:
    limits = {"max_episode_steps": config.max_episode_steps} if config.max_episode_steps is not None else {}
    skips = {"frameskip": 1} if config.atari else {}  # the wrapper skips frames, and needs each of them
    return {**limits, **skips, **config.kwargs}


def _creation_error(config: EnvConfig, error: BaseException) -> ConfigurationError:
    if isinstance(error, gym.error.UnregisteredEnv) and (match := nearest(config.id, gym.registry)):
        return ConfigurationError(f"env.id={config.id} is not registered with Gymnasium; did you mean {match!r}?")
    return ConfigurationError(f"env.id={config.id} cannot be created: {_one_line(error)}")


def _one_line(error: object) -> str:
    """Return an error on a single line; an assertion without a message (Gymnasium 1.1 has some) as its source."""
    if isinstance(error, Exception) and not str(error):
        return f"{type(error).__name__} in `{traceback.extract_tb(error.__traceback__)[-1].line}`"
    return " ".join(str(error).split())


def _atari_spec(config: EnvConfig) -> gym.envs.registration.EnvSpec | None:
    """Return the spec of an Atari game with the class whose state can be saved; None if the state is incomplete."""
    load("ale_py", "env.atari=true")  # registers the Atari games
    load("cv2", "env.atari=true")
    spec = gym.registry.get(config.id.rpartition(":")[2])
    if spec is not None and not str(spec.entry_point).startswith("ale_py"):
        raise ConfigurationError(f"env.atari=true: {config.id} is not an ale-py game; leave out env.atari")
    # ale-py 0.12 does not save the action that a sticky one repeats
    if spec is None or (spec.kwargs | config.kwargs).get("repeat_action_probability") != 0:
        return None
    return dataclasses.replace(spec, entry_point="trieye.training.atari_game:AtariGame")


def _class_of(name: str, wrapper: WrapperConfig) -> Callable[..., Any]:
    module, colon, attribute = wrapper.name.rpartition(":")
    try:
        namespace: Any = import_module(module) if colon else gym.wrappers
        wrapper_class: Callable[..., Any] = getattr(namespace, attribute)
    except (ImportError, AttributeError) as error:
        hint = did_you_mean(attribute, [] if colon else gym.wrappers.__all__)
        raise ConfigurationError(
            f"env.wrappers.{name}.name={wrapper.name}: the class does not exist{hint} (expected a class of "
            f"gymnasium.wrappers, or module:Class): {error}"
        ) from error
    return wrapper_class


def _wrap(env: Any, key: str, make_wrapper: Callable[[], Any]) -> Any:
    try:
        return make_wrapper()
    except _MAKE_ERRORS as error:
        env.close()
        raise ConfigurationError(f"{key}: cannot wrap this environment: {_one_line(error)}") from error


def _reject_running_statistics(env: Any, key: str) -> None:
    """Reject wrappers with private running statistics, which evaluations and explorers would not share."""
    while isinstance(env, gym.Wrapper | VectorWrapper):
        for name, setting in _STATISTICS_WRAPPERS.items():
            if isinstance(env, (getattr(gym.wrappers, name), getattr(vector_wrappers, name))):
                env.close()
                raise ConfigurationError(
                    f"{key}: {name} has separate running statistics in each environment, so that evaluations and "
                    f"explorers would normalize differently; leave it out, and set {setting}=true"
                )
        env = env.env


def make_envs(config: EnvConfig, *, seed: int | None = None) -> VectorEnv[Any, Any, Any]:
    """Create a vector environment of `env.num` members with next-step autoreset.

    Args:
        config: Config of the environments.
        seed: Seed of the spaces of member 0, member `i` has `seed + i`; None leaves them unseeded.

    Raises:
        ConfigurationError: The environments cannot be created, or their vector form has another autoreset mode.
    """
    if config.vector in _VECTOR_FORMS:
        envs = _vector_form(config)
        if seed is not None:
            seed_spaces(envs, seed)
        return envs
    seeds: Any = [None] * config.num if seed is None else range(seed, seed + config.num)
    thunks = [functools.partial(make_env, config, seed=member_seed) for member_seed in seeds]
    if config.vector == "async":  # fork would copy this process in the middle of its threads' work
        return _AsyncVector(thunks, context="forkserver", autoreset_mode=AutoresetMode.NEXT_STEP)
    return _SyncVector(thunks, copy=False, autoreset_mode=AutoresetMode.NEXT_STEP)


def _with_separate_infos(base: type[Any]) -> Callable[..., VectorEnv[Any, Any, Any]]:
    """Return a vector class whose infos contain the `info` of each member under its number.

    Gymnasium would convert their values to arrays. The class has the name of its base, which saved states contain.
    """

    def add_info(self: Any, infos: dict[int, Any], info: dict[str, Any], number: int) -> dict[int, Any]:
        del self
        infos[number] = info
        return infos

    return type(base.__name__, (base,), {"_add_info": add_info, "__module__": base.__module__})


_SyncVector, _AsyncVector = map(_with_separate_infos, (SyncVectorEnv, AsyncVectorEnv))


class naming_lost_members:  # noqa: N801 - a class: a generator-based context manager takes ten times as long
    """Context manager that reports a dead member and its exit code, instead of Gymnasium's pipe error.

    Args:
        envs: The vector environment.
        config: Config of the environments.
    """

    def __init__(self, envs: Any, config: EnvConfig) -> None:
        self._envs, self._config = envs, config

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Raise `EnvironmentLostError` instead of a pipe error."""
        if isinstance(error, ConnectionError | EOFError) and isinstance(self._envs, AsyncVectorEnv):
            raise EnvironmentLostError(self._exit_description()) from error

    def _exit_description(self) -> str:
        for process in self._envs.processes:
            process.join(_JOIN_TIMEOUT_S / len(self._envs.processes))  # a dying process closes its pipe before it exits
        ended = {n: code for n, process in enumerate(self._envs.processes) if (code := process.exitcode) is not None}
        exits = [f"{n} ({f'signal {-code}' if code < 0 else f'exit code {code}'})" for n, code in ended.items()]
        return (
            f"{self._config.id}: an environment process died (env.vector=async): "
            f"{', '.join(exits) or 'its pipe is closed'}; an out-of-memory killer or a crash in C leaves no traceback"
        )


def close_envs(envs: VectorEnv[Any, Any, Any], *, in_mid_call: bool) -> None:
    """Close environments; `in_mid_call`: a call was interrupted and may never return."""
    if not (isinstance(envs, AsyncVectorEnv) and in_mid_call):
        envs.close()
        return
    # envs.close() would wait for the call, and for processes that block SIGTERM, as children of Ray workers do
    for process, pipe in zip(envs.processes, envs.parent_pipes, strict=True):
        process.kill()
        if pipe is not None:
            pipe.close()
    for process in envs.processes:
        process.join(_JOIN_TIMEOUT_S)
    envs.closed = True


def _vector_form(config: EnvConfig) -> VectorEnv[Any, Any, Any]:
    """Return the vector form of an environment, its own or that of EnvPool."""
    envs: VectorEnv[Any, Any, Any] = EnvPoolVector(config) if config.vector == "envpool" else _own_vector(config)
    space = envs.single_observation_space
    if _has_discrete_parts(space):
        one_hot: Any = OneHotParts  # it has the attributes of TransformObservation that the wrapper uses
        return vector_wrappers.VectorizeTransformObservation(envs, one_hot)
    return envs if isinstance(space, gym.spaces.Box | gym.spaces.Dict) else vector_wrappers.FlattenObservation(envs)


def _own_vector(config: EnvConfig) -> VectorEnv[Any, Any, Any]:
    make_vector: Any = gym.make_vec  # its annotations omit the environment's keyword arguments
    spec = gym.registry.get(config.id)
    if spec is not None and spec.vector_entry_point is None:
        raise ConfigurationError(f"env.vector=own: {config.id} has no vector form; set env.vector=sync")
    try:
        envs: Any = make_vector(config.id, config.num, vectorization_mode="vector_entry_point", **_arguments(config))
    except Exception as error:  # the border to the user's environment
        raise _creation_error(config, error) from error
    if not isinstance(envs, VectorEnv):
        kind = f"{type(envs).__module__}.{type(envs).__qualname__}"
        raise ConfigurationError(
            f"env.vector=own: {config.id} makes a {kind}, not a gymnasium.vector.VectorEnv; write an adapter, or set "
            "env.vector=sync, or env.vector=envpool if EnvPool has it"
        )
    _reject_running_statistics(envs, f"env.id={config.id}")
    mode = envs.metadata.get("autoreset_mode")
    if mode != AutoresetMode.NEXT_STEP:
        envs.close()
        raise ConfigurationError(
            f"env.vector=own: {config.id} has autoreset mode {getattr(mode, 'value', mode)}; required is "
            f"{AutoresetMode.NEXT_STEP.value}: select it with env.kwargs if possible, or set env.vector=sync"
        )
    return envs


def spaces_of(env: Any) -> Spaces:
    """Return the spaces of one environment, or of one member of a vector; continuous actions are float32."""
    of_vector = isinstance(env, VectorEnv)
    observation = env.single_observation_space if of_vector else env.observation_space
    return Spaces(observation, _to_float32(env.single_action_space if of_vector else env.action_space))


def _to_float32(space: Any) -> Any:
    """Convert a Box of another float type to float32, the dtype of networks, with bounds rounded inwards."""
    if not isinstance(space, gym.spaces.Box) or space.dtype.kind != "f" or space.dtype == np.float32:
        return space
    with np.errstate(over="ignore"):
        low, high = space.low.astype(np.float32), space.high.astype(np.float32)
    high = np.where(high > space.high, np.nextafter(high, np.float32(-np.inf)), high)
    low = np.where(low < space.low, np.nextafter(low, np.float32(np.inf)), low)
    return gym.spaces.Box(np.minimum(low, high), high, dtype=np.float32)


def action_kind(space: Any) -> ActionKind | None:
    """Return the kind of action: `discrete` (indices from 0), `continuous` (floats within bounds), or None."""
    if isinstance(space, gym.spaces.Discrete):
        return "discrete" if space.start == 0 else None
    is_continuous = isinstance(space, gym.spaces.Box) and space.dtype.kind == "f" and space.is_bounded()
    return "continuous" if is_continuous else None


@functools.cache
def _inspect(config_json: str) -> tuple[Spaces, bool, str | None]:
    """Return an environment's spaces, whether it can render, and its first rule violation; cached for sweeps."""
    config = EnvConfig.model_validate_json(config_json)
    spec = gym.registry.get(config.id)
    if config.vector in _VECTOR_FORMS and spec is not None and spec.entry_point is None:
        raise ConfigurationError(
            f"env.vector={config.vector}: {config.id} has no single form, which evaluations need; register it with an "
            "entry_point as well"
        )
    with contextlib.closing(make_env(config)) as env:
        _check_forms(config, spaces_of(env))
        is_own = not config.atari and type(env.unwrapped).__module__.partition(".")[0] not in {"gymnasium", "ale_py"}
        has_pictures = "rgb_array" in env.metadata.get("render_modes", ())
        _check_wrappers_of_project(config, env)
        return spaces_of(env), has_pictures, _rule_violation(env) if is_own else None


def _check_wrappers_of_project(config: EnvConfig, env: Any) -> None:
    """Reject a wrapper that changes the shape of observations but not the space; other values need not fit it."""
    names = [f"env.wrappers.{name}" for name, one in config.wrappers.items() if one and ":" in one.name]
    space = env.observation_space
    if names and isinstance(space, gym.spaces.Box) and (shape := np.shape(env.reset(seed=0)[0])) != space.shape:
        raise ConfigurationError(
            f"{', '.join(names)}: reset() returned the shape {list(shape)}, and observation_space has "
            f"{list(space.shape)}; set it in __init__"
        )


def _check_forms(config: EnvConfig, spaces: Spaces) -> None:
    """Reject a vector form, and wrappers with `training_only`, whose spaces differ from those of evaluations."""
    if config.vector in _VECTOR_FORMS:
        with contextlib.closing(_vector_form(config)) as envs:
            remedy = "which use its single form; make them equal, or set env.vector=sync"
            _check_equal(spaces_of(envs), spaces, f"env.vector={config.vector}: {config.id}", remedy)
    training_only = [f"env.wrappers.{name}" for name, one in config.wrappers.items() if one and one.training_only]
    if training_only:
        with contextlib.closing(make_env(config.for_evaluation())) as env:
            remedy = "which omit wrappers with training_only=true; set training_only=false"
            _check_equal(spaces, spaces_of(env), f"{', '.join(training_only)}: {config.id}", remedy)


def _check_equal(spaces: Spaces, eval_spaces: Spaces, subject: str, remedy: str) -> None:
    for name, one, other in zip(Spaces._fields, spaces, eval_spaces, strict=True):
        if not _are_compatible(one, other):
            raise ConfigurationError(
                f"{subject} has the {name} space {_one_line(one)} in training and {_one_line(other)} in evaluations, "
                f"{remedy}"
            )


def _are_compatible(space: Any, other_space: Any) -> bool:
    """Return whether a policy for one space fits the other; bounds may differ."""
    if isinstance(space, gym.spaces.Dict) and isinstance(other_space, gym.spaces.Dict):
        return list(space) == list(other_space) and all(_are_compatible(space[key], other_space[key]) for key in space)
    if isinstance(space, gym.spaces.Box) and isinstance(other_space, gym.spaces.Box):
        return (space.shape, space.dtype) == (other_space.shape, other_space.dtype)
    return bool(space == other_space)


def spaces_of_config(config: EnvConfig) -> Spaces:
    """Return the spaces of an environment; it is created and closed on the first call for a config.

    Raises:
        ConfigurationError: The environment cannot be created.
    """
    return _inspect(_single(config).model_dump_json())[0]


def _single(config: EnvConfig) -> EnvConfig:
    return config.model_copy(update={"num": 1, "eval_episodes": 1, "eval_video": False})


def _rule_violation(env: Any) -> str | None:
    """Return the first violation that Gymnasium's checker, or a few random steps, detect in an environment."""
    from gymnasium.utils.env_checker import check_env as check_rules

    try:
        with warnings.catch_warnings(action="ignore"):  # the checker's warnings are recommendations
            check_rules(env.unwrapped, skip_render_check=True)
            return _step_violation(env.unwrapped) or _reward_violation(env)
    except Exception as error:  # noqa: BLE001 - the border to the user's environment
        return f"{type(error).__name__}: {_one_line(error)}{_first_observation(env.unwrapped)}"


def _first_observation(env: Any) -> str:
    """Return the first observation if it is not in the space: Gymnasium's checker does not show it."""
    with contextlib.suppress(Exception):
        obs, space = env.reset(seed=0)[0], env.observation_space
        if not space.contains(obs):
            kind = f"{obs.dtype} {list(obs.shape)} " if isinstance(obs, np.ndarray) else ""
            return f" reset() returned {kind}{_one_line(repr(obs))}, and the space is {space}"
    return ""


def _step_violation(env: Any) -> str | None:
    """Return an invalid observation among some steps, for which Gymnasium's checker only warns."""
    space = env.observation_space
    env.action_space.seed(0)
    env.reset(seed=0)
    for _ in range(_CHECKED_STEPS):
        obs, _, terminated, truncated, _ = env.step(env.action_space.sample())
        same_type = np.asarray(obs, space.dtype) if isinstance(space, gym.spaces.Box) else obs  # accept float64
        if not space.contains(same_type):
            return f"step() returned the observation {_one_line(repr(obs))}, which is not in {space}"
        if terminated or truncated:
            env.reset()
    return None


def _reward_violation(env: Any) -> str | None:
    """Return a reward that is not one number; wrappers may convert those of the environment."""
    env.action_space.seed(0)
    env.reset(seed=0)
    reward = env.step(env.action_space.sample())[1]
    if not np.ndim(reward):
        return None
    advice = (
        ", such as reward.item()" if np.size(reward) == 1 else ", or combine the numbers in a wrapper (env.wrappers)"
    )
    return f"step() returned the reward {_one_line(repr(reward))}, which is not one number; return a float{advice}"


def check_env(config: EnvConfig, supported_kinds: tuple[ActionKind, ...]) -> None:
    """Create an environment, check it, and close it.

    Args:
        config: Config of the environment.
        supported_kinds: Kinds of action that the agent supports.

    Raises:
        ConfigurationError: The environment cannot be created or violates Gymnasium's rules, or the agent does not
            support its spaces.
    """
    spaces, has_pictures, fault = _inspect(_single(config).model_dump_json())
    if fault is not None:
        raise ConfigurationError(f"env.id={config.id} violates the rules of Gymnasium: {fault}")
    if config.eval_video and not has_pictures:
        raise ConfigurationError(f"env.eval_video=true: {config.id} cannot render frames: it has no mode rgb_array")
    space = spaces.observation
    parts = space.spaces.values() if isinstance(space, gym.spaces.Dict) else (space,)
    if not all(isinstance(part, _SUPPORTED_PARTS) for part in parts):
        raise ConfigurationError(
            f"env.id={config.id} has the observation space {space}; supported are Box, Discrete, MultiDiscrete, "
            "MultiBinary, or a Dict of these; env.wrappers.flat.name=FlattenObservation flattens it to one vector"
        )
    if any(0 in (part.shape or ()) for part in (*parts, spaces.action)):
        raise ConfigurationError(
            f"env.id={config.id} has the spaces {space} and {spaces.action}: each part needs at least one number; "
            "'+env.wrappers.some={name: FilterObservation, kwargs: {filter_keys: [KEY]}}' selects parts of a Dict"
        )
    if config.normalize_observations and not isinstance(space, gym.spaces.Box):
        raise ConfigurationError(f"env.normalize_observations=true needs a Box observation space, not {space}")
    kind = action_kind(spaces.action)
    if kind not in supported_kinds:
        action_names = " or ".join(_ACTION_DESCRIPTIONS[action] for action in supported_kinds)
        raise ConfigurationError(
            f"env.id={config.id} has the action space {spaces.action}; this agent supports {action_names}"
        )
