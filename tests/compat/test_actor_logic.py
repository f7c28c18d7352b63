import json
import logging
import pickle
from dataclasses import dataclass

import numpy as np
import pytest
from pydantic import BaseModel, ConfigDict, SecretStr

import trieye
from tests.curves import curves_in_tensorboard
from tests.drop_in import training_state
from tests.hub.conftest import event
from tests.waiting import wait_until
from trieye.compat.actor_logic import ActorLogic
from trieye.compat.path_manager import PathManager
from trieye.config import DEFAULT_METRICS
from trieye.exceptions import RunClosedError
from trieye.files.run_record import RunRecord
from trieye.hub.marks import unpack_state
from trieye.journal.journal import Journal
from trieye.stats.batch import EventBatch, EventRow

COUNT = {"metrics": [{"name": "m", "aggregation": "count", "log_frequency_steps": 10}]}


def state_arguments(step, **changes):
    state = {"nn_state_dict": {"w": np.arange(3.0)}, "user_data": {"note": ("a", 1)}, "save_buffer": True}
    return training_state(step, **{**state, **changes})


def test_the_timer_closes_windows_automatically(open_logic):
    logic = open_logic(stats={"processing_interval_seconds": 0.01, "metrics": [{"name": "m", "aggregation": "sum"}]})
    logic.log_batch_events([event(step=1), event(step=2)])
    wait_until(lambda: "m" in logic.summary())
    assert logic.summary()["m"]["step"] == 1


def test_process_and_log_waits_for_the_interval_and_force_does_not(make_config, clock):
    config = make_config(
        stats={"processing_interval_seconds": 1000.0, "metrics": [{"name": "m", "aggregation": "sum"}]}
    )
    logic = ActorLogic(config, clock=clock).open()
    logic.log_event(event(step=1))
    clock.now += 500
    logic.process_and_log(1)
    assert logic.summary() == {}
    clock.now += 600
    logic.process_and_log(1)
    assert logic.summary()["m"]["step"] == 1
    logic.log_event(event(step=2))
    logic.force_process_and_log(2)
    assert logic.summary()["m"]["step"] == 2
    assert logic.get_state()["last_processed_step"] == 2
    assert unpack_state(logic.packed_state(2))["stats"] == logic.get_state(2)["stats"]
    logic.shutdown()


def test_invalid_events_are_counted_and_affect_no_others(open_logic, caplog):
    logic = open_logic(stats={"metrics": [{"name": "m", "aggregation": "count"}]})
    impossible = [event(value=10**400), event(value=-(10**400)), event(step=1 << 80)]
    logic.log_batch_events([event(), "nonsense", *impossible, event(), None])
    logic.force_process_and_log(10)
    assert logic.summary()["m"]["last"] == 2.0
    assert logic.status.health()["accepted"] == 2
    assert logic.status.health()["dropped"] == {"invalid": 2, "non_finite": 2, "step_out_of_range": 1}
    assert any("str" in message for message in caplog.messages)


def test_undeclared_events_are_logged_without_metrics_and_counted_with_them(open_logic):
    everything = open_logic(run_name="a")
    everything.log_event(event("anything"))
    everything.force_process_and_log(1)
    assert "anything" in everything.summary()
    some = open_logic(run_name="b", stats={"metrics": DEFAULT_METRICS})
    some.log_event(event("anything"))
    some.force_process_and_log(1)
    assert some.status.health()["dropped"] == {"undeclared": 1}


def test_a_million_early_events_do_not_accumulate(open_logic):
    logic = open_logic(
        stats={"processing_interval_seconds": 3600, "metrics": [{"name": "m", "log_frequency_steps": 0}]}
    )
    batch = EventBatch.from_rows([EventRow("m", 1.0, 1, 0.0)] * 10_000)
    for _ in range(100):
        logic._ledger.log_columns(batch)
        assert len(logic._state) <= 60_000


def test_a_closed_hub_accepts_and_saves_nothing(open_logic):
    logic = open_logic()
    logic.shutdown()
    logic.shutdown()
    for call in (
        lambda: logic.log_event(event()),
        lambda: logic.save_training_state(**state_arguments(5)),
        logic.load_initial_state,
        lambda: logic.save_run_config({}),
        lambda: logic.tracking.set_tags({}),
    ):
        with pytest.raises(RunClosedError, match="run"):
            call()
    assert not list(logic.files.paths.checkpoint_dir.iterdir())


def test_another_attempt_restores_state_and_buffer_and_keeps_events_logged_before(open_logic):
    first = open_logic()
    first.save_training_state(**state_arguments(5))
    first.shutdown()
    second = open_logic()
    second.log_event(event("early", step=6))
    loaded = second.load_initial_state()
    second.force_process_and_log(6)
    assert "early" in second.summary()
    data = loaded.checkpoint_data
    assert (data.run_name, data.global_step, data.episodes_played) == ("run", 5, 2)
    assert data.model_state_dict["w"].tolist() == [0.0, 1.0, 2.0]
    assert data.user_data == {"note": ("a", 1)}
    assert loaded.buffer_data.buffer_list == [0, 1, 2, 3, 4]
    assert loaded.buffer_step == 5


def test_a_checkpoint_of_the_run_is_recognized_through_a_link(open_logic, tmp_path):
    (tmp_path / "far away").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "far away")
    root = {"root_data_dir": str(tmp_path / "link")}
    first = open_logic(persistence=root)
    first.save_training_state(**state_arguments(4))
    first.shutdown()
    path = str(first.files.paths.get_checkpoint_path(4))
    _, restored = open_logic(persistence={**root, "load_checkpoint_path": path})._training.find()
    assert restored.origin["is_own"]
    assert restored.hub_state


def test_a_new_run_starts_from_the_newest_earlier_run_with_separate_curves(open_logic):
    first = open_logic(run_name="alpha", stats=COUNT)
    first.log_event(event(step=3))
    first.save_training_state(**state_arguments(3))
    first.shutdown()
    second = open_logic(run_name="beta", stats=COUNT, persistence={"auto_resume_latest": True})
    assert second.load_initial_state().resumed_from == "alpha"
    second.force_process_and_log(100)
    assert second.summary() == {}


def test_open_windows_of_a_run_continue_after_a_preemption(open_logic):
    first = open_logic(stats=COUNT)
    first.log_batch_events([event(step=step) for step in range(1, 8)])
    first.save_training_state(**state_arguments(7))
    first.shutdown("KILLED")
    record = RunRecord.read(first.files.paths.run_record_path)
    assert (record.attempt, record.status, record.summary) == (1, "KILLED", {})
    second = open_logic(stats=COUNT)
    assert second.files.record.attempt == 2
    assert second.files.record.run_id == record.run_id
    second.load_initial_state()
    second.log_batch_events([event(step=step) for step in range(8, 12)])
    second.tick()
    assert second.summary()["m"] == {"last": 10.0, "min": 10.0, "max": 10.0, "step": 10}


def test_restoring_from_a_host_with_another_uptime_changes_nothing(open_logic):
    logic = open_logic(stats={"processing_interval_seconds": 0.001})
    logic.set_state({"last_processed_step": 5, "last_processed_time": 1e12, "_last_log_time_per_metric": {"m": 1e12}})
    logic.log_event(event(step=6))
    logic.process_and_log(6)
    logic.flush(6)
    assert logic.summary()["m"]["step"] == 6


def test_another_config_filename_adds_a_copy_of_configs_json(open_logic):
    paths = open_logic(persistence={"config_filename": "mine.json"}).files.paths
    copy_path = PathManager(paths.persist_config).get_config_path()
    assert (paths.config_path.name, copy_path.name) == ("configs.json", "mine.json")
    assert paths.config_path.read_bytes() == copy_path.read_bytes()
    assert trieye.TrieyeConfig.of_run(paths.run_base_dir).persistence.config_filename == "mine.json"


def test_configs_json_gains_sections_without_secrets_and_arrays_of_objects(open_logic):
    class Model(BaseModel):
        model_config = ConfigDict(arbitrary_types_allowed=True)
        api_key: str = "hunter2"
        weights: np.ndarray = np.ones(2)

    @dataclass
    class Game:
        password: str
        login: SecretStr

    logic = open_logic()
    logic.save_run_config({"model": Model(), "all": [Model(), Game("typed-pw", SecretStr("ann"))], "scale": np.ones(2)})
    logic.save_run_config({"stats": {"mine": 1}, "env": "CartPole-v1"})
    stored = json.loads(logic.files.paths.config_path.read_text())
    assert (stored["app_name"], stored["env"], stored["run_config"]) == ("app", "CartPole-v1", {"stats": {"mine": 1}})
    assert "processing_interval_seconds" in stored["stats"]
    model = {"api_key": "***", "weights": "<tensor/array>"}
    assert (stored["model"], stored["scale"]) == (model, "<tensor/array>")
    assert stored["all"] == [model, {"password": "***", "login": "***"}]


def test_a_passed_path_manager_creates_no_files(make_config, tmp_path):
    config = make_config()
    logic = ActorLogic(config, path_manager=trieye.PathManager(config.persistence)).open()
    logic.log_event(event())
    logic.shutdown()
    assert not (tmp_path / "root").exists()


def test_a_finished_run_that_continues_counts_no_event_twice(open_logic):
    for begin, end in ((1, 15), (16, 16), (17, 40)):
        logic = open_logic(stats=COUNT, sinks={"tensorboard": {"enabled": True}})
        logic.load_initial_state()
        logic.log_batch_events([event(step=step) for step in range(begin, end + 1)])
        logic.save_training_state(**state_arguments(end))
        logic.shutdown()
    points = curves_in_tensorboard(logic.files.paths.run_base_dir)
    assert sum(value for _, value in points["m"]) == 40


def test_a_save_at_a_complete_step_logs_its_window_once(open_logic):
    first = open_logic(stats=COUNT)
    first.log_batch_events([event(step=step) for step in range(1, 11)])
    first.save_training_state(**state_arguments(10))
    assert first.summary()["m"]["step"] == 10
    first.shutdown("KILLED")
    second = open_logic(stats=COUNT)
    second.load_initial_state()
    second.force_process_and_log(10)
    assert second.get_state()["stats"]["windows"]["m"]["open"] == []


def test_an_invalid_timestamp_becomes_the_time_of_arrival(open_logic):
    logic = open_logic(sinks={"tensorboard": {"enabled": True}})
    for step, timestamp in enumerate((float("nan"), float("inf"), -1.0, 1e300), start=1):
        logic.log_event(event(step=step, timestamp=timestamp))
    logic.shutdown()
    assert len(curves_in_tensorboard(logic.files.paths.run_base_dir)["m"]) == 4


def test_the_log_file_contains_records_of_the_whole_library(open_logic):
    logic = open_logic()
    logging.getLogger("trieye.checkpoints.choose").warning("something to remember")
    logic.shutdown()
    assert "something to remember" in logic.files.paths.get_log_file_path().read_text()


def test_a_damaged_configs_json_is_rewritten(open_logic):
    first = open_logic()
    first.shutdown()
    path = first.files.paths.config_path
    path.write_text(path.read_text()[:50])
    open_logic()
    assert json.loads(path.read_text())["app_name"] == "app"


def test_events_of_a_passed_state_are_logged_once_per_attempt(make_config):
    for is_restart in (False, True):
        state = trieye.ActorState()
        state.add_event(event(value=1.0))
        state = pickle.loads(pickle.dumps(state))  # the state of a sending process
        logic = ActorLogic(make_config(), state).open(is_restart=is_restart)
        if not is_restart:  # release everything as a killed process does
            logic._ticker.stop()
            logic.files.journal.close()
            logic.files._release()
    state.add_event(event(value=2.0, step=2))
    logic.force_process_and_log(2)
    assert logic.status.health()["accepted"] == 2
    assert (logic.get_state()["last_processed_step"], len(state)) == (2, 0)
    logic.shutdown()


def test_journal_damage_is_counted_once_even_if_hubs_die_before_reporting_it(open_logic, monkeypatch):
    logic = open_logic()
    logic.log_batch_events([event(step=step) for step in range(10)])
    logic.force_process_and_log(10)
    logic.shutdown()
    journal = logic.files.paths.journal_path
    for path in journal.parent.glob(f"{journal.name}*"):
        path.unlink()
    monkeypatch.setattr(Journal, "forget_repair", lambda _: None)
    counts = set()
    for number in range(3):
        if number == 2:
            monkeypatch.undo()
        logic = open_logic()
        counts.add(logic.status.health()["dropped"]["journal_damage"])
        logic.shutdown()
    (count,) = counts
    assert count > 0
    assert open_logic().status.health()["journal_damage"] == []
