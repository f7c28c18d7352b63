"""Ctrl-C in a sweep, as sent by a terminal: once to finish running jobs, twice to save and stop them."""

import os
import re
import signal
import subprocess
import sys
import time

import psutil
import pytest

from tests import warm
from tests.waiting import wait_until
from trieye.cli import main
from trieye.process.signals import CTRL_C_ONCE_WITHIN_S
from trieye.sweeps.jobs import JobRecord

pytestmark = pytest.mark.usefixtures("warm_programs")
WARM = warm.LIGHT  # a fork server imports all modules of its program

PROGRAM = """
import time
from pathlib import Path
import trieye


class Walk(trieye.Experiment):
    '''Waits at two steps until a file allows it to continue.'''

    def setup(self, config):
        self.done, self.name = 0, config.seed

    def step(self):
        self.done += 1
        if self.done in (MIDDLE, LATE):
            Path(f"at{self.done}_{self.name}").touch()
            while not Path(f"go{self.done}_{self.name}").exists():
                time.sleep(0.01)
        return {"one": 1.0}

    def evaluate(self):
        return {"eval/return": float(self.done)}

    def save_checkpoint(self, checkpoint_dir):
        return {"done": self.done}

    def load_checkpoint(self, checkpoint):
        self.done = checkpoint["done"]
        print(f"resumes after {self.done} steps")


@trieye.main(config_path="pkg://trieye.conf", config_name="trieye")
def train(config: trieye.TrieyeConfig) -> float:
    return trieye.run_experiment(Walk, config).objective


if __name__ == "__main__":
    train()
"""
STEPS, MIDDLE, LATE = 60, 30, 45
OPTIONS = [
    "-m", "hydra/launcher=trieye", "hydra.launcher.num_jobs=1", "hydra.sweep.dir=sweep", "runtime=local",
    "sinks=[]", "run_name=walk", f"loop.steps={STEPS}", "loop.evaluate_every_steps=1000",
]  # fmt: skip


class Driver:
    """A program that runs a sweep in a separate session, like a program started from a shell."""

    def __init__(self, directory, *options):
        self.directory = directory
        (directory / "walk.py").write_text(PROGRAM.replace("MIDDLE", str(MIDDLE)).replace("LATE", str(LATE)))
        self._log = directory / "log"
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "walk.py", *OPTIONS, *options],
                cwd=directory, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def record(self, index):
        return JobRecord.read(self.directory / "sweep" / str(index))

    def await_step(self, step, index):
        wait_until((self.directory / f"at{step}_{index}").exists, within_s=120, pause_s=0.05)

    def release(self, index, *steps):
        for step in steps or (MIDDLE, LATE):
            (self.directory / f"go{step}_{index}").touch()

    def job_output(self, index):
        return (self.directory / "sweep" / str(index) / "output.log").read_text()

    def ctrl_c(self):
        time.sleep(2 * CTRL_C_ONCE_WITHIN_S)  # or it counts as the previous one, forwarded by a launcher
        os.killpg(self.process.pid, signal.SIGINT)

    def wait(self):
        return self.process.wait(120)

    def output(self):
        return self._log.read_text()

    def left_behind(self):
        """Return the live processes of its session."""
        workers = []
        for process in psutil.process_iter():
            try:
                if os.getsid(process.pid) == self.process.pid and process.status() != psutil.STATUS_ZOMBIE:
                    workers.append(process)
            except (OSError, psutil.Error):
                continue
        return workers


@pytest.fixture
def start(tmp_path):
    drivers = []

    def start_one(*options):
        drivers.append(Driver(tmp_path, *options))
        return drivers[-1]

    yield start_one
    for driver in drivers:
        driver.process.kill()
        driver.process.wait()
        for process in driver.left_behind():
            process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["local", pytest.param("ray", marks=pytest.mark.long)])
def test_a_second_ctrl_c_saves_and_stops_jobs_that_resume_later(start, backend):
    is_continued, backend = backend == "ray", f"hydra.launcher.backend={backend}"
    driver = start("seed=0,1", backend)
    driver.release(0)
    driver.await_step(MIDDLE, 1)
    driver.ctrl_c()
    wait_until(lambda: "SIGINT: no further jobs start" in driver.output())
    assert "a second Ctrl-C" in driver.output()
    driver.ctrl_c()
    wait_until(lambda: "stopping after this step" in driver.job_output(1))
    driver.release(1, MIDDLE)
    assert driver.wait() == 130
    assert "interrupting 1 job; jobs still running after 30 s are killed" in driver.output()
    assert re.search(r"trieye sweep relaunch \S+/sweep\n", driver.output())
    first, second = driver.record(0), driver.record(1)
    assert (first.state, first.step, first.objective, second.state) == ("completed", STEPS, STEPS, "interrupted")
    assert "Traceback" not in driver.output()
    wait_until(lambda: not driver.left_behind())

    if not is_continued:
        return
    output_size = len(driver.output())
    driver = start("seed=0,1", backend)
    driver.await_step(LATE, 1)
    driver.ctrl_c()  # while the last job runs: it stops nothing
    wait_until(lambda: "SIGINT: no further jobs start" in driver.output()[output_size:])
    driver.release(1)
    assert driver.wait() == 0
    assert "relaunch" not in driver.output()[output_size:]
    assert (driver.record(0).attempt, driver.record(0).state) == (1, "completed")
    last = driver.record(1)
    assert (last.attempt, last.deaths, last.state, last.objective) == (2, 0, "completed", STEPS)
    assert re.findall(r"resumes after (\d+) steps", driver.job_output(1)) == [str(MIDDLE)]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("backend", ["local", "ray"])
def test_sigterm_after_ctrl_c_lets_jobs_save_and_stop(start, backend):
    driver = start("seed=0,1", f"hydra.launcher.backend={backend}")
    driver.await_step(MIDDLE, 0)
    driver.ctrl_c()
    wait_until(lambda: "SIGINT: no further jobs start" in driver.output())
    driver.process.terminate()
    wait_until(lambda: "stopping after this step" in driver.job_output(0))
    driver.release(0, MIDDLE)
    assert driver.wait() == 143
    assert (driver.record(0).state, driver.record(1)) == ("interrupted", None)
    wait_until(lambda: not driver.left_behind())


STUBBORN = """
import signal
import time
from pathlib import Path

import hydra


@hydra.main(version_base=None, config_path=None)
def fit(config):
    if config.is_stubborn:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    Path("began").touch()
    while not Path("end").exists():
        time.sleep(0.01)


if __name__ == "__main__":
    fit()
"""


@pytest.mark.slow
@pytest.mark.parametrize("is_stubborn", [True, False])
def test_signals_to_the_sweep_of_a_plain_program_report_their_effect(tmp_path, is_stubborn, capsys):
    (tmp_path / "fit.py").write_text(STUBBORN)
    words = ["-m", "hydra/sweeper=trieye", "hydra/launcher=trieye", f"+is_stubborn={is_stubborn}", "hydra.sweep.dir=s"]
    with (tmp_path / "log").open("wb") as log:
        driver = subprocess.Popen([sys.executable, "fit.py", *words], cwd=tmp_path, stdout=log, stderr=log)
    lines = (tmp_path / "log").read_text
    wait_until((tmp_path / "began").exists, within_s=60)
    if is_stubborn:
        for line in (
            "finish, and a second Ctrl-C",
            "interrupting 1 job; jobs still running after 30 s are killed",
            "are killed within 20 s",
        ):
            time.sleep(2 * CTRL_C_ONCE_WITHIN_S)
            driver.send_signal(signal.SIGINT)
            wait_until(lambda line=line: line in lines())
        interrupted = time.monotonic()
    else:
        driver.terminate()
    assert driver.wait(30) == (130 if is_stubborn else 143)
    assert not is_stubborn or time.monotonic() - interrupted < 3, "the sweep waited for the job's process"
    (tmp_path / "end").touch()
    assert ("second Ctrl-C" in lines()) == is_stubborn
    assert lines().count("interrupting 1 job") == 1
    wait_until(lambda: JobRecord.read(tmp_path / "s/0").state == ("completed" if is_stubborn else "interrupted"))
    assert main(["sweep", "status", str(tmp_path / "s")]) == (0 if is_stubborn else 1)
    assert ("restarts in the same directory" in capsys.readouterr().out) != is_stubborn
