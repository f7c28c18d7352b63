from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.replay.plain_replay import assert_drawn_by
from trieye.replay.fragments import Fragment, FragmentMeta, FragmentRules
from trieye.replay.fragments.pool import ChunkPool, StoredChunk


def pool_of(priorities, **rules):
    pool = ChunkPool(FragmentRules(max_chunks=4, **rules))
    for number, priority in enumerate(priorities):
        pool.add(chunk_of(number, priority=priority))
    return pool


def chunk_of(number, version=0, **options):
    return StoredChunk(number, (Fragment(FragmentMeta("w", number, version), {}, number),), **options)


def choose(pool, n, rng):
    chunks, weights = pool.choose(n, rng)
    return tuple(chunk.id for chunk in chunks), weights


@pytest.mark.long
def test_every_ordered_pick_is_equally_likely():
    rng, pool = np.random.default_rng(4), pool_of([1, 2, 1, 1, 5])  # uniform choices ignore priorities
    counts = Counter(choose(pool, 3, rng)[0] for _ in range(12_000))
    picks = list(permutations(range(5), 3))
    assert_drawn_by(np.ones(60), np.array([counts[pick] for pick in picks]))


@pytest.mark.long
def test_prioritized_picks_follow_the_priorities_of_the_remaining_chunks():
    rng, masses = np.random.default_rng(5), [1.0, 2.0, 4.0, 9.0]
    pool = pool_of([mass**2 for mass in masses], sampler="prioritized", alpha=0.5)
    counts = Counter(choose(pool, 2, rng)[0] for _ in range(4_000))
    picks = list(permutations(range(4), 2))
    chances = [masses[first] * masses[second] / (16 - masses[first]) for first, second in picks]
    assert_drawn_by(chances, np.array([counts[pick] for pick in picks]))


def test_importance_weights_follow_the_formula():
    pool = pool_of([1.0, 4.0, 5.0], sampler="prioritized", alpha=1.0, beta=0.5)
    ids, weights = choose(pool, 3, np.random.default_rng(0))
    raw = {number: (3 * share) ** -0.5 for number, share in enumerate([0.1, 0.4, 0.5])}
    assert weights == pytest.approx([raw[number] / raw[0] for number in ids])
    assert weights.dtype == np.float32
    assert choose(pool, 3, np.random.default_rng(0))[0] == ids


@given(
    st.lists(st.floats(1e-6, 1e30), min_size=1, max_size=20),
    st.lists(st.tuples(st.integers(0, 30), st.floats(1e-6, 1e30)), max_size=20),
    st.integers(0, 99),
)
def test_prioritized_picks_are_distinct_after_any_updates_and_removals(priorities, changes, seed):
    pool = pool_of(priorities, sampler="prioritized", alpha=1.0, beta=1.0)
    for slot, priority in changes:
        if slot < len(pool):
            pool.prioritize({pool.by_slot[slot].id: priority})
        elif len(pool) > 1:
            pool.remove(pool.by_slot[slot % len(pool)])
    ids, weights = choose(pool, len(pool), np.random.default_rng(seed))
    assert sorted(ids) == [chunk.id for chunk in pool]
    assert ((weights > 0) & (weights <= 1)).all() or max(priorities) > 1e20


@given(st.lists(st.tuples(st.sampled_from("aaro"), st.integers(0, 5)), max_size=60))
def test_the_chunk_pool_matches_a_plain_list(steps):
    pool, model = pool_of([]), []
    for number, (action, version) in enumerate(steps):
        if action == "a":
            model.append(chunk_of(number, version))
            pool.add(model[-1])
        elif action == "r" and model:
            pool.remove(model.pop(version % len(model)))
        elif action == "o":
            older = [chunk for chunk in model if chunk.version < version]
            assert {chunk.id for chunk in pool.older_than(version)} == {chunk.id for chunk in older}
            for chunk in pool.older_than(version):
                pool.remove(chunk)
            model = [chunk for chunk in model if chunk.version >= version]
        assert [chunk.id for chunk in pool] == [chunk.id for chunk in model]
        assert sorted(chunk.id for chunk in pool.by_slot) == [chunk.id for chunk in model]
        assert [chunk.slot for chunk in pool.by_slot] == list(range(len(model)))
        assert pool.oldest(()) is (model[0] if model else None)
        higher = {chunk.id for chunk in model if chunk.version > version}
        assert {chunk.id for chunk in pool.newer_than(version)} == higher
