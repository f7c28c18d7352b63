from dataclasses import replace

import numpy as np
import pytest
from fragment_rows import FRAGMENT_BYTES, add, at_most_ahead, fill, make_buffer, meta, numbers, payload

from trieye.exceptions import CheckpointError, ConfigurationError, ReplayTimeoutError, SerializationError
from trieye.files.checksum import FileEntry
from trieye.replay.fragments import FragmentBuffer, FragmentRules
from trieye.replay.fragments.saving import SavedGroups
from trieye.replay.limiter import RateLimiter
from trieye.snapshot.nodes import PartFile
from trieye.snapshot.parts import SavedParts


def saved(parts, files=None):
    """Return the argument of a restore, without writing files."""
    return SavedParts(parts.state, (*parts.kept, *parts.new), {**(files or {}), **parts.new})


def restored(buffer, path, **rules):
    """Save a buffer, and load it into a new one with other rules."""
    buffer.save(path)
    other = FragmentBuffer(FragmentRules(**{**vars_of(buffer.rules), **rules}), seed=11)
    other.load(path)
    return other


def vars_of(rules):
    return {name: getattr(rules, name) for name in FragmentRules.__dataclass_fields__}


def files(path):
    return {file.name: file.stat().st_ino for file in (path / "parts").iterdir()}


def test_a_mostly_evicted_group_is_rewritten_and_others_are_linked(tmp_path):
    buffer, path = make_buffer(max_chunks=10), tmp_path / "replay"
    fill(buffer, 8)
    buffer.save(path)
    first = files(path)
    fill(buffer, 6, start=8)
    buffer.save(path)
    assert first.keys() < files(path).keys()
    fill(buffer, 1, start=14)
    buffer.save(path)
    assert not first.keys() & files(path).keys()
    other = FragmentBuffer(buffer.rules)
    other.load(path)
    assert sorted(numbers(other.fetch(10))) == [[number] for number in range(5, 15)]


def test_many_small_groups_are_merged():
    buffer, counts, known_parts = make_buffer(max_chunks=1000), [], []
    for number in range(40):
        fill(buffer, 1, start=number)
        parts = buffer.state_parts(known_parts)
        known_parts = [*parts.kept, *parts.new]
        counts.append(len(known_parts))
    assert counts[:33] == list(range(1, 34))
    assert counts[33:] == list(range(1, 8))


def test_large_contents_are_split_into_groups_that_are_linked_individually():
    groups = SavedGroups()
    reused, missing = groups.plan(set(range(7)), [], 20 << 20)
    assert (reused, missing) == ([], [[0, 1, 2], [3, 4, 5], [6]])
    names = [groups.add(serials) for serials in missing]
    assert [name[:8] for name in names] == ["seg-0-3-", "seg-3-6-", "seg-6-7-"]
    assert groups.plan({1, 2, 6, 7}, names, 20 << 20) == ([names[0], names[2]], [[7]])


def test_fragments_of_an_unfinished_checkpoint_are_rewritten_and_restored_once():
    buffer = make_buffer()
    fill(buffer, 2)
    unfinished, again = buffer.state_parts([]), buffer.state_parts([])
    assert unfinished.new.keys() != again.new.keys()
    assert buffer.state_parts([*unfinished.new, *again.new]).kept == tuple(unfinished.new)
    fill(buffer, 1, start=2)
    later = buffer.state_parts([])
    both = buffer.state_parts([*unfinished.new, *later.new])
    assert (both.kept, both.new) == ((*unfinished.new, *later.new), {})
    other = FragmentBuffer(buffer.rules)
    other.load_state_dict(saved(both, {**unfinished.new, **later.new}))
    assert other.metrics()["replay/bytes"] == 3 * FRAGMENT_BYTES
    assert sorted(numbers(other.fetch(3))) == [[0], [1], [2]]


def test_a_restored_buffer_links_the_files_of_its_checkpoint_and_writes_only_new_fragments(tmp_path):
    buffer, path = make_buffer(), tmp_path / "replay"
    fill(buffer, 90)
    other = restored(buffer, path)
    before = files(path)
    fill(other, 10, start=90)
    other.save(path)
    assert before.items() < files(path).items()
    (new,) = files(path).keys() - before.keys()
    assert new.startswith("seg-90-100-")
    num_bytes = 10 * sum(np.asarray(value).nbytes for value in payload(0).values())
    assert num_bytes <= (path / "parts" / new).stat().st_size < num_bytes + 500


def test_a_restored_partial_chunk_keeps_its_age(tmp_path, clock):
    buffer = make_buffer(fragments_per_chunk=2, clock=clock, partial_ttl_s=100)
    add(buffer, 0)
    clock.now += 60
    buffer.save(tmp_path / "replay")
    clock.now = 5.0
    other = FragmentBuffer(buffer.rules, clock=clock)
    other.load(tmp_path / "replay")
    clock.now += 39
    assert other.metrics()["replay/partial_chunks"] == 1
    clock.now += 2
    assert other.metrics()["replay/partial_chunks"] == 0


def test_sessions_limiter_priorities_and_counts_are_restored(tmp_path):
    buffer = make_buffer(
        sampler="prioritized", alpha=1.0, limiter=at_most_ahead(4), version=3, session="a", max_staleness=1
    )
    buffer.set_version("b", 3)
    fill_b = [meta(f"w{number}", 0, 3, "b") for number in range(3)]
    assert {buffer.add(payload(n), one).status for n, one in enumerate(fill_b)} == {"accepted"}
    add(buffer, 0, 0, worker="x", version=1, session="b")
    buffer.update_priorities([0, 1, 2], [0.0, 0.0, 5.0])
    buffer.save(tmp_path / "replay")
    other = FragmentBuffer(buffer.rules, limiter=at_most_ahead(4))
    other.load(tmp_path / "replay")
    assert (other.session, other.model_version) == ("b", 3)
    assert other.add(payload(0), meta("late", 0, 3, "a")).status == "wrong_session"
    assert numbers(other.fetch(1)) == [[2]]
    late = [meta(f"late-{number}", 0, 3, "b") for number in range(3)]
    assert [other.add(payload(9), one).status for one in late] == ["accepted", "accepted", "full"]
    metrics = other.metrics()
    assert (metrics["replay/dropped/stale"], metrics["replay/dropped/duplicate"]) == (1, 1)


def test_a_buffer_that_returns_to_an_earlier_state_ignores_priorities_of_the_chunks_it_replaced(tmp_path):
    buffer = make_buffer(sampler="prioritized")
    buffer.save(tmp_path / "replay")
    fill(buffer, 1)
    (replaced_chunk,) = buffer.fetch(1).chunks
    buffer.load(tmp_path / "replay")
    add(buffer, 0, worker="other")
    assert buffer.update_priorities([replaced_chunk.id], [5.0]) == 0


def test_the_limits_of_the_new_buffer_apply_immediately(tmp_path):
    buffer = make_buffer()
    fill(buffer, 10)
    buffer.release(buffer.fetch(4))
    path = tmp_path / "replay"
    newest = restored(buffer, path, max_chunks=3)
    assert sorted(numbers(newest.fetch(3))) == [[7], [8], [9]]
    assert len(restored(buffer, path, max_reuse=1)) == 6
    assert restored(buffer, path, max_bytes=5 * FRAGMENT_BYTES).metrics()["replay/bytes"] == 5 * FRAGMENT_BYTES


def test_the_limiter_does_not_count_chunks_that_the_limits_of_the_new_buffer_remove(tmp_path):
    limiter = RateLimiter(1.0, min_size_to_sample=4, error_buffer=4.0)
    buffer = make_buffer(limiter=limiter)
    fill(buffer, 6)
    buffer.fetch(3)
    buffer.save(tmp_path / "replay")
    other = FragmentBuffer(replace(buffer.rules, max_reuse=1), limiter=limiter)
    other.load(tmp_path / "replay")
    assert len(other) == 3
    with pytest.raises(ReplayTimeoutError, match="limiter"):
        other.fetch(1, timeout_s=0)


@pytest.mark.parametrize(("num_uses", "num_admitted"), [(0, 0), (1, 3), (10, 3)])
def test_a_new_limiter_counts_the_restored_chunks_and_their_uses(num_uses, num_admitted):
    buffer = make_buffer()
    fill(buffer, 5)
    for _ in range(num_uses):
        buffer.fetch(5)
    other = FragmentBuffer(buffer.rules, limiter=at_most_ahead(4))
    other.load_state_dict(saved(buffer.state_parts([])))
    statuses = [other.add(payload(0), meta(f"late-{number}")).status for number in range(4)]
    assert statuses == ["accepted"] * num_admitted + ["full"] * (4 - num_admitted)
    assert len(other.fetch(5, timeout_s=0).chunks) == 5


def test_a_mismatched_checkpoint_is_rejected_and_changes_nothing(tmp_path):
    buffer = make_buffer(fragments_per_chunk=2)
    fill(buffer, 2)
    path = tmp_path / "replay"
    with pytest.raises(ConfigurationError, match="fragments_per_chunk=3, but the saved chunks have 2 fragments"):
        restored(buffer, path, fragments_per_chunk=3)
    other = FragmentBuffer(FragmentRules(max_chunks=5, fragments_per_chunk=2))
    other.add({"obs": np.zeros(3)}, meta(session="", version=-1))
    with pytest.raises(ConfigurationError, match=r"saved fragments have obs float32\[4, 2\].* has obs float64\[3\]"):
        other.load(path)
    assert other.metrics()["replay/partial_chunks"] == 1
    with pytest.raises(CheckpointError, match="nothing"):
        other.load(tmp_path / "nothing")


@pytest.mark.parametrize("damage", ["part", "table", "format", "limiter"])
def test_an_incomplete_snapshot_is_rejected_and_changes_nothing(damage):
    buffer = make_buffer(limiter=at_most_ahead(9))
    fill(buffer, 3)
    parts = buffer.state_parts([])
    if damage == "part":
        broken = SavedParts(parts.state, (), {})
    elif damage == "limiter":
        broken = saved(type(parts)({**parts.state, "limiter": {"inserts": 9, "samples": 0}}, parts.kept, parts.new))
    elif damage == "table":
        broken = saved(type(parts)({**parts.state, "chunks": {}}, parts.kept, parts.new))
    else:
        broken = SavedParts({"format": 7}, (), {})
    other = make_buffer(limiter=at_most_ahead(2))
    fill(other, 1)
    with pytest.raises(SerializationError, match=r"incomplete|not a saved fragment buffer of format 2"):
        other.load_state_dict(broken)
    assert len(other) == 1
    assert [add(other, 0, worker=worker) for worker in "ab"] == [["accepted"], ["full"]]


def test_an_empty_buffer_is_saved_and_loaded(tmp_path):
    buffer = make_buffer(version=4)
    other = restored(buffer, tmp_path / "replay")
    assert (len(other), other.model_version) == (0, 4)
    assert add(other, 0, version=4) == ["accepted"]


def test_arrays_of_all_kinds_round_trip_exactly(tmp_path):
    row = {
        "flags": np.array([True, False]),
        "half": np.array([[1.5, -2]], np.float16),
        "wide": np.array(2**64 - 1, np.uint64),
        "none": np.zeros((0, 3), np.float32),
        "reversed": np.arange(6)[::-2],
        "swapped": np.arange(3, dtype=">i4"),
    }
    buffer = make_buffer()
    assert buffer.add(row, meta()).status == "accepted"
    restored_data = restored(buffer, tmp_path / "replay").fetch(1).chunks[0].fragments[0].data
    assert list(restored_data) == list(row)
    for key, value in row.items():
        assert np.array_equal(restored_data[key], value)
        assert restored_data[key].shape == value.shape
        assert restored_data[key].dtype == value.dtype.newbyteorder("=")


def test_later_writes_do_not_change_a_snapshot():
    buffer = make_buffer(max_chunks=5)
    fill(buffer, 5)
    parts = buffer.state_parts([])
    fill(buffer, 5, start=5)
    other = FragmentBuffer(buffer.rules)
    other.load_state_dict(saved(parts))
    assert sorted(numbers(other.fetch(5))) == [[0], [1], [2], [3], [4]]
    assert buffer.metrics()["replay/bytes"] == 5 * FRAGMENT_BYTES


def test_chunks_with_damaged_fragments_are_dropped_and_the_others_remain_usable(tmp_path, caplog):
    buffer, path = make_buffer(fragments_per_chunk=2, limiter=at_most_ahead(100)), tmp_path / "replay"
    parts = {}
    for first, end in ((0, 3), (3, 5), (5, 9), (9, 10)):  # groups end in the middle of chunks
        for worker in ("a", "b"):
            add(buffer, *range(first, end), worker=worker)
        parts |= buffer.state_parts(parts).new
    saved_parts = buffer.state_parts(parts)
    _, damaged, *_ = saved_parts.kept
    entry = FileEntry(size_bytes=1, crc32=0)
    restored = SavedParts(saved_parts.state, saved_parts.kept, {**parts, damaged: PartFile(path / "gone", entry)})
    other = make_buffer(fragments_per_chunk=2)
    other.load_state_dict(restored)
    assert sorted(numbers(other.fetch(len(other)))) == sorted([[0, 1], [6, 7], [8, 9]] * 2)
    assert other.metrics()["replay/dropped/damaged"] == 4
    assert "4 fragments of the replay are lost" in caplog.text
    add(other, 10, 11, worker="a")
    assert len(other) == 7
    again = other.state_parts(parts)
    assert damaged not in again.kept
    with pytest.raises(CheckpointError, match="is damaged"):
        make_buffer(fragments_per_chunk=2).load_state_dict(replace(restored, on_damage="refuse"))
