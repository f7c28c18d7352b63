"""The module name of ActorLogic in trieye 0.1.5; it lives in `trieye.compat.actor_logic`."""

from trieye.compat.actor_logic import ActorLogic

__all__ = ["ActorLogic"]
