"""Features of `trieye-core`: programs that cannot import the packages of the full distribution."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from trieye.cli import main
from trieye.config import packages
from trieye.exceptions import ConfigurationError, MissingPackageError, TrieyeError

try:
    from tests import warm
except ImportError:  # `.ci/matrix.py` runs this file alone, with `trieye-core`
    warm = None

HIDES = f"import sys; sys.modules.update(dict.fromkeys({sorted(packages._FULL)}))\n"  # import and find_spec fail
CLI = """
import json
from trieye.cli import main
for arguments in json.loads(sys.argv[1]):
    print("exit code", main(arguments), flush=True)
    print(file=sys.stderr, flush=True)
"""
RUN = """
import trieye
config = trieye.TrieyeConfig(
    app_name="app", run_name="run", runtime={"kind": "local"}, sinks={"mlflow": {"enabled": False}}
)
with trieye.Run(config) as run:
    state = {"loss": 1.0}
    run.restore(state=state)
    for step in run.steps(20):
        state["loss"] *= 0.5
        run.log(state)
    run.save(state=state)
"""
MISSING = """
import traceback
import trieye
for kind, uses_mlflow in (("ray", False), ("local", True)):
    config = trieye.TrieyeConfig(run_name="run", runtime={"kind": kind}, sinks={"mlflow": {"enabled": uses_mlflow}})
    try:
        with trieye.Run(config):
            print("started")
    except trieye.ConfigurationError as error:
        print(traceback.format_exception_only(error)[-1].strip())
"""
WRITER = """
from trieye.integrations.tensorboard import SummaryWriter
writer = SummaryWriter("runs/first")
for step in range(10):
    writer.add_scalar("loss", 1 / (step + 1), step)
writer.close()
"""
HYDRA = """
import hydra
@hydra.main(version_base=None)
def fit(config):
    print("\\x1b[31mrate\\x1b[0m", config.lr)
    if config.lr > 0.4:
        raise ValueError("diverged\\nat once")
    return (config.lr - 0.1) ** 2
fit()
"""


@pytest.fixture(autouse=True)
def _work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def python(code, *arguments, is_warm=True):
    """Run a program; a warm one forks from a process that imported its modules before packages were hidden."""
    Path("program.py").write_text(HIDES + code)
    popen = warm.PopenLight if warm and is_warm else subprocess.Popen
    command, environment = [sys.executable, "program.py", *arguments], {**os.environ, "COLUMNS": "100"}
    pipe = subprocess.PIPE
    with popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, env=environment) as process:
        output, errors = process.communicate(timeout=200)
    return process.returncode, output, errors


@pytest.mark.long
def test_a_run_resumes_and_its_results_are_shown():
    assert python(RUN, is_warm=False)[0] == 0
    loss = [".trieye_data/app", "--metric", "loss", "--mode", "min"]
    commands = [["results", "table", *loss], ["results", "curve", *loss], ["verify", "run"]]
    code, output, errors = python(RUN + CLI, json.dumps(commands))
    assert code == 0, errors
    table, curve, verified, _ = output.split("exit code 0\n")
    assert "run" in table
    assert "run" in curve
    assert verified


@pytest.mark.long
def test_a_summary_writer_reports_that_mlflow_is_not_installed():
    code, _, errors = python(WRITER)
    assert code == 0, errors
    expected = "trieye: run 'first' is not logged to MLflow, which is not installed: pip install trieye\n"
    assert expected in errors
    assert list(Path().rglob("events.out.tfevents.*"))


def test_a_setting_that_needs_a_missing_package_is_an_error():
    code, output, errors = python(MISSING)
    assert code == 0, errors
    messages = output.splitlines()
    for message, parts in zip(
        messages,
        (
            ("runtime.kind=ray needs Ray", "set runtime.kind=local"),
            ("sinks.mlflow.enabled=true needs MLflow", "set sinks.mlflow.enabled=false"),
        ),
        strict=True,
    ):
        for part in ("MissingPackageError: ", *parts, "not installed: pip install trieye, or"):
            assert part in message
    assert not Path(".trieye_data").exists()


def test_a_command_that_needs_a_missing_package_fails_with_one_line():
    commands = [
        ["new", "my_agent", "--no-input"],
        ["results", "curve", "-o", "x.png", ".trieye_data/app", "--metric", "loss"],
    ]
    code, output, errors = python(RUN + CLI, json.dumps(commands))
    assert (code, output) == (0, "exit code 2\n" * 2)
    errors = errors[errors.index("error: ") :].splitlines()
    assert errors[0].startswith("error: trieye new needs cookiecutter, which is not installed: pip install trieye")
    assert errors[2].startswith("error: trieye results needs matplotlib, which is not installed: pip")
    assert [errors[1], *errors[3:]] == ["", ""]


@pytest.mark.long
def test_a_plain_hydra_program_sweeps_without_ray():
    sweep_options = ("-m", "hydra/sweeper=trieye", "hydra/launcher=trieye", "+lr=0.1,0.2")
    code, output, errors = python(HYDRA, *sweep_options, "hydra.launcher.backend=ray")
    assert code == 2
    assert errors.splitlines()[-1] == (
        "error: hydra.launcher.backend=ray needs Ray, which is not installed: "
        "pip install trieye, or set hydra.launcher.backend=local"
    )
    assert not list(Path().rglob("sweep.json")), "it would be the newest sweep"
    code, output, errors = python(HYDRA, *sweep_options, is_warm=False)
    assert code == 0, errors
    assert "best of 2 jobs (max)" in output
    assert "sweep: 2 jobs in multirun/" in errors
    assert ", backend local on " in errors
    _, output, _ = python(CLI, '[["sweep", "status"]]')
    assert "2 completed" in output
    assert output.endswith("exit code 0\n")


def test_a_plain_hydra_sweep_with_a_failed_job_ends_with_a_table_and_one_line(capfd):
    sweep_options = ("-m", "hydra/sweeper=trieye", "hydra/launcher=trieye", "hydra.sweep.dir=sweep")
    fail_fast = ("hydra.launcher.num_jobs=1", "hydra.launcher.fail_fast=true")
    code, output, errors = python(HYDRA, *sweep_options, "+lr=0.5,0.1,0.2", *fail_fast)
    assert code == 1
    assert "1 job did not complete" in output
    assert "ValueError: diverged at once" in output
    assert re.search(r"^trieye: \[\d/3\] job 0 lr=0.5: FAILED: ValueError: diverged at once \(", errors, re.MULTILINE)
    error = errors.splitlines()[-1]
    assert error.startswith(
        "error: 1 of 1 job failed; 2 did not start; job 0 raised ValueError: diverged at once. Output: "
    )
    assert error.endswith(f"trieye sweep relaunch {Path('sweep').resolve()} hydra.launcher.fail_fast=false")
    assert "Traceback" not in errors
    log = Path("sweep/0/output.log").read_text()
    assert log.startswith("rate 0.5\n")
    assert "Traceback" in log
    assert main(["sweep", "status", "sweep"]) == 1
    assert "trieye sweep relaunch sweep hydra.launcher.fail_fast=false" in capfd.readouterr().out
    code, _, errors = python(HYDRA, *sweep_options, "+lr=0.1,0.5", "hydra.launcher.backend=loca")
    assert (code, errors.count("\n")) == (2, 1)
    assert "did you mean 'local'?" in errors


def test_a_name_that_needs_a_missing_package_says_how_to_install_it():
    code, _, errors = python("from trieye import Policy")
    assert code == 1
    assert "MissingPackageError: trieye.Policy needs " in errors
    assert "which is not installed: pip install trieye" in errors.splitlines()[-1]


def test_a_missing_module_of_the_user_is_not_reported_as_a_missing_package():
    with pytest.raises(ModuleNotFoundError, match="no_such_module") as error, packages.explaining("this"):
        import no_such_module  # noqa: F401
    assert not isinstance(error.value, TrieyeError)


def test_missing_package_error_is_a_configuration_error_and_an_import_error():
    with pytest.raises(MissingPackageError, match="xyz needs no_such_module, which is not installed: pip install no_"):
        packages.require("no_such_module", "xyz")
    assert issubclass(MissingPackageError, ConfigurationError)
    assert issubclass(MissingPackageError, ImportError)
