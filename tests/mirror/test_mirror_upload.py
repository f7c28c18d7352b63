"""What is in a mirror after each step of an upload, and that every moment of it leaves something to go on from."""

import contextlib
import shutil

import pytest

from tests.mirror.mirrored_run import MirroredRun
from tests.snapshot.growing import Log
from trieye.exceptions import ConfigurationError, RunLockedError
from trieye.mirror.layout import whole_states
from trieye.mirror.restore import restore_run


class Killed(BaseException):
    """The process dies."""


class DyingStore:
    """Dies before one of its writes or deletions; the number counts them."""

    def __init__(self, store, at):
        self._store, self._left, self.asked = store, at, 0
        self.url, self.list = store.url, store.list

    def read(self, key):
        self.asked += 1
        return self._store.read(key)

    def _live(self):
        self.asked += 1
        self._left -= 1
        if self._left < 0:
            raise Killed

    def put(self, path, key):
        self._live()
        self._store.put(path, key)

    def get(self, key, path):
        self.asked += 1
        self._store.get(key, path)

    def delete(self, key):
        self._live()
        self._store.delete(key)


def restored(tmp_path, url, name="second"):
    """Return the run on another machine, and what was said about it."""
    other = MirroredRun(tmp_path / name, url, begin=False)
    return other, restore_run(other.paths, url)


def test_nothing_is_uploaded_twice(run):
    log = Log()
    log.extend(1000)
    run.save(1, growing=log)
    run.upload()
    again = run.upload()
    assert again.sent_bytes < 60_000  # the journal, as the one of another attempt
    once_more = again.sent_bytes
    again.upload_state()
    assert again.sent_bytes == once_more
    log.extend(1)
    run.save(2, growing=log)
    later = run.upload()
    assert later.sent_bytes < 70_000 < sum(run.store().list().values())


def test_a_save_asks_the_store_for_as_much_among_thirty_checkpoints_as_among_three(run):
    def asked(step):
        run.save(step)
        store = DyingStore(run.store(), 1000)
        run.upload(store)
        return store.asked

    counts = [asked(step) for step in range(1, 31)]
    assert counts[2:] == [counts[2]] * 28


def test_what_retention_deletes_here_is_deleted_there_after_the_newer_one_is_complete(run):
    log = Log()
    for step in range(1, 6):
        log.extend(10)
        log.forget(10 * step - 10)
        run.save(step, growing=log, buffer=True)
        run.prune(2)
        run.upload()
    index = run.store().list()
    there = {key.split("/")[1].split("-")[0] for key in index if key.endswith("/MANIFEST.json")}
    assert there == {f"{kind}_step_{step}" for kind in ("checkpoint", "buffer") for step in (4, 5)}
    assert len([key for key in index if key.startswith("parts/")]) == len(
        {path.name for path in run.paths.checkpoint_dir.glob("*/parts/*")}
    )
    assert len([key for key in index if key.startswith("states/") and key.endswith("journal.db")]) == 2


def test_the_last_complete_checkpoint_stays_although_it_is_gone_here(run):
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


def test_killed_before_any_write_an_upload_leaves_a_run_to_go_on_from(run, tmp_path, url):
    log = Log()
    log.extend(5)
    run.save(1, growing=log, buffer=True)
    run.upload()
    log.extend(5)
    run.save(2, growing=log, buffer=True)
    run.prune(1)
    finished = seen_new = at = 0
    aside, known = tmp_path / "aside", run.paths.run_base_dir / "mirror"
    shutil.copytree(tmp_path / "mirror", aside / "mirror")
    shutil.copytree(known, aside / "known")
    while not finished and at < 100:
        _put_back(aside / "mirror", tmp_path / "mirror")
        _put_back(aside / "known", known)
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
        at += 1
    assert finished
    assert seen_new > 1
    assert at > 12


def _put_back(source, target):
    shutil.rmtree(target)
    shutil.copytree(source, target)


def test_what_retention_deletes_during_its_upload_is_still_there_to_go_on_from(run, tmp_path, url):
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


def test_a_killed_upload_is_taken_up_again_and_leaves_nothing_behind(run):
    store = run.store()
    for step in (1, 2):
        run.save(step)
        for at in range(4):
            with pytest.raises(Killed):
                run.upload(DyingStore(store, at))
        run.prune(1)
    run.upload()
    clean = run.store().list()
    assert len(whole_states(clean)) <= 2
    unmarked = {key.rsplit("/", 1)[0] for key in clean if key.startswith(("states/", "checkpoints/"))}
    assert {key.rsplit("/", 1)[0] for key in clean if key.endswith(("/COMMIT", "/MANIFEST.json"))} == unmarked


def test_another_run_of_the_same_name_is_left_alone(run, tmp_path, url):
    run.save(1)
    run.upload()
    before = run.store().list()
    other = MirroredRun(tmp_path / "second", url)
    with pytest.raises(ConfigurationError, match="has another run with the name"):
        other.upload()
    other.journal.close()
    assert run.store().list() == before


def test_a_directory_that_the_run_has_left_writes_no_more(run, tmp_path, url):
    run.save(1)
    upload = run.upload()
    other, _ = restored(tmp_path, url)
    other.begin().save(2)
    other.upload()
    other.journal.close()
    before = run.store().list()
    run.save(2)
    with pytest.raises(RunLockedError, match=r"was continued in another directory: .* has its attempt 2"):
        run.upload()
    with pytest.raises(RunLockedError, match="was continued in another directory"):
        upload.upload_state()
    committed = {key for key in run.store().list() if key.endswith("/COMMIT")}
    assert committed == {key for key in before if key.endswith("/COMMIT")}


def test_a_damaged_mark_of_a_state_is_passed_over_and_replaced(run, tmp_path):
    run.save(1)
    run.upload()
    key = whole_states(run.store().list())[0][1]
    (tmp_path / "damaged").write_bytes(b"{}")
    run.store().put(tmp_path / "damaged", key)
    run.upload()
    assert whole_states(run.store().list())[0][0] > 1
    assert key not in run.store().list()


def test_while_it_is_not_known_who_needs_a_part_no_part_goes(run, tmp_path, url):
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
