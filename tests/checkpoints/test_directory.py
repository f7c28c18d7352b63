import hashlib
import json
import os
import pickle
import zlib

import numpy as np
import pytest

from trieye.checkpoints import directory
from trieye.checkpoints.directory import OBJECTS_NAME, TENSORS_NAME, TREE_NAME, load_state, peek, save_state
from trieye.checkpoints.manifest import FORMAT_VERSION, MANIFEST_NAME, rewrite_manifest, verify, write_manifest
from trieye.exceptions import CheckpointError, ConfigurationError, SerializationError, UntrustedPickleError
from trieye.files.checksum import FileEntry
from trieye.snapshot.encode import EncodedState, decode, encode


class Payload:
    """A malicious object: unpickling it creates a directory."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def plant(directory, pwned, key):
    """Write a valid state directory whose pickle creates the directory `pwned` when loaded."""
    tree = {"x": {"$": "object", "object": "x"}}
    return save_state(directory, EncodedState(tree, objects={"x": pickle.dumps(Payload(pwned))}), key=key)


def test_a_linked_part_is_read_only_for_a_checksum_that_it_lacks(tmp_path):
    entry = FileEntry(size_bytes=3, crc32=7)
    assert directory._with_sums(tmp_path / "absent", entry, "crc32") is entry
    (tmp_path / "part").write_bytes(b"abc")
    assert directory._with_sums(tmp_path / "part", entry, "sha256").sha256 == hashlib.sha256(b"abc").hexdigest()


def test_plain_states_are_json_safetensors_and_a_manifest(tmp_path):
    path = save_state(tmp_path / "s", encode({"a": np.zeros(2), "step": 3}), step=3, metadata={"note": "x"})
    assert {file.name for file in path.iterdir()} == {TREE_NAME, TENSORS_NAME, MANIFEST_NAME}
    assert json.loads((path / TREE_NAME).read_text())["step"] == 3
    manifest = verify(path)
    assert (manifest.step, manifest.metadata) == (3, {"note": "x"})


def test_a_planted_pickle_runs_no_code_if_no_key_exists(tmp_path, own_key_home):
    path = plant(tmp_path / "s", tmp_path / "pwned", b"the key of somebody else")
    with pytest.raises(UntrustedPickleError):
        load_state(path)
    assert not (tmp_path / "pwned").exists()
    assert list(own_key_home.iterdir()) == []


def test_a_pickle_absent_from_the_manifest_is_never_opened(tmp_path):
    path = save_state(tmp_path / "s", encode({"a": 1}))
    planted = plant(tmp_path / "p", tmp_path / "pwned", b"the key of somebody else")
    (planted / OBJECTS_NAME).rename(path / OBJECTS_NAME)
    assert decode(load_state(path)) == {"a": 1}
    assert not (tmp_path / "pwned").exists()


def test_pickles_without_a_valid_signature_load_only_with_permission(tmp_path, monkeypatch):
    path = save_state(tmp_path / "s", encode({"e": ValueError("x")}), key=b"the key of a colleague")
    assert decode(load_state(path, allow_pickle=True))["e"].args == ("x",)
    assert decode(load_state(path, key=b"the key of a colleague"))["e"].args == ("x",)
    with pytest.raises(UntrustedPickleError, match="TRIEYE_ALLOW_PICKLE=1"):
        load_state(path)
    monkeypatch.setenv("TRIEYE_ALLOW_PICKLE", "1")
    assert decode(load_state(path))["e"].args == ("x",)
    with pytest.raises(UntrustedPickleError):
        load_state(path, allow_pickle=False)


def test_without_a_usable_key_pickles_are_saved_only_with_permission(tmp_path, monkeypatch):
    monkeypatch.setenv("TRIEYE_KEY_FILE", str(tmp_path / "file" / "key"))
    (tmp_path / "file").write_text("no directory")
    with pytest.raises(ConfigurationError, match=r"^e: saved as pickle.*TRIEYE_KEY_FILE.*TRIEYE_ALLOW_PICKLE=1"):
        save_state(tmp_path / "s", encode({"e": ValueError("x")}))
    assert not (tmp_path / "s").exists()
    save_state(tmp_path / "plain", encode({"weights": np.zeros(3)}))
    monkeypatch.setenv("TRIEYE_ALLOW_PICKLE", "1")
    path = save_state(tmp_path / "s", encode({"e": ValueError("x")}))
    assert decode(load_state(path))["e"].args == ("x",)
    with pytest.raises(UntrustedPickleError):
        load_state(path, allow_pickle=False)


def test_a_missing_class_is_named(tmp_path):
    tree = {"x": {"$": "object", "object": "x"}}
    path = save_state(tmp_path / "s", EncodedState(tree, objects={"x": b"cnowhere_module\nGone\n."}))
    with pytest.raises(SerializationError, match="nowhere_module"):
        decode(load_state(path))


def test_save_state_replaces_an_existing_directory_or_file(tmp_path):
    (tmp_path / "s").write_text("an old file")
    for value in (1, 2):
        save_state(tmp_path / "s", encode(value))
        assert decode(load_state(tmp_path / "s")) == value
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_a_failed_save_names_the_path_and_keeps_the_old_state(tmp_path):
    save_state(tmp_path / "s", encode(1))
    broken = EncodedState({"a": 1}, arrays={"a": np.zeros(2)}, objects={"x": b""})
    (tmp_path / "blocked").write_text("")
    with pytest.raises(SerializationError, match="blocked"):
        save_state(tmp_path / "blocked" / "s", broken)
    with pytest.raises(KeyError):
        save_state(tmp_path / "s", EncodedState(1, arrays={"a": np.zeros(2, complex)}))
    assert decode(load_state(tmp_path / "s")) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"s", "blocked"}


def test_a_value_within_a_state_is_read_alone_and_a_missing_one_is_named(tmp_path):
    path = save_state(tmp_path / "s", encode({"loop": {"steps": 3}}))
    assert peek(path, "loop", "steps") == 3
    with pytest.raises(SerializationError, match="lacks loop/env_steps"):
        peek(path, "loop", "env_steps")
    (path / TREE_NAME).write_text("{")
    with pytest.raises(SerializationError, match="lacks loop/steps"):
        peek(path, "loop", "steps")


def test_metadata_must_be_json_and_nan_becomes_null(tmp_path):
    path = save_state(
        tmp_path / "s", encode(1), metadata={"objective": float("nan"), "n": np.int64(3), "l": [np.float32(1)]}
    )
    assert verify(path).metadata == {"objective": None, "n": 3, "l": [1.0]}
    with pytest.raises(SerializationError, match=r"'a\.b'.*object"):
        save_state(tmp_path / "t", encode(1), metadata={"a": {"b": object()}})


def test_a_directory_of_a_newer_version_is_not_reported_as_damaged(tmp_path):
    path = save_state(tmp_path / "s", encode(1))
    newer = verify(path).model_copy(update={"format": FORMAT_VERSION + 1})
    (path / MANIFEST_NAME).unlink()
    write_manifest(path, newer)
    with pytest.raises(SerializationError, match="newer trieye") as caught:
        load_state(path)
    assert not isinstance(caught.value, CheckpointError)


def test_an_invalid_state_tree_is_named(tmp_path):
    path = save_state(tmp_path / "s", encode({"step": 3}))
    manifest, tree = verify(path), path / TREE_NAME
    tree.write_text("{")
    files = {**manifest.files, TREE_NAME: FileEntry(size_bytes=1, crc32=zlib.crc32(b"{"))}
    rewrite_manifest(path, manifest.model_copy(update={"files": files}))
    with pytest.raises(SerializationError, match=f"{tree} does not contain a state"):
        load_state(path)
