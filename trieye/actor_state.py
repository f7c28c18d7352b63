"""Compatibility alias for trieye 0.1.5: ActorState from `trieye.compat.actor_state`."""

from trieye.compat.actor_state import ActorState

__all__ = ["ActorState"]
