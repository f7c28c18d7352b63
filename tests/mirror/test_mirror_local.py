import threading

import pytest

from trieye.exceptions import JournalError, SerializationError
from trieye.journal.journal import Journal
from trieye.journal.scan import inspect, scan
from trieye.journal.schema import Segment
from trieye.journal.watermark import Expected
from trieye.mirror.local import LocalRun, MirrorRecord
from trieye.mirror.restore import restore_run


def test_a_journal_copy_is_consistent_during_writes(run, tmp_path):
    is_done = threading.Event()

    def write():
        while not is_done.wait(0.0005):
            run.journal.append("e", b"x" * 3000, at=1.0)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        sizes = []
        for number in range(10):
            copy = tmp_path / f"{number}.db"
            LocalRun(run.paths).copy_journal(copy)
            assert scan(copy, Expected()).damage == []
            copied = Journal(copy)
            sizes.append(copied.last_pos)
            assert [record.pos for record in copied.records(0)] == list(range(1, copied.last_pos + 1))
            copied.close()
    finally:
        is_done.set()
        writer.join()
    assert sizes == sorted(sizes)
    assert sizes[-1] > sizes[0]


def test_linked_files_outlive_the_deletion_of_their_checkpoint(run, tmp_path):
    run.save(1)
    local = LocalRun(run.paths)
    (save,) = local.saves()
    assert local.link_files(save, tmp_path / "linked")
    run.save(2)
    run.prune(1)
    assert {path.name for path in (tmp_path / "linked").iterdir()} == {"MANIFEST.json", *save.manifest.files}
    assert [save.path.name for save in local.saves()] == ["checkpoint_step_2"]
    assert not local.link_files(save, tmp_path / "again")


def test_a_replaced_checkpoint_is_not_linked_as_the_earlier_one(run, tmp_path):
    run.save(1)
    local = LocalRun(run.paths)
    (before,) = local.saves()
    run.save(1)
    assert not local.link_files(before, tmp_path / "linked")
    (after,) = local.saves()
    assert after.key != before.key


def test_the_record_of_uploads_is_stored_and_its_damage_is_an_error(run):
    local = LocalRun(run.paths)
    local.store_record(MirrorRecord(note="words", generation=4))
    assert (local.record().note, local.record().generation) == ("words", 4)
    (local.directory / "known.json").write_bytes(b"{")
    with pytest.raises(SerializationError, match=r"known.json, the record of what this directory has mirrored"):
        restore_run(run.paths, run.url)
    (local.directory / "known.json").unlink()
    assert local.record().generation == 0
    assert restore_run(run.paths, run.url) is None


def test_a_journal_that_names_an_outside_file_is_not_copied(run, tmp_path):
    (tmp_path / "secret").write_text("secret")
    run.journal.replace_chunks(Segment(0, 1, "../../../../../secret", 6, 0))
    for read_segments in (run.journal.segments, lambda: inspect(run.paths.journal_path)):
        with pytest.raises(JournalError, match="is not a file name inside the directory"):
            read_segments()
    with pytest.raises(JournalError, match="is not a file name inside the directory"):
        LocalRun(run.paths).copy_journal(tmp_path / "copy")
