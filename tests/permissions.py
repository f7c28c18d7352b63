"""Access rights as of a user other than root, whom they do not restrict."""

import contextlib
import ctypes
import os
from collections.abc import Iterator

_VERSION = 0x20080522
_OVERRIDES = 0b110  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH


@contextlib.contextmanager
def restricted_access() -> Iterator[None]:
    """Apply the modes of files to the calling thread, also if the tests run as root."""
    if os.geteuid() != 0:
        yield
        return
    libc, header, before = ctypes.CDLL(None), (ctypes.c_uint32 * 2)(_VERSION, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, before) == 0
    assert libc.capset(header, (ctypes.c_uint32 * 6)(before[0] & ~_OVERRIDES, *before[1:])) == 0
    try:
        yield
    finally:
        assert libc.capset(header, before) == 0
