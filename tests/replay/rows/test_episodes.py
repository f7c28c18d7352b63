from functools import partial
from itertools import pairwise

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given
from hypothesis import strategies as st

from tests.replay.plain_replay import PlainLinks
from trieye.replay import ReplayBuffer
from trieye.replay.rows.episodes import EpisodeLinks

# (environment, whether its episode ends), in row order
STREAMS = st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=60)
CUTS = st.lists(st.integers(0, 60), max_size=8)


def added(rows, capacity, cuts=(), one_by_one=False, links=None, first_id=0):
    links = links or EpisodeLinks(capacity, count_steps=True)
    if one_by_one:
        for row_id, (env, ended) in enumerate(rows, first_id):
            links.add_one(row_id, env, ended)
        return links
    edges = [0, *sorted(cut for cut in cuts if cut < len(rows)), len(rows)]
    for start, end in pairwise(edges):
        envs, ends = [env for env, _ in rows[start:end]], [ended for _, ended in rows[start:end]]
        links.add(np.arange(first_id + start, first_id + end), np.array(envs, np.int64), np.array(ends, bool))
    return links


def assert_links(links, rows, low):
    slow, ids = PlainLinks(rows), np.arange(low, len(rows))
    assert links.next_ids(ids).tolist() == [slow.next[row_id] for row_id in ids]
    expected = [slow.previous[row_id] if slow.previous[row_id] >= low else -1 for row_id in ids]
    assert links.previous_ids(ids, low).tolist() == expected
    across = [slow.next_of_env[row_id] for row_id in ids]
    assert links.next_ids(ids, across=True).tolist() == across
    back = {after: row_id for row_id, after in slow.next_of_env.items() if row_id >= low}
    assert links.previous_ids(ids, low, across=True).tolist() == [back.get(row_id, -1) for row_id in ids]
    assert links.has_ended(ids).tolist() == [rows[row_id][1] for row_id in ids]
    assert links.steps(ids).tolist() == [slow.step[row_id] for row_id in ids]
    assert (ids - links.rows(low, len(ids))["start"]).tolist() == [slow.start[row_id] for row_id in ids]


@given(STREAMS, STREAMS, st.integers(1, 70), st.integers(1, 70), CUTS, st.booleans())
def test_rows_are_linked_to_their_neighbours_of_the_same_episode_also_after_a_restore(
    rows, later, capacity, other, cuts, one_by_one
):
    original = added(rows, capacity, cuts, one_by_one)
    assert_links(original, rows, max(len(rows) - capacity, 0))
    low = max(len(rows) - min(capacity, other), 0)
    restored = EpisodeLinks(other, count_steps=True)
    edges = sorted({low, len(rows), *(cut for cut in cuts if low < cut < len(rows))})
    for start, end in pairwise(edges):
        restored.restore_rows(start, original.rows(start, end - start), low)
    restored.load_state_dict(original.state_dict())
    assert added(later, other, links=restored, first_id=len(rows)) is restored
    everything = rows + later
    assert_links(restored, everything, max(low, len(everything) - other))


@given(STREAMS, st.integers(1, 70), st.booleans(), st.booleans(), st.data())
def test_travel_follows_the_rows_of_an_episode(rows, capacity, count_steps, backwards, data):
    links = added(rows, capacity, links=EpisodeLinks(capacity, count_steps=count_steps))
    low, slow = max(len(rows) - capacity, 0), PlainLinks(rows)
    ids = np.arange(low, len(rows))
    limit = np.array([data.draw(st.integers(0, 9) | st.just(1 << 62)) for _ in ids], np.int64)
    reached, num_steps = links.travel(ids, limit, low=low, backwards=backwards)
    for index in range(len(ids)):
        at, length = int(ids[index]), 0
        while length < limit[index]:
            target = (slow.previous if backwards else slow.next)[at]
            if target < low:
                break
            at, length = target, length + 1
        assert (reached[index], num_steps[index]) == (at, length)


def test_travel_leaps_over_regular_turns_of_environments():
    # 16 environments in turn; each episode begins in the slot of the start of an overwritten episode
    links, num_lookups = EpisodeLinks(3200, count_steps=True), []
    for turn in range(250):
        links.add(np.arange(16 * turn, 16 * turn + 16), np.arange(16), np.full(16, turn % 100 == 99))
    one_by_one = links.next_ids
    links.next_ids = lambda ids: num_lookups.append(len(ids)) or one_by_one(ids)
    ids = np.arange(800, 4000)
    reached, num_steps = links.travel(ids, np.full(len(ids), 1 << 62), low=800)
    turns = ids // 16
    assert np.array_equal(num_steps, np.minimum(99 - turns % 100, 249 - turns))
    assert np.array_equal(reached, ids + 16 * num_steps)
    assert num_lookups == [3200]  # the last pass checks that nothing remains


def test_step_numbers_require_count_steps():
    with pytest.raises(AssertionError, match="count_steps"):
        EpisodeLinks(5).steps(np.arange(1))


class Counting(gymnasium.Env):
    """Observations are the episode length and the step; the reward is the step."""

    observation_space, action_space = gymnasium.spaces.Box(0, 1000, (2,)), gymnasium.spaces.Discrete(2)

    def __init__(self, length, is_cut):
        self.length, self.is_cut, self.step_count = length, is_cut, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.step_count = 0
        return np.array([self.length, 0], np.float32), {}

    def step(self, action):
        self.step_count += 1
        ends = self.step_count == self.length
        obs = np.array([self.length, self.step_count], np.float32)
        return obs, float(self.step_count), ends and not self.is_cut, ends and self.is_cut, {}


@pytest.mark.parametrize(("mode", "dedup_next"), [(AutoresetMode.NEXT_STEP, True), (AutoresetMode.SAME_STEP, False)])
def test_vector_environments_store_rows_as_documented(mode, dedup_next):
    makers = [partial(Counting, length, length == 3) for length in (2, 3, 5)]  # episodes of 3 steps are truncated
    envs = SyncVectorEnv(makers, autoreset_mode=mode)
    buffer = ReplayBuffer(500, n_step=3, gamma=0.5, dedup_next=dedup_next)
    obs, was_done = envs.reset()[0], np.zeros(3, bool)
    for _ in range(40):
        after, reward, terminated, truncated, info = envs.step(np.zeros(3, int))
        done = terminated | truncated
        next_obs = after.copy()
        if mode == AutoresetMode.SAME_STEP and done.any():
            next_obs[done] = np.stack(info["final_obs"][done])
        rows = {"obs": obs, "next_obs": next_obs, "reward": reward, "terminated": terminated, "truncated": truncated}
        buffer.extend({key: array[~was_done] for key, array in rows.items()}, np.arange(3)[~was_done])
        obs, was_done = after, done if mode == AutoresetMode.NEXT_STEP else was_done
    batch = buffer.sample(3000)
    old = np.flatnonzero(batch.ids < len(buffer) - 12)  # the newest rows have shorter windows
    length, step = batch["obs"][old].astype(int).T
    assert set(zip(length.tolist(), step.tolist(), strict=True)) == {(n, k) for n in (2, 3, 5) for k in range(n)}
    num = np.minimum(3, length - step)
    assert np.array_equal(batch["n"][old], num)
    assert np.array_equal(batch["next_obs"][old], np.stack([length, step + num], axis=1))
    assert np.array_equal(batch["discount"][old], np.where((step + num == length) & (length != 3), 0, 0.5**num))
    rewards = sum(np.where(k < num, 0.5**k * (step + 1 + k), 0) for k in range(3))
    assert np.array_equal(batch["reward"][old], rewards)
