"""Samplers: which rows of a replay buffer are drawn."""

from trieye.replay.samplers.base import Draw, RowSampler, Sampler
from trieye.replay.samplers.prioritized import PrioritizedSampler
from trieye.replay.samplers.sequence import SequenceSampler
from trieye.replay.samplers.uniform import UniformSampler

__all__ = ["Draw", "PrioritizedSampler", "RowSampler", "Sampler", "SequenceSampler", "UniformSampler"]
