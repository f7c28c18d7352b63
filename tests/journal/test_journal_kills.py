import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from trieye.journal.journal import Journal

WRITER = Path(__file__).with_name("journal_kill_writer.py")


def written_until_killed(path, durability, num_acknowledged):
    """Let a process write and kill it; return what it said when it began, and the last position it acknowledged."""
    command = [sys.executable, str(WRITER), str(path), durability]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        opened = process.stdout.readline().split()
        lines = [process.stdout.readline() for _ in range(num_acknowledged)]
        process.kill()
        lines += process.stdout.readlines()
    assert process.returncode == -signal.SIGKILL
    return opened, int([line for line in lines if line.endswith(b"\n")][-1])


@pytest.mark.parametrize(("durability", "most"), [("process", 2000), ("interval", 2000), ("always", 200)])
def test_nothing_acknowledged_is_lost_when_the_writer_is_killed(tmp_path, durability, most):
    source = random.Random(durability)
    path = tmp_path / "journal.db"
    acknowledged = 0
    for _ in range(5):
        opened, last = written_until_killed(path, durability, source.randrange(1, most))
        # of the batch that was under way nobody knows whether it was accepted
        assert opened[0] == b"open"
        assert acknowledged <= int(opened[1]) <= acknowledged + 1
        assert opened[2:] == [b"0"], "damage"
        acknowledged = last
    journal = Journal(path)
    assert (journal.damage, journal.num_lost) == ([], 0)
    assert acknowledged <= journal.last_pos <= acknowledged + 1
    records = list(journal.records(0))
    assert [record.pos for record in records] == list(range(records[0].pos, journal.last_pos + 1))
    # positions, numbers of batches and contents went up together: none came twice
    assert all(record.pos == record.seq == int(record.payload.split(b":")[0]) for record in records)
    assert records[0].pos <= (journal.snapshot().pos if journal.snapshot() else 1) + 1
    assert [journal.read_chunk(first) for first, _ in journal.chunks()] == [
        b"%d" % index for index in range(journal.snapshot().index if journal.snapshot() else 0)
    ]
    journal.close()
