"""Adding and sampling CartPole-like rows, against the two buffers of single-file scripts in the same run.

References: `columns` is the ring of stable-baselines3 and CleanRL in plain NumPy (an array for each key,
`np.array(value)` on the way in, fancy indexing on the way out); `tuples` is the textbook deque of tuples with
`random.choices`. Prints one JSON line; figures are thousand rows per second, medians of 5 interleaved rounds. The ratio
is to `columns`, the only one of the two that gives arrays in microseconds.
"""

import json
import random
import statistics
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from trieye.replay import ReplayBuffer

CAPACITY = 100_000
OBS = np.random.default_rng(0).normal(size=4).astype(np.float32)
ROW = {"obs": OBS, "next_obs": OBS, "action": 1, "reward": 1.0, "done": False}
SHAPES = {"obs": (4,), "next_obs": (4,), "action": (), "reward": (), "done": ()}
DTYPES = {"obs": np.float32, "next_obs": np.float32, "action": np.int64, "reward": np.float32, "done": np.bool_}
BLOCK = {key: np.repeat(np.asarray(value)[None], 64, axis=0) for key, value in ROW.items()}
# `columns` checks nothing: a wrong shape is broadcast, a float is cut to an integer, a missing key keeps the old value.
GOALS = {"add_1": 1.0, "extend_64": 0.6, "sample_256": 1.2, "sample_256_out": 1.2}


class Columns:
    """The ring of a single-file script."""

    def __init__(self) -> None:
        self.cells = {key: np.zeros((CAPACITY, *SHAPES[key]), DTYPES[key]) for key in ROW}
        self.position, self.size = 0, 0
        self.rng = np.random.default_rng(0)

    def add(self, **row: Any) -> None:
        """Add one row."""
        for key, value in row.items():
            self.cells[key][self.position] = np.array(value)
        self.position = (self.position + 1) % CAPACITY
        self.size = min(self.size + 1, CAPACITY)

    def extend(self, block: dict[str, Any]) -> None:
        """Add arrays `[n, ...]`."""
        count = len(block["action"])
        slots = (self.position + np.arange(count)) % CAPACITY
        for key, value in block.items():
            self.cells[key][slots] = value
        self.position = (self.position + count) % CAPACITY
        self.size = min(self.size + count, CAPACITY)

    def sample(self, n: int) -> dict[str, Any]:
        """Draw rows, with replacement."""
        slots = self.rng.integers(0, self.size, n)
        return {key: cells[slots] for key, cells in self.cells.items()}


class Tuples:
    """The textbook deque."""

    def __init__(self) -> None:
        self.rows: deque[tuple[Any, ...]] = deque(maxlen=CAPACITY)
        self.rng = random.Random(0)

    def add(self, **row: Any) -> None:
        """Add one row."""
        self.rows.append((row["obs"].copy(), row["next_obs"].copy(), row["action"], row["reward"], row["done"]))

    def extend(self, block: dict[str, Any]) -> None:
        """Add arrays `[n, ...]`."""
        self.rows.extend(zip(*(array.copy() for array in block.values()), strict=True))

    def sample(self, n: int) -> dict[str, Any]:
        """Draw rows, with replacement."""
        drawn = zip(*self.rng.choices(self.rows, k=n), strict=True)
        return {key: np.array(values, DTYPES[key]) for key, values in zip(ROW, drawn, strict=True)}


def rows_per_ms(act: Callable[[], object], *, rows: int, seconds: float = 0.1) -> float:
    """Repeat for some seconds and return thousand rows per second."""
    calls, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        for _ in range(20):
            act()
        calls += 20
    return calls * rows / elapsed / 1000


def measure(buffer: Any, *, reuse: bool = False) -> dict[str, float]:
    """Fill a buffer and draw from it."""
    speeds = {
        "add_1": rows_per_ms(lambda: buffer.add(**ROW), rows=1),
        "extend_64": rows_per_ms(lambda: buffer.extend(BLOCK), rows=64),
    }
    for _ in range(CAPACITY // 64):
        buffer.extend(BLOCK)
    speeds["sample_256"] = rows_per_ms(lambda: buffer.sample(256), rows=256)
    if reuse:
        batch = buffer.sample(256)
        speeds["sample_256_out"] = rows_per_ms(lambda: buffer.sample(256, out=batch), rows=256)
    return speeds


def medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    """Return the median of each figure."""
    return {key: round(statistics.median(figures[key] for figures in rounds), 1) for key in rounds[0]}


def main() -> None:
    """Measure and print."""
    ours, columns, tuples = [], [], []
    for _ in range(5):
        ours.append(measure(ReplayBuffer(CAPACITY), reuse=True))
        columns.append(measure(Columns()))
        tuples.append(measure(Tuples()))
    result = {"ours": medians(ours), "columns": medians(columns), "tuples": medians(tuples)}
    ratio = {key: round(result["ours"][key] / result["columns"][key.removesuffix("_out")], 2) for key in GOALS}
    goal = {key: f"ratio >= {least}" for key, least in GOALS.items()}
    met = all(ratio[key] >= least for key, least in GOALS.items())
    figures = {"benchmark": "replay_uniform", "unit": "thousand rows/s", **result, "ratio": ratio}
    print(json.dumps({**figures, "goal": goal, "met": met}))


if __name__ == "__main__":
    main()
