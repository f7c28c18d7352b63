"""The write-ahead log beside a journal, read as bytes: what in it SQLite does not take, and should have taken.

SQLite ends at the first frame whose checksum is wrong, whatever follows. That is right for a write that a kill
interrupted, and hides damage: what was committed after a flipped bit would be gone without a word. Only a log from
whose end whole transactions were cut off cannot be told from one into which they were never written.
"""

import struct

from trieye.journal.schema import PAGE_SIZE

HEADER_BYTES = 32
FRAME_BYTES = 24 + PAGE_SIZE
_MAGIC = 0x377F0682  # one more: the words of the checksums are big-endian
_FORMAT = 3007000


def damage_in_wal(data: bytes, num_taken: int) -> str:
    """Say what is damaged in a log of pages of the journal's size; empty if nothing is but what a kill leaves.

    Args:
        data: The log.
        num_taken: How many of its frames SQLite takes.
    """
    count = (len(data) - HEADER_BYTES) // FRAME_BYTES
    if count <= num_taken:
        return ""
    if not _is_header_whole(data):
        return "the header of the write-ahead log is damaged"
    salts = struct.unpack_from(">2I", data, 16)
    heads = [struct.unpack_from(">4I", data, HEADER_BYTES + n * FRAME_BYTES) for n in range(num_taken, count)]
    # Each round of the log has other salts, and begins before frames of the round before; a flipped bit leaves one of
    # the two as it was. Only a power loss leaves zeros.
    own = [head for head in heads if head[2] == salts[0] or head[3] == salts[1] or not any(head)]
    if own[-1:] != heads[-1:]:
        # A kill between the two writes of a frame leaves its head before bytes of an earlier round. A frame that ends
        # the file is complete: what is wrong in it was right once.
        own = own[:-1]
    num_lost = sum(head[1] != 0 or not any(head) for head in own)  # the second number is 0 within a transaction
    return f"{num_lost} transactions in the write-ahead log stand after damaged bytes" if num_lost else ""


def _is_header_whole(data: bytes) -> bool:
    words = struct.unpack_from(">8I", data)
    first = second = 0
    for even, odd in struct.iter_unpack(">2I" if words[0] & 1 else "<2I", data[:24]):
        first = first + even + second & 0xFFFFFFFF
        second = second + odd + first & 0xFFFFFFFF
    return words[0] | 1 == _MAGIC | 1 and words[1:3] == (_FORMAT, PAGE_SIZE) and words[6:] == (first, second)
