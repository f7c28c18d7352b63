"""`trieye sweep`, with programs that run."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

import trieye
from tests import warm
from tests.cli.conftest import Command
from tests.damage import contents
from trieye.cli import main
from trieye.config.sweeper import SweeperConfig
from trieye.sweeps.jobs import STATUS
from trieye.sweeps.record import SWEEP, SweepRecord, lock_in
from trieye.sweeps.spec import grid_of

pytestmark = pytest.mark.usefixtures("warm_programs")
WARM = warm.RUN

PROGRAM = """
import os
from pathlib import Path
import hydra
from hydra.core.config_store import ConfigStore

@hydra.main(version_base="1.3", config_path=None, config_name="config")
def main(cfg) -> float:
    with open(Path(__file__).parent / "begun", "a") as file:
        file.write(f"{cfg.seed} {cfg.lr} {os.getpid()} {os.getppid()}\\n")
    if Path(__file__).with_name("broken").exists() and cfg.lr == 0.5:
        raise ValueError("no luck with password=hunter2")
    return cfg.lr * 10 + cfg.seed

ConfigStore.instance().store("config", {"lr": 0.1, "seed": 0, "agent": "dqn"})
if __name__ == "__main__":
    main()
"""
TYPED = """
import trieye

@trieye.main(config_path="conf")
def train(config: trieye.TrieyeConfig) -> float:
    with trieye.Run(config) as run:
        run.log({"loss": 1.0}, step=7)
    return float(config.seed)

if __name__ == "__main__":
    train()
"""
HERE = "hydra.launcher.isolate=none"


@pytest.fixture
def sweep(tmp_path, monkeypatch, capfd):
    """Return a function that runs `trieye sweep`, and returns exit code and output, also of its program."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "train.py").write_text(PROGRAM)
    return Command(capfd, "sweep")


@pytest.fixture
def planned(sweep):
    out = sweep.output("plan", "train.py", "lr=0.1,0.5", "agent=dqn", "--seeds", "3", "-o", "first", HERE)
    assert out.endswith("written to first; run it: trieye sweep relaunch first\n")
    return sweep


def started_jobs(directory):
    path = directory / "begun"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def jobs_of(sweep, directory):
    return json.loads(sweep("status", directory, "--json")[1])["jobs"]


def edit(directory, **fields):
    """Change fields of the record of a job."""
    record = json.loads((directory / STATUS).read_text())
    (directory / STATUS).write_text(json.dumps(record | fields))


def states(sweep, directory="first"):
    code, out, _ = sweep("status", directory, "--json")
    status = json.loads(out)
    assert sum(status["counts"].values()) == len(status["jobs"])
    assert code == (0 if set(status["counts"]) <= {"completed"} else 1)
    return [job["state"] for job in status["jobs"]]


def test_a_plan_lists_the_jobs_and_writes_nothing_by_default(sweep, tmp_path):
    out = sweep.output("plan", "train.py", "lr=range(1,13)", "agent=dqn", "db.password=hunter2", "--seeds", "3")
    assert out.startswith("36 jobs, fingerprint ")
    table = [line.split(maxsplit=2) for line in out.splitlines()]
    assert ["seed", "3", "0, 1, 2"] in [[word.strip() for word in row] for row in table]
    assert "1, 2, 3, 4, 5, 6, 7, 8, 9, ..., 12" in out
    assert "same in all jobs: agent=dqn" in out
    assert "hunter2" not in out
    assert "  job 1: seed=0 lr=2\n" in out
    assert out.endswith("  job 35: seed=2 lr=12\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.py"]


def test_commands_in_messages_can_be_pasted_into_a_shell(sweep):
    plan = sweep.output("plan", "train.py", "lr=1,2", "--output=-my sweep", HERE)
    status = sweep("status", "./-my sweep")[1]
    for output in (plan, status):
        command = shlex.split(output.rpartition("trieye sweep ")[2])
        assert command == ["relaunch", "./-my sweep"]
    assert sweep(*command, "--dry-run")[0] == 0


def test_a_plan_of_one_job_has_no_axes(sweep):
    assert sweep("plan", "lr=1")[1].startswith("1 job, fingerprint ")


def test_a_plan_is_never_replaced_by_one_that_renumbers_its_jobs(planned, tmp_path):
    before = (tmp_path / "first" / SWEEP).read_bytes()
    err = planned.error("plan", "train.py", "lr=0.1,0.3,0.5", "agent=dqn", "--seeds", "3", "-o", "first")
    assert "its job 1 is 'seed=0 lr=0.5 agent=dqn' and would be 'seed=0 lr=0.3 agent=dqn'" in err
    assert (tmp_path / "first" / SWEEP).read_bytes() == before
    assert planned("plan", "train.py", "lr=0.1,0.5", "agent=dqn", "--seeds", "9", "-o", "first")[0] == 0
    assert planned("show", 17, "-d", "first")[1] == "seed=8 lr=0.5 agent=dqn\n"
    assert planned("plan", "train.py", "lr=1,'2\t[b]'", "-o", "tabs")[0] == 0
    assert planned("show", 1, "-d", "tabs")[1] == shlex.join(["lr='2\t[b]'"]) + "\n"


def test_a_plan_extends_a_grid_with_its_options_and_direction_and_replaces_no_search(sweep, tmp_path):
    words = ["train.py", "-m", "hydra/sweeper=trieye", "hydra/launcher=trieye", HERE, "hydra.sweeper.mode=min"]
    subprocess.run([sys.executable, *words, "seed=0,1", "hydra.sweep.dir=first"], check=True, capture_output=True)
    assert sweep("plan", "train.py", "seed=0,1,2", "-o", "first")[0] == 0
    record = SweepRecord.of(tmp_path / "first")
    assert (record.mode, record.summary["best"], record.size, record.is_signed) == ("min", 0, 3, True)
    assert {HERE, "hydra.sweeper.mode=min"} <= set(record.own)
    assert " hydra.sweeper.mode=min " in sweep.output("relaunch", "first", "--dry-run")
    for program in ("other.py", "train.py"):
        (tmp_path / program).write_text(PROGRAM)
        search = SweepRecord(program=[sys.executable, "train.py"], spec=["seed=0,1"], search={"kind": "random"})
        search.write(tmp_path / program[:-3])
        err = sweep.error("plan", program, "seed=0,1,2", "-o", program[:-3])
        assert "contains a search, which a plan cannot extend" in err
    err = sweep.error("plan", "other.py", "seed=0,1,2", "-o", "first")
    assert "its jobs are of the program 'train', not 'other'" in err


@pytest.mark.long
def test_many_jobs_are_relaunched_by_ranges(sweep, tmp_path):
    assert sweep("plan", "train.py", "seed=range(0,3000)", "-o", "first")[0] == 0
    command = shlex.split(sweep("relaunch", "first", "--dry-run")[1].partition("the command: ")[2])
    assert command[-1] == "hydra.launcher.only='0-2999'"


def test_show_and_find_translate_between_job_numbers_and_values(planned, tmp_path, monkeypatch):
    assert planned("show", "3", "-d", "first")[:2] == (0, "seed=1 lr=0.5 agent=dqn\n")
    assert planned("find", "lr=5e-1", "-d", "first")[:2] == (0, "1\n3\n5\n")
    assert planned("find", "lr=.1", "seed=2", "-d", "first")[:2] == (0, "4\n")
    monkeypatch.chdir(tmp_path / "first")
    assert planned("show", "0")[:2] == (0, "seed=0 lr=0.1 agent=dqn\n")


def test_zipped_axes_and_exclusions_are_planned(sweep):
    arguments = ["lr=1,2", "agent=a,b", "seed=0,1", "--zip", "lr,agent", "--exclude", "lr=1,seed=1"]
    assert sweep("plan", *arguments, "-o", "zipped")[1].startswith("3 jobs, ")
    assert sweep("find", "agent=b", "-d", "zipped")[1] == "2\n3\n"
    assert sweep("show", "1", "-d", "zipped")[1] == "lr=1 agent=a seed=1   (excluded)\n"
    err = sweep.error("find", "agent=a", "seed=1", "-d", "zipped")
    assert "agent=a seed=1: all jobs with these values are excluded" in err


def test_options_of_a_plan_are_overrides_that_hydra_can_parse(sweep, tmp_path):
    arguments = ["agent=dqn,ppo", "clip=0.1,0.2", "lr=1,2", "n=3,4", "+new='a|b,]',[3,4]", "db@x=1"]
    options = ["--zip", "lr,n", "--exclude", "agent=dqn,lr=1", "--when", "clip:agent=ppo|a2c,+new='a|b,]'|[3,4]"]
    options += ["--exclude", "+new=[3,4],db@x=1", "--exclude", "agent=ppo,lr=1,new='a|b,]'", "--seeds", "2"]
    assert sweep("plan", "train.py", *arguments, *options, "-o", "s")[1].startswith("6 jobs, ")
    record = SweepRecord.of(tmp_path / "s")
    read = OverridesParser.create().parse_overrides(record.own)
    values = {item.key_or_group.removeprefix("hydra.sweeper."): item.value() for item in read[2:]}
    assert grid_of(arguments, SweeperConfig.model_validate(values)) == record.the_grid()
    assert sweep("plan", *arguments, "--when", "clip")[2].endswith(
        "expected KEY:KEY=VALUE, such as agent.clip_range:agent=ppo\n"
    )


def test_a_pyexputils_description_is_planned(sweep, tmp_path):
    path = tmp_path / "experiments" / "car" / "sarsa.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"save_path": "r/{name}/{params}/{run}", "metaParameters": {"lr": [0.1, 0.5], "agent": "dqn"}}')
    arguments = ["train.py", path.relative_to(tmp_path), HERE, "--seeds", "2"]
    out = sweep.output("plan", *arguments, "-o", "car")
    assert out.startswith("4 jobs, ")
    assert "experiment car; Hydra's output directory of job 0 is r/car/agent-dqn_lr-0.1/0\n" in out
    assert len((tmp_path / "car/save_paths.jsonl").read_text().splitlines()) == 4
    assert sweep("show", "3", "-d", "car")[1] == "seed=1 lr=0.5 agent=dqn\n"
    assert sweep("relaunch", "car", "--dry-run")[1].count(" lr=0.1,0.5 agent=dqn ") == 1
    assert "save_path is ignored" in sweep.output("plan", *arguments, "lr=0.7", "-o", "other")
    assert not (tmp_path / "other/save_paths.jsonl").exists()


def test_run_accepts_options_of_the_launcher(planned, tmp_path):
    (tmp_path / "train.py").write_text("")
    words = ["hydra.launcher.num_gpus=1", "hydra.launcher.timeout_min=5"]
    out = planned.output("run", "-d", "first", "-i", "0", *words, "--json")
    assert not {*words} - {*json.loads(out)["command"]}


@pytest.mark.long
def test_tasks_of_a_scheduler_run_in_parallel(planned, tmp_path):
    waits = "    while len(open('begun').readlines()) < 2:\n        __import__('time').sleep(0.02)\n    return cfg"
    (tmp_path / "train.py").write_text(PROGRAM.replace("    return cfg", waits))
    command = [sys.executable, "-m", "trieye.cli", "sweep", "run", "-d", "first", "-i"]
    tasks = [
        subprocess.Popen([*command, str(index)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for index in (0, 5)
    ]
    outputs = [task.communicate(timeout=60)[1] for task in tasks]  # each of them waits for the other
    assert [task.returncode for task in tasks] == [0, 0], outputs
    assert states(planned) == ["completed", *["missing"] * 4, "completed"]


def test_jobs_run_one_after_another_in_one_child_process_and_a_relaunch_runs_only_the_others(planned, tmp_path):
    record = json.loads((tmp_path / "first" / SWEEP).read_text())
    assert (record["program"][1:], record["spec"]) == (["train.py"], ["lr=0.1,0.5", "agent=dqn"])
    assert record["own"].count(HERE) == 1
    (tmp_path / "broken").touch()  # jobs with lr=0.5 fail
    assert planned("run", "-d", "first", "-i", "0", "--stride", "3")[0] == 1
    assert states(planned) == ["completed", "missing", "missing", "failed", "missing", "missing"]
    assert [line[:2] for line in started_jobs(tmp_path)] == [["0", "0.1"], ["1", "0.5"]]
    processes = {tuple(line[2:]) for line in started_jobs(tmp_path)}
    assert processes == {(started_jobs(tmp_path)[0][2], str(os.getpid()))}
    code, out, _ = planned("status", "first")
    assert code == 1
    assert "6 jobs: 1 completed, 1 failed, 4 missing" in out
    assert "ValueError: no luck with password=***" in out
    assert "trieye sweep relaunch first" in out

    for only, indices in (("failed", "3"), ("missing,incomplete", "1-2,4-5")):
        out = planned.output("relaunch", "first", "--only", only, "--dry-run")
        command = shlex.split(out.partition("the command: ")[2])
        assert command[-2:] == [f"hydra.sweep.dir={tmp_path / 'first'}", f"hydra.launcher.only='{indices}'"]
    assert len(started_jobs(tmp_path)) == 2

    modification_times = {
        path: path.stat().st_mtime_ns for path in (tmp_path / "first" / "0").rglob("*") if path.name != "sweep.lock"
    }
    (tmp_path / "broken").unlink()
    assert "5 done" in planned("relaunch", "first")[2]
    assert states(planned) == ["completed"] * 6
    assert {path: path.stat().st_mtime_ns for path in modification_times} == modification_times
    assert modification_times
    assert sorted(tuple(line[:2]) for line in started_jobs(tmp_path)).count(("0", "0.1")) == 1
    assert [json.loads((tmp_path / f"first/{index}/{STATUS}").read_text())["attempt"] for index in range(6)] == [
        1, 1, 1, 2, 1, 1,
    ]  # fmt: skip
    code, out, _ = planned("relaunch", "first")
    assert (code, out) == (0, "no jobs to run: no job of first is failed, incomplete or missing\n")


@pytest.mark.parametrize("arguments", [["relaunch", "first"], ["run", "-d", "first", "-i", "0"]])
def test_an_unsigned_stored_command_runs_only_when_confirmed(arguments, planned, tmp_path):
    record = json.loads((tmp_path / "first" / SWEEP).read_text())
    record["program"] = [sys.executable, "-c", f"open('{tmp_path}/trace', 'w').close()"]
    (tmp_path / "first" / SWEEP).write_text(json.dumps(record))
    code, _, err = planned(*arguments)
    assert not (tmp_path / "trace").exists()
    assert code == 2
    assert "trace" in err
    assert "--yes" in err
    assert planned(*arguments, "--yes")[0] == 0
    assert (tmp_path / "trace").exists()


ORPHAN = """
import os, sys, time
from pathlib import Path
from trieye.sweeps.jobs import RunningJob
with RunningJob(Path("first") / sys.argv[1], int(sys.argv[1]), sys.argv[3:]).running():
    print("runs", flush=True)
    while not Path("begun").exists() or len(Path("begun").read_text().splitlines()) < int(sys.argv[2]):
        time.sleep(0.05)
    os._exit(1)
"""


@pytest.fixture
def start_orphan(planned, tmp_path):
    """Return a function that starts a process which dies after `num_others` other jobs have started."""
    started = []

    def start(index, num_others):
        arguments = planned("show", index, "-d", "first")[1].split()
        command = [sys.executable, "-c", ORPHAN, str(index), str(num_others), *arguments]
        started.append(subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True))
        assert started[-1].stdout.readline() == "runs\n"

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_signal_that_kills_a_program_sets_the_exit_code_of_a_shell(planned, tmp_path, number):
    default = "" if number == signal.SIGKILL else f"signal.signal({number}, signal.SIG_DFL)"
    (tmp_path / "train.py").write_text(f"import os, signal\n{default}\nos.kill(os.getpid(), {number})\n")
    assert planned("relaunch", "first")[0] == 128 + number


def test_exit_code_2_is_reserved_for_errors_before_a_run_starts(typed_sweep, tmp_path, monkeypatch):
    @trieye.main(config_path=str(tmp_path / "conf"))
    def train(config: trieye.TrieyeConfig) -> None:
        with trieye.Run(config):
            raise trieye.ConfigurationError("late")

    for word, code in (("seed=1", 1), ("sede=1", 2)):
        monkeypatch.setattr(sys, "argv", ["typed.py", word])
        with pytest.raises(SystemExit) as exited:
            train()
        assert exited.value.code == code


@pytest.mark.long
def test_a_part_of_a_sweep_skips_jobs_that_another_part_runs(planned, start_orphan):
    start_orphan(1, num_others=2)
    code, _, err = planned("run", "-d", "first", "-i", "0-2")
    assert (code, states(planned)[:3]) == (0, ["completed"] * 3), err


def write_typed_program(directory):
    """Write a program that creates a run for each job."""
    (directory / "conf").mkdir()
    (directory / "conf" / "train.yaml").write_text(
        "defaults: [trieye, _self_]\napp_name: tested\nruntime: {kind: local}\n"
        "sinks: {mlflow: {enabled: false}, tensorboard: {enabled: false}}\n"
    )
    (directory / "typed.py").write_text(TYPED)


@pytest.fixture
def typed_sweep(sweep, tmp_path):
    """Return `sweep`, with a program that creates a run for each job."""
    write_typed_program(tmp_path)
    return sweep


@pytest.fixture(scope="module")
def typed_project(tmp_path_factory, warm_programs):
    """A project whose sweep `first` has completed its two jobs, each with a run."""
    project = tmp_path_factory.mktemp("typed")
    write_typed_program(project)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(project)
        assert main(["sweep", "plan", "typed", "seed=0,1", "-o", "first", HERE]) == 0
        assert main(["sweep", "relaunch", "first"]) == 0
    return project


def test_a_copied_project_runs_its_own_program_and_leaves_the_original_unchanged(sweep, typed_project, tmp_path):
    copy = shutil.copytree(typed_project, tmp_path / "copy", symlinks=True)
    (copy / "typed.py").write_text(TYPED.replace("float(config.seed)", "100.0 + config.seed"))
    shutil.rmtree((copy / "first/1/run").resolve())
    shutil.rmtree(copy / "first/1")
    before = contents(typed_project)
    code, _, err = sweep("relaunch", "copy/first", "--yes")
    assert code == 0, err
    assert f"running its program in {copy}" in err
    assert contents(typed_project) == before
    assert [job["objective"] for job in jobs_of(sweep, "copy/first")] == [0.0, 101.0]
    for index in (0, 1):
        assert (copy / f"first/{index}/run").resolve().is_relative_to(copy)


def test_a_copied_sweep_of_an_external_program_is_rejected_and_status_reports_it(sweep, tmp_path, monkeypatch):
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    sweep.output("plan", str(tmp_path / "train.py"), "seed=0,1", "-o", "first", HERE)
    shutil.copytree("first", "copies/first")  # as far below a directory as the original
    before = contents(tmp_path)
    message = f"copies/first is a copy of the sweep in {tmp_path / 'project/first'}"
    assert message in sweep("status", "copies/first")[1]
    assert message in sweep.error("relaunch", "copies/first", "--yes")
    assert message in sweep.error("run", "-d", "copies/first", "-i", "0")
    assert contents(tmp_path) == before


@pytest.mark.long
def test_sweeps_in_directories_of_equal_name_have_separate_runs(typed_sweep, tmp_path):
    for directory in ("a/first", "first"):
        assert typed_sweep("plan", "typed.py", "seed=0,1", "-o", directory, HERE)[0] == 0
        typed_sweep.output("relaunch", directory)
    runs = {(tmp_path / directory / str(job) / "run").resolve() for directory in ("a/first", "first") for job in (0, 1)}
    assert len(runs) == 4


def test_a_job_whose_run_was_deleted_reruns_only_on_request(sweep, typed_project, monkeypatch, capfd):
    monkeypatch.chdir(typed_project)
    assert [(job["state"], job["objective"], job["step"]) for job in jobs_of(sweep, "first")] == [
        ("completed", 0.0, 7), ("completed", 1.0, 7),
    ]  # fmt: skip
    link = typed_project / "first/1/run"
    assert link.is_symlink()
    run_dir = link.resolve()
    assert main(["rm", str(run_dir), "--yes"]) == 0
    capfd.readouterr()
    assert states(sweep) == ["completed", "removed"]
    main(["results", "table", "first", "--metric", "loss"])
    stderr = capfd.readouterr().err
    assert "1 (removed)" in stderr
    assert "ran on" not in stderr
    code, out, _ = sweep("relaunch", "first")
    assert (code, "--only removed" in out, run_dir.exists()) == (0, True, False)
    assert sweep("relaunch", "first", "--only", "removed")[0] == 0
    assert states(sweep) == ["completed", "completed"]


@pytest.mark.long
@pytest.mark.slow
def test_a_relaunch_uses_the_config_directories_of_the_sweep(sweep, tmp_path):
    (tmp_path / "typed.py").write_text(TYPED)
    for directory, text in (("conf", "defaults: [trieye]"), ("other/conf", "defaults: [trieye, mine: it, _self_]")):
        (tmp_path / directory).mkdir(parents=True)
        local = "runtime: {kind: local}\nsinks: {mlflow: {enabled: false}}\n"
        (tmp_path / directory / "train.yaml").write_text(f"{text}\n{local}")
    (tmp_path / "more/mine").mkdir(parents=True)
    (tmp_path / "more/mine/it.yaml").write_text("# @package _global_\napp_name: from_more\n")
    arguments = ["-m", "hydra/launcher=trieye", "hydra/sweeper=trieye", HERE, "hydra.sweep.dir=s", "seed=4,5"]
    config_options = ["--config-path", "other/conf", "--config-dir", "more"]
    done = subprocess.run(
        [sys.executable, "typed.py", *arguments, *config_options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (tmp_path / "s" / "1" / STATUS).unlink()
    sweep.output("relaunch", "s")
    status = json.loads(sweep("status", "s", "--json")[1])
    assert [(job["state"], job["objective"]) for job in status["jobs"]] == [("completed", 4.0), ("completed", 5.0)]
    assert json.loads((tmp_path / "s/1/run/run.json").read_text())["app_name"] == "from_more"
    summary = json.loads((tmp_path / "s" / SWEEP).read_text())["summary"]
    assert summary == {"completed": 2, "best": 1, "objective": 5.0}  # of all jobs, not only of the jobs of this start


def test_a_running_sweep_can_be_neither_replanned_nor_started_twice(planned, tmp_path):
    before = (tmp_path / "first" / SWEEP).read_bytes()
    with lock_in(tmp_path / "first"):
        err = planned.error("plan", "train.py", "lr=0.1,0.5", "agent=dqn", "--seeds", "4", "-o", "first", code=3)
        assert "sweep 'first' is being written by" in err
        command = [sys.executable, "train.py", "-m", "hydra/launcher=basic", "hydra/sweeper=trieye", "lr=0.1,0.5"]
        command += ["agent=dqn", "hydra.sweeper.seeds=4", "hydra.sweep.dir=first"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, "sweep 'first' is being written by" in done.stderr) == (3, True)
    assert (tmp_path / "first" / SWEEP).read_bytes() == before
    assert started_jobs(tmp_path) == []


def test_an_invalid_argument_says_what_is_expected(planned):
    for arguments, message in (
        (["show", "6", "-d", "first"], "job 6 does not exist: the sweep has jobs 0 to 5"),
        (["run", "-i", "6", "-d", "first"], "6: out of range; the sweep has the jobs 0 to 5"),
        (["run", "-i", "0", "lr=1", "-d", "first"], "lr=1: expected overrides of hydra.launcher.*"),
        (["run", "-i", "", "-d", "first"], "'': expected indices of jobs, such as 7 or 0-9,12"),
        (["plan", "lr=1,2", "-o", "sw\udcff"], r"'sw\udcff': the path of a sweep must be valid UTF-8"),
        (["run", "-i", "0", "--stride", "0", "-d", "first"], "argument --stride: invalid value '0'"),
        (["find", "agnet=dqn", "-d", "first"], "agnet: the sweep has no such axis; did you mean 'agent'?"),
        (["find", "lr=3", "-d", "first"], "lr=3: the sweep has no such value (values of lr: 0.1, 0.5)"),
        (["find", "lr", "-d", "first"], "lr: expected KEY=VALUE"),
        (["status", "frist"], "frist does not exist; did you mean 'first'?"),
        (["status", "."], "contains no sweep (no sweep.json); there is one in first"),
        (["relaunch", "first", "--only", "fialed"], "did you mean 'failed'? (choose from: failed, incomplete, missing"),
        (["plan", "tain.py", "lr=1,2"], "tain.py: no such file; did you mean 'train.py'?"),
        (["plan", "my_agent.train", "lr=1,2"], "my_agent.train: no such module in the working directory"),
        (["plan", "train.py"], "train.py: no varying keys; add KEY=VALUES"),
        (["plan", "train.py", "lr=1,2", "agent"], "agent: not a valid key=value override"),
        (["plan", "lr=1,2", "--seeds", "0"], "argument --seeds: invalid value '0'"),
        (["plan", "lr=1,2", "seed=1", "--seeds", "3"], "seed is already an axis of the sweep"),
        (["plan", "lr=1,2", "--exclude", "lr"], "lr: expected KEY=VALUE"),
        (["plan", "lr=1,2", "--exclude", "lr=[1"], "--exclude lr=[1: not a valid key=value override"),
        (["plan", "lr=1,2", "--when", "clip:agent=ppo,lr"], "--when lr: expected KEY=VALUE"),
        (["plan", "lr=1,2", "hydra.sweep.dir=x"], "hydra.sweep.dir=x: a plan does not accept this key"),
        (["plan", "missing.json"], "missing.json cannot be read: No such file or directory"),
        (["relaunch", "first", "hydra.launcher.only=2"], "only=2: not accepted here; `trieye sweep run -i` selects"),
        (["relaunch", "hydra.sweeper.mode=min"], "hydra.sweeper.mode=min: expected one sweep directory"),
    ):
        code, out, err = planned(*arguments)
        assert code == 2
        assert (message in err, out) == (True, ""), err
        assert err.startswith(("error: ", "usage: trieye sweep "))


def test_without_a_directory_the_newest_sweep_is_used(sweep, tmp_path):
    code, _, err = sweep("status")
    assert (code, "no sweep in the working directory or below multirun/" in err) == (2, True)
    for number, name in enumerate(("new", "old")):
        sweep("plan", "lr=1,2", "-o", f"multirun/{name}")
        os.utime(tmp_path / "multirun" / name / SWEEP, (9e8 - number, 9e8 - number))
    code, out, err = sweep("find", "lr=2")
    assert (code, out, err) == (0, "1\n", "using the newest sweep, multirun/new\n")


def test_a_plan_without_a_program_asks_for_one(sweep):
    assert sweep("plan", "lr=1,2", "-o", "x")[1].endswith("written to x; to run it, pass the program first\n")
    error = sweep.error("relaunch", "x")
    assert "planned without a program; repeat its command with hydra.sweep.dir=" in error
    assert "or its `trieye sweep plan` with the program as first word" in error


def test_a_secret_that_was_not_recorded_is_requested(sweep):
    assert sweep("plan", "train.py", "db.password=hunter2", "lr=1,2", "-o", "x")[0] == 0
    code, _, err = sweep("relaunch", "x")
    assert (code, "hunter2" in err) == (2, False)
    assert "db.password=***: secrets are not recorded; take the value from the environment" in err


def test_a_missing_working_directory_is_named(planned, tmp_path):
    path = tmp_path / "first" / SWEEP
    path.write_text(path.read_text().replace(json.dumps(str(tmp_path)), json.dumps(str(tmp_path / "gone"))))
    assert (
        f"the working directory of the sweep, {tmp_path / 'gone'}, no longer exists; restore it"
        in planned("relaunch", "first")[2]
    )


def test_the_help_of_an_action_names_its_options(command):
    for action in ("plan", "show", "find", "run", "status", "relaunch"):
        out = command.output("sweep", action, "--help")
        assert out.startswith(f"usage: trieye sweep {action} [-h]")
        assert "DIR " in out, action


@pytest.mark.long
@pytest.mark.usefixtures("cold_programs")
def test_help_and_read_only_actions_import_no_slow_packages(planned):
    code = "import sys\nfrom trieye.cli import main\n{}\nprint([m for m in {} if m in sys.modules])"
    for arguments, heavy in (
        (["plan", "--help"], ["pydantic", "numpy", "rich", "hydra"]),
        (["show", "1", "-d", "first"], ["hydra", "omegaconf", "ray", "numpy", "torch", "mlflow", "pandas"]),
        (["status", "first", "--json"], ["hydra", "omegaconf", "ray", "numpy", "torch", "mlflow", "pandas", "rich"]),
        (["plan", "lr=1,2"], ["ray", "numpy", "torch", "mlflow", "pandas"]),
    ):
        called = f"try:\n    main({['sweep', *arguments]})\nexcept SystemExit:\n    pass"
        done = subprocess.run(
            [sys.executable, "-c", code.format(called, heavy)], capture_output=True, text=True, check=True
        )
        assert done.stdout.splitlines()[-1] == "[]", arguments
