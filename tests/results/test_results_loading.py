"""Loading of runs: roots, apps, sweeps, damaged directories, several sources, and the cache of many runs."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys

import numpy as np
import pytest
from runs_of import config, make_run, make_sweep

import trieye
import trieye.results
from tests.forked import in_a_child
from tests.permissions import restricted_access
from tests.waiting import wait_until
from trieye.exceptions import ConfigurationError
from trieye.files.run_record import RunRecord
from trieye.history.history import read_history
from trieye.hub import ledger
from trieye.results import compacted, load, run_directories
from trieye.sweeps.record import SweepRecord


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """Return a root with two algorithms and two seeds each, which tests copy."""
    root = tmp_path_factory.mktemp("root")
    for algo, level in (("ppo", 0), ("dqn", 100)):
        for seed in range(2):
            make_run(root, f"{algo}{seed}", level + seed + np.arange(20), seed=seed, agent={"algo": algo})
    return root


@pytest.fixture
def root(template, tmp_path):
    return shutil.copytree(template, tmp_path / "root")


def test_a_private_run_of_another_user_is_skipped_with_a_note(root):
    private = root / "app/runs/dqn0"
    private.chmod(0)
    with restricted_access():
        results = load(root)
    private.chmod(0o700)
    assert sorted(run.name for run in results.runs) == ["dqn1", "ppo0", "ppo1"]
    assert results.problems == [f"{private}: skipped: it cannot be read: Permission denied"]


@pytest.mark.long
def test_loading_and_reading_runs_imports_no_heavy_library(root):
    code = f"""
import sys, trieye.results
results = trieye.results.load({str(root)!r})
results.values("loss")
print(*sys.modules)
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"ray", "torch", "mlflow", "hydra", "tensorboard", "pandas"} & set(process.stdout.split())


@pytest.mark.parametrize("location", ["", "app", "app/runs"])
def test_runs_load_from_a_root_from_an_app_and_from_its_runs_directory(root, location):
    results = load(root / location)
    assert sorted(run.name for run in results.runs) == ["dqn0", "dqn1", "ppo0", "ppo1"]
    assert results.problems == []
    assert not list(root.rglob(compacted.FILE)), "four runs are too few for a cache"


def test_attributes_of_a_run_load_without_its_points(root, monkeypatch):
    monkeypatch.setattr(run_directories, "read_history", None)
    (run,) = load(root / "app/runs/dqn1").runs
    record = RunRecord.read(root / "app/runs/dqn1/run.json")
    assert (run.name, run.app, run.seed, run.status, run.step, run.axis) == ("dqn1", "app", 1, "FINISHED", 19, "step")
    assert (run.run_id, run.created) == (record.run_id, record.created)
    assert run.params["agent.algo"] == "dqn"
    assert run.path == str((root / "app/runs/dqn1").resolve())
    assert load(root).metrics() == ["eval/return", "loss"]


@pytest.mark.parametrize(("is_finished", "has_seed"), [(True, True), (False, True), (True, False)])
def test_a_copy_of_a_run_is_dropped_in_favour_of_the_original(tmp_path, make_config, is_finished, has_seed):
    config = make_config(seed=3, sinks={"log_config": has_seed})
    run = trieye.Run(config).open()
    run.log("loss", 1.0, step=1)
    run.close("FINISHED" if is_finished else "KILLED")
    copy = shutil.copytree(run.dir, run.dir.with_name("copy"))
    results = load(run.dir.parent)
    results.values("loss")
    assert [[run.path for run in row] for row in results.table] == [[str(run.dir)]]
    assert f"{copy}: not counted: it is a copy of {run.dir}" in results.problems


def test_an_archive_is_an_error_with_the_next_step(tmp_path):
    archive = shutil.make_archive(tmp_path / "runs", "gztar", tmp_path)
    with pytest.raises(ConfigurationError, match=r"runs\.tar\.gz: runs in archives cannot be read; extract it"):
        load(archive)


def test_a_missing_path_is_an_error_with_the_closest_match(root):
    with pytest.raises(ConfigurationError, match=r"app2.*no such file or directory.*did you mean 'app'"):
        load(root / "app2")


def test_a_directory_without_runs_is_an_error_naming_any_mlflow_database_in_it(tmp_path):
    sqlite3.connect(tmp_path / "empty.db").close()
    with pytest.raises(ConfigurationError, match=r"no runs found.*run\.json") as caught:
        load(tmp_path)
    assert "sqlite" not in str(caught.value)
    with sqlite3.connect(tmp_path / "mlflow.db") as connection:
        connection.execute("CREATE TABLE t (a)")
    connection.close()
    with pytest.raises(ConfigurationError, match=r"sqlite:///.*mlflow\.db"):
        load(tmp_path)


def test_an_http_store_is_rejected():
    with pytest.raises(ConfigurationError, match=r"http://there.*only SQLite"):
        load("http://there:5000")


def test_damaged_and_foreign_directories_are_reported_and_skipped(root):
    runs = root / "app/runs"
    (runs / "empty").mkdir()
    (runs / "foreign").mkdir()
    (runs / "foreign/notes.txt").write_text("mine")
    for name, damaged in (("ppo0", "run.json"), ("ppo1", "configs.json")):
        path = runs / name / damaged
        path.write_bytes(path.read_bytes()[:50])
    results = load(root)
    assert sorted(run.name for run in results.runs) == ["dqn0", "dqn1"]
    assert len(results.problems) == 4
    for name in ("empty", "foreign", "ppo0", "ppo1"):
        assert any(f"runs/{name}: skipped" in text for text in results.problems), name
    np.testing.assert_array_equal(results.values("eval/return", steps=1), [[119, 120]])


def test_directories_too_deep_to_be_searched_are_reported(root, tmp_path):
    parent = tmp_path / "parent"
    shutil.copytree(root / "app/runs/ppo0", parent / "1/2/3/4/5/6/deep")
    shutil.copytree(root / "app/runs/ppo1", parent / "1/2/3/4/5/near")
    results = load(parent)
    assert [run.name for run in results.runs] == ["ppo1"]
    assert results.problems == [
        f"{parent}: skipped: directories more than 6 levels below; to load their runs, pass them as well"
    ]
    assert {run.name for run in load([parent, parent / "1/2/3/4/5/6/deep"])} == {"ppo0", "ppo1"}


def test_a_run_of_a_later_version_is_read_unless_its_status_is_unknown(root):
    path = root / "app/runs/ppo0/run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 9, "mood": "good"}))
    assert len(load(root)) == 4
    path.write_text(json.dumps({**json.loads(path.read_text()), "status": "DREAMING"}))
    results = load(root)
    assert len(results) == 3
    assert "ppo0" in results.problems[0]


def test_a_damaged_byte_in_a_history_never_yields_a_wrong_value(template, tmp_path):
    run_dir = shutil.copytree(template / "app/runs/ppo1", tmp_path / "ppo1")
    (segment,) = (run_dir / "history").iterdir()
    content = segment.read_bytes()
    expected = dict(enumerate(1.0 + np.arange(20)))
    num_missing = 0
    for offset in range(0, len(content), len(content) // 30):
        segment.write_bytes(content[:offset] + bytes([content[offset] ^ 255]) + content[offset + 1 :])
        results = load(run_dir)
        points = results.to_numpy(["eval/return"])
        is_complete = dict(zip(points["step"].tolist(), points["value"].tolist(), strict=True)) == expected
        assert is_complete or (len(points["step"]) == 0 and "lost or damaged" in results.problems[0]), offset
        num_missing += not is_complete
    assert num_missing > 5


def test_a_missing_history_is_reported_and_leaves_a_missing_value(root):
    shutil.rmtree(root / "app/runs/dqn1/history")
    (root / "app/runs/dqn1/journal.db").unlink()
    results = load(root)
    np.testing.assert_array_equal(results.values("eval/return", steps=1), [[119, np.nan], [19, 20]])
    (problem,) = results.problems
    assert "dqn1: cannot read its points" in problem


def test_points_after_a_rewind_replace_the_superseded_ones(root):
    with trieye.Run(config(root, "back", seed=7)) as run:
        for step in range(10):
            run.log("loss", -1.0 if step > 5 else 0.0, step=step)
            if step == 5:
                run.save(number={"a": 5})
    with trieye.Run(config(root, "back", seed=7)) as run:
        run.restore()
        for step in range(6, 8):
            run.log("loss", 1.0, step=step)
    (series,) = load(run.dir).series("loss")
    assert dict(zip(series.steps.tolist(), series.values.tolist(), strict=True)) == dict(
        enumerate([0.0] * 6 + [1.0] * 2)
    )


@pytest.fixture
def begin_run(tmp_path, monkeypatch):
    """Return a function that opens a run whose history contains at least 20 of its steps 0 to 29."""
    monkeypatch.setattr(ledger, "SNAPSHOT_AFTER_S", 0.0)

    def begin():
        run = trieye.Run(config(tmp_path, "run", seed=3)).open()
        for step in range(30):
            run.log("loss", float(step), step=step)
        run.flush()
        wait_until(lambda: run.log("loss", 0.0, step=29) or read_history(run.dir).num_rows >= 20, pause_s=0.05)
        return run

    return begin


def assert_no_gaps(results):
    steps = results.series("loss")[0].steps.tolist()
    assert len(steps) >= 20
    assert steps == list(range(len(steps)))


def test_a_killed_run_is_read_without_gaps_and_reported_as_unfinished(begin_run, tmp_path):
    assert in_a_child(lambda: begin_run() and os.kill(os.getpid(), signal.SIGKILL)) == -signal.SIGKILL
    results = load(tmp_path)
    assert [run.status for run in results.runs] == ["KILLED"]
    assert results.status().counts == {"incomplete": 1}
    assert_no_gaps(results)
    results.values("loss")
    assert any("KILLED, last loss at step" in text for text in results.problems)


@pytest.mark.long
def test_an_active_run_is_read_without_gaps(begin_run, tmp_path):
    with begin_run():
        results = load(tmp_path)
        assert [run.status for run in results.runs] == ["RUNNING"]
        assert_no_gaps(results)
    assert load(tmp_path).series("loss")[0].steps.tolist() == list(range(30))


# sweeps


@pytest.fixture
def sweep(root, tmp_path):
    """Return a sweep of 2 x 3 jobs: jobs 2 and 5 never started, job 1 failed, and the run of job 4 is missing."""
    run_dirs = {index: root / "app/runs" / name for index, name in {0: "ppo0", 1: "ppo1", 3: "dqn0", 4: "gone"}.items()}
    axes = {"agent.algo": ("ppo", "dqn"), "seed": "012"}
    return make_sweep(tmp_path / "sweep", axes, run_dirs, errors={1: "out of memory"})


def test_a_sweep_loads_the_runs_of_its_jobs_and_reports_the_missing_ones(sweep):
    results = load(sweep)
    assert [(run.job, run.name) for run in results.runs] == [(0, "ppo0"), (1, "ppo1"), (3, "dqn0")]
    status = results.status()
    assert status.missing == [2, 5]
    assert status.numbers("failed") == [1]
    assert not status.is_complete
    assert any("run of job 4" in text for text in results.problems)
    assert results.configs == [{"agent.algo": "ppo"}, {"agent.algo": "dqn"}]
    values = results.values("eval/return", steps=1)
    np.testing.assert_array_equal(values, [[19, 20], [119, np.nan]])


def test_a_run_in_several_sources_counts_once(sweep, root):
    assert len(load([sweep, root, str(root / "app/runs/ppo0"), root / "app"])) == 4


def test_a_sweep_that_minimizes_is_minimized_whatever_the_default_of_its_runs(sweep, root):
    record = SweepRecord.of(sweep)
    record.mode = "min"
    record.write(sweep)
    assert {run.mode("eval/return") for run in load(sweep).runs} == {"min"}
    assert {run.mode("eval/return") for run in load(root).runs} == {"max"}


def test_the_name_of_a_sweep_selects_its_runs(sweep, root):
    results = load([sweep, root])
    assert [len(results.where(sweep="sweep")), len(results.where(sweep__ne="sweep"))] == [3, 1]


def test_the_status_of_a_damaged_sweep_is_an_error_naming_the_file(sweep):
    (sweep / "sweep.json").write_text("{")
    results = load(sweep)
    with pytest.raises(trieye.SerializationError, match=r"sweep\.json is damaged"):
        results.status()


# many runs


@pytest.fixture
def large_app(template, tmp_path):
    """Return an app with 16 copies of a run, each with its seed."""
    app = tmp_path / "root/app"
    for number in range(16):
        copy = shutil.copytree(template / "app/runs/ppo0", app / f"runs/r{number:02}")
        for name, changes in (
            ("run.json", {"run_id": f"id{number}", "run_name": copy.name, "owner": None}),
            ("configs.json", {"seed": number}),
        ):
            record = json.loads((copy / name).read_text())
            (copy / name).write_text(json.dumps({**record, **changes}))
    return app


def record_reads(monkeypatch):
    """Return a list that receives the name of each run whose own files are read."""
    reads = []
    original = run_directories.read_history
    monkeypatch.setattr(
        run_directories,
        "read_history",
        lambda path, *args, **kwargs: reads.append(path.name) or original(path, *args, **kwargs),
    )
    return reads


def test_many_runs_are_read_once_and_then_from_one_file(large_app, monkeypatch):
    first = load(large_app).curve("loss", grid=7)
    reads = record_reads(monkeypatch)
    results = load(large_app)
    cached = results.curve("loss", grid=7)
    np.testing.assert_array_equal(first.y, cached.y)
    assert first.y.shape == (1, 16, 7)
    assert results.series("eval/return")[3].values.tolist() == list(range(20))
    assert reads == []
    assert [path.name for path in large_app.iterdir() if path.name.startswith(".")] == [compacted.FILE]


@pytest.mark.long
def test_a_run_resumed_after_caching_is_read_again(large_app, monkeypatch):
    load(large_app).values("loss")
    with trieye.Run(config(large_app.parent, "r05", seed=5)) as run:
        run.log("loss", 1e6, step=100)
    reads = record_reads(monkeypatch)
    results = load(large_app)
    assert results.values("loss", steps=1)[0, 5] == 1e6
    assert reads == ["r05"]


def test_a_damaged_cache_yields_no_wrong_values_and_is_rewritten(large_app, monkeypatch):
    expected = load(large_app).series("loss")
    path = large_app / compacted.FILE
    size = path.stat().st_size
    for offset in (4, size // 2, size - 100, size - 6):
        content = bytearray(path.read_bytes())
        content[offset] ^= 255
        path.write_bytes(content)
        for series, reloaded in zip(expected, load(large_app).series("loss"), strict=True):
            np.testing.assert_array_equal(series.values, reloaded.values)
    path.write_bytes(b"")
    assert len(load(large_app).series("loss")[0].values) == 20
    reads = record_reads(monkeypatch)
    load(large_app).series("loss")
    assert reads == []


def test_runs_with_truncated_histories_are_reported_by_each_load(large_app):
    for name, kept in (("r03", slice(-10)), ("r07", slice(100)), ("r09", slice(0))):
        (segment,) = (large_app / "runs" / name / "history").iterdir()
        segment.write_bytes(segment.read_bytes()[kept])
    for _ in range(2):
        results = load(large_app)
        assert np.flatnonzero(np.isnan(results.values("loss")[0])).tolist() == [3, 7, 9]
        damaged = [text for text in results.problems if "lost or damaged" in text]
        assert [any(name in text for text in damaged) for name in ("r03", "r07", "r09")] == [True] * 3


def test_runs_are_read_without_a_cache_if_it_is_too_large_or_cannot_be_written(large_app, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "no")

    for owner, name, value in ((compacted, "write_atomic", refuse), (run_directories, "MAX_COMPACTED_ITEMS", 100)):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, value)
            assert load(large_app).values("loss").shape == (1, 16)
        assert not (large_app / compacted.FILE).exists()


def test_a_metric_in_several_row_groups_is_read_completely(large_app, monkeypatch):
    monkeypatch.setattr(compacted, "_GROUP_ROWS", 100)
    expected = load(large_app).series("loss")
    for series, cached in zip(expected, load(large_app).series("loss"), strict=True):
        np.testing.assert_array_equal(series.values, cached.values)
        np.testing.assert_array_equal(series.times, cached.times)


def test_two_successive_selections_share_one_cache(large_app, monkeypatch):
    monkeypatch.setattr(run_directories, "MIN_COMPACTED", 8)
    load(large_app).where(seed__ge=8).values("loss")
    results = load(large_app)
    assert results.where(seed__lt=8).values("loss").shape == (1, 8)
    reads = record_reads(monkeypatch)
    np.testing.assert_array_equal(load(large_app).values("loss")[0], results.values("loss")[0])
    assert reads == []
