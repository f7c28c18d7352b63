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


def test_what_was_put_comes_back_and_is_listed_with_its_size(store, file, tmp_path):
    store.put(file, "a/b/file")
    store.put(file, "a/c")
    assert store.list() == {"a/b/file": 3, "a/c": 3}
    assert store.list("a/b") == {"a/b/file": 3}
    store.get("a/b/file", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == b"abc" == store.read("a/c")
    assert (tmp_path / "backup" / "app" / "run [1]" / "a" / "c").exists()


def test_a_directory_that_is_not_there_yet_holds_nothing(store):
    assert store.list() == {}


def test_deleting_takes_only_what_is_named_and_is_no_error_for_what_is_gone(store, file):
    for key in ("a/[x]", "a/x", "b/y"):
        store.put(file, key)
    for key in ("a/[x]", "b/y", "c/z"):
        store.delete(key)
    assert store.list() == {"a/x": 3}


def test_what_is_not_there_cannot_be_read(store, tmp_path):
    with pytest.raises(FileNotFoundError):
        store.read("nothing")
    with pytest.raises(FileNotFoundError):
        store.get("nothing", tmp_path / "back")


def test_a_failure_says_where_it_was_and_a_directory_that_cannot_be_read_is_not_taken_for_an_empty_one(file):
    store = MirrorStore(f"file://{file}", "app")
    with pytest.raises(ConnectionError, match=r"the mirror file://.*/file cannot write: NotADirectoryError: .*/x"):
        store.put(file, "x")
    with pytest.raises(ConnectionError, match="cannot list: NotADirectoryError"):
        store.list()


def test_a_package_that_is_missing_is_named_with_what_to_type(monkeypatch):
    monkeypatch.setitem(sys.modules, "adlfs", None)
    with pytest.raises(ConfigurationError, match=r"needs adlfs, which is not installed: pip install adlfs"):
        MirrorStore("az://container")
