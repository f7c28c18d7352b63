"""A process that writes to a journal until it is killed, and says what was acknowledged: `path durability`."""

import os
import random
import sys
from pathlib import Path

from trieye.journal.journal import Chunk, Journal, Snapshot

journal = Journal(Path(sys.argv[1]), durability=sys.argv[2])
os.write(1, f"open {journal.last_pos} {journal.num_lost} {' '.join(journal.damage)}\n".encode())
source = random.Random(os.getpid())
seq = journal.last_pos  # nobody else sends anything
last = journal.snapshot()
index = 0 if last is None else last.index
while True:
    seq += 1
    payload = b"%d:" % seq + bytes(source.choice([10, 2800, 9000]))
    pos = journal.append("events", payload, at=float(seq), client="writer", seq=seq)
    os.write(1, b"%d\n" % pos)
    if source.random() < 0.01:
        chunk = Chunk(index, index + 1, b"%d" % index)
        index += 1
        journal.commit(Snapshot(pos, index, float(seq), bytes(20_000)), chunks=[chunk], keep_after=pos)
        journal.set_cursor("sink", index, None)
