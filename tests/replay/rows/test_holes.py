"""Restoring a replay buffer with damaged parts: draws match the added rows and never cross a gap."""

from dataclasses import replace

import numpy as np
import pytest

from tests.replay.plain_replay import assert_same, restored
from trieye.exceptions import CheckpointError, ReplayTimeoutError
from trieye.files.checksum import FileEntry
from trieye.replay import HindsightRelabeler, RateLimiter, ReplayBuffer
from trieye.replay.rows.segments import Gaps
from trieye.replay.samplers.base import SampledIds
from trieye.snapshot.decode import decode
from trieye.snapshot.encode import encode
from trieye.snapshot.nodes import PartFile

ENVS, LENGTHS = 3, (5, 7, 1000)


class World:
    """Environments that take turns; observations are (environment, episode, step)."""

    def __init__(self):
        self.state = np.array([[env, 0, 0] for env in range(ENVS)])

    def step(self, buffer):
        after = self.state + np.array([0, 0, 1])
        done = after[:, 2] == LENGTHS
        buffer.extend(
            {
                "obs": self.state.copy(),
                "next_obs": after,
                "reward": after[:, 2].astype(np.float64),
                "terminated": done,
                "achieved": after.copy(),
                "goal": self.state * 0,
            },
            env_ids=np.arange(ENVS),
        )
        self.state = np.where(done[:, None], self.state * [1, 0, 0] + np.outer(done, [0, 1, 0]), after)
        self.state[:, 1] = np.where(done, after[:, 1] + 1, after[:, 1])


def saved_in_parts(buffer, world, rounds=(40, 1, 30, 25, 3, 60)):
    """Fill a buffer with occasional saves, and return the last saved state."""
    parts = {}
    for count in rounds:
        for _ in range(count):
            world.step(buffer)
        saved = buffer.state_parts(parts)
        parts |= saved.new
    encoded = encode(buffer, known_parts=parts)
    return replace(encoded, parts={name: parts[name] for name in encoded.parts})


def damaged(encoded, tmp_path, numbers):
    """Return the same state with missing files for some parts, counted from the oldest."""
    names = sorted(encoded.parts, key=lambda name: int(name.split("-")[1]))
    lost = [names[number] for number in numbers]
    gone = {name: PartFile(tmp_path / name, FileEntry(size_bytes=1, crc32=0)) for name in lost}
    ranges = [list(map(int, name.split("-")[1:3])) for name in lost]
    return replace(encoded, parts={**encoded.parts, **gone}), sum(end - first for first, end in ranges)


def loaded(encoded, capacity=400, *, lazy=False, **options):
    """Return a buffer with the remaining rows."""
    buffer = ReplayBuffer(capacity, **options)
    buffer.load_state_dict(decode(encoded), lazy=lazy)
    return buffer


N_STEP = {"n_step": 3, "gamma": 0.5}
STACKED = {"frame_stack": {"obs": 3}, "padding": "zero"}
LOSSES = {
    "plain, first part": ({}, (0,)),
    "n_step, several parts": (N_STEP, (2, 3, 5)),
    "dedup, two parts": ({**N_STEP, "dedup_next": True}, (1, 3)),
    "stacked, several parts": (STACKED, (2, 3, 5)),
    "stacked and dedup, first part": ({**STACKED, "dedup_next": True}, (0,)),
    "stacked and dedup, several parts": ({**STACKED, "dedup_next": True}, (2, 3, 5)),
    "prioritized, two parts": ({"sampler": "prioritized", "max_reuse": 50, "max_staleness": 9}, (1, 3)),
}


def check_rows(batch, options):
    """Compare drawn rows with the world's own rows."""
    obs, after = batch["obs"], batch["next_obs"]
    if "frame_stack" in options:
        for stack, following in ((obs, obs[:, -1]), (after, after[:, -1])):
            steps = np.arange(-stack.shape[1] + 1, 1) + following[:, 2, None]
            expected = np.stack([np.broadcast_to(following[:, None, 0], steps.shape), steps * 0, steps], axis=-1)
            expected[:, :, 1] = following[:, None, 1]
            expected[steps < 0] = 0
            assert np.array_equal(stack, expected)
        obs, after = obs[:, -1], after[:, -1]
    n = batch["n"] if "n" in batch else np.ones(len(obs), np.int64)
    assert np.array_equal(after, obs + np.stack([n * 0, n * 0, n], axis=1))
    steps = obs[:, 2, None] + 1 + np.arange(3)
    assert np.allclose(batch["reward"], np.where(np.arange(3) < n[:, None], steps * 0.5 ** np.arange(3), 0).sum(axis=1))
    assert np.array_equal(batch["terminated"], after[:, 2] == np.array(LENGTHS)[after[:, 0]])


@pytest.mark.parametrize(("options", "lost"), LOSSES.values(), ids=LOSSES)
def test_drawn_rows_equal_the_added_ones_and_never_cross_a_gap(options, lost, tmp_path, caplog):
    world = World()
    before = ReplayBuffer(400, seed=3, **options)
    encoded, count = damaged(saved_in_parts(before, world), tmp_path, lost)
    after = loaded(encoded, seed=3, **options)
    missing = len(before) - len(after)
    assert missing == after.stats()["lost"] > 0
    assert count - ENVS * 41 <= missing <= count + ENVS * len(lost)  # the oldest part is partly overwritten
    assert "of the replay are lost" in caplog.text
    check_rows(after.sample(600), options)
    for _ in range(10):  # the open episodes continue
        world.step(after)
    check_rows(after.sample(600), options)
    again = restored(after, seed=3, **options)
    assert_same(after.sample(100), again.sample(100))


def test_priorities_stay_with_their_rows_despite_gaps(tmp_path):
    options = {"sampler": "prioritized", "sampler_options": {"alpha": 1.0, "epsilon": 0.0}}
    before, world, parts = ReplayBuffer(400, **options), World(), {}
    for _ in range(4):
        for _ in range(30):
            world.step(before)
        ids = np.arange(before.stats()["added"])
        before.update_priorities(ids, (before.rows(_draw(ids))["obs"][:, 2] % 2 == 0).astype(float))
        parts |= before.state_parts(parts).new
    encoded = encode(before, known_parts=parts)
    encoded, _ = damaged(replace(encoded, parts=parts), tmp_path, (1, 2))
    after = loaded(encoded, **options)
    drawn = after.sample(2000)
    assert np.all(drawn["obs"][:, 2] % 2 == 0)
    assert set(drawn.ids.tolist()) == {
        int(row) for row in np.arange(180, 360) if after.rows(_draw(np.array([row])))["obs"][0, 2] % 2 == 0
    }


def _draw(ids):
    return SampledIds(ids, np.ones(len(ids), np.float32))


@pytest.mark.parametrize("cross_episodes", [False, True])
def test_sequences_never_cross_a_gap(tmp_path, cross_episodes):
    options = {"sampler": "sequence", "sampler_options": {"length": 4, "cross_episodes": cross_episodes}}
    before = ReplayBuffer(400, **options)
    encoded, _ = damaged(saved_in_parts(before, World()), tmp_path, (1, 3))
    obs = loaded(encoded, **options).sample(2000)["obs"]
    lengths = np.array(LENGTHS)[obs[:, :-1, 0]]
    follows = (obs[:, 1:] == obs[:, :-1] + [0, 0, 1]).all(axis=-1)
    begins = (obs[:, :-1, 2] == lengths - 1) & (obs[:, 1:, 2] == 0) & (obs[:, 1:, 1] == obs[:, :-1, 1] + 1)
    assert np.all(follows | begins if cross_episodes else follows)


@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
def test_hindsight_goals_never_cross_a_gap(tmp_path, strategy):
    reward, keys = lambda _achieved, desired, _info: np.zeros(len(desired)), {"goal_keys": ("goal",)}
    her = HindsightRelabeler(reward, strategy=strategy, achieved_key="achieved", **keys)

    def add(buffer, first, end):
        numbers = np.arange(first, end)
        obs = np.stack([numbers // 7, numbers % 7], axis=1)
        buffer.extend(
            {"obs": obs, "achieved": obs + 1, "goal": obs * 0, "reward": numbers * 0.0, "done": numbers % 7 == 6}
        )

    # episodes and gaps have 7 rows, so that the rows around a gap look like a single episode
    before, parts = ReplayBuffer(400, her=her), {}
    for first, end in ((0, 3), (3, 38), (38, 73), (73, 108), (108, 143), (143, 145)):
        add(before, first, end)
        parts |= before.state_parts(parts).new
    encoded, _ = damaged(replace(encode(before, known_parts=parts), parts=dict(parts)), tmp_path, (1, 4))
    after = loaded(encoded, her=her)
    add(after, 145, 150)  # the open episode began in the last gap
    drawn = after.sample(1500)
    relabelled = drawn["goal"].any(axis=1)
    assert relabelled.sum() > 400
    assert np.array_equal(drawn["goal"][relabelled, 0] - 1, drawn["obs"][relabelled, 0])
    again = restored(after, her=her)
    assert_same(after.sample(64), again.sample(64))


def test_a_buffer_without_intact_parts_is_empty_and_accepts_rows(tmp_path):
    world = World()
    encoded, _ = damaged(saved_in_parts(ReplayBuffer(400), world), tmp_path, range(6))
    after = loaded(encoded)
    assert len(after) == 0
    world.step(after)
    check_rows(after.sample(50), {})


@pytest.mark.parametrize(("capacity", "lazy"), [(30, True), (200, False), (5000, True)])
def test_a_buffer_of_another_capacity_omits_damaged_rows_too(tmp_path, capacity, lazy):
    encoded, _ = damaged(saved_in_parts(ReplayBuffer(400), World()), tmp_path, (2, 4))
    after = loaded(encoded, capacity, lazy=lazy)
    assert len(after) + after.stats()["lost"] == min(capacity, 400)
    check_rows(after.sample(1000), {})


def test_the_rate_limiter_does_not_count_lost_rows(tmp_path):
    before, after = (RateLimiter(1.0, min_size_to_sample=450, error_buffer=1e6) for _ in range(2))
    encoded, _ = damaged(saved_in_parts(ReplayBuffer(400, limiter=before), World()), tmp_path, (2,))
    assert before.can_sample()
    with pytest.raises(ReplayTimeoutError):
        loaded(encoded, limiter=after).sample(1)


def test_on_damage_refuse_turns_damage_into_an_error(tmp_path):
    encoded, _ = damaged(saved_in_parts(ReplayBuffer(400), World()), tmp_path, (2,))
    with pytest.raises(CheckpointError, match="is damaged"):
        ReplayBuffer(400).load_state_dict(decode(encoded, on_damage="refuse"))


def test_adjacent_gaps_are_merged_and_earlier_rows_move_up():
    gaps = Gaps([(30, 40), (10, 20), (20, 25)], 5, 50)
    assert (str(gaps), gaps.num_rows, gaps.low) == ("10-24, 30-39", 25, 30)
    assert gaps.moved(np.array([5, 9, 10, 24, 25, 29, 30, 40, 49])).tolist() == [30, 34, -1, -1, 35, 39, -1, 40, 49]
    assert gaps.remaining(0, 60) == [(5, 10), (25, 30), (40, 50)]
    assert [gaps.run_start(row) for row in (5, 9, 25, 45)] == [30, 30, 35, 40]
