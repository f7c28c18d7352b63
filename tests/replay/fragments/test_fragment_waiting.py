import asyncio
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from fragment_rows import add, at_most_ahead, fill, make_buffer, meta, numbers, payload

from tests.waiting import wait_until
from trieye.exceptions import ReplayClosedError, ReplayTimeoutError, TrieyeError


def num_waiting(buffer):
    return buffer.metrics(reset=False)["replay/waiting_readers"]


class Readers:
    """Threads that fetch; results are in the order of service."""

    def __init__(self, buffer):
        self.buffer, self.served, self.threads = buffer, [], []

    def start(self, name, n, **options):
        def read():
            try:
                result = len(self.buffer.fetch(n, **options).chunks)
            except TrieyeError as error:
                result = type(error)
            self.served.append((name, result))

        waiting = num_waiting(self.buffer)
        self.threads.append(threading.Thread(target=read, daemon=True))
        self.threads[-1].start()
        wait_until(lambda: num_waiting(self.buffer) > waiting)

    def join(self):
        for thread in self.threads:
            thread.join(10)
        assert not any(thread.is_alive() for thread in self.threads)
        assert num_waiting(self.buffer) == 0
        return self.served


@pytest.mark.parametrize("timeout_s", [None, float("inf")])
def test_threads_are_served_in_order_of_arrival(timeout_s):
    buffer = make_buffer(max_reuse=1)
    readers = Readers(buffer)
    for name, n in enumerate([2, 1, 3, 1]):
        readers.start(name, n, timeout_s=timeout_s)
    for number in range(7):
        fill(buffer, 1, start=number)
        wait_until(lambda number=number: len(readers.served) >= [0, 1, 2, 2, 2, 3, 4][number])
    assert readers.join() == [(0, 2), (1, 1), (2, 3), (3, 1)]


def test_a_timed_out_reader_unblocks_the_next_one():
    buffer = make_buffer()
    fill(buffer, 2)
    readers = Readers(buffer)
    readers.start("large", 3, timeout_s=0.2)
    readers.start("small", 1)
    assert readers.join() in (
        [("large", ReplayTimeoutError), ("small", 1)],
        [("small", 1), ("large", ReplayTimeoutError)],
    )


def test_a_fetch_without_timeout_takes_all_requested_chunks_or_none():
    buffer = make_buffer()
    fill(buffer, 2)
    with pytest.raises(TimeoutError, match=r"fetch\(3\): 2 of 3 chunks are available after 0 s, and 0 other fetches"):
        buffer.fetch(3, timeout_s=0)
    assert [chunk.num_uses for chunk in buffer.fetch(2, timeout_s=0).chunks] == [1, 1]


def test_a_non_strict_fetch_returns_fewer_chunks_after_its_timeout():
    buffer = make_buffer(max_reuse=1)
    fill(buffer, 2)
    assert len(buffer.fetch(3, timeout_s=0.01, strict=False).chunks) == 2
    with pytest.raises(ReplayTimeoutError, match=r"fetch\(3\): 0 of 3"):
        buffer.fetch(3, timeout_s=0.01, strict=False)
    fill(buffer, 3, start=2)
    assert len(asyncio.run(buffer.afetch(4, timeout_s=0.01, strict=False)).chunks) == 3


def test_a_non_strict_fetch_takes_no_chunks_from_earlier_readers():
    buffer = make_buffer()
    fill(buffer, 2)
    readers = Readers(buffer)
    readers.start("patient", 3)
    with pytest.raises(ReplayTimeoutError, match="and 1 other fetches come first"):
        buffer.fetch(1, timeout_s=0.01, strict=False)
    fill(buffer, 1, start=2)
    assert readers.join() == [("patient", 3)]


def test_a_reader_in_several_calls_keeps_its_place_for_a_second(clock):
    buffer = make_buffer(clock=clock)
    fill(buffer, 1)
    for _ in range(2):
        with pytest.raises(ReplayTimeoutError, match="and 0 other fetches come first"):
            buffer.fetch(2, timeout_s=0, reader="large")
        clock.now += 0.9
        with pytest.raises(ReplayTimeoutError, match="and 1 other fetches come first"):
            buffer.fetch(1, timeout_s=0, reader="small")
    fill(buffer, 1, start=1)
    assert len(buffer.fetch(2, timeout_s=0, reader="large").chunks) == 2
    with pytest.raises(ReplayTimeoutError, match="and 1 other fetches come first"):
        buffer.fetch(1, timeout_s=0)
    clock.now += 1.1
    assert len(buffer.fetch(1, timeout_s=0).chunks) == 1


def test_closing_ends_waiting_fetches_and_rejects_later_calls():
    buffer = make_buffer()
    readers = Readers(buffer)
    readers.start("thread", 1)

    async def read():
        task = asyncio.create_task(buffer.afetch(2))
        await asyncio.sleep(0)
        buffer.close()
        with pytest.raises(ReplayClosedError):
            await task

    asyncio.run(read())
    buffer.close()
    for thread in readers.threads:
        thread.join(10)
    assert readers.served == [("thread", ReplayClosedError)]
    for call in (
        lambda: add(buffer, 0),
        lambda: buffer.fetch(1),
        lambda: asyncio.run(buffer.afetch(1)),
        lambda: buffer.set_version("s", 1),
        lambda: buffer.read("x"),
        buffer.metrics,
    ):
        with pytest.raises(ReplayClosedError, match="the fragment buffer is closed"):
            call()
    assert buffer.release("x") is False


def test_cancelled_tasks_take_no_chunks_and_leave_the_queue():
    async def cancel_all():
        tasks = [asyncio.create_task(buffer.afetch(1)) for _ in range(5)]
        await asyncio.sleep(0)
        assert num_waiting(buffer) == 5
        fill(buffer, 1)  # the first task is woken, and cancelled before it runs
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results)

    buffer = make_buffer(max_reuse=1)
    asyncio.run(cancel_all())
    metrics = buffer.metrics()
    assert (metrics["replay/waiting_readers"], metrics["replay/leases"], metrics["replay/samples_per_insert"]) == (
        0,
        0,
        0,
    )
    assert numbers(buffer.fetch(1, timeout_s=0)) == [[0]]


def test_tasks_and_threads_share_one_queue():
    async def read():
        tasks = [asyncio.create_task(buffer.afetch(1, timeout_s=10))]
        await asyncio.sleep(0)
        readers.start("thread", 2)
        tasks.append(asyncio.create_task(buffer.afetch(1, timeout_s=10)))
        await asyncio.sleep(0)
        fill(buffer, 3)
        await tasks[0]
        assert not tasks[1].done()
        fill(buffer, 1, start=3)
        return await tasks[1]

    buffer = make_buffer(max_reuse=1)
    readers = Readers(buffer)
    assert len(asyncio.run(read()).chunks) == 1
    assert readers.join() == [("thread", 2)]


def test_a_reader_with_a_closed_event_loop_blocks_no_others():
    buffer = make_buffer()
    loop = asyncio.new_event_loop()
    task = loop.create_task(buffer.afetch(1))
    loop.run_until_complete(asyncio.sleep(0))
    loop.set_exception_handler(lambda *_: None)  # it would warn about the task
    assert num_waiting(buffer) == 1
    loop.close()
    readers = Readers(buffer)
    readers.start("next", 1, timeout_s=10)
    fill(buffer, 1)
    assert readers.join() == [("next", 1)]
    assert not task.done()


def write_all(buffer, worker, count):
    """Add fragments until all are accepted, and return the other results."""
    failures = []
    for fid in range(count):
        while (result := buffer.add(payload(fid), meta(worker, fid))).should_retry:
            time.sleep(0.0001)
        failures += [] if result.status == "accepted" else [result]
    return failures


def read_all(buffer):
    """Fetch until the buffer is closed, and return how often each chunk was fetched."""
    fetch_counts = Counter()
    while True:
        try:
            lease = buffer.fetch(1, timeout_s=10)
        except ReplayClosedError:
            return fetch_counts
        fetch_counts[lease.chunks[0].fragments[0].meta.worker, *numbers(lease)[0]] += 1
        buffer.release(lease)


def test_concurrent_readers_receive_every_chunk_exactly_once():
    buffer = make_buffer(fragments_per_chunk=2, max_reuse=1, limiter=at_most_ahead(3))
    count, workers, max_stored = 40, ["a", "b", "c"], 0
    with ThreadPoolExecutor(5) as threads:
        readers = [threads.submit(read_all, buffer) for _ in range(2)]
        writers = [threads.submit(write_all, buffer, worker, count) for worker in workers]
        while not all(writer.done() for writer in writers):
            max_stored = max(max_stored, buffer.metrics()["replay/fragments"])
        wait_until(lambda: len(buffer) == 0)
        buffer.close()
        assert [writer.result() for writer in writers] == [[], [], []]
        fetch_counts = sum((reader.result() for reader in readers), Counter())
    assert fetch_counts == Counter((worker, fid, fid + 1) for worker in workers for fid in range(0, count, 2))
    assert max_stored <= 3 * 2 + 3 + 2 * 2  # chunks ahead, fragments of unfinished chunks, leases
