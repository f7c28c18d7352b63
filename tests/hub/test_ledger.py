import random
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hub.conftest import NOW, Hub, events_in, steps_of
from trieye.config import MetricConfig
from trieye.exceptions import SequenceGapError
from trieye.stats.batch import EventRow
from trieye.stats.operations import LogParams, LogText


def play(hub, script, *, crashes):
    """Run a script of operations; the hub dies before each operation whose number is in `crashes`."""
    hub.start()
    for number, (action, argument) in enumerate(script):
        if number in crashes or action == "again":
            hub.die()
            hub.start(attempt=None if action == "again" else hub.attempt)
        match action:
            case "log":
                hub.log(*argument)
            case "rows":
                hub.ledger.accept_rows([EventRow("loss", 0.3 * step, step, NOW) for step in argument])
            case "wait":
                hub.now += argument
                hub.ledger.ingest()  # stores an entry: time after the last entry is lost as downtime
            case "advance":
                hub.ledger.advance(step=argument)
            case "force":
                hub.ledger.advance(force=True)
            case "snapshot":
                hub.ledger.snapshot()
            case "params":
                hub.ledger.record(LogParams({"a": str(argument)}))
    hub.ledger.advance(force=True)
    points = hub.points()
    counts = hub.ledger.counts
    hub.die()
    return points, counts


STEPS = st.lists(st.integers(-5, 60), min_size=1, max_size=8)
ACTIONS = st.one_of(
    st.tuples(st.just("log"), STEPS),
    st.tuples(st.just("rows"), STEPS),
    st.tuples(st.just("wait"), st.floats(0.1, 5)),
    st.tuples(st.just("advance"), st.none() | st.integers(0, 60)),
    st.tuples(st.just("force"), st.none()),
    st.tuples(st.just("snapshot"), st.none()),
    st.tuples(st.just("params"), st.integers(0, 9)),
)
NEW_ATTEMPT = st.tuples(st.just("again"), st.none())


@given(script=st.lists(ACTIONS | NEW_ATTEMPT, max_size=25), data=st.data())
def test_a_hub_killed_at_any_moment_produces_the_same_points(tmp_path_factory, script, data):
    crashes = data.draw(st.sets(st.integers(0, max(len(script) - 1, 0)), max_size=4))
    calm, calm_counts = play(Hub(tmp_path_factory.mktemp("calm")), script, crashes=set())
    killed, counts = play(Hub(tmp_path_factory.mktemp("killed")), script, crashes=crashes)
    assert killed == calm
    assert counts == calm_counts


@given(script=st.lists(ACTIONS, max_size=25))
def test_every_accepted_event_is_in_exactly_one_point(tmp_path_factory, script):
    points, counts = play(Hub(tmp_path_factory.mktemp("hub")), script, crashes=set())
    for metric in ("windows", "spread", "timed", "middle", "smooth"):
        assert events_in([point for point in points if point.metric == metric]) == counts["accepted"]


MOMENTS = {
    "points are computed": ("advance", lambda hub: (hub.ledger.stats, "advance")),
    "points get their indices": ("advance", lambda hub: (hub.history, "append")),
    "a snapshot ingests pending events": ("snapshot", lambda hub: (hub.ledger.stats, "ingest")),
    "a snapshot is taken": ("snapshot", lambda hub: (hub.ledger.stats, "to_state")),
    "a snapshot is stored": ("snapshot", lambda hub: (hub.journal, "commit")),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_events_accepted_during_a_flush_or_snapshot_follow_it(hub, monkeypatch, moment):
    work, target = MOMENTS[moment]
    hub.start()
    hub.log(1, 2)
    owner, name = target(hub)
    original, reached, opened = getattr(owner, name), threading.Event(), threading.Event()

    def delayed(*arguments, **options):
        reached.set()
        assert opened.wait(30)
        return original(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, delayed)
        worker = threading.Thread(target=getattr(hub.ledger, work))
        worker.start()
        assert reached.wait(30)
        assert hub.log(3, 15)
        # drops are counted by the next flush, and wait until the current one has counted
        dropped = threading.Thread(target=hub.ledger.count_dropped, args=([("overflow", "*", 1)],))
        dropped.start()
        dropped.join(0.05)
        opened.set()
        worker.join()
        dropped.join()
    hub.ledger.advance()
    expected, counts = hub.points(), hub.ledger.counts
    assert steps_of(hub.points("windows")) == [10]
    assert counts["accepted"] == counts["processed"] == 4
    hub.die()
    hub.start(attempt=1)
    assert (hub.points(), hub.ledger.counts) == (expected, counts)
    hub.ledger.advance(force=True)
    assert events_in(hub.points("windows")) == 4


@pytest.mark.parametrize("seed", range(2))
def test_the_journal_alone_determines_the_points_of_concurrent_producers(hub, seed):
    rng = random.Random(seed)
    hub.start()

    def produce(number):
        for seq in range(1, 60):
            hub.log(seq, seq + rng.randrange(3), client=f"c{number}", seq=seq)
            if seq % 7 == 0:
                hub.ledger.accept_rows([EventRow("loss", 1.0, seq, NOW)], [("overflow", "*", 1)])

    producers = [threading.Thread(target=produce, args=(number,)) for number in range(3)]
    for producer in producers:
        producer.start()
    while any(producer.is_alive() for producer in producers):
        rng.choice([hub.ledger.advance, hub.ledger.snapshot, hub.ledger.ingest, hub.ledger.to_state])()
        hub.ledger.record(LogParams({"a": "b"}))
    expected, counts, drops = hub.points(), hub.ledger.counts, dict(hub.ledger.stats.drops.by_reason)
    hub.die()
    hub.start(attempt=1)
    assert (hub.points(), hub.ledger.counts, dict(hub.ledger.stats.drops.by_reason)) == (expected, counts, drops)
    hub.ledger.advance(force=True)
    for metric in ("windows", "spread", "middle"):
        assert events_in(hub.points(metric)) == counts["accepted"] == 3 * (2 * 59 + 8)


def test_a_resent_batch_counts_once_even_after_a_restart(hub):
    hub.start()
    assert hub.log(1, 2, client="a", seq=1)
    assert not hub.log(1, 2, client="a", seq=1)
    hub.ledger.advance(force=True)
    hub.ledger.snapshot()
    hub.ledger.snapshot()
    hub.die()
    hub.start(attempt=1)
    assert not hub.log(1, 2, client="a", seq=1)
    assert hub.log(3, client="a", seq=2)
    with pytest.raises(SequenceGapError) as caught:
        hub.log(9, client="a", seq=5)
    assert caught.value.expected == 3
    hub.ledger.advance(force=True)
    assert hub.ledger.counts["accepted"] == 3
    assert events_in(hub.points("windows")) == 3


def test_calls_with_the_same_key_count_once(hub):
    hub.start()
    for _ in range(3):
        hub.ledger.accept_rows([EventRow("loss", 1.0, 1, NOW)], key="task-1")
        hub.ledger.count_dropped([("overflow", "*", 5)], key="drop-1")
        hub.ledger.record(LogText("note", 1, NOW, "once"), key="text-1")
    assert hub.ledger.counts["accepted"] == 1
    assert hub.ledger.stats.drops.by_reason["overflow"] == 5
    items, _ = hub.history.read(0, 10)
    assert sum(isinstance(item, LogText) for item in items) == 1


def test_a_new_attempt_without_a_checkpoint_continues_the_open_windows(hub):
    hub.start()
    hub.log(*range(1, 16))
    hub.ledger.advance()
    hub.die()
    hub.start()
    assert not hub.is_continuation
    hub.log(*range(16, 21))
    hub.ledger.advance(force=True)
    assert [(point.step, point.count) for point in hub.points("windows")] == [(10, 10), (20, 10)]


def test_a_rewind_supersedes_points_after_the_checkpoint(hub):
    hub.start()
    hub.log(*range(1, 101), name="every")
    hub.log(*range(1, 101))
    state = hub.ledger.to_state(100)
    hub.log(*range(101, 138), name="every")
    hub.log(*range(101, 138))
    hub.ledger.advance()
    hub.die()
    hub.start()
    first = hub.ledger.rewind(state)
    assert first == state["journal"]["index"]
    hub.log(*range(101, 121), name="every")
    hub.log(*range(101, 121))
    hub.ledger.advance(force=True)
    assert steps_of(hub.points("every")) == list(range(1, 121))
    assert [(p.step, p.count) for p in hub.points("windows")] == [(10 * k, 10) for k in range(1, 13)]
    assert {p.step for p in hub.history.superseded(hub.history.end) if p.metric == "every"} == set(range(101, 137))
    hub.die()
    hub.start(attempt=hub.attempt)
    assert steps_of(hub.points("every")) == list(range(1, 121))


@pytest.mark.parametrize("dies", [True, False], ids=["in the next attempt", "within an attempt"])
def test_a_rewind_keeps_values_of_its_step_that_were_logged_after_the_save(hub, dies):
    hub.start()
    hub.log(*range(1, 21))
    state = hub.ledger.to_state(20)
    hub.log(10, 20, name="score")
    hub.ledger.record(LogText("note", 20, NOW, "of step 20"))
    hub.ledger.record(LogText("note", 21, NOW, "dead branch"))
    hub.log(20, 21, name="repeated")
    hub.log(*range(21, 26), name="loss")
    hub.ledger.advance()
    if dies:
        hub.die()
        hub.start()
    hub.ledger.rewind(state, step=20)
    assert steps_of(hub.points("score")) == [20]
    assert hub.ledger.stats.summary["score"]["last"] == 2.0
    hub.log(20, name="repeated")
    hub.log(*range(21, 31))
    hub.die()
    hub.start(attempt=hub.attempt)
    hub.ledger.advance(force=True)
    assert steps_of(hub.points("score")) == [20]
    assert steps_of(hub.points("repeated")) == [20]
    assert [(p.step, p.count) for p in hub.points("windows")] == [(10, 10), (20, 10), (30, 10)]
    items, _ = hub.history.read(0, 100)
    assert not [item for item in items if isinstance(item, LogText)], "media have no rule for a repeated step"
    hub.ledger.rewind(state, step=20)
    assert steps_of(hub.points("score")) == [20]


def test_a_rewind_to_an_open_window_supersedes_its_point_at_the_same_step(hub):
    hub.start()
    hub.log(*range(1, 16))
    state = hub.ledger.to_state(15)
    hub.ledger.finish(force=True)
    hub.die()
    hub.start()
    hub.now += 60
    hub.ledger.rewind(state, step=15)
    hub.log(*range(16, 31))
    hub.ledger.advance(force=True)
    assert [(p.step, p.count) for p in hub.points("windows")] == [(10, 10), (20, 10), (30, 10)]
    assert [events_in(hub.points(name)) for name in ("spread", "timed", "middle", "smooth")] == [30] * 4


def test_events_logged_before_a_rewind_are_kept_and_accounted_for(hub):
    hub.start()
    hub.log(*range(1, 6))
    state = hub.ledger.to_state(5)
    hub.log(6, 7)
    hub.ledger.advance()
    hub.die()
    hub.start()
    hub.log(8, name="setup")
    hub.log(9, name="loss")
    hub.ledger.advance()
    hub.ledger.snapshot()
    hub.log(10, name="loss")
    hub.ledger.rewind(state)
    counts = hub.ledger.counts
    assert counts["accepted"] == counts["processed"] + counts["queued"] == 10
    hub.ledger.advance(force=True)
    assert [(p.step, p.count) for p in hub.points("windows")] == [(10, 7)]
    assert steps_of(hub.points("setup")) == [8]


def test_a_metric_logged_without_a_step_before_a_rewind_does_not_prevent_it(hub):
    hub.start()
    hub.log(*range(1, 11))
    state = hub.ledger.to_state(10)
    hub.die()
    hub.start()
    hub.ledger.note_stepless("hparam\udce9")
    hub.log(0, name="hparam")
    hub.ledger.rewind(state)
    hub.ledger.advance(force=True)
    assert steps_of(hub.points("hparam")) == [0]
    assert steps_of(hub.points("windows")) == [10]


def test_a_restart_from_scratch_supersedes_the_points_of_the_previous_attempt(hub):
    hub.start()
    hub.log(*range(1, 31))
    hub.ledger.advance()
    assert hub.ledger.rewind({}) is None, "the first attempt has nothing to go back to"
    assert steps_of(hub.points("windows")) == [10, 20]
    hub.die()
    hub.start()
    hub.ledger.rewind({})
    hub.log(*range(1, 12))
    hub.ledger.advance(force=True)
    assert [(p.step, p.count) for p in hub.points("windows")] == [(10, 10), (11, 1)]
    assert hub.ledger.rewind({}) is None, "it went back already"


def test_a_checkpoint_of_an_abandoned_branch_restores_its_points(hub):
    hub.start()
    hub.log(*range(1, 11), name="every")
    old = hub.ledger.to_state(10)
    hub.log(*range(11, 21), name="every")
    new = hub.ledger.to_state(20)
    hub.die()
    hub.start()
    hub.ledger.rewind(old)
    hub.log(11, 12, name="every")
    hub.ledger.advance(force=True)
    assert steps_of(hub.points("every")) == [*range(1, 11), 11, 12]
    hub.die()
    hub.start()
    assert hub.ledger.rewind(new) == old["journal"]["index"]
    hub.log(21, name="every")
    hub.ledger.advance(force=True)
    assert [(p.step, p.value) for p in hub.points("every")] == [(step, step * 0.1) for step in range(1, 22)]
    hub.die()
    hub.start(attempt=hub.attempt)
    assert steps_of(hub.points("every")) == list(range(1, 22))


def test_a_state_of_another_run_supersedes_no_points(hub):
    hub.start()
    hub.log(*range(1, 11), name="every")
    state = hub.ledger.to_state(10)
    foreign = {**state, "journal": {**state["journal"], "run": "another", "index": 3}}
    hub.ledger.rewind(foreign)
    assert steps_of(hub.points("every")) == list(range(1, 11))


@pytest.mark.long
def test_the_journal_does_not_grow_with_the_length_of_the_run(hub):
    hub.start()
    hub.ledger.rewind({})
    sizes = []
    for number in range(40):
        rows = np.arange(number * 2000, number * 2000 + 2000)
        hub.log(*rows.tolist())
        hub.ledger.advance()
        hub.now += 11
        assert hub.ledger.compact()
        hub.history.roll()
        sizes.append(hub.journal.size_bytes)
    assert sizes[-1] <= 2 * max(sizes[5:15])


def test_a_metric_with_a_changed_config_loses_no_events(tmp_path):
    hub = Hub(tmp_path, [MetricConfig(name="loss", aggregation="mean", log_frequency_steps=10)]).start()
    hub.log(*range(1, 16))
    hub.ledger.advance()
    hub.die()
    hub.metrics = [MetricConfig(name="loss", aggregation="mean", log_frequency_steps=20)]
    hub.start()
    hub.log(*range(16, 25))
    hub.ledger.advance(force=True)
    assert sum(p.count for p in hub.points("loss")) == 24
    hub.die()


@pytest.mark.parametrize("days", [-3, 3])
def test_intervals_survive_a_clock_change_between_attempts(tmp_path, days):
    metrics = [
        MetricConfig(name="timed", raw_event_name="loss", log_frequency_steps=0, log_frequency_seconds=5),
        MetricConfig(name="age", raw_event_name="loss", aggregation="latest", x_axis="wall_time"),
    ]
    hub = Hub(tmp_path, metrics).start()
    hub.ledger.accept_rows([EventRow("loss", 1.0, 1, NOW + 2)])
    hub.ledger.advance(step=1)
    hub.now = 4.0
    hub.ledger.advance()
    hub.die()
    shifted = NOW + 4 + days * 86400
    hub.start(wall=shifted)
    hub.ledger.accept_rows([EventRow("loss", 2.0, 2, shifted + 1)])
    hub.ledger.advance(step=2)
    assert hub.points("timed") == []
    hub.now = 5.0
    hub.ledger.advance()
    assert [point.count for point in hub.points("timed")] == [2]
    first, second = steps_of(hub.points("age"))
    assert first == 2
    assert second == (5 if days < 0 else 5 + days * 86400), "the life of a run never gets shorter"
    hub.die()


def test_invalid_names_steps_and_contexts_do_not_affect_other_events(hub):
    hub.start()
    rows = [
        EventRow("good", 1.0, 1, NOW, {"huge": "x" * 10_000_000}),
        EventRow("n" * 5000, 1.0, 1, NOW),
        EventRow("\ud800", 1.0, 1, NOW),
        EventRow("\ud800", 10**400, 1, NOW),
        EventRow("", 1.0, 1, NOW),
        EventRow("good", 2.0, 1 << 70, NOW),
        EventRow("good", 3.0, 2, NOW),
    ]
    hub.ledger.accept_rows(rows)
    hub.ledger.advance(force=True)
    assert steps_of(hub.points("good")) == [1, 2]
    expected = {"name_too_long": 1, "unnamed": 2, "non_finite": 1, "step_out_of_range": 1}
    assert hub.ledger.stats.drops.by_reason == expected
    assert hub.journal.size_bytes < 1_000_000


@pytest.mark.parametrize("seed", range(5))
def test_random_kills_and_rewinds_neither_lose_nor_duplicate_points(tmp_path, seed):
    rng = random.Random(seed)
    hub = Hub(tmp_path).start()
    surviving, saved, step, state = [], [], 0, {}
    for _ in range(60):
        action = rng.random()
        if action < 0.6:
            step += 1
            hub.log(step, name="every")
            surviving.append(step)
        elif action < 0.7:
            hub.ledger.advance()
        elif action < 0.8:
            state, saved = hub.ledger.to_state(step), list(surviving)
        elif action < 0.9:
            hub.die()
            hub.start(attempt=hub.attempt)
        else:
            hub.die()
            hub.start()
            hub.ledger.rewind(state)
            surviving, step = list(saved), saved[-1] if saved else 0
    hub.ledger.advance(force=True)
    assert steps_of(hub.points("every")) == surviving
    hub.die()
