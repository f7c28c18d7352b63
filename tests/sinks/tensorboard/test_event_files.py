import errno
import re
import socket
import time

import pytest
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.util import tensor_util

from trieye.sinks.tensorboard.files import EventFiles, FilePosition
from trieye.sinks.tensorboard.summaries import scalars
from trieye.stats.point import Point


def events_of(path):
    return [Event.FromString(raw) for raw in RawEventFileLoader(str(path)).Load()]


def steps_in(directory):
    """Return the steps of all summaries, in the order in which TensorBoard reads them."""
    return [event.step for path in sorted(directory.iterdir()) for event in events_of(path) if event.summary.value]


def write(files, *steps):
    """Write points and return where the files are then."""
    for step in steps:
        files.add(scalars([Point("a", float(step), step, 10.5)]))
    return files.flush()


@pytest.fixture
def make(tmp_path):
    """Make an object for the files of this test; all are closed at its end."""
    made = []

    def make_files():
        made.append(EventFiles(tmp_path, tmp_path))
        return made[-1]

    yield make_files
    for files in made:
        files.close()


@pytest.fixture
def files(make):
    return make()


def test_the_file_is_named_and_begun_as_tensorboard_does_and_can_be_told_from_others(files, tmp_path):
    place = write(files, 1)
    (path,) = tmp_path.iterdir()
    assert path.name == place.file
    assert re.fullmatch(rf"events\.out\.tfevents\.\d{{10}}\.{re.escape(socket.gethostname())}\.\d+\.trieye", path.name)
    assert [event.file_version for event in events_of(path)] == ["brain.Event:2", ""]


def test_nothing_is_made_before_there_is_something_to_write(files, tmp_path):
    assert files.flush() == FilePosition()
    files.add(scalars([Point("a", 1.0, 1, 10.5)]))
    assert list(tmp_path.iterdir()) == []
    files.flush()
    assert steps_in(tmp_path) == [1]


def test_many_bytes_are_written_without_a_flush(files, tmp_path):
    for _ in range(3):
        files.add([b"\x00" * 2**24])
    (path,) = tmp_path.iterdir()
    assert path.stat().st_size > 2**25


def test_a_later_file_has_a_later_name_even_if_the_clock_goes_back(make, tmp_path):
    ahead = int(time.time()) + 10_000
    (tmp_path / f"events.out.tfevents.{ahead}.zzz.1.trieye").write_bytes(b"")
    names = [write(make(), step).file for step in range(3)]
    assert [int(name.split(".")[3]) - ahead for name in names] == [1, 2, 3]


class SmallDisk:
    """A file that takes a few bytes and then fails, until it gets more room."""

    def __init__(self, file, room):
        self.file = file
        self.room = room

    def write(self, data):
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = self.file.write(data[: self.room])
        self.room -= taken
        return taken

    def close(self):
        self.file.close()


def test_a_full_disk_costs_nothing_once_there_is_room_again(files, make, tmp_path):
    write(files, 0)
    disk = files._file = SmallDisk(files._file, 100)
    with pytest.raises(OSError, match="No space"):
        write(files, *range(1, 100))
    for _ in range(3):
        with pytest.raises(OSError, match="No space"):
            files.flush()
    disk.room = 10**6
    place = files.flush()
    assert steps_in(tmp_path) == list(range(100))
    assert make().go_back(place)


def test_what_was_written_after_a_place_is_taken_back_and_comes_into_a_new_file(make, tmp_path):
    first, second = make(), make()
    place = write(first, 1, 2)
    write(first, 3)
    assert second.go_back(place)
    assert steps_in(tmp_path) == [1, 2]
    assert second.flush() == place
    assert write(second, 3, 4).file > place.file
    assert steps_in(tmp_path) == [1, 2, 3, 4]


def test_every_cut_of_the_last_write_is_mended(make, tmp_path):
    first = make()
    place = write(first, 1, 2)
    write(first, 3, 4)
    path = tmp_path / place.file
    whole = path.read_bytes()
    for size in range(place.size_bytes, len(whole) + 1):
        path.write_bytes(whole[:size])
        other = make()
        assert other.go_back(place)
        write(other, 3, 4)
        assert steps_in(tmp_path) == [1, 2, 3, 4]
        assert other.go_back(place)


@pytest.mark.parametrize("damage", ["gone", "shorter", "changed"])
def test_a_file_that_is_not_what_it_was_is_noticed(make, tmp_path, damage):
    place = write(make(), 1, 2)
    path = tmp_path / place.file
    data = bytearray(path.read_bytes())
    if damage == "gone":
        path.unlink()
    elif damage == "shorter":
        path.write_bytes(data[:-1])
    else:
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    assert not make().go_back(place)


def test_later_files_are_taken_back_and_earlier_ones_stay(make, tmp_path):
    write(make(), 1)
    place = write(make(), 2)
    write(make(), 3)
    other = make()
    assert other.go_back(place)
    assert steps_in(tmp_path) == [1, 2]
    write(other, 3)
    assert steps_in(tmp_path) == [1, 2, 3]


def test_a_place_outside_of_the_directory_is_none_to_go_back_to(make, tmp_path):
    outside = tmp_path.parent / f"{tmp_path.name}.trieye"
    outside.write_bytes(b"of somebody else")
    (tmp_path / "events.out.tfevents.0000000000.x").mkdir()
    name = f"events.out.tfevents.0000000000.x/../../{outside.name}"
    assert (tmp_path / name).exists()
    assert not make().go_back(FilePosition(name, 0, 0))
    assert outside.read_bytes() == b"of somebody else"


def test_without_a_place_everything_is_taken_back(make, tmp_path):
    write(make(), 1, 2)
    assert make().go_back(FilePosition())
    assert steps_in(tmp_path) == []


def test_what_waits_in_memory_is_forgotten_by_going_back(files, tmp_path):
    place = write(files, 1)
    files.add(scalars([Point("a", 2.0, 2, 10.5)]))
    assert files.go_back(place)
    assert files.flush() == place
    files.add(scalars([Point("a", 3.0, 3, 10.5)]))
    files.clear()
    assert files.flush() == FilePosition()
    assert steps_in(tmp_path) == []


def test_files_of_others_are_never_touched(files, tmp_path):
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


def test_files_that_were_emptied_are_removed_by_a_later_attempt_but_for_the_newest(make, tmp_path):
    files = make()
    for step in range(3):
        write(files, step)
        files.clear()
    paths = sorted(tmp_path.iterdir())
    assert len(paths) == 3
    assert make().go_back(FilePosition())
    assert list(tmp_path.iterdir()) == paths[2:]


def test_only_a_file_that_replaces_all_others_tells_readers_to_forget(make, tmp_path):
    def num_starts(place):
        events = events_of(tmp_path / place.file)
        return sum(event.session_log.status == SessionLog.START for event in events)

    first, other = make(), make()
    place = write(first, 1)
    assert other.go_back(place)
    later = write(other, 2)
    assert (num_starts(place), num_starts(later)) == (0, 0)
    other.clear()
    rewritten = write(other, 1)
    assert num_starts(rewritten) == 2
    assert other.go_back(rewritten)
    assert num_starts(write(other, 2)) == 0


class Reader:
    """TensorBoard's own loader, which lives on while files change."""

    def __init__(self, directory):
        self.multiplexer = EventMultiplexer({"run": str(directory)})

    def values(self, tag="a"):
        self.multiplexer.Reload()
        tensors = self.multiplexer.Tensors("run", tag)
        return [(event.step, tensor_util.make_ndarray(event.tensor_proto).item()) for event in tensors]


def test_a_living_reader_goes_on_from_attempt_to_attempt(make, tmp_path):
    first, second = make(), make()
    place = write(first, 1, 2)
    reader = Reader(tmp_path)
    assert reader.values() == [(1, 1.0), (2, 2.0)]
    assert second.go_back(place)
    write(second, 3)
    assert reader.values() == [(1, 1.0), (2, 2.0), (3, 3.0)]


def test_a_living_reader_shows_the_surviving_branch_after_a_rewind_and_after_another(files, tmp_path):
    files.add(scalars([Point("only before", 1.0, 9, 10.5)]))
    write(files, *range(10))
    reader = Reader(tmp_path)
    assert reader.values("only before") == [(9, 1.0)]
    for end in (5, 3):
        files.clear()
        reader.values()  # finds nothing new, and no error
        write(files, *range(end))
        assert reader.values() == [(step, float(step)) for step in range(end)]
        assert reader.values("only before") == []
