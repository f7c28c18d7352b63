"""The module name of Serializer in trieye 0.1.5; it lives in `trieye.compat.serializer`."""

from trieye.compat.serializer import Serializer

__all__ = ["Serializer"]
