import pickle
import weakref
from functools import partial

import numpy as np
import pytest
import torch

from tests.replay.plain_replay import (
    assert_fit_for_torch,
    assert_same,
    by_id,
    numbered,
    one_of,
    restored,
    saved,
)
from trieye.config import ReplayConfig
from trieye.exceptions import CheckpointError, ConfigurationError, ReplayTimeoutError, TrieyeError
from trieye.replay import ReplayBuffer, SampledIds
from trieye.replay.hindsight import HindsightRelabeler
from trieye.replay.limiter import RateLimiter
from trieye.replay.rows.ring import Ring

SCHEMA = {"obs": (np.float32, (4,)), "action": np.int64, "reward": np.float32, "done": np.bool_}
WIDTHS = pytest.mark.parametrize("width", [4, 4096], ids=["packed", "columns"])


def row(number):
    return one_of({**numbered(number, 1), "action": [number]})


def filled(count, capacity=100, **options):
    buffer = ReplayBuffer(capacity, **options)
    buffer.extend(numbered(0, count))
    return buffer


def twins(count, **options):
    return filled(count, **options), filled(count, **options)


def paired():
    buffer = ReplayBuffer(5)
    buffer.extend({"obs": np.zeros(3), "next_obs": np.ones(3), "done": np.zeros(3, bool)})
    return buffer


def test_values_are_copied_in_and_out():
    buffer, obs = ReplayBuffer(10), np.ones(4, np.float32)
    buffer.add(obs=obs)
    obs[:] = 7
    batch = buffer.sample(5)
    batch["obs"][:] = 9
    assert np.array_equal(buffer.sample(5)["obs"], np.ones((5, 4)))


@WIDTHS
def test_a_reused_batch_is_written_in_place(width):
    buffer, twin = (ReplayBuffer(50, seed=1) for _ in range(2))
    for one in (buffer, twin):
        one.extend({"obs": np.random.default_rng(0).normal(size=(70, width)), "n": np.arange(70)})
    first = buffer.sample(16)
    memory = first["obs"]
    again = buffer.sample(16, out=first)
    twin.sample(16)
    assert np.shares_memory(again["obs"], memory)
    assert np.shares_memory(again["discount"], first["discount"])
    assert_same(again, twin.sample(16))
    with pytest.raises(ConfigurationError, match="has 16 rows of obs, n, discount; pass a batch of the same size"):
        buffer.sample(17, out=first)


def test_a_batch_is_a_mapping_of_the_requested_keys():
    batch = filled(20).sample(8)
    assert len(batch) == 8
    assert "obs" in batch
    assert "weight" not in batch
    assert set(dict(batch)) == {*SCHEMA, "discount"}
    assert (batch.weights.dtype, batch.weights.tolist(), batch.info["size"]) == (np.float32, [1.0] * 8, 20)
    assert_fit_for_torch(batch)
    assert list(filled(20).sample(8, keys=["reward", "obs"])) == ["reward", "obs"]


@pytest.mark.parametrize("prefetch", [0, 3])
def test_iter_batches_equals_repeated_sample_calls(prefetch):
    buffer, twin = twins(90, seed=5)
    iterated = buffer.iter_batches(16, prefetch=prefetch)
    batches = (next(iterated) for _ in range(6))
    for batch in batches if prefetch else list(batches):  # prefetched batches are valid until the next one
        assert_same(batch, twin.sample(16))


def test_the_schema_comes_from_the_first_row():
    buffer = ReplayBuffer(10)
    buffer.add(obs=np.zeros((2, 3), np.uint8), action=3, reward=0.5, done=True, q=np.float64(0.1))
    batch = buffer.sample(1)
    assert {key: (str(batch[key].dtype), batch[key].shape[1:]) for key in batch} == {
        "obs": ("uint8", (2, 3)),
        "action": ("int64", ()),
        "reward": ("float32", ()),
        "done": ("bool", ()),
        "q": ("float64", ()),
        "discount": ("float32", ()),
    }


BAD_ROWS = {
    "missing": ({"reward": 1.0}, r"row without 'obs', 'action', 'done'; every row needs: obs, action, reward, done"),
    "unknown": ({**row(1), "rewrd": 1}, r"'rewrd' is unknown; did you mean 'reward'\? \(known: obs, action"),
    "shape": ({**row(1), "obs": np.zeros(3, np.float32)}, r"'obs': expected shape \(4,\), got \(3,\)"),
    "scalar for an array": ({**row(1), "obs": 1.0}, r"'obs': expected shape \(4,\), got \(\)"),
    "array for a scalar": ({**row(1), "reward": np.zeros(1)}, r"'reward': expected shape \(\), got \(1,\)"),
    "kind": ({**row(1), "action": 1.5}, "'action': expected int64, got float64; the first row or the schema"),
    "number for a bool": ({**row(1), "done": 1}, "'done': expected bool, got int64"),
    "text": ({**row(1), "action": "left"}, "'action': expected int64, got <U4"),
    "range": ({**row(1), "action": np.uint64(2**63)}, "'action': a value of 9223372036854775808 is out of range of"),
    "huge": ({**row(1), "action": 2**80}, "'action': expected int64, got object"),
    "ragged": ({**row(1), "obs": [[1], [2, 3]]}, "'obs': cannot convert the value to an array: .*inhomogeneous"),
    "none": ({**row(1), "obs": None}, r"'obs': expected shape \(4,\), got \(\)"),
}


@pytest.mark.parametrize(("bad", "message"), BAD_ROWS.values(), ids=BAD_ROWS)
def test_an_invalid_row_is_rejected_by_key_and_changes_nothing(bad, message):
    buffer, twin = twins(5, capacity=3, schema=SCHEMA)
    with pytest.raises(ConfigurationError, match=message):
        buffer.add(**bad)
    with pytest.raises(ConfigurationError):
        buffer.extend({key: [value] for key, value in bad.items()})
    assert buffer.stats()["added"] == 5
    assert_same(buffer.sample(32), twin.sample(32))


@pytest.mark.parametrize("options", [{}, {"n_step": 2}, {"sampler": "prioritized", "max_reuse": 100}])
def test_extending_by_no_rows_changes_nothing(options):
    buffer, twin = twins(5, **options)
    assert buffer.extend(numbered(5, 0), np.arange(0)).tolist() == []
    assert buffer.extend(numbered(5, 3)).tolist() == twin.extend(numbered(5, 3)).tolist() == [5, 6, 7]
    assert_same(buffer.sample(32), twin.sample(32))


def test_a_rejected_first_row_defines_no_schema():
    buffer = ReplayBuffer(9)
    with pytest.raises(ConfigurationError, match="dtype <U4 cannot be stored"):
        buffer.add(action="left")
    with pytest.raises(ConfigurationError, match="same number of rows"):
        buffer.extend({"a": np.zeros(3), "b": np.zeros(2)})
    buffer.add(action=1)
    assert buffer.sample(1)["action"].tolist() == [1]


def test_numbers_are_converted_but_never_truncated():
    buffer = ReplayBuffer(4, {"small": np.int8, "x": np.float32})
    buffer.add(small=np.int64(-128), x=np.int32(3))
    buffer.add(small=True, x=np.float64(0.25))
    assert min(buffer.sample(20)["small"].tolist()) == -128
    with pytest.raises(ConfigurationError, match="a value of 128 is out of range of int8"):
        buffer.add(small=128, x=0)


def with_obs(**options):
    return ReplayBuffer(9, {"obs": (np.float32, (4,))}, **options)


def extended(**arguments):
    buffer = filled(5, max_staleness=1, schema=SCHEMA)
    try:
        buffer.extend(**{"batch": numbered(5, 3), **arguments})
    finally:
        assert buffer.stats()["added"] == 5


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ReplayBuffer(0), "capacity is 0"),
        (lambda: ReplayBuffer(1.5), "capacity is 1.5"),
        (lambda: ReplayBuffer(9, {}), "schema is empty"),
        (lambda: ReplayBuffer(9, {"a": "flot32"}), "'a': 'flot32' is not a dtype"),
        (lambda: ReplayBuffer(9, {"a": object}), "dtype object cannot be stored"),
        (lambda: ReplayBuffer(1 << 45, SCHEMA), r"needs \d+\.\d GiB, but .* are free; lower replay.capacity"),
        (lambda: ReplayBuffer(9).sample(4), "the replay buffer is empty"),
        (lambda: filled(9).sample(0), "n is 0; it must be an integer, at least 1"),
        (lambda: filled(9).sample(8, keys=["rewards"]), r"'rewards' is unknown; did you mean 'reward'\?"),
        (lambda: filled(9).iter_batches(4, prefetch=-1), "prefetch is -1"),
        (lambda: with_obs(n_step=2), "require episode ends: add a key terminated, truncated or done"),
        (lambda: with_obs(dedup_next=True), "dedup_next needs keys <key> and next_<key>"),
        (lambda: with_obs(frame_stack={"ob": 2}), r"frame_stack key 'ob' is unknown; did you mean 'obs'\?"),
        (lambda: with_obs(frame_stack={"obs": 0}), "frame_stack of 'obs' is 0"),
        (lambda: with_obs(padding="zeros"), r"padding 'zeros' is unknown; did you mean 'zero'\?"),
        (lambda: ReplayBuffer(9).add(env_id=3, obs=1.0), r"'env_id' is reserved.*add\(env_id, obs"),
        (lambda: ReplayBuffer(9).extend({"env_id": np.zeros(3), "obs": np.zeros(3)}), "'env_id' is reserved"),
        (lambda: with_obs(n_step=0), "n_step is 0"),
        (lambda: with_obs(gamma=1.5), "gamma is 1.5"),
        (lambda: with_obs(gamma="x"), "gamma is 'x'"),
        (lambda: with_obs(frame_stack=[4]), r"frame_stack is \[4\]; expected frames by key"),
        (lambda: ReplayBuffer(9, seed=-1), "seed is -1"),
        (lambda: ReplayBuffer(9).add(**{"": 1.0}), "a key must be a string"),
        (
            lambda: filled(9).update_priorities([0], torch.ones(1, requires_grad=True)),
            r"pass numbers, of a tensor .*\.float\(\).* requires grad",
        ),
        (lambda: ReplayBuffer(9, n_step=2, her=HindsightRelabeler(abs)), "her relabels single rows"),
        (lambda: ReplayBuffer.from_config(ReplayConfig(kind="fragment")), "use FragmentBuffer.from_config"),
        (lambda: extended(versions=[0, 1]), r"versions are .* expected an integer for each of 3 rows"),
        (lambda: extended(env_ids=[0.0, 1.0, 2.0]), r"expected an integer for each of 3 rows"),
        (
            lambda: extended(batch={**numbered(5, 5), "reward": np.zeros(4)}),
            r"same number of rows, got obs \[5\], action \[5\], reward \[4\]",
        ),
    ],
)
def test_invalid_arguments_are_rejected_with_the_reason(build, message):
    with pytest.raises(ConfigurationError, match=message):
        build()


@pytest.mark.parametrize("env_id", ["left", 0.5, None, [1], 1 << 63, np.uint64(1 << 63), 1 << 64], ids=str)
def test_an_environment_that_could_not_be_saved_is_rejected_when_its_row_is_added(env_id):
    buffer = ReplayBuffer(9, n_step=2)
    assert buffer.add(np.int64(1), **row(0)) == 0
    with pytest.raises(ConfigurationError, match=r"env_ids are .* expected an integer .*, within int64"):
        buffer.add(env_id, **row(1))
    with pytest.raises(ConfigurationError, match=r"env_ids are .* expected an integer .*, within int64"):
        buffer.extend({key: [value] for key, value in row(1).items()}, [env_id])
    assert len(buffer) == 1


BAD_PRIORITIES = ([[130], [1.0]], [[-1], [1.0]], [[0.5], [1.0]], [[1], [-1.0]], [[1], [np.nan]], [[1, 2], [1.0]])


def test_a_uniform_buffer_validates_and_ignores_priorities():
    buffer, twin = twins(130)
    assert buffer.update_priorities([0, 29, 30, 129], [1.0, 2.0, 3.0, 0.0]) == 2
    assert_same(buffer.sample(32), twin.sample(32))
    for ids, priorities in BAD_PRIORITIES:
        with pytest.raises(ConfigurationError, match="update_priorities"):
            buffer.update_priorities(ids, priorities)


def test_a_restored_empty_buffer_continues_with_the_same_draws(tmp_path):
    original, other = ReplayBuffer(10, seed=11), ReplayBuffer(10, seed=99)
    original.save(tmp_path / "replay")
    other.load(tmp_path / "replay")
    for buffer in (original, other):
        buffer.extend(numbered(0, 4))
    assert_same(original.sample(64), other.sample(64))


def test_a_restore_frees_the_old_rows_before_it_allocates_new_ones(monkeypatch):
    buffer, state, rings, begin = filled(5), saved(filled(7)), [], Ring.__init__

    def tracked_init(ring, *arguments):
        assert [ref for ref in rings if ref() is not None] == []
        rings.append(weakref.ref(ring))
        begin(ring, *arguments)

    monkeypatch.setattr(Ring, "__init__", tracked_init)
    for _ in range(2):
        buffer.load_state_dict(state)
    assert len(rings) == 2


@pytest.mark.parametrize(
    ("state", "options", "message"),
    [
        (filled(3, schema=SCHEMA), {"schema": {"obs": (np.float32, (3,))}}, r"obs float32\[4\], .* float32\[3\]"),
        (None, {}, "has format 1, but this trieye reads format 2"),
        (filled(3, sampler="prioritized"), {}, "has sampler 'prioritized', but this buffer has 'uniform'"),
        (paired(), {"dedup_next": True}, r"made with dedup_next=False, this buffer with dedup_next=True"),
        (filled(3), {"frame_stack": {"obs": 2}}, r"made with frame_stack={}, this buffer with frame_stack={'obs': 2}"),
    ],
    ids=["schema", "format", "sampler", "dedup_next", "frame_stack"],
)
def test_a_mismatched_state_is_rejected_with_the_difference(state, options, message):
    with pytest.raises(ConfigurationError, match=message):
        ReplayBuffer(5, **options).load_state_dict({"rows": {}} if state is None else saved(state))


def walked(count, buffer=None, **options):
    """Return a buffer with rows of two environments whose episodes have 5 steps; the reward of row i is 2**i."""
    buffer = ReplayBuffer(100, seed=1, **options) if buffer is None else buffer
    for step in range(count):
        for env in (0, 1):
            obs, number = np.float32([env, step]), buffer.stats()["added"]
            row = {"obs": obs, "next_obs": obs + 1, "reward": np.float64(2.0**number), "terminated": step % 5 == 4}
            buffer.add(env, **row)
    return buffer


def row_values(buffer):
    """Return {id: values} of all rows in drawn form."""
    batch = buffer.sample(600)
    return {
        row: {name: batch[name][index].tolist() for name in batch.data} for index, row in enumerate(batch.ids.tolist())
    }


@pytest.mark.parametrize(
    ("before", "after", "lazy"),
    [
        ({"gamma": 0.99}, {"gamma": 0.5}, True),
        ({"n_step": 3}, {"n_step": 5, "gamma": 0.9}, True),
        ({"n_step": 3}, {"n_step": 1}, False),
        ({"n_step": 3, "dedup_next": True}, {"n_step": 1, "dedup_next": True}, False),
    ],
)
def test_options_that_affect_only_draws_may_change_on_resume(before, after, lazy):
    buffer, other = restored(walked(7, **before), seed=1, lazy=lazy, **after), walked(7, **after)
    assert row_values(buffer) == row_values(other)
    for one in (buffer, other):
        one.interrupt()
    assert row_values(walked(4, buffer)) == row_values(walked(4, other))


def test_restored_rows_without_links_have_one_step_returns():
    buffer = restored(walked(7, gamma=0.9), seed=1, n_step=3, gamma=0.5)
    one_step = row_values(walked(7, gamma=0.5))
    assert row_values(buffer) == {row: {**values, "n": 1} for row, values in one_step.items()}
    values = row_values(walked(7, buffer))
    assert {row: fields["n"] for row, fields in values.items()} == {
        **dict.fromkeys(range(14), 1),
        **dict(zip(range(14, 28), [3, 3, 3, 3, 3, 3, 2, 2, 1, 1, 2, 2, 1, 1], strict=True)),
    }
    assert row_values(restored(buffer, seed=1, n_step=3, gamma=0.5)) == values


BOUNDS = [{}, {"max_reuse": 9}, {"max_staleness": 3}, {"max_reuse": 9, "max_staleness": 3}]


@pytest.mark.parametrize("before", BOUNDS, ids=" ".join)
def test_a_state_with_other_bounds_is_rejected_and_changes_nothing(before):
    sampler = "prioritized" if "max_reuse" in before else "uniform"
    state = saved(filled(50, sampler=sampler, **before))
    for bounds in BOUNDS:
        buffer, twin = twins(20, seed=3, sampler=sampler, **bounds)
        if bounds == before:
            buffer.load_state_dict(state)
            continue
        with pytest.raises(ConfigurationError, match=rf"sampler '{sampler}.*this buffer has '{sampler}"):
            buffer.load_state_dict(state)
        assert_same(buffer.sample(16), twin.sample(16))


def test_truncated_and_corrupted_files_are_rejected(tmp_path):
    filled(50).save(tmp_path / "replay")
    for path in (path for path in (tmp_path / "replay").rglob("*") if path.is_file()):
        whole = path.read_bytes()
        for position in range(0, len(whole), 499):
            flipped = whole[:position] + bytes([whole[position] ^ 0xFF]) + whole[position + 1 :]
            for damaged in (whole[:position], flipped):
                path.write_bytes(damaged)
                buffer = filled(2)
                with pytest.raises(TrieyeError):
                    buffer.load(tmp_path / "replay")
                assert len(buffer) == 2
        path.write_bytes(whole)
    buffer.load(tmp_path / "replay")
    assert_same(buffer.sample(32), filled(50).sample(32))
    with pytest.raises(CheckpointError, match="none"):
        buffer.load(tmp_path / "none")


def test_a_closed_buffer_rejects_calls():
    buffer = filled(5)
    buffer.close()
    assert len(buffer) == 0
    for use in (
        partial(buffer.add, **row(1)),
        partial(buffer.extend, {key: np.array([value]) for key, value in row(1).items()}),
        partial(buffer.sample, 1),
        partial(buffer.state_parts, ()),
        buffer.clear,
    ):
        with pytest.raises(ConfigurationError, match="is closed"):
            use()


def test_stats_are_plain_numbers():
    buffer = filled(130)
    buffer.sample(7)
    stats = buffer.stats()
    size_bytes = stats.pop("size_bytes")
    assert stats == {"size": 100, "capacity": 100, "added": 130, "sampled": 7, "late_updates": 0, "lost": 0}
    assert size_bytes >= 100 * (16 + 8 + 4 + 1)


def test_metrics_omit_unknown_values():
    buffer = ReplayBuffer(100)
    nothing_dropped = {"replay/dropped/late_update": 0.0, "replay/dropped/damaged": 0.0}
    assert buffer.metrics() == {"replay/size": 0.0, **nothing_dropped}
    buffer.extend(numbered(0, 10))
    buffer.sample(30)
    metrics = buffer.metrics()
    assert metrics["replay/size"] == 10
    assert metrics["replay/samples_per_insert"] == 3
    assert metrics["replay/inserts_per_s"] > 0


@pytest.mark.parametrize(("n_step", "discounts"), [(1, [0.5, 0.5, 0.5, 0.0]), (2, [0.25, 0.5, 0.0, 0.0])])
@pytest.mark.parametrize("extra", ["terminated", "truncated"])
def test_done_at_a_truncation_does_not_zero_the_discount(extra, n_step, discounts):
    buffer = ReplayBuffer(10, n_step=n_step, gamma=0.5)
    done = np.array([False, True, False, True])  # the first episode is interrupted, the second one ends
    flags = done & (np.arange(4) > 1 if extra == "terminated" else np.arange(4) < 2)
    buffer.extend({"reward": np.ones(4), "done": done, extra: flags})
    assert by_id(buffer.sample(200), "discount") == dict(enumerate(discounts))


def no_reward(achieved, desired, info):
    return np.zeros(len(achieved), np.float32)


@pytest.mark.parametrize(
    ("width", "options"),
    [
        (4, {}),
        (4096, {}),
        (4, {"n_step": 3}),
        (4096, {"frame_stack": {"obs": 2}}),
        (4096, {"frame_stack": {"obs": 2}, "n_step": 3}),
        (4, {"dedup_next": True}),
        (4096, {"sampler": "sequence", "sampler_options": {"length": 4, "pad": True}}),
        (4, {"her": HindsightRelabeler(no_reward, achieved_key="next_obs", goal_keys=["goal"])}),
    ],
)
def test_the_discount_follows_from_n_step_and_termination_with_every_option(width, options):
    buffer = ReplayBuffer(100, gamma=0.9, **options)
    done = np.arange(90) % 7 == 6
    rows = numbered(0, 90, width, terminated=done, done=np.zeros(90), goal=np.zeros((90, width), np.float32))
    buffer.extend({**rows, "next_obs": rows["obs"] + 1})
    batch = buffer.sample(300)
    windows = batch["n"] if "n" in batch else np.ones(batch.ids.shape)
    expected = np.where(batch["terminated"] | (batch.ids < 0), 0, 0.9**windows).astype(np.float32)
    assert batch["discount"].dtype == np.float32
    assert np.array_equal(batch["discount"], expected)
    assert 0 < np.count_nonzero(batch["discount"]) < batch["discount"].size
    assert_fit_for_torch(batch)
    if options.get("sampler") == "sequence":
        assert np.array_equal(batch.mask, batch.ids >= 0)
    if "her" not in options:
        draw = buffer.draw(32)
        some = buffer.rows(draw, keys=["discount", "action"])
        assert list(some) == ["discount", "action"]
        assert np.array_equal(some["discount"], buffer.rows(draw)["discount"])


def test_the_discount_accepts_missing_or_non_boolean_termination_flags():
    endless = ReplayBuffer(10, gamma=0.9)
    endless.extend({"obs": np.zeros(5)})
    assert endless.sample(4)["discount"].tolist() == [np.float32(0.9)] * 4
    flags = np.array([0.0, 1.0])
    for column in (flags, flags.astype(np.int64), flags[:, None] > 0):
        buffer = ReplayBuffer(10, gamma=0.5)
        buffer.extend({"terminated": column})
        assert by_id(buffer.sample(50, keys=["discount"]), "discount") == {0: 0.5, 1: 0.0}


def test_a_discount_column_of_the_rows_is_kept_but_conflicts_with_n_step():
    rows = {"reward": np.ones(4), "discount": np.arange(4.0), "done": np.zeros(4, bool)}
    buffer = ReplayBuffer(10)
    buffer.extend(rows)
    assert by_id(buffer.sample(100), "discount") == {0: 0, 1: 1, 2: 2, 3: 3}
    with pytest.raises(ConfigurationError, match="'discount' is reserved for the result of n_step=2"):
        ReplayBuffer(10, n_step=2).extend(rows)


def test_an_interrupted_episode_is_not_continued():
    buffer = ReplayBuffer(100, n_step=3, gamma=0.5, dedup_next=True, frame_stack={"obs": 2})
    for first in (0, 10):
        obs = np.arange(first, first + 4.0)
        both = {"obs": np.tile(obs, 2), "next_obs": np.tile(obs + 1, 2), "reward": np.ones(8)}
        buffer.extend({**both, "done": np.zeros(8, bool)}, np.repeat([5, 6], 4))
        buffer.interrupt(5)
    batch = buffer.sample(300)
    obs, n = by_id(batch, "obs"), by_id(batch, "n")
    assert [(obs[row_id], n[row_id]) for row_id in (3, 8, 7, 12)] == [
        ([2, 3], 1),
        ([10, 10], 3),
        ([2, 3], 3),
        ([3, 10], 3),
    ]
    assert by_id(batch, "next_obs")[3] == [3, 4]
    buffer.interrupt()
    buffer.add(6, obs=14.0, next_obs=15.0, reward=1.0, done=False)
    rows = buffer.rows(SampledIds(np.array([16, 15]), np.ones(2, np.float32)))
    assert rows["obs"].tolist() == [[14, 14], [12, 13]]
    assert rows["next_obs"].tolist() == [[14, 15], [13, 14]]


@pytest.mark.parametrize("env_id", [None, 0])
def test_rows_whose_frames_were_lost_are_not_drawn_also_after_a_restore(tmp_path, env_id):
    options = {"frame_stack": {"obs": 3}, "n_step": 3, "gamma": 0.5}
    buffer = ReplayBuffer(100, **options)
    buffer.extend({"obs": np.arange(4.0), "reward": np.ones(4), "done": np.zeros(4, bool)})
    buffer.interrupt(env_id, lost_rows=True)
    buffer.save(tmp_path / "saved")
    buffer = ReplayBuffer(100, **options)
    buffer.load(tmp_path / "saved")
    buffer.add(obs=10.0, reward=1.0, done=False)
    later = {"obs": np.arange(11.0, 16), "reward": np.ones(5), "done": np.array([False, False, True, False, False])}
    buffer.extend(later)
    buffer.save(tmp_path / "saved")
    buffer.load(tmp_path / "saved")
    batch = buffer.sample(300)
    stacks, n = by_id(batch, "obs"), by_id(batch, "n")
    assert stacks == {
        0: [0, 0, 0], 1: [0, 0, 1], 2: [0, 1, 2], 3: [1, 2, 3],
        6: [10, 11, 12], 7: [11, 12, 13], 8: [14, 14, 14], 9: [14, 14, 15],
    }  # fmt: skip
    assert n == {0: 3, 1: 3, 2: 2, 3: 1, 6: 2, 7: 1, 8: 2, 9: 1}


def test_updated_priorities_apply_and_late_updates_are_ignored():
    buffer = filled(130, sampler="prioritized", sampler_options={"alpha": 1.0, "epsilon": 0.0})
    assert buffer.update_priorities(np.arange(30, 130), np.arange(30, 130) == 37) == 100
    batch = buffer.sample(32)
    assert set(batch.ids.tolist()) == {37}
    assert batch.weights.tolist() == [1.0] * 32
    assert buffer.update_priorities([0, 29, 30, 37], [5.0, 5.0, 1.0, 0.0]) == 2  # 0 and 29: the slots of 100 and 129
    assert set(buffer.sample(64).ids.tolist()) == {30}
    assert buffer.stats()["late_updates"] == buffer.metrics()["replay/dropped/late_update"] == 2


def stacked(**options):
    """Return the last 20 rows of an episode of 30; 3 of them lack stack frames and are discarded when drawn."""
    buffer = ReplayBuffer(20, frame_stack={"obs": 4}, **options)
    buffer.extend(numbered(0, 30, done=np.zeros(30, bool)))
    return buffer


PRIORITIES = {"beta": 0.4, "beta_draws": 100}


@pytest.mark.parametrize(
    "options",
    [
        {"sampler": "prioritized", "sampler_options": PRIORITIES},
        {"sampler": "prioritized", "sampler_options": PRIORITIES, "max_staleness": 3},
        {"sampler": "sequence", "sampler_options": {"length": 2, "priorities": PRIORITIES}},
    ],
    ids=["rows", "bounded", "sequences"],
)
def test_beta_anneals_per_returned_batch_despite_redraws(options):
    buffer = stacked(**options)
    betas = [buffer.sample(16).info["beta"] for _ in range(60)]
    assert betas == pytest.approx(0.4 + 0.6 * np.arange(60) / 100)
    assert buffer.stats()["sampled"] == 60 * buffer.sample(16).ids.size


def test_discarded_draws_do_not_count_as_reuse():
    buffer = stacked(max_reuse=2)
    with pytest.raises(ReplayTimeoutError, match=r"within max_reuse 2.*raise replay.capacity: rows that lack frames"):
        buffer.sample(36)
    ids = np.concatenate([buffer.sample(n).ids for n in (10, 10, 10, 4)])
    assert np.bincount(ids).tolist() == [0] * 13 + [2] * 17
    assert buffer.stats()["sampled"] == 34


def test_draws_above_an_id_use_the_oldest_rows_last():
    buffer = filled(50, max_reuse=1, limiter=RateLimiter(1.0, min_size_to_sample=50, error_buffer=50))
    spared = [buffer.draw(5, above=10).ids for _ in range(6)]
    assert np.concatenate(spared).min() >= 10
    oldest = [buffer.draw(1, above=40).ids for _ in range(20)]
    assert sorted(np.concatenate([*spared, *oldest]).tolist()) == list(range(50))


def test_rows_of_old_versions_are_not_drawn():
    buffer = ReplayBuffer(100, SCHEMA, max_staleness=1)
    for version in range(4):
        buffer.set_version(version)
        buffer.extend(numbered(version * 10, 10))
    buffer.extend(numbered(40, 2), versions=[1, 2])
    assert set(buffer.sample(400).ids.tolist()) == {*range(20, 40), 41}
    metrics = buffer.metrics()
    assert metrics["replay/staleness_max"] == 1
    assert 0 < metrics["replay/staleness_mean"] < 1
    assert "replay/staleness_max" not in buffer.metrics()


@pytest.mark.parametrize("bound", [None, 1])
def test_versions_never_decrease(bound):
    buffer = ReplayBuffer(100, max_staleness=bound)
    buffer.set_version(2)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=r"set_version\(1\): versions only grow, and 2 was"):
            buffer.set_version(1)
        buffer.add(x=1)


def test_a_version_set_before_the_first_row_applies():
    buffer = ReplayBuffer(100, max_staleness=1)
    buffer.set_version(5)
    buffer.extend({"x": np.arange(4)}, versions=[3, 4, 4, 5])
    assert set(buffer.sample(200)["x"].tolist()) == {1, 2, 3}


def test_the_rate_limiter_blocks_the_side_that_is_ahead():
    def limited():
        return ReplayBuffer(100, SCHEMA, limiter=RateLimiter(1.0, min_size_to_sample=10, error_buffer=5))

    buffer, other = limited(), limited()
    buffer.extend(numbered(0, 9))
    with pytest.raises(ReplayTimeoutError, match="cannot draw 5 rows"):
        buffer.sample(5)
    buffer.extend(numbered(9, 6))
    with pytest.raises(ReplayTimeoutError, match="cannot add 1 rows"):
        buffer.add(**row(1))
    buffer.sample(5)
    other.load_state_dict(saved(buffer))
    for one in (buffer, other):
        one.extend(numbered(15, 5))
        with pytest.raises(ReplayTimeoutError):
            one.add(**row(1))


def test_a_batch_is_added_if_the_rate_limiter_permits_one_row():
    buffer = ReplayBuffer(100, SCHEMA, limiter=RateLimiter(1.0, min_size_to_sample=10, error_buffer=5))
    for start, count in ((0, 14), (14, 50), (64, 0)):
        assert len(buffer.extend(numbered(start, count))) == count
    for _ in range(10):
        with pytest.raises(ReplayTimeoutError, match="cannot add 2 rows"):
            buffer.extend(numbered(64, 2))
        buffer.sample(5)
    buffer.extend(numbered(64, 2))


def test_a_new_rate_limiter_counts_the_restored_rows():
    buffer = ReplayBuffer(100, SCHEMA, limiter=RateLimiter(2.0, min_size_to_sample=10, error_buffer=8))
    buffer.load_state_dict(saved(filled(30, schema=SCHEMA)))
    buffer.extend(numbered(30, 4))
    with pytest.raises(ReplayTimeoutError, match="cannot add 1 rows"):
        buffer.add(**row(1))
    for _ in range(2):
        buffer.sample(8)
    with pytest.raises(ReplayTimeoutError, match="cannot draw 1 rows"):
        buffer.sample(1)


def test_the_rate_limiter_does_not_count_cleared_rows():
    buffer = ReplayBuffer(100, limiter=RateLimiter(1.0, min_size_to_sample=10, error_buffer=50))
    buffer.extend(numbered(0, 10))
    buffer.clear()
    buffer.extend(numbered(10, 5))
    with pytest.raises(ReplayTimeoutError):
        buffer.sample(1)


def test_the_error_buffer_of_the_config_admits_whole_batches():
    limiter = {"samples_per_insert": 1, "min_size_to_sample": 100}
    tight, wide = (
        ReplayBuffer.from_config(ReplayConfig(limiter={**limiter, **room})) for room in ({}, {"error_buffer": 200})
    )
    for buffer in (tight, wide):
        buffer.extend(numbered(0, 100))
    with pytest.raises(ConfigurationError, match=r"it needs an error_buffer of at least 64\.5"):
        tight.sample(128)
    assert len(wide.sample(128)) == 128
    with pytest.raises(ReplayTimeoutError):
        wide.sample(128)


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({}, {}),
        ({"kind": "sequence", "sequence": {"length": 3}}, {"sampler": "sequence", "sampler_options": {"length": 3}}),
        ({"n_step": 3, "dedup_next": True, "max_reuse": 9}, {"n_step": 3, "dedup_next": True, "max_reuse": 9}),
        ({"frame_stack": {"obs": 2}, "padding": "zero"}, {"frame_stack": {"obs": 2}, "padding": "zero"}),
    ],
    ids=["none", "sequence", "rows", "frames"],
)
def test_from_config_passes_settings_to_the_buffer(settings, options):
    buffer = ReplayBuffer.from_config(ReplayConfig(capacity=50, **settings), seed=2)
    twin = ReplayBuffer(50, seed=2, **options)
    for one in (buffer, twin):
        batch = numbered(0, 60)
        one.extend({**batch, "next_obs": batch["obs"] + 1})
    assert buffer.stats() == {**twin.stats(), "capacity": 50}  # `dedup_next` shows in its bytes
    for _ in range(settings.get("max_reuse", 1)):
        assert_same(buffer.sample(16), twin.sample(16))


def test_a_pickled_buffer_continues_with_the_same_draws():
    limiter = RateLimiter(100.0, error_buffer=1e5)
    buffer = ReplayBuffer(50, sampler="prioritized", n_step=2, storage="shm", limiter=limiter, seed=3)
    for number in range(70):
        buffer.add(number=number, obs=np.full(3, number), reward=1.0, terminated=number % 7 == 6)
    buffer.update_priorities(np.arange(30, 60), np.arange(30) + 1.0)
    other = pickle.loads(pickle.dumps(buffer))
    for one in (buffer, other):
        one.add(number=70, obs=np.full(3, 70), reward=1.0, terminated=False)
    for _ in range(3):
        assert_same(buffer.sample(16), other.sample(16))
    assert pickle.loads(pickle.dumps(ReplayBuffer(5))).capacity == 5


def test_a_loaded_buffer_accepts_keys_in_any_order(tmp_path):
    buffer, other = ReplayBuffer(10), ReplayBuffer(10)
    buffer.extend({"reward": np.arange(5.0), "obs": np.zeros((5, 1)), "action": np.arange(5)})
    buffer.save(tmp_path / "b")
    other.load(tmp_path / "b", lazy=True)
    other.add(reward=7, obs=np.ones(1), action=8)
    other.add(reward=np.float32(9), obs=[2.0], action=10)
    assert {key: array[-2:].tolist() for rows, _ in other.iter_rows() for key, array in rows.items()} == {
        "reward": [7.0, 9.0],
        "obs": [[1.0], [2.0]],
        "action": [8, 10],
    }
