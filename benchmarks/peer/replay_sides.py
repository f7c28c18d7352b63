"""Adapters that give the replay buffers of several libraries the same interface.

A library is imported when its side is created. Calls receive plain arrays, as an environment returns them, so the time
to add a row includes its conversion to the library's container.
"""

from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

BATCH, BLOCK = 256, 64
Rows = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Case:
    """Rows of a buffer.

    Attributes:
        shape: Shape of an observation.
        dtype: Dtype of an observation.
        capacity: Capacity of the buffer in rows.
    """

    shape: tuple[int, ...]
    dtype: Any
    capacity: int

    def rows(self, count: int) -> Rows:
        """Return consecutive rows `[count, ...]` of one environment; `next_obs` and `obs` share their memory."""
        rng = np.random.default_rng(0)
        obs = rng.integers(0, 255, (count + 1, *self.shape), np.uint8).astype(self.dtype, copy=False)
        return {
            "obs": obs[:-1],
            "next_obs": obs[1:],
            "action": rng.integers(0, 2, count),
            "reward": np.ones(count, np.float32),
            "done": np.zeros(count, np.bool_),
        }


class Side:
    """A buffer; subclasses define the methods `add`, `extend`, `sample`, ... that their library supports.

    Args:
        case: Shape and number of the rows.
    """

    def __init__(self, case: Case) -> None:
        self.case = case
        self.block = case.rows(BLOCK)
        self.singles = cycle([{key: array[i] for key, array in self.block.items()} for i in range(BLOCK)])
        self.priorities = np.random.default_rng(1).random(BATCH)


class Trieye(Side):
    """`trieye.replay.ReplayBuffer`."""

    def __init__(self, case: Case, *, sampler: str = "uniform", **options: Any) -> None:
        from trieye.replay import ReplayBuffer

        super().__init__(case)
        self.buffer = ReplayBuffer(case.capacity, sampler=sampler, **options)
        self.batch: Any = None

    def add(self) -> None:
        """Add one row."""
        self.buffer.add(**next(self.singles))

    def extend(self) -> None:
        """Add the block."""
        self.buffer.extend(self.block)

    def sample(self) -> object:
        """Sample a batch into new memory."""
        return self.buffer.sample(BATCH)

    def sample_out(self) -> Any:
        """Sample a batch into the memory of the previous batch."""
        self.batch = self.buffer.sample(BATCH, out=self.batch)
        return self.batch

    def prioritized(self) -> object:
        """Sample a batch and update its priorities."""
        batch = self.sample_out()
        self.buffer.update_priorities(batch.ids, self.priorities)
        return batch

    def save(self, path: Path) -> None:
        """Save the new rows."""
        self.buffer.save(path)

    def load(self, path: Path) -> None:
        """Load everything."""
        self.buffer.load(path)


class Cpprb(Side):
    """Ring buffer in C++ and Cython."""

    def __init__(self, case: Case, *, sampler: str = "uniform") -> None:
        import cpprb

        super().__init__(case)
        keys = {key: {"shape": array.shape[1:] or 1, "dtype": array.dtype} for key, array in self.block.items()}
        kinds = {"uniform": cpprb.ReplayBuffer, "prioritized": cpprb.PrioritizedReplayBuffer}
        options = {"alpha": 0.6} if sampler == "prioritized" else {}
        self.buffer = kinds[sampler](case.capacity, keys, **options)

    def add(self) -> None:
        """Add one row."""
        self.buffer.add(**next(self.singles))

    def extend(self) -> None:
        """Add the block."""
        self.buffer.add(**self.block)

    def sample(self) -> object:
        """Sample a batch."""
        return self.buffer.sample(BATCH)

    def prioritized(self) -> object:
        """Sample a batch and update its priorities."""
        batch = self.buffer.sample(BATCH, beta=0.4)
        self.buffer.update_priorities(batch["indexes"], self.priorities)
        return batch


class Tianshou(Side):
    """Buffer of one environment, which adds single rows."""

    def __init__(self, case: Case, *, sampler: str = "uniform") -> None:
        import tianshou.data as tianshou

        super().__init__(case)
        self.container = tianshou.Batch
        if sampler == "prioritized":
            self.buffer: Any = tianshou.PrioritizedReplayBuffer(case.capacity, alpha=0.6, beta=0.4)
        else:
            self.buffer = tianshou.ReplayBuffer(case.capacity)

    def add(self) -> None:
        """Add one row."""
        row = next(self.singles)
        self.buffer.add(
            self.container(
                obs=row["obs"],
                act=row["action"],
                rew=row["reward"],
                terminated=row["done"],
                truncated=False,
                obs_next=row["next_obs"],
                info={},
            )
        )

    def extend(self) -> None:
        """Add the block."""
        for _ in range(BLOCK):
            self.add()

    def sample(self) -> object:
        """Sample a batch."""
        return self.buffer.sample(BATCH)

    def prioritized(self) -> object:
        """Sample a batch and update its priorities."""
        batch, indices = self.buffer.sample(BATCH)
        self.buffer.update_weight(indices, self.priorities)
        return batch


class Sb3(Side):
    """Buffer of stable-baselines3 for one environment, with batches of torch tensors."""

    def __init__(self, case: Case) -> None:
        import gymnasium
        from stable_baselines3.common.buffers import ReplayBuffer

        super().__init__(case)
        box = gymnasium.spaces.Box(0, 255, case.shape, case.dtype)
        self.buffer = ReplayBuffer(case.capacity, box, gymnasium.spaces.Discrete(2), device="cpu")
        order = ("obs", "next_obs", "action", "reward", "done")
        self.rows: list[tuple[Any, ...]] = [
            (*(self.block[key][i : i + 1] for key in order), [{}]) for i in range(BLOCK)
        ]
        self.next_rows = cycle(self.rows)

    def add(self) -> None:
        """Add one row."""
        self.buffer.add(*next(self.next_rows))

    def extend(self) -> None:
        """Add the rows of the block in a loop, as the library's `extend` does."""
        for row in self.rows:
            self.buffer.add(*row)

    def sample(self) -> object:
        """Sample a batch."""
        return self.buffer.sample(BATCH)

    def save(self, path: Path) -> None:
        """Save a pickle."""
        from stable_baselines3.common.save_util import save_to_pkl

        path.mkdir(exist_ok=True)
        save_to_pkl(path / "replay.pkl", self.buffer)

    def load(self, path: Path) -> None:
        """Load the pickle."""
        from stable_baselines3.common.save_util import load_from_pkl

        self.buffer = load_from_pkl(path / "replay.pkl")


class Torchrl(Side):
    """Buffer of tensordicts in memory; the extension of its prioritized sampler does not load with this torch."""

    def __init__(self, case: Case) -> None:
        import torch
        from tensordict import TensorDict
        from torchrl.data import LazyTensorStorage, ReplayBuffer

        super().__init__(case)
        self.buffer = ReplayBuffer(storage=LazyTensorStorage(case.capacity), batch_size=BATCH)
        self.container, self.tensor = TensorDict, torch.from_numpy
        self.rows = cycle([{key: array[i] for key, array in self._tensors().items()} for i in range(BLOCK)])

    def add(self) -> None:
        """Add one row."""
        self.buffer.add(self.container(next(self.rows), []))

    def extend(self) -> None:
        """Add the block."""
        self.buffer.extend(self.container(self._tensors(), [BLOCK]))

    def sample(self) -> object:
        """Sample a batch."""
        return self.buffer.sample()

    def save(self, path: Path) -> None:
        """Save everything."""
        self.buffer.dumps(path)

    def load(self, path: Path) -> None:
        """Load everything."""
        self.buffer.loads(path)

    def _tensors(self) -> dict[str, Any]:
        return {key: self.tensor(array) for key, array in self.block.items()}


class Rllib(Side):
    """Buffer of episodes, which adds episode chunks."""

    def __init__(self, case: Case) -> None:
        from ray.rllib.env.single_agent_episode import SingleAgentEpisode
        from ray.rllib.utils.replay_buffers.episode_replay_buffer import EpisodeReplayBuffer

        super().__init__(case)
        self.container = SingleAgentEpisode
        self.buffer = EpisodeReplayBuffer(capacity=case.capacity)
        self.observations = [*self.block["obs"], self.block["next_obs"][-1]]

    def add(self) -> None:
        """Add one row as an episode."""
        self._add(1)

    def extend(self) -> None:
        """Add the block as an episode."""
        self._add(BLOCK)

    def sample(self) -> object:
        """Sample a batch."""
        return self.buffer.sample(num_items=BATCH)

    def _add(self, count: int) -> None:
        chunk = self.container(
            observations=self.observations[: count + 1],
            actions=list(self.block["action"][:count]),
            rewards=list(self.block["reward"][:count]),
            terminated=True,
            len_lookback_buffer=0,
        )
        self.buffer.add(chunk)


class Take(Side):
    """Upper bound of sampling: `np.take` of random rows into reused memory."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        count = case.capacity
        self.cells = {key: np.repeat(array[:1], count, axis=0) for key, array in self.block.items()}
        self.out = {key: np.empty((BATCH, *array.shape[1:]), array.dtype) for key, array in self.block.items()}
        self.rng = np.random.default_rng(0)

    def sample(self) -> object:
        """Copy rows."""
        slots = self.rng.integers(0, self.case.capacity, BATCH)
        for key, array in self.cells.items():
            array.take(slots, axis=0, out=self.out[key], mode="wrap")
        return self.out

    sample_out = sample


SIDES: dict[str, type[Side]] = {
    "trieye": Trieye,
    "cpprb": Cpprb,
    "tianshou": Tianshou,
    "sb3": Sb3,
    "torchrl": Torchrl,
    "rllib": Rllib,
}
