"""EnvState: saves Gymnasium environments, in the middle of an episode where that is exact, without pickle.

`stateful` adapts environments and random generators to `state_dict` and `load_state_dict`.
"""

import logging
from collections.abc import Collection, Mapping
from functools import cache
from typing import Any

from trieye.exceptions import ConfigurationError, SerializationError
from trieye.snapshot.environment_objects import EnvironmentReader, EnvironmentWriter
from trieye.snapshot.environment_values import is_environment
from trieye.snapshot.generators import generator_state, set_generator_state

logger = logging.getLogger(__name__)

_MALFORMED = (LookupError, TypeError, ValueError, AttributeError, RecursionError)


class EnvState:
    """The state of an environment, of its wrappers, and of the members of a `SyncVectorEnv`.

    The attributes of each layer (a wrapper, the wrapped environment, a member of a vector) are saved, and restored in
    an environment that was created in the same way. This is exact if the attributes are numbers, strings, arrays,
    random generators, containers of these, and Python objects of these: the classic-control and toy-text environments
    of Gymnasium continue their episodes bit-identically in another process. The methods `state_dict` and
    `load_state_dict` of objects, and `get_state` and `set_state` or `clone_state` and `restore_state` of environments,
    are used if the state is plain data.

    Not exact are objects of C libraries (Box2D, MuJoCo, Atari games without `env.atari`), objects with custom pickling
    (`EzPickle`), objects in containers or with two references, and arrays that share memory: `reason` names the first.
    For such a layer only the random generators are saved, and restoring starts a new episode; a state saved between
    two episodes is exact anyway, if `reset` reinitializes the episode completely. State outside of the environment's
    objects is not detected: in modules, class attributes, the memory of a C library that outlives `reset`, or a library
    object that the environment references by number.

    The loop maintains `between_episodes`, and resets the environment if it is true:

        state = trieye.EnvState(env)
        ...
        if state.between_episodes:
            obs, _ = env.reset()
        obs, reward, terminated, truncated, _ = env.step(action)
        state.between_episodes = terminated or truncated

    Args:
        env: The environment; `run.save(env=env)` wraps it automatically.
        ignored: Attributes that are not part of the state, such as a large constant table, as `Class.attribute`, and
            compiled modules without state as `module.name`; they are neither saved nor restored.

    Attributes:
        env: The environment.
        is_costly_to_ask: Whether to request the state only for a save.
        between_episodes: Whether an episode has ended and the next call must be `reset`.

    Raises:
        ConfigurationError: `env` is not a Gymnasium environment.
    """

    is_costly_to_ask = True

    def __init__(self, env: Any, *, ignored: Collection[str] = ()) -> None:
        if not is_environment(env):
            raise ConfigurationError(
                f"EnvState({env!r:.80}): a {type(env).__name__} is neither a gymnasium.Env nor a gymnasium VectorEnv"
            )
        self.env = env
        self.between_episodes = False
        self._ignored = frozenset(ignored)

    @property
    def reason(self) -> str | None:
        """The attribute that makes the state inexact, and its type; None if the state is exact."""
        return EnvironmentReader(self.env, self._ignored).problem

    @property
    def is_exact(self) -> bool:
        """Whether the middle of an episode can be saved; inspects the environment, which needs a `reset` before."""
        return self.reason is None

    @property
    def can_save(self) -> bool:
        """Whether a state saved now resumes exactly: always, or only between two episodes."""
        return self.between_episodes or self.is_exact

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain data and copies of arrays."""
        reader = EnvironmentReader(self.env, self._ignored)
        if reader.problem is not None and not self.between_episodes:
            _warn_once(
                f"{_name(self.env)} cannot be saved in the middle of an episode, because {reader.problem}: a resume "
                "starts a new episode, which is exact only if the state is saved between two episodes"
            )
        status_fields = {"between_episodes": self.between_episodes, "reason": reader.problem}
        return {**status_fields, "layers": reader.layers, "same": reader.same}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Reset the environment, which must be created as in the saved run, and restore a result of `state_dict`.

        If the state of an attribute does not fit the environment after `reset`, a warning gives the reason, and a new
        episode starts. Afterwards `between_episodes` is true if the next call must be `reset`.

        Raises:
            SerializationError: This is not the state of an environment, or the wrappers differ.
        """
        self.env.reset()  # creates many attributes
        try:
            is_between, reason, why = bool(state["between_episodes"]), state["reason"], self._put(state)
        except SerializationError as error:
            raise SerializationError(
                f"the saved state of {_name(self.env)} does not fit this environment: {error}; create it as in the "
                "saved run, with the same wrappers and versions"
            ) from error
        except _MALFORMED as error:
            name = _name(self.env)
            raise SerializationError(f"the state of {name} is not the state of an environment: {error!r}") from error
        if why is None and reason is not None and not is_between:
            why = f"it was saved in the middle of an episode, which cannot be restored because {reason}"
        if why is not None:
            logger.warning("%s: a new episode starts, and the resume is not exact: %s", _name(self.env), why)
        self.between_episodes = is_between or reason is not None or why is not None

    def _put(self, state: Mapping[str, Any]) -> str | None:
        """Restore the state; return the reason if that is impossible, and raise if the wrappers differ."""
        if "layers" not in state and ("entries" in state or "generators" in state):
            return "its state was saved by an earlier version of trieye, in another format"
        writer = EnvironmentWriter(self.env)
        writer.check_layers(state["layers"])
        try:
            writer.put(state["layers"], state["same"])
        except SerializationError as error:
            return f"its state does not fit: {error}"
        return None


def _name(env: Any) -> str:
    return str(getattr(getattr(env, "spec", None), "id", None) or type(getattr(env, "unwrapped", env)).__name__)


@cache
def _warn_once(text: str) -> None:
    logger.warning(text)


class GeneratorState:
    """Adapts a random generator to `state_dict` and `load_state_dict`.

    Args:
        generator: A generator that `generator_state` supports.
    """

    def __init__(self, generator: Any) -> None:
        self._generator = generator

    def state_dict(self) -> Any:
        """Return the generator, which the encoder supports."""
        return self._generator

    def load_state_dict(self, state: Any) -> None:
        """Copy the state of another generator, or a result of `generator_state`.

        Raises:
            SerializationError: The state belongs to another kind of generator.
        """
        set_generator_state(self._generator, state)


def stateful(value: Any) -> Any:
    """Return an adapter with `state_dict` and `load_state_dict`, or the value itself.

    Adapters exist for random generators of NumPy, Python and torch, and for Gymnasium environments without these
    methods.
    """
    if any(callable(getattr(value, name, None)) for name in ("state_dict", "load_state_dict")):
        return value
    if generator_state(value) is not None:
        return GeneratorState(value)
    return EnvState(value) if is_environment(value) else value
