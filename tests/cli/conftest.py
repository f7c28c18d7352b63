"""Commands and what they print; runs that were killed, and what their sinks show."""

import io
import json
import os
import re
import shutil
import signal

import pytest

import trieye
from tests.forked import in_a_child
from tests.moved import moved
from tests.waiting import wait_until
from trieye.cli import main
from trieye.runs import verify

STEPS = 300


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self):
        return True

    def text(self):
        """Return its text without colors."""
        return re.sub(r"\x1b\[[0-9;]*m", "", self.getvalue())


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


def config_in(root, name="first", *, sinks=None, **settings):
    """Return the config of a run of the app `agents` below a root, by default without sinks."""
    off = {sink: {"enabled": False} for sink in ("mlflow", "tensorboard", "console")}
    persistence = {"root_data_dir": str(root), **settings.pop("persistence", {})}
    defaults = {"app_name": "agents", "run_name": name, "runtime": {"kind": "local"}, "sinks": off | (sinks or {})}
    return trieye.TrieyeConfig(**{**defaults, **settings}, persistence=persistence)


def train_until_killed(config, *, saves):
    """Log 300 steps and kill this process, after TensorBoard has received the first 200."""
    signal.alarm(120)  # longer than other forked children, since MLflow starts slowly
    with trieye.Run(config) as run:
        for step in range(STEPS):
            run.step = step
            if step == 200:
                run.flush()
                wait_until(lambda: any(sink.index > 200 for sink in verify(run.dir).sinks))
                if saves:
                    run.save(weights=[1.0, 2.0])
            run.log({"loss": 1.0 / (step + 1), "reward": float(step)}, step=step)
        run.step = STEPS
        run.flush()
        manifest = run.dir / "checkpoints/checkpoint_step_200/MANIFEST.json"
        wait_until(lambda: manifest.exists() or not saves)
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(scope="session")
def _killed(tmp_path_factory):
    roots = {}

    def make(*options):
        if options not in roots:
            roots[options] = tmp_path_factory.mktemp("killed")
            metric = {"name": "reward/mean", "raw_event_name": "reward", "log_frequency_steps": 70}
            config = config_in(
                roots[options],
                sinks={
                    "tensorboard": {"enabled": True, "flush_interval_s": 0.1},
                    "mlflow": {"enabled": "mlflow" in options},
                },
                stats={"processing_interval_seconds": 0.1, "metrics": [metric]},
            )
            if "mlflow" in options:
                from trieye.sinks.mlflow import sink  # noqa: F401 - imported before the fork
            code = in_a_child(lambda: train_until_killed(config, saves="saves" in options))
            assert code == -signal.SIGKILL
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


def change_config(run_dir, part, **changes):
    """Change fields in the stored config of a run."""
    path = run_dir / "configs.json"
    record = json.loads(path.read_text())
    record[part].update(changes)
    path.write_text(json.dumps(record))
