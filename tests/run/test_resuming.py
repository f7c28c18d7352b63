"""Selection of the checkpoint that a run resumes from, by the config, and its record in run.json and the log."""

import json
import shutil
import subprocess
import sys
import threading
import zlib
from pathlib import Path

import numpy as np
import pytest

import trieye
from tests.curves import record_of
from tests.damage import contents, cut, flip
from tests.drop_in import training_state
from tests.waiting import wait_until
from trieye.checkpoints.directory import HUB_NAME
from trieye.checkpoints.manifest import MANIFEST_NAME, read_manifest, write_manifest
from trieye.checkpoints.store import load_checkpoint
from trieye.cli import main
from trieye.compat.actor_logic import ActorLogic
from trieye.compat.serializer import Serializer
from trieye.exceptions import CheckpointError, ConfigurationError, SerializationError
from trieye.files.checksum import sums_of
from trieye.history.history import read_history
from trieye.hub.marks import unpack_state
from trieye.hub.saved_states import SavedStates
from trieye.snapshot import signing


def train(config, steps, *, group=None, objective=None, first=None):
    """Train up to a step, save, and return the first step and the restored weights."""
    with trieye.Run(config, group=group) as run:
        run.restore()
        began, weights = run.step, run.restored.get("weights")
        if first is not None:
            assert began == first
        for step in range(began + 1, steps + 1):
            run.step = step
            run.log("loss", 1.0 / step)
        run.save(weights=np.full(3, float(steps)), objective=objective)
    return began, None if weights is None else float(weights[0])


def run_dir_of(config):
    return config.persistence.get_run_base_dir()


def test_a_run_rewinds_to_its_best_checkpoint_once_per_command(make_config, capsys):
    config = make_config()
    for steps, objective in ((10, 1.0), (20, 5.0), (30, 2.0)):
        train(config, steps, objective=objective)
    back = make_config(persistence={"load_checkpoint_path": "best"})
    assert train(back, 22, objective=0.0) == (20, 20.0)
    output = capsys.readouterr()
    assert "goes back to its own checkpoint checkpoint_step_20 (load_checkpoint_path=best)" in output.out + output.err
    record = record_of(run_dir_of(config))
    assert (record.went_back_to, record.went_back_in) == ("best", 4)
    assert (record.summary["loss"]["step"], record.summary["loss"]["min"]) == (22, 1 / 22)  # the later ones: superseded
    # a scheduler repeats the same command
    assert train(back, 25, objective=0.0) == (22, 22.0)
    assert "attempt 4 already went back" in "".join(capsys.readouterr())
    # after a start without the setting, it takes effect again
    assert train(config, 26, objective=0.0) == (25, 25.0)
    assert record_of(run_dir_of(config)).went_back_to is None
    assert train(back, 21, objective=0.0) == (20, 20.0)
    assert record_of(run_dir_of(config)).went_back_in == 7


class Unloadable:
    def state_dict(self):
        return {"n": 1}


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        (3, r"restore\(x=.*an? int has no load_state_dict"),
        ({"inner": Unloadable()}, r"restore\(x\.inner=.*a Unloadable has no load_state_dict"),
        ({"inner": [Unloadable()]}, r"x\.inner is a list with a Unloadable"),
    ],
)
def test_a_fresh_run_refuses_objects_that_a_later_restore_could_not_load(make_config, target, reason):
    with trieye.Run(make_config()) as run, pytest.raises(ConfigurationError, match=reason):
        run.restore(x=target)


def test_none_is_restored_as_none(make_config):
    for is_resumed in (False, True):
        with trieye.Run(make_config()) as run:
            assert run.restore(weights=np.zeros(1), scheduler=None) is is_resumed
            run.save(step=1, weights=np.zeros(1), scheduler=None)


def test_a_restore_waits_for_a_save_in_progress(make_config, monkeypatch):
    may_write, save = threading.Event(), SavedStates.save

    def slow_save(self, step, *args):
        assert step == 1 or may_write.wait(30)
        return save(self, step, *args)

    monkeypatch.setattr(SavedStates, "save", slow_save)
    with trieye.Run(make_config()) as run:
        run.save(step=1)
        run.save(step=2)
        threading.Timer(0.3, may_write.set).start()
        assert run.restore()
        assert run.step == 2


@pytest.mark.long
def test_a_moved_and_renamed_run_resumes(make_config, tmp_path):
    config = make_config()
    train(config, 5)
    before = record_of(run_dir_of(config))
    shutil.move(tmp_path / "root", tmp_path / "disk" / "data")
    moved = make_config(persistence={"root_data_dir": str(tmp_path / "disk" / "data")})
    assert train(moved, 8) == (5, 5.0)
    run_dir_of(moved).rename(run_dir_of(moved).with_name("renamed"))
    renamed = make_config(run_name="renamed", persistence={"root_data_dir": str(tmp_path / "disk" / "data")})
    assert train(renamed, 9) == (8, 8.0)
    after = record_of(run_dir_of(renamed))
    assert (after.run_id, after.run_name, after.attempt) == (before.run_id, "renamed", 3)
    assert not (tmp_path / "root").exists()
    assert str(tmp_path / "disk") in (after.resumed_from or "")


def test_a_copied_run_in_another_root_is_rejected_unchanged(make_config, tmp_path):
    settings = {"sinks": {"mlflow": {"enabled": True}}}
    mirror = {"mirror": f"file://{tmp_path}/mirror"}
    config = make_config(**settings, persistence=mirror)
    train(config, 5)
    shutil.copytree(tmp_path / "root", tmp_path / "copy")
    before = {part: contents(tmp_path / part) for part in ("root", "mirror", "copy/app/mlruns")}
    copied = make_config(**settings, persistence={"root_data_dir": str(tmp_path / "copy"), **mirror})
    record = record_of(run_dir_of(copied))
    with pytest.raises(ConfigurationError, match=r"a copy of run 'run'.*trieye fork"):
        train(copied, 9)
    assert {part: contents(tmp_path / part) for part in before} == before
    assert record_of(run_dir_of(copied)) == record
    assert train(config, 9) == (5, 5.0)


def test_a_new_run_starts_from_a_run_and_not_from_an_older_copy_except_in_a_copied_project(make_config, tmp_path):
    config = make_config()
    train(config, 5)
    shutil.copytree(tmp_path / "root", tmp_path / "copied")
    shutil.copytree(run_dir_of(config), run_dir_of(config).with_name("run_backup"))
    train(config, 8)
    for root, step in (("root", 8), ("copied", 5)):
        settings = {"root_data_dir": str(tmp_path / root), "auto_resume_latest": True}
        assert train(make_config(run_name="new", persistence=settings), 9) == (step, float(step))


@pytest.mark.long
def test_sweep_members_never_start_from_each_other_and_resume_separately(make_config):
    def member(name):
        return make_config(run_name=name, persistence={"auto_resume_latest": True})

    train(member("outside"), 3)
    train(member("one"), 5, group="sweep", first=3)
    assert train(member("two"), 6, group="sweep") == (3, 3.0)
    assert train(member("one"), 7, group="sweep") == (5, 5.0)
    with pytest.raises(ConfigurationError, match="belongs to the sweep"):
        train(member("one"), 8, group="another sweep")


def test_a_new_run_starts_from_the_best_checkpoint_of_a_run_in_another_root(make_config, tmp_path, capsys):
    for steps, objective in ((10, 5.0), (20, 1.0)):
        train(make_config(run_name="teacher"), steps, objective=objective)
    roots = {"root_data_dir": str(tmp_path / "new_root"), "resume_dirs": [str(tmp_path / "root")]}
    student = make_config(run_name="student", persistence={**roots, "load_checkpoint_path": "teacher:best"})
    assert train(student, 12) == (10, 10.0)
    assert "starts from checkpoint_step_10 of 'teacher'" in "".join(capsys.readouterr())
    record = record_of(run_dir_of(student))
    assert (record.went_back_to, record.attempt) == (None, 1)
    assert str(tmp_path / "root") in (record.resumed_from or "")


def saved_within_a_window(make_config, *, steps=(15,), **settings):
    """Save at steps while a window of ten steps is open, log further values, and return the config."""
    mean = {"name": "mean", "raw_event_name": "loss", "aggregation": "mean", "log_frequency_steps": 10}
    config = make_config(stats={"metrics": [mean]}, **settings)
    with trieye.Run(config) as run:
        for step in range(1, max(steps) + 3):
            run.step = step
            run.log("loss", float(step))
            if step in steps:
                run.save(weights=np.full(3, float(step)))
    return config


def windows_when_resumed(config, *, to):
    """Resume up to a step, and return step, mean and number of events of each point."""
    with trieye.Run(config) as run:
        assert run.restore()
        for step in range(run.step + 1, to + 1):
            run.step = step
            run.log("loss", float(step))
        run.save()
    table = read_history(run_dir_of(config))
    return [(row["step"], row["value"], row["count"]) for row in table.to_pylist() if row["metric"] == "mean"]


WHOLE_WINDOWS = [(10, 5.5, 10), (20, 15.5, 10)]


def test_the_hub_state_is_a_small_file_that_only_a_resume_reads(make_config):
    config = make_config()
    with trieye.Run(config) as run:
        run.step = 15
        run.log({f"metric_{number}": 1.0 for number in range(1000)})
        path = run.save(weights=np.ones(3)).wait()
    assert (path / MANIFEST_NAME).stat().st_size < 2000
    assert (path / HUB_NAME).stat().st_size < 100 * 1000
    # other content, with a matching manifest
    manifest = read_manifest(path)
    (path / HUB_NAME).write_bytes(b"no state of a hub")
    size_bytes, crc32, _ = sums_of(path / HUB_NAME)
    entry = manifest.files[HUB_NAME].model_copy(update={"size_bytes": size_bytes, "crc32": crc32})
    (path / MANIFEST_NAME).unlink()
    write_manifest(path, manifest.model_copy(update={"files": {**manifest.files, HUB_NAME: entry}}))
    assert load_checkpoint(run_dir_of(config), "latest").objects["weights"].tolist() == [1, 1, 1]
    assert train(make_config(run_name="student", persistence={"load_checkpoint_path": "run:latest"}), 16)[0] == 15
    with pytest.raises(CheckpointError, match="checkpoint_step_15 does not hold the state of a hub"):
        train(config, 20)


def test_a_format_2_checkpoint_with_the_hub_in_its_manifest_resumes_within_a_window(make_config):
    config = saved_within_a_window(make_config)
    path = run_dir_of(config) / "checkpoints" / "checkpoint_step_15"
    manifest = read_manifest(path)
    hub = unpack_state(zlib.decompress((path / HUB_NAME).read_bytes()))
    assert hub["stats"]["windows"]["mean"]["open"]
    files = {name: entry for name, entry in manifest.files.items() if name != HUB_NAME}
    (path / HUB_NAME).unlink()
    (path / MANIFEST_NAME).unlink()
    metadata = {**manifest.metadata, "hub": hub}
    write_manifest(path, manifest.model_copy(update={"format": 2, "files": files, "metadata": metadata}))
    assert main(["verify", str(run_dir_of(config))]) == 0
    assert windows_when_resumed(config, to=20) == WHOLE_WINDOWS


@pytest.mark.parametrize("damage", [flip, cut, Path.unlink])
def test_a_run_with_a_damaged_hub_state_resumes_from_the_previous_checkpoint(make_config, damage):
    config = saved_within_a_window(make_config, steps=(14, 15))
    damage(run_dir_of(config) / "checkpoints" / "checkpoint_step_15" / HUB_NAME)
    assert windows_when_resumed(config, to=20) == WHOLE_WINDOWS
    names = {path.name for path in (run_dir_of(config) / "checkpoints").iterdir()}
    assert names >= {"checkpoint_step_14", "checkpoint_step_15.damaged", "checkpoint_step_20"}


def test_a_run_rejects_its_checkpoint_of_the_drop_in_api(make_config):
    config = make_config()
    logic = ActorLogic(config).open()
    logic.save_training_state(**training_state(3))
    logic.shutdown("KILLED")
    with pytest.raises(CheckpointError, match=r"saved by save_training_state.*Serializer\(\)\.load_checkpoint"):
        train(config, 5)
    loaded = Serializer().load_checkpoint(logic.files.paths.get_checkpoint_path(3))
    assert loaded is not None
    assert loaded.model_state_dict == {"w": 1.0}


def test_a_missing_checkpoint_is_rejected_before_the_run_is_created(make_config):
    train(make_config(run_name="teacher"), 10)
    student = make_config(run_name="student", persistence={"load_checkpoint_path": "teecher:best"})
    with pytest.raises(ConfigurationError, match="no run 'teecher'; did you mean 'teacher'"):
        trieye.Run(student).open()
    assert not run_dir_of(student).exists()


def test_a_copied_run_in_the_same_root_is_rejected_also_while_its_original_has_another_name(make_config):
    config = make_config(run_name="first")
    train(config, 5)
    copy = shutil.copytree(run_dir_of(config), run_dir_of(config).with_name("copy"))
    with pytest.raises(ConfigurationError, match=r"a copy of run 'first'.*load_checkpoint_path=first:latest"):
        train(make_config(run_name="copy"), 9)
    original = run_dir_of(config).rename(copy.with_name("renamed"))
    with pytest.raises(ConfigurationError, match=f"a copy of run 'renamed' .{original}"):
        train(make_config(run_name="copy"), 9)
    assert train(make_config(run_name="renamed"), 9) == (5, 5.0)


@pytest.mark.long
def test_warnings_are_printed_if_the_program_configures_no_logging(tmp_path):
    program = """
import sys, trieye
config = trieye.TrieyeConfig(
    app_name="app", run_name="run", runtime={"kind": "local"}, sinks={}, persistence={"root_data_dir": sys.argv[1]}
)
with trieye.Run(config) as run:
    run.restore()
    for step in range(run.step + 1, run.step + 3):
        run.step = step
        run.save(weights=[1.0]).wait()
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True)
    (tmp_path / "app" / "runs" / "run" / "checkpoints" / "checkpoint_step_2" / "state.json").write_text("{}")
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("trieye: WARNING: ")) == (0, 1), done.stderr
    assert "checkpoint_step_2 is damaged and was renamed to checkpoint_step_2.damaged" in done.stderr


@pytest.mark.parametrize("depth", [150, 5000])
def test_an_excessively_nested_config_file_is_rewritten(make_config, depth, capsys):
    config = make_config()
    train(config, 2)
    path = run_dir_of(config) / "configs.json"
    path.write_text('{"agent": ' * depth + "1" + "}" * depth)
    assert main(["verify", str(run_dir_of(config))]) == 1
    assert "nested" in capsys.readouterr().out
    assert train(config, 3) == (2, 2.0)
    assert json.loads(path.read_bytes())["run_name"] == "run"


def test_a_run_record_with_a_path_as_run_name_is_rejected(make_config):
    config = make_config()
    train(config, 2)
    path = run_dir_of(config) / "run.json"
    path.write_text(path.read_text().replace('"run_name": "run"', '"run_name": "../../elsewhere"'))
    with pytest.raises(SerializationError, match="is not a complete run record"), trieye.Run(config):
        pass


@pytest.mark.parametrize("key", ["short", "open to others"])
def test_a_run_with_an_unusable_signing_key_does_not_start(make_config, monkeypatch, tmp_path, key):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    if key == "short":
        monkeypatch.setenv("TRIEYE_KEY", "short")
    else:
        signing.load_key()
        signing.key_path().chmod(0o644)
    config = make_config()
    with pytest.raises(ConfigurationError, match="the key that signs pickled parts"), trieye.Run(config):
        pass
    with pytest.raises(ConfigurationError, match="the key that signs pickled parts"):
        ActorLogic(config).open()
    assert not run_dir_of(config).exists()


def test_without_a_key_directory_only_pickled_saves_fail(make_config, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("no directory")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    config = make_config()
    train(config, 2)
    assert train(config, 3) == (2, 2.0)
    with trieye.Run(config) as run:
        run.step = 4
        with pytest.raises(CheckpointError, match=r"objects/odd: saved as pickle.*set TRIEYE_KEY_FILE"):
            run.save(odd=range(3)).wait()
        with pytest.raises(CheckpointError):
            run.wait_for_saves()


def bytes_read():
    """Return the number of bytes that this process has read from files."""
    return int(Path("/proc/self/io").read_text().split()[1])


def share_read(call, size_bytes):
    before = bytes_read()
    call()
    return (bytes_read() - before) / size_bytes


def size_of(*directories):
    return sum(path.stat().st_size for directory in directories for path in directory.rglob("*") if path.is_file())


@pytest.mark.long
@pytest.mark.parametrize("reference", [None, "best", "latest", "step:1"])
def test_a_restore_reads_each_byte_of_a_checkpoint_once_and_closing_reads_none(make_config, reference):
    def restore():
        with_rows.append(run.restore() and len(run.replay))

    with_rows = []
    config = make_config(persistence={"load_checkpoint_path": reference}, replay={"capacity": 4000})
    with trieye.Run(make_config(replay={"capacity": 4000})) as run:
        run.replay.extend({"obs": np.random.default_rng(0).random((4000, 128))})
        run.step = 1
        saved = run.save(objective=1.0, weights=np.random.default_rng(0).random(500_000)).wait()
    run = trieye.Run(config).open()
    run.log("opened", 1.0)  # starts the hub
    wait_until((run.dir / "provenance" / "attempt-2.json").exists)  # the thread of the hub also reads files
    assert 1.0 <= share_read(restore, size_of(saved)) < 1.05
    assert with_rows == [4000]
    run.log("loss", 1.0)
    assert share_read(run.close, size_of(saved)) < 0.05
    # the rows stay on disk until they are used
    assert 0.4 < share_read(lambda: load_checkpoint(run.dir).objects["weights"], size_of(saved)) < 0.55


def test_the_drop_in_api_reads_each_byte_of_checkpoint_and_buffer_once(make_config):
    config = make_config(persistence={"auto_resume_latest": True})
    logic = ActorLogic(config).open()
    state = {"w": np.random.default_rng(0).random(500_000)}
    buffer = [np.random.default_rng(0).random(500_000)]
    logic.save_training_state(**training_state(1, nn_state_dict=state, buffer_content=buffer, save_buffer=True))
    logic.shutdown()
    logic, loaded = ActorLogic(config).open(), []
    saved = size_of(run_dir_of(config) / "checkpoints", run_dir_of(config) / "buffers")
    assert 1.0 <= share_read(lambda: loaded.append(logic.load_initial_state()), saved) < 1.05
    assert np.array_equal(loaded[0].checkpoint_data.model_state_dict["w"], state["w"])
    assert len(loaded[0].buffer_data.buffer_list) == 1
    assert share_read(logic.shutdown, saved) < 0.05
