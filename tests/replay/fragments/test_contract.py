import statistics
import threading
import time

import numpy as np
import pytest
from fragment_rows import FRAGMENT_BYTES, add, fill, make_buffer, meta, numbers, payload

from tests.waiting import wait_until
from trieye.exceptions import ConfigurationError, LeaseExpiredError


def test_a_waiting_fetch_never_receives_stale_chunks():
    buffer, leases = make_buffer(max_staleness=0), []
    add(buffer, 0, worker="a")
    reader = threading.Thread(target=lambda: leases.append(buffer.fetch(2, timeout_s=10)))
    reader.start()
    wait_until(lambda: buffer.metrics()["replay/waiting_readers"] == 1)
    buffer.set_version("s", 1)
    for worker in "bc":
        add(buffer, 1, worker=worker, version=1)
    reader.join(10)
    assert numbers(leases[0]) == [[1], [1]]


def test_later_fetches_and_inserts_do_not_affect_an_open_lease():
    buffer = make_buffer(max_chunks=4, max_reuse=1)
    fill(buffer, 4)
    first = buffer.fetch(2)
    buffer.fetch(2)
    fill(buffer, 8, start=4)
    read = [number for rank in range(2) for chunk in buffer.read(first.id, rank, 2) for number in numbers_of(chunk)]
    assert read == [number for chunk in first.chunks for number in numbers_of(chunk)]
    buffer.release(first)
    with pytest.raises(LeaseExpiredError, match="is not open: it was released"):
        buffer.read(first.id)


def numbers_of(chunk):
    return [fragment["number"].item() for fragment in chunk.fragments]


@pytest.mark.parametrize("n", [0, -2, 11, 1.5, True, "2"])
def test_a_fetch_of_an_invalid_number_of_chunks_is_rejected_with_the_valid_range(n):
    buffer = make_buffer(max_chunks=10, fragments_per_chunk=3)
    with pytest.raises(ConfigurationError, match="expected 1 to max_chunks=10 chunks, each of 3"):
        buffer.fetch(n, timeout_s=0)


def test_equal_seeds_fetch_equal_chunks():
    fetched = []
    for seed in (1, 1, 2):
        buffer = make_buffer(seed=seed)
        fill(buffer, 50)
        np.random.seed(seed + len(fetched))  # noqa: NPY002 - the global generator must not matter
        fetched.append([numbers(buffer.fetch(5)) for _ in range(5)])
    assert fetched[0] == fetched[1] != fetched[2]


def test_metrics_describe_fetched_chunks_and_are_absent_without_fetches():
    buffer = make_buffer(fragments_per_chunk=2, max_reuse=1, version=4)
    metrics = buffer.metrics()
    assert all(np.isfinite(value) for value in metrics.values())
    assert not {name for name in metrics if "staleness" in name or "reuse" in name or "wait_s" in name}
    for worker, version in enumerate([1, 3, 4]):
        add(buffer, 0, 1, worker=f"worker-{worker}", version=version)
    add(buffer, 2, 4, worker="worker-0", version=4)
    buffer.fetch(3)
    metrics = buffer.metrics()
    assert metrics["replay/staleness_mean"] == pytest.approx(4 / 3)
    assert metrics["replay/staleness_max"] == 3
    assert [metrics[f"replay/staleness/{age}"] for age in (0, 1, 3)] == [1, 1, 1]
    assert metrics["replay/reuse_mean"] == 1
    assert metrics["replay/dropped/gap"] == 1
    assert not {name for name in buffer.metrics() if "staleness" in name}


@pytest.mark.long
def test_the_cost_of_a_fetch_hardly_grows_with_the_number_of_chunks():
    def median_s(buffer):
        times = []
        for _ in range(200):
            start = time.perf_counter()
            lease = buffer.fetch(4)
            times.append(time.perf_counter() - start)
            buffer.release(lease)
        return statistics.median(times)

    costs = []
    for count in (50, 10_000):
        buffer = make_buffer(max_chunks=count, max_staleness=2)
        rows = [({"number": number}, meta(f"worker-{number}")) for number in range(count)]
        assert {result.status for result in buffer.add_batch(rows)} == {"accepted"}
        costs.append(median_s(buffer))
    assert costs[1] < 5 * costs[0]  # 200 times as many chunks


def test_max_bytes_evicts_unleased_chunks_and_rejects_fragments_when_full():
    buffer = make_buffer(max_bytes=4 * FRAGMENT_BYTES, max_reuse=1)
    fill(buffer, 6)
    lease = buffer.fetch(4)
    assert sorted(numbers(lease)) == [[2], [3], [4], [5]]
    result = buffer.add(payload(6), meta("late"))
    assert (result.status, result.should_retry, result.is_kept) == ("full", True, False)
    assert "max_bytes=200" in result.reason
    assert buffer.metrics()["replay/bytes"] == 4 * FRAGMENT_BYTES
    buffer.release(lease)
    assert buffer.add(payload(6), meta("late")).status == "accepted"
    assert buffer.metrics()["replay/pushed_back"] == 1


def test_single_columns_are_read_without_copying_the_rest():
    buffer = make_buffer(fragments_per_chunk=2)
    add(buffer, 0, 1)
    lease = buffer.fetch(1)
    first, second = (fragment["obs"] for fragment in buffer.read(lease)[0].fragments)
    assert first is lease.chunks[0].fragments[0]["obs"]
    assert not first.flags.writeable
    assert list(lease.stack(["bootstrap"])) == ["bootstrap"]
    stacked = lease.stack()
    assert np.array_equal(stacked["obs"], [[first, second]])
    assert stacked["obs"].flags.writeable
    with pytest.raises(ConfigurationError, match="'bootstrp' is unknown; did you mean 'bootstrap'"):
        lease.stack(["bootstrp"])


def test_chunks_have_priorities_and_weights():
    buffer = make_buffer(sampler="prioritized", alpha=1.0, beta=1.0, seed=5)
    fill(buffer, 10)
    ids = [chunk.id for chunk in buffer.fetch(10).chunks]
    assert buffer.update_priorities(ids, [9.0 if chunk_id == 3 else 1.0 for chunk_id in ids]) == 10
    chunks = [buffer.fetch(1).chunks[0] for _ in range(300)]
    assert np.mean([chunk.id == 3 for chunk in chunks]) == pytest.approx(0.5, abs=0.1)
    both = next(lease for lease in (buffer.fetch(2) for _ in range(100)) if 3 in {chunk.id for chunk in lease.chunks})
    assert sorted(chunk.weight for chunk in both.chunks) == pytest.approx([1 / 9, 1.0])
