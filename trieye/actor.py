"""Compatibility alias for trieye 0.1.5: TrieyeActor and its functions from `trieye.compat.actor`."""

from trieye.compat.actor import TrieyeActor, get_or_create
from trieye.hub.actor import actor_name

__all__ = ["TrieyeActor", "actor_name", "get_or_create"]
