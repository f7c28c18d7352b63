import errno
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.snapshot.growing import Log
from trieye.checkpoints.directory import VERIFIED_EVERY, damaged_parts, has_parts, load_parts, save_parts
from trieye.checkpoints.manifest import read_manifest
from trieye.checkpoints.store import CheckpointStore, Retention
from trieye.exceptions import CheckpointError, ConfigurationError, SerializationError
from trieye.files.atomic import _HOST
from trieye.snapshot.encode import decode, encode
from trieye.snapshot.nodes import StateParts


@pytest.fixture
def store(tmp_path):
    return CheckpointStore(tmp_path)


def save(store, step, log, stored_names):
    encoded = encode({"log": log, "step": step}, known_parts=stored_names)
    store.save(step, encoded)
    return encoded.parts.keys()


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


def test_a_save_links_earlier_parts_and_stays_complete_after_the_others_are_pruned(store):
    log, stored_names = Log(), ()
    for step in (1, 2, 3):
        log.extend(1000)
        stored_names = save(store, step, log, stored_names)
    assert [len(files_of(store, step)) for step in (1, 2, 3)] == [1, 2, 3]
    assert files_of(store, 1)[0].samefile(files_of(store, 3)[0])
    assert restored(store, 3).rows.tolist() == list(range(3000))
    assert restored(store, 1).rows.tolist() == list(range(1000))
    assert store.prune(Retention(keep_last=1)) == [store.path(1), store.path(2)]
    log.extend(1000)
    save(store, 4, log, stored_names)
    assert restored(store, 4).rows.tolist() == list(range(4000))


def test_obsolete_parts_are_absent_from_new_checkpoints(store):
    log, stored_names = Log(), ()
    for step in (1, 2):
        log.extend(10)
        stored_names = save(store, step, log, stored_names)
    log.forget(10)
    save(store, 3, log, stored_names)
    assert [path.name.split("-")[1:3] for path in files_of(store, 3)] == [["10", "20"]]


def test_a_restored_object_reuses_the_parts_it_was_loaded_from(store):
    log = Log()
    log.extend(100)
    stored_names = save(store, 1, log, ())
    other = restored(store, 1)
    other.extend(5)
    save(store, 2, other, stored_names)
    assert files_of(store, 1)[0] in [path for path in files_of(store, 1) if path.samefile(files_of(store, 2)[0])]
    assert restored(store, 2).rows.tolist() == list(range(105))


def test_a_missing_part_fails_the_save_and_leaves_no_files(store):
    log = Log()
    log.extend(10)
    stored_names = save(store, 1, log, ())
    files_of(store, 1)[0].unlink()
    log.extend(10)
    with pytest.raises(CheckpointError, match=r"part 'seg-0-10-\w+' of an earlier save is missing"):
        save(store, 2, log, stored_names)
    assert [path.name for path in store.directory.iterdir()] == ["checkpoint_step_1"]


def test_saves_verify_linked_parts_in_turn_and_name_damaged_ones(store, caplog):
    log, stored_names = Log(), ()
    for step in range(30):
        log.extend(1)
        stored_names = save(store, step, log, stored_names)
    for part in files_of(store, 29)[:20]:
        part.write_bytes(part.read_bytes()[:-1] + b"x")
    damaged_per_save = []
    for step in range(30, 30 + VERIFIED_EVERY):
        save(store, step, log, stored_names)
        damaged_per_save.append(damaged_parts(store.path(step)))
    names = set[str]().union(*damaged_per_save)
    assert len(names) == sum(map(len, damaged_per_save)) == 20
    assert all(f"{name}.safetensors is damaged" in caplog.text for name in names)
    assert damaged_parts(store.path(99)) == set()


def test_save_parts_replaces_a_damaged_part(tmp_path):
    log, path = Log(), tmp_path / "buffer"
    log.extend(100)
    save_parts(path, log)
    (part,) = (path / "parts").iterdir()
    part.write_bytes(part.read_bytes()[:-1] + b"x")
    for _ in range(VERIFIED_EVERY):
        save_parts(path, log)
    assert rows_in(path) == log.rows.tolist()
    assert not (path / "parts" / part.name).exists()


def test_linked_parts_get_the_stronger_checksum_of_a_later_config(tmp_path):
    log = Log()
    log.extend(10)
    stored_names = save(CheckpointStore(tmp_path), 1, log, ())
    save(CheckpointStore(tmp_path, checksum="sha256"), 2, log, stored_names)
    files = read_manifest(tmp_path / "checkpoint_step_2").files
    assert all(len(entry.sha256) == 64 for entry in files.values())
    assert CheckpointStore(tmp_path).latest().step == 2


def test_mapped_parts_outlive_their_checkpoint(store):
    log = Log()
    log.extend(10)
    save(store, 1, log, ())
    saved = store.load(store.path(1))["log"]
    mapped = saved.map(saved.names[0])
    store.prune(Retention(keep_last=1))
    store.save(1, encode({}))
    assert mapped["row"].tolist() == list(range(10))
    assert mapped["half"].dtype == np.float64
    with pytest.raises(ValueError, match="read-only"):
        mapped["row"][0] = 1


def test_parts_round_trip_without_a_disk():
    log, other = Log(), Log()
    log.extend(10)
    saved = decode(encode(log))
    other.load_state_dict(saved)
    assert other.rows.tolist() == log.rows.tolist()
    assert not saved.map(saved.names[0])["row"].flags.writeable
    with pytest.raises(SerializationError, match="part 'seg-9' does not exist"):
        saved.map("seg-9")


def part_b(row):
    return StateParts({}, (), {"b": {"row": row}})


@pytest.mark.parametrize(
    ("parts", "complaint"),
    [
        (StateParts({}, (), {"../escape": {}}), "part name '../escape'"),
        (StateParts({}, ("a",), {"a": {}}), "part name 'a'"),
        (StateParts({}, ("unknown",)), "refers to part 'unknown', which no complete checkpoint has"),
        (part_b(np.zeros(3, complex)), "part '/log/b/row' is an array of complex128; safetensors supports float64"),
        (part_b(np.zeros(3, ">f4")), "part '/log/b/row' is an array of >f4"),
        (part_b(np.array([None])), "part '/log/b/row' is an array of object"),
    ],
)
def test_encoding_rejects_invalid_part_names_and_dtypes(parts, complaint):
    class WithInvalidParts:
        def state_parts(self, stored_names):
            return parts

    with pytest.raises(SerializationError, match=complaint):
        encode({"log": WithInvalidParts()}, known_parts={"a"})


def test_an_empty_directory_has_no_parts(tmp_path):
    assert not has_parts(tmp_path / "nothing")
    assert not has_parts(tmp_path)
    save_parts(tmp_path / "log", Log())
    assert has_parts(tmp_path / "log")


def test_load_parts_rejects_a_directory_with_other_content(store):
    store.save(1, encode({"a": 1}))
    with pytest.raises(SerializationError, match="contains a dict, not the output"):
        load_parts(store.path(1))
    with pytest.raises(CheckpointError, match="missing"):
        load_parts(store.path(2))


def test_a_part_name_may_repeat_only_within_the_same_object(store):
    class Named:
        def __init__(self, row):
            self.row = np.array([row])

        def state_parts(self, stored_names):
            return StateParts({}, (), {"part-0": {"row": self.row}})

    named = Named(1)
    with pytest.raises(SerializationError, match="part name 'part-0' is used by another object"):
        encode([named, Named(2)])
    store.save(1, encode([named, named]))
    assert [saved.map("part-0")["row"].tolist() for saved in store.load(store.path(1))] == [[1], [1]]


def test_loaded_parts_can_be_saved_again_unchanged(store, tmp_path):
    log = Log()
    log.extend(10)
    stored_names = save(store, 1, log, ())
    saved = store.load(store.path(1))
    store.save(2, encode(saved, known_parts=stored_names))
    assert files_of(store, 1)[0].samefile(files_of(store, 2)[0])
    assert restored(store, 2).rows.tolist() == list(range(10))
    elsewhere = CheckpointStore(tmp_path / "other")
    elsewhere.save(1, encode(saved))
    assert restored(elsewhere, 1).rows.tolist() == list(range(10))


@pytest.mark.parametrize("damage", [Path.unlink, lambda part: part.write_bytes(b"cut")])
def test_save_parts_rewrites_a_deleted_or_truncated_part(tmp_path, damage):
    log, path = Log(), tmp_path / "buffer"
    log.extend(10)
    save_parts(path, log)
    damage(next((path / "parts").iterdir()))
    save_parts(path, log)
    assert rows_in(path) == list(range(10))


def test_save_parts_replaces_nothing_but_an_earlier_save(store, tmp_path, monkeypatch):
    log, weights, working = Log(), tmp_path / "policy.pt", tmp_path / "working"
    weights.write_text("w")
    results, noted, planted, mixed = [tmp_path / name for name in ("results", "noted", "planted", "mixed")]
    save_parts(noted, log)
    save_parts(mixed, log)
    (mixed / "parts").mkdir(exist_ok=True)
    (mixed / "parts" / "thesis.csv").write_text("x")
    for path in (results, noted, planted):
        path.mkdir(exist_ok=True)
        (path / "thesis.csv").write_text("x")
    (planted / "MANIFEST.json").write_text("{}")
    (working / "below").mkdir(parents=True)
    monkeypatch.chdir(working / "below")
    store.save(2, encode({"log": log}))
    for path, complaint in (
        (weights, "policy.pt is a file"),
        (results, "contains thesis.csv"),
        (noted, "contains thesis.csv;"),
        (planted, "contains thesis.csv;"),
        (mixed, "contains parts/thesis.csv;"),
        (store.path(2), "checkpoint of a run at step 2"),
        (Path(), "contains the working directory"),
        (tmp_path / "working", "contains"),
    ):
        with pytest.raises(ConfigurationError, match=complaint):
            save_parts(path, log)
    (working / "below").rmdir()
    save_parts(working, log)  # the working directory no longer exists
    assert weights.read_text() == "w"
    assert all((path / "thesis.csv").read_text() == "x" for path in (results, noted, planted, mixed / "parts"))


def test_paths_that_cannot_be_accessed_are_reported(tmp_path, monkeypatch):
    (tmp_path / "loop").symlink_to("loop")
    for function in (lambda path: save_parts(path, Log()), load_parts, has_parts):
        with pytest.raises(SerializationError, match="loop cannot be accessed: Symlink loop"):
            function(tmp_path / "loop")
    monkeypatch.setattr(Path, "iterdir", denied)  # tests of the superuser have access everywhere
    for function in (lambda path: save_parts(path, Log()), has_parts):
        with pytest.raises(SerializationError, match=r"cannot be accessed: .*Permission denied"):
            function(tmp_path)


def denied(path):
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


def test_save_parts_writes_to_the_target_of_a_link(tmp_path):
    log, link = Log(), tmp_path / "link"
    link.symlink_to(tmp_path / "disk" / "buffer")
    for count in (10, 15):
        log.extend(count - len(log.rows))
        save_parts(link, log)
        assert rows_in(link) == rows_in(tmp_path / "disk" / "buffer") == list(range(count))
    assert link.is_symlink()


def test_a_kill_during_the_replacement_of_a_directory_loses_no_rows(tmp_path):
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
