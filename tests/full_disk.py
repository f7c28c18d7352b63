"""A full disk, simulated by the largest size of a file that the process may write."""

import contextlib
import resource
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def full_disk(max_bytes: int = 0) -> Iterator[None]:
    """Make writes beyond a size fail; Python would cut compiled modules short at that size, so it writes none."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    writes_no_bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        sys.dont_write_bytecode = writes_no_bytecode
