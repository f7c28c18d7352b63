"""`trieye rerun`, `fork` and `diff`, with a program that runs."""

import json
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import trieye
from tests import warm
from tests.cli.conftest import config_in
from tests.json_schemas import validated
from trieye import results, runs
from trieye.config.redaction import HIDDEN
from trieye.config.sinks import OUR_NAMES
from trieye.exceptions import CheckpointError, ConfigurationError
from trieye.files.run_record import RunRecord
from trieye.process.lock import RunLock
from trieye.results.runs import seed_in
from trieye.runs import get
from trieye.runs.program import LOAD, Program
from trieye.sweeps.record import SweepRecord, moved_program

pytestmark = pytest.mark.usefixtures("git_repositories")

WARM = warm.RUN

CONFIG = """
defaults: [trieye, _self_]
app_name: agents
runtime: {kind: local}
sinks: {mlflow: {enabled: false}, tensorboard: {enabled: false}}
loop: {steps: 10, evaluate_every_steps: 2}
persistence: {checkpoint_save_freq_steps: 5, keep_last: 0}
"""
WITHOUT_HYDRA = """
import trieye
config = trieye.TrieyeConfig(
    app_name="agents", run_name="by_code", runtime={"kind": "local"}, sinks={},
    persistence={"root_data_dir": ".trieye_data"},
)
with trieye.Run(config) as run:
    run.log({"loss": 1.0}, step=3)
"""
OWN_HYDRA = """
import hydra
import trieye

@hydra.main(version_base="1.3", config_path=None)
def train(config):
    settings = trieye.TrieyeConfig(
        app_name="agents", run_name=f"own_{config.net.lr}_{config.seed}", runtime={"kind": "local"}, sinks={},
        persistence={"root_data_dir": ".trieye_data"},
    )
    with trieye.Run(settings) as run:
        run.log({"loss": 1.0}, step=3)

train()
"""
NEVER_RESTORES = """
from pathlib import Path
import trieye

@trieye.main(config_path="pkg://trieye.conf", config_name="trieye")
def train(config: trieye.TrieyeConfig) -> None:
    Path("sinks.txt").write_text(str(config.sinks.enabled))
    with trieye.Run(config) as run:
        for step in run.steps(20):
            run.log({"loss": 1.0})
        run.save(a=1)

train()
"""


def git(directory, *arguments):
    options = ("-c", "user.name=x", "-c", "user.email=x@x", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *options, *arguments], cwd=directory, check=True, capture_output=True)


def run_program(directory, *arguments, program="train.py", code=0):
    command = [sys.executable, program, *arguments]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stderr
    return done


@pytest.fixture(scope="module")
def _made(tmp_path_factory, warm_programs):
    project = tmp_path_factory.mktemp("project")
    (project / "conf").mkdir()
    (project / "conf" / "train.yaml").write_text(CONFIG)
    shutil.copy(Path(__file__).with_name("program_again.py"), project / "train.py")
    (project / ".gitignore").write_text(".trieye_data\nbegun.txt\n")
    git(project, "init", "-q", ".")
    git(project, "add", "-A")
    git(project, "commit", "-qm", "first")
    run_program(project, "run_name=first", "agent.lr=0.25")
    return project


@pytest.fixture
def project(_made, monkeypatch):
    """A project under git with the run `first` of ten steps, whose best one is 6, restored after each test."""
    monkeypatch.chdir(_made)
    monkeypatch.setenv("COLUMNS", "200")
    first, data = runs_of(_made) / "first", _made / ".trieye_data"
    changeable = (_made / "conf/train.yaml", _made / "train.py", first / "run.json", provenance_of(first))
    contents = {path: path.read_bytes() for path in changeable}
    entries = {path for directory in (_made, data, first.parent) for path in directory.iterdir()}
    yield _made
    for path in {path for directory in (_made, data, first.parent) for path in directory.iterdir()} - entries:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path, content in contents.items():
        path.write_bytes(content)


def runs_of(project):
    return project / ".trieye_data" / "agents" / "runs"


def provenance_of(run_dir):
    return run_dir / "provenance" / "attempt-1.json"


def run_names(project):
    return sorted(path.name for path in runs_of(project).iterdir())


def config_of(project, name):
    return json.loads((runs_of(project) / name / "configs.json").read_text())


def record_of(project, name):
    return RunRecord.read(runs_of(project) / name / "run.json")


def weights_of(project, name, step):
    checkpoint = trieye.load_checkpoint(runs_of(project) / name, step)
    return checkpoint.objects["experiment"]["state"]["net"]["weights"]


def update_json(path, **values):
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def copy_first(project, name):
    """Copy the run `first` as another run of its app, and return its directory."""
    run_dir = shutil.copytree(runs_of(project) / "first", runs_of(project) / name)
    update_json(run_dir / "run.json", run_name=name, run_id="another")
    return run_dir


def test_a_rerun_reproduces_its_run_and_reports_no_differences(command, project):
    code, out, err = command("rerun", "first")
    assert code == 0, err
    assert "no differences from agents/first" in err
    assert re.search(r"cd \S+ && \S+ train\.py agent\.lr=0\.25 run_name=first_rerun\n", out)
    assert np.array_equal(weights_of(project, "first_rerun", 10), weights_of(project, "first", 10))
    assert record_of(project, "first_rerun").forked_from is None


def test_a_planned_rerun_takes_the_next_name_while_another_one_reserves_its_name(project):
    plan = runs.plan_rerun("first", ["agent.lr=0.125", "loop.steps=2"])
    assert plan.run_dir == runs_of(project) / "first_rerun"
    assert dict(plan.divergence.config) == {"agent.lr": (0.25, 0.125), "loop.steps": (10, 2)}
    with plan.reserved():
        assert plan.start() == 0
    assert run_names(project) == ["first", "first_rerun_2"]  # the reserved name is free again
    assert config_of(project, "first_rerun_2")["agent"]["lr"] == 0.125


def test_a_restart_takes_no_name_of_a_run_in_the_mirror_and_is_refused_if_that_is_unreachable(project, tmp_path):
    url = f"file://{tmp_path}/mirror"

    def add_run(name):
        with trieye.Run(config_in(project / ".trieye_data", name, persistence={"mirror": url})) as run:
            run.log("loss", 1.0)
        shutil.rmtree(run.dir)

    add_run("first_rerun")
    assert runs.plan_rerun("first", [f"persistence.mirror={url}"]).run_dir.name == "first_rerun_2"
    plan = runs.plan_rerun("first", ["run_name=second", f"persistence.mirror={url}"])
    with plan.reserved(), pytest.raises(ConfigurationError, match="run_name=second: this run already exists; choose"):
        plan.start()
    add_run("second")
    with pytest.raises(ConfigurationError, match=f"run_name=second: this run already exists in the mirror {url}"):
        plan.start()
    other_app = replace(plan, run_dir=project / ".trieye_data/others/runs/second")
    with other_app.reserved():
        assert other_app.run_dir.exists()
    shutil.rmtree(tmp_path / "mirror")
    (tmp_path / "mirror").write_bytes(b"")
    with pytest.raises(ConfigurationError, match=r"searched for a run 'second'.*persistence\.mirror=null"):
        plan.start()
    assert run_names(project) == ["first"]


def test_an_unsigned_stored_command_needs_confirmation_from_python(planted):
    _, trace = planted(command=[sys.executable, "stranger.py"])
    with pytest.raises(ConfigurationError, match="has not signed for this directory"):
        runs.rerun("planted")
    assert not trace.exists()
    confirmed = []
    with pytest.raises(ConfigurationError, match="rejected the config"):
        runs.rerun("planted", confirm=lambda command, _, origin: confirmed.append((command[-1], origin)))
    assert confirmed == [("run_name=planted_rerun", "run agents/planted")]


def test_changes_since_the_run_are_shown_before_the_start(command, project):
    (project / "conf" / "train.yaml").write_text(CONFIG.replace("steps: 10", "steps: 20"))
    provenance = provenance_of(runs_of(project) / "first")
    recorded = json.loads(provenance.read_text())
    update_json(
        provenance,
        packages={**recorded["packages"], "numpy": "1.0.0"},
        commit={**recorded["commit"], "sha": "0" * 40, "is_dirty": True},
        sources={**recorded["sources"], "imported_later": "0" * 16},
    )
    (project / "imported_later.py").write_text("LR = 2\n")
    code, out, err = command("rerun", "first", "agent.lr=0.125", "--dry-run", "run_name=second")
    assert code == 0, err
    lines = err.splitlines()
    assert "config: agent.lr: 0.25 -> 0.125  (override)" in lines
    assert any("module imported_later: 00000000 -> " in line for line in lines)
    assert "config: loop.steps: 10 -> 20" in lines
    assert f"packages: numpy: 1.0.0 -> {np.__version__}" in lines
    assert f"commit: sha: {'0' * 40} -> {recorded['commit']['sha']}" in lines
    assert "commit: the run had uncommitted changes; the patch was not stored" in lines
    assert not any("run_name" in line for line in lines)
    assert out.endswith(" train.py agent.lr=0.125 run_name=second\n")
    assert run_names(project) == ["first"]


def test_overrides_unknown_to_the_program_are_named_and_can_be_omitted_in_a_plan_as_json(command, project):
    overrides = ["run_name=first", "agent.learning_rate=0.25", "agent.lr=0.25"]
    update_json(provenance_of(runs_of(project) / "first"), overrides=overrides)
    err = command.error("rerun", "first", "--dry-run", "--yes")
    assert "no run was created" in err
    assert "agent.learning_rate" in err
    document = validated(
        command.output("rerun", "first", "--without", "agent.learning_rate", "--dry-run", "--yes", "--json")
    )
    assert document["command"] == [sys.executable, "train.py", "agent.lr=0.25", "run_name=first_rerun"]
    assert (document["run_dir"], document["is_dry_run"]) == (str(runs_of(project) / "first_rerun"), True)
    assert run_names(project) == ["first"]
    err = command.error("rerun", "first", "--without", "agent.lrn")
    assert "--without agent.lrn: the run has no such override" in err


def test_the_hydra_config_of_a_program_that_creates_its_config_in_code_is_part_of_the_run(command, project, tmp_path):
    (tmp_path / "own.py").write_text(OWN_HYDRA)
    words = ["-m", "+net.lr=0.5,0.25", "+seed=1", "+api_token=abcdefgh", f"hydra.sweep.dir={tmp_path}/sweep"]
    run_program(project, *words, "hydra/launcher=basic", program=str(tmp_path / "own.py"))
    assert dict(runs.diff("own_0.5_1", "own_0.25_1").divergence.config) == {"net.lr": (0.5, 0.25)}
    assert config_of(project, "own_0.5_1")["api_token"] == HIDDEN
    assert seed_in({"seed": 0, "hydra.seed": 3}) == 3  # of a program that does not pass its seed to TrieyeConfig
    loaded = results.load([path for path in runs_of(project).iterdir() if path.name != "first"]).runs
    assert {(run.params["net.lr"], run.seed) for run in loaded} == {(0.5, 1), (0.25, 1)}
    assert "add run_name to its Hydra config" in command.error("rerun", "own_0.5_1")
    update_json(runs_of(project) / "own_0.5_1" / "run.json", status="KILLED")
    assert "run_name=" not in runs.diagnose("own_0.5_1").next_steps[0].command


def test_runs_without_hydra_or_provenance_say_why_they_cannot_be_rerun(command, project, tmp_path):
    (tmp_path / "by_code.py").write_text(WITHOUT_HYDRA)
    run_program(project, program=str(tmp_path / "by_code.py"))
    err = command.error("rerun", "by_code")
    assert "no override of" in err
    assert "put @trieye.main above the function" in err
    shutil.rmtree(runs_of(project) / "by_code" / "provenance")
    assert "no checkpoint" in command.error("fork", "by_code")
    err = command.error("rerun", "by_code")
    assert "provenance/attempt-1.json" in err
    assert "configs.json" in err


@pytest.fixture
def planted(project):
    """Return a function that plants a copy of `first` with a command of a stranger, and the file that this writes."""

    def plant_copy(**values):
        (project / "stranger.py").write_text("open('trace', 'w').close()")
        run_dir = runs_of(project) / "planted"
        shutil.copytree(runs_of(project) / "first", run_dir)
        update_json(run_dir / "run.json", run_name="planted")
        update_json(provenance_of(run_dir), **values)
        return run_dir, project / "trace"

    return plant_copy


@pytest.mark.parametrize("words", [["rerun", "--dry-run"], ["fork"]])
def test_an_unsigned_stored_command_runs_only_when_confirmed(words, command, planted, monkeypatch):
    run_dir, trace = planted(command=[sys.executable, "stranger.py"])
    code, _, err = command(*words, "planted")
    assert not trace.exists()
    assert code == 2
    assert "stranger.py" in err
    assert "--yes" in err
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    for answer in ("n", ""):
        monkeypatch.setattr("builtins.input", lambda _, answer=answer: answer)
        assert command(*words, "planted")[0] == 2
    assert not trace.exists()
    monkeypatch.setattr("builtins.input", lambda _: "y")
    assert "rejected the config" in command(*words, "planted")[2]
    assert trace.exists()
    trace.unlink()
    assert "rejected the config" in command(*words, "planted", "--yes")[2]
    assert trace.exists()
    assert run_dir.exists()


def test_a_tampered_override_directory_or_sweep_invalidates_the_signature(command, planted, tmp_path):
    run_dir, trace = planted(overrides=["hydra/launcher=stranger"])
    path = provenance_of(run_dir)
    assert command("rerun", "planted", "--dry-run")[0] == 2
    update_json(path, overrides=["agent.lr=0.25"], directory=str(tmp_path))
    code, _, err = command("rerun", "planted", "--dry-run")
    assert (code, f"cd {trace.parent} && " in err) == (2, True)  # the program next to the run
    shutil.copy(provenance_of(run_dir.with_name("first")), path)
    assert Program.of(get("planted")).is_signed
    sweep = {"spec": [], "program": [sys.executable, "stranger.py", "\x1b[2K"], "working_dir": str(trace.parent)}
    (tmp_path / "sweep.json").write_text(json.dumps(sweep))
    update_json(run_dir / "run.json", group=str(tmp_path))
    code, _, err = command("rerun", "planted", "--dry-run")
    assert (code, trace.exists()) == (2, False)
    assert "stranger.py '\\x1b[2K'" in err


def test_a_missing_program_or_directory_is_named(command, project):
    (project / "train.py").rename(project / "moved.py")
    assert "train.py" in command.error("rerun", "first")
    update_json(provenance_of(runs_of(project) / "first"), directory="/nowhere/at/all")
    err = command.error("rerun", "first")
    assert "/nowhere/at/all, which is gone" in err
    assert "train.py" in err


@pytest.mark.parametrize("transfer", [Path.rename, shutil.copytree], ids=["moved", "copied"])
def test_a_moved_or_copied_project_runs_its_own_program_after_confirmation(
    transfer, command, project, tmp_path, monkeypatch
):
    old, new = shutil.copytree(project, tmp_path / "old"), tmp_path / "new"
    sweep_dir, first = Path("multirun", "lr"), runs_of(new) / "first"
    update_json(provenance_of(runs_of(old) / "first"), directory=str(old))
    SweepRecord(spec=[], program=["python", str(old / "train.py")], working_dir=str(old)).write(old / sweep_dir)
    transfer(old, new)
    monkeypatch.chdir(new)
    err = command.error("rerun", "first", "--dry-run")
    assert f"cd {new} && " in err
    assert "--yes" in err
    update_json(first / "run.json", status="KILLED", owner=None)
    resume_command = runs.diagnose("first").next_steps[0].command
    assert resume_command == f"cd {new} && {sys.executable} train.py agent.lr=0.25 run_name=first"
    # a job runs the program of its sweep
    update_json(first / "run.json", group=str(old / sweep_dir), job=0)
    update_json(provenance_of(first), command=[sys.executable, "-c", "import fork_server"])
    update_json(new / sweep_dir / "sweep.json", program=[sys.executable, "-u", str(old / "train.py")])
    program = Program.of(get("first"))
    assert (program.directory, program.is_signed) == (new, False)
    assert program.words == [sys.executable, "-u", str(new / "train.py")]


def test_the_program_next_to_a_run_is_found_behind_the_flags_of_python(project, tmp_path):
    for words, is_found in (
        (["-u", "train.py"], True),
        (["-um", "train"], False),
        (["-m", "train"], True),
        ([], False),
    ):
        moved = moved_program([sys.executable, *words], tmp_path, project)
        assert moved == ([sys.executable, *words] if is_found else None), words


@pytest.mark.parametrize("typed", [["run_name=first"], []])
def test_the_command_that_continues_a_run_has_its_present_name(typed, planted):
    overrides = [*typed, "agent.lr=0.25"]
    run_dir, _ = planted(command=[sys.executable, "train.py", *overrides], overrides=overrides)
    update_json(run_dir / "run.json", status="KILLED", owner=None)  # moved, not copied
    assert runs.diagnose("planted").next_steps[0].command.endswith(" train.py agent.lr=0.25 run_name=planted")


def test_the_program_of_a_run_away_from_its_project_must_be_confirmed(command, project, tmp_path):
    alone = shutil.copytree(runs_of(project) / "first", tmp_path / "alone")
    code, _, err = command("rerun", alone, "--dry-run")
    assert (code, f"cd {project} && " in err, "--yes" in err) == (2, True, True)
    update_json(alone / "run.json", status="KILLED", owner=None)  # moved, not copied
    assert runs.diagnose(alone).next_steps[0].effect == f"run its program, which does not find the run in {alone}"


def test_a_run_behind_a_symbolic_link_belongs_to_its_project(project, tmp_path):
    first = runs_of(project) / "first"
    for linked in (first, project / ".trieye_data"):
        target = linked.rename(tmp_path / linked.name)
        linked.symlink_to(target)
        try:
            program = Program.of(get("first"))
        finally:
            linked.unlink()
            target.rename(linked)
        assert (program.directory, program.is_signed) == (project, True)


def test_a_fork_reproduces_its_active_parent_with_its_own_history_and_a_nested_fork_records_its_ancestry(
    command, project
):
    with RunLock(runs_of(project) / "first" / "run.lock"):
        out = command.output("fork", "first", "--checkpoint", "best", "loop.steps=12", "--json")
    document = validated(out)  # the output of the program is on stderr
    assert (document["is_dry_run"], document["changes"]["config"]) == (False, {"loop.steps": [10, 12]})
    assert document["command"][-1] == "persistence.load_checkpoint_path=first:step:6"
    parent, fork = record_of(project, "first"), record_of(project, "first_fork")
    assert fork.forked_from.name == "agents/first@6"
    assert (fork.forked_from.run_id, fork.forked_from.objective) == (parent.run_id, 0.0)
    assert config_of(project, "first_fork")["persistence"]["load_checkpoint_path"] == "first:step:6"
    for step in (6, 10):  # step 6: the fork's own copy
        assert np.array_equal(weights_of(project, "first_fork", step), weights_of(project, "first", step))
    assert fork.summary["eval/return"] == {"last": -6.0, "min": -6.0, "max": -2.0, "step": 12}  # not the parent's 0
    assert fork.summary["progress/env_steps"]["last"] == 48.0
    assert "forked from agents/first@6" in command("watch", "first_fork", "--once")[1]
    listed = {run["name"]: run["forked_from"] for run in json.loads(command("runs", "--json")[1])["runs"]}
    assert listed == {"first": None, "first_fork": "agents/first@6"}
    # into another app: the reference to the checkpoint is its path
    plan = runs.plan_fork("first_fork", ["app_name=others", "run_name=nested", "loop.steps=14"])
    checkpoint = runs_of(project) / "first_fork/checkpoints/checkpoint_step_12"
    assert plan.overrides[-1] == f"persistence.load_checkpoint_path={checkpoint}"
    assert plan.start() == 0
    shutil.rmtree(checkpoint.parents[1])
    forked_from = RunRecord.read(project / ".trieye_data/others/runs/nested/run.json").forked_from
    assert forked_from.line == "agents/first_fork@12, which was forked from agents/first@6"


@pytest.mark.long
@pytest.mark.slow
def test_a_killed_fork_resumes_from_its_own_checkpoints_without_its_parent(command, project):
    parent = copy_first(project, "parent")
    words = ["parent", "--checkpoint", "step:6", "loop.steps=30", "run_name=fork", "agent.kill_at=8"]
    code, out, _ = command("fork", *words)
    assert code == 128 + signal.SIGKILL
    shutil.rmtree(parent)
    command_line = out.splitlines()[-1].partition(" && ")[2].split()  # the printed command
    done = subprocess.run(command_line, cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    assert "resumes from its own newest checkpoint, checkpoint_step_6" in done.stderr + done.stdout
    done = subprocess.run([*command_line, "agent.kill_at=0"], cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    record = record_of(project, "fork")
    assert (record.attempt, record.summary["progress/env_steps"]["last"]) == (3, 120.0)
    assert record.forked_from.name == "agents/parent@6"  # although its last attempt resumed from its own checkpoint


@pytest.mark.long
def test_another_architecture_is_rejected_before_a_run_is_created(command, project):
    err = command.error("fork", "first", "--checkpoint", "best", "agent.width=4", code=1)
    assert "fork of agents/first at step 6: no run was created" in err
    assert "weights of shape (3,) for a net of (4,)" in err
    assert run_names(project) == ["first"]


def test_a_restart_into_an_existing_run_is_refused_with_the_command_that_resumes_it(command, project):
    taken = copy_first(project, "taken")
    with RunLock(taken / "run.lock"):
        err = command.error("fork", "first", "--checkpoint", "best", "run_name=taken")
        assert "run_name=taken: this run already exists and is still running" in err
    err = command.error("rerun", "first", "run_name=taken")
    assert "run_name=taken: this run already exists" in err
    assert "to resume it: cd " in err
    assert err.endswith("train.py agent.lr=0.25 run_name=taken\n")  # not the name that it was started with


def test_a_program_that_never_restores_is_rejected_without_sinks_or_training(project, planted):
    planted(command=[sys.executable, "stranger.py"], overrides=[])
    (project / "stranger.py").write_text(NEVER_RESTORES)
    sinks = f"sinks=[{','.join(OUR_NAMES)}]"
    with pytest.raises(CheckpointError, match=r"before run\.restore\(\)"):
        runs.fork("planted", [sinks], checkpoint="step:2", confirm=lambda *_: None)
    assert (project / "sinks.txt").read_text() == "[]"
    assert run_names(project) == ["first", "planted"]


def test_an_invalid_argument_lists_the_valid_choices_and_creates_nothing(command, project):
    for arguments, expected in (
        (["fork", "frist"], ("'frist'", "did you mean 'first'?")),
        (["fork", "first", "--checkpoint", "best", "run_name=first"], ("run_name=first: this run already exists",)),
        (["diff", "first", "frist"], ("'frist'", "did you mean 'first'?")),
        (["fork", "first", "--checkpoint", "step:7"], ("no checkpoint step:7", "choose from: step:6, ")),
        (["fork", "first", "--checkpoint", "bset"], ("'bset' is not a checkpoint", "did you mean 'best'?", "step:N")),
        (["fork", "first"], ("it would be over at once", "loop.steps=10 done", "raise that limit")),
        (["fork", "first", "persistence.load_checkpoint_path=x"], ("--checkpoint",)),
        (["rerun", "first", "run_name=a/b"], ("run_name", "a/b")),
    ):
        err = command.error(*arguments)
        assert all(part in err for part in expected), err
    assert run_names(project) == ["first"]


def test_the_program_of_a_run_is_its_command_without_overrides(project):
    for command, words in (
        (["python", "-m", "my.train", "a=1", "-m"], ["-m", "my.train"]),
        (["python", "-X", "dev", "-u", "train.py", "a=1", "--multirun"], ["-X", "dev", "-u", "train.py"]),
        (["python", "/bin/my-train", "--config-name", "other", "a=1"], ["/bin/my-train", "--config-name", "other"]),
        (
            ["python", "train.py", "--config-path=elsewhere", "a=1", "-cd", "x"],
            ["train.py", "--config-path=elsewhere", "-cd", "x"],
        ),
    ):
        run = get("first")
        vars(run)["provenance"] = run.provenance.model_copy(update={"command": command, "overrides": ["a=1"]})
        program = Program.of(run)
        assert (program.words, program.overrides) == ([sys.executable, *words], ["a=1"])


def test_a_command_typed_at_a_prompt_is_not_a_program(project):
    for command in (["python", "-c", "print()"], ["python"], ["python", "-"]):
        run = get("first")
        vars(run)["provenance"] = run.provenance.model_copy(update={"command": command})
        with pytest.raises(ConfigurationError, match="can name the new run"):
            Program.of(run)


def test_overrides_replace_the_same_keys_and_secrets_must_be_passed_again(project):
    program = Program([], project, ["agent=dqn", "+agent.lr=1", "db.password=***", "run_name=x", f"{LOAD}=best"])
    with pytest.raises(ConfigurationError, match=r"db\.password=.*oc\.env:MY_SECRET"):
        program.with_overrides("x", [], [], {})
    with pytest.raises(ConfigurationError, match=r"as in '\+db={a:1,key:\$\{oc\.env:MY_SECRET\}}'"):
        Program([], project, ["+db={a:1,key:***}"]).with_overrides("x", [], [], {})
    overrides = ["agent.lr=2", "db.password=${oc.env:P}", "run_name=typed"]
    assert program.with_overrides("x", overrides, ["agent"], {"run_name": "it's 1"}) == [
        "agent.lr=2", "db.password=${oc.env:P}", r"run_name='it\'s 1'",
    ]  # fmt: skip


@pytest.mark.parametrize("file", ["run.json", "configs.json"])
def test_a_damaged_run_file_is_named(file, command, project):
    (copy_first(project, "broken") / file).write_text("{")
    for arguments in (["rerun", "broken"], ["fork", "broken"], ["diff", "first", "broken"]):
        code, _, err = command(*arguments)
        assert code in {1, 2}
        assert file in err


@pytest.mark.slow
def test_a_job_of_a_sweep_is_forked_as_a_single_run(command, project):
    run_program(project, "-m", "agent.lr=0.5", "loop.steps=4", "hydra.sweep.dir=multirun/lr", "hydra/launcher=basic")
    job = project / "multirun" / "lr" / "0" / "run"
    out = command.output("fork", job, "--checkpoint", "step:2", "run_name=alone", "--dry-run")
    assert f"run 'alone' starts from agents/{job.resolve().name} at step 2, objective -4; " in out
    checkpoint = f"persistence.load_checkpoint_path={job.resolve().name}:step:2"
    assert f"train.py agent.lr=0.5 loop.steps=4 run_name=alone {checkpoint}" in out


def test_killed_runs_and_runs_without_provenance_are_compared_by_what_was_recorded(command, project, killed_run):
    first = killed_run()
    second = killed_run(directory="other")
    shutil.rmtree(second / "provenance", ignore_errors=True)
    out = command.output("diff", first, second)
    assert "agents/first: commit and packages were not recorded" in out
    assert "loss" in out
