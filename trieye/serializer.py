"""Compatibility alias for trieye 0.1.5: Serializer from `trieye.compat.serializer`."""

from trieye.compat.serializer import Serializer

__all__ = ["Serializer"]
