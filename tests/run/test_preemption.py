"""Preemption and Ctrl-C: the step is finished, the state saved and delivered in time, and the run resumes."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import psutil
import pytest
from mlflow.tracking import MlflowClient

import trieye
from tests.terminals import on_a_terminal, read_until
from trieye.files.run_files import RunFiles
from trieye.files.run_record import RunRecord
from trieye.history.table import read_history
from trieye.hub.fold import EventProcessor
from trieye.process.lock import RunLock
from trieye.runs import diagnose

pytestmark = pytest.mark.usefixtures("warm_programs")

REQUEUE = 75


class Walk(trieye.Experiment):
    """A random walk; one of its methods sends this process a signal once."""

    send, at_step, number = "", 0, signal.SIGTERM

    def signal_in(self, method):
        if type(self).send == method and self.done >= type(self).at_step:
            type(self).send = ""
            signal.raise_signal(type(self).number)

    def setup(self, config):
        self.position, self.done = np.zeros(2), 0
        self.signal_in("setup")

    def step(self):
        self.position += np.random.rand(2)  # noqa: NPY002 - the generator that the loop saves
        self.signal_in("step")
        self.done += 1
        return {"position": self.position[0], "one": 1.0}

    def evaluate(self):
        self.signal_in("evaluate")
        return {"eval/return": float(self.done)}

    def save_checkpoint(self, checkpoint_dir):
        self.signal_in("save_checkpoint")
        return {"position": self.position, "done": self.done}

    def load_checkpoint(self, checkpoint):
        self.position, self.done = checkpoint["position"].copy(), checkpoint["done"]
        self.signal_in("load_checkpoint")


@pytest.fixture
def walk_config(make_config):
    def make(run_name="run", steps=20):
        return make_config(
            run_name=run_name,
            loop={"steps": steps, "evaluate_every_steps": 5},
            persistence={"checkpoint_save_freq_steps": 10},
            runtime={"kind": "local", "requeue_exit_code": REQUEUE},
            stats={"metrics": [{"name": "one", "aggregation": "count", "log_frequency_steps": 20}]},
        )

    return make


def run_dir_of(config):
    return config.persistence.get_run_base_dir()


def record_of(config):
    return RunRecord.read(run_dir_of(config) / "run.json")


def points_of(config, name):
    table = read_history(run_dir_of(config), metrics=[name])
    return list(zip(table.column("step").to_pylist(), table.column("value").to_pylist(), strict=True))


def test_a_run_interrupted_anywhere_resumes_to_the_same_points(walk_config):
    before = signal.getsignal(signal.SIGXCPU)
    trieye.run_experiment(Walk, walk_config("unbroken"))
    for method, at_step, number, saved in [
        ("setup", 0, signal.SIGTERM, -1),
        ("step", 6, signal.SIGUSR1, 7),
        ("step", 9, signal.SIGTERM, 10),
        ("evaluate", 5, signal.SIGXCPU, 5),
        ("save_checkpoint", 10, signal.SIGUSR1, 10),
    ]:
        config = walk_config(f"{method}-{at_step}")
        Walk.send, Walk.at_step, Walk.number = method, at_step, number
        with pytest.raises(trieye.RunInterrupted) as stopped:
            trieye.run_experiment(Walk, config)
        signal.signal(signal.SIGXCPU, before)
        assert stopped.value.exit_code == REQUEUE
        assert record_of(config).status == "KILLED"
        assert saved == -1 or f"state at step {saved} is saved" in str(stopped.value)
        assert points_of(config, "one") == []  # the window is still open; the next attempt closes it
        assert trieye.run_experiment(Walk, config).step == 20
        for metric in ("position", "eval/return", "one"):
            assert points_of(config, metric) == points_of(walk_config("unbroken"), metric)
        assert points_of(config, "one") == [(20, 20.0)]


def test_a_run_interrupted_during_a_restore_resumes_and_finishes(walk_config):
    trieye.run_experiment(Walk, walk_config(steps=10))
    Walk.send, Walk.at_step, Walk.number = "load_checkpoint", 10, signal.SIGTERM
    with pytest.raises(trieye.RunInterrupted):
        trieye.run_experiment(Walk, walk_config())
    assert trieye.run_experiment(Walk, walk_config()).step == 20
    assert record_of(walk_config()).status == "FINISHED"


def test_a_signal_while_closing_a_finished_run_raises_after_the_close(make_config):
    config = make_config(runtime={"kind": "local", "requeue_exit_code": REQUEUE})
    with pytest.raises(trieye.RunInterrupted, match="was already finished") as stopped, trieye.Run(config) as run:
        close = run._attempt.hub.close

        def close_slowly(status, **options):
            signal.raise_signal(signal.SIGUSR1)
            close(status, **options)

        run._attempt.hub.close = close_slowly
        run.log("a", 1.0, step=1)
    assert stopped.value.exit_code == REQUEUE
    assert record_of(config).status == "FINISHED"
    assert points_of(config, "a") == [(1, 1.0)]


def test_a_signal_while_the_hub_moves_events_into_windows_loses_none(make_config, monkeypatch):
    config, apply_flush = make_config(stats={"metrics": [{"name": "a"}, {"name": "b"}]}), EventProcessor.apply_flush

    def interrupted_flush(*arguments):
        monkeypatch.undo()
        signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM)
        apply_flush(*arguments)

    with pytest.raises(trieye.RunInterrupted), trieye.Run(config) as run:
        run.log("a", 1.0, step=1)
        run.log("b", 2.0, step=1)
        run._attempt.flusher.flush()
        monkeypatch.setattr(EventProcessor, "apply_flush", interrupted_flush)
        run.flush()
    assert record_of(config).status == "KILLED"
    assert points_of(config, "a") + points_of(config, "b") == [(1, 1.0), (1, 2.0)]


def test_a_loop_that_ignores_save_due_ends_one_step_after_a_signal(make_config):
    steps = []
    with pytest.raises(trieye.RunInterrupted, match="nothing was saved"), trieye.Run(make_config()) as run:
        for step in run.steps(None):
            steps.append(step)
            if step == 3:
                signal.raise_signal(signal.SIGUSR1)
    assert steps == [1, 2, 3, 4]


def test_a_start_waits_for_the_hub_of_a_killed_attempt_with_a_message(make_config, capfd):
    config = make_config()
    with trieye.Run(config):
        pass
    hub = RunLock(RunFiles(config.persistence).hub_lock_path).acquire()
    timer = threading.Timer(0.5, hub.release)
    timer.start()
    with trieye.Run(config) as run:
        assert run.attempt == 2
    timer.join()
    assert "waiting up to 30 s for the hub of the last attempt to end" in capfd.readouterr().err


@pytest.mark.parametrize("code", [-1, 256])
def test_an_invalid_requeue_exit_code_is_rejected(make_config, code):
    with pytest.raises(ValueError, match="requeue_exit_code"):
        make_config(runtime={"kind": "local", "requeue_exit_code": code})


PROGRAM = """
import json, sys, time
import trieye
from tests.run.agent import Agent

config = trieye.TrieyeConfig.model_validate(json.loads(sys.argv[1]))
agent = Agent()
with trieye.Run(config) as run:
    if config.runtime.kind == "ray":
        import ray

        @ray.remote
        class Explorer:
            def __init__(self, client):
                self.client = client
            def play(self, step):
                self.client.log("played", 1.0, step=step)
                self.client.flush()

        explorer = Explorer.remote(run.client()) if sys.argv[3:] else None
    run.restore(agent=agent)
    print("at", run.step, flush=True)
    for step in run.steps(int(sys.argv[2]) or None):
        agent.weights += 1
        run.log("one", 1.0)
        time.sleep(0.01)
        if sys.argv[3:]:
            ray.get(explorer.play.remote(step))
        if step % 20 == 0:
            print("step", step, flush=True)
        if run.save_due:
            run.save(agent=agent)
    if sys.argv[2] != "0":  # waits for MLflow; a stopped program has too little time
        run.mlflow_run_id(60.0)
assert agent.weights[0] == run.step
print("imported", sorted({"ray", "torch"} & set(sys.modules)))
"""


def settings(root, kind, **more):
    return {
        "app_name": "app",
        "run_name": "run",
        "runtime": {"kind": kind, "requeue_exit_code": REQUEUE},
        "persistence": {"root_data_dir": str(root), "checkpoint_save_freq_steps": 1_000_000},
        "stats": {
            "metrics": [
                {"name": name, "aggregation": "count", "log_frequency_steps": 1_000_000} for name in ("one", "played")
            ]
        },
        **more,
    }


@pytest.fixture
def start():
    """Return a function that starts the program in a new session, as in a step of a batch job."""
    started = []

    def start_program(config_values, steps=0, *words):
        command = [sys.executable, "-c", PROGRAM, json.dumps(config_values), str(steps), *words]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(command, start_new_session=True, **streams))
        return started[-1]

    yield start_program
    for process in started:
        process.kill()
        process.communicate()


def wait_for_step(process):
    lines = [process.stdout.readline(), process.stdout.readline()]
    assert lines[1].startswith("step"), process.stderr.read()


def resume_one_step(start, config_values, stop_message):
    """Restart the program for one more step, check that it resumes at the announced step, and return that step."""
    saved = int(re.search(r"state at step (\d+) is saved", stop_message)[1])
    process = start({**config_values, "runtime": {"kind": "local"}}, saved + 1)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert output.split()[:2] == ["at", str(saved)]
    return saved


@pytest.mark.parametrize("kind", ["local", pytest.param("ray", marks=pytest.mark.long)])
@pytest.mark.slow
def test_ctrl_c_saves_the_last_step_and_the_next_start_resumes_there(tmp_path, start, kind):
    config_values = settings(tmp_path, kind, sinks={})
    process = start(config_values)
    wait_for_step(process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=90)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert record_of(trieye.TrieyeConfig.model_validate(config_values)).status == "KILLED"
    resume_one_step(start, config_values, errors)


@pytest.mark.long
@pytest.mark.usefixtures("cold_programs")
def test_local_runs_import_neither_ray_nor_torch(tmp_path, start):
    process = start(settings(tmp_path, "local", sinks={}), 25)
    output, errors = process.communicate(timeout=60)
    assert output.splitlines()[-1] == "imported []", errors


@pytest.mark.long
@pytest.mark.slow
def test_a_terminated_training_saves_delivers_and_exits_in_15_s_and_resumes(tmp_path, start):
    config_values = settings(tmp_path, "local")  # with the default sinks: MLflow, TensorBoard, the console
    config_values["stats"]["metrics"].append({"name": "seen", "raw_event_name": "one", "aggregation": "count"})
    process = start(config_values)
    wait_for_step(process)
    began = time.monotonic()
    process.terminate()
    _, errors = process.communicate(timeout=60)
    assert time.monotonic() - began < 15
    assert process.returncode == REQUEUE
    assert "Traceback" not in errors
    config = trieye.TrieyeConfig.model_validate(config_values)
    assert record_of(config).status == "KILLED"
    run_id = record_of(config).mlflow_run_id
    saved = resume_one_step(start, config_values, errors)
    if run_id is not None:  # MLflow was already open
        assert record_of(config).mlflow_run_id == run_id
    client = MlflowClient(config.persistence.MLFLOW_TRACKING_URI)
    points = client.get_metric_history(record_of(config).mlflow_run_id, "seen")
    assert sum(point.value for point in points) == saved + 1


ENDLESS = """
import contextlib, sys, time, trieye

config = trieye.TrieyeConfig(app_name="app", run_name="run", sinks={}, runtime={"kind": sys.argv[2]},
    persistence={"root_data_dir": sys.argv[1]}, stats={"metrics": [{"name": "a", "aggregation": "count"}]})
logged = 0
try:
    with trieye.Run(config) if sys.argv[3] == "with" else contextlib.nullcontext(trieye.Run(config).open()) as run:
        while True:
            run.log("a", 1.0, step=1)
            logged += 1
            if logged == 1000:
                print("going", flush=True)
finally:
    print(logged, flush=True)
"""


@pytest.mark.parametrize(("kind", "way"), [("local", "open"), pytest.param("ray", "with", marks=pytest.mark.long)])
@pytest.mark.slow
def test_sigterm_in_a_plain_loop_closes_the_run_without_losing_values(tmp_path, kind, way):
    run_dir = tmp_path / "app" / "runs" / "run"
    command = [sys.executable, "-c", ENDLESS, str(tmp_path), kind, way]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "going\n"
    process.terminate()
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 143
    record = RunRecord.read(run_dir / "run.json")
    assert record.status == "KILLED"
    logged = int(output)  # the signal may come between a value and its count
    assert record.summary["a"]["last"] in {logged, logged + 1}
    points = read_history(run_dir, metrics=["a"])
    assert points.column("value").to_pylist() == [record.summary["a"]["last"]]


HUNG_UP = """
import fcntl, signal, sys, termios, time
import trieye
from trieye import Experiment

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup

fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # the terminal signals this session when it is closed

class Talking(Experiment):
    def setup(self, config):
        self.done = 0
    def step(self):
        self.done += 1
        print("step", self.done, flush=True)
        time.sleep(0.05)  # a write at the moment of the close would fail
        return {"done": 1.0 * self.done}
    def save_checkpoint(self, directory):
        print("saving", flush=True)
        return {"done": self.done}
    def load_checkpoint(self, saved):
        self.done = saved["done"]

config = {"app_name": "app", "run_name": "run", "runtime": {"kind": "local"}, "sinks": {"mlflow": {"enabled": False}}}
config |= {"persistence": {"root_data_dir": sys.argv[1]}, "loop": {"steps": 10_000_000}}
trieye.run_experiment(Talking, trieye.TrieyeConfig.model_validate(config))
"""


@pytest.mark.long
def test_a_training_whose_terminal_is_closed_saves_and_records_the_reason(tmp_path):
    with on_a_terminal(HUNG_UP, str(tmp_path), start_new_session=True) as (terminal, process):
        read_until(terminal, "step 20", within_s=60)
        terminal.close()
        assert process.wait(60) == 128 + signal.SIGHUP
    (run_dir,) = tmp_path.glob("app/runs/run")
    output = (run_dir / "logs" / "output.log").read_text()
    assert "SIGHUP: stopping after this step and saving" in output
    assert "Traceback" not in output
    diagnosis = diagnose(run_dir)
    assert (diagnosis.run.status, "a closed terminal" in diagnosis.reason) == ("KILLED", True)
    assert diagnosis.checkpoint.step == diagnosis.run.step >= 20


LOADING = """
import sys, time, trieye
from torch.utils.data import DataLoader

config = {"app_name": "app", "run_name": "run", "runtime": {"kind": "local"}, "sinks": {}}
config |= {"persistence": {"root_data_dir": sys.argv[1]}}
batches = iter(DataLoader(range(1_000_000), num_workers=1, worker_init_fn=trieye.ignore_stop_signals))
with trieye.Run(trieye.TrieyeConfig.model_validate(config)) as run:
    for step in run.steps(None):
        next(batches)
        if step == 3:
            print("running", flush=True)
        time.sleep(0.01)
        if run.save_due:
            run.save(step=step)
"""


def test_workers_of_a_data_loader_survive_a_signal_to_the_whole_job_until_the_training_has_saved(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", LOADING, str(tmp_path)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout.readline() == "running\n"
        workers = psutil.Process(process.pid).children(recursive=True)
        signal_everything(process, signal.SIGTERM)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 143, errors
    assert re.search(r"stops at step (\d+): its state at step \1 is saved", errors), errors
    _, survivors = psutil.wait_procs(workers, timeout=10)
    assert (len(workers), survivors) == (1, [])


def test_an_error_that_prevents_the_save_after_a_signal_says_so(make_config):
    with pytest.raises(RuntimeError, match="exited") as failed, trieye.Run(make_config()) as run:
        for step in run.steps(None):
            run.save(step=step)
            signal.raise_signal(signal.SIGTERM)
            run.step += 1
            raise RuntimeError("DataLoader worker (pid(s) 1) exited unexpectedly")
    first, second = failed.value.__notes__
    assert "step 2: its state at step 1 is saved" in first
    assert "worker_init_fn=trieye.ignore_stop_signals" in second


def signal_everything(process, number):
    """Signal the process group of a program, as `timeout` does, and all its children, as Slurm and systemd do."""
    program = psutil.Process(process.pid)
    everything = [*program.children(recursive=True), program]
    os.killpg(process.pid, number)
    time.sleep(0.1)  # long enough for the loop to end
    for member in everything:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.send_signal(number)


@pytest.mark.parametrize(
    ("number", "words"), [(signal.SIGTERM, ()), (signal.SIGUSR1, ["with a worker"])], ids=["SIGTERM", "SIGUSR1"]
)
@pytest.mark.long
def test_a_signal_to_every_process_of_a_job_with_ray_loses_nothing(tmp_path, start, number, words):
    config_values = settings(tmp_path, "ray", sinks={})
    process = start(config_values, 0, *words)
    wait_for_step(process)
    family = psutil.Process(process.pid).children(recursive=True)
    signal_everything(process, number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == REQUEUE, errors
    assert "does not accept values" not in errors, "the hub did not survive"
    record = record_of(trieye.TrieyeConfig.model_validate(config_values))
    assert record.status == "KILLED"
    saved = resume_one_step(start, config_values, errors)
    config = trieye.TrieyeConfig.model_validate(config_values)
    assert points_of(config, "one") == [(saved + 1, saved + 1.0)]
    assert points_of(config, "played") == ([(saved, float(saved))] if words else [])
    _, survivors = psutil.wait_procs(family, timeout=10)
    assert survivors == []


SLOW_SAVE = """
import sys, time
import trieye
from trieye.checkpoints import directory as state_directory
from trieye.process import signals

signals.SAME_WITHIN_S = 0.3

def slow(*arguments, **more):
    print("saving", flush=True)
    time.sleep(60)

state_directory.write_manifest = slow
config = trieye.TrieyeConfig(
    app_name="a", run_name="r", runtime={"kind": "local"}, persistence={"root_data_dir": sys.argv[1]}, sinks={}
)
with trieye.Run(config) as run:
    for step in run.steps(None):
        print("running", flush=True)
        time.sleep(0.05)
        if run.save_due:
            run.save(step=step)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_a_second_signal_ends_the_program_during_a_save(tmp_path, number):
    with subprocess.Popen(
        [sys.executable, "-c", SLOW_SAVE, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "running\n"
        process.send_signal(number)
        assert any(line == "saving\n" for line in process.stdout)
        time.sleep(0.5)  # before that, it counts as the first signal
        signaled_at = time.monotonic()
        process.send_signal(number)
        code = process.wait(30)
    assert time.monotonic() - signaled_at < 10
    assert code in {128 + number, -number}
    assert RunRecord.read(tmp_path / "a" / "runs" / "r" / "run.json").status == "KILLED"
    assert not list((tmp_path / "a" / "runs" / "r" / "checkpoints").glob("checkpoint_step_*"))


LEAVING = """
import atexit, os, signal, sys, trieye
def press(): # runs after the exit handlers of trieye, and before Ray's
    os.kill(os.getpid(), signal.SIGINT)
import ray
atexit.register(press)
config = trieye.TrieyeConfig(
    app_name="a", run_name="r", runtime={"kind": "ray"}, persistence={"root_data_dir": sys.argv[1]}, sinks={}
)
with trieye.Run(config) as run:
    run.log("loss", 0.5, step=1)
"""


@pytest.mark.slow
@pytest.mark.long
def test_ctrl_c_during_the_shutdown_of_ray_prints_no_traceback(tmp_path):
    command = [sys.executable, "-c", LEAVING, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == -signal.SIGINT, ended.stderr
    assert "Traceback" not in ended.stderr
    assert RunRecord.read(tmp_path / "a" / "runs" / "r" / "run.json").status == "FINISHED"
