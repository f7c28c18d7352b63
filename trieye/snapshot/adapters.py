"""How things are saved and restored that have no `state_dict` of their own: random generators, environments."""

from typing import Any

from trieye.snapshot.environment_values import is_environment
from trieye.snapshot.environments import EnvState
from trieye.snapshot.generators import generator_state, set_generator_state


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
