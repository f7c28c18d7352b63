"""Replay: transitions kept in memory, drawn at random, saved with the checkpoint."""

from trieye.replay.batch import Batch
from trieye.replay.uniform import ReplayBuffer

__all__ = ["Batch", "ReplayBuffer"]
