import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.replay.plain_replay import PlainLinks, assert_drawn_by, links_of
from trieye.exceptions import ConfigurationError
from trieye.replay.samplers.base import UniformSampler
from trieye.replay.samplers.prioritized import PrioritizedSampler
from trieye.replay.samplers.sequence import SequenceSampler

STREAMS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 5).map(lambda number: not number)), min_size=1, max_size=60
)


def plain_sequences(stream, low, length, period=1, cross=False, pad=False):
    """Return all valid sequences by first row."""
    links, sequences = PlainLinks(stream), {}
    follow = links.next_of_env if cross else links.next
    for row in range(low, len(stream)):
        sequence = [row]
        while len(sequence) < length and follow[sequence[-1]] >= 0:
            sequence.append(follow[sequence[-1]])
        if links.step[row] % period == 0 and (pad or len(sequence) == length):
            sequences[row] = sequence + [-1] * (length - len(sequence))
    return sequences


class NoProposals(UniformSampler):
    """Proposes no starts, so that all rows are scanned."""

    def propose(self, n, low, high, rng):
        return np.empty(0, np.int64)

    def pick(self, n, ids, rng):
        self.looked_up = ids.tolist()
        return super().pick(n, ids, rng)


@given(STREAMS, st.integers(1, 70), st.integers(1, 6), st.integers(1, 3), st.booleans(), st.booleans())
def test_draws_cover_exactly_the_valid_sequences(stream, capacity, length, period, cross, pad):
    low = max(len(stream) - capacity, 0)
    sampler = SequenceSampler(links_of(stream, capacity), length, period=period, cross_episodes=cross, pad=pad)
    possible = plain_sequences(stream, low, length, period, cross, pad)
    rng = np.random.default_rng(0)
    if not possible:
        with pytest.raises(ConfigurationError, match=f"starts a sequence of {length} rows"):
            sampler.draw(5, low, len(stream), rng)
        return
    draw = sampler.draw(64, low, len(stream), rng)
    assert draw.ids.shape == (64, length)
    assert draw.weights.shape == (64,)
    for sequence in draw.ids.tolist():
        assert sequence == possible[sequence[0]]
    if pad:
        assert np.array_equal(draw.mask, draw.ids >= 0)
    else:
        assert draw.mask is None
    # the rows that can start a sequence are also found by the scan
    sampler.starts = NoProposals()
    sampler.draw(1, low, len(stream), rng)
    assert sampler.starts.looked_up == sorted(possible)


@pytest.mark.parametrize("length", [3, 18])
def test_every_possible_start_is_drawn_equally_often(length):
    # with length 18, two of forty rows start a sequence: most proposals are rejected, then all rows are scanned
    stream = [(0, row in {11, 20}) for row in range(40)]
    sampler, rng = SequenceSampler(links_of(stream), length), np.random.default_rng(0)
    starts = np.concatenate([sampler.draw(64, 0, 40, rng).ids[:, 0] for _ in range(200)])
    possible = sorted(plain_sequences(stream, 0, length))
    assert_drawn_by(np.isin(np.arange(40), possible), np.bincount(starts, minlength=40))


def test_starts_can_be_drawn_by_priority():
    stream = [(0, row % 4 == 3) for row in range(16)]
    starts = PrioritizedSampler(16, alpha=1.0, beta=1.0, epsilon=0.0)
    sampler = SequenceSampler(links_of(stream, 16), 4, starts=starts)
    sampler.added(0, 16)
    draw = sampler.draw(32, 0, 16, np.random.default_rng(0))
    assert set(draw.ids[:, 0].tolist()) == {0, 4, 8, 12}
    sampler.update(np.array([0, 4, 8, 12]), [1.0, 0.0, 3.0, 0.0])
    draw = sampler.draw(4000, 0, 16, np.random.default_rng(0))
    counts = np.bincount(draw.ids[:, 0], minlength=16)
    assert np.flatnonzero(counts).tolist() == [0, 8]
    assert counts[8] / counts[0] == pytest.approx(3, rel=0.15)
    assert draw.weights[draw.ids[:, 0] == 8][0] == pytest.approx(1 / 3)


def test_only_rows_that_can_never_start_a_sequence_lose_their_weight():
    # an episode of six rows, and an open one of four
    links = links_of([(0, row == 5) for row in range(10)], 20)
    starts = PrioritizedSampler(20, alpha=1.0)
    sampler, rng = SequenceSampler(links, 4, period=2, starts=starts), np.random.default_rng(0)
    sampler.added(0, 10)
    for _ in range(20):
        assert set(sampler.draw(16, 0, 10, rng).ids[:, 0].tolist()) <= {0, 2, 6}
    assert np.flatnonzero(starts.chances(np.arange(10))).tolist() == [0, 2, 6, 8]
    links.add(np.array([10, 11]), [0, 0], [False, False])
    sampler.added(10, 2)
    assert 8 in sampler.draw(64, 0, 12, rng).ids[:, 0]


def test_a_missing_sequence_is_reported_despite_priorities():
    sampler = SequenceSampler(links_of([(0, True)] * 9, 9), 3, starts=PrioritizedSampler(9))
    sampler.added(0, 9)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="none of the 9 rows starts a sequence of 3 rows"):
            sampler.draw(4, 0, 9, np.random.default_rng(0))


def test_a_restored_sampler_makes_the_same_draws():
    stream = [(0, row % 5 == 4) for row in range(60)]
    links = links_of(stream, 60)
    original, restored = (SequenceSampler(links, 4, starts=PrioritizedSampler(60)) for _ in range(2))
    original.added(0, 60)
    original.draw(16, 0, 60, np.random.default_rng(0))
    restored.load_state_dict(original.state_dict())
    one, other = (sampler.draw(16, 0, 60, np.random.default_rng(3)) for sampler in (original, restored))
    assert np.array_equal(one.ids, other.ids)
    assert np.array_equal(one.weights, other.weights)


def test_forgotten_rows_start_no_sequence():
    sampler = SequenceSampler(links_of([(0, False)] * 20, 20), 3, starts=PrioritizedSampler(20))
    sampler.added(0, 20)
    sampler.forgot(15)
    assert sampler.draw(50, 15, 20, np.random.default_rng(0)).ids[:, 0].min() >= 15
