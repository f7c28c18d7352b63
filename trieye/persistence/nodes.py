"""The words that encoding and decoding share."""

from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

KIND = "$"
"""The key that marks a JSON object as standing for something that JSON lacks."""

Node = Any
"""A JSON value."""


@dataclass(frozen=True)
class EncodedState:
    """A state as a tree of JSON values, arrays and pickled parts; needs no torch to be sent or written.

    Attributes:
        tree: JSON values; an object with the key `$` stands for what JSON lacks.
        arrays: C-contiguous arrays of dtypes that safetensors knows, by name.
        objects: Pickled parts by name; empty for models, optimizers, counters, arrays and generators.
        formats: The safetensors dtype of those arrays whose own dtype does not say it, such as `BF16`.
    """

    tree: Any
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    formats: dict[str, str] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        """Size of the arrays and pickled parts."""
        return sum(array.nbytes for array in self.arrays.values()) + sum(map(len, self.objects.values()))


def is_text(value: str) -> bool:
    """Tell whether a string is valid Unicode; lone surrogates do not survive JSON and UTF-8."""
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def join(path: str, key: object) -> str:
    """Return the path of an item, short and valid Unicode whatever the key is."""
    word = key if isinstance(key, str) else repr(key)[:60]
    return f"{path}/{word if is_text(word) else ascii(word)}"
