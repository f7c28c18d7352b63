import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.replay.plain_replay import NARROW, WIDE, Reference, Stream, assert_same, restored
from trieye.exceptions import ConfigurationError
from trieye.replay import ReplayBuffer

ACTIONS = st.lists(
    st.sampled_from(["row", "row", "rows", "rows", "many", "clear", "reload", "resize"]), min_size=4, max_size=9
)
OPTIONS = st.fixed_dictionaries(
    {
        "dedup_next": st.booleans(),
        "frame_stack": st.sampled_from([None, {"obs": 1}, {"obs": 2}, {"obs": 4}]),
        "padding": st.sampled_from(["reset", "zero"]),
        "sampler": st.sampled_from(["uniform", "prioritized"]),
        "n_step": st.sampled_from([1, 2, 5]),
        "gamma": st.sampled_from([0.0, 0.5, 0.99]),
        "storage": st.sampled_from(["ram", "ram", "shm"]),
    }
)


class Pair:
    """The buffer under test and the plain reference."""

    def __init__(self, capacity, seed, options, shape):
        self.options, self.seed = options, seed
        self.stream = Stream(seed, shape)
        self.ours = ReplayBuffer(capacity, seed=seed, **options)
        self.plain = Reference(capacity)

    def act(self, action, size):
        if action == "row":
            env, row = self.stream.row()
            assert self.ours.add(env, **row) == self.plain.total
            self.plain.add(env, row)
        elif action in {"rows", "many"}:
            envs, rows = self.stream.rows(size + (self.plain.capacity if action == "many" else 0))
            total = self.plain.total
            self.plain.extend(envs, rows)
            assert self.ours.extend(rows, envs).tolist() == list(range(total, self.plain.total))
        elif action == "clear":
            self.ours.clear()
            self.plain.clear()
        else:
            self.reload(self.plain.capacity if action == "reload" else size, lazy=bool(size % 2))

    def reload(self, capacity, *, lazy):
        other = restored(self.ours, capacity, lazy=lazy, seed=99, **self.options)
        if capacity == self.plain.capacity and len(self.ours) and self.drawable():
            assert_same(self.ours.sample(7), other.sample(7))
        self.ours.close()
        self.ours, self.plain.capacity = other, capacity
        self.plain.low = max(self.plain.low, self.plain.total - capacity)

    def drawable(self):
        frames = (self.options["frame_stack"] or {"obs": 1})["obs"]
        alive = range(self.plain.low, self.plain.total)
        return [row for row in alive if self.plain.stack(row, frames, "zero") is not None]

    def check(self):
        assert len(self.ours) == self.plain.total - self.plain.low
        if not self.drawable():
            with pytest.raises(ConfigurationError, match=r"is empty|has all frames"):
                self.ours.sample(4)
            return
        batch = self.ours.sample(8)
        self.compare(batch)
        if self.options["storage"] == "shm":
            view = ReplayBuffer.attach(self.ours.handle)
            again = view.rows(self.ours.draw(8))
            self.compare(again)
            assert len(view) == len(self.ours)

    def expected(self, row_id):
        ids, gamma = self.plain.window(row_id, self.options["n_step"]), self.options["gamma"]
        window = [self.plain.rows[row] for row in ids]
        expected = {**self.plain.rows[row_id], "next_obs": window[-1]["next_obs"]}
        if self.options["n_step"] > 1:
            expected["reward"] = np.float32(sum(gamma**k * row["reward"] for k, row in enumerate(window)))
            expected |= {key: window[-1][key] for key in ("terminated", "truncated")}
            expected["n"] = len(window)
            expected["discount"] = np.float32(0.0 if expected["terminated"] else gamma ** len(window))
        if self.options["frame_stack"]:
            frames, padding = self.options["frame_stack"]["obs"], self.options["padding"]
            expected["obs"] = self.plain.stack(row_id, frames, padding)
            stack = self.plain.stack(ids[-1], frames, padding)
            expected["next_obs"] = np.concatenate((stack[1:], window[-1]["next_obs"][None]))
        return expected

    def compare(self, batch):
        assert self.plain.low <= batch.ids.min() <= batch.ids.max() < self.plain.total
        expected = [self.expected(row_id) for row_id in batch.ids.tolist()]
        for key in expected[0]:
            assert np.allclose(batch[key], np.stack([row[key] for row in expected]), rtol=1e-6, atol=0), key


@given(ACTIONS, st.lists(st.integers(1, 9), min_size=9, max_size=9), st.integers(1, 14), st.integers(0, 999), OPTIONS)
def test_drawn_rows_equal_the_added_rows(actions, sizes, capacity, seed, options):
    pair = Pair(capacity, seed, options, WIDE if seed % 2 else NARROW)
    for action, size in zip(actions, sizes, strict=False):
        pair.act(action, size)
        pair.check()
    pair.ours.close()
