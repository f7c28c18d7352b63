import numpy as np
import pytest

from tests.forked import in_a_child
from tests.replay.plain_replay import one_of
from trieye.exceptions import ConfigurationError, ReplayClosedError
from trieye.replay import ReplayBuffer
from trieye.replay.rows.next_rows import NextRows
from trieye.replay.rows.reader import RowReader
from trieye.replay.rows.ring import Ring

FRAME = (32, 32)


def frames(first, count):
    numbers = np.arange(first, first + count)
    cells = np.broadcast_to(numbers[:, None, None], (count, *FRAME)).astype(np.int64)
    return {"obs": cells, "next_obs": cells + 1, "reward": numbers.astype(np.float32), "done": numbers % 7 == 6}


def shared(**options):
    """Return a buffer with the rows 36 to 99 in shared memory, a view of it, and a draw."""
    buffer = ReplayBuffer(64, storage="shm", **options)
    buffer.extend(frames(0, 100))
    return buffer, ReplayBuffer.attach(buffer.handle), buffer.draw(16)


def test_overwritten_rows_are_not_returned():
    buffer, view, draw = shared()
    assert view.rows(draw) is not None
    buffer.extend(frames(100, int(draw.ids.min()) - 36))  # the oldest drawn row is the oldest remaining one
    assert view.rows(draw) is not None
    buffer.extend(frames(500, 1))
    assert view.rows(draw) is None
    draw = buffer.draw(16)
    buffer.clear()
    assert view.rows(draw) is None
    assert len(view) == 0


def test_rows_become_unreadable_before_they_are_overwritten(monkeypatch):
    buffer, view, draw = shared()
    draw.ids[:] = 36  # the oldest
    write_rows, batches = Ring.write_rows, []

    def write(*arguments):
        batches.append(view.rows(draw))
        write_rows(*arguments)

    monkeypatch.setattr(Ring, "write_rows", write)
    buffer.extend(frames(100, 1))
    assert batches == [None]


def test_a_handle_requires_shared_memory_and_a_schema():
    for buffer in (ReplayBuffer(5, {"a": np.int64}), ReplayBuffer(5, storage="shm")):
        with pytest.raises(ConfigurationError, match="schema; use storage='shm'"):
            _ = buffer.handle


def test_rows_overwritten_during_the_copy_are_not_returned(monkeypatch):
    buffer, view, draw = shared()
    draw.ids[:] = 36  # the oldest
    copy = RowReader.batch

    def slow(*arguments):
        batch = copy(*arguments)
        buffer.extend(frames(100, 1))
        return batch

    monkeypatch.setattr(RowReader, "batch", slow)
    assert view.rows(draw) is None


def test_a_next_observation_that_moves_during_the_copy_is_reread(monkeypatch):
    buffer, view, draw = shared(dedup_next=True)
    draw.ids[:] = 99  # the newest row: its next observation is stored separately until the next row arrives
    fill, calls = NextRows.fill, []

    def slow(*arguments):
        if not calls:
            buffer.extend(frames(100, 1))  # takes the slot of the next observation of row 100
        calls.append(arguments)
        fill(*arguments)

    monkeypatch.setattr(NextRows, "fill", slow)
    assert set(view.rows(draw)["next_obs"][:, 0, 0].tolist()) == {100}
    assert len(calls) == 2


def test_a_view_of_released_memory_returns_no_rows(tmp_path):
    buffer, view, draw = shared()
    buffer.save(tmp_path / "replay")
    buffer.load(tmp_path / "replay")  # into other memory, since this one has rows
    assert view.rows(draw) is None
    assert len(view) == 0
    fresh = ReplayBuffer.attach(buffer.handle)
    assert fresh.rows(buffer.draw(8)) is not None
    assert fresh.counters()["generation"] == 1
    draw = buffer.draw(8)
    buffer.close()
    assert fresh.rows(draw) is None


def test_a_view_returns_no_rows_for_ids_that_were_never_written():
    _, view, draw = shared()
    draw.ids[0] = 100
    assert view.rows(draw) is None


@pytest.mark.parametrize("storage", ["shm", "mmap"])
def test_a_forked_child_cannot_change_the_rows_of_its_parent(storage, tmp_path):
    options = {"storage_dir": tmp_path} if storage == "mmap" else {}
    buffer = ReplayBuffer(64, storage=storage, sampler="prioritized", **options)
    buffer.extend(frames(0, 100))
    batches = buffer.iter_batches(4, prefetch=0)
    refused = {
        "add": lambda: buffer.add(**one_of(frames(900, 1))),
        "extend": lambda: buffer.extend(frames(900, 5)),
        "sample": lambda: buffer.sample(4),
        "iter_batches": lambda: next(batches),
        "update_priorities": lambda: buffer.update_priorities([90], [5.0]),
        "clear": buffer.clear,
        "interrupt": buffer.interrupt,
        "save": lambda: buffer.save(tmp_path / "saved"),
        "load": lambda: buffer.load_state_dict(buffer.state_parts(())),
        "handle": lambda: buffer.handle,
    }

    def count_refusals():
        count = 0
        for call in refused.values():
            with pytest.raises(ReplayClosedError, match=r"forked.*attach\(handle\)"):
                call()
            count += 1
        buffer.close()
        return count

    view, state = ReplayBuffer.attach(buffer.handle), buffer.state_parts(()).state
    assert in_a_child(count_refusals) == len(refused)
    assert len(view) == len(buffer) == 64
    assert view.rows(buffer.draw(16)) is not None
    assert state["store"]["total"] == buffer.state_parts(()).state["store"]["total"]
    assert buffer.add(**one_of(frames(100, 1))) == 100


def test_a_forked_child_reads_shared_rows_through_a_view_and_changes_only_private_copies():
    _owner, view, draw = shared()
    copied = ReplayBuffer(64)
    copied.extend(frames(0, 100))

    def read_and_add():
        copied.extend(frames(100, 1))
        return np.array_equal(view.rows(draw)["reward"], draw.ids) and copied.sample(4).ids.size == 4

    assert in_a_child(read_and_add) == 1
    assert copied.extend(frames(100, 1)).tolist() == [100]
