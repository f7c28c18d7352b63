"""The main module of a program in the local processes of its jobs."""

import subprocess
import sys

import pytest

from tests import warm
from trieye.sweeps.jobs import JobRecord

WARM = warm.RUN
PROGRAM = """
import inspect
import multiprocessing
import pickle

import hydra
from hydra.utils import instantiate


class Net:
    def __init__(self, width):
        self.width = width


def square(number):
    return number * number


@hydra.main(version_base=None, config_path=None)
def fit(config):
    assert type(pickle.loads(pickle.dumps(Net(3)))) is Net
    with multiprocessing.get_context(config.method).Pool(1) as pool:
        assert pool.map(square, [2, 3]) == [4, 9]
    assert type(instantiate({"_target_": "__main__.Net", "width": 5})) is Net
    assert "self.width = width" in inspect.getsource(Net)
    if config.method == "spawn":
        raise ValueError("after all checks")
    return Net(7.0).width


if __name__ == "__main__":
    fit()
"""
MAIN_GUARD = 'if __name__ == "__main__":'
OURS = ["-m", "hydra/sweeper=trieye", "hydra/launcher=trieye", "hydra.sweep.dir=sweep", "hydra.launcher.num_jobs=1"]


BY_VALUE = """
import hydra

SCALE = 1


class Net:
    width = 3.5


def logged(task):
    return lambda config: task(config)


@hydra.main(version_base=None, config_path=None)
@logged
def fit(config):
    return SCALE * Net.width * config.x


GUARD
    fit()
"""


def swept(directory, program, start, *words):
    """Run a sweep of `project.fit` in a directory, and return its lines and the record of job 0."""
    (directory / "project").mkdir()
    (directory / "project/fit.py").write_text(program)
    command = [sys.executable, *start, *OURS, *words]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=120)
    return done.stderr, JobRecord.read(directory / "sweep/0")


@pytest.mark.long
@pytest.mark.parametrize(
    ("isolate", "start"),
    [("process", ["project/fit.py"]), ("worker", ["-m", "project.fit"])],
)
def test_jobs_import_a_guarded_main_module_like_multiprocessing(tmp_path, isolate, start):
    lines, job = swept(tmp_path, PROGRAM, start, f"hydra.launcher.isolate={isolate}", "+method=fork,spawn")
    assert "1 done, 1 failed" in lines, job.error
    assert job.objective == 7.0
    traceback = (tmp_path / "sweep/1/output.log").read_text()
    number = PROGRAM.splitlines().index('        raise ValueError("after all checks")') + 1
    assert f'{tmp_path}/project/fit.py", line {number}, in fit\n    raise ValueError("after all checks")' in traceback


@pytest.mark.long
@pytest.mark.usefixtures("warm_programs")
@pytest.mark.parametrize("guard", ["if True:", MAIN_GUARD, f"{MAIN_GUARD}\n    SCALE = 2"])
def test_an_unguarded_or_changed_main_module_reaches_jobs_by_value(tmp_path, guard):
    lines, job = swept(tmp_path, BY_VALUE.replace("GUARD", guard), ["project/fit.py"], "+x=2")
    assert job.objective == (14.0 if "SCALE" in guard else 7.0), lines


@pytest.mark.long
@pytest.mark.usefixtures("warm_programs")
def test_an_unlocatable_class_of_an_unguarded_main_module_is_reported_with_a_hint(tmp_path):
    program = BY_VALUE.replace("SCALE * Net.width", "instantiate({'_target_': '__main__.Net'}).width").replace(
        "@logged", ""
    )
    program = "from hydra.utils import instantiate" + program.replace("GUARD", "if True:")
    lines, job = swept(tmp_path, program, ["project/fit.py"], "+x=2")
    assert job.error.startswith("InstantiationException: Error locating target '__main__.Net'")
    hint = "; backend=local finds classes of a program that calls main below `if __name__ == '__main__':`. Output: "
    assert hint in lines
