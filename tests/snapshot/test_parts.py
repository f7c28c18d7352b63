import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.snapshot.growing import Log
from trieye.checkpoints.directory import (
    VERIFIED_EVERY,
    damaged_parts,
    has_parts,
    load_parts,
    save_parts,
)
from trieye.checkpoints.manifest import read_manifest
from trieye.checkpoints.store import CheckpointStore, Retention
from trieye.exceptions import CheckpointError, SerializationError
from trieye.files.atomic import _HOST
from trieye.snapshot.encode import decode, encode
from trieye.snapshot.nodes import StateParts


@pytest.fixture
def store(tmp_path):
    return CheckpointStore(tmp_path)


def save(store, step, log, known):
    encoded = encode({"log": log, "step": step}, known=known)
    store.save(step, encoded)
    return encoded.parts.keys()


def save_at(store, step, log, known):
    save(store, step, log, known)
    return store.path(step)


def restored(store, step):
    log = Log()
    log.load_state_dict(store.load(store.path(step))["log"])
    return log


def rows_in(path):
    log = Log()
    log.load_state_dict(load_parts(path))
    return log.rows.tolist()


def files_of(store, step):
    return sorted((store.path(step) / "parts").iterdir())


def test_only_what_is_new_is_written_and_the_rest_is_the_same_file(store):
    log, known = Log(), ()
    for step in (1, 2, 3):
        log.extend(1000)
        known = save(store, step, log, known)
    assert [len(files_of(store, step)) for step in (1, 2, 3)] == [1, 2, 3]
    assert files_of(store, 1)[0].samefile(files_of(store, 3)[0])
    assert restored(store, 3).rows.tolist() == list(range(3000))
    assert restored(store, 1).rows.tolist() == list(range(1000))


def test_a_checkpoint_is_complete_when_all_others_are_gone(store):
    log, known = Log(), ()
    for step in (1, 2, 3):
        log.extend(10)
        known = save(store, step, log, known)
    assert store.prune(Retention(keep_last=1)) == [store.path(1), store.path(2)]
    assert restored(store, 3).rows.tolist() == list(range(30))
    log.extend(10)
    save(store, 4, log, known)
    assert restored(store, 4).rows.tolist() == list(range(40))


def test_parts_that_no_longer_hold_are_left_behind(store):
    log, known = Log(), ()
    for step in (1, 2):
        log.extend(10)
        known = save(store, step, log, known)
    log.forget(10)
    save(store, 3, log, known)
    assert [path.name.split("-")[1:3] for path in files_of(store, 3)] == [["10", "20"]]


def test_a_restored_object_goes_on_with_the_parts_it_was_read_from(store):
    log = Log()
    log.extend(100)
    known = save(store, 1, log, ())
    other = restored(store, 1)
    other.extend(5)
    save(store, 2, other, known)
    assert files_of(store, 1)[0] in [path for path in files_of(store, 1) if path.samefile(files_of(store, 2)[0])]
    assert restored(store, 2).rows.tolist() == list(range(105))


def test_a_part_that_is_gone_is_an_error_and_leaves_nothing(store):
    log = Log()
    log.extend(10)
    known = save(store, 1, log, ())
    files_of(store, 1)[0].unlink()
    log.extend(10)
    with pytest.raises(CheckpointError, match=r"part 'seg-0-10-\w+' of an earlier save is missing"):
        save(store, 2, log, known)
    assert [path.name for path in store.directory.iterdir()] == ["checkpoint_step_1"]


def test_every_part_is_read_once_in_so_many_saves_and_a_damaged_one_is_named(store, caplog):
    log, known = Log(), ()
    for step in range(30):
        log.extend(1)
        known = save(store, step, log, known)
    for part in files_of(store, 29)[:20]:
        part.write_bytes(part.read_bytes()[:-1] + b"x")
    found = [damaged_parts(save_at(store, step, log, known)) for step in range(30, 30 + VERIFIED_EVERY)]
    names = set[str]().union(*found)
    assert len(names) == sum(map(len, found)) == 20
    assert all(f"{name}.safetensors is damaged" in caplog.text for name in names)
    assert damaged_parts(store.path(99)) == set()


def test_a_directory_of_its_own_gets_damaged_rows_anew(tmp_path):
    log, path = Log(), tmp_path / "buffer"
    log.extend(100)
    save_parts(path, log)
    (part,) = (path / "parts").iterdir()
    part.write_bytes(part.read_bytes()[:-1] + b"x")
    for _ in range(VERIFIED_EVERY):
        save_parts(path, log)
    assert rows_in(path) == log.rows.tolist()
    assert not (path / "parts" / part.name).exists()


def test_a_part_kept_before_a_stronger_checksum_was_asked_for_gets_it(tmp_path):
    log = Log()
    log.extend(10)
    known = save(CheckpointStore(tmp_path), 1, log, ())
    save(CheckpointStore(tmp_path, checksum="sha256"), 2, log, known)
    files = read_manifest(tmp_path / "checkpoint_step_2").files
    assert all(len(entry.sha256) == 64 for entry in files.values())
    assert CheckpointStore(tmp_path).latest().step == 2


def test_parts_can_be_mapped_and_outlive_the_checkpoint(store):
    log = Log()
    log.extend(10)
    save(store, 1, log, ())
    held = store.load(store.path(1))["log"]
    mapped = held.map(held.names[0])
    store.prune(Retention(keep_last=1))
    store.save(1, encode({}))
    assert mapped["row"].tolist() == list(range(10))
    assert mapped["half"].dtype == np.float64
    with pytest.raises(ValueError, match="read-only"):
        mapped["row"][0] = 1


def test_without_a_disk_in_between_parts_come_back_as_well():
    log, other = Log(), Log()
    log.extend(10)
    held = decode(encode(log))
    other.load_state_dict(held)
    assert other.rows.tolist() == log.rows.tolist()
    assert not held.map(held.names[0])["row"].flags.writeable
    with pytest.raises(SerializationError, match="part 'seg-9' does not exist"):
        held.read("seg-9")


def part_b(row):
    return StateParts({}, (), {"b": {"row": row}})


@pytest.mark.parametrize(
    ("found", "complaint"),
    [
        (StateParts({}, (), {"../escape": {}}), "part name '../escape'"),
        (StateParts({}, ("a",), {"a": {}}), "part name 'a'"),
        (StateParts({}, ("unknown",)), "refers to part 'unknown', which no complete checkpoint has"),
        (part_b(np.zeros(3, complex)), "part '/log/b/row' is an array of complex128; safetensors supports float64"),
        (part_b(np.zeros(3, ">f4")), "part '/log/b/row' is an array of >f4"),
        (part_b(np.array([None])), "part '/log/b/row' is an array of object"),
    ],
)
def test_parts_with_strange_names_or_arrays_are_refused_at_once(found, complaint):
    class Strange:
        def state_parts(self, known):
            return found

    with pytest.raises(SerializationError, match=complaint):
        encode({"log": Strange()}, known={"a"})


def test_an_empty_directory_has_no_parts(tmp_path):
    assert not has_parts(tmp_path / "nothing")
    assert not has_parts(tmp_path)
    save_parts(tmp_path / "log", Log())
    assert has_parts(tmp_path / "log")


def test_a_directory_that_holds_something_else_is_no_buffer(store):
    store.save(1, encode({"a": 1}))
    with pytest.raises(SerializationError, match="contains a dict, not the output"):
        load_parts(store.path(1))
    with pytest.raises(CheckpointError, match="missing"):
        load_parts(store.path(2))


def test_two_objects_with_parts_of_one_name_are_refused_and_one_object_may_be_there_twice(store):
    class Named:
        def __init__(self, row):
            self.row = np.array([row])

        def state_parts(self, known):
            return StateParts({}, (), {"part-0": {"row": self.row}})

    one = Named(1)
    with pytest.raises(SerializationError, match="part name 'part-0' is used by another object"):
        encode([one, Named(2)])
    store.save(1, encode([one, one]))
    assert [held.read("part-0")["row"].tolist() for held in store.load(store.path(1))] == [[1], [1]]


def test_what_was_read_can_be_saved_again_as_it_is(store, tmp_path):
    log = Log()
    log.extend(10)
    known = save(store, 1, log, ())
    held = store.load(store.path(1))
    store.save(2, encode(held, known=known))
    assert files_of(store, 1)[0].samefile(files_of(store, 2)[0])
    assert restored(store, 2).rows.tolist() == list(range(10))
    elsewhere = CheckpointStore(tmp_path / "other")
    elsewhere.save(1, encode(held))
    assert restored(elsewhere, 1).rows.tolist() == list(range(10))


@pytest.mark.parametrize("harm", [Path.unlink, lambda part: part.write_bytes(b"cut")])
def test_a_part_that_somebody_deleted_is_written_again_to_its_own_directory(tmp_path, harm):
    log, path = Log(), tmp_path / "buffer"
    log.extend(10)
    save_parts(path, log)
    harm(next((path / "parts").iterdir()))
    save_parts(path, log)
    assert rows_in(path) == list(range(10))


def test_a_kill_while_a_directory_is_replaced_costs_nothing(tmp_path):
    log, path = Log(), tmp_path / "buffer"
    log.extend(10)
    save_parts(path, log)
    dead = subprocess.Popen(["true"])
    dead.wait()
    path.rename(tmp_path / f".old-buffer~{_HOST}~{dead.pid}~0a0a0a0a")
    assert has_parts(path)
    assert rows_in(path) == list(range(10))
    log.extend(5)
    save_parts(path, log)
    assert sorted(part.name.rsplit("-", 1)[0] for part in (path / "parts").iterdir()) == ["seg-0-10", "seg-10-15"]
    assert [item.name for item in tmp_path.iterdir()] == ["buffer"]
