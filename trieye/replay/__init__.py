"""Replay: transitions kept in memory, drawn at random, saved with the checkpoint."""

from typing import Any

from trieye.renames import no_attribute
from trieye.replay.batch import Batch
from trieye.replay.buffer import ReplayBuffer
from trieye.replay.hindsight import HindsightRelabeler
from trieye.replay.limiter import RateLimiter
from trieye.replay.samplers.base import SampledIds

__all__ = ["Batch", "HindsightRelabeler", "RateLimiter", "ReplayBuffer", "SampledIds"]


def __getattr__(name: str) -> Any:
    raise no_attribute(__name__, name)
