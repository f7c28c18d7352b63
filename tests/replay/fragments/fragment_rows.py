"""Fragments whose content encodes their origin."""

import numpy as np

from trieye.replay.fragments import FragmentBuffer, FragmentMeta, FragmentRules
from trieye.replay.limiter import RateLimiter

STEPS = 4
FRAGMENT_BYTES = 32 + 4 + 6 + 8


def payload(number):
    """Return a fragment of four steps whose arrays all contain `number`."""
    return {
        "obs": np.full((STEPS, 2), number, np.float32),
        "done": np.zeros(STEPS, np.bool_),
        "bootstrap": np.full(3, number, np.int16),
        "number": number,
    }


def meta(worker="w", fid=0, version=0, session="s", incarnation=0):
    return FragmentMeta(worker, fid, version, session, incarnation)


def make_buffer(*, max_chunks=100, version=0, session="s", seed=0, limiter=None, clock=None, **rules):
    """Return a buffer with a current session."""
    options = {} if clock is None else {"clock": clock}
    settings = FragmentRules(max_chunks=max_chunks, **rules)
    buffer = FragmentBuffer(settings, seed=seed, limiter=limiter, **options)
    buffer.set_version(session, version)
    return buffer


def add(buffer, *fids, worker="w", version=0, session="s", incarnation=0):
    """Add fragments whose numbers equal their content, and return the statuses."""
    return [buffer.add(payload(fid), meta(worker, fid, version, session, incarnation)).status for fid in fids]


def fill(buffer, count, *, version=0, start=0):
    """Add `count` fragments of different workers."""
    for number in range(start, start + count):
        add(buffer, number, worker=f"worker-{number}", version=version)


def numbers(lease):
    """Return the numbers in the fragments of each chunk."""
    return [[int(fragment["number"]) for fragment in chunk.fragments] for chunk in lease.chunks]


def versions(buffer):
    """Return the versions of all chunks that can be fetched."""
    lease = buffer.fetch(len(buffer))
    buffer.release(lease)
    return sorted(chunk.model_version for chunk in lease.chunks)


def at_most_ahead(num_chunks):
    """Return a limiter that permits at most that many unused chunks, at least 2."""
    return RateLimiter(1.0, error_buffer=num_chunks - 1)
