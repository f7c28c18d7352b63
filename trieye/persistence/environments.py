"""EnvState: an environment of Gymnasium in the middle of an episode, saved without pickle where that is exact."""

import logging
from collections.abc import Collection, Mapping
from typing import Any

from trieye.exceptions import ConfigurationError, SerializationError
from trieye.persistence.generators import generator_state, new_generator, set_generator_state
from trieye.persistence.graph_putting import GraphPutter
from trieye.persistence.graph_rules import attributes, is_environment, layers, top_package
from trieye.persistence.graph_taking import GraphTaker, Place

logger = logging.getLogger(__name__)

_said: set[str] = set()


class EnvState:
    """The state of an environment, of its wrappers, and of the members of a `SyncVectorEnv`.

    It is exact if everything that can change consists of numbers, strings, arrays, containers, random generators and
    Python objects of such: so it is for the classic-control and toy-text environments of Gymnasium, whose episodes then
    go on bit for bit in another process. Objects with `state_dict` and `load_state_dict`, and environments with
    `get_state` and `set_state` or `clone_state` and `restore_state`, are asked for their state if that is plain data.
    Objects of C libraries (Box2D, MuJoCo, the Arcade Learning Environment) are not exact: only the random generators
    are saved, and restoring begins a new episode; what is saved between two episodes goes on exactly all the same. What
    an environment keeps outside its objects, in modules, class attributes or a library it refers to by a number, is not
    seen.

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
        between_episodes: Whether an episode is over and the next one has not begun: `reset` is to be called next.

    Raises:
        ConfigurationError: `env` is no environment of Gymnasium.
    """

    def __init__(self, env: Any, *, ignored: Collection[str] = ()) -> None:
        if not is_environment(env):
            raise ConfigurationError(
                f"EnvState({env!r:.80}): a {type(env).__name__} is neither a gymnasium.Env nor a gymnasium VectorEnv"
            )
        self.env = env
        self.between_episodes = False
        self._ignored = frozenset(ignored)
        self._packages = {top_package(type(layer)) for layer in layers(env)}

    @property
    def reason(self) -> str | None:
        """The attribute because of which the state is not exact, and its type; None if it is exact."""
        return self._take()[0].problem

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
        taker, root = self._take()
        state: dict[str, Any] = {"between_episodes": self.between_episodes, "reason": taker.problem}
        if taker.problem is None:
            return state | {"entries": taker.entries, "root": root}
        if not self.between_episodes:
            _say_once(
                f"{_name(self.env)} cannot be saved in the middle of an episode, because {taker.problem}: on resume a "
                "new episode begins, which is exact only if the state is saved between two episodes"
            )
        return state | {"generators": taker.generators}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Bring back what `state_dict` returned; the environment is made as it was made then, and is reset here.

        Afterwards `between_episodes` says whether to begin an episode by `reset` now.

        Raises:
            SerializationError: This is not the state of an environment.
        """
        try:
            self.env.reset()  # many attributes exist from then on only
            self.between_episodes = bool(state["between_episodes"])
            if state["reason"] is not None:
                self._restore_generators(state)
                return
            GraphPutter(state["entries"], self._packages).value(state["root"], self.env)
        except (SerializationError, KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise SerializationError(
                f"the saved state of {_name(self.env)} does not fit this environment: {error}; make it as it was made "
                "then, with the same wrappers and versions"
            ) from error

    def _take(self) -> tuple[GraphTaker, Any]:
        taker = GraphTaker(self._packages, self._ignored)
        return taker, taker.node(self.env, Place((), type(self.env).__name__))

    def _restore_generators(self, state: Mapping[str, Any]) -> None:
        for steps, held in state["generators"]:
            _set_generator(self.env, steps, held)
        if not self.between_episodes:
            logger.warning(
                "%s was saved in the middle of an episode, which cannot be restored because %s: a new episode has to "
                "begin, the resume is not exact",
                _name(self.env),
                state["reason"],
            )
        self.between_episodes = True


def _set_generator(root: Any, steps: list[tuple[str, Any]], state: Mapping[str, Any]) -> None:
    *before, last = steps
    holder = root
    for step in before:
        holder = _at(holder, step)
    generator = _at(holder, last)
    if generator_state(generator) is not None:
        set_generator_state(generator, state)
    elif last[0] == "attribute" and hasattr(holder, "__dict__"):
        vars(holder)[last[1]] = new_generator(state)


def _at(holder: Any, step: tuple[str, Any]) -> Any:
    kind, key = step
    if kind == "attribute":
        return attributes(holder).get(key)
    if isinstance(holder, Mapping):
        return holder.get(key)
    return holder[key] if isinstance(holder, list | tuple) and key < len(holder) else None


def _name(env: Any) -> str:
    return str(getattr(getattr(env, "spec", None), "id", None) or type(getattr(env, "unwrapped", env)).__name__)


def _say_once(text: str) -> None:
    if text not in _said:
        _said.add(text)
        logger.warning(text)
