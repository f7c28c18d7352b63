"""The module name of ActorLogic in trieye 0.1.5; it lives in `trieye.hub.logic`."""

from trieye.hub.logic import ActorLogic

__all__ = ["ActorLogic"]
