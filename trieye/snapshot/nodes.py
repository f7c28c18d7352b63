"""Data structures that encoding and decoding share."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from trieye.config.names import is_text
from trieye.files.checksum import FileEntry

KIND = "$"
"""The key that marks a JSON object as the representation of a value that JSON lacks."""

Node = Any
"""A JSON value."""

OTHER_CHECKPOINT = "resume from another checkpoint, as with persistence.load_checkpoint_path=step:N"
"""Next step after a saved state cannot be restored."""


def quoted_path(path: str) -> str:
    """Return a path for messages, such as `'model.encoder'`, in the format of `key_map` and `restore`."""
    return repr(path.removeprefix("/objects").removeprefix("/").replace("/", ".")) if path else "the state"


@dataclass(frozen=True)
class PartFile:
    """A part in a file.

    Attributes:
        path: The file.
        entry: The manifest entry to verify it against; None if it has been verified.
    """

    path: Path
    entry: FileEntry | None


Part = Mapping[str, NDArray[Any]] | PartFile | None
"""A part of an incremental state: new arrays by key, a file with them, or None for a part of an earlier save."""


@dataclass(frozen=True)
class StateParts:
    """An incremental snapshot of a growing object, such as a replay buffer: new parts and valid earlier parts.

    An object with a method `state_parts(known_parts)` is saved as its return value, and its `load_state_dict` receives
    a `SavedParts`. `known_parts` has the names of the parts in complete checkpoints; all data outside of them must be
    in new parts, even if it was written before.

    Attributes:
        state: Plain data and small arrays, written with every save.
        kept: The known parts that are still valid, in order.
        new: Arrays by key for each new part, of dtypes that safetensors supports; they must not change any more. A
            name denotes the same bytes forever: lower-case letters, digits, `-` and `_`, with a random suffix.
    """

    state: Any
    kept: tuple[str, ...] = ()
    new: Mapping[str, Mapping[str, NDArray[Any]]] = field(default_factory=dict)


@dataclass(frozen=True)
class EncodedState:
    """A state as a tree of JSON values, arrays and pickles; sending and writing it does not require torch.

    Attributes:
        tree: JSON values; an object with the key `$` represents a value that JSON lacks.
        arrays: C-contiguous arrays of dtypes that safetensors supports, by name.
        objects: Pickled objects by name; empty for models, optimizers, counters, arrays and generators.
        formats: The safetensors dtype of arrays whose NumPy dtype does not determine it, such as `BF16`.
        parts: Parts of incremental states, by name.
    """

    tree: Any
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    formats: dict[str, str] = field(default_factory=dict)
    parts: dict[str, Part] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        """Size of the arrays, pickled objects and in-memory parts in bytes."""
        in_memory = [array for part in self.parts.values() if isinstance(part, Mapping) for array in part.values()]
        return sum(array.nbytes for array in (*self.arrays.values(), *in_memory)) + sum(map(len, self.objects.values()))


class ArrayCollector:
    """Collects the arrays and pickled objects of a state during encoding.

    Attributes:
        arrays: Arrays by name.
        objects: Pickled objects by name.
        formats: As in `EncodedState`.
        owned_names: Names of the arrays that no user code can change.
        tensors: Each encoded tensor and its node, by the tensor's memory.
    """

    def __init__(self) -> None:
        self.arrays: dict[str, NDArray[Any]] = {}
        self.objects: dict[str, bytes] = {}
        self.formats: dict[str, str] = {}
        self.owned_names: set[str] = set()
        self.tensors: dict[Any, tuple[Any, Node]] = {}
        self._counts: dict[str, int] = {}

    def add_array(self, path: str, array: NDArray[Any], *, owned: bool, format_name: str | None = None) -> str:
        """Store an array and return its name; with `owned`, no user code can change the array."""
        name = self._unique(path, self.arrays)
        self.arrays[name] = array
        if owned:
            self.owned_names.add(name)
        if format_name is not None:
            self.formats[name] = format_name
        return name

    def add_object(self, path: str, data: bytes) -> str:
        """Store a pickle and return its name."""
        name = self._unique(path, self.objects)
        self.objects[name] = data
        return name

    def _unique(self, path: str, used_names: Collection[str]) -> str:
        name = base = path.strip("/") or "state"
        while name in used_names or name == "__metadata__":  # a reserved word of safetensors
            self._counts[base] = self._counts.get(base, 1) + 1  # a table may have thousands of equal paths
            name = f"{base}#{self._counts[base]}"
        return name


def join(path: str, key: object) -> str:
    """Return the path of an item; any key yields a short path of valid Unicode."""
    word = key if isinstance(key, str) else repr(key)[:60]
    return f"{path}/{word if is_text(word) else ascii(word)}"
