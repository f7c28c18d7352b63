import random
import struct

import pytest

from trieye.journal.file import wal_path
from trieye.journal.journal import Journal
from trieye.journal.wal import FRAME_BYTES, HEADER_BYTES, WriteAheadLog, read_wal

PAGE = 4096


class Written:
    """A log that SQLite wrote, and what SQLite makes of it."""

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

    def checkpoint(self, mode="PASSIVE"):
        """Return how many frames SQLite takes."""
        ((_, num_frames, _),) = self.journal._store._connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()
        return num_frames


@pytest.fixture
def written(tmp_path):
    made = Written(tmp_path)
    yield made
    made.journal.close()


def frame(number):
    return HEADER_BYTES + number * FRAME_BYTES


def flipped(data, place):
    changed = bytearray(data)
    changed[place] ^= 4
    return bytes(changed)


def is_commit(data, number):
    return struct.unpack_from(">I", data, frame(number) + 4) != (0,)


def test_nothing_is_in_no_log():
    for data in (b"", b"x", bytes(HEADER_BYTES), bytes(frame(1) - 1)):
        assert read_wal(data) == WriteAheadLog()


def test_it_takes_the_frames_that_sqlite_takes(written):
    for _ in range(5):
        log = read_wal(written.data)
        assert log.damage is None
        assert log.num_frames == written.checkpoint() > 0
        assert frame(log.num_frames) == len(written.data)
        written.append(7)


def test_the_newest_content_of_each_page_is_found(written):
    data = written.data
    log = read_wal(data)
    assert written.checkpoint("TRUNCATE") == 0
    file = written.path.read_bytes()
    assert log.num_pages * PAGE == len(file)
    assert len(log.pages) > 10
    for number, place in log.pages.items():
        assert data[place : place + PAGE] == file[(number - 1) * PAGE : number * PAGE]


def test_a_round_after_a_checkpoint_ends_where_the_file_ends(written):
    written.checkpoint()
    before = len(written.data)
    written.append(1)
    assert len(written.data) < before
    log = read_wal(written.data)
    assert frame(log.num_frames) == len(written.data)
    assert log.num_frames == written.checkpoint()


def test_a_log_cut_anywhere_is_one_that_was_not_written_further(written):
    data = written.data
    sizes = [*range(frame(5), frame(8), 97), *(frame(8) - n for n in range(20))]
    for size in sizes:
        log = read_wal(data[:size])
        assert log.damage is None
        assert log.num_frames <= (size - HEADER_BYTES) // FRAME_BYTES
        assert log.num_frames == 0 or is_commit(data, log.num_frames - 1)


@pytest.mark.parametrize("offset", [0, 7, 8, 15, 16, 23, 24, 2000, FRAME_BYTES - 1])
def test_a_flipped_bit_before_other_transactions_is_damage_and_costs_its_page_only(written, offset):
    data = written.data
    whole, log = read_wal(data), read_wal(flipped(data, frame(4) + offset))
    assert "transactions in the write-ahead log stand after damaged bytes" in log.damage
    assert log.num_frames <= 4
    assert log.num_bad <= 1
    lost = set(whole.pages.items()) - set(log.pages.items())
    assert len(lost) <= log.num_bad


@pytest.mark.parametrize("offset", [0, 7, 8, 15, 16, 23, 24, 2000, FRAME_BYTES - 1])
def test_a_flipped_bit_in_the_last_transaction_is_damage(written, offset):
    data = written.data
    log = read_wal(flipped(data, len(data) - FRAME_BYTES + offset))
    assert log.damage is not None
    assert log.num_frames < read_wal(data).num_frames


@pytest.mark.parametrize("offset", range(HEADER_BYTES))
def test_a_flipped_bit_in_the_header_is_damage_and_costs_no_page(written, offset):
    data = written.data
    log = read_wal(flipped(data, offset))
    assert log.damage is not None
    assert log.num_frames == 0
    assert len(log.pages) >= len(read_wal(data).pages) - 1


def test_a_frame_whose_writing_was_interrupted_is_no_damage(written):
    """In a round that overwrites the one before, a kill leaves a new header before old bytes."""
    old = written.data
    written.checkpoint()
    written.append(1)
    new = written.data
    for torn in range(len(new) // FRAME_BYTES):
        data = new[: frame(torn) + 24] + old[frame(torn) + 24 :]
        log = read_wal(data)
        assert log.damage is None
        assert log.num_frames == 0
