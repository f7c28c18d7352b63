"""Compatibility alias for trieye 0.1.5: ActorLogic from `trieye.compat.actor_logic`."""

from trieye.compat.actor_logic import ActorLogic

__all__ = ["ActorLogic"]
