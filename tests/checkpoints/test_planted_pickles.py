"""Write access to a run directory must not allow code execution in the processes that read it."""

import ast
import json
import os
import pickle
import re
import shlex
import shutil
import zlib
from pathlib import Path

import numpy as np
import pytest

import trieye
from tests.drop_in import training_state
from trieye.checkpoints.directory import OBJECTS_NAME, TREE_NAME, load_parts, load_state, save_parts, save_state
from trieye.checkpoints.manifest import MANIFEST_NAME, read_manifest, write_manifest
from trieye.cli import main
from trieye.compat.actor_logic import ActorLogic
from trieye.exceptions import CheckpointError, ConfigurationError, SerializationError, TrieyeError, UntrustedPickleError
from trieye.files.checksum import FileEntry
from trieye.snapshot import signing
from trieye.snapshot.encode import encode
from trieye.snapshot.nodes import KIND, StateParts

PACKAGE = Path(__file__).parents[2] / "trieye"
OTHER_KEY = b"the key of another user"


class Planted:
    """An object that runs a command when unpickled."""

    def __init__(self, canary):
        self._command = f"touch {shlex.quote(str(canary))}"

    def __reduce__(self):
        return os.system, (self._command,)


class Incremental:
    """An object with incremental state."""

    def state_parts(self, stored_names):
        del stored_names
        return StateParts({"rows": 3}, (), {"seg-0-3-0123abcd": {"a": np.arange(3)}})


@pytest.fixture
def canary(tmp_path):
    return tmp_path / "canary"


@pytest.fixture
def planted(canary):
    return pickle.dumps(Planted(canary))


@pytest.fixture
def config(make_config):
    return make_config(persistence={"auto_resume_latest": True, "load_checkpoint_path": None})


@pytest.fixture
def run_dir(config):
    """A run with a checkpoint at step 5."""
    with trieye.Run(config) as run:
        run.step = 5
        run.save(weights=np.ones(3))
    return run.dir


def rewrite_manifest(directory):
    """Rewrite the manifest to match the current files, as an attacker would."""
    before = read_manifest(directory)
    (directory / MANIFEST_NAME).unlink()
    files = {}
    for path in sorted(path for path in directory.rglob("*") if path.is_file()):
        content = path.read_bytes()
        crc32 = zlib.crc32(content)
        files[str(path.relative_to(directory))] = FileEntry(size_bytes=len(content), crc32=crc32)
    write_manifest(directory, before.model_copy(update={"files": files}))


def signature_of_another_key(payload):
    return signing.sign(payload, OTHER_KEY)


def zero_signature(payload):
    return bytes(len(signature_of_another_key(payload)))


def signature_with_a_flipped_bit(payload):
    signature = signing.sign(payload, signing.load_key())
    return signature[:-1] + bytes([signature[-1] ^ 1])


def plant_object(directory, data, sign=signature_of_another_key):
    """Insert a pickle into a saved state, under `objects` if its tree has that key."""
    index = json.dumps({"x": len(data)}).encode()
    payload = len(index).to_bytes(8, "little") + index + data
    (directory / OBJECTS_NAME).write_bytes(b"trieye-1" + sign(payload) + payload)
    tree = json.loads((directory / TREE_NAME).read_bytes())
    holder = tree.get("objects", tree)
    holder["user_data"] = {KIND: "object", "object": "x"}
    (directory / TREE_NAME).write_text(json.dumps(tree))
    rewrite_manifest(directory)


def restore(config):
    with trieye.Run(config) as run:
        run.restore()


def load_by_the_drop_in_api(config):
    logic = ActorLogic(config).open()
    try:
        return logic.load_initial_state()
    finally:
        logic.shutdown("FAILED")


@pytest.mark.parametrize("name", ["latest.pkl", "checkpoint_step_9.pkl"])
@pytest.mark.parametrize("read", [restore, load_by_the_drop_in_api])
def test_a_planted_0_1_5_checkpoint_stops_the_run_without_running_code(run_dir, config, planted, canary, name, read):
    shutil.rmtree(run_dir / "checkpoints")
    (run_dir / "checkpoints").mkdir()
    (run_dir / "checkpoints" / name).write_bytes(planted)
    for _ in range(2):  # the second start does not ignore it either
        with pytest.raises(UntrustedPickleError) as caught:
            read(config)
    message = str(caught.value)
    assert str(run_dir / "checkpoints" / name) in message
    assert "TRIEYE_ALLOW_PICKLE=1" in message
    assert "trieye convert" in message
    assert not canary.exists()


def test_a_planted_earlier_run_of_0_1_5_stops_a_new_run(make_config, planted, canary):
    config = make_config(run_name="new", persistence={"auto_resume_latest": True})
    old = config.persistence.get_runs_root_dir() / "run_20250102_030405" / "checkpoints"
    old.mkdir(parents=True)
    (old / "checkpoint_step_9.pkl").write_bytes(planted)
    with pytest.raises(UntrustedPickleError, match=r"run_20250102_030405.checkpoints.checkpoint_step_9\.pkl"):
        load_by_the_drop_in_api(config)
    assert not canary.exists()


@pytest.mark.long
@pytest.mark.parametrize("name", ["latest.pkl", "best.pkl", "checkpoint_step_9.pkl"])
def test_a_planted_pickle_next_to_an_intact_checkpoint_is_ignored(run_dir, config, planted, canary, name):
    path = run_dir / "checkpoints" / name
    path.unlink(missing_ok=True)
    path.write_bytes(planted)
    with trieye.Run(config) as run:
        assert run.restore()
        assert run.step == 5
    assert not canary.exists()


@pytest.fixture
def drop_in_files(config):
    """Return the files of a run that a program of trieye 0.1.5 saved at step 3."""
    logic = ActorLogic(config).open()
    logic.save_training_state(**training_state(3))
    logic.shutdown("KILLED")
    return logic.files.paths


@pytest.mark.parametrize("name", ["buffer.pkl", "buffer_step_3.pkl"])
def test_a_planted_0_1_5_buffer_stops_the_run_without_running_code(drop_in_files, config, planted, canary, name):
    path = drop_in_files.buffer_dir / name
    path.unlink(missing_ok=True)
    path.write_bytes(planted)
    with pytest.raises(UntrustedPickleError, match=name):
        load_by_the_drop_in_api(config)
    assert not canary.exists()


def test_planted_user_data_of_the_drop_in_api_runs_no_code(drop_in_files, config, planted, canary):
    plant_object(drop_in_files.get_checkpoint_path(3), planted)
    with pytest.raises(UntrustedPickleError):
        load_by_the_drop_in_api(config)
    with pytest.raises(UntrustedPickleError):
        trieye.Serializer().load_checkpoint(drop_in_files.get_checkpoint_path(3))
    assert not canary.exists()


def test_a_planted_object_under_a_matching_manifest_runs_no_code(run_dir, config, planted, canary, monkeypatch):
    directory = run_dir / "checkpoints" / "checkpoint_step_5"
    signing.load_key()
    for sign in (zero_signature, signature_with_a_flipped_bit, signature_of_another_key):
        plant_object(directory, planted, sign)
        assert read_manifest(directory).step == 5
        with pytest.raises(UntrustedPickleError, match="not signed with this user's key") as caught:
            restore(config)
        assert "TRIEYE_ALLOW_PICKLE=1" in str(caught.value)
        assert "TRIEYE_KEY" in str(caught.value)
        with pytest.raises(UntrustedPickleError):
            trieye.load_checkpoint(run_dir)
    for command in ("verify", "checkpoints", "watch"):
        main([command, str(run_dir), *(["--once"] if command == "watch" else [])])
    monkeypatch.setenv("TRIEYE_ALLOW_PICKLE", "0")
    with pytest.raises(UntrustedPickleError):
        restore(config)
    assert not canary.exists()
    trieye.load_checkpoint(run_dir, allow_pickle=True)
    canary.unlink()  # proves that the pickle works
    monkeypatch.setenv("TRIEYE_ALLOW_PICKLE", "1")
    restore(config)
    assert canary.exists()


def test_an_explicit_checkpoint_of_another_user_runs_no_code(run_dir, config, planted, canary, tmp_path, make_config):
    shutil.move(run_dir / "checkpoints" / "checkpoint_step_5", tmp_path / "downloaded")
    plant_object(tmp_path / "downloaded", planted)
    fresh = make_config(run_name="fresh", persistence={"load_checkpoint_path": str(tmp_path / "downloaded")})
    with pytest.raises(UntrustedPickleError, match="downloaded"):
        restore(fresh)
    assert not canary.exists()


def test_a_signed_object_loads_in_any_checkpoint_of_the_same_user(tmp_path):
    """A signature authenticates the user, not the checkpoint; see `signing`."""
    for name, number in (("one", 1), ("two", 2)):
        save_state(tmp_path / name, encode({"user_data": {1, "two", 3.0}, "c": complex, "number": number}))
    shutil.copy(tmp_path / "one" / OBJECTS_NAME, tmp_path / "two" / OBJECTS_NAME)
    rewrite_manifest(tmp_path / "two")
    assert load_state(tmp_path / "two").objects == load_state(tmp_path / "one").objects
    changed = bytearray((tmp_path / "two" / OBJECTS_NAME).read_bytes())
    changed[-1] ^= 1
    (tmp_path / "two" / OBJECTS_NAME).write_bytes(changed)
    rewrite_manifest(tmp_path / "two")
    with pytest.raises(UntrustedPickleError):
        load_state(tmp_path / "two")


def test_a_key_accessible_to_others_neither_signs_nor_verifies(tmp_path):
    save_state(tmp_path / "before", encode({"user_data": range(3)}))
    signing.key_path().chmod(0o644)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        load_state(tmp_path / "before")
    with pytest.raises(ConfigurationError, match="chmod 600"):
        save_state(tmp_path / "since", encode({"user_data": range(3)}))
    signing.key_path().chmod(0o600)
    assert load_state(tmp_path / "before").objects


def test_a_pickle_planted_as_a_replay_part_runs_no_code(tmp_path, planted, canary):
    path = save_parts(tmp_path / "replay", Incremental())
    (part,) = (path / "parts").iterdir()
    content = part.read_bytes()
    for planted_content in (planted, len(planted).to_bytes(8, "little") + planted, content[:8] + planted):
        part.write_bytes(planted_content)
        rewrite_manifest(path)
        with pytest.raises(SerializationError):
            saved = load_parts(path)
            saved.map(saved.names[0])
    assert not canary.exists()


@pytest.mark.parametrize("name", ["run.json", "configs.json", "journal.db", "history/points-0-10.parquet"])
def test_a_pickle_planted_as_another_run_file_runs_no_code(run_dir, config, planted, canary, name):
    (run_dir / name).parent.mkdir(exist_ok=True)
    (run_dir / name).write_bytes(planted)
    try:
        restore(config)
    except TrieyeError as error:
        assert Path(name).name in str(error)  # noqa: PT017 - files that can be quarantined or rewritten raise nothing
    for command in ("verify", "checkpoints", "close"):
        main([command, str(run_dir)])
    assert not canary.exists()


@pytest.mark.parametrize("name", ["../../outside", "/etc/hostname", "parts/../../outside", "a/b", ".hidden", ""])
def test_a_manifest_with_a_path_outside_its_directory_is_rejected(tmp_path, name):
    path = save_state(tmp_path / "deep" / "state", encode({"a": 1}))
    (tmp_path / "outside").write_bytes(b"")
    manifest = read_manifest(path)
    files = {**manifest.files, name: FileEntry(size_bytes=0, crc32=0)}
    (path / MANIFEST_NAME).unlink()
    write_manifest(path, manifest.model_copy(update={"files": files}))
    with pytest.raises(CheckpointError, match="not a valid file name within this directory"):
        load_state(path)


@pytest.mark.parametrize("name", [TREE_NAME, "state.safetensors", MANIFEST_NAME, "parts"])
def test_linked_files_of_a_checkpoint_are_rejected(tmp_path, name):
    path = save_parts(tmp_path / "state", Incremental()) if name == "parts" else tmp_path / "state"
    if name != "parts":
        save_state(path, encode({"a": np.zeros(3)}))
    (path / name).rename(tmp_path / "elsewhere")
    (path / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match=r"is a (symbolic )?link"):
        load_state(path)


READERS = {
    "pickle": {"load", "loads", "Unpickler"},
    "cloudpickle": {"load", "loads"},
    "ray.cloudpickle": {"load", "loads"},
    "dill": {"load", "loads"},
    "joblib": {"load"},
    "marshal": {"load", "loads"},
    "shelve": {"open"},
    "yaml": {"load", "unsafe_load", "full_load"},
    "pandas": {"read_pickle"},
}
GUARDED = {"compat/pickles.py", "snapshot/objects.py", "replay/exchange/datasets.py"}
"""Called only after `signing.pickles_allowed`, a valid signature or `allow_pickle=True`."""
OWN_PICKLES = {
    "config/hydra/prototype.py",
    "testing/training_contracts.py",
    "training/exploring/in_ray.py",
    "training/exploring/collective.py",
    "sweeps/fork_server.py",
    "sweeps/main_module.py",
    "sweeps/local.py",
    "sweeps/working.py",
}
"""Unpickle data of the same process or run: no files, and from connections only data with the key of the run."""


FUNCTIONS = {"eval", "exec", "load", "recv", "shelve"}.union(*READERS.values()) - {"open"}


def calls_in(path):
    text = path.read_text()
    if not re.search(rf"\b({'|'.join(FUNCTIONS)})\b[(),.]", text):  # parsing all modules takes seconds
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node.keywords
        elif isinstance(node, ast.ClassDef):
            yield from ((ast.unparse(base), []) for base in node.bases)


def test_only_listed_modules_unpickle_or_evaluate():
    unpickling_modules = set()
    for path in PACKAGE.rglob("*.py"):
        if {"conf", "template"} & set(path.relative_to(PACKAGE).parts):
            continue
        for name, keywords in calls_in(path):
            module, _, function = name.rpartition(".")
            words = {word.arg: ast.unparse(word.value) for word in keywords} if function == "load" else {}
            unsafe = function in READERS.get(module, ()) or name in {"eval", "exec"} or function == "recv"
            unsafe = unsafe or (name == "torch.load" and words.get("weights_only") != "True")
            unsafe = unsafe or (name in {"np.load", "numpy.load"} and words.get("allow_pickle", "False") != "False")
            if unsafe:
                unpickling_modules.add(str(path.relative_to(PACKAGE)))
    assert unpickling_modules == GUARDED | OWN_PICKLES
