"""Commands and what they print; runs that were killed, and what their sinks show."""

import shutil
import signal
import subprocess
import sys

import pytest

import trieye
from tests.moved import moved
from trieye.cli import main

STEPS = 300
KILLED = """
import os, signal, sys, time
import trieye
from trieye.runs import verify

saves = "saves" in sys.argv
config = trieye.TrieyeConfig(
    app_name="agents",
    run_name="first",
    runtime={"kind": "local"},
    persistence={"root_data_dir": sys.argv[1]},
    sinks={
        "tensorboard": {"enabled": True, "flush_interval_s": 0.1},
        "mlflow": {"enabled": "mlflow" in sys.argv},
        "console": {"enabled": False},
    },
    stats={
        "processing_interval_seconds": 0.1,
        "metrics": [{"name": "reward/mean", "raw_event_name": "reward", "log_frequency_steps": 70}],
    },
)
with trieye.Run(config) as run:
    for step in range(300):
        run.step = step
        if step == 200:
            deadline = time.monotonic() + 30
            run.flush()
            while not any(s.name == "tensorboard" and s.index > 200 for s in verify(run.dir).sinks):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            if saves:
                run.save(weights=[1.0, 2.0])
        run.log({"loss": 1.0 / (step + 1), "reward": float(step)}, step=step)
    run.step = 300
    run.flush()
    while saves and not os.path.exists(f"{run.dir}/checkpoints/checkpoint_step_200/MANIFEST.json"):
        pass
    os.kill(os.getpid(), signal.SIGKILL)
"""


class Command:
    """Commands of trieye, in this process.

    Args:
        capfd: The fixture, which captures their output.
        words: First words of each command.
        options: Last words of each command.
    """

    def __init__(self, capfd, *words, options=()):
        self._capfd, self._words, self._options = capfd, words, options

    def __call__(self, *arguments):
        """Run a command, and return exit code, stdout and stderr."""
        self._capfd.readouterr()
        try:
            code = main([*self._words, *map(str, (*arguments, *self._options))])
        except SystemExit as exit_:  # of argparse
            code = exit_.code
        captured = self._capfd.readouterr()
        return code, captured.out, captured.err

    def output(self, *arguments, **options):
        """Run a command that succeeds, and return stdout."""
        code, out, err = self(*arguments, **options)
        assert code == 0, err
        return out

    def error(self, *arguments, code=2, **options):
        """Run a command that fails with an exit code, and return stderr."""
        exit_code, _, err = self(*arguments, **options)
        assert exit_code == code, err
        return err


@pytest.fixture
def command(capfd):
    """Return a function that runs a command of trieye, and returns exit code, stdout and stderr."""
    return Command(capfd)


@pytest.fixture(scope="session")
def _killed(tmp_path_factory):
    roots = {}

    def make(*options):
        if options not in roots:
            root = roots[options] = tmp_path_factory.mktemp("killed")
            done = subprocess.run([sys.executable, "-c", KILLED, str(root), *options], capture_output=True, text=True)
            assert done.returncode == -signal.SIGKILL, done.stderr
        return roots[options]

    return make


@pytest.fixture
def killed_run(_killed, tmp_path):
    """Return a function that gives the directory of a run that was killed, moved to another root.

    Options: `mlflow` enables that sink besides TensorBoard, `saves` saves a checkpoint at step 200 of 300.
    """

    def make(*options, directory="root"):
        root = tmp_path / directory
        shutil.copytree(_killed(*options), root)
        return moved(root / "agents" / "runs" / "first")

    return make


@pytest.fixture
def run(make_config):
    """A run that publishes its status every 10 ms."""
    config = make_config(sinks={"tensorboard": {"enabled": True}}, stats={"processing_interval_seconds": 0.01})
    with trieye.Run(config) as run:
        yield run


def losses(first=0, end=STEPS):
    return [(step, pytest.approx(1.0 / (step + 1))) for step in range(first, end)]  # event files have 32 bits
