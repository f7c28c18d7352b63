"""Seeds of environments: separates the seeds of training from those reserved for evaluations."""

import hashlib

FIRST_SEED = 1_000_000
"""First seed of evaluations during a training."""

FRESH_SEED = 2_000_000
"""First seed of later evaluations; its episodes did not select the best checkpoint."""

_RESERVED = range(FIRST_SEED, 3_000_000)
_UNRESERVED_OFFSET = 3 << 29
_MAX_ENVS = 100_000
"""Limit of the environments of one vector, which have consecutive seeds."""


def training_seed(seed: int, *counts: int) -> int:
    """Return the seed of the first environment of a training vector.

    Args:
        seed: Seed of the run; returned unchanged without counts, unless it is reserved for evaluations.
        counts: Distinguish this start from others of the run, such as the environment steps at a resume. The result is
            below 2**31, the limit of some simulators.
    """
    if counts:
        digest = hashlib.blake2b(repr((seed, *counts)).encode(), digest_size=8).digest()
        seed = int.from_bytes(digest) % (1 << 30)
    return seed + _UNRESERVED_OFFSET if _RESERVED.start - _MAX_ENVS < seed < _RESERVED.stop else seed
