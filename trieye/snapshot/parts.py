"""SavedParts: the saved parts of an incremental state."""

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from numpy.typing import NDArray

from trieye.exceptions import CheckpointError, SerializationError
from trieye.files.checksum import verify_file
from trieye.snapshot.arrays import map_tensors
from trieye.snapshot.nodes import Part, PartFile, StateParts

logger = logging.getLogger(__name__)

OnDamage = Literal["partial", "refuse"]
"""Policy for damaged parts: use the intact parts, or refuse the whole state."""


class IncrementalState(Protocol):
    """An object that is saved in parts; a save writes only the new ones."""

    def state_parts(self, known_parts: Collection[str]) -> StateParts:
        """Return a snapshot; see `StateParts`."""


@dataclass(frozen=True)
class SavedParts:
    """The argument of `load_state_dict` of an object with `state_parts`; parts are verified on first use.

    Attributes:
        state: The `StateParts.state` of the save.
        names: Names of the parts, in saved order.
        on_damage: Policy of `whole` for a damaged part.
    """

    state: Any
    names: tuple[str, ...]
    _parts: Mapping[str, Part]
    on_damage: OnDamage = "partial"

    def map(self, name: str) -> dict[str, NDArray[Any]]:
        """Return the arrays of a part as read-only memory maps of its file; thread-safe.

        The maps stay valid after a deletion of the checkpoint.

        Raises:
            CheckpointError: The part's file is missing or damaged.
            SerializationError: The part does not exist, or its file is temporarily unreadable.
        """
        part = self._parts.get(name)
        if part is None:
            raise SerializationError(f"part {name!r} does not exist (parts: {', '.join(self.names) or 'none'})")
        if isinstance(part, PartFile):
            if part.entry is not None:
                verify_file(part.path, part.entry)  # also loads the bytes into the page cache
            return map_tensors(part.path)
        views = {key: array.view() for key, array in part.items()}
        for view in views.values():
            view.flags.writeable = False
        return views

    def whole(self, name: str) -> dict[str, NDArray[Any]] | None:
        """Return the result of `map`, or None for a damaged part under the policy `partial`.

        Raises:
            CheckpointError: The part is damaged, and the policy is `refuse`.
            SerializationError: As in `map`.
        """
        try:
            return self.map(name)
        except CheckpointError as error:
            if self.on_damage == "refuse":
                advice = "with persistence.damaged_replay=partial a run resumes with the intact rows"
                raise CheckpointError(f"{error}; {advice}") from error
            logger.warning("%s; its rows are dropped", error)
            return None

    def state_parts(self, known_parts: Collection[str]) -> StateParts:
        """Return the unchanged parts, so that a loaded state can be saved again, even to another directory."""
        linked = tuple(name for name in self.names if name in known_parts)
        return StateParts(self.state, linked, {name: self.map(name) for name in self.names if name not in known_parts})
