from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trieye.exceptions import ReplayTimeoutError
from trieye.replay.samplers.eligible import EligibleSampler
from trieye.replay.samplers.prioritized import PrioritizedSampler


def bounded(capacity, *, max_reuse=None, max_staleness=None, **options):
    return EligibleSampler(
        PrioritizedSampler(capacity, **{"alpha": 0.0, **options}), max_reuse=max_reuse, max_staleness=max_staleness
    )


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 12)),
        st.tuples(st.just("old"), st.integers(0, 4)),
        st.tuples(st.just("set_version"), st.integers(1, 3)),
        st.tuples(st.just("draw"), st.integers(1, 20)),
        st.tuples(st.just("discard"), st.integers(1, 20)),
        st.tuples(st.just("update"), st.integers(0, 20)),
        st.tuples(st.just("clear"), st.none()),
        st.tuples(st.just("save"), st.none()),
    ),
    max_size=25,
)


class Case:
    """A sampler and its expected rows in plain Python."""

    def __init__(self, capacity, **bounds):
        self.capacity, self.bounds = capacity, bounds
        self.max_reuse, self.max_staleness = bounds["max_reuse"], bounds["max_staleness"]
        self.sampler, self.rng = bounded(capacity, **bounds), np.random.default_rng(0)
        self.uses, self.versions, self.total, self.low, self.version = Counter(), {}, 0, 0, 0

    def remaining_uses(self, row):
        if self.max_staleness is not None and self.versions[row] < self.version - self.max_staleness:
            return 0
        return 10**9 if self.max_reuse is None else self.max_reuse - self.uses[row]

    def add(self, count, age=0):
        self.sampler.added(self.total, count)
        new = range(self.total, self.total + count)
        if age:
            self.sampler.set_row_versions(np.array(new), [self.version - age] * count)
        self.versions |= dict.fromkeys(new, self.version - age)
        self.total += count
        self.low = max(self.low, self.total - self.capacity)

    def old(self, age):
        self.add(1, age)

    def set_version(self, growth):
        self.version += growth
        self.sampler.set_version(self.version)

    def clear(self, _):
        self.low = self.total
        self.sampler.forgot(self.low)

    def save(self, _):
        state = self.sampler.state_dict()
        self.sampler = bounded(self.capacity, **self.bounds)
        self.sampler.load_state_dict(state)

    def update(self, priority):
        ids = np.arange(self.low, self.total)
        self.sampler.update(ids, np.full(len(ids), float(priority)))

    def discard(self, n):
        rows = range(self.low, self.total)
        if sum(self.remaining_uses(row) for row in rows) >= n:
            before = self.sampler.state_dict()
            draw = self.sampler.draw(n, self.low, self.total, self.rng)
            self.sampler.discarded(draw.ids, for_good=False)
            after = self.sampler.state_dict()
            assert after["uses"].tolist() == before["uses"].tolist()
            assert after["rows"]["weights"].tolist() == before["rows"]["weights"].tolist()

    def draw(self, n):
        rows = range(self.low, self.total)
        if sum(self.remaining_uses(row) for row in rows) < n:
            with pytest.raises(ReplayTimeoutError, match="add new rows first, or relax the bounds"):
                self.sampler.draw(n, self.low, self.total, self.rng)
            return
        draw = self.sampler.draw(n, self.low, self.total, self.rng)
        assert len(draw) == len(draw.weights) == n
        assert all(row in rows and self.remaining_uses(row) > 0 for row in draw.ids.tolist())
        self.uses.update(draw.ids.tolist())


@given(
    st.integers(1, 20),
    st.none() | st.integers(1, 4),
    st.none() | st.integers(0, 3),
    st.sampled_from([0.0, 0.6]),
    ACTIONS,
)
def test_reuse_and_staleness_are_hard_bounds(capacity, max_reuse, max_staleness, alpha, actions):
    case = Case(capacity, max_reuse=max_reuse, max_staleness=max_staleness, alpha=alpha)
    for action, amount in actions:
        if case.total > case.low or action not in {"draw", "discard"}:
            getattr(case, action)(amount)
    rows = range(case.low, case.total)
    assert all(case.remaining_uses(row) >= 0 for row in rows)
    assert case.sampler.eligible(np.array(rows, np.int64)).tolist() == [case.remaining_uses(row) > 0 for row in rows]


def test_a_rejected_draw_consumes_no_uses():
    sampler, rng = bounded(4, max_reuse=2, alpha=1.0), np.random.default_rng(0)
    sampler.added(0, 4)
    sampler.update(np.arange(4), [1.0, 2.0, 3.0, 4.0])
    before = sampler.state_dict()
    with pytest.raises(ReplayTimeoutError, match="only 8 more draws of the 4 rows"):
        sampler.draw(9, 0, 4, rng)
    after = sampler.state_dict()
    assert before["uses"].tolist() == after["uses"].tolist() == [0, 0, 0, 0]
    assert before["rows"]["weights"].tolist() == after["rows"]["weights"].tolist()
    assert sorted(sampler.draw(8, 0, 4, rng).ids.tolist()) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_rows_within_the_bounds_are_drawn_and_weighted_by_priority():
    sampler, rng = bounded(8, max_staleness=1, alpha=1.0, beta=1.0, epsilon=0.0), np.random.default_rng(0)
    sampler.added(0, 4)
    sampler.set_version(2)
    sampler.added(4, 4)
    sampler.update(np.arange(8), np.arange(1.0, 9.0))
    draw = sampler.draw(2600, 0, 8, rng)
    counts = np.bincount(draw.ids, minlength=8)
    assert counts[:4].tolist() == [0, 0, 0, 0]
    assert counts[4:] == pytest.approx(np.arange(5, 9) * 100, abs=2)  # stratified
    assert draw.weights == pytest.approx(5 / (draw.ids + 1))


def test_a_draw_reports_the_staleness_of_its_rows():
    sampler = bounded(8, max_staleness=5)
    sampler.set_version(10)
    sampler.added(0, 2)
    sampler.set_version(13)
    sampler.added(2, 2)
    draw = sampler.draw(400, 0, 4, np.random.default_rng(0))
    sampler.handed_out(draw)
    assert draw.info["staleness_max"] == 3
    assert draw.info["staleness_mean"] == pytest.approx(1.5)
    assert sampler.staleness(np.array([0, 3])).tolist() == [3, 0]


def test_a_smaller_sampler_restores_the_newest_rows():
    original = bounded(10, max_reuse=4, max_staleness=9)
    original.added(0, 10)
    original.draw(30, 0, 10, np.random.default_rng(0))
    smaller = bounded(4, max_reuse=4, max_staleness=9)
    smaller.load_state_dict(original.state_dict())
    assert smaller.state_dict()["uses"].tolist() == original.state_dict()["uses"][-4:].tolist()
    remaining = 16 - int(smaller.state_dict()["uses"].sum())
    assert len(smaller.draw(remaining, 6, 10, np.random.default_rng(0))) == remaining


@pytest.mark.parametrize(
    ("saved_bounds", "bounds", "permitted"),
    [
        ({"max_staleness": 5}, {"max_staleness": 1}, {4: 9, 5: 9}),
        ({"max_staleness": 1}, {"max_staleness": 5}, dict.fromkeys(range(6), 9)),
        ({"max_reuse": 4}, {"max_reuse": 2}, {4: 2, 5: 2}),
        ({"max_reuse": 2}, {"max_reuse": 4}, {0: 2, 1: 2, 2: 2, 3: 2, 4: 4, 5: 4}),
    ],
)
def test_restored_rows_obey_the_bounds_of_their_new_sampler(saved_bounds, bounds, permitted):
    original, restored = bounded(8, alpha=0.6, **saved_bounds), bounded(8, alpha=0.0, **bounds)
    rng = np.random.default_rng(0)
    original.added(0, 4)
    original.draw(8, 0, 4, rng)  # each row twice: equal priorities, stratified
    original.set_version(4)
    original.added(4, 2)
    restored.load_state_dict(original.state_dict())
    assert np.flatnonzero(restored.state_dict()["rows"]["weights"]).tolist() == list(permitted)
    n = sum(permitted.values())
    assert Counter(restored.draw(n, 0, 6, rng).ids.tolist()) == permitted


@pytest.mark.parametrize(
    ("saved_bounds", "bounds"),
    [
        ({"max_reuse": 2}, {"max_reuse": 4}),
        ({"max_reuse": 4}, {"max_reuse": 2}),
        ({"max_staleness": 1}, {"max_staleness": 5}),
    ],
)
def test_changed_bounds_revive_only_rows_that_the_saved_bounds_excluded(saved_bounds, bounds):
    original, restored = [bounded(8, alpha=1.0, epsilon=0.0, **limits) for limits in (saved_bounds, bounds)]
    original.added(0, 4)
    original.update(np.arange(4), [0.0, 1.0, 1.0, 1.0])
    original.discarded(original.draw(3, 0, 4, np.random.default_rng(0)).ids[:1], for_good=True)
    restored.load_state_dict(original.state_dict())
    assert restored.state_dict()["rows"]["weights"].tolist() == original.state_dict()["rows"]["weights"].tolist()
