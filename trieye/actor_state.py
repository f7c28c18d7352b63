"""The module name of ActorState in trieye 0.1.5; it lives in `trieye.hub.pending`."""

from trieye.hub.pending import ActorState

__all__ = ["ActorState"]
