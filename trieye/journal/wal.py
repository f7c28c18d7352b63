"""Detects committed transactions in a journal's write-ahead log that SQLite ignores because of a damaged frame.

SQLite stops reading at the first frame with a wrong checksum. That is right for a write that a kill interrupted, but it
hides damage: transactions committed after a flipped bit would be lost silently. Only a log that was truncated after a
complete transaction is indistinguishable from a shorter intact log.
"""

import struct

from trieye.journal.schema import PAGE_SIZE

HEADER_BYTES = 32
FRAME_BYTES = 24 + PAGE_SIZE
_MAGIC = 0x377F0682  # plus 1 if the checksums use big-endian words
_FORMAT = 3007000


def damage_in_wal(data: bytes, num_taken: int) -> str:
    """Describe the damage in a log; empty if there is none, or only an interrupted write.

    Args:
        data: Content of the log, with the journal's page size.
        num_taken: Number of frames that SQLite applies.
    """
    count = (len(data) - HEADER_BYTES) // FRAME_BYTES
    if count <= num_taken:
        return ""
    if not _is_header_intact(data):
        return "the header of the write-ahead log is damaged"
    salts = struct.unpack_from(">2I", data, 16)
    heads = [struct.unpack_from(">4I", data, HEADER_BYTES + n * FRAME_BYTES) for n in range(num_taken, count)]
    # Each round of the log has new salts, and overwrites frames of the previous round from the start; a flipped bit
    # changes only one of the two salts. Only a power loss leaves zeros.
    own_heads = [head for head in heads if head[2] == salts[0] or head[3] == salts[1] or not any(head)]
    if own_heads[-1:] != heads[-1:]:
        # A kill between the two writes of a frame leaves its head before bytes of an earlier round. A frame at the end
        # of the file is complete, so wrong bytes in it are damage.
        own_heads = own_heads[:-1]
    num_lost = sum(head[1] != 0 or not any(head) for head in own_heads)  # the second number is 0 within a transaction
    return f"{num_lost} transactions in the write-ahead log follow damaged bytes" if num_lost else ""


def _is_header_intact(data: bytes) -> bool:
    words = struct.unpack_from(">8I", data)
    sum_1 = sum_2 = 0
    for even_word, odd_word in struct.iter_unpack(">2I" if words[0] & 1 else "<2I", data[:24]):
        sum_1 = sum_1 + even_word + sum_2 & 0xFFFFFFFF
        sum_2 = sum_2 + odd_word + sum_1 & 0xFFFFFFFF
    return words[0] | 1 == _MAGIC | 1 and words[1:3] == (_FORMAT, PAGE_SIZE) and words[6:] == (sum_1, sum_2)
