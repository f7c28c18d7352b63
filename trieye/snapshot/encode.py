"""Encodes the state of a training as JSON values, arrays and pickles that any process can write."""

import math
import re
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trieye.config.names import is_text
from trieye.exceptions import SerializationError
from trieye.snapshot import arrays, objects, tensors
from trieye.snapshot.decode import decode
from trieye.snapshot.environments import stateful
from trieye.snapshot.generators import generator_state
from trieye.snapshot.nodes import KIND, ArrayCollector, EncodedState, Node, Part, StateParts, join, quoted_path

__all__ = ["EncodedState", "Encoder", "decode", "encode"]

MAX_DEPTH = 100
"""Maximum nesting of containers; reading a written state must never exceed Python's recursion limit."""

_MAX_INLINE_BYTES = 256
_PLAIN_INT_BITS = 64
_ALIGNMENT_BYTES = 64
_PART_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,100}")


def encode(state: Any, *, copy: bool = True, known_parts: Collection[str] = ()) -> EncodedState:
    """Take a snapshot of `state`.

    Plain data, NumPy arrays and scalars, tensors of any device and random generators are restored exactly; tensors are
    restored on the CPU and without gradient. An object with a `state_dict()` is represented by its state dict, an
    object with `state_parts(known_parts)` by its new parts. cloudpickle pickles everything else.

    Args:
        state: Nested containers of any values.
        copy: With False, arrays on the CPU are shared with `state`, which must not change before they are written.
        known_parts: Names of parts in complete checkpoints; see `StateParts`.

    Raises:
        SerializationError: A value can neither be encoded nor pickled, or contains itself; the message names it.
    """
    encoder = Encoder(known_parts)
    tree = encoder.node(state, "", 0)
    arrays = encoder.contiguous_arrays(copy=copy)
    return EncodedState(tree, arrays, encoder.objects, encoder.formats, encoder.parts)


class Encoder(ArrayCollector):
    """Encodes one state; collects the arrays and pickles that the tree refers to by name."""

    def __init__(self, known_parts: Collection[str] = ()) -> None:
        super().__init__()
        self.parts: dict[str, Part] = {}
        self._known_parts = known_parts

    def node(self, value: Any, path: str, depth: int) -> Node:
        """Return the JSON value that represents `value`; `path` is its path within the state."""
        encode_plain = _PLAIN.get(type(value))
        if encode_plain is not None:
            return encode_plain(value)
        if depth > MAX_DEPTH:
            raise SerializationError(
                f"{quoted_path(path[:200])} is nested deeper than {MAX_DEPTH} levels; does it contain itself?"
            )
        encode_container = _CONTAINERS.get(type(value))
        if encode_container is not None:
            return encode_container(self, value, path, depth)
        return self._other(value, path, depth)

    def nodes(self, values: Iterable[Any], path: str, depth: int) -> list[Node]:
        """Return the nodes of the items of a container at `path`."""
        return [
            plain(value)
            if (plain := _PLAIN.get(type(value))) is not None
            else self.node(value, f"{path}/{index}", depth + 1)
            for index, value in enumerate(values)
        ]

    def contiguous_arrays(self, *, copy: bool) -> dict[str, NDArray[Any]]:
        """Return the arrays; arrays that user code could change are copied into one block of memory.

        50 new arrays of 4 MB cost five times the page faults of a single array of 200 MB.
        """
        shared_arrays = {name: array for name, array in self.arrays.items() if copy and name not in self.owned_names}
        offsets = np.cumsum(
            [0, *(-(-array.nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES for array in shared_arrays.values())]
        )
        shared_bytes = np.empty(int(offsets[-1]), np.uint8)
        copies: dict[str, NDArray[Any]] = {}
        for (name, array), offset in zip(shared_arrays.items(), offsets[:-1].tolist(), strict=True):
            copies[name] = np.ndarray(array.shape, array.dtype, shared_bytes, offset if array.nbytes else 0)
            np.copyto(copies[name], array)
        return {name: copies[name] if name in copies else np.asarray(a, order="C") for name, a in self.arrays.items()}

    def _other(self, value: Any, path: str, depth: int) -> Node:
        if isinstance(value, np.ndarray | np.generic):
            node = arrays.encode_array(self, value, path)
        elif isinstance(value, tuple) and objects.is_named_tuple(type(value)):
            node = {
                KIND: "namedtuple",
                "class": objects.encode_class(self, type(value)),
                "items": self.nodes(value, path, depth),
            }
        else:
            node = tensors.encode_tensor(self, value, path)
        if node is not None:
            return node
        if not isinstance(value, type) and callable(getattr(value, "state_parts", None)):
            return self._parts(value.state_parts(self._known_parts), path, depth)
        generator = generator_state(value)
        if generator is not None:
            return {KIND: "generator", "state": self.node(generator, path, depth + 1)}
        adapter = stateful(value)
        if not isinstance(value, type) and callable(getattr(adapter, "state_dict", None)):
            return self.node(adapter.state_dict(), path, depth + 1)
        return objects.encode_object(self, value, path)

    def _parts(self, parts: StateParts, path: str, depth: int) -> Node:
        names = [*parts.kept, *parts.new]
        for name in names:
            if not _PART_NAME.fullmatch(name) or names.count(name) > 1:
                raise SerializationError(
                    f"{quoted_path(path)}: part name {name!r} is invalid or a duplicate; use a-z, 0-9, - and _"
                )
        if unknown_names := [name for name in parts.kept if name not in self._known_parts]:
            raise SerializationError(
                f"{quoted_path(path)} refers to part {unknown_names[0]!r}, which no complete checkpoint has"
            )
        for name in parts.kept:
            self.parts.setdefault(name)
        for name, columns in parts.new.items():
            part = {key: _safetensors_array(array, f"{path}/{name}/{key}") for key, array in columns.items()}
            if not _is_same(self.parts.get(name), part):
                raise SerializationError(
                    f"{quoted_path(path)}: part name {name!r} is used by another object; add a random suffix"
                )
            self.parts[name] = part
        return {KIND: "parts", "names": names, "state": self.node(parts.state, path, depth + 1)}


def _safetensors_array(array: Any, path: str) -> NDArray[Any]:
    contiguous = np.asarray(array, order="C")
    if contiguous.dtype not in arrays.FORMATS:
        dtype_names = ", ".join(map(str, arrays.FORMATS))
        raise SerializationError(f"part {path!r} is an array of {contiguous.dtype}; safetensors supports {dtype_names}")
    return contiguous


def _is_same(old_part: Part, new_part: dict[str, NDArray[Any]]) -> bool:
    """Return whether a part may reuse a name: its arrays are identical, because an object is saved twice."""
    if not isinstance(old_part, Mapping):
        return True
    return old_part.keys() == new_part.keys() and all(old_part[key] is array for key, array in new_part.items())


def _int(value: int) -> Node:
    # JSON readers, including Python's, limit the digits of a number
    return value if value.bit_length() <= _PLAIN_INT_BITS else {KIND: "int", "hex": hex(value)}


def _float(value: float) -> Node:
    return value if math.isfinite(value) else {KIND: "float", "value": repr(value)}


def _str(value: str) -> Node:
    if is_text(value):
        return value
    return {KIND: "str", "hex": value.encode("utf-8", "surrogatepass").hex()}


def _complex(value: complex) -> Node:
    return {KIND: "complex", "real": value.real.hex(), "imag": value.imag.hex()}


def _items(kind: str, encoder: Encoder, value: Iterable[Any], path: str, depth: int) -> Node:
    return {KIND: kind, "items": encoder.nodes(value, path, depth)}


def _deque(encoder: Encoder, value: deque[Any], path: str, depth: int) -> Node:
    return {KIND: "deque", "maxlen": value.maxlen, "items": encoder.nodes(value, path, depth)}


def _pairs(encoder: Encoder, value: dict[Any, Any], path: str, depth: int) -> list[Node]:
    return [
        [encoder.node(key, path + "/key", depth + 1), encoder.node(item, join(path, key), depth + 1)]
        for key, item in value.items()
    ]


def _dict(encoder: Encoder, value: dict[Any, Any], path: str, depth: int) -> Node:
    if KIND not in value and all(type(key) is str and is_text(key) for key in value):
        return {key: encoder.node(item, f"{path}/{key}", depth + 1) for key, item in value.items()}
    return {KIND: "dict", "items": _pairs(encoder, value, path, depth)}


def _ordered_dict(encoder: Encoder, value: OrderedDict[Any, Any], path: str, depth: int) -> Node:
    node: dict[str, Node] = {KIND: "ordereddict", "items": _pairs(encoder, value, path, depth)}
    # torch stores module versions here, which the loading of old state dicts needs
    if (metadata := getattr(value, "_metadata", None)) is not None:
        node["metadata"] = encoder.node(metadata, path + "/_metadata", depth + 1)
    return node


def _bytes(kind: str, encoder: Encoder, value: bytes | bytearray, path: str, depth: int) -> Node:  # noqa: ARG001 - one shape
    if len(value) <= _MAX_INLINE_BYTES:
        return {KIND: kind, "hex": value.hex()}
    raw = np.frombuffer(value, np.uint8)
    return {KIND: kind, "array": encoder.add_array(path, raw, owned=isinstance(value, bytes))}


ContainerEncoder = Callable[[Encoder, Any, str, int], Node]

_PLAIN: dict[type, Callable[[Any], Node]] = {
    type(None): lambda value: value,
    bool: lambda value: value,
    int: _int,
    float: _float,
    str: _str,
    complex: _complex,
}

_CONTAINERS: dict[type, ContainerEncoder] = {
    list: Encoder.nodes,
    tuple: partial(_items, "tuple"),
    set: partial(_items, "set"),
    frozenset: partial(_items, "frozenset"),
    deque: _deque,
    dict: _dict,
    OrderedDict: _ordered_dict,
    bytes: partial(_bytes, "bytes"),
    bytearray: partial(_bytes, "bytearray"),
}
