"""One class for each replay buffer that is compared: the same rows, each in the words of its library.

Libraries are imported when a side is made. Every call does what a program does with the arrays that an environment gave
it, so making the library's own container of a row is part of adding it.
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
    """What is stored.

    Attributes:
        shape: Shape of an observation.
        dtype: Its dtype.
        capacity: Rows of a buffer.
    """

    shape: tuple[int, ...]
    dtype: Any
    capacity: int

    def rows(self, count: int) -> Rows:
        """Return rows `[count, ...]` of one environment; each next observation is the observation that follows."""
        rng = np.random.default_rng(0)
        seen = rng.integers(0, 255, (count + 1, *self.shape), np.uint8).astype(self.dtype, copy=False)
        return {
            "obs": seen[:-1],
            "next_obs": seen[1:],
            "action": rng.integers(0, 2, count),
            "reward": np.ones(count, np.float32),
            "done": np.zeros(count, np.bool_),
        }


class Side:
    """A buffer that is measured; a subclass has those of the methods `add`, `extend`, `sample`, ... that it can do.

    Args:
        case: What it stores.
    """

    def __init__(self, case: Case) -> None:
        self.case = case
        self.block = case.rows(BLOCK)
        self.singles = cycle([{key: array[i] for key, array in self.block.items()} for i in range(BLOCK)])
        self.priorities = np.random.default_rng(1).random(BATCH)


class Trieye(Side):
    """This project's."""

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
        """Draw a batch into memory of its own."""
        return self.buffer.sample(BATCH)

    def sample_out(self) -> Any:
        """Draw a batch into the memory of the one before."""
        self.batch = self.buffer.sample(BATCH, out=self.batch)
        return self.batch

    def prioritized(self) -> object:
        """Draw a batch and set its priorities."""
        batch = self.sample_out()
        self.buffer.update_priorities(batch.ids, self.priorities)
        return batch

    def save(self, path: Path) -> None:
        """Save what is new."""
        self.buffer.save(path)

    def load(self, path: Path) -> None:
        """Load everything."""
        self.buffer.load(path)


class Cpprb(Side):
    """Ring of C++ and Cython."""

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
        """Draw a batch."""
        return self.buffer.sample(BATCH)

    def prioritized(self) -> object:
        """Draw a batch and set its priorities."""
        batch = self.buffer.sample(BATCH, beta=0.4)
        self.buffer.update_priorities(batch["indexes"], self.priorities)
        return batch


class Tianshou(Side):
    """Buffer of one environment; it adds row by row."""

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
        """Draw a batch."""
        return self.buffer.sample(BATCH)

    def prioritized(self) -> object:
        """Draw a batch and set its priorities."""
        batch, indices = self.buffer.sample(BATCH)
        self.buffer.update_weight(indices, self.priorities)
        return batch


class Sb3(Side):
    """Buffer of stable-baselines3 for one environment; its batches are torch tensors."""

    def __init__(self, case: Case) -> None:
        import gymnasium
        from stable_baselines3.common.buffers import ReplayBuffer

        super().__init__(case)
        box = gymnasium.spaces.Box(0, 255, case.shape, case.dtype)
        self.buffer = ReplayBuffer(case.capacity, box, gymnasium.spaces.Discrete(2), device="cpu")
        order = ("obs", "next_obs", "action", "reward", "done")
        self.rows = [[self.block[key][i : i + 1] for key in order] + [[{}]] for i in range(BLOCK)]
        self.each = cycle(self.rows)

    def add(self) -> None:
        """Add one row."""
        self.buffer.add(*next(self.each))

    def extend(self) -> None:
        """Add the block, as its `extend` does it."""
        for row in self.rows:
            self.buffer.add(*row)

    def sample(self) -> object:
        """Draw a batch."""
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
    """Buffer of tensordicts in memory; its prioritized sampler needs an extension that this torch does not load."""

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
        """Draw a batch."""
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
    """Buffer of episodes; each call adds a piece of an episode."""

    def __init__(self, case: Case) -> None:
        from ray.rllib.env.single_agent_episode import SingleAgentEpisode
        from ray.rllib.utils.replay_buffers.episode_replay_buffer import EpisodeReplayBuffer

        super().__init__(case)
        self.container = SingleAgentEpisode
        self.buffer = EpisodeReplayBuffer(capacity=case.capacity)
        self.observations = [*self.block["obs"], self.block["next_obs"][-1]]

    def add(self) -> None:
        """Add one row, the end of its episode."""
        self._add(1)

    def extend(self) -> None:
        """Add the block, an episode."""
        self._add(BLOCK)

    def sample(self) -> object:
        """Draw a batch."""
        return self.buffer.sample(num_items=BATCH)

    def _add(self, count: int) -> None:
        piece = self.container(
            observations=self.observations[: count + 1],
            actions=list(self.block["action"][:count]),
            rewards=list(self.block["reward"][:count]),
            terminated=True,
            len_lookback_buffer=0,
        )
        self.buffer.add(piece)


class Take(Side):
    """What there is at most: `np.take` of random rows into memory that is used again."""

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
