import io
import threading
from typing import ClassVar

import pyarrow.parquet as pq
import pytest
from history_run import Written, drain, exact, point, points, random_items, seeded

from trieye.exceptions import SerializationError
from trieye.history.segments import SegmentFile
from trieye.stats.operations import LogImage, LogParams


@pytest.fixture
def written(tmp_path, monkeypatch):
    monkeypatch.setattr("trieye.history.segments.GROUP_ITEMS", 64)
    monkeypatch.setattr("trieye.history.history.CHUNK_ITEMS", 64)
    made = Written(tmp_path)
    yield made
    made.close()


def test_a_segment_is_plain_parquet(written):
    written.append([LogParams({"lr": "0.1"}), *points(1, 4)])
    written.supersede(2, 3)
    written.roll()
    table = pq.read_table(written.directory / "points-0-4.parquet")
    assert table.drop_columns(["payload"]).to_pylist()[:2] == [
        dict.fromkeys(["metric", "value", "step", "wall_time", "count", "log_to"]) | {"index": 0, "kind": "LogParams"},
        {
            "index": 1,
            "kind": "point",
            "metric": "loss",
            "value": 0.1,
            "step": 1,
            "wall_time": 1.8e9 + 1,
            "count": 2,
            "log_to": '["mlflow","tensorboard"]',
        },
    ]
    assert table["payload"].is_valid().to_pylist() == [True, False, False, False]
    assert table["index"].to_pylist() == [0, 1, 2, 3], "superseded items are stored, too"
    with (written.directory / "points-0-4.parquet").open("rb") as file:
        assert SegmentFile(file, (0, 4)).about.superseded == [(2, 3)]


def test_images_limit_the_size_of_chunks_and_row_groups(written, monkeypatch):
    monkeypatch.setattr("trieye.history.segments.GROUP_BYTES", 1000)
    monkeypatch.setattr("trieye.history.history.CHUNK_BYTES", 1000)
    written.append([LogImage(f"i{n}", n, 1.0, 1, 1, 1, bytes(600)) for n in range(10)])
    assert [chunk[:2] for chunk in written.history.pending()] == [(n, n + 1) for n in range(10)]
    written.commit().roll()
    assert pq.read_metadata(written.path_of(0)).num_row_groups == 10


def test_a_renamed_file_is_rejected(written):
    written.segment(points(0, 10))
    with written.path_of(0).open("rb") as file, pytest.raises(SerializationError, match="does not match the file name"):
        SegmentFile(file, (10, 20))


def test_only_the_calling_thread_reads_a_file(written):
    # a thread of pyarrow that waits for the interpreter's lock when the process exits would abort it
    class WatchedFile(io.FileIO):
        threads: ClassVar[set[int]] = set()

        def read(self, *arguments):
            self.threads.add(threading.get_ident())
            return super().read(*arguments)

    written.segment(points(0, 10))
    with WatchedFile(written.path_of(0)) as file:
        SegmentFile(file, (0, 10)).read(0)
    assert WatchedFile.threads == {threading.get_ident()}


def test_more_metric_names_than_a_parquet_dictionary_holds_round_trip(written, monkeypatch):
    monkeypatch.setattr("trieye.history.segments.GROUP_ITEMS", 65_536)
    monkeypatch.setattr("trieye.history.history.CHUNK_ITEMS", 10_000)
    items = [point(number, metric=f"{number:0200d}") for number in range(9000)]
    assert drain(written.segment(items).reopen().history) == items


def damaged_reads(written, damage):
    """Damage the newest file in each way; yield the items that are read and the number of lost ones."""
    path = written.path_of(-1)
    intact = path.read_bytes()
    for changed in damage(intact):
        path.write_bytes(changed)
        written.journal.close()
        written.open()
        received = drain(written.history)
        yield received, written.history.num_lost
    path.write_bytes(intact)


def only_omits(received, items):
    """Return True if `received` only omits items, and changes and reorders none."""
    expected = iter(exact(items))
    return all(one in expected for one in exact(received))


def flips(stride, seed):
    def damage(whole):
        rng = seeded(seed)
        for position in range(rng.randrange(stride), len(whole), stride):
            yield whole[:position] + bytes([whole[position] ^ 1 << rng.randrange(8)]) + whole[position + 1 :]

    return damage


def cuts(stride):
    def damage(whole):
        yield from (whole[:end] for end in [*range(0, len(whole) - 20, stride), *range(len(whole) - 20, len(whole))])

    return damage


@pytest.mark.parametrize("damage", [flips(701, 1), cuts(1201)], ids=["flipped bits", "cuts"])
def test_a_damaged_file_loses_only_damaged_items_and_yields_no_wrong_values(written, damage):
    rng = seeded(5)
    written.segment(random_items(rng, 100))
    written.append(random_items(rng, 300)).commit().roll()
    written.append(random_items(rng, 10)).commit()
    before, after = written.items[:100], written.items[-10:]
    num_cases = num_partial = 0
    for received, num_lost in damaged_reads(written, damage):
        assert exact(received[:100]) == exact(before)
        assert exact(received[-10:]) == exact(after)
        assert len(received) + num_lost == len(written.items)
        assert only_omits(received, written.items)
        num_cases += 1
        num_partial += 0 < num_lost < 300
    assert num_cases > 20
    if damage.__qualname__.startswith("flips"):
        assert num_partial > num_cases / 4, "intact row groups of a damaged file are readable"


def test_damage_is_reported_once_with_the_file_name(written, caplog):
    written.segment(points(0, 500))
    path = written.path_of(0)
    content = bytearray(path.read_bytes())
    content[200:-1500:50] = bytes(len(range(200, len(content) - 1500, 50)))
    path.write_bytes(content)
    written.reopen()
    for _ in range(3):
        drain(written.history)
    assert caplog.text.count("points-0-500.parquet") == 1
    lost = written.history.num_lost
    assert 64 <= lost <= 500
    assert len(drain(written.history)) == 500 - lost


def test_a_missing_file_counts_as_lost_and_its_indices_stay_reserved(written, caplog):
    written.segment(points(0, 10)).segment(points(10, 20)).append(points(20, 25)).commit()
    written.reopen()
    written.path_of(1).unlink()
    assert drain(written.history) == [*points(0, 10), *points(20, 25)]
    assert written.history.num_lost == 10
    written.journal.close()
    written.open()
    assert drain(written.history) == [*points(0, 10), *points(20, 25)]
    assert (written.history.num_lost, written.history.end) == (10, 25)
    assert "points-10-20.parquet" in caplog.text
