import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.permissions import restricted_access
from trieye.checkpoints.choose import ResumeCandidate, check_reference, choose
from trieye.checkpoints.store import CheckpointStore
from trieye.compat.path_manager import TrainingChoice
from trieye.config import PersistenceConfig
from trieye.exceptions import CheckpointError, ConfigurationError, SerializationError
from trieye.files.run_files import BUFFER_PREFIX, RunFiles
from trieye.files.run_record import RunRecord
from trieye.snapshot.encode import encode

DATA = Path(__file__).parent / "data"


class App:
    """An app in a temporary directory, with runs created one after another."""

    def __init__(self, root):
        self.root = root
        self._clock = 1_000_000.0

    def config(self, run_name="now", **changes):
        return PersistenceConfig(root_data_dir=str(self.root), app_name="app", run_name=run_name, **changes)

    def files(self, run_name="now"):
        return RunFiles(self.config(run_name))

    def run(self, name, *steps, buffers=(), **record):
        files = self.files(name)
        self._clock += 10
        RunRecord(app_name="app", run_name=name, created=self._clock, **record).save(files.run_record_path)
        self.save(name, *steps, buffers=buffers)
        return files

    def save(self, name, *steps, buffers=(), **metadata):
        files = self.files(name)
        for step in steps:
            state = encode({"step": step, "a": np.zeros(9)})
            CheckpointStore(files.checkpoint_dir).save(step, state, metadata=metadata)
        for step in buffers:
            CheckpointStore(files.buffer_dir, prefix=BUFFER_PREFIX).save(step, encode({"buffer_list": [step]}))

    def rated(self, name, objectives, mode="max", **record):
        self.run(name, **record)
        for step, objective in objectives.items():
            self.save(name, step, objective=objective, mode=mode, attempt=1)

    def old_run(self, name, *steps, buffers=()):
        files = self.files(name)
        files.checkpoint_dir.mkdir(parents=True)
        files.buffer_dir.mkdir()
        for path in (*map(files.get_checkpoint_path, steps), *map(files.get_buffer_path, buffers)):
            path.with_suffix(".pkl").write_bytes(pickle.dumps("x"))
        return files

    def choose(self, run_name="now", *, config_hash=None, group=None, **changes):
        config = self.config(run_name, **changes)
        return choose(RunFiles(config), config, config_hash=config_hash, group=group)

    def drop_in(self, run_name="now", **changes):
        """Return the resume point and the buffer that a program of trieye 0.1.5 loads."""
        config = self.config(run_name, **changes)
        choice = TrainingChoice(RunFiles(config), config)
        point = choice.point()
        return point, None if point is None else choice.buffer_for(point.checkpoint)

    def check(self, run_name="now", **changes):
        config = self.config(run_name, **changes)
        check_reference(RunFiles(config), config)

    def damage(self, name, step):
        cut(self.files(name).get_checkpoint_path(step))


def cut(directory):
    path = directory / "state.json"
    path.write_bytes(path.read_bytes()[:-1])


def all_paths(root):
    return sorted(str(path) for path in root.rglob("*"))


def located(point):
    return None if point is None else (point.run_name, point.checkpoint.step)


def steps(loaded):
    point, buffer = loaded
    return point.checkpoint.step, None if buffer is None else buffer.step


@pytest.fixture
def app(tmp_path):
    return App(tmp_path / "root")


@pytest.fixture
def other_root(tmp_path):
    """Return the same app in another data directory."""
    return App(tmp_path / "elsewhere")


def test_a_run_resumes_from_its_own_newest_checkpoint_despite_newer_runs(app):
    app.run("now", 5, 10)
    app.run("other", 99)
    point = app.choose()
    assert located(point) == ("now", 10)
    assert point.checkpoint.path == app.files().get_checkpoint_path(10)
    assert "'now' resumes from its own newest checkpoint, checkpoint_step_10" in point.reason
    assert located(app.choose(auto_resume_latest=False)) == ("now", 10)


def test_a_new_run_starts_from_the_run_with_the_latest_recorded_time(app):
    assert app.choose() is None
    app.run("zzz_20990101_000000", 1)
    app.run("plain_name", 2)
    app.run("without_checkpoints")
    point = app.choose()
    assert located(point) == ("plain_name", 2)
    assert "auto_resume_latest" in point.reason
    assert app.choose(auto_resume_latest=False) is None
    app.run("now")
    app.run("begun_later", 3)
    assert located(app.choose()) == ("plain_name", 2)


def test_a_new_run_starts_only_from_runs_with_the_same_config(app):
    app.run("same", 1, config_hash="h")
    app.run("different", 2, config_hash="other")
    app.run("unknown", 3)
    app.old_run("run_20990102_030405", 4)
    point = app.choose(config_hash="h")
    assert located(point) == ("same", 1)
    assert "with the same config" in point.reason
    assert located(app.choose()) == ("unknown", 3)
    assert app.choose(config_hash="new") is None
    app.run("sibling", 5, config_hash="h", group="sweep")
    assert located(app.choose(config_hash="h", group="sweep")) == ("same", 1), (
        "members of a sweep do not resume each other"
    )
    assert located(app.choose(config_hash="h", group="another sweep")) == ("sibling", 5)


def test_a_damaged_own_checkpoint_is_quarantined_and_no_run_starts_from_scratch_without_an_intact_one(app, caplog):
    app.run("earlier", 1)
    app.run("now", 5, 10)
    app.damage("now", 10)
    assert located(app.choose()) == ("now", 5)
    assert "checkpoint_step_10.damaged" in caplog.text
    app.damage("now", 5)
    for _ in range(2):
        with pytest.raises(CheckpointError, match="none is intact"):
            app.choose()


def test_a_damaged_other_run_is_skipped_with_a_warning_and_unchanged(app, caplog):
    app.run("older", 1)
    app.run("newer", 2)
    app.damage("newer", 2)
    app.run("newest", 3)
    app.files("newest").run_record_path.write_text("{")
    before = all_paths(app.root)
    assert located(app.choose()) == ("older", 1)
    assert "skipping run 'newer'" in caplog.text
    assert "run 'newest'" in caplog.text
    assert "run.json" in caplog.text
    assert all_paths(app.root) == before
    with pytest.raises(SerializationError, match=r"run\.json"):  # the own record identifies the run
        app.choose("newest")


def test_an_explicit_path_applies_to_first_starts_and_always_to_drop_in(app):
    typed = str(app.run("source", 3, 7).get_checkpoint_path(3))
    point = app.choose(load_checkpoint_path=typed)
    assert located(point) == ("source", 3)
    assert f"load_checkpoint_path={typed}" in point.reason
    app.save("now", 1)
    own = app.choose(load_checkpoint_path=typed)
    assert located(own) == ("now", 1)
    assert f"load_checkpoint_path={typed} applies to its first start" in own.reason
    assert located(app.drop_in(load_checkpoint_path=typed)[0]) == ("source", 3)


@pytest.mark.parametrize("part", ["", "checkpoints", "checkpoints/latest.pkl", "checkpoints/checkpoint_step_7"])
def test_an_explicit_path_may_name_run_checkpoint_directory_link_or_checkpoint(app, part):
    files = app.run("source", 3, 7)
    files.update_checkpoint_links(files.get_checkpoint_path(7), is_best=False)
    assert located(app.choose(load_checkpoint_path=str(files.run_base_dir / part))) == ("source", 7)


def test_a_relative_explicit_path_resolves_where_the_config_was_created(app, monkeypatch, tmp_path):
    app.run("source", 3)
    monkeypatch.chdir(app.files("source").run_base_dir)
    config = app.config(load_checkpoint_path="checkpoints/checkpoint_step_3")
    monkeypatch.chdir(tmp_path)
    assert located(choose(RunFiles(config), config)) == ("source", 3)


def test_a_missing_explicit_path_is_an_error_or_a_drop_in_warning(app, caplog):
    app.run("earlier", 2)
    with pytest.raises(ConfigurationError, match=r"load_checkpoint_path='/nowhere/x' does not exist"):
        app.choose(load_checkpoint_path="/nowhere/x")
    assert located(app.drop_in(load_checkpoint_path="/nowhere/x")[0]) == ("earlier", 2)
    assert "/nowhere/x" in caplog.text


@pytest.mark.parametrize("path", ["~no_such_user/x", "a\0b", "x" * 300, "loop", "loop/x"])
def test_a_path_that_cannot_exist_is_reported_like_a_missing_one(app, path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(ConfigurationError, match=r"load_checkpoint_path=.* does not exist"):
        app.choose(load_checkpoint_path=path)
    config = app.config(load_checkpoint_path=path).anchored(tmp_path)
    with pytest.raises(ConfigurationError, match=r"load_checkpoint_path=.* does not exist"):
        choose(RunFiles(config), config)


def test_a_path_without_access_is_reported_with_the_reason(app, tmp_path):
    private = tmp_path / "private"
    private.mkdir(mode=0)
    with restricted_access(), pytest.raises(ConfigurationError, match=r"cannot be read: Permission denied: .*/x"):
        app.choose(load_checkpoint_path=str(private / "x"))
    private.chmod(0o700)


@pytest.mark.parametrize("choose", [App.choose, App.drop_in])
def test_an_explicit_path_to_a_damaged_or_foreign_file_is_an_error(app, tmp_path, choose):
    damaged = app.run("source", 3, 7).get_checkpoint_path(7)
    cut(damaged)
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "empty").mkdir()
    for path in (damaged, tmp_path / "notes.txt", tmp_path / "empty"):
        with pytest.raises(CheckpointError, match=path.name):
            choose(app, load_checkpoint_path=str(path))
    with pytest.raises(CheckpointError, match=damaged.name):
        choose(app, load_checkpoint_path="source:step:7")


@pytest.mark.parametrize(
    ("reference", "step"), [("best", 20), ("latest", 30), ("step:10", 10), ("now:best", 20), ("now:step:10", 10)]
)
def test_a_run_rewinds_to_its_own_checkpoint_by_reference(app, reference, step):
    app.rated("now", {10: 1.0, 20: 3.0, 30: 2.0})
    app.check(load_checkpoint_path=reference)
    point = app.choose(load_checkpoint_path=reference)
    assert located(point) == located(app.drop_in(load_checkpoint_path=reference)[0]) == ("now", step)
    assert point.went_back_to == reference
    assert f"goes back to its own checkpoint checkpoint_step_{step} (load_checkpoint_path={reference})" in point.reason


def test_best_falls_back_to_the_next_best_until_none_is_intact(app):
    app.rated("now", {10: 1.0, 20: 3.0, 30: None})
    app.damage("now", 20)
    before = all_paths(app.root)
    app.check(load_checkpoint_path="best")  # before a run starts, only names are checked
    assert all_paths(app.root) == before
    assert located(app.choose(load_checkpoint_path="best")) == ("now", 10)
    app.rated("other", {10: 1.0, 20: 3.0}, mode="min")
    assert located(app.drop_in(load_checkpoint_path="other:best")[0]) == ("other", 10)
    app.damage("now", 10)
    with pytest.raises(CheckpointError, match="no intact checkpoint with an objective: checkpoint_step_10"):
        app.choose(load_checkpoint_path="best")


def test_a_repeated_rewind_command_resumes_from_newer_checkpoints(app):
    app.rated("now", {10: 1.0, 20: 3.0, 30: 2.0}, went_back_to="best", went_back_in=2)
    repeated = app.choose(load_checkpoint_path="best")
    assert located(repeated) == ("now", 20)  # attempt 2 rewound and was killed before its first save
    app.save("now", 21, attempt=2, objective=0.0)
    since = app.choose(load_checkpoint_path="best")
    assert located(since) == ("now", 21)
    assert "attempt 2 already went back (load_checkpoint_path=best)" in since.reason
    assert "start it once without that" in since.reason
    assert since.went_back_to is None
    assert located(app.choose(load_checkpoint_path="step:10")) == ("now", 10)


@pytest.mark.parametrize(
    ("run_name", "reference", "message"),
    [
        ("now", "best", r"has no checkpoint best; none has an objective.*\(choose from: step:10, step:5\)"),
        ("now", "step:7", r"no checkpoint step:7 \(choose from: step:5, step:10\)"),
        ("fresh", "missing:best", "app 'app' has no run 'missing'"),
        ("fresh", "nwo:best", "did you mean 'now'"),
        ("fresh", "empty:latest", "run 'empty' has no checkpoint"),
        ("fresh", "old:best", r"`trieye convert .*old` converts checkpoints of trieye 0\.1\.5"),
        ("fresh", "..:best", "run_name"),
    ],
)
def test_an_unknown_checkpoint_reference_is_always_an_error(app, run_name, reference, message):
    app.run("empty")
    app.old_run("old", 5)
    app.run("now", 5, 10)
    for attempt in (app.check, app.choose, app.drop_in):
        with pytest.raises(ConfigurationError, match=message):
            attempt(run_name, load_checkpoint_path=reference)


@pytest.mark.parametrize("reference", ["best", "latest", "step:10"])
def test_a_reference_to_a_run_without_intact_checkpoints_is_an_error(app, reference):
    app.run("now", 10)
    (app.files().get_checkpoint_path(10) / "MANIFEST.json").unlink()
    for attempt in (app.check, app.choose):
        with pytest.raises(CheckpointError, match="none is intact"):
            attempt(load_checkpoint_path=reference)


def test_a_reference_to_another_run_applies_only_to_the_first_start(app):
    app.rated("teacher", {10: 1.0, 20: 3.0, 30: 2.0})
    app.run("now")
    point = app.choose(load_checkpoint_path="teacher:best")
    assert located(point) == ("teacher", 20)
    assert "starts from checkpoint_step_20 of 'teacher' (load_checkpoint_path=teacher:best)" in point.reason
    assert point.went_back_to is None
    app.save("now", 3)
    assert located(app.choose(load_checkpoint_path="teacher:best")) == ("now", 3)


def test_the_state_at_an_error_of_another_run_is_referenced_by_name(app):
    app.run("teacher", 10)
    checkpoints = app.files("teacher").checkpoint_dir
    shutil.copytree(checkpoints / "checkpoint_step_10", checkpoints / "crash-10")
    app.check(load_checkpoint_path="teacher:crash-10")
    point = app.choose(load_checkpoint_path="teacher:crash-10")
    assert (point.checkpoint.name, point.run_name, point.went_back_to) == ("crash-10", "teacher", None)
    app.save("now", 3)
    assert located(app.choose(load_checkpoint_path="teacher:crash-10")) == ("now", 3)
    with pytest.raises(ConfigurationError, match=r"no checkpoint crash-7 \(choose from: crash-10\)"):
        app.choose("fresh", load_checkpoint_path="teacher:crash-7")
    (checkpoints / "crash-10").rename(checkpoints / "crash-10.damaged")
    with pytest.raises(ConfigurationError, match=r"no checkpoint crash-10 \(choose from: none\)"):
        app.choose("fresh", load_checkpoint_path="teacher:crash-10")
    own = app.choose("teacher", load_checkpoint_path="teacher:crash-10")
    assert own.checkpoint.name == "checkpoint_step_10"  # it would fail again


def test_references_are_not_checked_before_the_start_if_a_mirror_exists(app, tmp_path):
    app.check(load_checkpoint_path="missing:best", mirror=f"file://{tmp_path / 'mirror'}")


def test_the_newest_intact_buffer_up_to_the_checkpoint_step_is_loaded(app):
    files = app.run("now", 5, 9, buffers=(4, 8, 12))
    loaded = app.drop_in()
    assert steps(loaded) == (9, 8)
    assert loaded[1].path == files.get_buffer_path(8)
    cut(files.get_buffer_path(8))
    assert steps(app.drop_in()) == (9, 4), "a damaged buffer is quarantined"
    older = str(files.get_checkpoint_path(5))
    assert steps(app.drop_in("fresh", load_checkpoint_path=older)) == (5, 4)
    shutil.rmtree(files.get_buffer_path(4))
    assert steps(app.drop_in("fresh", load_checkpoint_path=older)) == (5, None)


def test_buffers_are_skipped_without_save_buffer_and_overridden_by_an_explicit_path(app, caplog):
    app.run("now", 9, buffers=(8,))
    explicit = app.run("other", 9, buffers=(3,)).get_buffer_path(3)
    assert steps(app.drop_in(save_buffer=False)) == (9, None)
    for path in (explicit, explicit.parent, explicit.parent.parent):
        assert app.drop_in(load_buffer_path=str(path))[1][:2] == (explicit, 3)
    assert steps(app.drop_in(load_buffer_path="/nowhere")) == (9, 8)
    assert "load_buffer_path='/nowhere' does not exist" in caplog.text


def test_runs_of_0_1_5_are_ordered_by_the_date_in_their_name(app):
    app.old_run("run_20250102_030405", 5, 10, buffers=(4, 12))
    app.old_run("run_20240102_030405", 50)
    app.old_run("run_20990102_030405", 99)
    point = app.choose()
    assert located(point) == ("run_20250102_030405", 10)
    assert point.checkpoint.path.name == "checkpoint_step_10.pkl"
    buffer = app.drop_in()[1]
    assert (buffer.path.name, buffer.step) == ("buffer_step_4.pkl", 4)
    point.checkpoint.path.write_bytes(b"\x80\x04")  # torn
    assert located(app.choose()) == ("run_20250102_030405", 5)


def test_an_explicit_file_of_0_1_5_is_accepted(app, tmp_path):
    shutil.copy(DATA / "checkpoint_0_1_5.pkl", tmp_path / "old.pkl")
    point = app.choose(load_checkpoint_path=str(tmp_path / "old.pkl"))
    assert point.checkpoint == ((tmp_path / "old.pkl").resolve(), None, None)


def test_unconverted_0_1_5_files_with_a_higher_step_cause_a_warning(app, caplog):
    files = app.old_run("now", 5, 10)
    app.save("now", 5)
    assert located(app.choose()) == ("now", 5)
    assert "checkpoint_step_10.pkl of trieye 0.1.5 has a higher step" in caplog.text
    caplog.clear()
    app.save("now", 10)
    app.save("now", 6)
    assert located(app.choose()) == ("now", 6)
    assert not caplog.text
    assert files.checkpoint_dir.joinpath("checkpoint_step_10.pkl").exists()


def test_resume_dirs_are_searched_for_earlier_runs_and_stay_unchanged(app, other_root):
    other_root.run("far", 7, 9, config_hash="h", buffers=(6, 8))
    other_root.run("farther", 9, config_hash="h")
    other_root.damage("farther", 9)
    before, resume_dirs = all_paths(other_root.root), {"resume_dirs": [str(other_root.root)]}
    assert app.choose(config_hash="h") is None
    point = app.choose(config_hash="h", **resume_dirs)
    assert located(point) == ("far", 9)
    assert str(other_root.files("far").runs_root_dir) in point.reason
    assert app.drop_in(**resume_dirs)[1].path == other_root.files("far").get_buffer_path(8)
    assert app.choose(config_hash="h", auto_resume_latest=False, **resume_dirs) is None
    assert located(app.choose(load_checkpoint_path="far:latest", **resume_dirs)) == ("far", 9)
    assert all_paths(other_root.root) == before
    app.run("near", 1, config_hash="h")
    other_root.run("newest", 2, config_hash="h")
    assert located(app.choose(config_hash="h", **resume_dirs)) == ("newest", 2)


def test_a_sweep_member_resumes_from_its_namesake_in_another_root(app, other_root):
    other_root.run("now", 7, group="sweep")
    other_root.run("sibling", 8, group="sweep")
    point = app.choose(group="sweep", resume_dirs=[str(other_root.root)])
    assert located(point) == ("now", 7)
    assert str(other_root.root) in point.reason


def test_a_missing_resume_dir_is_an_error_for_new_runs(app):
    with pytest.raises(ConfigurationError, match=r"persistence\.resume_dirs=/nowhere/data"):
        app.choose(resume_dirs=["/nowhere/data"])
    app.run("now", 1)
    assert located(app.choose(resume_dirs=["/nowhere/data"])) == ("now", 1)


def test_a_linked_checkpoint_is_not_followed(app, tmp_path, caplog):
    path = app.run("now", 5).get_checkpoint_path(5)
    path.rename(tmp_path / "far")
    path.symlink_to(tmp_path / "far")
    with pytest.raises(CheckpointError, match="is a link, possibly created by another user") as caught:
        app.choose()
    assert str(tmp_path / "far") in str(caught.value)
    assert app.choose("fresh", load_checkpoint_path=str(tmp_path / "far")).checkpoint.step == 5
    app.save("now", 3)
    assert located(app.choose()) == ("now", 3)
    assert "checkpoint_step_5 is a link and is not used" in caplog.text


@pytest.mark.parametrize("folder", ["checkpoints", "buffers"])
def test_a_checkpoint_directory_linked_outside_the_run_is_rejected(app, tmp_path, folder):
    files = app.run("now", 5, buffers=(4,))
    (files.run_base_dir / folder).rename(tmp_path / "far")
    (files.run_base_dir / folder).symlink_to(tmp_path / "far")
    with pytest.raises(CheckpointError, match=f"{folder} is a link to .*far, outside of"):
        app.drop_in()


def test_a_run_linked_outside_the_app_is_ignored(app, tmp_path, caplog):
    run_dir = app.run("planted", 5).run_base_dir
    run_dir.rename(tmp_path / "far")
    run_dir.symlink_to(tmp_path / "far")
    assert app.choose() is None
    assert "planted is ignored: it is a link" in caplog.text


def test_messages_name_a_checkpoint_with_its_step():
    candidates = [("checkpoint_step_7", 7), ("latest.pkl", 7), ("x.pkl", None)]
    names = [ResumeCandidate(Path(file), step).name for file, step in candidates]
    assert names == ["checkpoint_step_7", "latest.pkl of step 7", "x.pkl"]
