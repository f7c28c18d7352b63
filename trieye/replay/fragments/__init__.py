"""Fragments: slices of experience from many workers, sampled as chunks of consecutive fragments."""

from trieye.replay.fragments.buffer import FragmentBuffer
from trieye.replay.fragments.fragment import (
    AddResult,
    AddStatus,
    Chunk,
    Fragment,
    FragmentMeta,
    FragmentRules,
    Lease,
    stack,
)

__all__ = [
    "AddResult",
    "AddStatus",
    "Chunk",
    "Fragment",
    "FragmentBuffer",
    "FragmentMeta",
    "FragmentRules",
    "Lease",
    "stack",
]
