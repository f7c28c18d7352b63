import sys

import pytest

from trieye.exceptions import ConfigurationError
from trieye.mirror.store import MirrorStore


@pytest.fixture
def store(tmp_path):
    return MirrorStore(f"file://{tmp_path}/backup", "app", "run [1]")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    return path


def test_stored_objects_can_be_listed_and_read(store, file, tmp_path):
    store.put(file, "a/b/file")
    store.put(file, "a/c")
    assert store.list() == {"a/b/file": 3, "a/c": 3}
    assert store.list("a/b") == {"a/b/file": 3}
    store.get("a/b/file", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == b"abc" == store.read("a/c")
    assert (tmp_path / "backup" / "app" / "run [1]" / "a" / "c").exists()


def test_a_missing_directory_lists_no_objects(store):
    assert store.list() == {}


def test_delete_removes_exactly_the_key_and_ignores_missing_keys(store, file):
    for key in ("a/[x]", "a/x", "b/y"):
        store.put(file, key)
    for key in ("a/[x]", "b/y", "c/z"):
        store.delete(key)
    assert store.list() == {"a/x": 3}


def test_deleting_the_last_object_leaves_no_directories_of_the_run(store, file, tmp_path):
    store.put(file, "a/b/c")
    store.delete("a/b/c")
    assert [path.name for path in tmp_path.glob("backup/**/*")] == ["app"]


def test_reading_a_missing_key_raises_file_not_found(store, tmp_path):
    with pytest.raises(FileNotFoundError):
        store.read("nothing")
    with pytest.raises(FileNotFoundError):
        store.get("nothing", tmp_path / "back")


def test_a_failure_names_the_url_and_is_never_an_empty_listing(file):
    store = MirrorStore(f"file://{file}", "app")
    with pytest.raises(ConnectionError, match=r"the mirror file://.*/file cannot write: NotADirectoryError: .*/x"):
        store.put(file, "x")
    with pytest.raises(ConnectionError, match="cannot list: NotADirectoryError"):
        store.list()


def test_a_missing_package_is_named_with_its_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "adlfs", None)
    with pytest.raises(ConfigurationError, match=r"needs adlfs, which is not installed: pip install adlfs"):
        MirrorStore("az://container")
