import json
import logging
import threading

import numpy as np
import pytest

import trieye
from trieye.config import DEFAULT_METRICS
from trieye.exceptions import CheckpointError, RunClosedError, RunLockedError
from trieye.files.run_record import RunRecord
from trieye.hub.logic import ActorLogic
from trieye.stats.batch import EventBatch, EventRow


def event(name="m", value=1.0, step=1, **rest):
    return trieye.RawMetricEvent(name=name, value=value, global_step=step, **rest)


def saved(step, **changes):
    return {
        "nn_state_dict": {"w": np.arange(3.0)},
        "optimizer_state_dict": {"lr": 0.1},
        "buffer_content": [f"item {number}" for number in range(step)],
        "global_step": step,
        "episodes_played": 2,
        "total_simulations_run": 7,
        "is_best": False,
        "save_buffer": True,
        "model_config_dict": {"layers": 2},
        "env_config_dict": None,
        "user_data": {"note": ("a", 1)},
        **changes,
    }


@pytest.fixture
def open_logic(make_config):
    opened = []

    def open_with(**settings):
        logic = ActorLogic(make_config(**settings)).open()
        opened.append(logic)
        return logic

    yield open_with
    for logic in opened:
        logic.shutdown()


def points_in(directory):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(directory))
    accumulator.Reload()
    return {
        tag: [(point.step, point.value) for point in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]
    }


def test_every_due_point_reaches_tensorboard(open_logic):
    metrics = [
        {"name": "loss", "aggregation": "mean", "log_frequency_steps": 10},
        {"name": "n", "aggregation": "count"},
    ]
    logic = open_logic(sinks={"tensorboard": {"enabled": True}}, stats={"metrics": metrics})
    logic.log_batch_events([event("loss", step, step) for step in range(1, 101)])
    logic.log_batch_events([event("n", 1.0, 5)] * 3)
    logic.shutdown()
    points = points_in(logic.files.paths.tb_log_dir)
    assert [step for step, _ in points["loss"]] == list(range(10, 101, 10))
    assert points["n"] == [(5, 3.0)]


def test_the_timer_closes_windows_without_being_asked(open_logic):
    logic = open_logic(stats={"processing_interval_seconds": 0.01, "metrics": [{"name": "m", "aggregation": "sum"}]})
    logic.log_batch_events([event(step=1), event(step=2)])
    deadline = threading.Event()
    for _ in range(500):
        if "m" in logic.summary():
            break
        deadline.wait(0.01)
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
    logic.shutdown()


def test_what_is_no_event_is_counted_and_costs_nothing_else(open_logic, caplog):
    logic = open_logic(stats={"metrics": [{"name": "m", "aggregation": "count"}]})
    logic.log_batch_events([event(), "nonsense", event(), None])
    logic.force_process_and_log(10)
    assert logic.summary()["m"]["last"] == 2.0
    assert logic.health()["dropped"] == {"invalid": 2}
    assert any("str" in message for message in caplog.messages)


def test_the_drop_in_api_logs_everything_without_metrics_and_warns_once_there_are_some(open_logic):
    everything = open_logic(run_name="a")
    everything.log_event(event("anything"))
    everything.force_process_and_log(1)
    assert "anything" in everything.summary()
    some = open_logic(run_name="b", stats={"metrics": DEFAULT_METRICS})
    some.log_event(event("anything"))
    some.force_process_and_log(1)
    assert some.health()["dropped"] == {"undeclared": 1}


def test_a_million_early_events_do_not_pile_up(open_logic):
    logic = open_logic(
        stats={"processing_interval_seconds": 3600, "metrics": [{"name": "m", "log_frequency_steps": 0}]}
    )
    batch = EventBatch.from_rows([EventRow("m", 1.0, 1, 0.0)] * 10_000)
    for _ in range(100):
        logic._ledger.log_columns(batch)
        assert len(logic._state) <= 60_000


def test_after_shutdown_nothing_more_is_accepted(open_logic):
    logic = open_logic()
    logic.shutdown()
    logic.shutdown()
    with pytest.raises(RunClosedError, match="run"):
        logic.log_event(event())


def test_run_json_tells_attempts_and_how_each_ended(open_logic):
    first = open_logic()
    first.shutdown("FAILED")
    path = first.files.paths.run_record_path
    before = RunRecord.read(path)
    second = open_logic()
    second.shutdown("FINISHED")
    after = RunRecord.read(path)
    assert (before.attempt, before.status) == (1, "FAILED")
    assert (after.attempt, after.status) == (2, "FINISHED")
    assert before.run_id == after.run_id


def test_a_second_writer_of_the_same_run_is_refused(open_logic):
    open_logic()
    with pytest.raises(RunLockedError, match=r"process \d+ on"):
        open_logic()


def test_state_and_buffer_come_back_in_another_attempt(open_logic):
    first = open_logic()
    first.save_training_state(**saved(5))
    first.shutdown()
    loaded = open_logic().load_initial_state()
    data = loaded.checkpoint_data
    assert (data.run_name, data.global_step, data.episodes_played) == ("run", 5, 2)
    assert data.model_state_dict["w"].tolist() == [0.0, 1.0, 2.0]
    assert data.user_data == {"note": ("a", 1)}
    assert loaded.buffer_data.buffer_list == [f"item {number}" for number in range(5)]
    assert loaded.buffer_step == 5


def test_the_buffer_is_never_newer_than_the_checkpoint(open_logic):
    first = open_logic()
    for step in (4, 9):
        first.save_training_state(**saved(step))
    first.shutdown()
    chosen = first.files.paths.get_checkpoint_path(4)
    loaded = open_logic(persistence={"load_checkpoint_path": str(chosen)}).load_initial_state()
    assert (loaded.checkpoint_data.global_step, loaded.buffer_step) == (4, 4)


def test_an_own_checkpoint_that_was_named_by_a_link_is_an_own_one(open_logic, tmp_path):
    (tmp_path / "far away").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "far away")
    root = {"root_data_dir": str(tmp_path / "link")}
    first = open_logic(persistence=root)
    first.save_training_state(**saved(4))
    first.shutdown()
    path = str(first.files.paths.get_checkpoint_path(4))
    _, restored = open_logic(persistence={**root, "load_checkpoint_path": path}).files.states.find_training()
    assert restored.origin["is_own"]
    assert restored.hub_state


def test_a_new_run_starts_from_the_newest_earlier_one_and_has_its_own_curves(open_logic):
    metrics = {"metrics": [{"name": "m", "aggregation": "count", "log_frequency_steps": 10}]}
    first = open_logic(run_name="alpha", stats=metrics)
    first.log_event(event(step=3))
    first.save_training_state(**saved(3))
    first.shutdown()
    second = open_logic(run_name="beta", stats=metrics, persistence={"auto_resume_latest": True})
    assert second.load_initial_state().resumed_from == "alpha"
    second.force_process_and_log(100)
    assert second.summary() == {}


def test_open_windows_of_the_same_run_go_on_after_a_preemption(open_logic):
    metrics = {"metrics": [{"name": "m", "aggregation": "count", "log_frequency_steps": 10}]}
    first = open_logic(stats=metrics)
    first.log_batch_events([event(step=step) for step in range(1, 8)])
    first.save_training_state(**saved(7))
    first.shutdown("KILLED")
    assert RunRecord.read(first.files.paths.run_record_path).summary == {}
    second = open_logic(stats=metrics)
    second.load_initial_state()
    second.log_batch_events([event(step=step) for step in range(8, 12)])
    second.tick()
    assert second.summary()["m"] == {"last": 10.0, "min": 10.0, "max": 10.0, "step": 10}


def test_events_logged_before_loading_are_not_lost(open_logic):
    first = open_logic()
    first.save_training_state(**saved(1))
    first.shutdown()
    second = open_logic()
    second.log_event(event("early", step=2))
    second.load_initial_state()
    second.force_process_and_log(2)
    assert "early" in second.summary()


def test_restoring_from_a_host_with_another_uptime_changes_nothing(open_logic):
    logic = open_logic(stats={"processing_interval_seconds": 0.001})
    logic.set_state({"last_processed_step": 5, "last_processed_time": 1e12, "_last_log_time_per_metric": {"m": 1e12}})
    logic.log_event(event(step=6))
    logic.process_and_log(6)
    logic.flush(6)
    assert logic.summary()["m"]["step"] == 6


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"global_step": -1}, "global_step"),
        ({"nn_state_dict": 5}, "int"),
        ({"buffer_content": 7}, "buffer"),
        ({"episodes_played": "many"}, "episodes_played"),
        ({"nn_state_dict": {"lock": threading.Lock()}}, "lock"),
    ],
)
def test_a_failed_save_raises_is_counted_and_leaves_nothing(open_logic, changes, said):
    logic = open_logic()
    with pytest.raises(CheckpointError, match=said):
        logic.save_training_state(**saved(3, **changes))
    assert logic.health()["save_failures"] == 1
    assert not list(logic.files.paths.checkpoint_dir.iterdir())
    assert not list(logic.files.paths.buffer_dir.iterdir())


def test_optimizer_objects_and_other_iterables_are_saved(open_logic):
    import collections

    import torch

    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    logic = open_logic()
    logic.save_training_state(
        **saved(3, nn_state_dict=model, optimizer_state_dict=optimizer, buffer_content=collections.deque([1, 2]))
    )
    loaded = logic.load_initial_state()
    assert torch.equal(loaded.checkpoint_data.model_state_dict["weight"], model.weight)
    assert loaded.checkpoint_data.optimizer_state_dict["state"].keys() == {0, 1}
    assert loaded.buffer_data.buffer_list == [1, 2]


def test_configs_json_keeps_the_config_and_what_is_added(open_logic):
    logic = open_logic()
    logic.save_run_config({"model": {"layers": 2}})
    logic.save_run_config({"env": "CartPole-v1"})
    held = json.loads(logic.files.paths.config_path.read_text())
    assert held["app_name"] == "app"
    assert (held["model"], held["env"]) == ({"layers": 2}, "CartPole-v1")


def test_the_log_file_holds_records_of_the_whole_library(open_logic):
    logic = open_logic()
    logging.getLogger("trieye.checkpoints.choose").warning("something to remember")
    logic.shutdown()
    assert "something to remember" in logic.files.paths.get_log_file_path().read_text()


def test_a_given_path_manager_makes_no_files(make_config, tmp_path):
    config = make_config()
    logic = ActorLogic(config, path_manager=trieye.PathManager(config.persistence)).open()
    logic.log_event(event())
    logic.shutdown()
    assert not (tmp_path / "root").exists()


COUNT = {"metrics": [{"name": "m", "aggregation": "count", "log_frequency_steps": 10}]}


def test_a_finished_run_that_is_trained_further_counts_no_event_twice(open_logic):
    total = 0
    for begin, end in ((1, 15), (16, 16), (17, 40)):
        logic = open_logic(stats=COUNT, sinks={"tensorboard": {"enabled": True}})
        logic.load_initial_state()
        logic.log_batch_events([event(step=step) for step in range(begin, end + 1)])
        logic.save_training_state(**saved(end))
        logic.shutdown()
        total = end
    points = points_in_all_files(logic.files.paths.tb_log_dir)
    assert sum(value for _, value in points["m"]) == total


def points_in_all_files(directory):
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    found = {}
    for file in sorted(directory.iterdir()):
        for record in EventFileLoader(str(file)).Load():
            for value in record.summary.value:
                if value.metadata.plugin_data.plugin_name == "hparams":
                    continue
                number = value.tensor.float_val[0] if value.HasField("tensor") else value.simple_value
                found.setdefault(value.tag, []).append((record.step, number))
    return found


def test_a_save_that_is_due_at_a_complete_step_logs_its_window_once(open_logic):
    first = open_logic(stats=COUNT)
    first.log_batch_events([event(step=step) for step in range(1, 11)])
    first.save_training_state(**saved(10))
    assert first.summary()["m"]["step"] == 10
    first.shutdown("KILLED")
    second = open_logic(stats=COUNT)
    second.load_initial_state()
    second.force_process_and_log(10)
    assert second.get_state()["stats"]["windows"]["m"]["open"] == []


def test_a_timestamp_that_is_no_date_is_the_time_of_arrival(open_logic):
    logic = open_logic(sinks={"tensorboard": {"enabled": True}})
    for step, timestamp in enumerate((float("nan"), float("inf"), -1.0, 1e300), start=1):
        logic.log_event(event(step=step, timestamp=timestamp))
    logic.shutdown()
    assert len(points_in(logic.files.paths.tb_log_dir)["m"]) == 4


def test_a_damaged_configs_json_is_written_anew(open_logic):
    first = open_logic()
    first.shutdown()
    path = first.files.paths.config_path
    path.write_text(path.read_text()[:50])
    open_logic()
    assert json.loads(path.read_text())["app_name"] == "app"


def test_user_configs_never_replace_the_config_of_the_run(open_logic):
    logic = open_logic()
    logic.save_run_config({"stats": {"mine": 1}, "model": 5})
    held = json.loads(logic.files.paths.config_path.read_text())
    assert "processing_interval_seconds" in held["stats"]
    assert (held["run_config"], held["model"]) == ({"stats": {"mine": 1}}, 5)


def test_a_closed_hub_saves_nothing_more(open_logic):
    logic = open_logic()
    logic.shutdown()
    for call in (
        lambda: logic.save_training_state(**saved(5)),
        logic.load_initial_state,
        lambda: logic.save_run_config({}),
        lambda: logic.tracking.set_tags({}),
    ):
        with pytest.raises(RunClosedError):
            call()
    assert not list(logic.files.paths.checkpoint_dir.iterdir())


def test_only_the_newest_checkpoints_and_the_best_are_kept_if_asked(open_logic):
    logic = open_logic(persistence={"keep_last": 2})
    for step in range(1, 7):
        logic.save_training_state(**saved(step, is_best=step == 2, save_buffer=False))
    names = {
        path.name for path in logic.files.paths.checkpoint_dir.iterdir() if path.is_dir() and not path.is_symlink()
    }
    assert names == {"checkpoint_step_2", "checkpoint_step_5", "checkpoint_step_6"}


def test_the_state_of_the_process_that_sends_events_can_be_pickled():
    import pickle

    state = trieye.ActorState()
    state.add_event(event())
    assert len(pickle.loads(pickle.dumps(state))) == 1
