"""Fragments: slices of the experience of many workers, handed out as chunks of consecutive ones."""

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
