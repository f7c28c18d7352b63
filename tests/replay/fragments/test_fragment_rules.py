import doctest
import pickle
import resource
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from fragment_rows import FRAGMENT_BYTES, STEPS, add, at_most_ahead, fill, make_buffer, meta, numbers, payload, versions

from trieye.config.replay import ReplayConfig
from trieye.exceptions import ConfigurationError, LeaseExpiredError, ReplayTimeoutError
from trieye.replay.fragments import FragmentBuffer, FragmentMeta, FragmentRules
from trieye.replay.fragments import buffer as buffer_module
from trieye.replay.limiter import RateLimiter


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"worker": ""}, "session 's': both must be strings, worker not empty"),
        ({"fid": 2**63}, "fid=9223372036854775808 is not from 0 to"),
        ({"model_version": -2}, "model_version=-2 is not from -1"),
        ({"incarnation": 1.0}, "incarnation=1.0 is not an integer"),
        ({"session": None}, "session None"),
    ],
)
def test_fragment_metadata_is_validated(fields, message):
    with pytest.raises(ConfigurationError, match=message):
        FragmentMeta(**{"worker": "w", "fid": 0, "session": "s", **fields})


def test_numpy_integers_become_python_integers():
    converted = FragmentMeta("w", np.uint8(255), np.int16(3), "s", np.int64(1))
    assert [type(value) for value in (converted.fid, converted.model_version, converted.incarnation)] == [int] * 3
    assert pickle.loads(pickle.dumps(converted)) == converted


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"extra": 1}, "'extra' is unknown"),
        ({"obs": np.zeros((5, 2))}, "fragment 1 of worker 'w': replay key 'obs': expected shape (4, 2), got (5, 2)"),
        ({"bootstrap": np.zeros(3)}, "'bootstrap': expected int16, got float64"),
        ({"obs": torch.zeros(STEPS, 2, requires_grad=True)}, "grad"),
        ({"bootstrap": np.full(3, 40_000)}, "out of range of int16"),
        ({7: 1}, "replay key 7 is unknown"),
    ],
)
def test_an_invalid_payload_is_rejected_without_affecting_its_neighbours(change, message):
    buffer = make_buffer(fragments_per_chunk=2)
    batch = [(payload(0), meta(fid=0)), ({**payload(1), **change}, meta(fid=1)), (payload(1), meta(fid=1))]
    results = buffer.add_batch(batch)
    assert [result.status for result in results] == ["accepted", "rejected", "accepted"]
    assert message in results[1].reason
    assert numbers(buffer.fetch(1)) == [[0, 1]]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (None, "payload must be a dict of arrays, got NoneType"),
        ({}, "at least one key"),
        ({1: 2}, "a key must be a string"),
        ({"__metadata__": 1}, "'__metadata__' is reserved"),
        ({"obs": np.zeros(3, np.longdouble)}, "cannot be stored"),
        ({"obs": "text"}, "'obs': dtype <U4 cannot be stored"),
        ({"obs": np.broadcast_to(np.float32(0), 1 << 50)}, "no memory for 4503599627370496 bytes"),
    ],
)
def test_a_rejected_first_fragment_defines_no_schema(row, message):
    buffer = make_buffer()
    assert message in buffer.add(row, meta()).reason
    assert buffer.add(payload(0), ("w", 0)).reason == "meta must be a FragmentMeta, got tuple"
    assert add(buffer, 0) == ["accepted"]


def test_a_payload_is_copied_and_may_be_a_tensor():
    buffer, obs = make_buffer(), torch.ones(STEPS, 2)
    assert buffer.add({**payload(3), "obs": obs}, meta()).status == "accepted"
    obs[:] = 9
    lease = buffer.fetch(1)
    assert (lease.chunks[0].fragments[0]["obs"] == 1).all()
    assert torch.as_tensor(lease.stack()["obs"]).shape == (1, 1, STEPS, 2)


def test_fragments_whose_chunk_exceeds_max_bytes_are_rejected():
    buffer = make_buffer(fragments_per_chunk=4, max_bytes=199)
    assert buffer.add(payload(0), meta()).reason == (
        "a chunk of such fragments takes 200 bytes, more than max_bytes=199"
    )


def test_a_chunk_is_as_old_as_its_oldest_fragment():
    buffer = make_buffer(fragments_per_chunk=3, max_staleness=1, version=2)
    add(buffer, 0, version=2)
    add(buffer, 1, version=1)
    add(buffer, 2, version=2)
    assert versions(buffer) == [1]
    buffer.set_version("s", 3)
    assert len(buffer) == 0


def test_versions_never_decrease_within_a_session():
    buffer = make_buffer(version=3)
    buffer.set_version("s", 3)
    with pytest.raises(ConfigurationError, match=r"set_version\('s', 2\): the session already has version 3"):
        buffer.set_version("s", 2)
    with pytest.raises(ConfigurationError, match="not an integer"):
        buffer.set_version("s", "4")
    buffer.set_version("t", 0)
    assert (buffer.session, buffer.model_version) == ("t", 0)


def test_a_resumed_session_keeps_the_contents_without_later_versions():
    buffer = make_buffer(session_policy="resume", session="first", fragments_per_chunk=2, version=4)
    for worker, version in (("a", 3), ("b", 4)):
        add(buffer, 0, 1, worker=worker, version=version, session="first")
    add(buffer, 0, worker="c", version=3, session="first")
    buffer.set_version("second", 3)
    assert versions(buffer) == [3]
    assert add(buffer, 1, worker="c", version=3, session="second") == ["accepted"]
    assert add(buffer, 0, worker="d", version=3, session="first") == ["accepted"]
    assert add(buffer, 1, worker="d", version=4, session="first") == ["wrong_session"]
    assert versions(buffer) == [3, 3]
    assert buffer.metrics()["replay/dropped/future_version"] == 2


def test_a_reannounced_session_is_accepted_again():
    buffer = make_buffer(session="a")
    buffer.set_version("b", 0)
    assert add(buffer, 0, session="a") == ["wrong_session"]
    buffer.set_version("a", 0)
    assert add(buffer, 1, session="a") == ["accepted"]


def test_early_fragments_are_limited_and_expire(clock):
    buffer = make_buffer(max_early=2, partial_ttl_s=50, clock=clock)
    assert add(buffer, 0, 1, 2, version=1) == ["early", "early", "future_version"]
    result = buffer.add(payload(2), meta(fid=2, version=1))
    assert result.should_retry
    assert "session 's' version 1 is not announced yet, and max_early=2 fragments already wait" in result.reason
    clock.now += 51
    assert buffer.metrics()["replay/waiting_fragments"] == 0
    assert add(buffer, 2, version=1) == ["early"]


def test_early_fragments_of_an_abandoned_session_do_not_block_the_next_session():
    buffer = make_buffer(session="a", fragments_per_chunk=2)
    assert add(buffer, 0, session="never announced") == ["early"]
    assert add(buffer, 1, 2, session="b") == ["early", "early"]
    buffer.set_version("b", 0)
    assert numbers(buffer.fetch(1)) == [[1, 2]]
    assert buffer.metrics()["replay/waiting_fragments"] == 0


def test_fragments_behind_an_early_one_wait_with_it():
    buffer = make_buffer(fragments_per_chunk=2)
    assert [add(buffer, 0, 0, version=1), add(buffer, 1)] == [["early", "duplicate"], ["early"]]
    buffer.set_version("s", 0)
    assert buffer.metrics()["replay/waiting_fragments"] == 2
    buffer.set_version("s", 1)
    assert numbers(buffer.fetch(1, timeout_s=0)) == [[0, 1]]


def test_a_late_fragment_does_not_displace_its_successors():
    buffer = make_buffer(session="a", fragments_per_chunk=1)
    assert add(buffer, 1, session="b") == ["early"]
    assert add(buffer, 0, session="a") == ["early"]  # it is late: appended now, the other fragment would be a duplicate
    buffer.set_version("b", 0)
    assert numbers(buffer.fetch(1)) == [[1]]


def test_unread_leases_expire_and_read_leases_are_extended(clock):
    buffer = make_buffer(max_reuse=1, lease_ttl_s=10, clock=clock)
    fill(buffer, 2)
    busy, idle = buffer.fetch(1), buffer.fetch(1)
    clock.now += 6
    buffer.read(busy)
    clock.now += 6
    assert [len(buffer.read(busy, rank, 2)) for rank in (0, 1)] == [1, 0]
    with pytest.raises(LeaseExpiredError, match="expired after lease_ttl_s=10"):
        buffer.read(idle)
    metrics = buffer.metrics()
    assert (metrics["replay/expired_leases"], metrics["replay/leases"], metrics["replay/fragments"]) == (1, 1, 1)
    with pytest.raises(ConfigurationError, match="rank=2 must be between 0 and 1"):
        buffer.read(busy, 2, 2)


def test_a_lease_survives_pickling():
    buffer = make_buffer(fragments_per_chunk=2)
    add(buffer, 0, 1)
    lease = buffer.fetch(1)
    sent = pickle.loads(pickle.dumps(lease))
    assert numbers(sent) == numbers(lease)
    assert np.array_equal(sent.stack()["obs"], lease.stack()["obs"])


def test_a_limiter_rejects_fragments_until_chunks_are_fetched():
    buffer = make_buffer(limiter=at_most_ahead(2), max_reuse=1)
    fill(buffer, 2)
    refused = buffer.add(payload(0), meta("late"))
    assert (refused.status, refused.reason) == ("full", "the limiter requires more chunks to be fetched first")
    buffer.fetch(1)
    assert buffer.add(payload(0), meta("late")).status == "accepted"


def test_a_limiter_blocks_fetches_below_the_minimum_size():
    buffer = make_buffer(limiter=RateLimiter(1.0, min_size_to_sample=3, error_buffer=1.0))
    fill(buffer, 2)
    with pytest.raises(ReplayTimeoutError, match=r"fetch\(1\): .* the limiter requires more inserts first"):
        buffer.fetch(1, timeout_s=0)
    fill(buffer, 1, start=2)
    assert len(buffer.fetch(1, timeout_s=0).chunks) == 1
    with pytest.raises(ConfigurationError, match=r"sample\(3\) can never succeed"):
        buffer.fetch(3, timeout_s=5)


def test_a_limiter_counts_the_chunks_of_early_fragments():
    buffer = make_buffer(limiter=at_most_ahead(3))
    fill(buffer, 6, version=1)
    buffer.set_version("s", 1)
    assert len(buffer.fetch(6, timeout_s=0).chunks) == 6


def test_a_fetch_that_is_not_strict_leases_as_many_chunks_as_the_limiter_permits():
    buffer = make_buffer(limiter=RateLimiter(0.5, error_buffer=2.0))
    fill(buffer, 3)
    buffer.fetch(2, timeout_s=0)
    assert len(buffer.fetch(3, timeout_s=0, strict=False).chunks) == 1
    with pytest.raises(ReplayTimeoutError, match="limiter"):
        buffer.fetch(3, timeout_s=0, strict=False)


def test_the_limiter_does_not_count_exhausted_chunks():
    buffer = make_buffer(limiter=RateLimiter(1.0, min_size_to_sample=2, error_buffer=2.0), max_reuse=1)
    fill(buffer, 2)
    buffer.fetch(1)
    with pytest.raises(ReplayTimeoutError):
        buffer.fetch(1, timeout_s=0)
    fill(buffer, 1, start=2)
    buffer.fetch(1, timeout_s=0)


def test_a_limiter_admits_fragments_for_a_waiting_reader():
    buffer = make_buffer(limiter=at_most_ahead(3), max_staleness=0)
    fill(buffer, 3)
    buffer.set_version("s", 1)
    with ThreadPoolExecutor(1) as threads:
        reader = threads.submit(buffer.fetch, 2, timeout_s=10)
        while not buffer.metrics()["replay/waiting_readers"]:
            pass
        for worker in "ab":
            assert buffer.add(payload(0), meta(worker, version=1)).status == "accepted"
        assert len(reader.result().chunks) == 2


def test_new_chunks_get_the_highest_priority_despite_a_rejected_update():
    buffer = make_buffer(sampler="prioritized", alpha=1.0, beta=1.0)
    fill(buffer, 2)
    with pytest.raises(ConfigurationError, match=r"\(1,\) ids and \(2,\) priorities"):
        buffer.update_priorities([0], [1.0, 2.0])
    assert buffer.update_priorities([0, 1, 7], [0.0, 50.0, 1.0]) == 2
    fill(buffer, 1, start=2)
    by_number = {numbers_of[0]: chunk.weight for numbers_of, chunk in weights_of(buffer.fetch(3))}
    assert by_number[1] == by_number[2]
    assert by_number[0] == 1.0


def weights_of(lease):
    return zip(numbers(lease), lease.chunks, strict=True)


def test_the_longest_idle_partial_chunk_is_evicted_first():
    buffer = make_buffer(fragments_per_chunk=2, max_bytes=3 * FRAGMENT_BYTES)
    finished = []
    for worker, fid in (("a", 0), ("b", 0), ("c", 0), ("d", 0), ("b", 1), ("d", 1)):  # d leaves no room for a, b for c
        assert add(buffer, fid, worker=worker) == ["accepted"]
        if fid == 1:
            lease = buffer.fetch(1, timeout_s=0)
            finished += [(lease.chunks[0].fragments[0].meta.worker, *numbers(lease)[0])]
            buffer.release(lease)
    assert finished == [("b", 0, 1), ("d", 0, 1)]
    metrics = buffer.metrics()
    assert (metrics["replay/dropped/evicted"], metrics["replay/partial_chunks"]) == (2, 0)


def test_an_early_fragment_counts_as_silent_from_its_acceptance():
    buffer = make_buffer(fragments_per_chunk=3, max_bytes=4 * FRAGMENT_BYTES)
    add(buffer, 0, worker="a")
    add(buffer, 1, worker="a", version=1)
    add(buffer, 0, worker="b")
    buffer.set_version("s", 1)  # accepts the second fragment of a, so b is silent longest
    add(buffer, 0, 1, worker="c")
    assert add(buffer, 2, worker="a") == ["accepted"]
    assert numbers(buffer.fetch(1, timeout_s=0)) == [[0, 1, 2]]
    assert buffer.metrics()["replay/dropped/evicted"] == 3


def test_a_leased_chunk_is_not_evicted():
    buffer = make_buffer(max_bytes=2 * FRAGMENT_BYTES)
    fill(buffer, 2)
    leases = [buffer.fetch(1) for _ in range(20)]
    on_first = [lease for lease in leases if numbers(lease) == [[0]]]
    for lease in leases:
        if lease not in on_first[:1]:
            buffer.release(lease)
    fill(buffer, 1, start=2)
    assert sorted(numbers(buffer.fetch(2, timeout_s=0))) == [[0], [2]]


def test_a_failed_memory_allocation_reports_a_full_buffer():
    buffer, before = make_buffer(), resource.getrlimit(resource.RLIMIT_AS)
    used_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used_bytes + (256 << 20), before[1]))
    try:
        result = buffer.add({"obs": np.broadcast_to(np.float32(0), 1 << 28)}, meta())
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert result.status == "full"
    assert result.reason.startswith(f"no memory for {1 << 30} bytes")


def test_a_config_describes_a_buffer():
    config = ReplayConfig(
        kind="fragment",
        capacity=7,
        max_reuse=2,
        fragment={"fragments_per_chunk": 2, "session_policy": "resume"},
        limiter={"samples_per_insert": 2.0},
    )
    buffer = FragmentBuffer.from_config(config, seed=4)
    assert buffer.rules == FragmentRules(max_chunks=7, max_reuse=2, fragments_per_chunk=2, session_policy="resume")
    batch = [(payload(n), meta(fid=n, session="", version=-1)) for n in range(8)]
    assert "limiter" in buffer.add_batch(batch)[-1].reason
    with pytest.raises(
        ConfigurationError, match=r"replay\.kind=uniform is not a fragment buffer; set replay.kind=fragment"
    ):
        FragmentBuffer.from_config(ReplayConfig())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_chunks": 0}, "replay.max_chunks=0: expected an integer >= 1"),
        ({"fragments_per_chunk": 1.5}, "replay.fragments_per_chunk=1.5: expected an integer"),
        ({"max_staleness": -1}, "replay.max_staleness=-1: expected an integer >= 0"),
        ({"lease_ttl_s": float("nan")}, "replay.lease_ttl_s=nan: expected a number >= 0"),
        ({"max_chunks": True}, "replay.max_chunks=True"),
        ({"session_policy": "resum"}, "'resum' is unknown; did you mean 'resume'"),
        ({"sampler": "prioritised"}, "replay.sampler='prioritised' is unknown; did you mean 'prioritized'"),
    ],
)
def test_out_of_range_rules_are_rejected_by_name(settings, message):
    with pytest.raises(ConfigurationError, match=message):
        FragmentBuffer(FragmentRules(**{"max_chunks": 1, **settings}))


def test_the_example_in_the_docstring_holds():
    results = doctest.testmod(buffer_module)
    assert (results.failed, results.attempted > 5) == (0, True)
