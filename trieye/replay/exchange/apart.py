"""Rows that are imported, kept apart from those of a buffer whose environments have the same numbers."""

from collections.abc import Iterator
from contextlib import contextmanager

from trieye.replay.buffer import ReplayBuffer


@contextmanager
def apart(buffer: ReplayBuffer) -> Iterator[None]:
    """Let no episode go on from a row added before the block to one inside, or from there to one added after it."""
    buffer.interrupt()
    try:
        yield
    finally:
        buffer.interrupt()
