import os
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.replay.plain_replay import assert_equal_draws, numbered, restored
from trieye.exceptions import CheckpointError
from trieye.replay import ReplayBuffer
from trieye.replay.rows import segments
from trieye.replay.rows.ring import Ring
from trieye.snapshot.parts import SavedParts


def rows(first, count, width=3):
    numbers = np.arange(first, first + count)
    return numbered(first, count, width, n=numbers, done=numbers % 9 == 8)


def filled(count, capacity=1000, width=3, **options):
    buffer = ReplayBuffer(capacity, seed=1, **options)
    buffer.extend(rows(0, count, width))
    return buffer


def loaded(path, **options):
    lazy = options.pop("lazy", False)
    buffer = ReplayBuffer(1000, **options)
    buffer.load(path, lazy=lazy)
    return buffer


def ranges(names):
    """Return the rows of parts according to their names."""
    return sorted(tuple(map(int, name.split("-")[1:3])) for name in names)


def parts_in(path):
    return {file.name: file.stat() for file in (path / "parts").iterdir()}


def test_parts_with_only_overwritten_rows_are_dropped(tmp_path):
    buffer = filled(500)
    for first in range(500, 2500, 500):
        buffer.save(tmp_path / "replay")
        buffer.extend(rows(first, 500))
    buffer.save(tmp_path / "replay")
    assert ranges(parts_in(tmp_path / "replay")) == [(1500, 2000), (2000, 2500)]


def test_many_small_parts_are_merged():
    buffer, known_parts = filled(10), set()
    counts = []
    for first in range(10, 700, 10):
        saved = buffer.state_parts(known_parts)
        known_parts = {*saved.kept, *saved.new}
        counts.append(len(known_parts))
        buffer.extend(rows(first, 10))
    assert max(counts) == segments.MAX_SMALL_PARTS + 1
    assert counts[-1] < 20
    assert_equal_draws(buffer, restored(buffer), 2)


def test_an_unfinished_save_shares_its_parts_with_the_next_save_without_a_copy():
    buffer = filled(900)
    unfinished = buffer.state_parts(())
    buffer.extend(rows(900, 300))  # some of these rows are overwritten in the buffer
    also_unfinished = buffer.state_parts(())
    assert also_unfinished.kept == ()
    ((first, arrays), (second, _)) = also_unfinished.new.items()
    assert arrays["row.n"] is unfinished.new[first]["row.n"]
    assert ranges([second]) == [(900, 1200)]
    buffer.extend(rows(1200, 100))
    third = buffer.state_parts(unfinished.new)  # the first save is finished, the second is not
    assert third.kept == (first,)
    assert ranges(third.new) == [(900, 1200), (1200, 1300)]
    parts = {**unfinished.new, **also_unfinished.new, **third.new}
    other = ReplayBuffer(1000)
    other.load_state_dict(SavedParts(third.state, (*third.kept, *third.new), parts))
    assert_equal_draws(buffer, other)


def test_permanently_overlapping_saves_do_not_grow():
    buffer, counts, known_parts, before = filled(100, capacity=5000), [], set(), None
    for first in range(100, 2000, 100):
        buffer.extend(rows(first, 100))
        saved = buffer.state_parts(known_parts)  # during the previous save
        counts.append(sum(len(part["row.n"]) for part in saved.new.values()))
        known_parts, before = set() if before is None else {*before.kept, *before.new}, saved
    assert max(counts) == 300  # all parts of the first two saves, then of the last two


def test_loading_an_empty_state_forgets_earlier_parts(tmp_path):
    buffer = ReplayBuffer(1000)
    buffer.save(tmp_path / "empty")
    buffer.extend(rows(0, 100))
    buffer.save(tmp_path / "replay")
    buffer.load(tmp_path / "empty")
    buffer.extend(rows(5000, 100))  # other rows with the ids of the first rows
    buffer.save(tmp_path / "replay")
    assert loaded(tmp_path / "replay").sample(16)["n"].min() >= 5000


def test_alternating_save_directories_each_receive_only_new_rows(tmp_path):
    buffer, directories = filled(500), [tmp_path / "checkpoints", tmp_path / "snapshots"]
    for directory in directories:
        buffer.save(directory)
    for first in range(500, 700, 100):
        for directory in directories:
            before = parts_in(directory)
            buffer.extend(rows(first, 50))
            buffer.save(directory)
            after = parts_in(directory)
            (new,) = after.keys() - before
            assert after[new].st_size < 100 * 60 + 1000
            assert {name: after[name].st_ino for name in before} == {name: file.st_ino for name, file in before.items()}
            assert_equal_draws(buffer, loaded(directory, lazy=True), 2)


def test_a_known_part_is_linked_in_preference_to_an_unfinished_one():
    buffer = filled(500)
    done = set(buffer.state_parts(()).new)
    buffer.extend(rows(500, 50))
    unfinished = buffer.state_parts(())  # to another target without known parts
    buffer.extend(rows(550, 50))
    saved = buffer.state_parts(done)
    assert set(saved.kept) == done
    assert ranges(saved.new) == [(500, 600)]
    assert unfinished.new.keys().isdisjoint(saved.new)


def test_parts_of_an_abandoned_branch_are_never_linked(tmp_path):
    buffer = filled(100)
    buffer.save(tmp_path / "early")
    buffer.extend(rows(100, 100))
    abandoned_parts = set(buffer.state_parts(()).new)
    buffer.load(tmp_path / "early")
    buffer.extend(rows(7000, 100))  # other rows with the ids of the remaining rows
    saved = buffer.state_parts(abandoned_parts)
    assert abandoned_parts.isdisjoint(saved.kept)
    assert sum(len(part["row.n"]) for part in saved.new.values()) == 200


def test_later_rows_do_not_change_existing_parts():
    buffer = filled(1000)
    saved = buffer.state_parts(())
    copies = {name: {key: array.copy() for key, array in part.items()} for name, part in saved.new.items()}
    buffer.extend(rows(1000, 1000))
    for name, part in saved.new.items():
        for key, array in part.items():
            assert np.array_equal(array, copies[name][key])


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("width", [3, 300])
def test_a_loaded_buffer_continues_like_the_saved_one(tmp_path, width, lazy):
    options = {"sampler": "prioritized", "sampler_options": {"beta_draws": 50}}
    buffer = filled(1500, width=width, **options)
    buffer.save(tmp_path / "replay")
    buffer.sample(8)
    buffer.update_priorities(range(600, 700), np.arange(100.0))
    buffer.extend(rows(1500, 10, width))
    buffer.save(tmp_path / "replay")
    assert [path.name for path in tmp_path.iterdir()] == ["replay"]  # no partial files
    other = loaded(tmp_path / "replay", lazy=lazy, **options)
    assert_equal_draws(buffer, other)
    for one in (buffer, other):
        one.extend(rows(1510, 600, width))
    assert_equal_draws(buffer, other)
    assert buffer.stats() == other.stats()


def test_a_lazily_loaded_buffer_reads_only_drawn_rows_and_survives_deleted_files(tmp_path, monkeypatch):
    rings, gather = [], Ring.gather
    monkeypatch.setattr(Ring, "gather", lambda ring, *arguments: rings.append(ring) or gather(ring, *arguments))
    filled(1000, width=300).save(tmp_path / "replay")
    other = loaded(tmp_path / "replay", lazy=True)
    for file in (tmp_path / "replay" / "parts").iterdir():
        file.unlink()
    other.sample(10)
    assert 990 <= rings[-1].unread.count < 1000
    other.extend(rows(1000, 500, 300))
    assert rings[-1].unread.count <= 500
    other.save(tmp_path / "other")  # from the memory maps, since no row is in memory yet
    assert_equal_draws(other, loaded(tmp_path / "other"))


def test_a_missing_part_is_reported_by_name(tmp_path):
    filled(100).save(tmp_path / "replay")
    (part,) = (tmp_path / "replay" / "parts").iterdir()
    part.unlink()
    with pytest.raises(CheckpointError, match=part.name):
        loaded(tmp_path / "replay")


def test_large_contents_are_split_into_parts_that_several_threads_load(tmp_path, monkeypatch):
    monkeypatch.setattr(segments, "MAX_PART_BYTES", 400 * 100)
    threads, write_rows, meeting = set(), Ring.write_rows, threading.Barrier(2, timeout=20)

    def write_and_meet(*arguments):
        if len(threads) < 2:
            threads.add(threading.get_ident())
            meeting.wait()  # returns only when two threads are here
        write_rows(*arguments)

    filled(1000, width=80).save(tmp_path / "replay")
    assert len(parts_in(tmp_path / "replay")) > 8
    monkeypatch.setattr(Ring, "write_rows", write_and_meet)
    other = loaded(tmp_path / "replay")
    assert len(threads) == 2
    assert_equal_draws(filled(1000, width=80), other, 2)


@pytest.mark.long
@given(st.lists(st.tuples(st.integers(1, 30), st.booleans()), min_size=1, max_size=12), st.integers(1, 40))
def test_only_finished_saves_are_built_upon(steps, capacity):
    """Each step adds rows and saves; the save finishes or is lost."""
    buffer, on_disk, known_parts, total = ReplayBuffer(capacity, seed=2), {}, set(), 0
    for count, is_finished in steps:
        buffer.extend(rows(total, count))
        total += count
        saved = buffer.state_parts(known_parts)
        assert set(saved.kept) <= known_parts
        if is_finished:
            on_disk = {name: on_disk[name] for name in saved.kept} | dict(saved.new)
            known_parts = set(on_disk)
            row_ids = sorted(int(n) for part in on_disk.values() for n in part["row.n"])
            assert len(row_ids) == len(set(row_ids))
            assert set(range(total - len(buffer), total)) <= set(row_ids)


def test_a_memory_mapped_buffer_can_be_saved_and_loaded(tmp_path):
    (tmp_path / "rows").mkdir()
    options = {"storage": "mmap", "storage_dir": tmp_path / "rows"}
    buffer = filled(300, width=300, **options)
    buffer.save(tmp_path / "replay")
    assert os.listdir(tmp_path / "rows") == []  # noqa: PTH208
    assert_equal_draws(buffer, loaded(tmp_path / "replay", **options))


def test_prefetched_batches_of_lazily_loaded_rows_stay_consistent_while_rows_are_added(tmp_path):
    filled(100, width=300).save(tmp_path / "replay")
    other = ReplayBuffer(100)
    other.load(tmp_path / "replay", lazy=True)
    batches = other.iter_batches(16, prefetch=3)
    for number in range(100, 200):
        other.extend(rows(number, 1, 300))
        batch = next(batches)
        assert np.array_equal(batch["n"], batch.ids)
    other.close()
    with pytest.raises(StopIteration):
        next(batches)
