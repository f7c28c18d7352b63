"""A plain reference replay buffer, rows that encode their ids, and comparisons of two buffers."""

import numpy as np
import pytest

from trieye.replay import ReplayBuffer
from trieye.replay.rows.episodes import EpisodeLinks
from trieye.snapshot.decode import decode
from trieye.snapshot.encode import encode

NARROW, WIDE = (2, 3), (2, 300)
"""Shapes of an observation; rows of the wide ones are not packed."""


class Stream:
    """Environments that produce rows; `next_obs` is the next row's `obs`, unless the stream breaks."""

    def __init__(self, seed, shape=NARROW, num_envs=3):
        self._rng, self._shape = np.random.default_rng(seed), shape
        self._obs = {env: self._fresh() for env in range(num_envs)}

    def row(self):
        """Return an environment and its next row."""
        rng, env = self._rng, int(self._rng.integers(len(self._obs)))
        obs, after = self._obs[env], self._fresh()
        kind = rng.random()
        terminated, truncated = bool(kind < 0.15), bool(0.15 <= kind < 0.25)
        breaks = terminated or truncated or kind > 0.95
        self._obs[env] = self._fresh() if breaks else after
        return env, {
            "obs": obs,
            "next_obs": after,
            "reward": float(np.float32(rng.normal())),
            "terminated": terminated,
            "truncated": truncated,
        }

    def rows(self, count):
        """Return the environments of `count` rows, and the rows as arrays."""
        stream_rows = [self.row() for _ in range(count)]
        return np.array([env for env, _ in stream_rows]), {
            key: np.stack([row[key] for _, row in stream_rows]) for key in stream_rows[0][1]
        }

    def _fresh(self):
        return self._rng.integers(0, 256, self._shape, np.uint8)


class Reference:
    """Every row that was ever added, in a dict."""

    def __init__(self, capacity):
        self.capacity, self.total, self.low = capacity, 0, 0
        self.rows, self.before, self.after = {}, {}, {}
        self._newest = {}

    def add(self, env, row):
        """Add a row."""
        last = self._newest.pop(env, None)
        self.rows[self.total], self.before[self.total] = row, last
        self.after[last] = self.total
        if not (row["terminated"] or row["truncated"]):
            self._newest[env] = self.total
        self.total += 1
        self.low = max(self.low, self.total - self.capacity)

    def extend(self, envs, rows):
        """Add rows."""
        for index, env in enumerate(envs.tolist()):
            self.add(env, {key: array[index] for key, array in rows.items()})

    def clear(self):
        """Remove all rows."""
        self.low = self.total
        self._newest.clear()

    def window(self, row_id, n):
        """Return the ids of the rows that an n-step return sums over."""
        ids = [row_id]
        while len(ids) < n and ids[-1] in self.after:
            ids.append(self.after[ids[-1]])
        return ids

    def stack(self, row_id, frames, padding):
        """Return the newest frames of an episode, oldest first; None if a frame was overwritten."""
        frames_found, current = [], row_id
        while len(frames_found) < frames and current is not None:
            if current < self.low:
                return None
            frames_found.append(self.rows[current]["obs"])
            current = self.before[current]
        first = frames_found[-1] if padding == "reset" else np.zeros_like(frames_found[-1])
        return np.stack([*[first] * (frames - len(frames_found)), *reversed(frames_found)])


class PlainLinks:
    """The expected links, row by row in plain Python."""

    def __init__(self, rows):
        self.next, self.previous, self.step, self.start = {}, {}, {}, {}
        self.next_of_env = dict.fromkeys(range(len(rows)), -1)
        last, newest = {}, {}
        for row_id, (env, ended) in enumerate(rows):
            if env in newest:
                self.next_of_env[newest[env]] = row_id
            newest[env] = row_id
            before = last.get(env)
            self.previous[row_id] = -1 if before is None else before
            self.next[row_id] = -1
            self.step[row_id] = 0 if before is None else self.step[before] + 1
            self.start[row_id] = row_id if before is None else self.start[before]
            if before is not None:
                self.next[before] = row_id
            last[env] = None if ended else row_id


def numbered(start, count, width=4, **more):
    """Rows whose values all encode their id; every third row ends an episode."""
    numbers = np.arange(start, start + count)
    return {
        "obs": np.repeat(numbers[:, None], width, axis=1).astype(np.float32),
        "action": numbers,
        "reward": numbers.astype(np.float64),
        "done": numbers % 3 == 0,
        **more,
    }


def one_of(rows, index=0):
    """Return a single row in the form that `ReplayBuffer.add` accepts."""
    return {key: array[index] for key, array in rows.items()}


def saved(buffer):
    """Return the state of a buffer as restored from a checkpoint."""
    return decode(encode(buffer))


def restored(buffer, capacity=None, *, lazy=False, **options):
    """Return another buffer with the same content."""
    other = ReplayBuffer(capacity or buffer.capacity, **options)
    other.load_state_dict(saved(buffer), lazy=lazy)
    return other


def assert_same(one, other):
    """Check that two batches are equal, bit by bit."""
    assert list(one) == list(other)
    assert np.array_equal(one.ids, other.ids)
    assert np.array_equal(one.weights, other.weights)
    for key in one:
        assert one[key].dtype == other[key].dtype, key
        assert np.array_equal(one[key], other[key]), key


def assert_fit_for_torch(batch):
    """Check that torch accepts each array of a batch; its warnings are errors in the tests."""
    torch = pytest.importorskip("torch")
    arrays = {**batch.data, "ids": batch.ids, "weights": batch.weights, "mask": batch.mask}
    for key, array in arrays.items():
        if array is not None:
            assert array.flags.writeable, key
            assert torch.from_numpy(array).data_ptr() == torch.as_tensor(array).data_ptr() == array.ctypes.data, key
            assert array.flags.c_contiguous or key in batch.data, key  # they may view records


def assert_equal_draws(one, other, count=10):
    """Check that two buffers make the same draws from now on."""
    for _ in range(count):
        assert_same(one.sample(16), other.sample(16))


def by_id(batch, key):
    """Return the values of a key by the id of the row."""
    return dict(zip(batch.ids.tolist(), batch[key].tolist(), strict=True))


def links_of(stream, capacity=100, *, count_steps=True):
    """Return the links of rows, given as pairs of environment and whether the episode ends."""
    links = EpisodeLinks(capacity, count_steps=count_steps)
    links.add(np.arange(len(stream)), np.array([env for env, _ in stream]), np.array([bool(end) for _, end in stream]))
    return links


def assert_drawn_by(chances, counts):
    """Check counts against probabilities; a deviation with p < 0.001 fails (Wilson and Hilferty)."""
    chances = np.asarray(chances, float)
    expected = counts.sum() * chances / chances.sum()
    possible = expected > 0
    assert not counts[~possible].any()
    degrees = np.count_nonzero(possible) - 1
    bound = degrees * (1 - 2 / (9 * degrees) + 3.09 * np.sqrt(2 / (9 * degrees))) ** 3
    assert (((counts - expected) ** 2)[possible] / expected[possible]).sum() < bound
