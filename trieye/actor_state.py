"""The module name of ActorState in trieye 0.1.5; it lives in `trieye.hub.fold`."""

from trieye.hub.fold import ActorState

__all__ = ["ActorState"]
