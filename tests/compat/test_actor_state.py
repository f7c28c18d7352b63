import trieye
from tests.hub.conftest import event


def test_events_are_taken_in_order_of_arrival():
    state = trieye.ActorState()
    events = [event(value=1.0), event(value=3.0)]
    for item in events:
        state.add_event(item)
    assert len(state) == 2
    assert state.take() == events
    assert state.take() == []


def test_events_up_to_a_step_can_be_read_and_cleared():
    state = trieye.ActorState()
    for step in (1, 2, 2, 5):
        state.add_event(event(step=step, context={"k": step}))
    data, highest = state.get_data_to_process(3)
    assert highest == 2
    assert {step: len(by_name["m"]) for step, by_name in data.items()} == {1: 1, 2: 2}
    assert data[1]["m"][0].context == {"k": 1}
    state.clear_processed_data(3)
    assert state.get_data_to_process(10)[0].keys() == {5}


def test_the_state_survives_a_round_trip_and_missing_keys_have_defaults():
    state = trieye.ActorState()
    assert state.get_persistable_state() == {
        "last_processed_step": -1,
        "last_processed_time": 0.0,
        "_last_log_time_per_metric": {},
    }
    saved = {"last_processed_step": 50, "last_processed_time": 12.5, "_last_log_time_per_metric": {"m": 3.0}}
    state.add_event(event())
    state.restore_from_state(saved)
    assert state.get_persistable_state() == saved
    assert len(state) == 1, "pending events are kept"
    state.restore_from_state({})
    assert state.get_last_processed_step() == -1


def test_the_log_context_contains_the_latest_values():
    state = trieye.ActorState()
    state.add_event(event(value=1.5, step=3))
    state.update_last_processed_time(4.0)
    context = state.get_log_context(latest_step=7, current_time=9.0)
    assert (context.latest_step, context.last_log_time, context.current_time) == (7, 4.0, 9.0)
    assert context.latest_values == {"m": (3, 1.5)}
