"""Decodes encoded states."""

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trieye.exceptions import SerializationError
from trieye.snapshot import arrays, generators, objects, tensors
from trieye.snapshot.nodes import KIND, OTHER_CHECKPOINT, EncodedState, Node
from trieye.snapshot.parts import OnDamage, SavedParts


def decode(encoded: EncodedState, *, copy: bool = True, on_damage: OnDamage = "partial") -> Any:
    """Invert `encode`; this executes the code of pickled parts, whose signature `load_state` has checked.

    Args:
        encoded: The snapshot.
        copy: With False, the result may share memory with `encoded`, which then can be decoded only once.
        on_damage: Policy of `SavedParts` for damaged parts.

    Raises:
        SerializationError: The snapshot is inconsistent, or a pickled part cannot be restored.
    """
    return _Decoder(encoded, copy=copy, on_damage=on_damage).value(encoded.tree)


class _Decoder:
    def __init__(self, encoded: EncodedState, *, copy: bool, on_damage: OnDamage) -> None:
        self._encoded, self._on_damage = encoded, on_damage
        self._copy = copy
        self._classes: dict[str, Any] = {}
        self._tensors: dict[str, Any] = {}

    def value(self, node: Node) -> Any:
        try:
            return self._value(node)
        except SerializationError:
            raise
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, RuntimeError, OverflowError) as error:
            raise SerializationError(
                f"the saved state is inconsistent: {type(error).__name__}: {error}; {OTHER_CHECKPOINT}"
            ) from error

    def _value(self, node: Node) -> Any:
        if type(node) is list:
            return [self._value(item) for item in node]
        if type(node) is not dict:
            return node
        if KIND not in node:
            return {key: self._value(item) for key, item in node.items()}
        decode_kind = _KINDS.get(node[KIND])
        if decode_kind is None:
            raise SerializationError(
                f"the saved state contains a {node[KIND]!r}, which this version of trieye does not support"
            )
        return decode_kind(self, node)

    def items(self, node: Node) -> list[Any]:
        return [self._value(item) for item in node["items"]]

    def pairs(self, node: Node) -> list[tuple[Any, Any]]:
        return [(self._value(key), self._value(item)) for key, item in node["items"]]

    def tensor(self, node: Node) -> Any:
        name = node["array"]
        if name not in self._tensors:
            self._tensors[name] = tensors.decode_tensor(node, self.array(name))
            return self._tensors[name]
        return self._tensors[name].detach()  # restores shared memory

    def array(self, name: str) -> NDArray[Any]:
        array = self._encoded.arrays[name]
        return np.array(array, order="C") if self._copy or not array.flags.writeable else array

    def object(self, name: str) -> Any:
        return objects.decode_object(self._encoded.objects[name], name, self._value)

    def raw(self, node: Node) -> bytes:
        return bytes.fromhex(node["hex"]) if "hex" in node else self._encoded.arrays[node["array"]].tobytes()

    def parts(self, node: Node) -> SavedParts:
        names = tuple(node["names"])
        parts = {name: self._encoded.parts[name] for name in names}
        return SavedParts(self._value(node["state"]), names, parts, self._on_damage)

    def named_tuple(self, node: Node) -> Any:
        name = node["class"]
        if name not in self._classes:
            self._classes[name] = self.object(name)
        return self._classes[name]._make(self.items(node))

    def ordered_dict(self, node: Node) -> OrderedDict[Any, Any]:
        ordered = OrderedDict(self.pairs(node))
        if "metadata" in node:
            ordered._metadata = self._value(node["metadata"])  # type: ignore[attr-defined]  # noqa: SLF001 - as torch does
        return ordered


_KINDS: dict[str, Callable[[_Decoder, Any], Any]] = {
    "int": lambda _, node: int(node["hex"], 16),
    "float": lambda _, node: float(node["value"]),
    "str": lambda _, node: bytes.fromhex(node["hex"]).decode("utf-8", "surrogatepass"),
    "complex": lambda _, node: complex(float.fromhex(node["real"]), float.fromhex(node["imag"])),
    "bytes": lambda decoder, node: decoder.raw(node),
    "bytearray": lambda decoder, node: bytearray(decoder.raw(node)),
    "tuple": lambda decoder, node: tuple(decoder.items(node)),
    "set": lambda decoder, node: set(decoder.items(node)),
    "frozenset": lambda decoder, node: frozenset(decoder.items(node)),
    "deque": lambda decoder, node: deque(decoder.items(node), node["maxlen"]),
    "dict": lambda decoder, node: dict(decoder.pairs(node)),
    "ordereddict": lambda decoder, node: decoder.ordered_dict(node),
    "namedtuple": lambda decoder, node: decoder.named_tuple(node),
    "ndarray": lambda decoder, node: arrays.decode_array(node, decoder.array(node["array"])),
    "scalar": lambda _, node: arrays.decode_scalar(node),
    "tensor": lambda decoder, node: decoder.tensor(node),
    "torch.Size": lambda _, node: tensors.decode_attribute(node),
    "torch.dtype": lambda _, node: tensors.decode_attribute(node),
    "torch.device": lambda _, node: tensors.decode_attribute(node),
    "generator": lambda decoder, node: generators.new_generator(decoder.value(node["state"])),
    "object": lambda decoder, node: decoder.object(node["object"]),
    "parts": lambda decoder, node: decoder.parts(node),
}
