import os
import pickle
import re
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import config_in
from tests.damage import contents
from tests.json_schemas import validated
from trieye.checkpoints.store import CheckpointStore
from trieye.cli import main
from trieye.compat.actor_logic import ActorLogic
from trieye.compat.serializer import Serializer
from trieye.process.lock import RunLock
from trieye.snapshot.encode import encode

DATA = Path(__file__).parents[1] / "checkpoints" / "data"
CHECKPOINT, BUFFER = (DATA / f"{name}_0_1_5.pkl" for name in ("checkpoint", "buffer"))


@pytest.fixture
def old_run(tmp_path):
    """A run of 0.1.5 with checkpoints of steps 9 and 12, the first one the best, and a buffer."""
    run_dir = tmp_path / "root" / "agents" / "runs" / "run_20250102_030405"
    (run_dir / "checkpoints").mkdir(parents=True)
    (run_dir / "buffers").mkdir()
    with_step_12 = CHECKPOINT.read_bytes().replace(b"global_step\x94K\x09", b"global_step\x94K\x0c")
    assert with_step_12 != CHECKPOINT.read_bytes()
    for name, content in (
        ("checkpoints/checkpoint_step_9.pkl", CHECKPOINT.read_bytes()),
        ("checkpoints/best.pkl", CHECKPOINT.read_bytes()),
        ("checkpoints/checkpoint_step_12.pkl", with_step_12),
        ("checkpoints/latest.pkl", with_step_12),
        ("buffers/buffer_step_9.pkl", BUFFER.read_bytes()),
        ("buffers/buffer.pkl", BUFFER.read_bytes()),
    ):
        (run_dir / name).write_bytes(content)
    return run_dir


def test_nothing_is_converted_without_permission_for_pickles(old_run, command):
    before = contents(old_run)
    assert "--allow-pickle" in command.error("convert", old_run, code=1)
    assert contents(old_run) == before


def test_a_converted_run_can_be_resumed_and_its_old_files_remain(old_run, tmp_path, command):
    before = contents(old_run)
    out = command.output("convert", "run_20250102_030405", "--root", tmp_path / "root", "--allow-pickle")
    assert "checkpoint_step_12.pkl -> " in out
    assert {path: content for path, content in contents(old_run).items() if path in before} == before
    store = CheckpointStore(old_run / "checkpoints")
    assert [entry.step for entry in store.entries()] == [9, 12]
    assert (store.latest().step, store.find("best").step) == (12, 9)
    logic = ActorLogic(config_in(tmp_path / "root", old_run.name)).open()
    try:
        loaded = logic.load_initial_state()
    finally:
        logic.shutdown("KILLED")
    assert loaded.checkpoint_data.global_step == 12
    assert loaded.checkpoint_data.user_data == {"lr": 0.1}
    assert [row[0].tolist() for row in loaded.buffer_data.buffer_list] == [[0.0, 1.0], [1.0, 2.0]]
    assert (loaded.buffer_step, loaded.resumed_from) == (9, old_run.name)
    converted = validated(command.output("convert", old_run, "--allow-pickle", "--json"))["converted"]
    assert str(old_run / "checkpoints" / "checkpoint_step_12") in {conversion["checkpoint"] for conversion in converted}


def test_converting_is_idempotent_and_an_environment_variable_grants_permission(old_run, monkeypatch):
    assert main(["convert", str(old_run), "--allow-pickle"]) == 0
    converted_files = contents(old_run)
    monkeypatch.setenv("TRIEYE_ALLOW_PICKLE", "1")
    assert main(["convert", str(old_run)]) == 0
    assert contents(old_run) == converted_files


def test_a_run_with_only_its_last_state_is_converted_at_the_step_inside(old_run):
    for path in [*old_run.glob("*/*_step_*.pkl")]:
        path.unlink()
    assert main(["convert", str(old_run), "--allow-pickle"]) == 0
    assert (old_run / "checkpoints" / "checkpoint_step_12").is_dir()
    assert (old_run / "buffers" / "buffer_step_12").is_dir()


def test_a_file_is_converted_in_its_directory_or_elsewhere(tmp_path, capfd):
    (tmp_path / "downloads").mkdir()
    for source in (CHECKPOINT, BUFFER):
        shutil.copy(source, tmp_path / "downloads")
    for name in (CHECKPOINT.name, BUFFER.name):
        assert main(["convert", str(tmp_path / "downloads" / name), "--allow-pickle"]) == 0
    assert Serializer().load_checkpoint(tmp_path / "downloads" / "checkpoint_step_9").global_step == 9
    assert Serializer().load_buffer(tmp_path / "downloads" / "buffer_step_0").buffer_list
    out = tmp_path / "out"
    assert main(["convert", str(tmp_path / "downloads" / CHECKPOINT.name), "--allow-pickle", "-o", str(out)]) == 0
    assert (out / "checkpoint_step_9").is_dir()


def test_a_conversion_of_another_file_is_not_reused(old_run, tmp_path, command):
    first = old_run / "checkpoints" / "checkpoint_step_9.pkl"
    (other := tmp_path / first.name).write_bytes(first.read_bytes().replace(b"lr", b"xx"))
    convert = ("convert", "--allow-pickle", "--output", tmp_path / "out")
    command.output(*convert, first)
    before = contents(tmp_path / "out")
    message = command.error(*convert, other, code=1)
    assert "checkpoint_step_9 comes from another file" in message
    assert "--output" in message
    command.output(*convert, first)
    assert contents(tmp_path / "out") == before


def test_unconvertible_files_are_named_and_the_others_are_converted(old_run, capfd):
    (old_run / "checkpoints" / "checkpoint_step_20.pkl").write_bytes(CHECKPOINT.read_bytes()[:-9])
    (old_run / "checkpoints" / "checkpoint_step_30.pkl").write_bytes(pickle.dumps([1, 2]))
    assert main(["convert", str(old_run), "--allow-pickle"]) == 1
    output = capfd.readouterr()
    assert "checkpoint_step_20.pkl" in output.err
    assert "checkpoint_step_30.pkl: the file contains a list" in output.err
    assert [entry.step for entry in CheckpointStore(old_run / "checkpoints").entries()] == [9, 12]


def test_an_old_state_never_becomes_the_newest_of_a_resumed_run(old_run, tmp_path, command):
    CheckpointStore(old_run / "checkpoints").save(500, encode({"a": 1}))
    assert re.search(
        "checkpoint_step_12.pkl: checkpoint_step_500 .*--output",
        command.error("convert", old_run, "--allow-pickle", code=1),
    )
    assert CheckpointStore(old_run / "checkpoints").latest().step == 500
    assert main(["convert", str(old_run), "--allow-pickle", "--output", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "checkpoint_step_9").is_dir()


def test_an_active_run_is_not_converted(old_run, capfd):
    (old_run / "run.json").write_text("{}")
    with RunLock(old_run / "run.lock"):
        assert main(["convert", str(old_run), "--allow-pickle"]) == 3
    assert str(os.getpid()) in capfd.readouterr().err
    assert not (old_run / "checkpoints" / "checkpoint_step_9").exists()


def test_a_directory_without_files_to_convert_is_reported(tmp_path, command):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    assert "nothing to convert" in command.error("convert", tmp_path / "run", "--allow-pickle")
    assert main(["convert", "nobody", "--root", str(tmp_path)]) == 2
