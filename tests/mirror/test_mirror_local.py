import threading

import pytest

from trieye.exceptions import JournalError, SerializationError
from trieye.journal.journal import Journal
from trieye.journal.scan import inspect, scan
from trieye.journal.schema import Segment
from trieye.journal.watermark import Expected
from trieye.mirror.local import LocalRun, MirrorRecord
from trieye.mirror.restore import restore_run


def test_a_journal_is_copied_whole_at_any_moment_while_it_is_written(run, tmp_path):
    done = threading.Event()

    def write():
        while not done.wait(0.0005):
            run.journal.append("e", b"x" * 3000, at=1.0)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        sizes = []
        for number in range(10):
            copy = tmp_path / f"{number}.db"
            LocalRun(run.paths).copy_journal(copy)
            assert scan(copy, Expected()).damage == []
            held = Journal(copy)
            sizes.append(held.last_pos)
            assert [record.pos for record in held.records(0)] == list(range(1, held.last_pos + 1))
            held.close()
    finally:
        done.set()
        writer.join()
    assert sizes == sorted(sizes)
    assert sizes[-1] > sizes[0]


def test_a_checkpoint_that_is_held_outlives_its_deletion(run, tmp_path):
    run.save(1)
    local = LocalRun(run.paths)
    (save,) = local.saves()
    assert local.link_files(save, tmp_path / "held")
    run.save(2)
    run.prune(1)
    assert {path.name for path in (tmp_path / "held").iterdir()} == {"MANIFEST.json", *save.manifest.files}
    assert [save.path.name for save in local.saves()] == ["checkpoint_step_2"]
    assert not local.link_files(save, tmp_path / "again")


def test_a_checkpoint_that_was_replaced_is_not_taken_for_the_one_that_was_seen(run, tmp_path):
    run.save(1)
    local = LocalRun(run.paths)
    (before,) = local.saves()
    run.save(1)
    assert not local.link_files(before, tmp_path / "held")
    (after,) = local.saves()
    assert after.key != before.key


def test_what_is_known_of_a_mirror_is_kept_and_a_damaged_note_of_it_is_an_error(run):
    local = LocalRun(run.paths)
    local.store_record(MirrorRecord(note="words", generation=4))
    assert (local.record().note, local.record().generation) == ("words", 4)
    (local.directory / "known.json").write_bytes(b"{")
    with pytest.raises(SerializationError, match=r"known.json, the record of what this directory has mirrored"):
        restore_run(run.paths, run.url)
    (local.directory / "known.json").unlink()
    assert local.record().generation == 0
    assert restore_run(run.paths, run.url) is None


def test_a_journal_that_names_a_file_elsewhere_brings_nothing_of_it_to_the_mirror(run, tmp_path):
    (tmp_path / "secret").write_text("secret")
    run.journal.replace_chunks(Segment(0, 1, "../../../../../secret", 6, 0))
    for look in (run.journal.segments, lambda: inspect(run.paths.journal_path)):
        with pytest.raises(JournalError, match="is not a file name inside the directory"):
            look()
    with pytest.raises(JournalError, match="is not a file name inside the directory"):
        LocalRun(run.paths).copy_journal(tmp_path / "copy")
