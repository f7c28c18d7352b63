"""SavedParts: what was saved of something that grows, part by part."""

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from trieye.exceptions import CheckpointError, SerializationError
from trieye.files.checksum import verified, verify_file
from trieye.snapshot.arrays import map_tensors, read_tensors
from trieye.snapshot.nodes import Part, PartFile, StateParts

logger = logging.getLogger(__name__)

OnDamage = Literal["partial", "refuse"]
"""What becomes of parts that are damaged: what is in the others is used, or nothing is."""


class Growing(Protocol):
    """Something that is saved by what is new in it."""

    def state_parts(self, known: Collection[str]) -> StateParts:
        """Return a snapshot; see `StateParts`."""

    def load_state_dict(self, state: Any) -> None:
        """Take over a `SavedParts`."""


@dataclass(frozen=True)
class SavedParts:
    """What an object with `state_parts` gets in its `load_state_dict`; each part is verified when it is read.

    Attributes:
        state: What `StateParts.state` was.
        names: Names of the parts, in the order in which they were saved.
        on_damage: What `whole` does about a damaged part.
    """

    state: Any
    names: tuple[str, ...]
    _parts: Mapping[str, Part]
    on_damage: OnDamage = "partial"

    def read(self, name: str) -> dict[str, NDArray[Any]]:
        """Return the arrays of a part, each in memory of its own; threads may read parts at the same time.

        Raises:
            CheckpointError: Its file is missing or damaged.
            SerializationError: There is no such part, or its file cannot be read now.
        """
        part = self._part(name)
        if isinstance(part, PartFile):
            if part.entry is None:
                return {key: np.array(array) for key, array in map_tensors(part.path).items()}
            with verified(part.path, part.entry) as file:
                return read_tensors(file, part.path)[0]
        return {key: np.array(array) for key, array in part.items()}

    def map(self, name: str) -> dict[str, NDArray[Any]]:
        """Return the arrays of a part, read-only, where its file is mapped into memory; raises what `read` raises.

        The maps stay valid when the checkpoint is deleted meanwhile.
        """
        part = self._part(name)
        if isinstance(part, PartFile):
            if part.entry is not None:
                verify_file(part.path, part.entry)  # whoever uses the arrays now finds these bytes in memory
            return map_tensors(part.path)
        views = {key: array.view() for key, array in part.items()}
        for view in views.values():
            view.flags.writeable = False
        return views

    def whole(self, name: str) -> dict[str, NDArray[Any]] | None:
        """Return what `map` returns, or None if the part is damaged and the others are to be used.

        Raises:
            CheckpointError: The part is damaged, and that is refused.
            SerializationError: As `map`.
        """
        try:
            return self.map(name)
        except CheckpointError as error:
            if self.on_damage == "refuse":
                advice = "with persistence.damaged_replay=partial a run goes on with the rows that are whole"
                raise CheckpointError(f"{error}; {advice}") from error
            logger.warning("%s; it is left out", error)
            return None

    def state_parts(self, known: Collection[str]) -> StateParts:
        """Return what was saved as it is, so that whoever only looked at it can save it again, elsewhere too."""
        kept = tuple(name for name in self.names if name in known)
        return StateParts(self.state, kept, {name: self.map(name) for name in self.names if name not in known})

    def _part(self, name: str) -> Mapping[str, NDArray[Any]] | PartFile:
        part = self._parts.get(name)
        if part is None:
            raise SerializationError(f"part {name!r} is not here (parts: {', '.join(self.names) or 'none'})")
        return part
