"""Command lines in another process: names, directories, exit codes."""

import json
import os
import sys

import pytest
import yaml

import trieye
from trieye.cli import main
from trieye.config.hydra.launch import name_of_sweep, runs_of_sweep
from trieye.config.hydra.main import reserved
from trieye.config.names import check_name
from trieye.process.lock import RunLock


def _values_printed(out: str, word: str) -> list[str]:
    return [line.partition(" ")[2] for line in out.splitlines() if line.startswith(f"{word} ")]


def test_the_hydra_records_of_a_single_run_are_in_its_run_directory(project):
    completed = project.ran("run_name=first", "seed=3")
    run = project.directory / ".trieye_data" / "tested" / "runs" / "first"
    assert _values_printed(completed.out, "config") == [f"first 3 {run}"]
    assert yaml.safe_load((run / ".hydra" / "overrides.yaml").read_text()) == ["run_name=first", "seed=3"]
    assert yaml.safe_load((run / ".hydra" / "config.yaml").read_text())["run_name"] == "first"
    assert project.created_files() == [".trieye_data"]
    assert _values_printed(completed.out, "heavy") == ["[]"]


def test_runs_without_a_name_never_share_a_directory(project):
    names = [reserved(project.directory / "runs", "run_20260101_000000").name for _ in range(3)]
    assert names == ["run_20260101_000000", "run_20260101_000000_1", "run_20260101_000000_2"]


@pytest.mark.long
def test_each_job_of_a_sweep_is_a_separate_run(project):
    completed = project.ran("seed=0,1", "run_name=foo", "-m", "loop.steps=2")
    sweep = next((project.directory / "multirun").iterdir())
    runs = project.directory / ".trieye_data" / "tested" / "runs"
    configs = [f"foo_{number} {seed} {runs / f'foo_{number}'}" for number, seed in enumerate((0, 1))]
    assert _values_printed(completed.out, "config") == configs
    assert sorted(path.name for path in sweep.iterdir() if path.is_dir()) == ["0", "1"]
    launches = _values_printed(completed.out, "launch")
    assert f"sweep_dir=PosixPath('{sweep}'), job_num=1" in launches[1]
    assert "overrides=('seed=1', 'run_name=foo', 'loop.steps=2'), is_multirun=True" in launches[1]


@pytest.mark.long
def test_jobs_without_a_name_are_named_after_their_sweep(project):
    completed = project.ran("-m", "seed=0", "hydra.job.chdir=true")
    sweep = next((project.directory / "multirun").iterdir()).name
    runs = project.directory / ".trieye_data" / "tested" / "runs"
    assert _values_printed(completed.out, "config") == [f"{sweep}_0 0 {runs}/{sweep}_0"]
    grown = project.ran("-m", f"hydra.sweep.dir=multirun/{sweep}", "seed=0,1")
    assert _values_printed(grown.out, "config")[-1] == f"{sweep}_1 1 {runs}/{sweep}_1"


def test_each_sweep_directory_has_its_own_run_names(tmp_path):
    directories = ["a_b", "a b", "学習率", "割引率", "x/学習率", "x/割引率", "_a_b", "a_b.", "multirun/20261128_093000"]
    names = [name_of_sweep(tmp_path / directory, tmp_path) for directory in directories]
    assert len(set(names)) == len(names)
    assert (names[0], names[-1]) == ("a_b", "20261128_093000")
    for name in names:
        check_name("run_name", f"{name}_0")


def test_sweeps_whose_directories_have_the_same_name_have_different_run_names(tmp_path):
    directories = [tmp_path / path for path in ("s/x_y", "s/x/y", "s_x/y", "s_x_y")]
    names = []
    for directory in directories:
        directory.mkdir(parents=True)
        names.append(runs_of_sweep(directory, tmp_path))
        (directory / "sweep.json").write_text(json.dumps({"runs": names[-1]}))
    assert names == ["s_x_y", "s_x_y-2", "s_x_y-3", "s_x_y-4"]
    assert [runs_of_sweep(directory, tmp_path) for directory in directories] == names


def test_a_second_directory_for_a_run_is_rejected(project, mistaken):
    message = mistaken("hydra.run.dir=here", "run_name=x")
    assert message.startswith("hydra.run.dir=here: ")
    assert str(project.directory / ".trieye_data" / "tested" / "runs" / "x") in message
    assert "persistence.root_data_dir" in message


def test_the_hydra_config_shows_the_run_directory(start, project, capsys):
    start("--cfg", "hydra", "--package", "hydra.run", "run_name=x", "persistence.root_data_dir=data")
    assert f"dir: {project.directory / 'data' / 'tested' / 'runs' / 'x'}" in capsys.readouterr().out
    assert project.created_files() == []


def test_the_names_of_a_run_are_resolved_once(start, project):
    project.write("experiment/now", "# @package _global_\nrun_name: r_${now:%S%f}\n")
    (config,) = start("experiment=now", "app_name=a_${now:%f}", "persistence.root_data_dir=d_${now:%f}")
    run = config.persistence.get_run_base_dir()
    assert (run / ".hydra").is_dir()
    assert project.created_files() == [run.parents[2].name]
    assert [len(list(parent.iterdir())) for parent in list(run.parents)[:3]] == [1, 1, 1]


@pytest.fixture
def failed(project, monkeypatch, capsys):
    """Return a function that runs a task that raises an error, and returns the exit code and what is on stderr."""

    def run_failing(error: BaseException, *arguments: str) -> tuple[int, str]:
        @trieye.main(config_path=str(project.conf))
        def train(config: trieye.TrieyeConfig) -> None:
            if config.seed != 7:
                raise error
            print("seed 7 is complete", file=sys.stderr)  # noqa: T201

        monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
        with pytest.raises(SystemExit) as exited:
            train()
        return exited.value.code, capsys.readouterr().err

    return run_failing


def test_an_expected_exit_prints_one_message(failed):
    stopped = trieye.RunInterrupted("stopped at step 7, saved", 143)
    stopped.add_note("3 points were not sent")
    assert failed(stopped) == (143, "stopped at step 7, saved\n3 points were not sent\n")
    assert failed(KeyboardInterrupt()) == (130, "interrupted\n")


def test_a_bug_in_the_task_prints_hydras_traceback(failed):
    code, printed = failed(RuntimeError("a bug of the user"))
    assert code == 1
    assert "Traceback" in printed
    assert "RuntimeError: a bug of the user" in printed


def test_an_error_in_a_job_of_a_sweep_reaches_the_launcher(failed):
    code, printed = failed(trieye.RunLockedError("locked by process 7"), "-m")
    assert code == 3
    assert "locked by process 7" in printed
    assert "Traceback" in printed or "Error executing job" in printed


def test_a_rejected_job_does_not_stop_a_sweep_but_sets_its_exit_code(failed):
    code, printed = failed(trieye.ConfigurationError("no such thing"), "-m", "seed=1,7")
    assert (code, printed.count("seed 7 is complete")) == (2, 1)


def test_a_concurrent_start_of_a_run_prints_one_message_and_exits_with_3(project):
    run = project.directory / ".trieye_data" / "tested" / "runs" / "first"
    with RunLock(run / "run.lock"):
        completed = project.run("run_name=first")
    assert (completed.code, completed.out) == (3, "")
    assert completed.err.startswith(f"error: run 'first' is being written by process {os.getpid()} on ")
    assert not (run / ".hydra").exists()


@pytest.mark.long
def test_a_run_name_that_looks_like_a_number_stays_a_string(project):
    completed = project.ran("run_name=1e3", "tags={a:b}", "tags.note=x", "print_config=true")
    assert _values_printed(completed.out, "config")[0].startswith("1e3 0 ")
    assert "run_name: 1e3\n" in completed.out
    records = project.directory / ".trieye_data" / "tested" / "runs" / "1e3" / ".hydra" / "config.yaml"
    assert yaml.safe_load(records.read_text())["tags"] == {"a": "b", "note": "x"}  # open dict
    completed = project.ran("-m", "run_name=1e3,007")
    assert [printed.split()[0] for printed in _values_printed(completed.out, "config")] == ["1e3_0", "007_1"]


def test_any_root_directory_and_names_in_any_script_are_valid(start, project, monkeypatch):
    monkeypatch.setenv("HOME", str(project.directory / "home"))
    root = '"~/a \'q\' \\"p\\""'
    (config,) = start("run_name=été_東京", f"persistence.root_data_dir={root}", "hydra.job.chdir=true")
    run = project.directory / "home" / "a 'q' \"p\"" / "tested" / "runs" / "été_東京"
    assert (config.run_name, config.persistence.get_run_base_dir()) == ("été_東京", run)
    assert (run / ".hydra").is_dir()


def test_an_invalid_command_line_exits_with_2_before_anything_is_created_or_imported(project):
    program = project.directory / "train.py"
    program.write_text(
        "import atexit, sys\n"
        "atexit.register(lambda: print(sorted({'ray', 'torch', 'mlflow', 'rich'} & set(sys.modules))))\n"
        f"{program.read_text()}"
    )
    completed = project.run("-m", "seed=0,1,-1")
    assert (completed.code, completed.out) == (2, "[]\n")
    assert completed.err.startswith("error: ")
    assert "Traceback" not in completed.err
    assert project.created_files() == []


def test_an_invalid_config_is_printed_with_a_note_that_it_is_invalid(start, capsys):
    start("loop.steps=-3", "seed=x", "--cfg", "job", "--package", "loop")
    printed = capsys.readouterr()
    assert yaml.safe_load(printed.out)["steps"] == -3
    assert printed.err.startswith("note: this config is invalid, and a run with it would fail\n      ")
    assert "loop.steps=-3: expected an integer >= 1" in printed.err
    assert "seed=x: expected an integer >= 0" in printed.err
    start("loop.steps=3", "--cfg", "job")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["-m", "--cfg", "job"], "--multirun and --cfg cannot be combined; choose one"),
        (["--resolve"], "--resolve requires --cfg; type --cfg job --resolve"),
        (["--cfg", "job", "seed=1,2"], "seed=1,2: more than one value; add -m to run a job for each, "),
        (["-m", "seed=1,2", "hydra/launcher=basic", f"run_name={'x' * 198}"], "run_name 'xxx"),
    ],
)
def test_conflicting_flags_and_values_are_rejected(mistaken, flags, message):
    assert mistaken(*flags).startswith(message)


@pytest.mark.long
def test_hydra_mode_multirun_starts_a_sweep_in_any_directory(project):
    completed = project.ran("hydra.mode=MULTIRUN", "hydra.sweep.dir='my sweep!'", "seed=5,6")
    name = name_of_sweep(project.directory / "my sweep!", project.directory)
    printed = [line.split()[:2] for line in _values_printed(completed.out, "config")]
    assert printed == [[f"{name}_0", "5"], [f"{name}_1", "6"]]


@pytest.mark.long
def test_config_path_on_the_command_line_works_in_a_console_script_too(project):
    (project.directory / "other").mkdir()
    (project.directory / "other" / "train.yaml").write_text("defaults: [schema, _self_]\nseed: 9\n")
    script = project.directory / "bin" / "my-train"
    script.parent.mkdir()
    script.write_text("import sys; sys.path.insert(0, '.'); from train import train; sys.exit(train())")
    completed = project.ran("-cp", "other", "run_name=x", program="bin/my-train")
    assert _values_printed(completed.out, "config")[0].startswith("x 9 ")


@pytest.mark.long
def test_a_run_whose_program_still_imports_is_starting_and_cannot_be_deleted(project, monkeypatch, capsys):
    outcomes = []

    @trieye.main(config_path=str(project.conf))
    def train(config: trieye.TrieyeConfig) -> None:
        run_dir = config.persistence.get_run_base_dir()
        outcomes.append(main(["runs", "--root", str(run_dir.parents[2])]))
        outcomes.append(main(["rm", str(run_dir), "--root", str(run_dir.parents[2]), "--yes"]))
        outcomes.append((run_dir / "logs").is_dir())
        with trieye.Run(config):
            pass
        outcomes.append(main(["rm", str(run_dir), "--root", str(run_dir.parents[2]), "--yes"]))

    monkeypatch.setattr(sys, "argv", ["train.py", "run_name=new", "runtime=local", "sinks=[]"])
    train()
    printed = capsys.readouterr()
    assert outcomes == [0, 3, True, 0]
    assert "skipped: new in" in printed.err
    assert "it is starting" in printed.err
    assert "run 'new' is still running; nothing was deleted" in printed.err
