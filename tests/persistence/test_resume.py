import logging
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

from trieye.config import PersistenceConfig
from trieye.exceptions import CheckpointError, ConfigurationError, SerializationError
from trieye.path_manager import PathManager
from trieye.persistence.checkpoints import BUFFER_PREFIX, CheckpointStore
from trieye.persistence.encoding import encode
from trieye.persistence.resume import find_resume
from trieye.persistence.run_record import RunRecord

DATA = Path(__file__).parent / "data"


class App:
    """One app in a temporary directory, whose runs begin one after the other."""

    def __init__(self, root):
        self.root = root
        self._clock = 1_000_000.0

    def config(self, run_name="now", **changes):
        return PersistenceConfig(root_data_dir=str(self.root), app_name="app", run_name=run_name, **changes)

    def paths(self, run_name="now"):
        return PathManager(self.config(run_name))

    def run(self, name, *steps, buffers=(), **record):
        paths = self.paths(name)
        self._clock += 10
        RunRecord(app_name="app", run_name=name, created=self._clock, **record).save(paths.run_record_path)
        self.save(name, *steps, buffers=buffers)
        return paths

    def save(self, name, *steps, buffers=(), **metadata):
        paths = self.paths(name)
        for step in steps:
            state = encode({"step": step, "a": np.zeros(9)})
            CheckpointStore(paths.checkpoint_dir).save(step, state, metadata=metadata)
        for step in buffers:
            CheckpointStore(paths.buffer_dir, prefix=BUFFER_PREFIX).save(step, encode({"buffer_list": [step]}))

    def old_run(self, name, *steps, buffers=()):
        paths = self.paths(name)
        for directory, prefix, numbers in (
            (paths.checkpoint_dir, "checkpoint_step_", steps),
            (paths.buffer_dir, "buffer_step_", buffers),
        ):
            directory.mkdir(parents=True)
            for step in numbers:
                (directory / f"{prefix}{step}.pkl").write_bytes(pickle.dumps(step))
        return paths

    def resume(self, run_name="now", *, config_hash=None, group=None, own_first=True, strict=True, **changes):
        config = self.config(run_name, **changes)
        options = {"config_hash": config_hash, "group": group, "own_first": own_first, "strict": strict}
        return find_resume(PathManager(config), config, **options)

    def damage(self, name, step, prefix="checkpoint_step_", folder="checkpoints"):
        path = self.paths(name).run_base_dir / folder / f"{prefix}{step}" / "state.json"
        path.write_bytes(path.read_bytes()[:-1])


@pytest.fixture
def app(tmp_path):
    return App(tmp_path / "root")


def where(point):
    return None if point is None else (point.run_name, point.step)


def test_an_app_without_runs_starts_afresh(app):
    assert app.resume() is None


def test_a_run_goes_on_from_its_own_newest_checkpoint_even_when_others_are_newer(app):
    app.run("now", 5, 10)
    app.run("other", 99)
    point = app.resume()
    assert where(point) == ("now", 10)
    assert point.path == app.paths().checkpoint_dir / "checkpoint_step_10"
    assert "'now' goes on from its own newest checkpoint, checkpoint_step_10" in point.reason
    assert where(app.resume(auto_resume_latest=False)) == ("now", 10)


def test_a_fresh_run_starts_from_the_newest_earlier_run_by_recorded_time_not_by_name(app):
    app.run("zzz_20990101_000000", 1)
    app.run("plain_name", 2)
    point = app.resume()
    assert where(point) == ("plain_name", 2)
    assert "auto_resume_latest" in point.reason
    assert app.resume(auto_resume_latest=False) is None


def test_a_run_begun_later_is_no_earlier_run(app):
    app.run("first", 1)
    app.run("now")
    app.run("later", 3)
    assert where(app.resume()) == ("first", 1)


def test_runs_without_checkpoints_are_passed_over(app):
    app.run("with", 4)
    app.run("without")
    assert where(app.resume()) == ("with", 4)


def test_only_a_run_with_the_same_config_is_resumed_from(app):
    app.run("same", 1, config_hash="h")
    app.run("different", 2, config_hash="other")
    app.run("unknown", 3)
    point = app.resume(config_hash="h")
    assert where(point) == ("same", 1)
    assert "with the same config" in point.reason
    assert where(app.resume()) == ("unknown", 3)
    assert app.resume(config_hash="new") is None


def test_members_of_a_sweep_never_resume_each_other(app):
    app.run("before", 1, config_hash="h")
    app.run("sibling", 2, config_hash="h", group="sweep")
    assert where(app.resume(config_hash="h", group="sweep")) == ("before", 1)
    assert where(app.resume(group="sweep")) == ("before", 1)
    assert where(app.resume(group="another sweep")) == ("sibling", 2)


def test_the_own_damaged_checkpoint_is_set_aside_for_the_older_one(app, caplog):
    app.run("now", 5, 10)
    app.damage("now", 10)
    with caplog.at_level(logging.WARNING):
        assert where(app.resume()) == ("now", 5)
    assert "checkpoint_step_10.damaged" in caplog.text


def test_a_run_whose_checkpoints_are_all_damaged_never_starts_afresh(app):
    app.run("earlier", 1)
    app.run("now", 5)
    app.damage("now", 5)
    for _ in range(2):
        with pytest.raises(CheckpointError, match="none is whole"):
            app.resume()


def test_damage_in_another_run_is_said_and_passed_over_without_touching_it(app, caplog):
    app.run("older", 1)
    app.run("newer", 2)
    app.damage("newer", 2)
    with caplog.at_level(logging.WARNING):
        assert where(app.resume()) == ("older", 1)
    assert "'newer' is not resumed from" in caplog.text
    assert os.listdir(app.paths("newer").checkpoint_dir) == ["checkpoint_step_2"]  # noqa: PTH208 - names


def test_an_unreadable_record_of_another_run_is_said_and_passed_over(app, caplog):
    app.run("older", 1)
    app.run("newer", 2)
    app.paths("newer").run_record_path.write_text("{")
    with caplog.at_level(logging.WARNING):
        assert where(app.resume()) == ("older", 1)
    assert "run.json" in caplog.text


def test_an_unreadable_record_of_the_own_run_stops(app):
    app.run("older", 1)
    app.run("now")
    app.paths().run_record_path.write_text("{")
    with pytest.raises(SerializationError, match=r"run\.json"):
        app.resume()


def test_an_explicit_checkpoint_comes_after_the_own_ones_or_before_them(app):
    app.run("source", 3, 7)
    explicit = str(app.paths("source").get_checkpoint_path(3))
    point = app.resume(load_checkpoint_path=explicit)
    assert where(point) == ("source", 3)
    assert f"load_checkpoint_path={explicit}" in point.reason
    app.save("now", 1)
    assert where(app.resume(load_checkpoint_path=explicit)) == ("now", 1)
    assert where(app.resume(load_checkpoint_path=explicit, own_first=False)) == ("source", 3)


@pytest.mark.parametrize("part", ["", "checkpoints", "checkpoints/latest.pkl", "checkpoints/checkpoint_step_7"])
def test_an_explicit_path_may_be_a_run_its_checkpoints_a_link_or_a_checkpoint(app, part):
    paths = app.run("source", 3, 7)
    paths.update_checkpoint_links(paths.get_checkpoint_path(7), is_best=False)
    assert where(app.resume(load_checkpoint_path=str(paths.run_base_dir / part))) == ("source", 7)


def test_a_relative_explicit_path_belongs_to_where_the_config_was_made(app, monkeypatch, tmp_path):
    app.run("source", 3)
    monkeypatch.chdir(app.paths("source").run_base_dir)
    config = app.config(load_checkpoint_path="checkpoints/checkpoint_step_3")
    monkeypatch.chdir(tmp_path)
    assert where(find_resume(PathManager(config), config)) == ("source", 3)


def test_an_explicit_path_that_does_not_exist_is_an_error_or_for_the_drop_in_api_a_warning(app, caplog):
    app.run("earlier", 2)
    with pytest.raises(ConfigurationError, match=r"load_checkpoint_path='/nowhere/x' does not exist"):
        app.resume(load_checkpoint_path="/nowhere/x")
    with caplog.at_level(logging.WARNING):
        assert where(app.resume(load_checkpoint_path="/nowhere/x", strict=False, own_first=False)) == ("earlier", 2)
    assert "/nowhere/x" in caplog.text


@pytest.mark.parametrize("strict", [True, False])
def test_an_explicit_checkpoint_that_is_damaged_is_always_an_error(app, strict):
    app.run("source", 3, 7)
    app.damage("source", 7)
    with pytest.raises(CheckpointError, match="checkpoint_step_7"):
        app.resume(load_checkpoint_path=str(app.paths("source").get_checkpoint_path(7)), strict=strict)


def test_an_explicit_path_to_something_else_is_an_error(app, tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "empty").mkdir()
    for name in ("notes.txt", "empty"):
        with pytest.raises(CheckpointError, match=name):
            app.resume(load_checkpoint_path=str(tmp_path / name))


def test_the_buffer_is_the_newest_that_is_not_newer_than_the_checkpoint(app):
    app.run("now", 5, 9, buffers=(4, 8, 12))
    point = app.resume()
    assert (point.step, point.buffer_step) == (9, 8)
    assert point.buffer_path == app.paths().buffer_dir / "buffer_step_8"
    assert "with buffer_step_8" in point.reason
    old = app.resume("fresh", load_checkpoint_path=str(app.paths().get_checkpoint_path(5)))
    assert (old.step, old.buffer_step) == (5, 4)
    shutil.rmtree(app.paths().buffer_dir / "buffer_step_4")
    old = app.resume("fresh", load_checkpoint_path=str(app.paths().get_checkpoint_path(5)))
    assert (old.step, old.buffer_path, old.buffer_step) == (5, None, None)


def test_a_damaged_buffer_is_set_aside_for_the_older_one(app):
    app.run("now", 9, buffers=(4, 8))
    app.damage("now", 8, "buffer_step_", "buffers")
    assert app.resume().buffer_step == 4


def test_buffers_are_left_alone_when_they_are_not_saved_and_replaced_by_an_explicit_one(app):
    app.run("now", 9, buffers=(8,))
    app.run("other", 9, buffers=(3,))
    assert app.resume(save_buffer=False).buffer_path is None
    explicit = app.paths("other").buffer_dir / "buffer_step_3"
    for path in (explicit, explicit.parent, explicit.parent.parent):
        point = app.resume(load_buffer_path=str(path))
        assert (point.buffer_path, point.buffer_step) == (explicit, 3)
    with pytest.raises(ConfigurationError, match="load_buffer_path"):
        app.resume(load_buffer_path="/nowhere")
    assert app.resume(load_buffer_path="/nowhere", strict=False).buffer_step == 8


def test_runs_of_0_1_5_are_found_by_the_date_in_their_name(app):
    app.old_run("run_20250102_030405", 5, 10, buffers=(4, 12))
    app.old_run("run_20240102_030405", 50)
    app.old_run("run_20990102_030405", 99)
    point = app.resume()
    assert where(point) == ("run_20250102_030405", 10)
    assert point.path.name == "checkpoint_step_10.pkl"
    assert (point.buffer_path.name, point.buffer_step) == ("buffer_step_4.pkl", 4)


def test_an_explicit_file_of_0_1_5_is_taken(app, tmp_path):
    shutil.copy(DATA / "checkpoint_0_1_5.pkl", tmp_path / "old.pkl")
    point = app.resume(load_checkpoint_path=str(tmp_path / "old.pkl"))
    assert (point.path, point.step) == ((tmp_path / "old.pkl").resolve(), None)


def test_a_torn_file_of_0_1_5_is_passed_over(app):
    paths = app.old_run("run_20250102_030405", 5, 10)
    (paths.checkpoint_dir / "checkpoint_step_10.pkl").write_bytes(b"\x80\x04")
    assert where(app.resume()) == ("run_20250102_030405", 5)


def rated(app, name, values, mode="max", **record):
    app.run(name, **record)
    for step, objective in values.items():
        app.save(name, step, objective=objective, mode=mode, attempt=1)


@pytest.mark.parametrize(
    ("asked", "step"), [("best", 20), ("latest", 30), ("step:10", 10), ("now:best", 20), ("now:step:10", 10)]
)
@pytest.mark.parametrize("own_first", [True, False])
def test_a_run_goes_back_to_the_own_checkpoint_that_is_called(app, asked, step, own_first):
    rated(app, "now", {10: 1.0, 20: 3.0, 30: 2.0})
    point = app.resume(load_checkpoint_path=asked, own_first=own_first)
    assert where(point) == ("now", step)
    assert point.went_back_to == asked
    assert f"goes back to its own checkpoint checkpoint_step_{step} (load_checkpoint_path={asked})" in point.reason


def test_the_best_is_the_lowest_where_the_run_says_so(app):
    rated(app, "now", {10: 1.0, 20: 3.0, 30: 2.0}, mode="min")
    assert where(app.resume(load_checkpoint_path="best")) == ("now", 10)


def test_a_damaged_best_one_is_set_aside_for_the_second_best(app):
    rated(app, "now", {10: 1.0, 20: 3.0, 30: 2.0})
    app.damage("now", 20)
    assert where(app.resume(load_checkpoint_path="best")) == ("now", 30)


def test_a_run_goes_back_once_and_a_repeated_command_goes_on_from_what_was_saved_since(app):
    rated(app, "now", {10: 1.0, 20: 3.0, 30: 2.0}, went_back_to="best", went_back_in=2)
    again = app.resume(load_checkpoint_path="best")
    assert where(again) == ("now", 20)  # attempt 2 went back, and was killed before it saved anything
    app.save("now", 21, attempt=2, objective=0.0)
    since = app.resume(load_checkpoint_path="best")
    assert where(since) == ("now", 21)
    assert "its attempt 2 went back already (load_checkpoint_path=best)" in since.reason
    assert "start it once without that" in since.reason
    assert since.went_back_to is None
    assert where(app.resume(load_checkpoint_path="step:10")) == ("now", 10)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("best", "has no best checkpoint, since none says how good it is"),
        ("step:7", r"no checkpoint of step 7 \(steps: 5, 10\)"),
        ("nobody:best", "app 'app' has no run 'nobody'"),
        ("nwo:best", "did you mean 'now'"),
        ("empty:latest", "run 'empty' has no checkpoint"),
    ],
)
@pytest.mark.parametrize("strict", [True, False])
def test_what_is_called_and_is_not_there_is_always_an_error(app, asked, said, strict):
    app.run("empty")
    app.run("now", 5, 10)
    with pytest.raises(ConfigurationError, match=said) as caught:
        app.resume(load_checkpoint_path=asked, strict=strict, own_first=False)
    assert asked in str(caught.value)


def test_where_all_that_are_rated_are_damaged_there_is_no_best_one(app):
    rated(app, "now", {10: 1.0, 20: None})
    app.damage("now", 10)
    with pytest.raises(CheckpointError, match="no whole checkpoint that says how good it is: checkpoint_step_10"):
        app.resume(load_checkpoint_path="best")


def test_where_all_are_damaged_calling_one_says_so(app):
    app.run("now", 10)
    (app.paths().checkpoint_dir / "checkpoint_step_10" / "MANIFEST.json").unlink()
    for asked in ("best", "latest", "step:10"):
        with pytest.raises(CheckpointError, match="none is whole"):
            app.resume(load_checkpoint_path=asked)


def test_a_run_of_0_1_5_that_is_called_has_to_be_converted(app):
    app.old_run("old", 5)
    with pytest.raises(ConfigurationError, match=r"`trieye convert .*old` makes one of checkpoint_step_5\.pkl"):
        app.resume(load_checkpoint_path="old:best")


def test_a_damaged_checkpoint_that_is_called_by_its_step_is_an_error(app):
    app.run("now", 5, 10)
    app.damage("now", 5)
    with pytest.raises(CheckpointError, match="checkpoint_step_5"):
        app.resume(load_checkpoint_path="step:5")


def test_the_best_of_another_run_is_where_a_fresh_run_starts_and_a_preempted_one_does_not(app):
    rated(app, "teacher", {10: 1.0, 20: 3.0, 30: 2.0})
    app.run("now")
    point = app.resume(load_checkpoint_path="teacher:best")
    assert where(point) == ("teacher", 20)
    assert "starts from checkpoint_step_20 of 'teacher' (load_checkpoint_path=teacher:best)" in point.reason
    assert point.went_back_to is None
    app.save("now", 3)
    assert where(app.resume(load_checkpoint_path="teacher:best")) == ("now", 3)


def test_a_file_called_best_is_meant_by_a_path(app, monkeypatch):
    app.run("source", 3)
    monkeypatch.chdir(app.paths("source").checkpoint_dir)
    os.rename("checkpoint_step_3", "best")  # noqa: PTH104 - relative
    assert app.resume("fresh", load_checkpoint_path="./best").path.name == "best"


def test_earlier_runs_are_looked_for_in_other_roots_which_stay_as_they_are(app, tmp_path):
    elsewhere = App(tmp_path / "elsewhere")
    elsewhere.run("far", 7, config_hash="h")
    elsewhere.run("farther", 9, config_hash="h")
    elsewhere.damage("farther", 9)
    before = sorted(str(path) for path in elsewhere.root.rglob("*"))
    assert app.resume(config_hash="h") is None
    point = app.resume(config_hash="h", resume_dirs=[str(elsewhere.root)])
    assert where(point) == ("far", 7)
    assert str(elsewhere.paths("far").runs_root_dir) in point.reason
    assert app.resume(config_hash="h", resume_dirs=[str(elsewhere.root)], auto_resume_latest=False) is None
    called = app.resume(load_checkpoint_path="far:latest", resume_dirs=[str(elsewhere.root)])
    assert where(called) == ("far", 7)
    assert sorted(str(path) for path in elsewhere.root.rglob("*")) == before
    app.run("near", 1, config_hash="h")
    elsewhere.run("newest", 2, config_hash="h")
    assert where(app.resume(config_hash="h", resume_dirs=[str(elsewhere.root)])) == ("newest", 2)


def test_a_run_of_the_same_name_in_another_root_is_an_earlier_one_also_in_a_sweep(app, tmp_path):
    elsewhere = App(tmp_path / "elsewhere")
    elsewhere.run("now", 7, group="sweep")
    elsewhere.run("sibling", 8, group="sweep")
    point = app.resume(group="sweep", resume_dirs=[str(elsewhere.root)])
    assert where(point) == ("now", 7)
    assert str(elsewhere.root) in point.reason


def test_a_root_to_look_in_that_is_not_there_is_an_error(app, tmp_path):
    with pytest.raises(ConfigurationError, match=r"persistence\.resume_dirs=/nowhere/data"):
        app.resume(resume_dirs=["/nowhere/data"])
    app.run("now", 1)
    assert where(app.resume(resume_dirs=["/nowhere/data"])) == ("now", 1)


def test_a_buffer_of_a_run_in_another_root_comes_with_its_checkpoint(app, tmp_path):
    elsewhere = App(tmp_path / "elsewhere")
    elsewhere.run("far", 7, 9, buffers=(6, 8))
    point = app.resume(resume_dirs=[str(elsewhere.root)])
    assert (point.step, point.buffer_step) == (9, 8)
    assert elsewhere.root in point.buffer_path.parents


def test_a_checkpoint_that_is_a_link_is_not_followed(app, tmp_path, caplog):
    paths = app.run("now", 5)
    (paths.checkpoint_dir / "checkpoint_step_5").rename(tmp_path / "far")
    (paths.checkpoint_dir / "checkpoint_step_5").symlink_to(tmp_path / "far")
    with pytest.raises(CheckpointError, match="is a link, which somebody else may have made") as caught:
        app.resume()
    assert str(tmp_path / "far") in str(caught.value)
    assert where(app.resume("fresh", load_checkpoint_path=str(tmp_path / "far")))[1] == 5
    app.save("now", 3)
    with caplog.at_level(logging.WARNING):
        assert where(app.resume()) == ("now", 3)
    assert "checkpoint_step_5 is a link and is not used" in caplog.text


@pytest.mark.parametrize("folder", ["checkpoints", "buffers"])
def test_a_directory_of_checkpoints_that_leaves_the_run_is_refused(app, tmp_path, folder):
    paths = app.run("now", 5, buffers=(4,))
    (paths.run_base_dir / folder).rename(tmp_path / "far")
    (paths.run_base_dir / folder).symlink_to(tmp_path / "far")
    with pytest.raises(CheckpointError, match=f"{folder} is a link to .*far, outside of"):
        app.resume()


def test_a_run_that_is_a_link_out_of_the_app_is_not_looked_at(app, tmp_path, caplog):
    paths = app.run("planted", 5)
    paths.run_base_dir.rename(tmp_path / "far")
    paths.run_base_dir.symlink_to(tmp_path / "far")
    with caplog.at_level(logging.WARNING):
        assert app.resume() is None
    assert "planted is a link that leaves" in caplog.text


def test_files_of_0_1_5_with_a_higher_step_are_mentioned_until_they_are_converted(app, caplog):
    paths = app.old_run("now", 5, 10)
    app.save("now", 5)
    with caplog.at_level(logging.WARNING):
        assert where(app.resume()) == ("now", 5)
    assert "checkpoint_step_10.pkl of trieye 0.1.5 has a higher step" in caplog.text
    caplog.clear()
    app.save("now", 10)
    app.save("now", 6)
    with caplog.at_level(logging.WARNING):
        assert where(app.resume()) == ("now", 6)
    assert not caplog.text
    assert paths.checkpoint_dir.joinpath("checkpoint_step_10.pkl").exists()
