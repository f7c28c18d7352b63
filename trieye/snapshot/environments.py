"""EnvState: an environment of Gymnasium in the middle of an episode, saved without pickle where that is exact.

`stateful` gives environments, and random generators, the `state_dict` and `load_state_dict` that they lack.
"""

import logging
from collections.abc import Collection, Mapping
from typing import Any

from trieye.exceptions import ConfigurationError, SerializationError
from trieye.snapshot.environment_objects import ObjectPutter, ObjectTaker
from trieye.snapshot.environment_values import is_environment
from trieye.snapshot.generators import generator_state, set_generator_state

logger = logging.getLogger(__name__)

_said: set[str] = set()
_MALFORMED = (LookupError, TypeError, ValueError, AttributeError, RecursionError)


class EnvState:
    """The state of an environment, of its wrappers, and of the members of a `SyncVectorEnv`.

    The attributes of each layer (a wrapper, the environment inside it, a member of a vector) are saved, and given to
    the objects of an environment that was made in the same way. That is exact if the attributes are numbers, strings,
    arrays, containers of such, random generators, and Python objects of such: so it is for the classic-control and
    toy-text environments of Gymnasium, whose episodes then go on bit for bit in another process. Objects with
    `state_dict` and `load_state_dict`, and environments with `get_state` and `set_state` or `clone_state` and
    `restore_state`, are asked for their state if that is plain data.

    Not exact are objects of C libraries (Box2D, MuJoCo, the Arcade Learning Environment), objects that are pickled in a
    way of their own (`EzPickle`), that lie in containers or in two places, and arrays that share memory: `reason` names
    the first. Of such a layer only the random generators are saved, and restoring begins a new episode; what is saved
    between two episodes goes on exactly all the same, if `reset` begins the episode anew. What an environment keeps
    outside its objects, in modules, class attributes, the memory of a C library that outlives `reset` or a library to
    which it refers by a number, is not seen.

    The loop keeps `between_episodes` up to date, and resets the environment where it is true:

        state = trieye.EnvState(env)
        ...
        if state.between_episodes:
            obs, _ = env.reset()
        obs, reward, terminated, truncated, _ = env.step(action)
        state.between_episodes = terminated or truncated

    Args:
        env: The environment; `run.save(env=env)` wraps it by itself.
        ignored: What is no part of the state, such as a large table that never changes, and is left alone: attributes
            as `Class.attribute`, compiled modules that hold nothing as `module.name`.

    Attributes:
        env: The environment.
        is_costly_to_ask: Whether to ask for the state only when it is saved.
        between_episodes: Whether an episode is over and the next one has not begun: `reset` is to be called next.

    Raises:
        ConfigurationError: `env` is no environment of Gymnasium.
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
        """The attribute because of which the state is not exact, and its type; None if it is exact."""
        return ObjectTaker(self.env, self._ignored).problem

    @property
    def is_exact(self) -> bool:
        """Whether the middle of an episode can be saved; looked up in the environment, which should be reset once."""
        return self.reason is None

    @property
    def can_save(self) -> bool:
        """Whether what is saved now goes on exactly: always, or between two episodes only."""
        return self.between_episodes or self.is_exact

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain data and arrays of its own."""
        taker = ObjectTaker(self.env, self._ignored)
        if taker.problem is not None and not self.between_episodes:
            _say_once(
                f"{_name(self.env)} cannot be saved in the middle of an episode, because {taker.problem}: on resume a "
                "new episode begins, which is exact only if the state is saved between two episodes"
            )
        return {
            "between_episodes": self.between_episodes,
            "reason": taker.problem,
            "layers": taker.layers,
            "same": taker.same,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Bring back what `state_dict` returned; the environment is made as it was made then, and is reset here.

        Where the state of an attribute does not fit what is there after `reset`, a warning says why, and a new episode
        begins. Afterwards `between_episodes` says whether to begin an episode by `reset` now.

        Raises:
            SerializationError: This is not the state of an environment, or that of one with other wrappers.
        """
        self.env.reset()  # many attributes exist from then on only
        try:
            is_between, reason, why = bool(state["between_episodes"]), state["reason"], self._put(state)
        except SerializationError as error:
            raise SerializationError(
                f"the saved state of {_name(self.env)} does not fit this environment: {error}; make it as it was made "
                "then, with the same wrappers and versions"
            ) from error
        except _MALFORMED as error:
            raise SerializationError(
                f"the saved state of {_name(self.env)} is not that of an environment: {type(error).__name__}: {error}"
            ) from error
        if why is None and reason is not None and not is_between:
            why = f"it was saved in the middle of an episode, which cannot be restored because {reason}"
        if why is not None:
            logger.warning("%s: a new episode has to begin, the resume is not exact: %s", _name(self.env), why)
        self.between_episodes = is_between or reason is not None or why is not None

    def _put(self, state: Mapping[str, Any]) -> str | None:
        """Put the state into the environment; return why that cannot be done; raises where the wrappers are others."""
        if "layers" not in state and ("entries" in state or "generators" in state):
            return "its state was saved by an earlier version of trieye, in another format"
        putter = ObjectPutter(self.env)
        putter.check_layers(state["layers"])
        try:
            putter.put(state["layers"], state["same"])
        except SerializationError as error:
            return f"its state does not fit: {error}"
        return None


def _name(env: Any) -> str:
    return str(getattr(getattr(env, "spec", None), "id", None) or type(getattr(env, "unwrapped", env)).__name__)


def _say_once(text: str) -> None:
    if text not in _said:
        _said.add(text)
        logger.warning(text)


class GeneratorState:
    """A random generator as something with `state_dict` and `load_state_dict`.

    Args:
        generator: One that `generator_state` knows.
    """

    def __init__(self, generator: Any) -> None:
        self._generator = generator

    def state_dict(self) -> Any:
        """Return the generator, which the encoder knows."""
        return self._generator

    def load_state_dict(self, state: Any) -> None:
        """Bring the generator to the state of another one, or to what `generator_state` returned.

        Raises:
            SerializationError: It is none of such a generator.
        """
        set_generator_state(self._generator, state)


def stateful(value: Any) -> Any:
    """Return what has the `state_dict` and `load_state_dict` of a value: an adapter, or the value itself.

    Adapters exist for random generators of NumPy, Python and torch, and for environments of Gymnasium without such
    methods of their own.
    """
    if any(callable(getattr(value, name, None)) for name in ("state_dict", "load_state_dict")):
        return value
    if generator_state(value) is not None:
        return GeneratorState(value)
    return EnvState(value) if is_environment(value) else value
