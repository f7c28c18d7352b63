"""Pickles values that are neither plain data nor arrays, and stores their tensors separately on the CPU."""

import enum
import io
import json
import logging
import pickle
import sys
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import cloudpickle

from trieye.exceptions import SerializationError
from trieye.snapshot.nodes import KIND, ArrayCollector, Node, quoted_path
from trieye.snapshot.tensors import encode_tensor

logger = logging.getLogger(__name__)

_warned = False


def is_named_tuple(cls: type) -> bool:
    """Return whether a subclass of tuple was created by `NamedTuple` or `namedtuple`."""
    return hasattr(cls, "_fields") and hasattr(cls, "_make")


def encode_object(encoder: ArrayCollector, value: Any, path: str) -> Node:
    """Pickle `value`.

    Raises:
        SerializationError: `value` cannot be pickled; the message contains its path.
    """
    _warn_once(path, type(value))
    return {KIND: "object", "object": encoder.add_object(path, _pickle(encoder, value, path))}


def encode_class(encoder: ArrayCollector, cls: type) -> str:
    """Pickle a class once per state and return the name of the pickle."""
    name = f"class {cls.__module__}.{cls.__qualname__} {id(cls):x}"
    if name not in encoder.objects:
        _warn_once(name, cls)
        encoder.objects[name] = _pickle(encoder, cls, name)
    return name


def decode_object(data: bytes, path: str, node_value: Callable[[Node], Any]) -> Any:
    """Unpickle an object; this executes code, so the caller must have checked its origin.

    Raises:
        SerializationError: A class is missing or has changed; the message names the pickle.
    """
    try:
        return _Unpickler(data, node_value).load()
    except Exception as error:  # a border: user classes may raise anything
        raise SerializationError(
            f"the pickled part {path!r} cannot be restored: {error!r}; its class must be importable"
        ) from error


def _warn_once(path: str, cls: type) -> None:
    global _warned
    if not _warned:
        _warned = True
        logger.warning(
            "%s is a %s.%s, which is neither plain data nor an array: it is pickled, and loading it requires this "
            "user's key and an importable class (reported once; there may be more pickled values)",
            quoted_path(path),
            cls.__module__,
            cls.__qualname__,
        )


def _pickle(encoder: ArrayCollector, value: Any, path: str) -> bytes:
    buffer = io.BytesIO()
    try:
        _Pickler(buffer, encoder, path).dump(value)
    except Exception as error:  # a border: user classes may raise anything
        raise SerializationError(
            f"{quoted_path(path)} is a {type(value).__module__}.{type(value).__qualname__}, which cannot be pickled: "
            f"{error}; give it a state_dict() method, or save plain data, arrays and tensors instead"
        ) from error
    return buffer.getvalue()


def _present_class(name: str, kind: tuple[bool, bool], saved_class: bytes) -> Any:
    """Return the class of the main module with a qualified name, or the saved one if it lacks such a class.

    Checkpoints refer to this function by its name.
    """
    cls = _main_class(name)
    return cls if cls is not None and _kind(cls) == kind else pickle.loads(saved_class)  # noqa: S301 - in a signed part


def _main_class(name: str) -> type | None:
    try:
        cls = attrgetter(name)(sys.modules["__main__"])
    except AttributeError:
        return None
    return cls if isinstance(cls, type) else None


def _kind(cls: type) -> tuple[bool, bool]:
    return issubclass(cls, enum.Enum), is_named_tuple(cls)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    """Stores tensors outside the pickle, so that GPU tensors can be loaded without a GPU.

    Classes of the main module are found by name in the program that loads the pickle; the saved class replaces a
    missing one.
    """

    def __init__(self, file: io.BytesIO, encoder: ArrayCollector, path: str) -> None:
        super().__init__(file)
        self._encoder = encoder
        self._path = path
        # by id, so that tied weights stay tied; the reference to the tensor prevents reuse of its id
        self._references: dict[int, tuple[Any, str]] = {}

    def persistent_id(self, value: Any) -> str | None:
        torch = sys.modules.get("torch")
        if torch is None or type(value) not in {torch.Tensor, torch.nn.Parameter}:
            return None
        if id(value) not in self._references:
            self._references[id(value)] = (value, self._described(value))
        return self._references[id(value)][1] or None

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, type) and value.__module__ == "__main__" and _main_class(value.__qualname__) is value:
            return _present_class, (value.__qualname__, _kind(value), cloudpickle.dumps(value))
        return super().reducer_override(value)

    def _described(self, tensor: Any) -> str:
        node = encode_tensor(self._encoder, tensor, self._path + "/tensor")
        if node is None:
            return ""
        index = len(self._references)
        return json.dumps([index, node, type(tensor).__name__ == "Parameter", tensor.requires_grad])


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, node_value: Callable[[Node], Any]) -> None:
        super().__init__(io.BytesIO(data))
        self._node_value = node_value
        self._tensor_by_description: dict[str, Any] = {}

    def persistent_load(self, description: str) -> Any:
        if description not in self._tensor_by_description:
            self._tensor_by_description[description] = self._restored(description)
        return self._tensor_by_description[description]

    def _restored(self, description: str) -> Any:
        import torch

        _, node, is_parameter, requires_grad = json.loads(description)
        tensor = self._node_value(node)
        if is_parameter:
            return torch.nn.Parameter(tensor, requires_grad=requires_grad)
        return tensor.requires_grad_(requires_grad)
