"""The queues of fragment results, with and without a fragment buffer."""

import numpy as np
import pytest
import torch

from trieye.replay.fragments import FragmentRules
from trieye.snapshot.decode import decode
from trieye.snapshot.encode import encode
from trieye.training.exploring.explorer import FragmentResult
from trieye.training.exploring.inbox import Fragments, Reports

CPU = torch.device("cpu")


def payload_of(number, steps=2):
    values = np.full((steps, 1), number, np.float32)
    return {"rows/obs": values, "rows/reward": values, "valid": np.ones((steps, 1), bool), "last/obs": values[0]}


def report_of(explorer, number, version, **changed):
    report = FragmentResult(explorer, number, version, version, 2, {}, [], payload_of(10 * explorer + number), 0, 0.1)
    for name, value in changed.items():
        setattr(report, name, value)
    return report


def buffered(max_staleness=None, *, session="run", min_capacity=1, **rules):
    defaults = {"max_chunks": 1 << 20, "max_reuse": 1, "sampler": "oldest", "session_policy": "resume"}
    rules = FragmentRules(**{**defaults, "max_staleness": max_staleness, **rules})
    return Fragments(rules, session, CPU, seed=0, min_capacity=min_capacity)


def queue(max_staleness=None):
    return Reports(1, CPU, max_staleness=max_staleness)


def keys_of(reports):
    return [(report.explorer, report.number) for report in reports]


@pytest.mark.parametrize("make", [queue, buffered])
def test_results_with_the_oldest_weights_are_taken_first_with_their_rows(make):
    inbox = make()
    inbox.set_version(3)
    for explorer, number, version in ((1, 0, 2), (0, 0, 3), (1, 1, 1), (0, 1, 1)):
        assert inbox.put(report_of(explorer, number, version), 0) in {"", "gap"}
    reports, rows = inbox.take(3)
    assert keys_of(reports) == [(0, 1), (1, 0), (1, 1)]
    assert rows.arrays["obs"][0].tolist() == [1.0, 10.0, 11.0]
    assert inbox.metrics()["replay/staleness_max"] == 2
    assert inbox.counts() == {0: 1}


def test_results_that_become_too_stale_are_dropped_and_counted():
    inbox = queue(max_staleness=1)
    inbox.set_version(1)
    assert inbox.put(report_of(0, 0, 0), 0) == ""
    assert inbox.put(report_of(0, 1, 1), 0) == ""
    assert keys_of(inbox.set_version(2)) == [(0, 0)]
    assert inbox.put(report_of(0, 2, 0), 0) == "stale"
    assert inbox.metrics()["replay/dropped/stale"] == 2
    assert inbox.versions() == [1]


def test_rows_that_do_not_match_the_earlier_ones_are_an_error_with_the_key():
    inbox = queue()
    inbox.put(report_of(0, 0, 0), 0)
    with pytest.raises(ValueError, match=r"does not match the earlier ones.*rows/obs.*float32\[3, 1\]"):
        inbox.put(report_of(0, 1, 0, payload=payload_of(1, steps=3)), 0)


@pytest.mark.parametrize("saved_by", [queue, buffered])
@pytest.mark.parametrize("make", [queue, buffered])
def test_a_queue_restores_its_results_and_drops_those_in_the_buffer_of_another_kind(saved_by, make):
    before, after = saved_by(), make()
    before.set_version(1)
    for number in range(3):
        before.put(report_of(number % 2, number // 2, number // 2), 0)
    after.load_state_dict(decode(encode(before.state_dict())))
    after.set_version(2)
    if (saved_by, make) == (buffered, queue):
        assert after.metrics()["replay/dropped/damaged"] == 3
        return
    assert sorted(after.versions()) == sorted(before.versions())
    reports, rows = after.take(3)
    assert keys_of(reports) == [(0, 0), (0, 1), (1, 0)]
    assert rows.arrays["obs"][1].tolist() == [0.0, 1.0, 10.0]
    assert after.counts() == {}


def test_evicted_fragments_wait_no_longer_and_are_returned_once_without_rows():
    inbox = buffered(max_chunks=2)
    inbox.set_version(0)
    for number in range(4):
        assert inbox.put(report_of(0, number, 0), 0) == ""
    assert (inbox.counts(), inbox.versions()) == ({0: 2}, [0, 0])
    restored = buffered(max_chunks=2)
    restored.load_state_dict(decode(encode(inbox.state_dict())))
    restored.set_version(0)
    assert restored.counts() == {0: 2}
    reports, rows = inbox.take(2)
    assert keys_of(reports) == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert rows.arrays["obs"][0].tolist() == [2.0, 3.0]
    assert inbox.set_version(1) == []


def test_fragments_of_another_run_are_dropped_with_their_results():
    before, after = (buffered(session=name, session_policy="discard") for name in ("parent", "fork"))
    before.set_version(0)
    before.put(report_of(0, 0, 0), 0)
    after.load_state_dict(decode(encode(before.state_dict())))
    assert keys_of(after.set_version(0)) == [(0, 0)]
    assert after.counts() == {}


def test_too_little_memory_for_one_fragment_of_each_explorer_is_an_error():
    max_bytes = 3 * sum(array.nbytes for array in payload_of(0).values())
    inbox = buffered(max_bytes=max_bytes, min_capacity=4)
    inbox.set_version(0)
    with pytest.raises(ValueError, match=rf"replay.fragment.max_bytes={max_bytes}: 3 fragments fit.* needs up to 4"):
        for explorer in range(4):
            inbox.put(report_of(explorer, 0, 0), 0)
