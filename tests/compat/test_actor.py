"""The drop-in API in a real Ray actor."""

import os
import re
import signal
import time
import uuid
from pathlib import Path

import numpy as np
import pytest
import ray
from mlflow.tracking import MlflowClient

import trieye
from tests import warm
from tests.drop_in import training_state
from tests.hub.conftest import event
from tests.waiting import wait_until
from trieye.compat.actor import get_or_create
from trieye.compat.actor_logic import ActorLogic
from trieye.config import DEFAULT_METRICS
from trieye.files.run_record import RunRecord

pytestmark = [
    pytest.mark.usefixtures("ray_cluster"),
    pytest.mark.filterwarnings("ignore:upper-case config keys:DeprecationWarning"),
]


def make_store(app_dir):
    """Make MLflow's store of an application, which would take its actor some seconds."""
    store = app_dir / "mlruns/mlflow.db"
    store.parent.mkdir(parents=True)
    warm.copy_tables(Path(os.environ[warm.TABLES]), store)


@pytest.fixture
def start(tmp_path):
    """Return a function that starts an actor as clients of 0.1.5 do."""
    actors = []

    def start_actor(config=None, **settings):
        config = config or trieye.TrieyeConfig(
            app_name="my_app",
            persistence=trieye.PersistenceConfig(ROOT_DATA_DIR=str(tmp_path)),
            **{"run_name": f"run_{uuid.uuid4().hex[:8]}", **settings},
        )
        name = f"trieye_actor_{config.run_name}"
        actor = trieye.TrieyeActor.options(name=name, lifetime="detached").remote(config=config)
        actors.append(actor)
        return actor, config

    yield start_actor
    for actor in actors:
        ray.kill(actor)


@pytest.mark.long
def test_the_program_in_the_compatibility_page_runs(tmp_path, monkeypatch):
    page = Path(__file__).parents[2] / "docs/compatibility.md"
    (program,) = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    make_store(tmp_path / "data/old_app")
    exec(compile(program, str(page), "exec"), {})  # noqa: S102 - that is the point
    assert (tmp_path / "data/old_app").is_dir()


def save(actor, step, **changes):
    state = training_state(step, **{"nn_state_dict": {"param": step}, "save_buffer": True, **changes})
    for name in ("is_best", "model_config_dict", "env_config_dict", "user_data"):  # they have defaults
        state.pop(name)
    return actor.save_training_state.remote(**state)


@pytest.mark.slow
def test_a_program_of_0_1_5_logs_every_due_point_and_resumes(start, tmp_path):
    metrics = [
        *DEFAULT_METRICS,
        trieye.MetricConfig(name="Custom/MyValue", source="custom", aggregation="mean", log_frequency_steps=20),
    ]
    stats = trieye.StatsConfig(processing_interval_seconds=2.0, metrics=metrics)
    make_store(tmp_path / "my_app")
    first, config = start(stats=stats)
    run_id = ray.get(first.wait_mlflow_run_id.remote(60.0))
    assert ray.get(first.get_mlflow_run_id.remote(), timeout=10) == run_id
    assert ray.get(first.load_initial_state.remote()).checkpoint_data is None
    for step in range(1, 101):
        first.log_event.remote(event("Loss/Total", 0.5, step))
        first.log_event.remote(event("step_completed", 1, step))
        first.log_batch_events.remote([event("Custom/MyValue", step * 2, step), event("Buffer/Size", step, step)])
        if step % 10 == 0:
            first.log_event.remote(event("episode_end", 1, step, context={"score": 1.0, "length": 9}))
        first.process_and_log.remote(step)
    save(first, 100)
    ray.get(first.force_process_and_log.remote(100), timeout=15)
    pid = ray.get(first.health.remote())["pid"]
    assert pid != os.getpid()
    assert "libtorch" not in Path(f"/proc/{pid}/maps").read_text(), "no tensor has come"
    ray.get(first.shutdown.remote(), timeout=15)

    client = MlflowClient(config.persistence.MLFLOW_TRACKING_URI)
    assert client.get_run(run_id).info.status == "FINISHED"
    assert [point.step for point in client.get_metric_history(run_id, "Loss/Total")] == list(range(10, 101, 10))
    assert [point.step for point in client.get_metric_history(run_id, "Custom/MyValue")] == [20, 40, 60, 80, 100]
    assert abs(time.time() - client.get_metric_history(run_id, "Loss/Total")[-1].timestamp / 1000) < 300
    assert {item.path for item in client.list_artifacts(run_id, "config")} == {"config/configs.json"}
    assert client.get_run(run_id).data.params["checkpoints_dir"] == f"runs/{config.run_name}/checkpoints"

    later_run = {"app_name": "my_app", "run_name": "later", "persistence": {"ROOT_DATA_DIR": str(tmp_path)}}
    logic = ActorLogic(trieye.TrieyeConfig(**later_run, stats=stats, sinks={})).open()
    state = logic.load_initial_state()
    logic.shutdown()
    assert state.checkpoint_data.global_step == 100
    assert state.checkpoint_data.model_state_dict == {"param": 100}
    assert len(state.buffer_data.buffer_list) == 100


@pytest.mark.long
def test_the_actor_responds_while_it_saves_and_shutdown_waits_for_saves_and_events(start):
    stats = trieye.StatsConfig(metrics=[trieye.MetricConfig(name="m", aggregation="count")])
    actor, config = start(stats=stats, sinks={})
    ray.get(actor.get_actor_name.remote())
    saving = save(actor, 1, nn_state_dict={"w": np.zeros(20_000_000)})
    waits = []
    while not ray.wait([saving], timeout=0)[0]:
        began = time.perf_counter()
        ray.get(actor.log_event.remote(event("other")))
        waits.append(time.perf_counter() - began)
    ray.get(saving)
    assert len(waits) > 1
    assert sorted(waits)[len(waits) // 2] < 0.25

    for _ in range(200):
        actor.log_event.remote(event(step=3))
    save(actor, 3, nn_state_dict={"w": np.zeros(5_000_000)})
    ray.get(actor.shutdown.remote())
    record = RunRecord.read(config.persistence.get_run_base_dir() / "run.json")
    assert record.summary["m"]["last"] == 200.0
    assert (config.persistence.get_run_base_dir() / "checkpoints" / "checkpoint_step_3").is_dir()
    with pytest.raises(ray.exceptions.RayTaskError, match="closed"):
        ray.get(actor.log_event.remote(event()))


@pytest.mark.long
def test_getters_return_what_0_1_5_returned_and_terminate_releases_the_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = trieye.TrieyeConfig(app_name="my_app", run_name="shared", persistence={"root_data_dir": "data"}, sinks={})
    monkeypatch.chdir("/")
    actor = get_or_create(config)
    assert get_or_create(config) == actor
    name = ray.get(actor.get_actor_name.remote())
    assert name == "trieye_actor_shared"
    assert ray.get(actor.get_run_base_dir_str.remote()) == str(tmp_path / "data" / "my_app" / "runs" / "shared")
    copy = ray.get(actor.get_config.remote())
    assert (copy.app_name, copy.run_name) == ("my_app", "shared")
    state = {"last_processed_step": 7, "last_processed_time": 1.0, "_last_log_time_per_metric": {}}
    ray.get(actor.set_state.remote(state))
    assert {key: value for key, value in ray.get(actor.get_state.remote()).items() if key in state} == state
    ray.get(actor.save_run_config.remote({"model": {"layers": 2}}))
    ray.get(actor.close_tb_writer.remote())
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(actor.terminate.remote())

    def is_free():
        try:
            ray.get_actor(name)
        except ValueError:
            return True
        return False

    wait_until(is_free)
    assert RunRecord.read(config.persistence.get_run_base_dir() / "run.json").status == "FINISHED"


@pytest.mark.slow
def test_a_killed_actor_resumes_the_same_run_and_unanswered_calls_count_once(start):
    metrics = [trieye.MetricConfig(name=name, aggregation="count") for name in ("one", "many")]
    actor, config = start(stats=trieye.StatsConfig(metrics=metrics), sinks={})
    calls = []
    pid = ray.get(actor.health.remote())["pid"]
    run_id = RunRecord.read(config.persistence.get_run_base_dir() / "run.json").run_id
    for number in range(150):
        calls.append(actor.log_event.remote(event("one", step=1)))
        calls.append(actor.log_batch_events.remote([event("many", step=1)] * 3))
        calls.append(actor.count_dropped.remote([("elsewhere", "*", 2)]))
        if number == 50:
            ray.get(calls[number])  # some are done by now, some under way, some not there yet
            os.kill(pid, signal.SIGKILL)
    ray.get(calls, timeout=120)
    ray.get(actor.force_process_and_log.remote(1))
    summary = ray.get(actor.summary.remote())
    assert {name: summary[name]["last"] for name in ("one", "many")} == {"one": 150.0, "many": 450.0}
    health = ray.get(actor.health.remote())
    assert health["dropped"] == {"elsewhere": 300}
    assert health["pid"] != pid
    record = RunRecord.read(config.persistence.get_run_base_dir() / "run.json")
    assert (record.run_id, record.attempt) == (run_id, 1)
