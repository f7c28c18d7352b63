"""SavedParts: what was saved of something that grows, part by part."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from trieye.exceptions import SerializationError
from trieye.persistence.nodes import Part, StateParts
from trieye.persistence.tensor_file import map_tensors, read_tensors


class Growing(Protocol):
    """Something that is saved by what is new in it."""

    def state_parts(self, known: Collection[str]) -> StateParts:
        """Return a snapshot; see `StateParts`."""

    def load_state_dict(self, state: Any) -> None:
        """Take over a `SavedParts`."""


@dataclass(frozen=True)
class SavedParts:
    """What an object with `state_parts` gets in its `load_state_dict`; its files were verified.

    Attributes:
        state: What `StateParts.state` was.
        names: Names of the parts, in the order in which they were saved.
    """

    state: Any
    names: tuple[str, ...]
    _parts: Mapping[str, Part]

    def read(self, name: str) -> dict[str, NDArray[Any]]:
        """Return the arrays of a part, each in memory of its own; threads may read parts at the same time.

        Raises:
            SerializationError: There is no such part, or its file cannot be read.
        """
        part = self._part(name)
        if isinstance(part, Path):
            return _from_file(part, lambda path: read_tensors(path)[0])
        return {key: np.array(array) for key, array in part.items()}

    def map(self, name: str) -> dict[str, NDArray[Any]]:
        """Return the arrays of a part, read-only, where its file is mapped into memory; raises what `read` raises.

        The maps stay valid when the checkpoint is deleted meanwhile.
        """
        part = self._part(name)
        if isinstance(part, Path):
            return _from_file(part, map_tensors)
        views = {key: array.view() for key, array in part.items()}
        for view in views.values():
            view.flags.writeable = False
        return views

    def state_parts(self, known: Collection[str]) -> StateParts:
        """Return what was saved as it is, so that whoever only looked at it can save it again, elsewhere too."""
        kept = tuple(name for name in self.names if name in known)
        return StateParts(self.state, kept, {name: self.map(name) for name in self.names if name not in known})

    def _part(self, name: str) -> Mapping[str, NDArray[Any]] | Path:
        part = self._parts.get(name)
        if part is None:
            raise SerializationError(f"part {name!r} is not here (parts: {', '.join(self.names) or 'none'})")
        return part


def _from_file(path: Path, read: Callable[[Path], dict[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    try:
        return read(path)
    except OSError as error:
        raise SerializationError(f"{path} cannot be read: {error.strerror or error}") from error
