"""A replay buffer as plainly as it can be written: what is drawn from ours has to be what this one holds."""

import numpy as np

NARROW, WIDE = (2, 3), (2, 300)
"""Shapes of an observation; rows of the wide ones are not packed."""


class Stream:
    """Environments that make rows; `next_obs` is the next row's `obs`, unless the stream breaks."""

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
        """Return the environments of some rows, and the rows as arrays."""
        made = [self.row() for _ in range(count)]
        return np.array([env for env, _ in made]), {key: np.stack([row[key] for _, row in made]) for key in made[0][1]}

    def _fresh(self):
        return self._rng.integers(0, 256, self._shape, np.uint8)


class Reference:
    """Every row that was ever added, in a dict."""

    def __init__(self, capacity):
        self.capacity, self.total, self.low = capacity, 0, 0
        self.rows, self.envs, self.before = {}, {}, {}
        self._newest = {}

    def add(self, env, row):
        """Add a row."""
        last = self._newest.pop(env, None)
        self.rows[self.total], self.envs[self.total] = row, env
        self.before[self.total] = last
        if not (row["terminated"] or row["truncated"]):
            self._newest[env] = self.total
        self.total += 1
        self.low = max(self.low, self.total - self.capacity)

    def extend(self, envs, rows):
        """Add rows."""
        for index, env in enumerate(envs.tolist()):
            self.add(env, {key: array[index] for key, array in rows.items()})

    def clear(self):
        """Forget all rows."""
        self.low = self.total
        self._newest.clear()

    def window(self, row_id, n):
        """Return the rows that an n-step return sums over."""
        after = {before: row for row, before in self.before.items() if before is not None}
        rows = [row_id]
        while len(rows) < n and rows[-1] in after:
            rows.append(after[rows[-1]])
        return [self.rows[row] for row in rows]

    def stack(self, row_id, frames, padding):
        """Return the newest frames of an episode, oldest first; None if one was overwritten."""
        found, current = [], row_id
        while len(found) < frames and current is not None:
            if current < self.low:
                return None
            found.append(self.rows[current]["obs"])
            current = self.before[current]
        first = found[-1] if padding == "reset" else np.zeros_like(found[-1])
        return np.stack([*[first] * (frames - len(found)), *reversed(found)])
