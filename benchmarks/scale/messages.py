"""Messages of explorers, built by trieye's own classes: blocks of rows, payloads, weights, events."""

import math
import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from scale.model import Kind
from trieye.replay.remote.messages import Block
from trieye.replay.remote.writer import rows_of_a_block
from trieye.replay.rows.schema import Column
from trieye.stats.batch import EventBatch
from trieye.training.rows import Rows

NAMES = tuple(f"explorer/metric{number}" for number in range(10))
"""Metric names of logged events."""


@dataclass(frozen=True, slots=True)
class World:
    """An environment, and the fragments that explorers collect in it.

    Attributes:
        name: Name of the kind of explorers.
        shape: Shape of an observation.
        dtype: Dtype of an observation.
        envs: Number of environments of an explorer.
        steps: Steps of each environment in a fragment.
        capacity: Capacity of the replay in rows.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    envs: int
    steps: int
    capacity: int

    def rows(self, envs: int, steps: int, *, with_extras: bool = False) -> Rows:
        """Return rows in the format of a collector; `with_extras` adds the log probabilities of PPO."""
        rng = np.random.default_rng(0)
        obs = rng.integers(0, 255, (steps + 1, envs, *self.shape)).astype(self.dtype)
        flags = np.zeros((steps, envs), bool)
        arrays = {"obs": obs[:-1], "action": np.zeros((steps, envs), np.int64)}
        arrays |= {"reward": np.ones((steps, envs), np.float32), "terminated": flags, "truncated": flags}
        extras = {"log_prob": torch.zeros(steps, envs)} if with_extras else {}
        return Rows(arrays, {"obs": obs[-1]}, ~flags, extras)

    def block(self, rows: int) -> Block:
        """Return a batch of a writer with `rows` rows, or with the maximum if that is smaller."""
        data, env_ids = self.rows(min(self.envs, rows), math.ceil(rows / self.envs)).transitions()
        columns = [Column.from_value(name, array, rows=True) for name, array in data.items()]
        block = Block(min(rows_of_a_block(rows, columns), len(env_ids)), columns)
        rows_that_fit = slice(block.capacity)
        block.extend({name: array[rows_that_fit] for name, array in data.items()}, env_ids[rows_that_fit], None, 0)
        return block

    def payload(self) -> dict[str, Any]:
        """Return the rows of a fragment in the format of a fragment result."""
        return self.rows(self.envs, self.steps, with_extras=True).as_payload()

    def policy(self) -> nn.Module:
        """Return a network of typical size for these observations."""
        if len(self.shape) == 1:
            return nn.Sequential(
                nn.Linear(self.shape[0], 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2)
            )
        layers = [
            nn.Conv2d(4, 32, 8, 4),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, 2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3),
            nn.ReLU(),
        ]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 6))

    def kind(self) -> Kind:
        """Return the parameters of the cost model, measured on real messages."""
        block = self.block(self.envs * self.steps)
        return Kind(
            name=self.name,
            steps_per_s=1000.0,
            fragment_rows=block.count,
            row_bytes=size_of(block.rows()) / block.count,
            policy_bytes=sum(tensor.nbytes for tensor in self.policy().state_dict().values()),
        )


WORLDS = {
    world.name: world
    for world in (
        World("floats", (4,), "float32", envs=4, steps=64, capacity=100_000),
        World("frames", (84, 84, 4), "uint8", envs=1, steps=64, capacity=5_000),
    )
}
"""Worlds by name; a fragment fits into one batch of a writer."""


def batch_of(num: int, now: float) -> EventBatch:
    """Return a batch of events in the format of a flusher."""
    return EventBatch.from_rows([(NAMES[step % len(NAMES)], 0.5, step, now, None) for step in range(num)])


def size_of(message: Any) -> int:
    """Return the size of a message in bytes: its pickle and its out-of-band buffers."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    return len(head) + sum(buffer.raw().nbytes for buffer in buffers)


def bytes_per_step() -> dict[str, dict[str, float]]:
    """Return the bytes of an environment step, by world and by destination of its rows."""
    sizes = {}
    for name, world in WORLDS.items():
        num = world.envs * world.steps
        block = world.block(num)
        data, _ = world.rows(1, 1).transitions()
        sizes[name] = {
            "to_replay": size_of(block.rows()) / block.count,
            "in_replay": sum(array.nbytes for array in data.values()),
            "to_learner": size_of(world.payload()) / num,
        }
    return sizes


def bytes_per_event(num: int) -> float:
    """Return the bytes of an event in a batch of `num` events."""
    return size_of(batch_of(num, 1.7e9)) / num
