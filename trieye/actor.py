"""The module name of TrieyeActor in trieye 0.1.5; it lives in `trieye.compat.actor`."""

from trieye.compat.actor import TrieyeActor, get_or_create
from trieye.hub.actor import actor_name

__all__ = ["TrieyeActor", "actor_name", "get_or_create"]
