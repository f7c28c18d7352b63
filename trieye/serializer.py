"""The module name of Serializer in trieye 0.1.5; it lives in `trieye.checkpoints.serializer`."""

from trieye.checkpoints.serializer import Serializer

__all__ = ["Serializer"]
