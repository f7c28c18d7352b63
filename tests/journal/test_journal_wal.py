import contextlib
import random
import shutil
import sqlite3

import pytest

from trieye.journal.file import wal_path
from trieye.journal.journal import Journal
from trieye.journal.wal import FRAME_BYTES, HEADER_BYTES, damage_in_wal


class WrittenWal:
    """A log that SQLite wrote, and the frames that SQLite applies from variants of it."""

    def __init__(self, directory, num_records=30):
        self.path = directory / "journal.db"
        self.journal = Journal(self.path)
        self.append(num_records)

    def append(self, count):
        for number in range(count):
            self.journal.append("events", random.Random(number).randbytes(3000), at=0.0)

    @property
    def data(self):
        return wal_path(self.path).read_bytes()

    def checkpoint(self):
        with contextlib.closing(sqlite3.connect(self.path)) as connection:
            connection.execute("PRAGMA wal_checkpoint")

    def damage(self, data):
        """Return the damage in a log of the file, and the number of its frames that SQLite applies."""
        copy = self.path.with_name("copy.db")
        shutil.copyfile(self.path, copy)
        wal_path(copy).write_bytes(data)
        with contextlib.closing(sqlite3.connect(copy)) as connection:
            _, num_applied, _ = connection.execute("PRAGMA wal_checkpoint").fetchone()
        return damage_in_wal(data, num_applied), num_applied


@pytest.fixture
def written(tmp_path):
    wal = WrittenWal(tmp_path)
    yield wal
    wal.journal.close()


def frame(number):
    return HEADER_BYTES + number * FRAME_BYTES


def flipped(data, offset):
    changed = bytearray(data)
    changed[offset] ^= 4
    return bytes(changed)


def test_a_wal_without_a_complete_frame_is_intact():
    for data in (b"", b"x", bytes(HEADER_BYTES), bytes(frame(1) - 1)):
        assert damage_in_wal(data, 0) == ""


def test_a_wal_is_intact_after_each_restart(written):
    for _ in range(5):
        damage, num_applied = written.damage(written.data)
        assert damage == ""
        assert frame(num_applied) == len(written.data), "the last round extends to the end of the file"
        written.checkpoint()
        before = len(written.data)
        written.append(1)
        assert len(written.data) < before
        written.append(7)


def test_a_truncated_wal_is_no_damage(written):
    data = written.data
    for size in [*range(frame(5), frame(8), 977), *(frame(8) - n for n in range(0, 20, 3))]:
        assert written.damage(data[:size])[0] == ""


def test_a_flipped_bit_in_a_transaction_is_damage(written):
    data = written.data
    for number in (4, len(data) // FRAME_BYTES - 1):
        for offset in (0, 7, 8, 15, 16, 23, 24, 2000, FRAME_BYTES - 1):
            damage, num_applied = written.damage(flipped(data, frame(number) + offset))
            assert "transactions in the write-ahead log follow damaged bytes" in damage, (number, offset)
            assert num_applied <= number, offset


def test_a_flipped_bit_in_the_header_is_damage(written):
    data = written.data
    for offset in range(HEADER_BYTES):
        damage, num_applied = written.damage(flipped(data, offset))
        assert ("header" in damage, num_applied) == (True, 0), offset


def test_a_partially_written_frame_is_no_damage(written):
    """In a round that overwrites the previous round, a kill leaves a new header before old bytes."""
    old = written.data
    written.checkpoint()
    written.append(1)
    new = written.data
    for torn in range(len(new) // FRAME_BYTES):
        for written_bytes in (0, 24):
            data = new[: frame(torn) + written_bytes] + old[frame(torn) + written_bytes :]
            assert written.damage(data) == ("", 0)
    assert written.damage(new + old[len(new) :])[0] == "", "killed before the rest was truncated"
