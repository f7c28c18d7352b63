import enum
import io
import logging
import os
import pickle
import re
import signal
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from filelock import FileLock
from mlflow.tracking import MlflowClient

import trieye
from tests.curves import record_of
from tests.forked import in_a_child
from tests.run.agent import Agent, Lines
from tests.waiting import wait_until
from trieye import runs
from trieye.exceptions import CheckpointError, ConfigurationError, ProcessingError, RunClosedError, RunLockedError
from trieye.history.table import read_history
from trieye.hub.logic import HubLogic
from trieye.run import attempt as attempt_module
from trieye.stats.operations import Medium
from trieye.testing import MemorySink


def train(config, total, *, agent=None, stop_at=None):
    agent = agent or Agent()
    steps = []
    with trieye.Run(config) as run:
        run.restore(agent=agent)
        for step in run.steps(total):
            steps.append(step)
            agent.weights += np.random.rand(3)  # noqa: NPY002 - the generator that the run saves
            run.log("loss", 1.0 / step)
            if run.save_due:
                run.save(agent=agent)
            if step == stop_at:
                raise RuntimeError("power cut")
    return agent, steps, run


def test_a_failed_run_restores_the_signal_handler_and_resumes_bit_identically(make_config):
    np.random.seed(0)  # noqa: NPY002
    whole, _, _ = train(make_config(run_name="whole", persistence={"checkpoint_save_freq_steps": 10}), 40)
    np.random.seed(0)  # noqa: NPY002
    config = make_config(run_name="cut", persistence={"checkpoint_save_freq_steps": 10})
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(RuntimeError, match="power cut") as failure:
        train(config, 40, stop_at=27)
    assert signal.getsignal(signal.SIGINT) is handler  # although `failure` refers to the frame, and thus to the loop
    del failure
    np.random.seed(99)  # noqa: NPY002 - another process has another state
    resumed, steps, run = train(config, 40)
    assert steps[0] == 21
    assert run.resumed
    assert np.array_equal(whole.weights, resumed.weights)


def test_a_run_object_that_is_opened_again_starts_like_a_new_one(make_config):
    run = trieye.Run(make_config())
    with pytest.raises(trieye.RunInterrupted), run:
        for step in run.steps(5):
            if step == 3:
                signal.raise_signal(signal.SIGTERM)
    assert run.stop_requested
    with run:
        assert not run.restore(agent=Agent())
        assert (run.step, run.stop_requested, run.last_step) == (0, False, None)
        for step in run.steps(5):
            run.log("loss", 0.5)
            if step == 4:
                run.save(agent=Agent())
    with run:
        assert (run.step, run.saved_step) == (0, -1)
        assert run.restore(agent=Agent())
        assert (run.resumed, list(run.steps(5))) == (True, [5])


@pytest.mark.parametrize("kind", ["local", pytest.param("ray", marks=pytest.mark.long)])
def test_a_user_defined_sink_receives_the_points_of_each_attempt(make_config, tmp_path, request, kind):
    if kind == "ray":
        request.getfixturevalue("ray_cluster")
    for attempt in (1, 2):
        sinks = (sink for sink in [Lines(tmp_path / "lines.txt")])  # any iterable
        with trieye.Run(make_config(runtime={"kind": kind}), sinks=sinks) as run:
            run.log("loss", 0.5, step=attempt)
    assert (tmp_path / "lines.txt").read_text() == "loss 1 0.5\nFINISHED\nloss 2 0.5\nFINISHED\n"


class Broken(Lines):
    """A sink with a bug."""

    def write(self, points):
        if any(point.step >= 2 for point in points):
            raise ZeroDivisionError("in write")
        super().write(points)


@pytest.mark.parametrize("ends_by", ["flush", "save", "close", "last points"])
def test_a_run_fails_with_a_required_sink(make_config, tmp_path, request, ends_by):
    config = make_config(sinks={"required": ["lines"]}, runtime={"kind": "local"})
    completed_steps = []
    fails = pytest.raises(
        ProcessingError, match=r"the sink 'lines' of sinks\.required does not work.*in write.*test_run\.py"
    )
    with fails, trieye.Run(config, sinks=[Broken(tmp_path / "lines.txt")]) as run:
        for step in run.steps(1000):
            run.log("loss", 1.0, step=step)
            if ends_by == "flush":
                run.flush()
            elif ends_by == "save":
                run.save(agent=Agent())
            elif step == 2 and ends_by == "last points":
                break  # the window of this step closes with the run
            elif step == 2:
                run._begun_attempt().flusher.flush()
                run._begun_attempt().hub.ask(HubLogic.flush, 2)  # as `flush`, but without its exception
                wait_until(lambda: run.health()["sinks"][0]["error"])
                break
            time.sleep(0.02)
            completed_steps.append(step)
    assert completed_steps[0] == 1
    assert record_of(run.dir).status == "FAILED"
    with trieye.Run(config, sinks=[Lines(tmp_path / "lines.txt")]):
        pass  # the sink receives the missing points now
    assert "loss 2 1.0\n" in (tmp_path / "lines.txt").read_text()


def test_a_missing_required_sink_is_a_configuration_error(make_config, tmp_path):
    config = make_config(sinks={"required": ["lnes"]}, runtime={"kind": "local"})
    fails = pytest.raises(ConfigurationError, match=r"no sink 'lnes'; did you mean 'lines'\? \(its sinks: lines\)")
    with fails, trieye.Run(config, sinks=[Lines(tmp_path / "lines.txt")]):
        raise AssertionError
    assert record_of(config.persistence.get_run_base_dir()).status == "FAILED"


def test_event_files_are_in_the_run_directory_or_in_an_existing_tensorboard_folder(tmp_path):
    settings = [f"persistence.root_data_dir={tmp_path}", "app_name=app", "runtime=local", "sinks=[tensorboard]"]
    for name, subdirectory in (("new", ""), ("old", "tensorboard")):
        config = trieye.compose([*settings, f"run_name={name}"])
        directory = config.persistence.get_run_base_dir()
        (directory / subdirectory).mkdir(parents=True)
        with trieye.Run(config) as run:
            run.log("loss", 0.5, step=1)
        event_files = list(run.dir.rglob("events.out.tfevents.*"))
        assert {path.parent for path in event_files} == {directory / subdirectory}


def test_invalid_sinks_are_rejected_by_the_constructor(make_config, tmp_path):
    sink, buffered_sink = Lines(tmp_path / "lines.txt"), MemorySink("buffered")
    buffered_sink.flush, buffered_sink.flush_interval_s = buffered_sink.points.clear, None
    for sinks, message in [
        ([MemorySink], "it is a class; pass MemorySink()"),
        ([object()], "it has no name and no open and no write and no close; see trieye.sinks.base.Sink"),
        ([sink, sink], "the name 'lines' is already used"),
        ([MemorySink("\udce9")], "the name '\\udce9' is already used, or not valid Unicode"),
        ([buffered_sink], "flush_interval_s=None; expected seconds"),
        (sink, "expected a list of sinks, such as sinks=[Lines()]"),
        (Lines, "expected a list of sinks, such as sinks=[Lines()]"),
    ]:
        with pytest.raises(ConfigurationError, match=re.escape(message)):
            trieye.Run(make_config(), sinks=sinks)


def test_a_sink_that_cannot_be_pickled_is_a_configuration_error(make_config, tmp_path, ray_cluster):
    sink = Lines(tmp_path / "lines.txt")
    sink.open(None)
    with (
        pytest.raises(ConfigurationError, match=r"cannot be sent to the hub.*open files and connections in its `open`"),
        trieye.Run(make_config(runtime={"kind": "ray"}), sinks=[sink]),
    ):
        pass
    sink.file.close()


@pytest.mark.parametrize("kind", ["local", pytest.param("ray", marks=pytest.mark.long)])
@pytest.mark.slow
def test_all_attempts_log_to_one_mlflow_run(make_config, kind, request, tmp_path):
    if kind == "ray":
        request.getfixturevalue("ray_cluster")
    settings = {
        "runtime": {"kind": kind},
        "sinks": {"mlflow": {"enabled": True}, "tensorboard": {"enabled": True}},
        "tags": {"team": "red"},
        "stats": {"metrics": [{"name": "loss", "aggregation": "mean", "log_frequency_steps": 10}]},
        "persistence": {"checkpoint_save_freq_steps": 10},
    }
    ids = set()
    for total in (20, 40):
        agent = Agent()
        with trieye.Run(make_config(**settings)) as run:
            run.restore(agent=agent)
            run.log_params({"lr": 0.1, "net": {"layers": 2}})
            run.set_tags({"stage": "test"})
            with tempfile.TemporaryDirectory() as directory:
                (artifact := Path(directory) / "notes.txt").write_text("hello")
                run.log_artifact(artifact, "docs")
            for step in run.steps(total):
                agent.weights += 1
                run.log({"loss": step, "left out": None})
                run.log("new", np.float32(step), context={"episode": 1})
                if run.save_due:
                    run.save(agent=agent, objective=step)
            assert run.best("loss", mode="max") == total - 4.5
            assert run.best("loss", mode="min") == 5.5
            ids.add(run.mlflow_run_id(60.0))
    assert agent.weights.tolist() == [40.0] * 3
    client = MlflowClient(run.config.persistence.MLFLOW_TRACKING_URI)
    (run_id,) = ids
    mlflow_run = client.get_run(run_id)
    assert (mlflow_run.info.status, mlflow_run.info.run_name) == ("FINISHED", "run")
    assert [point.step for point in client.get_metric_history(run_id, "loss")] == [10, 20, 30, 40]
    assert [point.step for point in client.get_metric_history(run_id, "new")] == list(range(1, 41))
    assert (mlflow_run.data.params["lr"], mlflow_run.data.params["net.layers"]) == ("0.1", "2")
    assert (mlflow_run.data.params["seed"], "run_name" in mlflow_run.data.params) == ("0", False)
    assert not [name for name, value in mlflow_run.data.params.items() if value.startswith("/") or "_dir" in name]
    assert "python" in mlflow_run.data.tags["mlflow.note.content"]
    assert list(run.dir.glob("events.out.tfevents.*")), "TensorBoard shows the run under its own name"
    assert (mlflow_run.data.tags["team"], mlflow_run.data.tags["stage"]) == ("red", "test")
    assert [item.path for item in client.list_artifacts(run_id, "docs")] == ["docs/notes.txt"]
    assert record_of(run.dir).attempt == 2
    assert record_of(run.dir).mlflow_run_id == run_id
    assert time.time() - client.get_metric_history(run_id, "loss")[0].timestamp / 1000 < 300
    assert (run.dir / "checkpoints" / "best.pkl").resolve().name == "checkpoint_step_40"


def test_a_finished_run_is_reported_and_resumes_with_a_larger_budget(make_config, capfd):
    config = make_config(persistence={"checkpoint_save_freq_steps": 5})
    train(config, 10)
    _, steps, _ = train(config, 10)
    assert steps == []
    assert "is finished" in capfd.readouterr().err
    _, steps, _ = train(config, 15)
    assert steps == list(range(11, 16))


def test_the_replay_buffer_is_saved_and_restored_with_the_run(make_config):
    config = make_config(replay={"capacity": 100}, persistence={"checkpoint_save_freq_steps": 5})
    with trieye.Run(config) as run:
        for step in run.steps(5):
            run.replay.add(obs=np.float32([step, step]), reward=float(step))
            if run.save_due:
                run.save()
        expected = run.replay.sample(8)["reward"].tolist()
    with trieye.Run(config) as run:
        run.restore()
        assert len(run.replay) == 5
        assert run.replay.sample(8)["reward"].tolist() == expected


def test_a_run_that_is_not_open_rejects_calls(make_config):
    run = trieye.Run(make_config())
    with pytest.raises(RunClosedError, match="with trieye"):
        run.log("a", 1.0)
    with run:
        run.log("a", 1.0)
    for call in (
        lambda: run.log({"a": 1.0}),
        run.save,
        run.flush,
        lambda: run.set_tags({}),
        lambda: run.log_text("", ""),
    ):
        with pytest.raises(RunClosedError):
            call()


def test_best_requires_a_mode_unless_the_metric_is_the_objective(make_config):
    with trieye.Run(make_config(loop={"objective": "eval/error", "mode": "min"})) as run:
        for step, loss in enumerate([3.0, 1.0, 2.0], start=1):
            run.log({"loss": loss, "eval/error": loss * 10}, step=step)
        run.step = 3
        with pytest.raises(ConfigurationError, match=r"best\('loss'\).*mode='min' or mode='max'.*eval/error"):
            run.best("loss")
        with pytest.raises(ConfigurationError, match="mode must be 'max' or 'min'"):
            run.best("loss", mode="least")
        with pytest.raises(ConfigurationError, match="did you mean 'eval/error'"):
            run.best("eval/eror")
        assert (run.best("loss", mode="min"), run.best("loss", mode="max")) == (1.0, 3.0)
        assert run.best() == run.best("eval/error") == 10.0  # loop.mode
        assert run.best(mode="max") == 30.0


def test_best_includes_open_windows_without_closing_them(make_config):
    metric = {"name": "loss", "aggregation": "mean", "log_frequency_steps": 2}
    config = make_config(stats={"metrics": [metric], "processing_interval_seconds": 3600.0})
    for offset in (0.0, 10.0):  # the second attempt supersedes the points of the first
        best = []
        with trieye.Run(config) as run:
            for step, loss in ((1, 4.0), (2, 2.0), (3, 1.0), (3, 3.0)):
                run.log("loss", loss + offset, step=step)
                best.append(run.best("loss", "min") - offset)
        assert best[-1] == 2.0
        assert offset or best == [4.0, 3.0, 1.0, 2.0]
        table = read_history(run.dir)
        assert (table["step"].to_pylist(), table["value"].to_pylist()) == ([2, 3], [3.0 + offset, 2.0 + offset])


def test_a_second_writer_is_rejected_and_the_first_continues(make_config):
    with trieye.Run(make_config()) as run:
        with pytest.raises(RunLockedError, match=str(os.getpid())):
            trieye.Run(make_config()).open()
        run.log("a", 1.0)
        run.flush()


@pytest.mark.parametrize(("overflow", "best", "dropped"), [("drop", 1000, {"overflow": 500}), ("block", 1500, {})])
def test_overflowing_values_block_or_are_dropped_as_configured(make_config, overflow, best, dropped):
    runtime = {"kind": "local", "max_pending_events": 1000, "overflow": overflow, "flush_interval_s": 60}
    with trieye.Run(make_config(runtime=runtime, stats={"metrics": [{"name": "a", "aggregation": "count"}]})) as run:
        for _ in range(1500):
            run.log("a", 1.0, step=1)
        run.step = 1
        assert run.best("a", "max") == best
        assert run.health()["dropped"] == dropped


@pytest.mark.parametrize(("every", "saved"), [(0, [7]), (3, [3, 6, 7]), (7, [7])])
def test_the_last_step_is_saved_once(make_config, every, saved):
    with trieye.Run(make_config(persistence={"checkpoint_save_freq_steps": every})) as run:
        for _ in run.steps(7):
            if run.save_due:
                run.save()
        assert not run.save_due
    assert [row.step for row in runs.checkpoints(run.dir).checkpoints] == saved
    with trieye.Run(make_config(persistence={"checkpoint_save_freq_steps": every})) as run:
        run.restore()
        assert next(run.steps(9)) == 8


def test_a_stop_after_a_rated_save_keeps_its_objective(make_config):
    with pytest.raises(trieye.RunInterrupted), trieye.Run(make_config()) as run:
        for _ in run.steps(9):
            if run.step == 5:
                run.save(objective=1.0)
                run.stop_requested = True
            if run.save_due:
                run.save()
    assert [(row.step, row.objective) for row in runs.checkpoints(run.dir).checkpoints] == [(5, 1.0)]


def test_values_logged_before_a_restore_belong_to_the_branch_that_it_leaves(make_config):
    with trieye.Run(make_config()) as run:
        for _ in run.steps(5):
            run.log("loss", 1.0)
        run.save().wait()
        run.log({"loss": 1000.0, "lost": 1.0}, step=6)
        assert run.restore()
        for _ in run.steps(6):
            run.log("loss", 2.0)
        assert {name: entry["last"] for name, entry in run.summary().items()} == {"loss": 2.0}
        run.step = 7
        run.log("loss", 9.0)
        assert run.supersede(7)
        assert run.best("loss", "max") == 2.0


def test_the_last_of_several_open_runs_restores_the_log_level(make_config):
    library = logging.getLogger("trieye")
    before = library.level
    first, second = (trieye.Run(make_config(run_name=name)).open() for name in ("first", "second"))
    for run in (first, second):
        run.log("loss", 1.0)
    first.close()
    assert library.getEffectiveLevel() == logging.INFO
    second.close()
    assert library.level == before


def test_save_due_stays_true_until_the_save(make_config):
    with trieye.Run(make_config(persistence={"checkpoint_save_freq_steps": 5})) as run:
        due = []
        for step in run.steps(20):
            due += [step] * run.save_due
            if run.save_due and step in {7, 12, 13, 20}:  # as if a save were possible only between episodes
                run.save()
    assert due == [5, 6, 7, 10, 11, 12, 15, 16, 17, 18, 19, 20]


def test_a_changed_config_is_reported(make_config, capfd):
    class WithAgent(trieye.TrieyeConfig):
        agent: int = 1

    base = make_config().model_dump()
    for agent, warned in ((1, False), (1, False), (2, True)):
        with trieye.Run(WithAgent.model_validate({**base, "agent": agent})):
            pass
        assert ("agent: 1 -> 2" in capfd.readouterr().err) == warned


def test_log_rejects_malformed_values_and_keeps_others(make_config):
    names = [(["a"], 1.0), ("", 1.0), (None,), ("a",)]
    values = [("a", value) for value in (np.zeros(2), 10**400, np.complex128(1 + 2j), {"nested": 1.0}, "abc")]
    contexts = [5, {"k": threading.Lock()}, {"k": np.zeros(3)}, {"k": "x" * 100_000}]
    wall_times = [float("nan"), 1.8e12, "x", object()]  # 1.8e12: milliseconds
    options = [{"step": 1.5}, *({"context": context} for context in contexts), *({"wall_time": t} for t in wall_times)]
    with trieye.Run(make_config(stats={"metrics": [{"name": "good", "aggregation": "count"}]})) as run:
        run.log("good", 1.0, step=1)
        for arguments, option in [
            *((each, {}) for each in (*names, *values)),
            *((("a", 1.0), each) for each in options),
        ]:
            with pytest.raises((TypeError, ValueError), match=r"^log\("):
                run.log(*arguments, **option)
        run.log("good", 1.0, step=1)
        run.step = 1
        assert {name: entry["last"] for name, entry in run.summary().items()} == {"good": 2.0}


def test_numbers_of_other_libraries_can_be_logged(make_config):
    import torch

    with trieye.Run(make_config()) as run:
        run.log("a", torch.tensor(2.0), step=np.int64(3), context={"episode": np.int32(4)})
        run.log("b", True, step=3)  # noqa: FBT003
        run.log("c", torch.tensor(4.0, requires_grad=True), step=3)  # a warning is an error here
        run.log({"d": {"e": 5.0, "f": {"g": 6.0}}, "h": None, "i": np.array([7.0])}, step=3)
        run.step = 3
        best_values = [run.best(name, "max") for name in ("a", "b", "c", "d/e", "d/f/g", "i")]
        assert best_values == [2.0, 1.0, 4.0, 5.0, 6.0, 7.0]


class Name(enum.StrEnum):
    LOSS = "loss"


class Level(enum.IntEnum):
    HIGH = 3


def test_the_hub_receives_plain_values_for_enum_members_and_numpy_strings(make_config, monkeypatch):
    sent = []

    def recording(real, request, *content, **options):
        sent.append(pickle.dumps(content))
        return real(request, *content, **options)

    metrics = [{"name": "levels", "raw_event_name": "loss", "context_key": "level", "aggregation": "sum"}]
    with trieye.Run(make_config(stats={"metrics": metrics})) as run:
        hub = run._attempt.hub
        for method in ("ask", "send"):
            monkeypatch.setattr(hub, method, partial(recording, getattr(hub, method)))
        run.log({Name.LOSS: 1.0, "a": {Name.LOSS: 2.0}}, step=1, context={"level": Level.HIGH, "of": Name.LOSS})
        run.log(np.str_("loss"), 3.0, step=1, context={"level": np.float64(4.0)})
        run.log_params({Name.LOSS: Level.HIGH, "eos_token": 5})
        run.set_tags({Name.LOSS: Name.LOSS})
        run.step = 1
        assert [run.best(name, "max") for name in ("levels", "a/loss")] == [7.0, 2.0]
    assert not any(__name__.encode() in data for data in sent)  # an actor may be unable to import the classes
    assert record_of(run.dir).params == {"loss": "3", "eos_token": "5"}


def test_a_list_is_logged_as_one_event_per_item_or_not_at_all(make_config):
    metrics = [{"name": kind, "raw_event_name": "return", "aggregation": kind} for kind in ("count", "max", "mean")]
    with trieye.Run(make_config(stats={"metrics": metrics})) as run:
        run.log({"return": [1.0, 6.0, np.float32(2.0)], "none": []}, step=1)
        with pytest.raises(TypeError, match=r"log\('return', \[5\]\): the value must be one number"):
            run.log("return", [100.0, [5]], step=1)
        run.step = 1
        assert [run.best(kind, "max") for kind in ("count", "max", "mean")] == [3.0, 6.0, 3.0]


def test_plain_data_is_restored_by_name_and_an_unsaved_object_suggests_the_closest_one(make_config):
    with trieye.Run(make_config()) as run:
        run.save(counter=5, agent=Agent())
    with trieye.Run(make_config()) as run:
        with pytest.raises(ConfigurationError, match=r"run\.restored\['counter'\]"):
            run.restore(counter=0)
        with pytest.raises(CheckpointError, match=r"no 'agnet'; did you mean 'agent'"):
            run.restore(agnet=Agent())
        run.restore()
        assert run.restored["counter"] == 5


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (SystemExit(0), "FINISHED", ""),
        (SystemExit(1), "FAILED", "SystemExit: 1"),
        (SystemExit("no data"), "FAILED", "SystemExit: no data"),
        (RuntimeError("power cut"), "FAILED", "RuntimeError: power cut"),
        (KeyboardInterrupt(), "KILLED", ""),
    ],
    ids=repr,
)
def test_the_error_that_ends_a_run_determines_its_status(make_config, error, status, reason):
    with pytest.raises(type(error)), trieye.Run(make_config()).open() as run:
        assert run.attempt == 1  # opened twice
        raise error
    assert record_of(run.dir).status == status
    assert reason in runs.diagnose(run.dir).reason


def test_the_last_points_of_an_interrupted_run_with_a_checkpoint_are_in_its_history(make_config):
    with pytest.raises(KeyboardInterrupt), trieye.Run(make_config()) as run:
        run.log({"loss": 3.0}, step=1)
        run.step = 1
        run.save(weights=[1.0]).wait()
        run.log({"loss": 2.0, "return": 5.0}, step=2)
        raise KeyboardInterrupt
    metrics = runs.get(run.dir).metrics
    assert (metrics["loss"]["last"], metrics["return"]["last"]) == (2.0, 5.0)


def test_an_unwritable_failure_report_neither_hides_the_error_nor_prevents_the_close(make_config):
    config = make_config()
    with pytest.raises(RuntimeError, match="power cut") as failure, trieye.Run(config) as run:
        (run.dir / "logs" / "failure_of_attempt_1.txt").mkdir()
        raise RuntimeError("power cut")
    assert any("failure_of_attempt_1.txt" in note for note in failure.value.__notes__)
    assert record_of(run.dir).status == "FAILED"
    with pytest.raises(RuntimeError), trieye.Run(config) as run:  # no reference is left
        raise RuntimeError("a file name that is no UTF-8: \udcff")
    assert "\\udcff" in (run.dir / "logs" / "failure_of_attempt_2.txt").read_text()


def test_a_run_with_a_full_disk_for_its_log_file_releases_the_lock(make_config):
    for attempt in (1, 2):
        with trieye.Run(make_config()) as run:
            assert run.attempt == attempt
            (log_file,) = (file for file in logging.getLogger("trieye").handlers if hasattr(file, "baseFilename"))
            with open("/dev/full", "wb") as full:  # noqa: PTH123 - a device
                os.dup2(full.fileno(), log_file.stream.fileno())
            logging.getLogger("trieye").info("a line")
    assert record_of(run.dir).status == "FINISHED"


def test_lost_values_fail_the_run_and_do_not_hide_a_failed_save(make_config):
    run = trieye.Run(make_config(runtime={"kind": "local", "ack_timeout_s": 0.05})).open()
    (run.dir / "checkpoints").rmdir()
    (run.dir / "checkpoints").write_text("in the way")
    run.step = 1
    run.save(agent=Agent())

    def raise_unreachable(request, *content, **number):
        raise ConnectionError("the hub is gone")

    run._attempt.hub.send = raise_unreachable
    run.log("a", 1.0)
    with pytest.raises(trieye.ProcessingError, match="the hub is gone; 1 values are not logged") as failure:
        run.close()
    assert any("step 1" in note for note in failure.value.__notes__)
    assert record_of(run.dir).status == "FAILED"


def test_a_forked_child_neither_logs_nor_closes(make_config):
    with trieye.Run(make_config()) as run:
        client = run.client()

        def log():
            for logger in (run, client):
                with pytest.raises(RunClosedError, match=f"process {os.getppid()}; a forked process cannot use it"):
                    logger.log("a", 1.0)
                logger.close()

        assert in_a_child(log) == 0
        assert record_of(run.dir).status == "RUNNING"
        run.log("a", 1.0)
        client.log("a", 1.0)
    assert record_of(run.dir).status == "FINISHED"


def test_a_killed_hub_raises_on_close_and_fails_the_run(make_config, ray_cluster):
    import ray

    run = trieye.Run(make_config(runtime={"kind": "ray"})).open()
    ray.kill(run._attempt.hub._actor)
    run.log("a", 1.0)
    with pytest.raises(trieye.TrieyeError, match="gone for good"):
        run.close()
    assert record_of(run.dir).status == "FAILED"


@pytest.fixture
def set_handler():
    """Return a function that sets the handler of SIGTERM, for one test."""
    before = signal.getsignal(signal.SIGTERM)
    yield lambda handler: signal.signal(signal.SIGTERM, handler)
    signal.signal(signal.SIGTERM, before)


def test_an_open_run_handles_sigterm_and_restores_the_handler(make_config, set_handler, monkeypatch):
    monkeypatch.setattr("trieye.process.signals.SAME_WITHIN_S", -1.0)
    set_handler(signal.SIG_DFL)
    with pytest.raises(SystemExit) as raised, trieye.Run(make_config()) as run:
        signal.raise_signal(signal.SIGTERM)
    assert raised.value.code == 143
    assert record_of(run.dir).status == "KILLED"
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_closed_run_leaves_signals_to_the_program_while_its_iterator_is_referenced(make_config, set_handler):
    received = []
    set_handler(lambda number, _: received.append(number))
    with trieye.Run(make_config()) as run:
        loops = [iter(run.steps(100)), iter(run.steps(200))]
        for steps in loops:
            next(steps)
    signal.raise_signal(signal.SIGTERM)
    assert (received, run.stop_requested) == ([signal.SIGTERM], False)


@pytest.mark.parametrize("code", [7, 143])
def test_sys_exit_after_a_signal_kills_the_run(make_config, set_handler, code):
    received = []
    set_handler(lambda number, _: received.append(number) if code == 143 else sys.exit(code))
    with pytest.raises(SystemExit), trieye.Run(make_config()) as run:
        signal.raise_signal(signal.SIGTERM)
        sys.exit(128 + received[0])
    assert record_of(run.dir).status == "KILLED"


def test_ctrl_c_ends_the_wait_for_sinks_and_names_the_command_that_delivers(make_config, monkeypatch):
    monkeypatch.setattr(attempt_module, "_FIRST_PROGRESS_S", 0.2)
    monkeypatch.setattr(sys, "stderr", errors := io.StringIO())
    run = trieye.Run(make_config(sinks={"mlflow": {"enabled": True}}))
    database = run.dir.parents[1] / "mlruns" / "mlflow.db"
    database.parent.mkdir(parents=True)

    def press_ctrl_c():
        wait_until(lambda: "Ctrl-C leaves" in errors.getvalue())
        os.kill(os.getpid(), signal.SIGINT)

    with FileLock(f"{database}.lock"):
        with pytest.raises(trieye.RunInterrupted) as raised, run:
            run.log("loss", 0.5, step=1)
            user = threading.Thread(target=press_ctrl_c)
            user.start()
        user.join()
        assert raised.value.exit_code == 130
        assert re.search(r"closing run 'run': .*mlflow: \d+ items to go.*Ctrl-C leaves the rest", errors.getvalue())
        assert f"the next start or `trieye close {run.dir}` delivers them" in errors.getvalue()
        assert "second signal" not in errors.getvalue()
        assert record_of(run.dir).status == "KILLED"
        assert read_history(run.dir, metrics=["loss"]).column("value").to_pylist() == [0.5]
    # the process keeps the thread for calls of the main thread
    wait_until(lambda: not any(re.match("trieye-(?!calls)", thread.name) for thread in threading.enumerate()))


def test_histograms_images_and_texts_are_logged_at_the_step_of_the_run_by_default(make_config):
    with trieye.Run(make_config()) as run:
        run.step = 3
        run.log_histogram("weights", [1.0, 2.0, 2.0], bins=2)
        run.log_image("frame", np.zeros((4, 6, 3), np.uint8), step=5)
        run.log_text("note", "**good**")
        run.flush()
        items, _ = run._attempt.hub._logic.files.history.read(0, 100)
        media = [(type(item).__name__, item.name, item.step) for item in items if isinstance(item, Medium)]
    assert media == [("LogHistogram", "weights", 3), ("LogImage", "frame", 5), ("LogText", "note", 3)]


def test_a_failed_save_does_not_prevent_later_saves(make_config, monkeypatch):
    with pytest.raises(CheckpointError, match="step 1"), trieye.Run(make_config()) as run:
        (run.dir / "checkpoints").rmdir()
        (run.dir / "checkpoints").write_text("in the way")
        run.step = 1
        first = run.save(agent=Agent())
        wait_until(lambda: first.done)
        (run.dir / "checkpoints").unlink()
        run.step = 2
        run.save(agent=Agent())
    assert [path.name for path in sorted((run.dir / "checkpoints").glob("checkpoint_*"))] == ["checkpoint_step_2"]


def test_a_foreign_loop_saves_and_resumes_with_its_own_step_count(make_config):
    def learn(run, first, last):
        """A loop of another library, which counts its steps itself and does not call run.steps()."""
        for timesteps in range(first, last + 1, 400):
            run.log("reward", timesteps / 2, step=timesteps)
            run.save(step=np.int64(timesteps), weights=np.full(2, timesteps))

    with trieye.Run(make_config()) as run:
        learn(run, 400, 1200)
        assert (run.saved_step, run.step) == (1200, 0)
    with trieye.Run(make_config()) as run:
        assert run.restore()
        assert (run.step, run.saved_step) == (1200, 1200)
        assert run.restored["weights"].tolist() == [1200, 1200]
        learn(run, 1600, 2000)
        assert run.save(x=1).wait().name == "checkpoint_step_1200"  # by default, the step of the run
    names = {path.name for path in (run.dir / "checkpoints").glob("checkpoint_step_*")}
    assert names == {f"checkpoint_step_{step}" for step in (400, 800, 1200, 1600, 2000)}
    assert read_history(run.dir)["step"].to_pylist() == [400, 800, 1200, 1600, 2000]


def test_save_accepts_an_earlier_step_numpy_scalars_tensors_and_nan(make_config):
    with trieye.Run(make_config()) as run:
        run.save(step=5, x=5, objective=np.float32("nan"))
        run.step = np.int64(20)
        run.save(x=20, objective="later")
        objective = torch.tensor(0.5, requires_grad=True)
        run.save(step=np.int64(10), x=10, objective=objective)  # as in `log`: the last save is the newest
        assert run.saved_step == 10
    with trieye.Run(make_config()) as run:
        assert run.restore()
        assert (run.step, type(run.step), run.restored["x"]) == (10, int, 10)
    unrated, *saved = [(row.step, row.objective) for row in runs.checkpoints(run.dir).checkpoints]
    assert (unrated[0], saved) == (5, [(20, None), (10, 0.5)])
    assert (run.dir / "checkpoints" / "best.pkl").resolve().name == "checkpoint_step_10"


def test_save_rejects_other_steps_and_objectives(make_config):
    with trieye.Run(make_config()) as run:
        for options, message in [
            ({"step": -1}, r"save\(step=-1\): step must be at least 0"),
            ({"step": 1.5}, r"save\(step=1.5\): step must be an integer"),
            ({"objective": "0.5"}, r"objective='0.5'\): objective must be a number, 'later' or None"),
            ({"step": 2**70}, r"save\(step=\d+\): step must be at least 0 and less than 2\*\*63"),
            ({"objective": [1.0]}, "objective must be a number, .*must be a string or a real number"),
            ({"objective": 10**400}, "objective must be a number, .*too large"),
        ]:
            with pytest.raises((TypeError, ConfigurationError), match=message):
                run.save(x=1, **options)
        for objective in ("later", 10**400):
            with pytest.raises(ConfigurationError, match=r"rate\(objective=.* must be a number or None"):
                run.rate(1, objective)
        run.step = np.float64(8.5)
        with pytest.raises(TypeError):
            run.save(x=1)
    assert not list(run.dir.glob("checkpoints/checkpoint_step_*"))


def test_plain_data_named_replay_is_not_confused_with_the_buffer(make_config):
    with trieye.Run(make_config()) as run:
        run.step = 1
        run.save(replay=[1, 2, 3]).wait()
        run.replay.add(x=1.0)
        with pytest.raises(ConfigurationError, match=r"the name 'replay' belongs to run\.replay"):
            run.save(replay=[1, 2, 3])
    with trieye.Run(make_config()) as run:
        assert run.restore()
        assert run.restored["replay"] == [1, 2, 3]


def test_parameters_and_tags_are_a_nested_dict_of_any_text(make_config):
    sink = MemorySink()
    with trieye.Run(make_config(), sinks=[sink]) as run:
        for method in (run.log_params, run.set_tags):
            method({"agent": {"lr": 0.1}, "data\udce9": os.fsdecode(b"caf\xe9.csv")})
            with pytest.raises(TypeError, match=r"\['lr'\]: parameters and tags must be a dict"):
                method(["lr"])
    expected = {"agent.lr": "0.1", "data\\udce9": "caf\\udce9.csv"}
    assert record_of(run.dir).params == record_of(run.dir).tags == expected
    assert sink.tags.items() >= expected.items()


def test_tags_set_by_concurrent_threads_are_all_recorded(make_config):
    switched = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with trieye.Run(make_config()) as run, ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda number: run.set_tags({f"tag{number}": "x"}), range(200)))
    finally:
        sys.setswitchinterval(switched)
    assert len(record_of(run.dir).tags) == 200
