"""The module name of ActorState in trieye 0.1.5; it lives in `trieye.compat.actor_state`."""

from trieye.compat.actor_state import ActorState

__all__ = ["ActorState"]
