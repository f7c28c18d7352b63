import contextlib
import shutil

import msgspec
import pytest

from trieye.history.history import read_history
from trieye.journal.file import create, wal_path
from trieye.journal.journal import Journal, JournalChunk, Snapshot
from trieye.journal.scan import inspect
from trieye.journal.watermark import Expected, read_watermark, watermark_path

STARTED = Expected(run_id="mine", is_begun=True)


@pytest.fixture
def killed(tmp_path):
    """Return a function that writes the journal of a killed run: most data in the log, and a complete watermark."""

    def make(run_id, count=30, *, attempts=1):
        path, scratch = tmp_path / run_id / "journal.db", tmp_path / "scratch" / "journal.db"
        path.parent.mkdir()
        for attempt in range(attempts):
            journal = Journal(scratch)
            begin(journal, run_id, attempt)
            for number in range(count):
                journal.append("events", f"{run_id} {number} ".encode() + bytes(2000), at=1.0)
            journal.set_cursor("tensorboard", 10 * (attempt + 1), "place")
            shutil.copytree(scratch.parent, path.parent, dirs_exist_ok=True)
            journal.close()
        shutil.rmtree(scratch.parent)
        return path

    return make


def begin(journal, run_id, attempt=0):
    mark = msgspec.msgpack.encode({"number": attempt + 1, "run_id": run_id})
    journal.commit(Snapshot(journal.last_pos, 0, 0.0, b"state"), keep_after=0, meta={"attempt": mark})


def payloads(journal):
    return [record.payload.decode() for record in journal.records(0)]


def opened(path, expected=None):
    """Open a damaged journal; after its losses are counted, it opens as intact."""
    assert inspect(path, expected).damage if path.exists() else True
    journal = Journal(path, expected=expected)
    report, records, last_pos = (list(journal.damage), journal.num_lost), payloads(journal), journal.last_pos
    journal.forget_repair()
    journal.close()
    assert inspect(path).damage == []
    journal = Journal(path)
    assert (journal.damage, journal.num_lost, payloads(journal), journal.last_pos) == ([], 0, records, last_pos)
    journal.damage, journal.num_lost = report
    return journal


@pytest.mark.parametrize("missing", [("-wal",), ("-wal", "-shm"), ("", "-wal", "-shm")])
def test_a_missing_wal_is_reported_and_new_positions_follow_the_lost_ones(killed, missing):
    path = killed("mine")
    for suffix in missing:
        path.with_name(path.name + suffix).unlink()
    with contextlib.closing(opened(path)) as journal:
        assert journal.num_lost == 30
        assert "30 entries (positions 1-30)" in journal.damage[0]
        assert journal.cursor("tensorboard") == (10, None), "a sink continues behind the points that it has"
        assert journal.append("events", b"new", at=2.0) == 31


def test_a_watermark_with_the_name_of_earlier_versions_is_used_and_renamed_when_the_journal_is_opened(killed):
    path, other = killed("mine"), killed("other", 40)
    earlier, before = path.with_name("journal-witness.jsonl"), read_watermark(path)
    shutil.copyfile(watermark_path(other), earlier)
    assert inspect(path).damage == [], "the current name takes precedence"
    shutil.copyfile(watermark_path(path), earlier)
    watermark_path(path).unlink()
    assert read_watermark(path) == before
    assert read_history(path.parent).num_rows == 0, "readers use it, too"
    wal_path(path).unlink()
    assert inspect(path).damage
    assert earlier.exists(), "a check changes nothing"
    with contextlib.closing(opened(path)) as journal:
        assert journal.num_lost == 30
    assert {file.name for file in path.parent.glob("*.jsonl")} == {watermark_path(path).name}


def test_a_watermark_with_both_names_is_kept_under_the_current_one(killed):
    path, other = killed("mine"), killed("other", 40)
    before = read_watermark(path)
    shutil.copyfile(watermark_path(other), path.with_name("journal-witness.jsonl"))
    Journal(path).close()
    assert {file.name for file in path.parent.glob("*.jsonl")} == {watermark_path(path).name}
    assert read_watermark(path) == before


@pytest.mark.parametrize("names", [("journal.db",), ("journal.db-wal",), ("journal.db", "journal.db-wal")])
@pytest.mark.parametrize("attempts", [1, 2])
def test_entries_of_another_runs_journal_are_ignored(killed, names, attempts):
    path, other = killed("mine", attempts=attempts), killed("other", 40, attempts=attempts)
    for name in names:
        shutil.copyfile(other.with_name(name), path.with_name(name))
    whole = {"journal.db": attempts == 1, "journal.db-wal": False}  # at first the log has all pages
    is_whole = all(whole.get(name) for name in names)
    with contextlib.closing(Journal(path) if is_whole else opened(path)) as journal:
        assert all(payload.startswith("mine") for payload in payloads(journal))
        assert bool(journal.damage) is not is_whole
        assert journal.last_pos == 30 * attempts
        if names == ("journal.db-wal",):  # the file itself is intact
            assert len(payloads(journal)) == 30 * (attempts - 1)
        if journal.damage:
            assert list(path.parent.glob("journal.db.damaged-1*")), "quarantined"


def test_a_foreign_journal_with_its_watermark_is_detected_by_its_run_id(killed):
    path, other = killed("mine"), killed("other")
    for file in other.parent.iterdir():
        shutil.copyfile(file, path.with_name(file.name))
    with contextlib.closing(opened(path, STARTED)) as journal:
        assert "the journal of another run (other" in journal.damage[0]
        assert (payloads(journal), journal.meta("attempt")) == ([], None)


def test_a_started_run_detects_a_foreign_or_missing_journal_without_a_watermark(killed, tmp_path):
    path = killed("mine")
    watermark_path(path).unlink()
    wal_path(path).unlink()
    with contextlib.closing(opened(path, STARTED)) as journal:
        assert journal.num_lost == 1
        assert "it has no attempt of this run" in journal.damage[0]
    for file in path.parent.glob("journal*"):
        file.unlink()
    with contextlib.closing(Journal(path, expected=STARTED)) as journal:
        assert journal.num_lost == 1
        assert "it is missing" in journal.damage[0]
    with contextlib.closing(Journal(tmp_path / "new" / "journal.db", expected=Expected(run_id="new"))) as journal:
        assert journal.damage == []


def test_opening_a_journal_of_an_earlier_version_adds_a_watermark(tmp_path):
    path = tmp_path / "journal.db"
    create(path, "")
    with contextlib.closing(Journal(path)) as journal:
        begin(journal, "mine")
        journal.append("events", b"old", at=0.0)
    watermark_path(path).unlink()
    before = path.read_bytes()
    with contextlib.closing(Journal(path, expected=STARTED)) as journal:
        assert (journal.damage, payloads(journal)) == ([], ["old"])
    assert path.read_bytes() == before
    assert read_watermark(path).pos == 1
    assert inspect(path, STARTED).damage == []


def test_a_damaged_watermark_is_ignored_and_rewritten(killed):
    path = killed("mine")
    whole = watermark_path(path).read_bytes()
    for damage in (
        b"[1",
        b"\n".join(line[:-1] for line in whole.split(b"\n")),
        whole.replace(b"cursors", b"c\xf5rsors"),
        whole.replace(b"cursors", b"cursers"),
    ):
        watermark_path(path).write_bytes(damage)
        assert read_watermark(path).journal is None
        with contextlib.closing(Journal(path, expected=STARTED)) as journal:
            assert journal.damage == []
        assert read_watermark(path).pos == 30


def test_a_truncated_last_line_of_a_watermark_is_ignored(killed):
    path = killed("mine")
    with contextlib.closing(Journal(path)) as journal:
        journal.append("events", b"", at=1.0)
        journal.set_cursor("tensorboard", 11, None)
    whole = watermark_path(path).read_bytes()
    assert read_watermark(path).pos == 31
    for size in range(whole.rindex(b"\n"), len(whole)):
        watermark_path(path).write_bytes(whole[:size])
        assert read_watermark(path).pos == 30
        assert inspect(path).damage == []


def test_a_watermark_stays_small(tmp_path):
    path = tmp_path / "journal.db"
    with contextlib.closing(Journal(path)) as journal:
        sizes = set()
        for index in range(1000):
            journal.set_cursor("tensorboard", index, "place")
            sizes.add(watermark_path(path).stat().st_size)
    assert 10_000 < max(sizes) < 80_000
    assert read_watermark(path).cursors == {"tensorboard": (999, "place")}


def test_a_linked_watermark_is_not_followed_and_the_journal_still_works(killed, tmp_path):
    path = killed("mine")
    (tmp_path / "elsewhere").write_bytes(watermark_path(path).read_bytes())
    watermark_path(path).unlink()
    watermark_path(path).symlink_to(tmp_path / "elsewhere")
    before = (tmp_path / "elsewhere").read_bytes()
    with contextlib.closing(Journal(path)) as journal:
        journal.append("events", b"", at=1.0)
        journal.set_cursor("tensorboard", 11, None)
    assert (tmp_path / "elsewhere").read_bytes() == before
    with contextlib.closing(Journal(path)) as journal:
        assert (journal.damage, journal.cursor("tensorboard")) == ([], (11, None))


def test_only_a_wal_truncated_before_its_watermark_is_damage(killed):
    path = killed("mine")
    with contextlib.closing(Journal(path)) as journal:
        journal.append("events", b"", at=1.0)
        journal.set_cursor("tensorboard", 11, None)
        whole = wal_path(path).read_bytes()
        for _ in range(3):
            journal.append("events", b"", at=1.0)
        longer = wal_path(path).read_bytes()
        files = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    for log, is_whole in ((longer, True), (whole, True), (whole[: len(whole) // 2], False), (b"", False)):
        for name, data in {**files, "journal.db-wal": log}.items():
            path.with_name(name).write_bytes(data)
        assert (inspect(path).damage == []) is is_whole


def test_a_rewind_lost_with_the_wal_still_supersedes_stored_points(tmp_path):
    path, copy = tmp_path / "journal.db", tmp_path / "copy" / "journal.db"
    copy.parent.mkdir()
    with contextlib.closing(Journal(path)) as journal:
        journal.append("events", b"dead", at=1.0)
        journal.commit(Snapshot(1, 10, 1.0, b""), chunks=[JournalChunk(0, 10, b"items")], keep_after=0)
    with contextlib.closing(Journal(path)) as journal:
        journal.append("rewind", b"", at=2.0)
        journal.commit(
            Snapshot(2, 20, 2.0, b""), chunks=[JournalChunk(10, 20, b"items")], keep_after=0, superseded=[(4, 15)]
        )
        for name in (path.name, watermark_path(path).name):
            shutil.copyfile(path.with_name(name), copy.with_name(name))
    with contextlib.closing(opened(copy)) as journal:
        assert journal.chunks() == [(0, 10)]
        assert journal.superseded() == [(4, 10)], "later indices belong to other items"
        assert "a rewind" not in journal.damage[0]


def test_the_history_of_another_run_is_not_read(killed):
    path, other = killed("mine"), killed("other")
    for suffix in ("", "-wal"):
        shutil.copyfile(other.with_name(other.name + suffix), path.with_name(path.name + suffix))
    assert read_history(path.parent).num_rows == 0
    assert read_watermark(path).pos == 30, "a reader writes nothing"
