"""Command lines in another process: names, directories, exit codes."""

import os
from pathlib import Path

import pytest
import yaml

from trieye.config.hydra.main import reserved
from trieye.process.lock import RunLock


def _said(out: str, word: str) -> list[str]:
    return [line.partition(" ")[2] for line in out.splitlines() if line.startswith(f"{word} ")]


def test_a_single_run_has_its_hydra_records_in_its_own_directory(project):
    ended = project.ran("run_name=first", "seed=3")
    run = project.directory / ".trieye_data" / "tested" / "runs" / "first"
    assert _said(ended.out, "config") == [f"first 3 {run}"]
    assert yaml.safe_load((run / ".hydra" / "overrides.yaml").read_text()) == ["run_name=first", "seed=3"]
    assert yaml.safe_load((run / ".hydra" / "config.yaml").read_text())["run_name"] == "first"
    assert project.left_behind() == [".trieye_data"]
    assert _said(ended.out, "heavy") == ["[]"]


def test_runs_without_a_name_never_share_a_directory(project):
    names = [reserved(project.directory / "runs", "run_20260101_000000").name for _ in range(3)]
    assert names == ["run_20260101_000000", "run_20260101_000000_1", "run_20260101_000000_2"]


def test_every_job_of_a_sweep_is_a_run_of_its_own(project):
    ended = project.ran("seed=0,1", "run_name=foo", "-m", "loop.steps=2,3")
    sweep = next((project.directory / "multirun").iterdir())
    runs = project.directory / ".trieye_data" / "tested" / "runs"
    configs = [f"foo_{number} {seed} {runs / f'foo_{number}'}" for number, seed in enumerate((0, 0, 1, 1))]
    assert _said(ended.out, "config") == configs
    assert sorted(path.name for path in sweep.iterdir() if path.is_dir()) == ["0", "1", "2", "3"]
    launches = _said(ended.out, "launch")
    assert f"sweep_dir=PosixPath('{sweep}'), job_num=3" in launches[3]
    assert "overrides=('seed=1', 'run_name=foo', 'loop.steps=3'), is_multirun=True" in launches[3]


def test_jobs_without_a_name_are_named_after_their_sweep(project):
    ended = project.ran("-m", "seed=0,1", "hydra.job.chdir=true")
    sweep = next((project.directory / "multirun").iterdir()).name
    runs = project.directory / ".trieye_data" / "tested" / "runs"
    assert _said(ended.out, "config") == [f"{sweep}_{number} {number} {runs}/{sweep}_{number}" for number in (0, 1)]


def test_a_second_directory_for_a_run_is_refused(project):
    ended = project.run("hydra.run.dir=here", "run_name=x")
    assert ended.code == 2
    assert ended.err.startswith("error: hydra.run.dir=here: ")
    assert str(project.directory / ".trieye_data" / "tested" / "runs" / "x") in ended.err
    assert "persistence.root_data_dir" in ended.err
    assert project.left_behind() == []


def test_the_config_of_hydra_shows_where_the_run_goes(project):
    ended = project.ran("--cfg", "hydra", "--package", "hydra.run", "run_name=x", "persistence.root_data_dir=data")
    assert f"dir: {project.directory / 'data' / 'tested' / 'runs' / 'x'}" in ended.out
    assert project.left_behind() == []


def test_the_names_of_a_run_are_resolved_once(project):
    project.write("experiment/now", "# @package _global_\nrun_name: r_${now:%S%f}\n")
    ended = project.ran("experiment=now", "app_name=a_${now:%f}", "persistence.root_data_dir=d_${now:%f}")
    run = Path(_said(ended.out, "config")[0].split()[2])
    assert (run / ".hydra").is_dir()
    assert project.left_behind() == [run.parents[2].name]
    assert [len(list(parent.iterdir())) for parent in list(run.parents)[:3]] == [1, 1, 1]


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        ("config", 2, "error: the task does not like it\n"),
        ("locked", 3, "error: the run is locked by process 7\n"),
        ("stopped", 143, "stopped at step 7, saved\n3 points were not sent\n"),
        ("ctrl_c", 130, "interrupted\n"),
        ("SerializationError", 1, "error: a SerializationError says so\n"),
    ],
)
def test_an_expected_end_of_the_task_is_one_message(project, error, code, message):
    ended = project.run(f"+tags.raise={error}")
    assert (ended.code, ended.err) == (code, message)


def test_a_second_start_of_a_run_is_one_message_with_its_own_exit_code(project):
    run = project.directory / ".trieye_data" / "tested" / "runs" / "first"
    with RunLock(run / "run.lock"):
        ended = project.run("run_name=first")
    assert (ended.code, ended.out) == (3, "")
    assert ended.err.startswith(f"error: run 'first' is being written by process {os.getpid()} on ")
    assert not (run / ".hydra").exists()


@pytest.mark.parametrize(("error", "code"), [("CheckpointError", 1), ("RunLockedError", 3)])
def test_an_error_of_a_job_in_a_sweep_reaches_the_launcher(project, error, code):
    ended = project.run("-m", f"tags.raise={error}")
    assert ended.code == code
    assert f"a {error} says so" in ended.err
    assert "Traceback" in ended.err or "Error executing job" in ended.err


def test_a_run_name_that_looks_like_a_number_stays_as_typed(project):
    ended = project.ran("run_name=1e3", "tags={a:b}", "tags.note=x", "print_config=true")
    assert _said(ended.out, "config")[0].startswith("1e3 0 ")
    assert "├── run_name = '1e3'" in ended.out
    records = project.directory / ".trieye_data" / "tested" / "runs" / "1e3" / ".hydra" / "config.yaml"
    assert yaml.safe_load(records.read_text())["tags"] == {"a": "b", "note": "x"}  # open dict
    ended = project.ran("-m", "run_name=1e3,007")
    assert [said.split()[0] for said in _said(ended.out, "config")] == ["1e3_0", "007_1"]


@pytest.mark.parametrize(
    ("root", "place"),
    [("~/x", "home/x"), ("$HOME/y", "home/y"), ("data", "data"), ('"a \'q\' \\"p\\""', "a 'q' \"p\"")],
)
def test_a_root_directory_may_be_anywhere_and_a_name_have_letters_of_any_script(project, monkeypatch, root, place):
    monkeypatch.setenv("HOME", str(project.directory / "home"))
    ended = project.ran("run_name=été_東京", f"persistence.root_data_dir={root}", "hydra.job.chdir=true")
    run = project.directory / place / "tested" / "runs" / "été_東京"
    assert _said(ended.out, "config") == [f"été_東京 0 {run}"]
    assert (run / ".hydra").is_dir()


def test_a_bug_of_the_user_has_hydras_traceback(project):
    ended = project.run("+tags.raise=bug")
    assert ended.code == 1
    assert "Traceback" in ended.err
    assert "RuntimeError: a bug of the user" in ended.err


def test_a_refused_job_of_a_sweep_does_not_stop_the_others_and_shows_in_the_exit_code(project):
    ended = project.run("-m", "+tags.raise=config,none", "seed=4")
    assert ended.code == 2
    assert len(_said(ended.out, "config")) == 2


@pytest.mark.parametrize("typed", [["runtime=lokal"], ["loop.steps=abc"], ["-m", "seed=0,1,-1"], ["--help", "lop"]])
def test_a_mistake_ends_with_two_before_anything_is_made_or_loaded(project, typed):
    program = project.directory / "train.py"
    program.write_text(
        "import atexit, sys\n"
        "atexit.register(lambda: print(sorted({'ray', 'torch', 'mlflow', 'rich'} & set(sys.modules))))\n"
        f"{program.read_text()}"
    )
    ended = project.run(*typed)
    assert (ended.code, ended.out) == (2, "[]\n")
    assert ended.err.startswith("error: ")
    assert "Traceback" not in ended.err
    assert project.left_behind() == []


def test_the_config_is_shown_also_where_a_run_with_it_would_be_refused_which_is_said_beside_it(project):
    ended = project.run("loop.steps=-3", "seed=x", "--cfg", "job", "--package", "loop")
    assert (ended.code, yaml.safe_load(ended.out)["steps"]) == (0, -3)
    assert ended.err.startswith("note: this config is invalid, and a run with it would fail\n      ")
    assert "loop.steps=-3: expected an integer >= 1" in ended.err
    assert "seed=x: expected an integer >= 0" in ended.err
    project.ran("loop.steps=3", "--cfg", "job")  # prints nothing to stderr
    assert project.run("loop.stps=3", "--cfg", "job").code == 2


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["-m", "--cfg", "job"], "error: --multirun and --cfg cannot be combined; choose one\n"),
        (["--resolve"], "error: --resolve requires --cfg; type --cfg job --resolve\n"),
        (["--cfg", "job", "seed=1,2"], "error: seed=1,2: more than one value; add -m to run a job for each, "),
        (["-m", "seed=1,2", "hydra/launcher=basic", f"run_name={'x' * 198}"], "error: run_name 'xxx"),
    ],
)
def test_flags_and_values_that_do_not_go_together_are_refused(project, flags, message):
    ended = project.run(*flags)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith(message)
    assert "Traceback" not in ended.err


def test_a_sweep_asked_for_by_the_mode_has_its_directory_and_its_sweeper_the_objectives(project):
    (project.directory / "seen.py").write_text(
        "from hydra.experimental.callback import Callback\n"
        "class Seen(Callback):\n"
        "    def on_job_end(self, config, job_return, **kwargs):\n"
        "        print('objective', job_return.return_value)\n"
    )
    words = ["hydra.mode=MULTIRUN", "hydra.sweep.dir='my sweep!'", "+hydra.callbacks.seen._target_=seen.Seen"]
    ended = project.run(*words, "seed=5,6")  # Hydra 1.4 warns about third-party callbacks
    assert ended.code == 0, ended.err
    assert _said(ended.out, "objective") == ["5.0", "6.0"]
    assert [said.split()[:2] for said in _said(ended.out, "config")] == [["my_sweep_0", "5"], ["my_sweep_1", "6"]]


def test_config_path_on_the_command_line_is_the_same_through_a_console_script(project):
    (project.directory / "other").mkdir()
    (project.directory / "other" / "train.yaml").write_text("defaults: [schema, _self_]\nseed: 9\n")
    script = project.directory / "bin" / "my-train"
    script.parent.mkdir()
    script.write_text("import sys; sys.path.insert(0, '.'); from train import train; sys.exit(train())")
    ended = project.ran("-cp", "other", "run_name=x", program="bin/my-train")
    assert _said(ended.out, "config")[0].startswith("x 9 ")


def test_a_task_that_does_not_say_what_its_config_is_is_one_message(project):
    program = project.directory / "train.py"
    program.write_text(program.read_text().replace("config: TrieyeConfig", "config"))
    ended = project.run("seed=1")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("error: train: parameter config is not annotated; write train(config: TrainConfig)")
    assert "Traceback" not in ended.err
