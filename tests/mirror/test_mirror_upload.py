"""Content of a mirror after each step of an upload; at every moment, a run can resume from it."""

import contextlib
import shutil

import pytest

from tests.mirror.mirrored_run import MirroredRun
from tests.snapshot.growing import Log
from trieye.exceptions import RunLockedError
from trieye.mirror.layout import whole_states
from trieye.mirror.restore import restore_run


class Killed(BaseException):
    """Simulates the death of the process."""


class DyingStore:
    """A store that raises `Killed` before its write or deletion number `at`, and counts requests."""

    def __init__(self, store, at):
        self._store, self._left, self.num_requests = store, at, 0
        self.url, self.list = store.url, store.list

    def read(self, key):
        self.num_requests += 1
        return self._store.read(key)

    def _live(self):
        self.num_requests += 1
        self._left -= 1
        if self._left < 0:
            raise Killed

    def put(self, path, key):
        self._live()
        self._store.put(path, key)

    def get(self, key, path):
        self.num_requests += 1
        self._store.get(key, path)

    def delete(self, key):
        self._live()
        self._store.delete(key)


def restored(tmp_path, url, name="second"):
    """Return the run restored on another machine, and the message about it."""
    other = MirroredRun(tmp_path / name, url, begin=False)
    return other, restore_run(other.paths, url)


def test_unchanged_files_are_not_uploaded_again(run):
    log = Log()
    log.extend(1000)
    run.save(1, growing=log)
    run.upload()
    second = run.upload()
    assert second.sent_bytes < 60_000  # only the journal, under the name of another attempt
    second_bytes = second.sent_bytes
    second.upload_state()
    assert second.sent_bytes == second_bytes
    log.extend(1)
    run.save(2, growing=log)
    third = run.upload()
    assert third.sent_bytes < 70_000 < sum(run.store().list().values())


@pytest.mark.long
def test_requests_per_save_do_not_grow_with_the_number_of_checkpoints(run):
    def num_requests_of_save(step):
        run.save(step)
        store = DyingStore(run.store(), 1000)
        run.upload(store)
        return store.num_requests

    counts = [num_requests_of_save(step) for step in range(1, 13)]
    assert counts[2:] == [counts[2]] * 10


def test_pruned_checkpoints_are_deleted_after_the_newer_upload_is_complete(run):
    log = Log()
    for step in range(1, 6):
        log.extend(10)
        log.forget(10 * step - 10)
        run.save(step, growing=log, buffer=True)
        run.prune(2)
        run.upload()
    index = run.store().list()
    mirrored_saves = {key.split("/")[1].split("-")[0] for key in index if key.endswith("/MANIFEST.json")}
    assert mirrored_saves == {f"{kind}_step_{step}" for kind in ("checkpoint", "buffer") for step in (4, 5)}
    assert len([key for key in index if key.startswith("parts/")]) == len(
        {path.name for path in run.paths.checkpoint_dir.glob("*/parts/*")}
    )
    assert len([key for key in index if key.startswith("states/") and key.endswith("journal.db")]) == 2


def test_the_last_complete_checkpoint_stays_mirrored_after_local_deletion(run):
    run.save(1)
    run.upload()
    shutil.rmtree(run.checkpoints.path(1))
    run.upload()
    run.save(2)
    store = run.store()
    with pytest.raises(Killed):
        run.upload(DyingStore(store, 2))
    assert any(key.startswith("checkpoints/checkpoint_step_1-") and "MANIFEST" in key for key in store.list())
    run.upload()
    assert not any(key.startswith("checkpoints/checkpoint_step_1-") for key in store.list())


def test_an_upload_killed_before_any_write_leaves_a_resumable_run_and_is_completed_later(run, tmp_path, url):
    log = Log()
    log.extend(5)
    run.save(1, growing=log, buffer=True)
    run.upload()
    log.extend(5)
    run.save(2, growing=log, buffer=True)
    run.prune(1)
    finished = seen_new = at = 0
    backup, mirror_records = tmp_path / "aside", run.paths.run_base_dir / "mirror"
    shutil.copytree(tmp_path / "mirror", backup / "mirror")
    shutil.copytree(mirror_records, backup / "known")
    while not finished and at < 100:
        _put_back(backup / "mirror", tmp_path / "mirror")
        _put_back(backup / "known", mirror_records)
        shutil.rmtree(tmp_path / "second", ignore_errors=True)
        with contextlib.suppress(Killed):
            run.upload(DyingStore(run.store(), at))
            finished = True
        other, words = restored(tmp_path, url)
        step = other.checkpoints.latest().step
        assert other.run_id() == run.record.run_id
        assert f"checkpoint_step_{step}" in words
        assert other.num_records() >= step
        assert other.buffers.latest().step == step
        seen_new += step == 2
        run.upload()
        index = run.store().list()
        folders = ("states/", "checkpoints/", "buffers/")
        complete = {key.rsplit("/", 1)[0] for key in index if key.endswith(("/COMMIT", "/MANIFEST.json"))}
        assert complete == {key.rsplit("/", 1)[0] for key in index if key.startswith(folders)}, at
        assert len(whole_states(index)) <= 2
        at += 1
    assert finished
    assert seen_new > 1
    assert at > 12


def _put_back(source, target):
    shutil.rmtree(target)
    shutil.copytree(source, target)


def test_a_checkpoint_pruned_during_its_upload_stays_resumable(run, tmp_path, url):
    class SlowStore(DyingStore):
        def put(self, path, key):
            if "checkpoint_step_1-" in key:
                run.save(2)
                run.prune(1)
            super().put(path, key)

    run.save(1)
    with pytest.raises(Killed):
        run.upload(SlowStore(run.store(), 8))
    assert run.steps() == [2]
    other, words = restored(tmp_path, url)
    assert "checkpoint_step_1" in words
    assert other.steps() == [1]


def test_a_directory_that_the_run_has_left_stops_uploading(run, tmp_path, url):
    run.save(1)
    upload = run.upload()
    other, _ = restored(tmp_path, url)
    other.begin().save(2)
    other.upload()
    other.journal.close()
    before = run.store().list()
    run.save(2)
    with pytest.raises(RunLockedError, match=r"was continued in another directory, .* has its attempt 2"):
        run.upload()
    with pytest.raises(RunLockedError, match="was continued in another directory"):
        upload.upload_state()
    committed = {key for key in run.store().list() if key.endswith("/COMMIT")}
    assert committed == {key for key in before if key.endswith("/COMMIT")}


def test_a_directory_rolled_back_to_a_backup_deletes_nothing_from_the_mirror(run, tmp_path):
    run.save(1)
    run.upload()
    backup = tmp_path / "backup"
    shutil.copytree(run.paths.run_base_dir, backup)
    for step in (2, 3):
        run.save(step)
        run.upload()
    before = run.store().list()
    run.journal.close()
    for path in (run.paths.checkpoint_dir, run.paths.run_base_dir / "mirror"):  # the directory keeps its inode
        _put_back(backup / path.name, path)
    run.save(2)
    with pytest.raises(RunLockedError, match="this directory is an older copy"):
        run.upload()
    assert run.store().list() == before


def test_a_damaged_state_mark_is_skipped_and_replaced(run, tmp_path):
    run.save(1)
    run.upload()
    key = whole_states(run.store().list())[0][1]
    (tmp_path / "damaged").write_bytes(b"{}")
    run.store().put(tmp_path / "damaged", key)
    run.upload()
    assert whole_states(run.store().list())[0][0] > 1
    assert key not in run.store().list()


def test_parts_are_not_deleted_while_a_manifest_is_unreadable(run, tmp_path, url):
    log = Log()
    for step in (1, 2):
        log.extend(10)
        run.save(step, growing=log)
        run.upload()
    other, _ = restored(tmp_path, url)
    other.begin().save(3)
    (manifest,) = (key for key in run.store().list() if "checkpoint_step_1-" in key and "MANIFEST" in key)
    (tmp_path / "damaged").write_bytes(b"{}")
    run.store().put(tmp_path / "damaged", manifest)
    shutil.rmtree(other.checkpoints.path(2))
    other.upload()
    other.journal.close()
    assert len([key for key in run.store().list() if key.startswith("parts/")]) == 2
