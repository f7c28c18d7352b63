"""Fragments count once in any order of arrival, and only as many fragments wait as the learner can use in time."""

import time
from concurrent.futures import Future

import pytest

import trieye
from tests.training.algorithms import PPO
from tests.training.exploring.test_explorers import PPO_PARTS
from tests.waiting import wait_until
from trieye.training.exploring.places import ThreadExplorerPool


class Swapping(ThreadExplorerPool):
    """Two results of each explorer arrive in the wrong order."""

    def __init__(self):
        self.env_steps = 0

    def start(self, task, index, incarnation):
        worker = super().start(task, index, incarnation)
        begin, calls = worker.begin, []

        def swapped(method, *values):
            call = begin(method, *values)
            if method != "rollout":
                return call
            calls.append((call, Future()))
            call.add_done_callback(self.note)
            if len(calls) == 5:
                call.add_done_callback(lambda _: [late.set_result(done.result()) for done, late in reversed(calls[3:])])
            return calls[-1][1] if len(calls) in {4, 5} else call

        worker.begin = swapped
        return worker

    def note(self, call):
        self.env_steps += call.result().env_steps


@pytest.mark.parametrize(("num", "style"), [(1, "trainer_driven"), (3, "fully_async")])
def test_fragment_results_out_of_order_lose_no_fragment(train_config, num, style):
    parts = PPO_PARTS | {"explorer": {"num": num, "fragment_steps": 4}, "sync": {"style": style, "max_staleness": 3}}
    engine = PPO(train_config(**parts))
    pool = engine._row_source._group._pool = Swapping()
    for _ in range(30):
        engine.collect()
        engine._row_source.learned()
    state = engine._row_source.state_dict()
    waiting = sum(report["env_steps"] for report in state["inbox"]["reports"])
    metrics = engine._row_source.metrics()
    engine.cleanup()
    assert [name for name in metrics if name.startswith("replay/dropped")] == []
    assert metrics["explorer/lost_fragments"] == 0
    assert engine.env_steps + waiting == pool.env_steps


def test_repeatedly_rejected_fragments_are_reported_with_the_reason(train_config, capsys):
    engine = PPO(train_config(**PPO_PARTS, explorer={"num": 2, "fragment_steps": 4}))
    queue, calls = engine._row_source._queue, []
    put = queue.put

    def sometimes(report, incarnation):
        calls.append((report.explorer, report.number))
        return "full" if len(calls) % 4 == 3 else put(report, incarnation)

    queue.put = sometimes
    for _ in range(10):
        engine.collect()
        engine._row_source.learned()
    engine.cleanup()
    assert "fragments were dropped on arrival: " in capsys.readouterr().err
    assert len(set(calls)) == len(calls), "a number is never used twice"


class Watched(PPO):
    """Records how many fragments wait when explorers are blocked, and whether they collect during learning."""

    def setup(self, config):
        super().setup(config)
        self.max_waiting, self.num_idle_steps = 0, 0
        type(self).last = self

    def step(self):
        self.collect()
        group, queue = self._row_source._group, self._row_source._queue
        time.sleep(0.02)
        with group.lock:
            self.num_idle_steps += not (queue.versions() or any(slot.assignments for slot in group.slots))
        wait_until(lambda: not any(slot.assignments for slot in group.slots))
        with group.lock:
            self.max_waiting = max(self.max_waiting, len(queue.versions()))
            self.queue_metrics = queue.metrics()
        return {}


@pytest.mark.long
@pytest.mark.parametrize("style", ["fully_async", "trainer_driven"])
def test_resuming_with_more_explorers_does_not_overfill_the_queue(train_config, style):
    few, many = {"num": 2, "fragment_steps": 4}, {"num": 4, "fragment_steps": 4}
    sync = {"style": style, "max_staleness": 1}
    trieye.run_experiment(Watched, train_config(**PPO_PARTS, explorer=few, sync=sync, loop={"env_steps": 300}))
    config = train_config(**PPO_PARTS, explorer=many, sync=sync | {"interval": 4}, loop={"env_steps": 1000})
    result = trieye.run_experiment(Watched, config)
    assert Watched.last.max_waiting <= 4 * (4 + 4)
    assert result.env_steps < 1000 + 4 * 4 * (4 + 4)
    assert Watched.last._row_source._group.lost == 0
    assert [name for name in Watched.last.queue_metrics if name.startswith("replay/dropped")] == []


@pytest.mark.long
def test_resuming_with_fewer_explorers_still_collects_during_learning(train_config):
    parts = PPO_PARTS | {"sync": {"style": "fully_async", "max_staleness": 1}}
    for num, env_steps in ((8, 1000), (2, 1600)):
        explorer = {"num": num, "fragment_steps": 4}
        trieye.run_experiment(Watched, train_config(**parts, explorer=explorer, loop={"env_steps": env_steps}))
    assert Watched.last.num_idle_steps <= 5, "of about 75 steps"


def test_chunks_of_several_fragments_are_rejected_before_the_start(train_config):
    with pytest.raises(ValueError, match=r"replay.fragment.fragments_per_chunk=2: .*raise explorer.fragment_steps"):
        train_config(
            **PPO_PARTS, explorer={"num": 2}, replay={"kind": "fragment", "fragment": {"fragments_per_chunk": 2}}
        )


@pytest.mark.parametrize(("sync", "least"), [({"style": "fully_async"}, 2), ({"style": "fixed", "offset": 3}, 8)])
def test_a_fragment_replay_that_cannot_hold_the_waiting_fragments_is_rejected(train_config, sync, least):
    def config(capacity):
        replay = {"kind": "fragment", "capacity": capacity}
        return train_config(**PPO_PARTS, explorer={"num": 2}, sync=sync, replay=replay)

    config(least)
    with pytest.raises(ValueError, match=rf"replay.capacity={least - 1} .*set at least {least} \(explorer.num"):
        config(least - 1)
