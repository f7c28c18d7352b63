"""The module name of TrieyeActor in trieye 0.1.5; it lives in `trieye.hub.actor`."""

from trieye.hub.actor import TrieyeActor, actor_name, get_or_create

__all__ = ["TrieyeActor", "actor_name", "get_or_create"]
