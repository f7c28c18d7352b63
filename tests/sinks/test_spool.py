from pathlib import Path

import pytest

from trieye.sinks.operations import LogArtifact, LogParams, SetTags, WritePoints, to_line
from trieye.sinks.spool import Spool
from trieye.stats.point import Point

OPERATIONS = [
    WritePoints((Point("loss", 0.1, 2**62, 1.7e9, ("mlflow",), 3), Point("é\ud800\n", -1e308, -1, 0.0))),
    LogParams({"lr": "0.1"}),
    SetTags({"a": "b\n"}),
    LogArtifact(Path("/tmp/x y"), "sub"),
    LogArtifact(Path("/tmp/x"), None),
]
WEIGHT = 6


def drained(spool):
    operations = []
    while (found := spool.peek()) is not None:
        operations.append(found[0])
        spool.pop(*found)
    return operations


@pytest.fixture
def path(tmp_path):
    return tmp_path / "spool" / "mlflow.jsonl"


def test_operations_come_back_as_they_were_and_in_order(path):
    Spool(path).append(OPERATIONS)
    spool = Spool(path)
    assert spool.load() == spool.weight == WEIGHT
    assert drained(spool) == OPERATIONS


def test_the_file_goes_when_everything_was_sent(path):
    Spool(path).append(OPERATIONS)
    spool = Spool(path)
    spool.load()
    drained(spool)
    assert not path.exists()
    assert spool.weight == 0
    spool.append(OPERATIONS[:1])
    assert drained(spool) == OPERATIONS[:1]


def test_a_file_cut_at_any_byte_keeps_every_whole_line(path):
    whole = b"".join(map(to_line, OPERATIONS))
    ends = [sum(len(to_line(op)) for op in OPERATIONS[:n]) for n in range(len(OPERATIONS) + 1)]
    path.parent.mkdir()
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        spool = Spool(path)
        spool.load()
        num_whole = sum(end <= size for end in ends) - 1
        spool.append([OPERATIONS[1]])  # what is added later is not glued to a torn line
        assert drained(spool) == [*OPERATIONS[:num_whole], OPERATIONS[1]], size


@pytest.mark.parametrize(
    "damage", [b"{\n", b"\n", b"\xff\xfe\n", b'{"points": 3}\n', b'{"points": [[1]]}\n', b"[]\n", b"3\n"]
)
def test_a_damaged_line_costs_itself_only(path, damage, caplog):
    path.parent.mkdir()
    path.write_bytes(to_line(OPERATIONS[0]) + damage + to_line(OPERATIONS[1]))
    spool = Spool(path)
    assert spool.load() == 3
    assert drained(spool) == OPERATIONS[:2]
    assert "damaged line" in caplog.text
    assert not path.exists()


def test_rewrite_drops_what_was_sent_and_adds_at_both_ends(path):
    spool = Spool(path)
    spool.append(OPERATIONS[:3])
    spool.pop(*spool.peek())
    spool.rewrite(before=[OPERATIONS[3]], after=[OPERATIONS[4]])
    assert spool.weight == 4
    assert Spool(path).load() == 4
    assert drained(spool) == [OPERATIONS[3], OPERATIONS[1], OPERATIONS[2], OPERATIONS[4]]


def test_a_file_that_vanishes_is_told_and_can_be_given_up(path):
    spool = Spool(path)
    spool.append(OPERATIONS)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        spool.peek()
    assert spool.forget() == WEIGHT
    spool.append(OPERATIONS[:2])
    assert drained(spool) == OPERATIONS[:2]


def test_a_file_that_is_cut_from_outside_is_told(path):
    spool = Spool(path)
    spool.append(OPERATIONS)
    path.write_bytes(b"")
    with pytest.raises(OSError, match="cut off"):
        spool.peek()
    assert spool.forget() == WEIGHT


def test_rewrite_after_nothing_was_sent_makes_a_new_file(path):
    Spool(path).rewrite(before=[], after=OPERATIONS)
    spool = Spool(path)
    assert spool.load() == WEIGHT
    assert list(path.parent.iterdir()) == [path]


def test_a_directory_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "spool").write_text("a file")
    with pytest.raises(OSError, match="spool"):
        Spool(tmp_path / "spool" / "mlflow.jsonl").append(OPERATIONS)
