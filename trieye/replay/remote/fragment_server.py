"""FragmentServer: what an actor for fragments does, without Ray."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trieye.replay.fragments import FragmentBuffer, FragmentRules
from trieye.replay.limiter import Limiter
from trieye.replay.remote.snapshots import Snapshots
from trieye.snapshot.parts import SavedParts


class FragmentServer:
    """A `FragmentBuffer` with snapshots; if there is one in its directory, it goes on from there.

    Args:
        rules: The arguments of `FragmentRules`.
        limiter: Those of a `Limiter`; None for none.
        seed: Of the generator that chooses.
        name: For messages.
        directory: Where the snapshots are; without one there are none.
        snapshot_every_s: How often they are written, seconds; only when asked to if None.

    Raises:
        ConfigurationError: An argument is not usable.
        CheckpointError: A snapshot is damaged.
    """

    def __init__(
        self,
        rules: Mapping[str, Any],
        *,
        limiter: Mapping[str, Any] | None = None,
        seed: int = 0,
        name: str = "fragments",
        directory: Path | None = None,
        snapshot_every_s: float | None = None,
    ) -> None:
        self.name = name
        self.buffer = FragmentBuffer(
            FragmentRules(**rules), seed=seed, limiter=None if limiter is None else Limiter(**limiter)
        )
        self._snapshots = Snapshots(name, directory, snapshot_every_s)
        self._snapshots.begin(self.buffer.load_state_dict, self.snapshot)

    def snapshot(self, directory: Path | None = None) -> None:
        """Write a snapshot.

        Args:
            directory: Where to; the server's own if None.

        Raises:
            ConfigurationError: There is none.
            SerializationError: It could not be written.
        """
        self._snapshots.write(self.buffer, directory)

    def load_state_dict(self, held: SavedParts) -> None:
        """Go on from a snapshot, also if the server dies: its own directory holds the same content afterwards.

        Raises:
            ConfigurationError: It has chunks of another length or schema.
            SerializationError: It is not whole, or the server's own snapshot could not be written.
        """
        self.buffer.load_state_dict(held)
        if self._snapshots.has_directory:
            self.snapshot()

    def metrics(self, reset: bool) -> dict[str, float]:
        """Return plain numbers; see `FragmentBuffer.metrics`."""
        return self.buffer.metrics(reset=reset)

    def close(self) -> None:
        """End the snapshots and give the memory back."""
        self._snapshots.close()
        self.buffer.close()

    def __getattr__(self, method: str) -> Any:
        if method.startswith("_") or method == "buffer":
            raise AttributeError(method)
        return getattr(self.buffer, method)
