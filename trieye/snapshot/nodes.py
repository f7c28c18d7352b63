"""The words that encoding and decoding share."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from trieye.config.names import is_text
from trieye.files.checksum import FileEntry

KIND = "$"
"""The key that marks a JSON object as standing for something that JSON lacks."""

Node = Any
"""A JSON value."""


def place(path: str) -> str:
    """Return a path in words: `'model.encoder'`, as `key_map` and what `restore` says have it."""
    return repr(path.removeprefix("/objects").removeprefix("/").replace("/", ".")) if path else "the state"


@dataclass(frozen=True)
class PartFile:
    """A part that lies in a file.

    Attributes:
        path: The file.
        entry: What it is compared with when it is read; None if that was done.
    """

    path: Path
    entry: FileEntry | None


Part = Mapping[str, NDArray[Any]] | PartFile | None
"""What grows is saved in parts: new arrays by key, the file that holds them, or None for one saved earlier."""


@dataclass(frozen=True)
class StateParts:
    """A snapshot of something that grows, such as a replay buffer: what is new, and which earlier parts still hold.

    An object with a method `state_parts(known)` is saved by what that returns, and gets a `SavedParts` in its
    `load_state_dict`. `known` are the names of parts that a finished checkpoint holds; what is in none of them is
    written, again if need be.

    Attributes:
        state: Plain data and small arrays, written with every save.
        kept: Those of the known parts that still belong to it, in order.
        new: Arrays by key for each new part, of dtypes that safetensors knows; nobody changes them from now on. A name
            means the same bytes for ever: lower-case letters, digits, `-` and `_`, with a random end.
    """

    state: Any
    kept: tuple[str, ...] = ()
    new: Mapping[str, Mapping[str, NDArray[Any]]] = field(default_factory=dict)


@dataclass(frozen=True)
class EncodedState:
    """A state as a tree of JSON values, arrays and pickled parts; needs no torch to be sent or written.

    Attributes:
        tree: JSON values; an object with the key `$` stands for what JSON lacks.
        arrays: C-contiguous arrays of dtypes that safetensors knows, by name.
        objects: Pickled objects by name; empty for models, optimizers, counters, arrays and generators.
        formats: The safetensors dtype of those arrays whose own dtype does not say it, such as `BF16`.
        parts: What belongs to objects that grow, by name.
    """

    tree: Any
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    formats: dict[str, str] = field(default_factory=dict)
    parts: dict[str, Part] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        """Bytes of the arrays and pickled objects, parts included that are in memory."""
        new = [array for part in self.parts.values() if isinstance(part, Mapping) for array in part.values()]
        return sum(array.nbytes for array in (*self.arrays.values(), *new)) + sum(map(len, self.objects.values()))


class Collector(Protocol):
    """What takes the arrays and pickled objects of a state while it is encoded; `Encoder` is one.

    Attributes:
        objects: Pickled objects by name.
        tensors: By the memory of each tensor that was met, the tensor and its node.
    """

    objects: dict[str, bytes]
    tensors: dict[Any, tuple[Any, Node]]

    def add_array(self, path: str, array: NDArray[Any], *, owned: bool, format_name: str | None = None) -> str:
        """Keep an array and return the name it got; `owned` says that no user code can change it."""

    def add_object(self, path: str, data: bytes) -> str:
        """Keep a pickled part and return the name it got."""


def join(path: str, key: object) -> str:
    """Return the path of an item, short and valid Unicode whatever the key is."""
    word = key if isinstance(key, str) else repr(key)[:60]
    return f"{path}/{word if is_text(word) else ascii(word)}"
