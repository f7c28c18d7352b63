"""AtariGame: a game of ale-py whose state can be saved in the middle of an episode, for `env.atari`."""

from typing import Any

from trieye.config.packages import load

_ale: Any = load("ale_py", "env.atari=true")


class AtariGame(_ale.AtariEnv):  # type: ignore[misc]  # the package may be missing
    """A game with the methods that `trieye.EnvState` looks for, so that a resumed training is bit-identical."""

    def get_state(self) -> bytes:
        """Return the state of the emulator, including its random generator."""
        return bytes(self.ale.cloneState(include_rng=True).serialize())

    def set_state(self, state: bytes) -> None:
        """Set the state of the emulator."""
        self.ale.restoreState(_ale.ALEState(state))
