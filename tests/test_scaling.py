"""The model of benchmarks/scaling.py, and a short run of the benchmark."""

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


def test_two_measurements_determine_the_cost_per_message_and_per_item(model):
    cost = model.Cost.of((10, 1 / 0.0012), (1000, 1 / 0.003))
    assert cost.seconds(10) == pytest.approx(0.0012)
    assert cost.seconds(1000) == pytest.approx(0.003)


def test_a_large_message_measured_as_faster_costs_as_much_as_a_small_one(model):
    assert model.Cost.of((10, 1000.0), (1000, 1100.0)) == model.Cost(0.001, 0.0)


def test_a_part_accepts_everything_until_it_saturates(model, kind):
    costs = {"replay": model.Cost(0.0005, 5e-8)}  # 1 ms for 10 kB
    full = model.saturates_at("replay", kind, costs["replay"])
    assert full == pytest.approx(250)  # of four fragments a second
    few, many = model.predict(25, kind, costs)["replay"], model.predict(1000, kind, costs)["replay"]
    assert (few.accepted_per_s, few.utilization) == pytest.approx((100, 0.1))
    assert (many.accepted_per_s, many.utilization) == pytest.approx((1000, 4.0))


def test_a_learner_whose_work_grows_with_the_explorers_saturates_earlier(model, kind):
    assert model.saturates_at("learner", kind, model.Cost(0.001)) == pytest.approx(250)
    growing = model.saturates_at("learner", kind, model.Cost(0.001, 1e-6))
    assert 4 * growing * (0.001 + 1e-6 * growing**2) == pytest.approx(1)
    assert growing < 130


def test_batches_grow_when_the_hub_falls_behind(model, kind):
    cost = model.Cost(0.001, 1e-6)
    assert model.saturates_at("hub", kind, cost) == pytest.approx(0.2 / (0.001 + 1e-5))
    forecast = model.forecast("hub", 1000, kind, cost)
    cycle_s = 1000 / forecast.accepted_per_s
    assert 1000 * (0.001 + 1e-6 * 50 * cycle_s) == pytest.approx(cycle_s)  # each explorer is served once per cycle
    assert model.hub_events_saturate_at(kind, cost) == pytest.approx(1 / (50 * (1e-6 + 1e-7)))


def test_a_part_without_cost_never_saturates(model, kind):
    assert model.saturates_at("learner", kind, model.Cost(0.0)) == model.MOST
    assert math.isinf(model.forecast("learner", 10, kind, model.Cost(0.0)).capacity_per_s)


@pytest.mark.parametrize(
    ("transport", "policy_bytes", "expected"),
    [
        ("object_store", 20_000, 100 * 4 * 20_000),  # with each assignment
        ("object_store", 1_000_000, 5 * 4 * 1_000_000),  # to each machine
        ("checkpoint", 20_000, 5 * 4 * 20_000),
        ("collective", 20_000, 100 * 4 * 20_000),  # to each explorer
    ],
)
def test_the_traffic_of_weights_depends_on_the_transport(model, transport, policy_bytes, expected):
    kind = model.Kind("any", steps_per_s=1000, fragment_rows=250, row_bytes=40, policy_bytes=policy_bytes)
    traffic = model.traffic(100, kind, num_nodes=5, transport=transport, event_bytes=30)
    assert (traffic.rows, traffic.events, traffic.weights) == (100 * 1000 * 40, 100 * 50 * 30, expected)
    assert model.explorers_of_bandwidth(traffic.total / 2, 100, traffic) == pytest.approx(50)


def test_the_limit_of_small_weights_equals_that_of_the_transport(model):
    from trieye.training.exploring.in_ray import _SMALL_BYTES

    assert model.SMALL_BYTES == _SMALL_BYTES


def test_the_limit_of_event_batches_equals_that_of_the_flusher(model):
    from trieye.run.flusher import MAX_BATCH_EVENTS

    assert model.MOST_EVENTS == MAX_BATCH_EVENTS


@pytest.mark.long
def test_the_simulation_of_few_explorers_refuses_nothing():
    command = [sys.executable, str(BENCHMARKS / "scaling.py"), "--quick", "--explorers", "4", "32"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    parts = {line["part"]: line for line in lines}
    assert parts["save"]["met"], done.stderr[-3000:]
    assert set(parts["summary"]["saturates_at"]) == set(parts) - {"bytes", "save", "summary"}
    for name in parts["summary"]["saturates_at"]:  # the speed depends on the load of the machine
        assert all(one["accepted_per_s"] > 0 for one in parts[name]["simulated"]), name
        assert parts[name]["simulated"][0]["refused"] == 0
