import errno
import re
import socket
import time
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.util import tensor_util

from tests.damage import cut, flip
from trieye.sinks.tensorboard.files import EventFiles, FilePosition
from trieye.sinks.tensorboard.summaries import scalars
from trieye.stats.point import Point


def events_of(path):
    return [Event.FromString(raw) for raw in RawEventFileLoader(str(path)).Load()]


def steps_in(directory):
    """Return the steps of all summaries, in TensorBoard's reading order."""
    return [event.step for path in sorted(directory.iterdir()) for event in events_of(path) if event.summary.value]


def write(files, *steps):
    """Write points, and return the file position after them."""
    for step in steps:
        files.add(scalars([Point("a", float(step), step, 10.5)]))
    return files.flush()


@pytest.fixture
def make(tmp_path):
    """Return a function that creates event files for this test; all are closed at its end."""
    created = []

    def make_files():
        created.append(EventFiles(tmp_path, tmp_path))
        return created[-1]

    yield make_files
    for files in created:
        files.close()


@pytest.fixture
def files(make):
    return make()


def test_an_event_file_has_tensorboards_header_and_our_suffix(files, tmp_path):
    position = write(files, 1)
    (path,) = tmp_path.iterdir()
    assert path.name == position.file
    assert re.fullmatch(rf"events\.out\.tfevents\.\d{{10}}\.{re.escape(socket.gethostname())}\.\d+\.trieye", path.name)
    assert [event.file_version for event in events_of(path)] == ["brain.Event:2", ""]


def test_no_file_is_created_before_the_first_write(files, tmp_path):
    assert files.flush() == FilePosition()
    files.add(scalars([Point("a", 1.0, 1, 10.5)]))
    assert list(tmp_path.iterdir()) == []
    files.flush()
    assert steps_in(tmp_path) == [1]


def test_large_buffers_are_written_without_a_flush(files, tmp_path):
    for _ in range(3):
        files.add([b"\x00" * 2**24])
    (path,) = tmp_path.iterdir()
    assert path.stat().st_size > 2**25


def test_file_names_increase_even_if_the_clock_goes_back(make, tmp_path):
    ahead = int(time.time()) + 10_000
    (tmp_path / f"events.out.tfevents.{ahead}.zzz.1.trieye").write_bytes(b"")
    names = [write(make(), step).file for step in range(3)]
    assert [int(name.split(".")[3]) - ahead for name in names] == [1, 2, 3]


class SmallDisk:
    """A file that fails after a few bytes, until `room` is raised."""

    def __init__(self, file, room):
        self.file = file
        self.room = room

    def write(self, data):
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        num_bytes = self.file.write(data[: self.room])
        self.room -= num_bytes
        return num_bytes

    def close(self):
        self.file.close()


def test_no_points_are_lost_once_a_full_disk_has_space_again(files, make, tmp_path):
    write(files, 0)
    disk = files._file = SmallDisk(files._file, 100)
    with pytest.raises(OSError, match="No space"):
        write(files, *range(1, 100))
    for _ in range(3):
        with pytest.raises(OSError, match="No space"):
            files.flush()
    disk.room = 10**6
    position = files.flush()
    assert steps_in(tmp_path) == list(range(100))
    assert make().go_back(position)


def test_going_back_truncates_later_events_and_starts_a_new_file_that_an_open_reader_follows(make, tmp_path):
    first, second, reader = make(), make(), Reader(tmp_path)
    position = write(first, 1, 2)
    assert reader.values() == [(1, 1.0), (2, 2.0)]
    write(first, 3)
    assert second.go_back(position)
    assert steps_in(tmp_path) == [1, 2]
    assert second.flush() == position
    assert write(second, 3, 4).file > position.file
    assert steps_in(tmp_path) == [1, 2, 3, 4]
    assert reader.values() == [(step, float(step)) for step in (1, 2, 3, 4)]


def test_going_back_repairs_any_truncation_of_the_last_write(make, tmp_path):
    first = make()
    position = write(first, 1, 2)
    write(first, 3, 4)
    path = tmp_path / position.file
    whole = path.read_bytes()
    for size in range(position.size_bytes, len(whole) + 1):
        path.write_bytes(whole[:size])
        other = make()
        assert other.go_back(position)
        write(other, 3, 4)
        assert steps_in(tmp_path) == [1, 2, 3, 4]
        assert other.go_back(position)


@pytest.mark.parametrize("damage", [Path.unlink, cut, flip])
def test_going_back_detects_a_changed_file(make, tmp_path, damage):
    position = write(make(), 1, 2)
    damage(tmp_path / position.file)
    assert not make().go_back(position)


def test_going_back_removes_later_files_and_without_a_position_all_files(make, tmp_path):
    write(make(), 1)
    position = write(make(), 2)
    write(make(), 3)
    other = make()
    assert other.go_back(position)
    assert steps_in(tmp_path) == [1, 2]
    write(other, 3)
    assert steps_in(tmp_path) == [1, 2, 3]
    assert make().go_back(FilePosition())
    assert steps_in(tmp_path) == []


def test_a_position_outside_the_directory_is_rejected(make, tmp_path):
    outside = tmp_path.parent / f"{tmp_path.name}.trieye"
    outside.write_bytes(b"another program")
    (tmp_path / "events.out.tfevents.0000000000.x").mkdir()
    name = f"events.out.tfevents.0000000000.x/../../{outside.name}"
    assert (tmp_path / name).exists()
    assert not make().go_back(FilePosition(name, 0, 0))
    assert outside.read_bytes() == b"another program"


def test_going_back_discards_buffered_events(files, tmp_path):
    position = write(files, 1)
    files.add(scalars([Point("a", 2.0, 2, 10.5)]))
    assert files.go_back(position)
    assert files.flush() == position
    files.add(scalars([Point("a", 3.0, 3, 10.5)]))
    files.clear()
    assert files.flush() == FilePosition()
    assert steps_in(tmp_path) == []


def test_files_of_other_programs_are_never_changed(files, tmp_path):
    others = [
        tmp_path / "events.out.tfevents.1700000000.gpu.trieye.org.12.0",
        tmp_path / "events.out.tfevents.9999999999.host.12.0.v2",
        tmp_path / "notes.trieye",
    ]
    for path in others:
        path.write_bytes(b"mine")
    write(files, 1)
    files.clear()
    assert files.go_back(FilePosition())
    assert [path.read_bytes() for path in others] == [b"mine"] * 3


def test_a_later_attempt_removes_all_emptied_files_but_the_newest(make, tmp_path):
    files = make()
    for step in range(3):
        write(files, step)
        files.clear()
    paths = sorted(tmp_path.iterdir())
    assert len(paths) == 3
    assert make().go_back(FilePosition())
    assert list(tmp_path.iterdir()) == paths[2:]


def test_only_a_file_that_replaces_all_others_resets_readers(make, tmp_path):
    def num_starts(position):
        events = events_of(tmp_path / position.file)
        return sum(event.session_log.status == SessionLog.START for event in events)

    first, other = make(), make()
    position = write(first, 1)
    assert other.go_back(position)
    later = write(other, 2)
    assert (num_starts(position), num_starts(later)) == (0, 0)
    other.clear()
    rewritten = write(other, 1)
    assert num_starts(rewritten) == 2
    assert other.go_back(rewritten)
    assert num_starts(write(other, 2)) == 0


class Reader:
    """TensorBoard's loader, which stays open while files change."""

    def __init__(self, directory):
        self.multiplexer = EventMultiplexer({"run": str(directory)})

    def values(self, tag="a"):
        self.multiplexer.Reload()
        tensors = self.multiplexer.Tensors("run", tag)
        return [(event.step, tensor_util.make_ndarray(event.tensor_proto).item()) for event in tensors]


def test_an_open_reader_shows_the_surviving_branch_after_rewinds(files, tmp_path):
    files.add(scalars([Point("only before", 1.0, 9, 10.5)]))
    write(files, *range(10))
    reader = Reader(tmp_path)
    assert reader.values("only before") == [(9, 1.0)]
    for end in (5, 3):
        files.clear()
        reader.values()  # reads nothing new, without an error
        write(files, *range(end))
        assert reader.values() == [(step, float(step)) for step in range(end)]
        assert reader.values("only before") == []
