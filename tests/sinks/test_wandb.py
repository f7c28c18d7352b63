"""The wandb sink offline: wandb's own process writes files, and the tests read them back."""

import json
import os
import signal
import sys

import numpy as np
import psutil
import pytest
from PIL import Image

from tests.forked import in_a_child
from tests.waiting import LONG_S, wait_until
from trieye.config.sinks import WandbSinkConfig
from trieye.exceptions import ProcessingError, TrieyeError
from trieye.integrations.wandb.offline import records_in, values_of
from trieye.run import media, table, video
from trieye.sinks.base import Flushable, MediaSink, Tracker
from trieye.sinks.wandb import WandbSink
from trieye.stats.point import Point
from trieye.testing import SinkContract, make_run_info


@pytest.fixture(scope="module", autouse=True)
def _own_wandb(tmp_path_factory):
    """Isolate the tests from the user's account and directories, and end wandb's process after them."""
    home = tmp_path_factory.mktemp("wandb")
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("WANDB_")]:
            patch.delenv(name)
        for name in ("CONFIG", "CACHE", "DATA"):
            patch.setenv(f"WANDB_{name}_DIR", str(home))
        patch.setenv("WANDB_ERROR_REPORTING", "false")
        # listing the installed packages takes half the time of a run
        patch.setenv("WANDB_X_SAVE_REQUIREMENTS", "false")
        yield
        import wandb

        wandb.teardown()


def offline(**settings):
    return WandbSink(WandbSinkConfig(enabled=True, mode="offline", **settings))


def opened(run, **settings):
    sink = offline(**settings)
    sink.open(run)
    return sink


def files_of(run):
    """Return the files of all attempts, oldest first."""
    return sorted(run.run_dir.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime_ns)


def records_of(run):
    """Return the records of all attempts; wandb's process writes the last ones shortly after the close."""
    wait_until(lambda: any(record.HasField("exit") for record in records_in(files_of(run)[-1])))
    return [record for path in files_of(run) for record in records_in(path)]


def rows_of(run):
    return [values_of(record.history.item) for record in records_of(run) if record.HasField("history")]


def points_of(run):
    return [
        (name, value, row["global_step"])
        for row in rows_of(run)
        for name, value in row.items()
        if name != "global_step" and not name.startswith("_")
    ]


def config_of(run):
    config = {}
    for record in records_of(run):
        update = record.run.config.update if record.HasField("run") else record.config.update
        config |= values_of(update)
    return config


def run_record_of(run):
    return next(record.run for record in records_of(run) if record.HasField("run"))


class TestContract(SinkContract):
    def make_sink(self):
        return offline()

    def read_points(self, run):
        return points_of(run)


@pytest.fixture
def run(tmp_path):
    return make_run_info(tmp_path, app_name="my app", run_name="first try")


def test_the_wandb_run_has_our_names_and_group(run, tmp_path, capfd):
    run = make_run_info(tmp_path, app_name="my app", run_name="first try", group="/data/multirun/2026-11-21/07-41")
    sink = opened(run, entity="team")
    assert isinstance(sink, Tracker)
    assert isinstance(sink, MediaSink)
    assert isinstance(sink, Flushable)
    sink.close("FINISHED")
    record = run_record_of(run)
    assert (record.project, record.entity, record.display_name) == ("my app", "team", "first try")
    assert (record.run_id, record.run_group) == (run.run_id, "2026-11-21/07-41")
    printed = capfd.readouterr()
    assert (printed.out, printed.err) == ("", "")


def test_points_of_a_step_share_a_row_with_step_and_time_and_the_summary_has_the_latest_values(run):
    sink = opened(run, project="else")
    sink.write(
        [Point("loss", 0.5, 10, 1.7e9), Point("acc@1/é", 1.0, 10, 1.7e9 + 1), Point("loss", 0.25, 11, 1.7e9 + 2)]
    )
    sink.write([Point("loss", 0.75, 3, 1.7e9 + 3)])  # an earlier step, logged late
    sink.close("FINISHED")
    rows = [{name: row[name] for name in row if name not in ("_runtime", "_step")} for row in rows_of(run)]
    assert rows == [
        {"loss": 0.5, "acc@1/é": 1.0, "global_step": 10, "_timestamp": 1.7e9 + 1},
        {"loss": 0.25, "global_step": 11, "_timestamp": 1.7e9 + 2},
        {"loss": 0.75, "global_step": 3, "_timestamp": 1.7e9 + 3},
    ]
    metrics = [record.metric for record in records_of(run) if record.HasField("metric")]
    assert [(metric.name, metric.glob_name, metric.step_metric) for metric in metrics] == [
        ("global_step", "", ""),
        ("", "*", "global_step"),
    ]
    assert run_record_of(run).project == "else"
    summary = {}
    for record in records_of(run):
        summary |= values_of(record.summary.update)
    assert summary["loss"] == 0.75


@pytest.mark.parametrize(("status", "code"), [("FINISHED", 0), ("FAILED", 1), ("KILLED", 130), ("RUNNING", 1)])
def test_the_exit_code_records_the_status(run, status, code):
    opened(run).close(status)
    records = list(records_of(run))
    assert [record.exit.exit_code for record in records if record.HasField("exit")] == [code]
    assert any(record.HasField("preempting") for record in records) == (status == "RUNNING")


def test_numeric_parameters_are_numbers_and_never_change_and_tags_are_replaced_by_later_ones(tmp_path):
    run = make_run_info(tmp_path, tags={"team": "a", "note": "x"})
    sink = opened(run)
    sink.set_tags({"team": "b", "fold": "3"})
    sink.log_params({"lr": "1e-3", "layers": "2", "double": "True", "name": "dqn", "sizes": "[64, 64]", "none": "None"})
    sink.log_params({"tags": "old"})
    sink.set_tags({"fold": "4"})
    texts = {"commit": "123e456", "data": "2024_01_15", "parent": "20261121_215857_3"}
    texts |= {"version": "1.2.3", "code": "07", "nan": "nan"}
    sink.log_params({**texts, "seed": "12345678901234567891", "path\udcff": "/a\udcff", "lr": "0.5"})
    sink.close("FINISHED")
    config = config_of(run)
    assert config["tags"] == {"team": "b", "note": "x", "fold": "4"}
    expected = {"lr": 1e-3, "layers": 2, "double": True, "name": "dqn", "sizes": "[64, 64]", "none": "None"}
    expected |= {**texts, "seed": 12345678901234567891, "path\\udcff": "/a\\udcff", "param.tags": "old"}
    assert {name: config[name] for name in expected} == expected


def test_invalid_points_affect_neither_others_nor_reserved_keys(run):
    sink = opened(run)
    points = [
        Point("global_step", 1.0, 5, 1.7e9),
        Point("_step", 2.0, 5, 1.7e9),
        Point("a\ud800\0", 3.0, 5, 1.7e9),
        Point("big", 4.0, 2**63 - 1, -3.0),
        Point("last", 5.0, -(2**63), 1.7e9),
    ]
    sink.write(points)
    sink.close("FINISHED")
    assert set(points_of(run)) == {
        ("metric/global_step", 1.0, 5),
        ("metric/_step", 2.0, 5),
        ("a\\ud800\0", 3.0, 5),
        ("big", 4.0, 2**63 - 1),
        ("last", 5.0, -(2**63)),
    }


def test_artifacts_are_copied_to_the_files_of_the_run_and_nowhere_else(run, tmp_path):
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "a [1].yaml").write_text("a: 1")
    (tmp_path / "one.txt").write_text("1")
    sink = opened(run)
    sink.log_artifact(tmp_path / "one.txt", "sub/dir")
    sink.log_artifact(tmp_path / "configs", None)
    for target in ("../../outside", "/tmp/outside", ".."):
        with pytest.raises(ProcessingError, match=r"one\.txt"):
            sink.log_artifact(tmp_path / "one.txt", target)
    with pytest.raises(ProcessingError, match="does not exist"):
        sink.log_artifact(tmp_path / "nothing.txt", None)
    (tmp_path / "one.txt").write_text("changed later")
    sink.close("FINISHED")
    root = files_of(run)[0].parent / "files"
    assert (root / "sub" / "dir" / "one.txt").read_text() == "1"
    assert (root / "configs" / "a [1].yaml").read_text() == "a: 1"
    sent = {file.path for record in records_of(run) for file in record.files.files}
    assert {"sub/dir/one.txt", "configs/a [1].yaml"} <= sent


def test_media_are_logged_at_their_step(run):
    frames = np.zeros((3, 4, 6, 3), np.uint8)
    frames[np.arange(3), 0, np.arange(3)] = 255
    sink = opened(run)
    sink.log_media(media.image("eval/board é", [[0.0, 1.0]], step=3, time=1.7e9))
    sink.log_media(media.histogram("weights", range(1300), bins=1300, step=4, time=1.7e9))
    sink.log_media(media.text("note", "# <b>", step=5, time=1.7e9))
    sink.log_media(video.video("episode", frames, fps=10, format="gif", step=6, time=1.7e9))
    sink.log_media(table.table("games", {"won": [True, None], "by": [2, "time"]}, step=7, time=1.7e9))
    sink.close("FINISHED")
    rows, files = rows_of(run), files_of(run)[0].parent / "files"
    assert [row["global_step"] for row in rows] == [3, 4, 5, 6, 7]
    image, histogram, text, shown, games = (
        row[name] for row, name in zip(rows, ("eval/board é", "weights", "note", "episode", "games"), strict=True)
    )
    assert image["width"] == 2
    assert (files / image["path"]).read_bytes().startswith(b"\x89PNG")
    assert len(histogram["values"]) == len(histogram["bins"]) - 1 <= 512
    assert sum(histogram["values"]) == 1300
    assert "# &lt;b&gt;" in (files / text["path"]).read_text()
    with Image.open(files / shown["path"]) as opened_again:
        assert opened_again.n_frames == 3
    table_file = json.loads((files / games["path"]).read_text())
    assert (table_file["columns"], table_file["data"]) == (["won", "by"], [[True, 2], [None, "time"]])


@pytest.mark.long
def test_a_wandb_run_of_the_user_continues(run, tmp_path):
    import wandb

    theirs = wandb.init(project="theirs", mode="offline", dir=tmp_path / "theirs", settings=wandb.Settings(silent=True))
    sink = opened(run)
    assert wandb.run is theirs
    sink.write([Point("loss", 1.0, 1, 1.7e9)])
    sink.close("FINISHED")
    assert wandb.run is theirs
    theirs.log({"x": 1})
    theirs.finish()
    assert points_of(run) == [("loss", 1.0, 1)]


def test_a_crash_of_wandbs_process_loses_only_unwritten_points(run):
    sink = opened(run)
    sink.write([Point("loss", 1.0, 1, 1.7e9)])
    sink.flush()
    (core,) = [child for child in psutil.Process().children() if child.name().startswith("wandb-core")]
    core.kill()
    core.wait(LONG_S)
    with pytest.raises(TrieyeError, match="wandb failed to"):
        wait_until(lambda: sink.write([Point("ignored", 1.0, 1, 1.7e9)]))
    sink.write([Point("loss", 2.0, 2, 1.7e9)])
    sink.close("FINISHED")
    assert {("loss", 1.0, 1), ("loss", 2.0, 2)} <= set(points_of(run))


def test_flushed_points_survive_a_kill_of_the_hub(run):
    def write_and_die():
        os.environ.pop("WANDB_SERVICE", None)  # the child starts its own wandb process
        sink = opened(run)
        sink.write([Point("loss", float(step), step, 1.7e9) for step in range(1000)])
        sink.flush()
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_a_child(write_and_die) == -signal.SIGKILL
    (path,) = files_of(run)
    # wandb's process detects the death of its parent
    wait_until(lambda: sum(record.HasField("history") for record in records_in(path)) == 1000)


@pytest.fixture
def logged_out(tmp_path, monkeypatch):
    """Return a function that sets a variable of wandb for a user without a login in front of a terminal."""
    import wandb

    def set_variable(name, value):
        wandb.teardown()  # the next sink reads the variables
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)

    yield set_variable
    wandb.teardown()


def test_a_missing_login_is_an_error_without_a_prompt(run, logged_out):
    logged_out("WANDB_BASE_URL", "http://127.0.0.1:9")
    with pytest.raises(TrieyeError, match=r"`wandb login`, set WANDB_API_KEY, or set sinks\.wandb\.mode=offline"):
        WandbSink(WandbSinkConfig(enabled=True)).open(run)


def test_wandb_mode_applies_if_the_config_sets_no_mode(run, logged_out, capfd):
    logged_out("WANDB_MODE", "offline")
    sink = WandbSink(WandbSinkConfig(enabled=True))
    sink.open(run)
    sink.close("FINISHED")
    assert files_of(run)
    assert capfd.readouterr() == ("", "")
