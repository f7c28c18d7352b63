import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import trieye
from tests.cli.conftest import Command
from tests.forked import forked
from trieye.process.lock import RunLock
from trieye.runs import StoredRun

LOADED = """
import sys
from trieye.cli import main
main(["runs"])
print([name for name in ("pydantic", "numpy", "torch", "mlflow", "ray", "hydra") if name in sys.modules])
"""


@pytest.fixture
def make_run(make_config, tmp_path):
    """Return a function that makes a run below .trieye_data, which has logged one return, and returns its directory."""

    def make(name, best=1.0, *, app="agents", steps=5, age_s=0.0, **settings):
        settings["persistence"] = {"root_data_dir": str(tmp_path / ".trieye_data"), **settings.get("persistence", {})}
        with trieye.Run(make_config(app_name=app, run_name=name, **settings)) as run:
            run.log({"eval/return": best, "loss": -best}, step=steps)
        update_record(run.dir, created=time.time() - age_s)
        return run.dir

    return make


def update_record(run_dir, **values):
    path = run_dir / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.fixture
def runs(tmp_path, monkeypatch, capfd):
    """Return a function that runs `trieye runs` in a project, and returns exit code and output."""
    monkeypatch.chdir(tmp_path)
    return Command(capfd, "runs")


def names(runs, *arguments):
    out = runs.output(*arguments, "--json")
    return [stored["name"] for stored in json.loads(out)["runs"]]


def test_all_runs_of_the_project_are_listed_newest_first(runs, make_run, tmp_path, monkeypatch):
    make_run("first", 3.0, age_s=7200)
    make_run("second", app="others", steps=12_000)
    code, out, err = runs()
    assert (code, err) == (0, "")
    heading, second, first = [line.split() for line in out.splitlines()]
    assert heading == ["run", "status", "step", "eval/return", "took", "age", "size"]
    assert second[:4] == ["others/second", "FINISHED", "12,000", "1"]
    assert first[:4] == ["agents/first", "FINISHED", "5", "3"]
    assert "2 h 00 min" in out
    (tmp_path / "src").mkdir()
    monkeypatch.chdir(tmp_path / "src")
    assert names(runs) == ["second", "first"]


def test_a_root_named_in_a_config_of_the_project_or_by_the_environment_is_searched(
    runs, make_run, tmp_path, monkeypatch
):
    make_run("near")
    make_run("adopted", persistence={"root_data_dir": str(tmp_path / "adopted")}, age_s=30)
    make_run("far", persistence={"root_data_dir": str(tmp_path / "scratch")}, age_s=60)
    (tmp_path / "conf" / "local").mkdir(parents=True)
    (tmp_path / "conf/local/default.yaml").write_text("persistence:\n  root_data_dir: 'scratch'  # a large disk\n")
    assert names(runs) == ["near", "far"]
    monkeypatch.setenv("TRIEYE_ROOT", "adopted")
    assert names(runs) == ["near", "adopted", "far"]


def test_an_app_a_root_a_project_and_a_run_can_be_listed(runs, make_run):
    make_run("a")
    for where in ("agents", ".trieye_data", ".", ".trieye_data/agents", ".trieye_data/agents/runs/a"):
        assert names(runs, where) == ["a"], where


def test_runs_of_a_sweep_are_listed_and_jobs_without_a_run_are_named(runs, make_run, tmp_path):
    sweep = tmp_path / "multirun" / "lr"
    for number in (0, 2, 10):
        (sweep / str(number)).mkdir(parents=True)
        (sweep / str(number) / "run").symlink_to(make_run(f"lr_{number}", number, age_s=number))
    make_run("another")
    shutil.rmtree((sweep / "10" / "run").resolve())
    assert names(runs, "lr") == names(runs, sweep) == ["lr_0", "lr_2"]
    err = runs("lr")[2]
    assert "skipped: 10 in multirun/lr: its run, " in err
    assert "is gone" in err


def test_runs_are_filtered_and_sorted(runs, make_run):
    make_run("old", 2.0, age_s=86_400 * 3, seed=7)
    make_run("best", 9.0, steps=3)
    update_record(make_run("bad", 4.0, steps=30, age_s=60), status="FAILED")
    assert names(runs, "--status", "failed,killed") == ["bad"]
    assert names(runs, "--newer-than", "2d") == ["best", "bad"]
    assert names(runs, "--newer-than", f"{'9' * 12}d") == ["best", "bad", "old"]
    assert names(runs, "--where", "seed=7") == ["old"]
    assert names(runs, "--sort", "objective") == ["best", "bad", "old"]
    assert names(runs, "--sort", "objective", "-n", "1") == ["best"]
    assert names(runs, "--sort", "objective", "--metric", "loss", "--mode", "min", "-n", "2") == ["best", "bad"]
    assert names(runs, "--sort", "step", "-r") == ["best", "old", "bad"]
    assert names(runs, "--sort", "name") == ["bad", "best", "old"]
    assert runs("--status", "killed")[1] == "none of 3 runs match\n"


def test_runs_without_an_objective_sort_last_in_either_order(runs, make_run):
    make_run("good", 2.0)
    update_record(make_run("none", age_s=5), summary={"loss": {"last": 1.0, "min": 1.0, "max": 1.0, "step": 1}})
    assert names(runs, "--sort", "objective") == names(runs, "--sort", "objective", "-r") == ["good", "none"]


def test_a_minimized_objective_shows_its_lowest_value(make_run, runs):
    run_dir = make_run("a", loop={"objective": "loss", "mode": "min"})
    stored = StoredRun.read(run_dir)
    assert (stored.metric, stored.mode, stored.best) == ("loss", "min", -1.0)
    make_run("b", age_s=5)
    assert "-1 loss" in runs()[1]  # with several objectives, each is shown with its name


def test_a_run_is_running_while_a_process_holds_its_lock_and_lost_afterwards(make_run, runs):
    run_dir = make_run("a")
    update_record(run_dir, status="RUNNING", ended=None)
    with RunLock(run_dir / "run.lock"):
        assert StoredRun.read(run_dir).status == "RUNNING"
    assert StoredRun.read(run_dir).status == "LOST"
    assert names(runs, "--status", "lost") == ["a"]


def test_truncated_and_foreign_run_json_files_are_named_and_skipped(runs, make_run):
    whole = make_run("whole")
    for number, record in enumerate((b"", b'{"run_id": 3}', b"\xff\xfe", b"[" * 100_000)):
        broken = whole.with_name(f"broken{number}")
        shutil.copytree(whole, broken)
        (broken / "run.json").write_bytes(record)
    code, out, err = runs()
    assert (code, [line.split()[0] for line in out.splitlines()]) == (0, ["run", "whole"])
    notes = sorted(err.splitlines())
    assert [note.partition(" in ")[0] for note in notes] == [f"skipped: broken{number}" for number in range(4)]
    assert all(": its run.json is damaged or incomplete" in note for note in notes)


def test_directories_without_a_record_share_one_line_with_the_rm_command(runs, make_run):
    runs_dir = make_run("whole").parent
    for number in range(8):
        (runs_dir / f"empty{number}").mkdir()
    (runs_dir / ".tmp-whole~1").mkdir()
    code, out, err = runs("--json")
    assert code == 0
    skipped = json.loads(out)["skipped"]
    assert [entry["reason"].partition(";")[0] for entry in skipped] == ["it has no run.json"] * 8
    assert err == ""
    err = runs()[2]
    assert len(err.splitlines()) == 1
    assert "empty4 and 3 more" in err
    assert "trieye rm" in err


@pytest.fixture
def starting(make_run):
    """A directory whose lock another process holds, next to a run and to a directory of an interrupted start."""
    runs_dir = make_run("whole").parent
    directory = runs_dir / "first"
    for name in ("first", "left"):
        (runs_dir / name / "logs").mkdir(parents=True)

    def hold_lock(report):
        with RunLock(directory / "run.lock"):
            report("locked")
            signal.pause()

    with forked(hold_lock) as output:
        assert output.readline() == "locked\n"
        yield directory


def test_a_starting_run_is_distinguished_from_an_interrupted_start(runs, starting, tmp_path):
    first, left = runs()[2].splitlines()
    assert first == f"skipped: first in {starting.parent}: it is starting, and has no run.json yet"
    assert left.startswith(f"skipped: left in {starting.parent}: it has no run.json; if an interrupted start left it")
    skipped = json.loads(runs("--json")[1])["skipped"]
    assert [(Path(entry["directory"]).name, entry["is_starting"]) for entry in skipped] == [
        ("first", True),
        ("left", False),
    ]
    assert runs(starting) == (0, f"no runs in {starting}\n", f"{first}\n")
    job = tmp_path / "multirun" / "lr" / "0"
    job.mkdir(parents=True)
    (job / "run").symlink_to(starting)
    assert "it is starting" in runs("lr")[2]


def test_the_name_of_a_starting_run_says_so(runs, starting, command):
    for action in ("runs", "why"):
        for app in ("", "agents/"):
            assert f"{starting}, and has no run.json yet" in command.error(action, f"{app}first")
            assert f"(`trieye rm {app}left` deletes it)" in command.error(action, f"{app}left")


def test_a_damaged_config_costs_a_run_only_its_objective(runs, make_run):
    (make_run("a") / "configs.json").write_text("{")
    stored = json.loads(runs("--json")[1])["runs"][0]
    assert (stored["name"], stored["step"], stored["objective"]["best"]) == ("a", 5, None)
    assert json.loads(runs("--json", "--metric", "loss", "--mode", "min")[1])["runs"][0]["objective"]["best"] == -1.0


def test_an_invalid_argument_lists_the_valid_ones(runs, make_run):
    make_run("first")
    for arguments, parts in (
        (["agent"], ("agent: no such run, app", "did you mean 'agents'?", "agents")),
        (["a" * 300], ("a: File name too long",)),
        (["nowhere/else"], ("nowhere/else", "no such run, app, sweep or directory")),
        (["--status", "runing"], ("runing", "did you mean 'running'?", "lost")),
        (["--where", "sed=0"], ("sed=0", "did you mean 'seed'?")),
        (["--where", "seed"], ("seed: expected KEY=VALUE",)),
        (["-n", "0"], ("argument -n", ">= 1")),
        (["--root", "nowhere"], ("--root nowhere", "no such directory")),
    ):
        err = runs.error(*arguments)
        assert all(part in err for part in parts), err


def test_an_empty_project_or_directory_is_reported(runs, tmp_path):
    assert runs()[:2] == (
        0,
        "no runs: no .trieye_data in the working directory or above it; pass the directory with --root\n",
    )
    (tmp_path / "empty").mkdir()
    assert runs("empty")[1] == "no runs in empty\n"


def test_a_list_imports_no_slow_packages_and_a_pipe_truncates_no_name(make_run, tmp_path):
    name = "a_run_with_a_name_that_is_a_good_deal_longer_than_any_terminal_is_wide_" * 2
    make_run(name)
    done = subprocess.run([sys.executable, "-c", LOADED], cwd=tmp_path, capture_output=True, text=True, check=True)
    _, line, loaded = done.stdout.splitlines()
    assert line.startswith(name)
    assert loaded == "[]"
