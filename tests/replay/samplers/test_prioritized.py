import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.replay.plain_replay import assert_drawn_by
from trieye.exceptions import ConfigurationError
from trieye.replay.samplers.prioritized import PrioritizedSampler


def sampler_after(capacity, added, priorities=None, **options):
    """Return a sampler after `added` rows, and the ids of the remaining rows."""
    sampler = PrioritizedSampler(capacity, **options)
    sampler.added(0, added)
    ids = np.arange(max(added - capacity, 0), added)
    if priorities is not None:
        sampler.update(ids, priorities)
    return sampler, ids


def counted(sampler, ids, draws=400, n=64, seed=7):
    rng = np.random.default_rng(seed)
    drawn = np.concatenate([sampler.draw(n, ids[0], ids[-1] + 1, rng).ids for _ in range(draws)])
    return np.bincount(drawn - ids[0], minlength=len(ids))


@pytest.mark.long
@pytest.mark.parametrize(("alpha", "capacity", "added"), [(0.0, 40, 40), (0.6, 300, 700), (2.0, 40, 77)])
def test_rows_are_drawn_in_proportion_to_a_power_of_their_priority(alpha, capacity, added):
    priorities = np.random.default_rng(1).random(min(capacity, added)) + 0.1
    sampler, ids = sampler_after(capacity, added, priorities, alpha=alpha)
    assert_drawn_by(priorities**alpha, counted(sampler, ids))
    proposed = sampler.propose(30_000, ids[0], ids[-1] + 1, np.random.default_rng(2))
    assert_drawn_by(priorities**alpha, np.bincount(proposed - ids[0], minlength=len(ids)))


def test_a_stratified_draw_takes_one_row_from_each_part_of_the_sum():
    sampler, ids = sampler_after(64, 64, np.ones(64))
    assert counted(sampler, ids, draws=10).tolist() == [10] * 64


def test_importance_weights_follow_the_formula():
    priorities = np.array([1.0, 2.0, 4.0, 8.0])
    sampler, _ = sampler_after(4, 4, priorities, alpha=0.5, beta=0.7, epsilon=0)
    draw = sampler.draw(200, 0, 4, np.random.default_rng(0))
    chances = priorities**0.5 / (priorities**0.5).sum()
    weights = (4 * chances) ** -0.7
    assert draw.weights.dtype == np.float32
    assert draw.weights == pytest.approx(weights[draw.ids] / weights.max(), rel=1e-6)
    assert draw.info == {"size": 4, "beta": 0.7}


def test_beta_anneals_to_one_over_beta_draws_batches():
    rng = np.random.default_rng(0)

    def handed_out(sampler):
        sampler.draw(2, 0, 4, rng)  # discarded
        draw = sampler.draw(2, 0, 4, rng)
        sampler.handed_out(draw)
        return draw.info["beta"]

    sampler, _ = sampler_after(4, 4, beta=0.4, beta_draws=4)
    assert [handed_out(sampler) for _ in range(6)] == pytest.approx([0.4, 0.55, 0.7, 0.85, 1, 1])
    sampler, _ = sampler_after(4, 4, beta=0.4)
    assert [handed_out(sampler) for _ in range(2)] == [0.4, 0.4]


def test_rows_with_priority_zero_are_drawn_only_with_an_epsilon():
    priorities = np.array([0.0, 1.0, 0.0, 0.0, 2.0, 0.0])
    sampler, ids = sampler_after(6, 9, priorities, epsilon=0.0)
    assert np.flatnonzero(counted(sampler, ids, draws=5)).tolist() == [1, 4]
    sampler, ids = sampler_after(6, 9, priorities, epsilon=0.5)
    assert counted(sampler, ids, draws=5).all()


def test_drawing_is_an_error_if_all_priorities_are_zero():
    sampler, _ = sampler_after(6, 6, np.zeros(6), epsilon=0.0)
    with pytest.raises(ConfigurationError, match="all 6 rows have priority 0, so none can be drawn; set epsilon"):
        sampler.draw(3, 0, 6, np.random.default_rng(0))
    with pytest.raises(ConfigurationError, match=r"all 6 rows to choose from have priority 0, .*; set epsilon"):
        sampler.pick(3, np.arange(6), np.random.default_rng(0))


def test_extreme_priorities_keep_finite_positive_weights():
    sampler, ids = sampler_after(3, 3, [1e300, 1e-300, 1.0], alpha=1.0, epsilon=0.0)
    assert np.isfinite(sampler.chances(ids)).all()
    assert sampler.chances(ids).all()
    assert set(sampler.draw(50, 0, 3, np.random.default_rng(0)).ids.tolist()) == {0}


def test_pick_follows_the_priorities_of_the_candidates():
    priorities = np.arange(1.0, 9.0)
    sampler, _ = sampler_after(8, 8, priorities, alpha=1.0, epsilon=0.0)
    ids = np.array([1, 3, 6, 7])
    counts = np.bincount(sampler.pick(20_000, ids, np.random.default_rng(0)), minlength=8)
    assert_drawn_by(priorities * np.isin(np.arange(8), ids), counts)


class SlowPriorities:
    """The expected chances by row id, with alpha 1 and epsilon 0."""

    def __init__(self, capacity):
        self.capacity, self.chances, self.largest, self.total, self.low = capacity, {}, 1.0, 0, 0

    def add(self, count):
        for row_id in range(self.total, self.total + count):
            self.chances[row_id] = np.float32(self.largest)
        self.total += count
        self.forget(max(self.low, self.total - self.capacity))

    def forget(self, low):
        self.low = low
        self.chances = {row_id: chance for row_id, chance in self.chances.items() if row_id >= low}

    def update(self, ids, priorities):
        for row_id, priority in zip(ids, priorities, strict=True):
            self.chances[row_id] = np.float32(priority)
        self.largest = max([self.largest, *priorities])


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 30)),
        st.tuples(st.just("update"), st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), min_size=1)),
        st.tuples(st.just("clear"), st.none()),
        st.tuples(st.just("draw"), st.none()),
        st.tuples(st.just("save"), st.none()),
    ),
    max_size=12,
)


@given(st.integers(1, 40), ACTIONS)
def test_priority_weights_match_a_slow_reference(capacity, actions):
    slow, rng = SlowPriorities(capacity), np.random.default_rng(0)
    sampler = PrioritizedSampler(capacity, alpha=1.0, epsilon=0.0)
    for action, argument in actions:
        if action == "add":
            sampler.added(slow.total, argument)
            slow.add(argument)
        elif action == "clear":
            sampler.forgot(slow.total)
            slow.forget(slow.total)
        elif action == "update" and slow.chances:
            ids = [slow.low + index % len(slow.chances) for index, _ in argument]
            slow.update(ids, [float(priority) for _, priority in argument])
            sampler.update(np.array(ids), [float(priority) for _, priority in argument])
        elif action == "draw" and any(slow.chances.values()):
            drawn = sampler.draw(20, slow.low, slow.total, rng).ids
            assert all(slow.chances[row_id] for row_id in drawn.tolist())
        elif action == "save":
            sampler, state = PrioritizedSampler(capacity, alpha=1.0, epsilon=0.0), sampler.state_dict()
            sampler.load_state_dict(state)
    state = sampler.state_dict()
    assert state["weights"].tolist() == list(slow.chances.values())
    if any(slow.chances.values()):
        assert all(slow.chances[row_id] for row_id in sampler.draw(50, slow.low, slow.total, rng).ids.tolist())


def test_a_sampler_of_another_capacity_and_alpha_restores_the_newest_priorities():
    original, _ = sampler_after(10, 15, np.arange(10.0), alpha=1.0, epsilon=0.0)
    smaller = PrioritizedSampler(4, alpha=2.0, epsilon=0.0)
    smaller.load_state_dict(original.state_dict())
    assert smaller.chances(np.arange(11, 15)).tolist() == [36, 49, 64, 81]
    larger = PrioritizedSampler(12, alpha=1.0, epsilon=0.0)
    larger.load_state_dict(original.state_dict())
    larger.added(15, 3)
    larger.draw(1, 6, 18, np.random.default_rng(0))
    assert larger.chances(np.arange(6, 18)).tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9, 9]
