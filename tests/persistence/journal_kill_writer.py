"""A process that writes to a journal until it is killed, and says what was acknowledged: `path durability`."""

import os
import random
import sys
from pathlib import Path

from trieye.persistence.journal import Chunk, Journal, Snapshot

journal = Journal(Path(sys.argv[1]), durability=sys.argv[2])
print("open", journal.last_pos, journal.num_lost, *journal.damage, flush=True)
source = random.Random(os.getpid())
seq = len([1 for record in journal.records(0) if record.client == "writer"])
last = journal.snapshot()
seq, index = (int.from_bytes(last.payload, "big"), last.index) if last else (0, 0)
seq += sum(record.pos > last.pos for record in journal.records(0)) if last else len(list(journal.records(0)))
while True:
    seq += 1
    payload = b"%d:" % seq + bytes(source.choice([10, 2800, 9000]))
    pos = journal.append("events", payload, at=float(seq), client="writer", seq=seq)
    os.write(1, b"%d\n" % pos)
    if source.random() < 0.01:
        chunk = Chunk(index, index + 1, b"%d" % index)
        index += 1
        journal.commit(Snapshot(pos, index, float(seq), seq.to_bytes(8, "big")), chunks=[chunk], keep_after=pos)
        journal.set_cursor("sink", index, None)
