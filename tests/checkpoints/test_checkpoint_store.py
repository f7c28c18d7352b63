import errno
import os
import random
import shutil
from dataclasses import dataclass

import numpy as np
import pytest

from tests import warm
from tests.snapshot.growing import Log
from trieye.checkpoints import directory as state_directory
from trieye.checkpoints import store as checkpoints
from trieye.checkpoints.manifest import MANIFEST_NAME, read_manifest, verify, write_manifest
from trieye.checkpoints.store import CheckpointStore, Retention
from trieye.exceptions import CheckpointError, SerializationError
from trieye.files import checksum
from trieye.snapshot.encode import encode


def state(step):
    log = Log()
    log.extend(5 * step)
    return {"step": step, "weights": np.full(40, float(step)), "error": ValueError(step), "log": log}


@pytest.fixture
def store(tmp_path):
    return CheckpointStore(tmp_path / "checkpoints")


@pytest.fixture
def two(store):
    """A store with the checkpoints of steps 1 and 2."""
    for step in (1, 2):
        store.save(step, encode(state(step)), hub_state=b"the state of a hub")
    return store


def latest_step(store):
    entry = store.latest()
    loaded = store.load(entry.path)
    assert loaded["step"] == entry.step
    assert np.array_equal(loaded["weights"], np.full(40, float(entry.step)))
    return entry.step


def raising(error):
    def fail(*_):
        raise error

    return fail


def names(store):
    return sorted(path.name for path in store.directory.iterdir())


def test_a_new_store_is_empty_and_rejects_negative_steps(store):
    assert store.latest() is None
    assert store.find("best") is None
    assert store.entries() == []
    assert store.remove(7) is True
    with pytest.raises(CheckpointError, match="-1"):
        store.save(-1, encode({}))


def test_a_checkpoint_is_loaded_with_its_metadata(store):
    path = store.save(7, encode(state(7)), metadata={"config_hash": "abc", "objective": np.float32(1.5)})
    entry = store.latest()
    assert path == entry.path == store.path(7)
    assert (entry.step, entry.metadata, entry.objective) == (7, {"config_hash": "abc", "objective": 1.5}, 1.5)
    assert latest_step(store) == 7


def test_latest_is_the_last_save_regardless_of_step_and_clock(store):
    for created, step in ((1000.0, 10), (500.0, 20), (200.0, 5)):
        path = store.save(step, encode(state(step)))
        manifest = read_manifest(path).model_copy(update={"created": created})
        (path / MANIFEST_NAME).unlink()
        write_manifest(path, manifest)
    assert [entry.step for entry in store.entries()] == [10, 20, 5]
    assert latest_step(store) == 5
    assert store.latest(max_step=15).step == 10
    assert store.latest(max_step=4) is None


def test_best_ranks_by_objective_and_falls_back_to_is_best(store):
    for step, metadata in enumerate(({"is_best": True}, {"is_best": True}, {})):
        store.save(step, encode(state(step)), metadata=metadata)
    assert store.find("best").step == 1
    for step, objective in ((10, 3.0), (11, 5.0), (12, float("nan")), (13, -1), (14, 5.0)):
        store.save(step, encode(state(step)), metadata={"objective": objective})
    assert store.find("best").step == 14
    assert store.ranked("min")[0].step == 13
    damage(store.path(14) / "state.json", lambda data: data[:-1])
    assert store.find("best").step == 11


@pytest.mark.parametrize("which", ["latest", "best"])
def test_a_reader_lists_again_if_all_listed_checkpoints_were_deleted(which, store):
    reader, read_paths = CheckpointStore(store.directory, read_only=True), []
    store.save(1, encode(state(1)), metadata={"objective": 1.0})

    def read(path):
        if not read_paths:  # the run saves and deletes between the listing and the read
            store.save(2, encode(state(2)), metadata={"objective": 2.0})
            store.prune(Retention(keep_last=1, keep_best=0))
        read_paths.append(path)
        return reader.read(path)

    assert reader.find(which, read=read).step == 2
    assert read_paths == [store.path(1), store.path(2)]


def test_a_later_objective_can_make_a_checkpoint_the_best(store):
    for step in (1, 2, 3):
        store.save(step, encode(state(step)), metadata={"objective": None, "is_awaited": step == 1, "mode": "max"})
    before = store.latest()
    assert store.entries()[0].is_awaited
    assert store.rate(1, 7.5) == store.path(1)
    assert (store.find("best").step, store.find("best").objective, store.find("best").is_awaited) == (1, 7.5, False)
    assert verify(store.path(1)).metadata["mode"] == "max"
    assert store.latest().path == before.path
    store.rate(2, float("nan"))
    assert store.entries()[1].objective is None
    with pytest.raises(CheckpointError, match="checkpoint_step_9"):
        store.rate(9, 1.0)


def test_pruning_retains_checkpoints_that_await_their_objective_until_their_attempt_has_died(store):
    for step in range(6):
        store.save(step, encode(state(step)), metadata={"is_awaited": step in {1, 3}, "attempt": 1})
    assert store.prune(Retention(keep_last=1, keep_best=0)) == [store.path(step) for step in (0, 2, 4)]
    store.save(6, encode(state(6)), metadata={"attempt": 2})
    assert store.prune(Retention(keep_last=1, keep_best=0)) == [store.path(step) for step in (1, 5)]
    store.rate(3, 1.0)
    assert store.prune(Retention(keep_last=1, keep_best=0)) == [store.path(3)]


def test_pruning_retains_the_newest_and_the_best(store):
    for step in range(6):
        store.save(step, encode(state(step)), metadata={"objective": -abs(step - 1)})
    assert store.prune(Retention(keep_last=2)) == [store.path(step) for step in (0, 2, 3)]
    assert [entry.step for entry in store.entries()] == [1, 4, 5]
    store.prune(Retention(keep_last=1, keep_best=0))
    assert names(store) == ["checkpoint_step_5"]


def damage(path, change):
    path.write_bytes(change(path.read_bytes()))


def file_of(store, step, pattern):
    (path,) = store.path(step).glob(pattern)
    return path


def cuts(data):
    return [data[:size] for size in sorted({*range(0, len(data), max(1, len(data) // 6)), len(data) - 1})]


def flips(data):
    chance = random.Random(8)
    positions = chance.sample(range(len(data)), min(len(data), 6))
    return [data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :] for at in positions]


@pytest.mark.parametrize("damages", [cuts, flips, lambda _: [None]], ids=["cut", "flipped bit", "missing"])
@pytest.mark.parametrize("name", ["state.json", "state.safetensors", "objects.bin", "hub.bin", MANIFEST_NAME])
def test_a_damaged_checkpoint_is_quarantined_in_favour_of_the_previous_one(two, name, damages, caplog):
    path, quarantined = two.path(2) / name, two.path(2).with_name("checkpoint_step_2.damaged")
    intact = path.read_bytes()
    for number, content in enumerate(damages(intact)):
        path.unlink()
        if content is not None:
            path.write_bytes(content)
        assert latest_step(two) == 1, number
        assert f"checkpoint_step_2/{name}" in caplog.text
        caplog.clear()
        quarantined.rename(two.path(2))
        path.write_bytes(intact)
    assert latest_step(two) == 2


PART_DAMAGES = {
    "cut": lambda part: part.write_bytes(part.read_bytes()[:-1]),
    "changed": lambda part: part.write_bytes(part.read_bytes()[:-1] + b"x"),
    "missing": lambda part: part.unlink(),
    "a link": lambda part: (part.rename(part.with_suffix(".other")), part.symlink_to(part.with_suffix(".other"))),
}


@pytest.mark.parametrize("part_damage", PART_DAMAGES)
def test_a_damaged_part_is_reported_when_read_and_spares_its_checkpoint(two, part_damage):
    PART_DAMAGES[part_damage](file_of(two, 2, "parts/seg-*.safetensors"))
    loaded = two.load(two.latest().path)
    assert (loaded["step"], loaded["weights"][0]) == (2, 2.0)
    (name,) = loaded["log"].names
    assert loaded["log"].whole(name) is None
    with pytest.raises(CheckpointError, match=rf"checkpoint_step_2/parts/{name}.safetensors is"):
        loaded["log"].map(name)


def test_latest_raises_if_no_checkpoint_is_intact_even_after_a_restart(two, tmp_path):
    for step in (1, 2):
        damage(two.path(step) / "state.json", lambda _: b"")
    for store in (two, two, CheckpointStore(two.directory)):
        with pytest.raises(CheckpointError, match=r"2 saved state\(s\), but none is intact.*start from scratch"):
            store.latest()
    two.save(3, encode(state(3)))
    assert latest_step(two) == 3


def test_load_checkpoint_finds_a_directory_of_any_name(tmp_path):
    objects = encode({"objects": {"weights": [1.0]}})
    CheckpointStore(tmp_path / "states").save(7, objects, metadata={"objective": 1.0})
    for directory in (tmp_path, tmp_path / "states"):
        assert checkpoints.load_checkpoint(directory).step == 7
    CheckpointStore(tmp_path / "later").save(8, objects, metadata={})
    with pytest.raises(CheckpointError, match=r"later, .*states; pass one of these"):
        checkpoints.load_checkpoint(tmp_path)


def test_a_checkpoint_without_a_requested_object_is_an_error_unless_strict_is_false(tmp_path, capfd):
    CheckpointStore(tmp_path).save(7, encode({"objects": {"weights": {"w": 1.0}}}))
    checkpoint = checkpoints.load_checkpoint(tmp_path)
    weights, moments = {}, {"m": 2.0}
    with pytest.raises(CheckpointError, match="'moments'"):
        checkpoint.restore(weights=weights, moments=moments)
    checkpoint.restore(strict=False, weights=weights, moments=moments)
    assert (weights, moments) == ({"w": 1.0}, {"m": 2.0})
    assert "fits in part: " in capfd.readouterr().err


def test_latest_ignores_damage_above_max_step(two):
    damage(two.path(2) / "state.json", lambda _: b"")
    assert two.latest().step == 1
    shutil.rmtree(two.path(1))
    assert two.latest(max_step=1) is None
    with pytest.raises(CheckpointError):
        two.latest(max_step=2)


def test_two_damaged_saves_of_a_step_are_both_quarantined(two):
    for _ in range(2):
        damage(two.path(2) / "state.json", lambda _: b"")
        assert two.latest().step == 1
        two.save(2, encode(state(2)))
    damaged = ["checkpoint_step_2.damaged", "checkpoint_step_2.damaged-2"]
    assert names(two) == ["checkpoint_step_1", "checkpoint_step_2", *damaged]


def test_readers_skip_a_damaged_checkpoint_and_change_no_files(store):
    for step in (1, 2):
        store.save(step, encode({"objects": {"weights": [1.0]}}))
    damage(store.path(2) / "state.json", lambda _: b"")
    (store.directory / ".tmp-checkpoint_step_3~elsewhere~1~00000000").mkdir()
    before = names(store)
    assert CheckpointStore(store.directory, read_only=True).latest().step == 1
    assert checkpoints.load_checkpoint(store.directory).step == 1
    assert names(store) == before


def test_entries_skip_links_files_and_other_names(two):
    (two.directory / "latest.pkl").symlink_to("checkpoint_step_2")
    (two.directory / "checkpoint_step_9").symlink_to("checkpoint_step_2")
    (two.directory / "checkpoint_step_8").write_text("a file")
    (two.directory / "checkpoint_step_x").mkdir()
    (two.directory / "buffer_step_9").mkdir()
    assert [entry.step for entry in two.entries()] == [1, 2]
    assert [entry.step for entry in CheckpointStore(two.directory, prefix="b").entries()] == []


def test_loading_verifies_checksums(two):
    damage(two.path(2) / "state.safetensors", lambda data: data[:-8] + b"\0" * 8)
    with pytest.raises(CheckpointError, match="checksum"):
        two.load(two.path(2))
    with pytest.raises(CheckpointError, match="missing"):
        two.load(two.path(99))


def test_a_failed_deletion_is_reported_and_retried_by_the_next_prune(two, monkeypatch, caplog):
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "remove_directory", raising(PermissionError(13, "not yours")))
        assert two.prune(Retention(keep_last=1)) == []
    assert "checkpoint_step_1 is no longer needed, but cannot be deleted: [Errno 13] not yours" in caplog.text
    assert two.prune(Retention(keep_last=1)) == [two.path(1)]


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ESTALE, errno.EACCES])
def test_a_temporary_read_error_quarantines_nothing(two, monkeypatch, code):
    with monkeypatch.context() as patch:
        patch.setattr(checksum, "ChecksumReader", raising(OSError(code, os.strerror(code))))
        with pytest.raises(SerializationError, match="cannot be read: ") as caught:
            two.latest()
    assert not isinstance(caught.value, CheckpointError)
    assert latest_step(two) == 2
    assert names(two) == ["checkpoint_step_1", "checkpoint_step_2"]


def test_saves_read_each_manifest_at_most_twice(store, monkeypatch):
    log, stored_names, read_directories = Log(), (), []

    def recording_read(directory):
        read_directories.append(directory)
        return read_manifest(directory)

    for module in (checkpoints, state_directory):
        monkeypatch.setattr(module, "read_manifest", recording_read)
    for step in range(20):
        log.extend(1)
        encoded = encode({"log": log}, known_parts=stored_names)
        store.save(step, encoded, metadata={"objective": step, "hub": {"large": [1] * 100}})
        store.prune(Retention(keep_last=15))
        stored_names = encoded.parts.keys()
    assert len(read_directories) <= 2 * 20
    assert store.entries()[-1].metadata == {"objective": 19}


def test_saves_do_not_scan_the_directory_if_retention_is_unlimited(store, monkeypatch):
    scanned, scandir = [], os.scandir

    def recording_scandir(path):
        scanned.append(path)
        return scandir(path)

    store.save(0, encode({}))
    monkeypatch.setattr(os, "scandir", recording_scandir)
    for step in range(1, 4):
        store.save(step, encode({"step": step}))
        store.prune(Retention(keep_last=0))
    assert store.directory not in scanned
    assert [(entry.step, entry.manifest.sequence) for entry in store.entries()] == [(0, 1), (1, 2), (2, 3), (3, 4)]


def test_saving_a_step_again_replaces_its_checkpoint_whose_manifest_is_read_again(two):
    two.save(1, encode({**state(1), "again": True}), metadata={"objective": 3.0})
    assert two.load(two.latest().path)["again"]
    assert names(two) == ["checkpoint_step_1", "checkpoint_step_2"]
    assert [(entry.step, entry.objective) for entry in two.entries()] == [(2, None), (1, 3.0)]
    (two.path(2) / MANIFEST_NAME).write_text("{}")
    assert [entry.step for entry in two.entries()] == [1]


PROGRAM = """
import enum, sys
import trieye

class Room(enum.Enum):
    HALL = 1
    CELLAR = 2

class Schedule:
    def rate(self):
        return RATE

visits, runtime = {Room.HALL: 0, Room.CELLAR: 0}, {"kind": "local"}
sinks = {"mlflow": {"enabled": False}, "tensorboard": {"enabled": False}}
persistence = {"root_data_dir": sys.argv[1]}
config = trieye.TrieyeConfig(app_name="app", run_name="r", runtime=runtime, sinks=sinks, persistence=persistence)
with trieye.Run(config) as run:
    if run.restore(visits=visits):
        schedule = run.restored["schedule"]
        print(visits[Room.HALL], len(visits), schedule.rate(), isinstance(schedule, Schedule))
    visits[Room.HALL] += 5
    run.save(step=1, visits=visits, schedule=Schedule())
"""


def test_a_resumed_program_finds_the_classes_of_its_own_script(tmp_path):
    script = tmp_path / "train.py"
    for rate in (0.1, 0.5):
        script.write_text(PROGRAM.replace("RATE", str(rate)))
        done = warm.run([script.name, str(tmp_path / "data")], tmp_path, modules=warm.RUN)
        assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "5 2 0.5 True"


@dataclass(frozen=True)
class State:
    step: int
    objective: float = 0.0
    is_awaited: bool = False
    attempt: int = 1


STATES = [State(step, -abs(step - 30)) for step in range(10, 101, 10)]
RANKED = sorted(STATES, key=lambda state: -state.objective)


@pytest.mark.parametrize(
    ("chosen", "deleted"),
    [
        ({}, []),
        ({"keep_best": 0, "keep_every_steps": 50}, []),
        ({"keep_last": 99, "keep_best": 99}, []),
        ({"keep_last": 3, "keep_best": 0}, [10, 20, 30, 40, 50, 60, 70]),
        ({"keep_last": 3}, [10, 20, 40, 50, 60, 70]),
        ({"keep_last": 3, "keep_best": 3}, [10, 50, 60, 70]),
        ({"keep_last": 1, "keep_best": 0, "keep_every_steps": 40}, [10, 20, 30, 50, 60, 70, 90]),
    ],
)
def test_retention_keeps_the_newest_the_best_and_periodic_steps(chosen, deleted):
    assert [state.step for state in Retention(**chosen).surplus(STATES, RANKED)] == deleted
