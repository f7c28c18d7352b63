import os
import subprocess
from pathlib import Path

import pytest

from trieye.config.names import MAX_NAME_BYTES
from trieye.files import atomic
from trieye.files.atomic import new_directory, recover, relink, remove_directory, replaced, short_host, write_atomic


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def left_by_a_dead_process(path, kind):
    """Rename `path` to a temporary name of a dead process."""
    dead = subprocess.Popen(["true"])
    dead.wait()
    with new_directory(path.parent / "probe") as scratch:
        pattern = scratch.name
    remove_directory(path.parent / "probe")
    _, host, _, token = pattern.rsplit("~", 3)
    return path.rename(path.parent / f".{kind}-{path.name}~{host}~{dead.pid}~{token}")


def test_an_atomic_write_replaces_the_file_without_leftovers(tmp_path):
    for data in (b"one", b"", b"three"):
        write_atomic(tmp_path / "f", data)
        assert (tmp_path / "f").read_bytes() == data
    assert names(tmp_path) == ["f"]


def test_a_failed_write_leaves_no_temporary_file(tmp_path):
    (tmp_path / "d").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_atomic(tmp_path / "d", b"x")
    assert names(tmp_path) == ["d"]


def test_a_link_is_relative_and_replaces_links_and_files(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "link").write_text("a file of an older version")
    relink(tmp_path / "link", tmp_path / "a")
    assert (tmp_path / "link").readlink() == Path("a")
    relink(tmp_path / "link", tmp_path / "b")
    assert (tmp_path / "link").readlink() == Path("b")
    assert names(tmp_path) == ["a", "link"]


def test_a_link_below_a_linked_directory_leads_to_its_target(tmp_path):
    for name in ("real/deep/below", "project/runs"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "project/multirun").symlink_to(tmp_path / "real/deep")
    relink(tmp_path / "project/multirun/below/run", tmp_path / "project/runs")
    assert (tmp_path / "real/deep/below/run").resolve() == tmp_path / "project/runs"


def test_a_new_directory_appears_complete_or_not_at_all(tmp_path):
    with pytest.raises(UnicodeEncodeError), new_directory(tmp_path / "d") as scratch:
        (scratch / "f").write_text("half \ud800", encoding="utf-8")
    assert names(tmp_path) == []
    with new_directory(tmp_path / "d") as scratch:
        (scratch / "f").write_text("whole")
        assert not (tmp_path / "d").exists()
    assert (tmp_path / "d" / "f").read_text() == "whole"
    assert names(tmp_path) == ["d"]


def test_recover_restores_a_directory_moved_by_a_dead_process(tmp_path):
    (tmp_path / "d").mkdir()
    old = left_by_a_dead_process(tmp_path / "d", "old")
    assert replaced(tmp_path) == {"d": old}
    recover(tmp_path)
    assert names(tmp_path) == ["d"]


def test_recover_deletes_leftovers_of_dead_processes_only(tmp_path):
    for name in ("a", "b", "c"):
        (tmp_path / name / "inside").mkdir(parents=True)
    left_by_a_dead_process(tmp_path / "a", "tmp")
    left_by_a_dead_process(tmp_path / "b", "old")
    (tmp_path / "b").mkdir()
    with new_directory(tmp_path / "c") as scratch:
        recover(tmp_path)
        assert scratch.is_dir()
        assert names(tmp_path) == sorted([scratch.name, "b", "c"])


def test_leftovers_of_other_machines_are_retained_until_they_are_old(tmp_path):
    foreign = tmp_path / ".tmp-d~elsewhere~1~00000000"
    foreign.mkdir()
    recover(tmp_path)
    assert foreign.exists()
    os.utime(foreign, (0, 0))
    recover(tmp_path)
    assert not foreign.exists()


def test_a_directory_with_a_long_name_is_removed_on_a_host_with_a_long_name(tmp_path, monkeypatch):
    hosts = [f"ip-10-123-123-123.eu-central-1.compute.internal-{number}" for number in range(2)]
    assert short_host(hosts[0]) != short_host(hosts[1])
    monkeypatch.setattr(atomic, "_HOST", short_host(hosts[0]))
    directory = tmp_path / ("r" * MAX_NAME_BYTES)
    directory.mkdir()
    remove_directory(directory)
    assert names(tmp_path) == []


def test_an_interrupted_replacement_preserves_the_old_directory(tmp_path, monkeypatch):
    with new_directory(tmp_path / "d") as scratch:
        (scratch / "f").write_text("old")
    rename = Path.rename

    def interrupted(path, target):
        if path.name.startswith(".tmp-d"):
            raise KeyboardInterrupt
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt), new_directory(tmp_path / "d"):
        pass
    assert (tmp_path / "d" / "f").read_text() == "old"
    assert names(tmp_path) == ["d"]


def test_recover_can_be_limited_to_one_entry(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        left_by_a_dead_process(tmp_path / name, "old")
    recover(tmp_path, "a")
    assert (tmp_path / "a").is_dir()
    assert list(replaced(tmp_path)) == ["b"]
