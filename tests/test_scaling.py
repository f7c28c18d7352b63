"""The model of benchmarks/scaling.py, and a short run of all of it."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def model(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from scale import model

    return model


@pytest.fixture
def kind(model):
    return model.Kind("any", steps_per_s=1000, fragment_rows=250, row_bytes=40, policy_bytes=20_000)


def test_two_measurements_give_the_cost_of_a_message_and_of_what_is_in_it(model):
    cost = model.Cost.of((10, 1 / 0.0012), (1000, 1 / 0.003))
    assert cost.seconds(10) == pytest.approx(0.0012)
    assert cost.seconds(1000) == pytest.approx(0.003)


def test_a_larger_message_that_was_faster_by_chance_costs_as_much_as_a_small_one(model):
    assert model.Cost.of((10, 1000.0), (1000, 1100.0)) == model.Cost(0.001, 0.0)


def test_a_part_takes_all_until_it_is_full_and_then_no_more(model, kind):
    costs = {"replay": model.Cost(0.0005, 5e-8)}  # 1 ms for 10 kB
    full = model.saturates_at("replay", kind, costs["replay"])
    assert full == pytest.approx(250)  # of four fragments a second
    few, many = model.predict(25, kind, costs)["replay"], model.predict(1000, kind, costs)["replay"]
    assert (few.accepted_per_s, few.utilization) == pytest.approx((100, 0.1))
    assert (many.accepted_per_s, many.utilization) == pytest.approx((1000, 4.0))


def test_a_learner_whose_work_grows_with_the_explorers_is_full_much_earlier(model, kind):
    assert model.saturates_at("learner", kind, model.Cost(0.001)) == pytest.approx(250)
    growing = model.saturates_at("learner", kind, model.Cost(0.001, 1e-6))
    assert 4 * growing * (0.001 + 1e-6 * growing**2) == pytest.approx(1)
    assert growing < 130


def test_batches_grow_where_the_hub_is_behind(model, kind):
    cost = model.Cost(0.001, 1e-6)
    assert model.saturates_at("hub", kind, cost) == pytest.approx(0.2 / (0.001 + 1e-5))
    told = model.forecast("hub", 1000, kind, cost)
    cycle_s = 1000 / told.accepted_per_s
    assert 1000 * (0.001 + 1e-6 * 50 * cycle_s) == pytest.approx(cycle_s)  # all are served once in a cycle
    assert model.hub_events_saturate_at(kind, cost) == pytest.approx(1 / (50 * (1e-6 + 1e-7)))


def test_what_costs_nothing_is_never_full(model, kind):
    assert model.saturates_at("board", kind, model.Cost(0.0)) == model.MOST
    assert math.isinf(model.forecast("board", 10, kind, model.Cost(0.0)).capacity_per_s)


@pytest.mark.parametrize(
    ("transport", "policy_bytes", "expected"),
    [
        ("object_store", 20_000, 100 * 4 * 20_000),  # with each grant
        ("object_store", 1_000_000, 5 * 4 * 1_000_000),  # to each machine
        ("checkpoint", 20_000, 5 * 4 * 20_000),
        ("collective", 20_000, 100 * 4 * 20_000),  # to each explorer
    ],
)
def test_weights_travel_as_the_transport_brings_them(model, transport, policy_bytes, expected):
    kind = model.Kind("any", steps_per_s=1000, fragment_rows=250, row_bytes=40, policy_bytes=policy_bytes)
    found = model.traffic(100, kind, num_nodes=5, transport=transport, event_bytes=30)
    assert (found.rows, found.events, found.weights) == (100 * 1000 * 40, 100 * 50 * 30, expected)
    assert model.explorers_of_bandwidth(found.total / 2, 100, found) == pytest.approx(50)


def test_small_weights_are_those_that_the_transport_takes_for_small(model):
    from trieye.training.exploring.in_ray import _SMALL_BYTES

    assert model.SMALL_BYTES == _SMALL_BYTES


def test_batches_of_events_grow_as_far_as_those_of_a_flusher(model):
    from trieye.run.flusher import MAX_BATCH_EVENTS

    assert model.MOST_EVENTS == MAX_BATCH_EVENTS


@pytest.mark.long
def test_the_simulation_takes_what_was_told():
    command = [sys.executable, str(BENCHMARKS / "scaling.py"), "--quick", "--explorers", "4", "32"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    parts = {line["part"]: line for line in lines}
    assert parts["save"]["met"], done.stderr[-3000:]
    assert set(parts["summary"]["saturates_at"]) == set(parts) - {"bytes", "save", "summary"}
    for name in parts["summary"]["saturates_at"]:  # how fast, a busy machine does not tell
        assert all(one["accepted_per_s"] > 0 for one in parts[name]["simulated"]), name
        assert parts[name]["simulated"][0]["refused"] == 0
