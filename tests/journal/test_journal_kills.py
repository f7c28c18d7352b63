import functools
import random

import pytest

from tests.forked import forked, lines_until_killed
from trieye.journal.journal import Journal, JournalChunk, Snapshot
from trieye.journal.scan import inspect


def write(path, durability, seed, report):
    """Write to a journal until this process is killed, and report each acknowledged position."""
    journal = Journal(path, durability=durability)
    report(f"{journal.last_pos} {journal.num_lost} {' '.join(journal.damage)}")
    source = random.Random(seed)
    seq = journal.last_pos  # there is no other client
    last = journal.snapshot()
    index = 0 if last is None else last.index
    while True:
        seq += 1
        payload = b"%d:" % seq + bytes(source.choice([10, 2800, 9000]))
        pos = journal.append("events", payload, at=float(seq), client="writer", seq=seq)
        report(pos)
        if source.random() < 0.01:
            chunk = JournalChunk(index, index + 1, b"%d" % index)
            index += 1
            journal.commit(Snapshot(pos, index, float(seq), bytes(20_000)), chunks=[chunk], keep_after=pos)
            journal.set_cursor("sink", index, None)


@pytest.mark.parametrize(
    ("durability", "most", "is_remote"),
    [("process", 500, False), ("interval", 500, False), ("always", 100, False), ("process", 100, True)],
)
def test_acknowledged_entries_survive_a_kill_of_the_writer(tmp_path, durability, most, is_remote, request):
    if is_remote:
        request.getfixturevalue("mounts")
    source = random.Random(durability)
    path = tmp_path / "journal.db"
    acknowledged = 0
    for seed in range(3):
        work = functools.partial(write, path, durability, seed)
        opened, *acknowledgements = lines_until_killed(work, 1 + source.randrange(1, most))
        last_pos, *damage = opened.split()
        # the batch in progress may or may not be accepted
        assert acknowledged <= int(last_pos) <= acknowledged + 1
        assert damage == ["0"]
        acknowledged = int(acknowledgements[-1])
    journal = Journal(path)
    assert (journal.damage, journal.num_lost) == ([], 0)
    assert acknowledged <= journal.last_pos <= acknowledged + 1
    records = list(journal.records(0))
    assert [record.pos for record in records] == list(range(records[0].pos, journal.last_pos + 1))
    # positions, batch numbers and contents increase together, without repetitions
    assert all(record.pos == record.seq == int(record.payload.split(b":")[0]) for record in records)
    assert records[0].pos <= (journal.snapshot().pos if journal.snapshot() else 1) + 1
    assert [journal.read_chunk(first) for first, _ in journal.chunks()] == [
        b"%d" % index for index in range(journal.snapshot().index if journal.snapshot() else 0)
    ]
    journal.close()


def test_a_journal_is_intact_while_another_process_writes_it(tmp_path):
    path = tmp_path / "journal.db"
    with forked(functools.partial(write, path, "process", 1)) as output:
        output.readline()
        last_pos = 0
        for _ in range(10):
            acknowledged = int(output.readline())
            scanned = inspect(path)
            assert scanned.damage == []
            assert scanned.last_pos >= max(acknowledged, last_pos)
            assert scanned.num_records <= scanned.last_pos
            last_pos = scanned.last_pos
            for _ in range(100):
                output.readline()
