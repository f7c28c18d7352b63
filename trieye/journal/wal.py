"""The write-ahead log beside a journal, read as bytes: which of its frames SQLite takes, and which it leaves.

SQLite ends at the first frame whose checksum is wrong, whatever follows. That is right for a write that a kill
interrupted, and hides damage: what was committed after a flipped bit would be gone without a word. Only a log from
whose end whole transactions were cut off cannot be told from one into which they were never written.
"""

import functools
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from trieye.journal.schema import PAGE_SIZE

HEADER_BYTES = 32
FRAME_BYTES = 24 + PAGE_SIZE
_MAGIC = 0x377F0682  # one more: the words of the checksums are big-endian
_FORMAT = 3007000

_Words = NDArray[np.uint32]
_Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class WriteAheadLog:
    """What a log holds.

    Attributes:
        num_frames: Frames that SQLite takes.
        num_pages: Pages of the file after the last whole transaction; 0 if there is none.
        pages: Where the newest whole content of each page begins in the bytes, also beyond what SQLite takes.
        num_bad: Frames whose content is damaged.
        damage: What is wrong with it; None if nothing is.
    """

    num_frames: int = 0
    num_pages: int = 0
    pages: dict[int, int] = field(default_factory=dict)
    num_bad: int = 0
    damage: str | None = None


def read_wal(data: bytes) -> WriteAheadLog:
    """Read a log of pages of the journal's size."""
    count = (len(data) - HEADER_BYTES) // FRAME_BYTES
    if count <= 0:
        return WriteAheadLog()
    frames = np.frombuffer(data, np.uint8, count * FRAME_BYTES, HEADER_BYTES).reshape(count, FRAME_BYTES)
    heads = frames[:, :24].copy().view(">u4").astype(np.uint32)  # page, size at a commit, salt (2), checksum (2)
    header = np.frombuffer(data, ">u4", 8).astype(np.uint32)
    is_header_whole = _is_header(data, header)
    follows, is_whole = _verify(frames, heads[:, 4:], header)
    salts = heads[:, 2:4]
    is_own = (salts == (header[4:6] if is_header_whole else _most_frequent(salts))).all(axis=1)
    is_own |= ~heads.any(axis=1)  # only a power loss leaves zeros
    num_run = _num_leading(follows & is_own) if is_header_whole else 0
    if num_run < count and follows[num_run]:
        is_own[num_run] = True  # only its salt is damaged: the checksum says that it continues what is before it
    is_commit = heads[:, 1] != 0
    num_taken, end = _end_of_last(is_commit[:num_run]), _end_of_last(is_commit & is_own)
    sizes = heads[is_commit & is_own & is_whole, 1]
    whole = np.flatnonzero((is_own & is_whole)[:end])
    damage = _damage(np.flatnonzero(is_own), num_taken, count, is_commit, is_whole, is_header_whole=is_header_whole)
    return WriteAheadLog(
        num_frames=num_taken,
        num_pages=int(sizes[-1]) if len(sizes) else 0,
        pages={int(heads[k, 0]): HEADER_BYTES + int(k) * FRAME_BYTES + 24 for k in whole},
        num_bad=int((is_own & ~is_whole).sum()) if damage else 0,
        damage=damage,
    )


def _damage(
    own: NDArray[np.intp], num_taken: int, count: int, is_commit: _Flags, is_whole: _Flags, *, is_header_whole: bool
) -> str | None:
    """Say what was lost after the frames that SQLite takes, if it was not a kill that left it."""
    beyond = own[own >= num_taken]
    if not len(beyond):
        return None
    last = int(beyond[-1])
    # A kill between the two writes of a frame leaves its header before bytes of an earlier round, or before nothing.
    # A frame that ends the file is complete: what is wrong in it was right once.
    is_torn = is_header_whole and last < count - 1 and not is_whole[last]
    lost = beyond[is_commit[beyond]]
    num_lost = len(lost) - int(is_torn and last in lost)
    if num_lost:
        return f"{num_lost} transactions in the write-ahead log stand after damaged bytes"
    if last == count - 1 and not is_whole[last]:
        return "the end of the write-ahead log is damaged"
    return None


def _is_header(data: bytes, header: _Words) -> bool:
    words = np.frombuffer(data, _byte_order(header), 6).astype(np.uint32)[np.newaxis]
    is_known = int(header[0]) | 1 == _MAGIC | 1 and header[1] == _FORMAT and header[2] == PAGE_SIZE
    return bool(is_known and (_checksums(words, np.zeros((1, 2), np.uint32)) == header[6:]).all())


def _byte_order(header: _Words) -> str:
    return ">u4" if header[0] & 1 else "<u4"


def _verify(frames: NDArray[np.uint8], stored: _Words, header: _Words) -> tuple[_Flags, _Flags]:
    """Return for each frame whether it continues the one before as SQLite demands, and whether its content is whole.

    Checksums go on from frame to frame. After a damaged one they are right again if they begin with the sum that it
    stores; if it is that sum which is damaged, then with the sum that it should store.
    """
    words = np.concatenate([frames[:, :8], frames[:, 24:]], axis=1).view(_byte_order(header)).astype(np.uint32)
    before = np.concatenate([header[np.newaxis, 6:], stored[:-1]])
    computed = _checksums(words, before)
    follows = (computed == stored).all(axis=1)
    bridged = (_checksums(words[1:], computed[:-1]) == stored[1:]).all(axis=1)
    is_whole = follows.copy()
    is_whole[1:] |= bridged
    is_whole[:-1] |= bridged
    return follows, is_whole


def _checksums(words: _Words, seeds: _Words) -> _Words:
    """Return SQLite's checksum of each row of words, begun with a seed: both have two words, or `[n, 2]`.

    SQLite takes two words at a time: `s0 += even + s1; s1 += odd + s0`. That is linear (modulo 2**32), and the weights
    of the words are Fibonacci numbers.
    """
    weights, carry = _weights(words.shape[1])
    result: _Words = words @ weights + seeds @ carry
    return result


@functools.cache
def _weights(count: int) -> tuple[_Words, _Words]:
    numbers = [0, 1]
    while len(numbers) < count + 2:
        numbers.append((numbers[-1] + numbers[-2]) & 0xFFFFFFFF)
    fibonacci = np.array(numbers, np.uint32)
    weights = np.stack([fibonacci[count - 1 :: -1], fibonacci[count:0:-1]], axis=1)
    carry = np.array([fibonacci[[count - 1, count]], fibonacci[[count, count + 1]]])
    return weights, carry


def _most_frequent(rows: _Words) -> _Words:
    different, counts = np.unique(rows, axis=0, return_counts=True)
    found: _Words = different[np.argmax(counts)]
    return found


def _num_leading(flags: _Flags) -> int:
    return len(flags) if flags.all() else int(np.argmin(flags))


def _end_of_last(flags: _Flags) -> int:
    found = np.flatnonzero(flags)
    return int(found[-1]) + 1 if len(found) else 0
