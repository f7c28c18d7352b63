"""Seeds of environments: no episode of a training starts from the seed of an evaluation."""

import hashlib

FIRST_SEED = 1_000_000
"""Of the episodes of an evaluation during a training."""

FRESH_SEED = 2_000_000
"""Of the episodes of later evaluations, which did not select the best checkpoint."""

_RESERVED = range(FIRST_SEED, 3_000_000)
_BEYOND = 3 << 29
_MAX_ENVS = 100_000
"""Environments of one vector, which have consecutive seeds."""


def training_seed(seed: int, *counts: int) -> int:
    """Return the seed of the first environment of a vector that a training steps.

    Args:
        seed: Seed of the run; returned unchanged without counts, unless evaluations use it.
        counts: Tell this start from others of the run, such as the environment steps at a resume. The result is below
            2**31, for simulators that take no larger seed.
    """
    if counts:
        digest = hashlib.blake2b(repr((seed, *counts)).encode(), digest_size=8).digest()
        seed = int.from_bytes(digest) % (1 << 30)
    return seed + _BEYOND if _RESERVED.start - _MAX_ENVS < seed < _RESERVED.stop else seed
