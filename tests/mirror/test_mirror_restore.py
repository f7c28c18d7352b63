"""Restoring a run on a machine without its files, from intact, damaged, incomplete and manipulated mirrors."""

import errno
import json
import shutil
import zlib
from pathlib import Path

import numpy as np
import pytest

import trieye
from tests.damage import cut, flip
from tests.mirror.mirrored_run import APP, RUN, MirroredRun
from tests.snapshot.growing import Log
from trieye.checkpoints.directory import read_hub_state
from trieye.checkpoints.manifest import MANIFEST_NAME
from trieye.exceptions import CheckpointError, ConfigurationError
from trieye.files.run_files import RunFiles
from trieye.history.table import read_history
from trieye.mirror.layout import whole_states
from trieye.mirror.local import LocalRun
from trieye.mirror.restore import has_run, restore_run
from trieye.mirror.store import MirrorStore


@pytest.fixture
def run(tmp_path, url):
    """Upload a run with two checkpoints."""
    mirrored_run = MirroredRun(tmp_path / "first", url)
    log = Log()
    for step in (1, 2):
        log.extend(10)
        mirrored_run.save(step, growing=log, buffer=True)
        mirrored_run.upload()
    mirrored_run.journal.close()
    return mirrored_run


@pytest.fixture
def other(tmp_path, url):
    return MirroredRun(tmp_path / "second", url, begin=False)


def objects(run, pattern):
    paths = sorted((Path(run.url.removeprefix("file://")) / APP).glob(f"*/{pattern}"))
    assert paths, pattern
    return paths


def test_a_run_is_restored_with_all_its_parts(run, other, url):
    words = restore_run(other.paths, url)
    assert f"run {RUN!r} is restored from the mirror {url}: checkpoint_step_2" in words
    assert other.run_id() == run.record.run_id
    assert other.num_records() == 2
    loaded = other.checkpoints.load(other.checkpoints.latest().path)
    assert (loaded["a"] == np.full(100, 2)).all()
    assert read_hub_state(other.checkpoints.path(2)) == b"the state of a hub"
    log = Log()
    log.load_state_dict(loaded["growing"])
    assert (log.rows == np.arange(20)).all()
    assert (other.steps(), [entry.step for entry in other.buffers.entries()]) == ([2], [2])
    assert not LocalRun(other.paths).is_lost()
    assert sorted(path.name for path in (other.paths.run_base_dir / "mirror").iterdir()) == ["known.json"]


def test_a_run_that_lost_its_checkpoints_restores_them_and_keeps_its_own_journal(run, url):
    shutil.rmtree(run.paths.checkpoint_dir)
    run.begin().journal.append("e", b"later", at=3.0)
    words = restore_run(run.paths, url)
    assert "checkpoint_step_2" in words
    assert restore_run(run.paths, url) is None
    assert run.steps() == [2]
    run.save(3)
    run.upload()
    run.journal.close()
    assert {path.name[:17] for path in objects(run, "checkpoints/*")} == {
        f"checkpoint_step_{step}" for step in (1, 2, 3)
    }
    assert run.num_records() == 3


def test_the_best_checkpoint_is_restored_with_its_link_besides_the_newest(other, tmp_path, url):
    run = MirroredRun(tmp_path / "first", url)
    for step, objective in ((1, 0.0), (2, 5.0), (3, 1.0)):
        run.save(step, objective=objective)
        run.upload()
    run.journal.close()
    restore_run(other.paths, url)
    assert other.steps() == [2, 3]
    assert other.checkpoints.find("best").step == 2
    assert other.paths.best_checkpoint_path.resolve() == other.checkpoints.path(2)
    assert [key[:29] for key in LocalRun(other.paths).record().elsewhere] == ["checkpoints/checkpoint_step_1"]


def test_unrestored_checkpoints_stay_in_the_mirror_while_the_run_resumes(run, other, url):
    restore_run(other.paths, url)
    other.begin().save(3)
    other.upload()
    other.journal.close()
    keys = run.store().list()
    uploaded_saves = {key.split("-")[0] for key in keys if key.endswith("/MANIFEST.json")}
    assert uploaded_saves >= {f"checkpoints/checkpoint_step_{step}" for step in (1, 2, 3)}
    first = {path.name for path in run.checkpoints.path(1).glob("parts/*")}
    assert first <= {key.split("/")[1] for key in keys if key.startswith("parts/")}


def test_a_damaged_history_file_is_restored_at_the_next_start_if_the_mirror_has_it(make_config, url, caplog):
    config = make_config(persistence={"mirror": url})
    with trieye.Run(config) as run:
        for step in range(100):
            run.log("loss", float(step), step=step)
    (path,) = run.dir.glob("history/points-*.parquet")
    intact = path.read_bytes()
    for damage in (cut, flip, Path.unlink):
        caplog.clear()
        damage(path)
        with trieye.Run(config):
            pass
        assert path.read_bytes() == intact
        assert read_history(run.dir, metrics=["loss"]).column("step").to_pylist() == list(range(100))
        assert f"{path.name}, items 0 to " in caplog.text
        assert "it is restored from the mirror" in caplog.text
    cut(path)
    for stored in Path(url.removeprefix("file://")).rglob("points-*"):
        stored.unlink()
    with trieye.Run(config):
        pass
    assert "it cannot be restored from the mirror" in caplog.text
    assert f"are lost: {path.name}: it has " in caplog.text


def test_a_run_without_a_complete_state_in_the_mirror_is_not_restored(run, other, url):
    assert has_run(url, APP, RUN)
    assert not has_run(url, APP, "another")
    assert not has_run(url, "another", RUN)
    for path in objects(run, "states/*/COMMIT"):
        path.unlink()
    assert not has_run(url, APP, RUN)
    assert restore_run(other.paths, url) is None
    assert restore_run(other.paths, None) is None


def test_a_new_run_under_the_former_name_of_a_renamed_run_is_refused(run, url):
    renamed = run.paths.run_base_dir.rename(run.paths.run_base_dir.with_name("renamed"))
    with pytest.raises(ConfigurationError, match=f"has the run in {renamed}; choose another run_name"):
        restore_run(run.paths, url)
    assert not run.paths.run_base_dir.exists()


def test_a_run_is_restored_beside_a_copy_of_its_directory(run, url):
    shutil.copytree(run.paths.run_base_dir, run.paths.run_base_dir.with_name("backup"))
    shutil.rmtree(run.paths.run_base_dir)
    assert "checkpoint_step_2" in restore_run(run.paths, url)
    assert run.run_id() == run.record.run_id


def test_a_run_that_another_root_has_as_well_is_restored(run, other, url):
    config = other.paths.persist_config.model_copy(update={"resume_dirs": [str(run.paths.root_data_dir)]})
    assert "checkpoint_step_2" in restore_run(RunFiles(config), url)
    assert other.run_id() == run.record.run_id


def test_nothing_is_restored_into_a_directory_with_files_of_a_run(run, tmp_path, url):
    for number, name in enumerate(
        ("run.json", "journal.db", "checkpoints/checkpoint_step_9/x", "history/points-0-1.parquet")
    ):
        other = MirroredRun(tmp_path / str(number), url, begin=False)
        path = other.paths.run_base_dir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
        assert restore_run(other.paths, url) is None, name
        assert other.steps() == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "damage"),
    [("state.safetensors", flip), ("state.json", Path.unlink), ("hub.bin", cut), (MANIFEST_NAME, flip)],
)
def test_a_damaged_checkpoint_is_skipped_for_the_previous_one(run, other, url, name, damage):
    damage(objects(run, f"checkpoints/checkpoint_step_2-*/{name}")[0])
    assert "checkpoint_step_1" in restore_run(other.paths, url)
    assert (other.steps(), [entry.step for entry in other.buffers.entries()]) == ([1], [1])
    other.checkpoints.load(other.checkpoints.latest().path)


@pytest.mark.parametrize("damage", [flip, Path.unlink])
def test_a_damaged_replay_part_is_omitted_and_the_rest_restored(run, other, url, damage, caplog):
    damage(objects(run, "parts/seg-10-20-*")[0])
    assert "checkpoint_step_2" in restore_run(other.paths, url)
    assert "everything except its rows is restored" in caplog.text
    state = other.checkpoints.load(other.checkpoints.latest().path)
    assert state["a"].tolist() == [2] * 100
    assert [state["growing"].whole(name) is None for name in state["growing"].names] == [False, True]


@pytest.mark.long
@pytest.mark.parametrize(("name", "damage"), [("COMMIT", flip), ("journal.db", cut), ("run.json", flip)])
def test_a_damaged_state_is_skipped_for_the_previous_one(run, other, url, name, damage):
    damage(objects(run, f"states/*/{name}")[-1])
    assert "newer ones are damaged" in restore_run(other.paths, url)
    assert other.num_records() >= other.checkpoints.latest().step
    other.begin().save(3)
    other.upload()
    other.journal.close()
    assert "checkpoint_step_3" in restore_run(MirroredRun(other.paths.root_data_dir / "3", url, begin=False).paths, url)


def test_a_run_without_an_intact_state_does_not_start_from_scratch(run, other, url):
    for path in objects(run, "checkpoints/*/state.json"):
        flip(path)
    for _ in range(2):
        with pytest.raises(CheckpointError, match=r"no intact state of it .*none of its 2 checkpoint\(s\) is intact"):
            restore_run(other.paths, url)
    assert not other.paths.run_record_path.exists()


def test_an_unreachable_mirror_stops_a_run_that_it_may_contain(run, other, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(
        ConfigurationError,
        match=r"run .* is missing on this machine, .* cannot be restored from the mirror: .*persistence.mirror=null",
    ):
        restore_run(other.paths, f"file://{tmp_path}/file/below")


def test_a_manipulated_path_outside_the_run_is_not_followed(run, other, url, tmp_path):
    for path in objects(run, "checkpoints/*/MANIFEST.json"):
        manifest = json.loads(path.read_text())
        manifest["manifest"]["files"]["../../../planted"] = {"size_bytes": 1, "crc32": 0, "sha256": None}
        manifest["crc32"] = zlib.crc32(json.dumps(manifest["manifest"], sort_keys=True).encode())
        path.write_text(json.dumps(manifest, sort_keys=True, indent=1) + "\n")
        renamed = path.parent.with_name(f"{path.parent.name[:-8]}{zlib.crc32(path.read_bytes()):08x}")
        path.parent.rename(renamed)
        for state in objects(run, "states/*/COMMIT"):
            text = json.loads(state.read_bytes())["mark"].replace(path.parent.name, renamed.name)
            state.write_text(json.dumps({"mark": text, "crc32": zlib.crc32(text.encode())}))
    with pytest.raises(CheckpointError, match="no intact state of it"):
        restore_run(other.paths, url)
    assert not list(tmp_path.rglob("second/**/planted"))


class Killed(BaseException):
    """Simulates the death of the process."""


def test_a_restore_killed_at_any_download_or_move_starts_again(run, tmp_path, url, monkeypatch):
    whole = MirroredRun(tmp_path / "whole", url, begin=False)
    restore_run(whole.paths, url)
    for method in (MirrorStore.get, Path.replace):
        at, finished = 0, False
        while not finished:
            shutil.rmtree(tmp_path / "second", ignore_errors=True)
            other = MirroredRun(tmp_path / "second", url, begin=False)
            finished = not _restored_but_killed(other, url, monkeypatch, method, at)
            has_all_files = other.paths.run_record_path.exists()  # the last one of a restore
            assert has_all_files == (restore_run(other.paths, url) is None)
            assert _content(other) == _content(whole), (method, at)
            at += 1
        assert at > 3, method


def test_a_run_started_after_a_killed_restore_is_never_overwritten(run, other, url, monkeypatch):
    assert _restored_but_killed(other, url, monkeypatch, MirrorStore.get, 4)
    other.begin().save(9)  # an attempt without a mirror
    other.journal.close()
    assert restore_run(other.paths, url) is None
    assert other.steps() == [9]


def test_nothing_of_a_killed_restore_remains_beside_the_run_that_the_mirror_has_now(
    run, other, tmp_path, url, monkeypatch
):
    kills = (_restored_but_killed(other, url, monkeypatch, Path.replace, at) for at in range(9))
    assert any(is_killed and other.steps() == [2] for is_killed in kills)
    shutil.rmtree(Path(url.removeprefix("file://")))
    new_run = MirroredRun(tmp_path / "third", url)
    new_run.save(1)
    new_run.upload()
    new_run.journal.close()
    restore_run(other.paths, url)
    assert (other.run_id(), other.steps()) == (new_run.run_id(), [1])
    assert other.buffers.entries() == []


def test_a_repeated_restore_deletes_nothing_behind_a_link(run, other, tmp_path, url, monkeypatch):
    assert _restored_but_killed(other, url, monkeypatch, MirrorStore.get, 1)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "notes.txt").write_text("mine")
    shutil.rmtree(other.paths.checkpoint_dir)
    other.paths.checkpoint_dir.symlink_to(tmp_path / "elsewhere")
    assert restore_run(other.paths, url)
    assert (tmp_path / "elsewhere" / "notes.txt").read_text() == "mine"


def _restored_but_killed(other, url, monkeypatch, method, at):
    left = [at]

    def dying(self, *arguments):
        left[0] -= 1
        if left[0] < 0:
            raise Killed
        return method(self, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(MirrorStore if method is MirrorStore.get else Path, method.__name__, dying)
        try:
            restore_run(other.paths, url)
        except Killed:
            return True
    return False


def _content(run):
    base = run.paths.run_base_dir
    files = [path for path in base.rglob("*") if path.is_file() and "mirror" not in path.relative_to(base).parts]
    return {str(path.relative_to(base)): path.read_bytes() for path in files}


def test_a_restored_journal_has_all_records_of_the_restored_checkpoints(tmp_path, url):
    """Each complete state is consistent, although the run continues to log and save."""
    run = MirroredRun(tmp_path / "first", url)
    for step in range(1, 5):
        run.save(step)
        run.upload()
        run.journal.append("e", b"later", at=float(step))
        shutil.rmtree(tmp_path / "second", ignore_errors=True)
        other = MirroredRun(tmp_path / "second", url, begin=False)
        restore_run(other.paths, url)
        assert other.num_records() >= other.checkpoints.latest().step == step
    run.journal.close()
    assert len(whole_states(run.store().list())) == 2


def test_a_full_disk_stops_a_restore_and_leaves_no_partial_run(run, other, url, monkeypatch):
    def full(self, key, path):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(MirrorStore, "get", full)
        with pytest.raises(ConfigurationError, match="No space left on device"):
            restore_run(other.paths, url)
    assert restore_run(other.paths, url) is not None
