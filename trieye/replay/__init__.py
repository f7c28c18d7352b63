"""Replay: transitions kept in memory, drawn at random, saved with the checkpoint."""

from trieye.replay.batch import Batch
from trieye.replay.buffer import ReplayBuffer
from trieye.replay.hindsight import Hindsight
from trieye.replay.limiter import Limiter
from trieye.replay.samplers.base import Draw

__all__ = ["Batch", "Draw", "Hindsight", "Limiter", "ReplayBuffer"]
