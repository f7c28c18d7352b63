"""The launcher: failed, killed and earlier jobs, and the resources of each job, on Ray and without it."""

import asyncio
import importlib
import os
import signal
import subprocess
import sys
import threading
import time
from importlib.machinery import ModuleSpec
from pathlib import Path

import psutil
import pytest

import trieye
from hydra_plugins.trieye.sweeps import LAUNCHER, SWEEPER
from tests.tune.walks import Walk, WalksConfig
from tests.waiting import wait_until
from trieye.config.launcher import LauncherConfig
from trieye.config.sweeper import SweeperConfig
from trieye.exceptions import ConfigurationError, RunInterrupted, RunLockedError
from trieye.files.run_record import RunRecord
from trieye.sweeps import fork_client, orphans, timeouts
from trieye.sweeps.jobs import RunningJob
from trieye.sweeps.record import LOCK, SWEEP, SweepRecord, lock_in
from trieye.sweeps.sweeper import SweepError


def done(cfg):
    """Be a job that has nothing to do."""
    del cfg
    return 1


def trained(root, what, *, fails_at=None, **names):
    """Take four steps of a run, of which each saves its history, and return the history."""
    config = trieye.TrieyeConfig(
        app_name="app", runtime={"kind": "local"}, progress_bar=False, **names,
        persistence={"root_data_dir": str(root), "checkpoint_save_freq_steps": 1},
        sinks={"mlflow": {"enabled": False}, "tensorboard": {"enabled": False}, "console": {"enabled": False}},
    )  # fmt: skip
    with trieye.Run(config) as run:
        run.restore()
        history = list(run.restored.get("history", []))
        for step in run.steps(4):
            if step == fails_at:
                raise ValueError("the first time")
            history.append(str(what))
            run.save(history=history)
    return "".join(history)


RUNS_ALONE = ("hydra.launcher.isolate=none", "hydra.mode=MULTIRUN")


def values(returned):
    """Return the return values of jobs, and the messages of their errors."""
    return [job._return_value if job.status.name == "COMPLETED" else str(job._return_value) for job in returned]


def test_failing_jobs_stop_no_others_and_their_output_is_stored(sweep_on, tmp_path, capfd):
    (tmp_path / "late.py").write_text("class Return(float): pass\nclass MeanError(Exception): pass\n")

    class StubbornError(Exception):
        def __init__(self, first, second):
            super().__init__(f"{first} {second}")

    def task(cfg):
        print(f"printed by {cfg.what}")  # noqa: T201
        print("to stderr", file=sys.stderr)  # noqa: T201
        subprocess.run(["echo", "a child speaks"], check=True)
        if cfg.what == "raise":
            raise ValueError("that is no number")
        if cfg.what == "stubborn":
            raise StubbornError("cannot be", "unpickled")
        if cfg.what == "leave":
            sys.exit(3)
        if cfg.what == "cancel":
            raise asyncio.CancelledError("by a timeout")
        if cfg.what == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        sys.path.insert(0, str(tmp_path))
        late = importlib.import_module("late")  # only the job can import it
        if cfg.what == "late error":
            raise late.MeanError("of the job")
        return {"late": late.Return(3), "lock": threading.Lock()}.get(cfg.what, 7)

    whats = ["raise", "fine", "stubborn", "leave", "lock", "late", "late error", "well", "cancel", "die"]
    jobs = [*(f"what={word}" for word in whats), "whta=x"]
    returned_values = values(sweep_on.launch(task, jobs, "hydra.launcher.retries=0"))
    assert "whta" in returned_values.pop()
    assert "its process died: " in returned_values.pop()
    assert "3" in returned_values.pop(3)
    stubborn, late = "StubbornError: cannot be unpickled", "MeanError: of the job"
    assert returned_values == ["that is no number", 7, stubborn, None, 3, late, 7, "by a timeout"]
    assert f"FAILED: {stubborn}" in capfd.readouterr().err
    records = [sweep_on.record(index) for index in range(11)]
    assert [index for index, record in enumerate(records) if record.state == "failed"] == [0, 2, 3, 6, 8, 9, 10]
    assert {record.state for record in records} == {"failed", "completed"}
    assert [(record.attempt, record.deaths) for record in records] == [*[(1, 0)] * 9, (1, 1), (1, 0)]
    errors = ["ValueError: that is no number", late, "CancelledError: by a timeout"]
    assert [records[index].error for index in (0, 6, 8)] == errors
    assert records[7].objective == 7.0
    logs = [(sweep_on.directory / str(index) / "output.log").read_text() for index in range(11)]
    assert "whta" in logs[10]
    for word, log in list(zip(whats, logs, strict=False))[:9]:
        assert all(text in log for text in (f"printed by {word}", "to stderr", "a child speaks"))
    assert "Traceback" in logs[0]
    assert "ValueError: that is no number" in logs[0]
    assert "cannot be pickled" in logs[4]


@pytest.mark.parametrize("isolate", ["process", "none"])
@pytest.mark.filterwarnings("ignore:.*is multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_child_that_leaves_the_task_exits_and_does_not_end_the_job(sweep, isolate):
    def task(cfg):
        codes = []
        for leave in (lambda: sys.exit(3), lambda: 1 / 0, lambda: None):
            if (child := os.fork()) == 0:
                return leave()
            codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        return codes

    sweep.backend, pid = "local", os.getpid()
    try:
        returned = sweep.launch(task, ["what=x"], f"hydra.launcher.isolate={isolate}")
    finally:
        if os.getpid() != pid:  # it would run the next tests
            os._exit(99)
    assert values(returned) == [[3, 1, 0]]
    assert sweep.states(1) == ["completed"]


@pytest.mark.parametrize("sweep_on", [pytest.param("ray", marks=pytest.mark.long), "local"], indirect=True)
def test_jobs_may_replace_or_close_their_streams_and_later_jobs_of_the_process_get_their_own(sweep_on):
    def task(cfg):
        print(f"printed by {cfg.what}")  # noqa: T201
        if cfg.what == "tee":
            sys.stdout = type("Tee", (), {"write": lambda _, text: len(text)})()
        if cfg.what == "close":
            sys.stdout.close()
        return os.getpid()

    words = ["tee", "close", "print"]
    pids = values(sweep_on.launch(task, [f"what={word}" for word in words], "hydra.launcher.num_jobs=1"))
    assert len({*pids, os.getpid()}) == 2
    for index, word in enumerate(words):
        assert (sweep_on.directory / str(index) / "output.log").read_text() == f"printed by {word}\n"


@pytest.mark.parametrize(
    ("module", "file", "words"),
    [
        (None, "scripts/train.py", ["scripts/train.py"]),
        ("my_agent.train", "my_agent/train.py", ["-m", "my_agent.train"]),
        ("my_agent.__main__", "my_agent/__main__.py", ["-m", "my_agent"]),
        ("__main__", "my_agent/__main__.py", ["my_agent"]),  # python my_agent
        ("__main__", "my_agent.zip/__main__.py", ["my_agent.zip"]),
        (None, None, []),  # python -c
    ],
)
def test_a_sweep_records_the_words_that_start_its_program_after_a_change_of_directory(
    sweep, tmp_path, monkeypatch, module, file, words
):
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "__spec__", module and ModuleSpec(module, None))
    monkeypatch.setattr(main, "__file__", file and str(tmp_path / file), raising=False)
    monkeypatch.setattr(sys, "argv", [file or "-c"])
    monkeypatch.chdir(tmp_path.parent)
    sweep.search(done, "what=1")
    paths = [word if words[0] == "-m" else str(tmp_path / word) for word in words]
    assert SweepRecord.of(sweep.directory).program[1:-2] == paths  # --config-name config follows


def test_fail_fast_starts_no_other_job(sweep):
    def task(cfg):
        raise ValueError(cfg.what)

    options = ["hydra.launcher.fail_fast=true", "hydra.launcher.num_jobs=1"]
    sweep.launch(task, [f"what={n}" for n in range(4)], "hydra.launcher.backend=local", *options)
    assert sweep.states(4) == ["failed", None, None, None]


@pytest.mark.parametrize("sweep_on", [pytest.param("ray", marks=pytest.mark.long), "local"], indirect=True)
def test_a_killed_job_restarts_until_its_retries_are_used_up(sweep_on):
    def task(cfg):
        if cfg.what == "always" or not Path("been_here").exists():
            Path("been_here").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return 1

    options = ["hydra.launcher.retries=1", "hydra.job.chdir=true"]
    returned = sweep_on.launch(task, ["what=once", "what=always"], *options)
    once, always = sweep_on.record(0), sweep_on.record(1)
    assert (once.state, once.attempt, once.deaths) == ("completed", 2, 1)
    assert (always.state, always.attempt, always.deaths) == ("failed", 2, 2)
    assert "died 2 times" in always.error
    lines = (sweep_on.directory / "1" / "output.log").read_text().splitlines()
    events = ["its process died", "attempt 2", "its process died 2 times"]
    assert [line.partition(": ")[2].split(":")[0] for line in lines] == events
    assert values(returned)[0] == 1
    assert "died 2 times" in values(returned)[1]


def test_each_job_has_the_cpus_of_its_own_config(sweep_on, monkeypatch):
    def task(cfg):
        return int(os.environ["OMP_NUM_THREADS"])

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    jobs = ["cpus=1", "whta=1", "cpus=many", "cpus=${cpuz}", "cpus=2", "cpus=0.5", "cpus=1000"]
    returned = sweep_on.launch(task, jobs, "hydra.launcher.num_cpus='${cpus}'")
    assert [values(returned)[index] for index in (0, 4, 5)] == [1, 2, 1]
    assert "hydra.launcher.num_cpus=1000: this machine has 2" in values(returned)[6]
    assert sweep_on.states(7) == ["completed", *["failed"] * 3, *["completed"] * 2, "failed"]
    errors = {1: "Could not override 'whta'", 2: "num_cpus=many: expected a number", 3: "key 'cpuz' not found"}
    for index, error in errors.items():
        assert error in str(sweep_on.record(index).error)
    assert "hydra.launcher.num_cpus='${cpus}'" in SweepRecord.of(sweep_on.directory).own


def test_a_request_for_more_than_the_machine_has_is_rejected(sweep_on):
    for option, message in (
        ("num_gpus=0.25", r"hydra\.launcher\.num_gpus=0.25: this machine has 0"),
        ("memory=200000000000000", r"memory=200000000000000: this machine has \S+ GiB in total"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            sweep_on.launch(done, ["what=x", "what=y"], f"hydra.launcher.{option}")
    assert not (sweep_on.directory / SWEEP).exists()


def test_local_jobs_share_gpus_and_see_only_their_own(sweep, monkeypatch):
    def task(cfg):
        (sweep_dir / f"began{cfg.what}").touch()
        while len(list(sweep_dir.glob("began*"))) < 4:  # four run at once
            time.sleep(0.01)
        return os.environ["CUDA_VISIBLE_DEVICES"]

    sweep.backend, sweep_dir = "local", sweep.directory
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-5")
    options = ["hydra.launcher.num_gpus=0.5", "hydra.launcher.num_cpus=0.25"]
    assert sorted(values(sweep.launch(task, [f"what={n}" for n in range(4)], *options))) == ["3", "3", "GPU-5", "GPU-5"]
    sweep.directory = sweep.directory.with_name("without")
    assert values(sweep.launch(lambda _: os.environ["CUDA_VISIBLE_DEVICES"], ["what=x"])) == [""]


@pytest.mark.parametrize("sweep_on", [pytest.param("ray", marks=pytest.mark.long), "local"], indirect=True)
def test_a_job_beyond_its_time_limit_is_stopped_and_not_restarted(sweep_on, monkeypatch):
    def task(cfg):
        if cfg.what == "stubborn":
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        if cfg.what != "short":
            child = subprocess.Popen(["sleep", "60"])
            (sweep_dir / f"{cfg.what}.pid").write_text(str(child.pid))
            child.wait()
        return 1

    sweep_dir = sweep_on.directory
    monkeypatch.setattr(timeouts, "STOP_S", 0.5)
    options = ["hydra.launcher.timeout_min=0.05", "hydra.launcher.isolate=process", "hydra.launcher.num_cpus=0.5"]
    returned = values(sweep_on.launch(task, ["what=short", "what=long", "what=stubborn"], *options))
    error = "timed out after 0.05 min (hydra.launcher.timeout_min)"
    assert returned == [1, error, error]
    assert sweep_on.states(3) == ["completed", "failed", "failed"]
    assert [sweep_on.record(index).attempt for index in range(3)] == [1, 1, 1]
    assert sweep_on.record(2).error == error
    assert (sweep_on.directory / "2" / "output.log").read_text() == f"trieye: {error}\n"
    if sweep_on.backend == "local":
        children = [int((sweep_dir / f"{name}.pid").read_text()) for name in ("long", "stubborn")]
        wait_until(lambda: not any(map(psutil.pid_exists, children)))


def test_a_local_job_above_its_memory_limit_is_stopped_and_not_restarted(sweep):
    def task(cfg):
        if cfg.what == "large":
            child = "x = bytearray(600 * 2**20); x[::4096] = b'1' * len(x[::4096]); import time; time.sleep(60)"
            subprocess.run([sys.executable, "-c", child], check=True)
        return 1

    sweep.backend = "local"
    options = [f"hydra.launcher.memory={400 * 2**20}", "hydra.launcher.isolate=process"]
    small, large = values(sweep.launch(task, ["what=small", "what=large"], *options))
    assert small == 1
    assert "GiB of memory, more than hydra.launcher.memory=419430400 (0.39 GiB)" in large
    assert (sweep.directory / "1" / "output.log").read_text() == f"trieye: {large}\n"
    assert (sweep.record(1).state, sweep.record(1).attempt) == ("failed", 1)


def test_local_jobs_restart_after_their_fork_server_was_killed(sweep):
    def task(cfg):
        if not (directory / "killed").exists():
            (directory / "killed").touch()
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(60)
        return cfg.what

    sweep.backend, directory = "local", sweep.directory
    options = ["hydra.launcher.isolate=process", "hydra.launcher.num_jobs=1"]
    assert values(sweep.launch(task, ["what=a", "what=b"], *options)) == ["a", "b"]
    assert [(sweep.record(index).attempt, sweep.record(index).deaths) for index in range(2)] == [(2, 1), (1, 0)]
    assert "its fork server died" in (directory / "0" / "output.log").read_text()
    server = fork_client.server_for("")._process
    server.kill()  # between two sweeps, without a job that reports it
    server.wait()
    sweep.directory = directory.with_name("later")
    assert values(sweep.launch(task, ["what=a"], *options)) == ["a"]
    assert sweep.record(0).deaths == 1


@pytest.mark.long
def test_a_job_that_interrupts_itself_is_not_reported_as_raised_and_runs_again(sweep):
    def task(cfg):
        if cfg.what == "stop" and not (directory / "stopped").exists():
            (directory / "stopped").touch()
            raise KeyboardInterrupt
        return cfg.what

    sweep.backend, directory = "local", sweep.directory
    for expected, state in (("it was interrupted; a relaunch continues it", "interrupted"), ("stop", "completed")):
        assert values(sweep.launch(task, ["what=go", "what=stop"]))[1] == expected
        assert sweep.states(2) == ["completed", state]


@pytest.mark.long
def test_a_job_that_ignores_the_interruption_counts_as_done(sweep, capfd):
    def task(cfg):
        (directory / "began").touch()
        try:
            time.sleep(60)
        except KeyboardInterrupt:
            return 5

    def interrupt_twice():
        wait_until((directory / "began").exists)
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.5)

    sweep.backend, directory = "local", sweep.directory
    thread = threading.Thread(target=interrupt_twice)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        sweep.launch(task, ["what=a", "what=b"], "hydra.launcher.num_jobs=1")
    thread.join()
    assert "sweep: 1 done, 1 left" in capfd.readouterr().err
    assert sweep.states(2) == ["completed", None]


def test_a_local_job_ends_after_its_threads_and_exit_handlers(sweep):
    def task(cfg):
        import atexit

        def late():
            time.sleep(0.3)
            (directory / "thread").touch()

        threading.Thread(target=late).start()
        atexit.register((directory / "handler").touch)

    sweep.backend, directory = "local", sweep.directory
    sweep.launch(task, ["what=x"], "hydra.launcher.isolate=process")
    assert (directory / "thread").exists()
    assert (directory / "handler").exists()


@pytest.mark.usefixtures("ray_cluster")
def test_a_job_whose_resources_no_node_has_is_reported_and_ctrl_c_cancels_it(sweep, monkeypatch):
    def interrupt(line):
        lines.append(line)
        signal.raise_signal(signal.SIGINT)

    lines = []
    monkeypatch.setattr("trieye.sweeps.in_ray.say", interrupt)
    with pytest.raises(RunInterrupted, match="resume the unfinished jobs"):
        sweep.launch(done, ["what=x", "what=y"], "hydra.launcher.address=auto", "+hydra.launcher.resources.tpu=1")
    assert len(lines) == 1
    assert all(part in lines[0] for part in ("job 0 waits", "no node", "'tpu': 1.0"))
    assert sweep.states(2) == [None, None]


@pytest.fixture
def busy_core(ray_cluster):
    """Let other work occupy one of the two cores of the cluster until the returned function is called."""
    import ray

    other = ray.remote(num_cpus=1)(type("Other", (), {"ready": lambda _: None})).remote()
    ray.get(other.ready.remote())
    yield lambda: ray.kill(other)
    ray.kill(other)


@pytest.mark.usefixtures("busy_core")
def test_after_ctrl_c_a_running_job_ends_and_a_job_that_waits_for_a_busy_node_never_starts(sweep):
    def task(cfg):
        began.touch()
        time.sleep(1)
        return cfg.what

    began = sweep.directory.with_name("began")
    interrupt = threading.Thread(target=lambda: (wait_until(began.exists), os.kill(os.getpid(), signal.SIGINT)))
    interrupt.start()
    with pytest.raises(RunInterrupted, match="resume the unfinished jobs"):
        sweep.launch(task, ["what=x", "what=y"], "hydra.launcher.address=auto")
    interrupt.join()
    assert sweep.states(2) == ["completed", None]


def test_the_time_limit_of_a_job_on_a_cluster_does_not_count_waiting_for_a_busy_node(sweep, busy_core):
    options = ["hydra.launcher.address=auto", "hydra.launcher.timeout_min=0.05", "hydra.launcher.num_cpus=2"]
    release = threading.Timer(6, busy_core)
    release.start()
    assert values(sweep.launch(lambda cfg: cfg.what, ["what=x"], *options)) == ["x"]
    release.join()


@pytest.mark.parametrize("sweep_on", [pytest.param("ray", marks=pytest.mark.long), "local"], indirect=True)
def test_num_jobs_limits_concurrent_jobs(sweep_on):
    directory = sweep_on.directory  # the fixture's own class is not to be found in a worker

    def task(cfg):
        began = time.time()
        (directory / f"began{cfg.what}").touch()
        while len(list(directory.glob("began*"))) < 2:  # two do run at once
            time.sleep(0.01)
        time.sleep(0.2)
        return began, time.time()

    options = ["hydra.launcher.num_jobs=2", "hydra.launcher.num_cpus=0.25"]
    times = values(sweep_on.launch(task, [f"what={n}" for n in range(4)], *options))
    assert max(sum(began <= moment < ended for began, ended in times) for moment, _ in times) == 2


def test_a_part_with_parallel_jobs_or_a_time_limit_starts_processes(sweep):
    words = ["hydra.launcher.isolate=none", "hydra.launcher.is_part=true", "hydra.launcher.timeout_min=5"]
    (pid,) = values(sweep.launch(lambda _: os.getpid(), ["what=a"], *words))
    assert pid != os.getpid()
    part = {"isolate": "none", "is_part": True}
    assert not LauncherConfig(**part, num_jobs=2).is_sequential
    assert LauncherConfig(**part, num_jobs=1).is_sequential


@pytest.mark.long
def test_jobs_run_in_separate_processes(sweep_on):
    options = ["hydra.launcher.isolate=process", "hydra.launcher.num_jobs=1"]
    pids = values(sweep_on.launch(lambda _: os.getpid(), ["what=a", "what=b"], *options))
    assert len({os.getpid(), *pids}) == 3


@pytest.mark.parametrize("sweep_on", [pytest.param("ray", marks=pytest.mark.long), "local"], indirect=True)
def test_changes_of_hydra_in_a_job_affect_no_other_job_of_its_process(sweep_on):
    def task(cfg):
        from hydra.core.config_store import ConfigStore
        from omegaconf import OmegaConf

        outcomes = (OmegaConf.has_resolver("mine"), "mine.yaml" in ConfigStore.instance().repo, os.getpid())
        OmegaConf.register_new_resolver("mine", lambda: cfg.what)
        ConfigStore.instance().store("mine", {"a": 1})
        return outcomes

    outcomes = values(sweep_on.launch(task, ["what=a", "what=b"], "hydra.launcher.num_jobs=1"))
    assert [outcome[:2] for outcome in outcomes] == [(False, False)] * 2
    assert outcomes[0][2] == outcomes[1][2] != os.getpid()


def test_a_restart_with_changed_jobs_is_rejected_before_any_starts(sweep):
    alone = "hydra.launcher.isolate=none"
    sweep.launch(done, ["what=a", "what=b"], alone)
    (sweep.directory / "0" / "status.json").unlink()
    with pytest.raises(ConfigurationError, match="job 1 was 'what=b' and would be 'what=c'"):
        sweep.launch(done, ["what=a", "what=c"], alone)
    assert sweep.states(2) == [None, "completed"]


def test_a_second_driver_of_a_sweep_is_rejected_and_changes_nothing(sweep):
    sweep.directory.mkdir()
    with lock_in(sweep.directory), pytest.raises(RunLockedError, match=r"sweep 'sweep' .*hydra.sweep.dir"):
        sweep.launch(done, ["what=a"], "hydra.launcher.isolate=none")
    assert sorted(path.name for path in sweep.directory.iterdir()) == [LOCK]


def test_a_job_run_by_another_process_is_skipped_and_fails_the_sweep(sweep, monkeypatch):
    monkeypatch.setattr(orphans, "ORPHAN_WAIT_S", 0.2)
    with RunningJob(sweep.directory / "0", 0, ["what=a"]).running():
        returned = sweep.launch(done, ["what=a", "what=b"], "hydra.launcher.isolate=none")
        assert sweep.states(2) == ["running", "completed"]
    assert f"skipped, because process {os.getpid()} on" in values(returned)[0]
    assert sweep.record(0).state == "completed"


def test_plugin_defaults_equal_the_defaults_of_their_models():
    assert LauncherConfig().model_dump() == LAUNCHER
    assert SweeperConfig().model_dump() == SWEEPER


def test_selected_jobs_that_are_excluded_are_named_and_not_run(sweep, capfd):
    sweep.search(done, "cpus=1,2,3", "hydra.sweeper.exclude=[{cpus: 2}]", "hydra.launcher.only=[0,1]")
    assert sweep.states(3) == ["completed", None, None]
    err = capfd.readouterr().err
    assert "hydra.launcher.only=1: excluded" in err
    assert "sweep: 1 done, in" in err


def test_a_job_without_an_output_directory_fails_alone(sweep, monkeypatch):
    monkeypatch.setenv("NAME_1", "first")
    words = ["what=a,b", "cpus=1,2", "hydra.launcher.num_jobs=1", "hydra.sweep.subdir='${what}_${oc.env:NAME_${cpus}}'"]
    with pytest.raises(SweepError, match="2 of 4 jobs failed"):
        sweep.search(lambda cfg: cfg.cpus + 1, *words)
    assert sweep.states(4) == ["completed", "failed", "completed", "failed"]


def test_a_job_never_writes_to_the_output_directory_of_a_running_job_of_another_sweep(sweep, tmp_path):
    words, first_job = ["what=a", "hydra.sweep.subdir=../output"], tmp_path / "first/0"
    (tmp_path / "output").mkdir()
    (tmp_path / "output/.job.json").symlink_to(first_job / "status.json")
    with RunningJob(first_job, 0, ["what=a"]).running(), pytest.raises(SweepError):
        sweep.search(done, *words)
    assert f"job 0 of the sweep {tmp_path / 'first'} is running and writes to " in sweep.record(0).error
    sweep.search(done, *words)
    assert sweep.states(1) == ["completed"]


def test_a_job_never_writes_to_the_output_directory_of_another_job(sweep):
    words, options = ["what=a,b,c"], ["hydra.sweeper.kind=random", "hydra.sweeper.num_trials=4"]
    for _ in range(2):  # a relaunch refuses the same jobs
        with pytest.raises(SweepError, match=r"of 4 jobs failed; .*would share the output directory '[abc]'"):
            sweep.search(done, *words, *options, "hydra.sweep.subdir='${what}'")
        completed = [path.resolve().parent.name for path in sweep.directory.glob("[abc]/.job.json")]
        assert sorted(completed) == [str(at) for at, state in enumerate(sweep.states(4)) if state == "completed"]


def test_a_relaunch_runs_incomplete_jobs_only_and_resumes_their_runs_without_a_name(sweep, tmp_path, monkeypatch):
    def task(cfg):
        is_first = cfg.what == "b" and not (tmp_path / "failed").exists()
        if is_first:
            (tmp_path / "failed").touch()
        one = trained(tmp_path / "data", cfg.what)
        return f"{one} {trained(tmp_path / 'data', cfg.what.upper(), fails_at=3 if is_first else None)}"

    monkeypatch.chdir(tmp_path)
    assert values(sweep.launch(task, ["what=a", "what=b"], *RUNS_ALONE)) == ["aaaa AAAA", "the first time"]
    assert sweep.states(2) == ["completed", "failed"]
    names = {f"sweep_{job}{suffix}" for job in (0, 1) for suffix in ("", "_2")}
    assert {path.name for path in (tmp_path / "data/app/runs").iterdir()} == names
    assert values(sweep.launch(task, ["what=a", "what=b"], *RUNS_ALONE))[1] == "bbbb BBBB"
    jobs = [sweep.record(index) for index in (0, 1)]
    assert [(job.attempt, job.deaths, job.state) for job in jobs] == [(1, 0, "completed"), (2, 0, "completed")]
    assert {path.name for path in (tmp_path / "data/app/runs").iterdir()} == names
    assert RunRecord.read(tmp_path / "data/app/runs/sweep_0/run.json").attempt == 1
    record = RunRecord.read(tmp_path / "data/app/runs/sweep_1_2/run.json")
    assert (record.attempt, record.job, Path(record.resumed_from).name) == (2, 1, "checkpoint_step_2")


@pytest.mark.long
def test_a_finished_run_of_another_sweep_is_not_the_result_of_a_job(sweep, tmp_path):
    def task(cfg):
        config = WalksConfig(
            app_name="app", run_name="same", seed=cfg.what, runtime={"kind": "local"}, progress_bar=False,
            persistence={"root_data_dir": str(tmp_path / "data")}, sinks={}, loop={"steps": 1},
        )  # fmt: skip
        return trieye.run_experiment(Walk, config).objective

    assert [values(sweep.launch(task, ["what=1"], *RUNS_ALONE)) for _ in range(2)] == [[2.0]] * 2
    sweep.directory = tmp_path / "later"
    (refusal,) = values(sweep.launch(task, ["what=2"], *RUNS_ALONE))
    assert f"run_name=same: this run belongs to job 0 of the sweep {tmp_path / 'sweep'}, and this is job 0" in refusal


def test_a_job_never_resumes_the_run_of_another_job_or_of_no_job(sweep, tmp_path):
    def task(cfg):
        return trained(tmp_path / "data", cfg.what, run_name=str(cfg.what))

    returned = values(sweep.launch(task, ["what=a", "what=a", "what=b"], *RUNS_ALONE))
    assert (returned[0], returned[2]) == ("aaaa", "bbbb")
    assert f"belongs to job 0 of the sweep {sweep.directory}, and this is job 1; choose another" in returned[1]
    assert 'run_name=f"a_{HydraConfig.get().job.num}"' in returned[1]
    trained(tmp_path / "data", "c", run_name="c")
    sweep.directory = tmp_path / "later"
    outside, other = values(sweep.launch(task, ["what=c", "what=b"], *RUNS_ALONE))
    assert f"was started outside of a sweep, and this is job 0 of {sweep.directory};" in outside
    assert f"belongs to job 2 of the sweep {tmp_path / 'sweep'}, and this is job 1 of {sweep.directory};" in other
