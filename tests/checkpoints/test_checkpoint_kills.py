"""Saves killed with SIGKILL: at each file operation, and at random moments."""

import itertools
import random
import resource
import shutil

import numpy as np
import pytest

from tests.forked import in_a_child, killed_at_each, lines_until_killed
from trieye.checkpoints.store import CheckpointStore, Retention
from trieye.exceptions import SerializationError
from trieye.snapshot.encode import encode

OPERATIONS = {"open to write", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree"}


def state(step, version):
    return encode({"step": step, "version": version, "a": np.full(1000, version)})


@pytest.mark.parametrize("step", [1, 2], ids=["replacing a checkpoint", "adding a checkpoint"])
def test_a_save_killed_at_any_file_operation_leaves_an_intact_checkpoint(tmp_path, step):
    def prepare(number):
        CheckpointStore(tmp_path / f"{number}").save(1, state(1, 1))
        return tmp_path / f"{number}"

    encoded = state(step, 2)
    save = lambda directory: CheckpointStore(directory).save(step, encoded)  # noqa: E731 - runs in the child
    for number, directory, is_done in killed_at_each(OPERATIONS, prepare, save):
        reader, store = CheckpointStore(directory, read_only=True), CheckpointStore(directory)
        before = sorted(directory.iterdir())
        for opened in (reader, store):
            loaded = opened.load(opened.latest().path)
            assert loaded["step"] == opened.latest().step, number
            assert loaded["version"] in ({2} if is_done else {1, 2}), number
            assert (loaded["a"] == loaded["version"]).all(), number
            assert opened is store or sorted(directory.iterdir()) == before, number
        assert not is_done or store.latest().step == step
        store.save(3, state(3, 3))
        left = {path.name for path in directory.iterdir()}
        assert left <= {"checkpoint_step_1", "checkpoint_step_2", "checkpoint_step_3"}, number
        shutil.rmtree(directory)
    assert number > 5


def test_reported_saves_survive_a_kill_of_the_process(tmp_path):
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")  # noqa: T201 - to reproduce a failure
    chance = random.Random(seed)
    store, reported = CheckpointStore(tmp_path / "c"), 0

    def save(report):
        for step in itertools.count(reported + 1):
            for version in (1, 2):
                store.save(step, encode({"step": step, "version": version, "a": np.full(200_000, step)}))
                report(step)
            store.prune(Retention(keep_last=2))

    for _ in range(4):
        reported = int(lines_until_killed(save, chance.randrange(1, 8))[-1])
        store = CheckpointStore(tmp_path / "c")
        entry = store.latest()
        loaded = store.load(entry.path)
        assert reported <= entry.step <= reported + 1
        assert loaded["step"] == entry.step
        assert (loaded["a"] == entry.step).all()
        reported = entry.step
    names = [path.name for path in store.directory.iterdir()]
    assert not [name for name in names if name.startswith(".") or "damaged" in name]


def test_a_full_disk_fails_only_the_new_checkpoint(tmp_path):
    """A file size limit of the process simulates the full disk: a write fails half-way with an OSError."""
    store = CheckpointStore(tmp_path)
    store.save(1, encode({"a": np.zeros(10)}))

    def save():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        with pytest.raises(SerializationError, match=r"checkpoint_step_2 .*\(800000 bytes\): File too large"):
            store.save(2, encode({"a": np.zeros(100_000)}))

    assert in_a_child(save) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint_step_1"]
    assert store.latest().step == 1
