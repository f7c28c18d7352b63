import random

import pytest

from trieye.sinks.backlog import Backlog
from trieye.sinks.base import MAX_POINTS_PER_WRITE
from trieye.sinks.operations import LogParams, WritePoints, split_points
from trieye.stats.point import Point


def points(first, num):
    return [Point("m", 0.5, step, 1.7e9) for step in range(first, first + num)]


def steps_of(operation):
    return [point.step for point in operation.points]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "sink.jsonl"


def test_consecutive_points_are_joined_up_to_one_write(path):
    backlog = Backlog(path, 10**6)
    for step in range(1500):
        backlog.put([WritePoints(tuple(points(step, 1)))])
    assert steps_of(backlog.peek()) == list(range(MAX_POINTS_PER_WRITE))
    backlog.pop()
    assert steps_of(backlog.peek()) == list(range(1000, 1500))


def test_points_are_not_joined_across_another_operation(path):
    backlog = Backlog(path, 10**6)
    params = LogParams({"a": "1"})
    backlog.put([WritePoints(tuple(points(0, 1))), params, WritePoints(tuple(points(1, 1)))])
    taken = []
    while (operation := backlog.peek()) is not None:
        taken.append(operation)
        backlog.pop()
    assert [type(operation) for operation in taken] == [WritePoints, LogParams, WritePoints]
    assert backlog.weight == 0
    assert backlog.arrived == backlog.finished == 3


def test_the_head_stays_until_it_is_done(path):
    backlog = Backlog(path, 10**6)
    backlog.put([WritePoints(tuple(points(0, 2)))])
    first = backlog.peek()
    backlog.put([WritePoints(tuple(points(2, 2)))])
    assert backlog.peek() is first
    assert backlog.weight == 4


def test_order_is_kept_however_memory_spills_and_attempts_end(path):
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    backlog, next_step, taken = Backlog(path, 50), 0, []
    for _ in range(600):
        choice = chance.random()
        if choice < 0.5:
            num = chance.randint(1, 30)
            backlog.put(list(split_points(points(next_step, num))))
            next_step += num
        elif choice < 0.9:
            operation = backlog.peek()
            if operation is not None and chance.random() < 0.8:  # else it failed
                taken += steps_of(operation)
                backlog.pop()
        else:
            backlog.save()
            assert backlog.peek() is None
            backlog = Backlog(path, 50)
            backlog.load()
        assert backlog.weight == next_step - len(taken), seed
    while (operation := backlog.peek()) is not None:
        taken += steps_of(operation)
        backlog.pop()
    assert taken == list(range(next_step)), seed
    assert not path.exists()


def test_memory_stays_bounded(path):
    backlog = Backlog(path, 100)
    for step in range(0, 10_000, 10):
        backlog.put(list(split_points(points(step, 10))))
    assert backlog._memory_weight <= 100
    assert backlog.weight == 10_000
    assert backlog.lost == 0


def test_a_file_that_vanishes_is_counted_as_lost(path):
    backlog = Backlog(path, 10)
    backlog.put(list(split_points(points(0, 30))))
    path.unlink()
    backlog.put(list(split_points(points(30, 5))))
    assert steps_of(backlog.peek()) == list(range(30, 35))
    assert backlog.lost == 30
    assert backlog.weight == 5


def test_what_can_be_kept_nowhere_is_counted(tmp_path, caplog):
    (tmp_path / "spool").write_text("not a directory")
    backlog = Backlog(tmp_path / "spool" / "sink.jsonl", 10)
    for step in range(0, 100, 10):
        backlog.put(list(split_points(points(step, 10))))
    assert 0 < backlog.lost == 100 - backlog.weight
    backlog.save()
    assert backlog.lost == 100
    assert backlog.weight == 0
    assert caplog.text.count("are lost") == 1
