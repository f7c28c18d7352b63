import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.damage import contents, flip
from tests.snapshot.growing import Log
from trieye.checkpoints.manifest import read_manifest
from trieye.checkpoints.store import CheckpointStore
from trieye.cli import main
from trieye.files.run_files import BUFFER_PREFIX
from trieye.files.run_record import RunRecord
from trieye.snapshot.encode import encode

DATA = Path(__file__).parents[1] / "checkpoints" / "data"


@pytest.fixture
def run_dir(tmp_path):
    """A run `first` of the app `agents` with checkpoints of steps 10, 20 and 30, the second one the best."""
    run_dir = tmp_path / "root" / "agents" / "runs" / "first"
    RunRecord(app_name="agents", run_name="first").save(run_dir / "run.json")
    store, replay = CheckpointStore(run_dir / "checkpoints"), Log()
    part_names = set()
    for step, objective in ((10, 1.5), (20, 7.25), (30, None)):
        replay.extend(100)
        metadata = {"objective": objective, "mode": "max", "attempt": 1}
        path = store.save(
            step, encode({"replay": replay, "a": np.zeros(step)}, known_parts=part_names), metadata=metadata
        )
        part_names = read_manifest(path).part_names
    return run_dir


def part(run_dir, step):
    """Return the part with the new rows of a step, in the checkpoint of that step."""
    (path,) = run_dir.glob(f"checkpoints/checkpoint_step_{step}/parts/seg-{10 * step - 100}-*")
    return path


def listing(run_dir, capfd, *words):
    code = main(["checkpoints", str(run_dir), "--json", *words])
    document = json.loads(capfd.readouterr().out)
    return code, document, {row["step"]: row for row in document["checkpoints"]}


def test_the_table_lists_checkpoints_and_changes_nothing(run_dir, tmp_path, command):
    before = contents(run_dir)
    shown = command.output("checkpoints", "first", "--root", tmp_path / "root")
    rows = [line.split() for line in shown.splitlines()]
    assert [row[0] for row in rows if row and row[0].isdigit()] == ["10", "20", "30"]
    (best,) = [row for row in rows if "best" in row]
    (latest,) = [row for row in rows if "latest" in row]
    assert (best[0], best[3], latest[0]) == ("20", "7.25", "30")
    assert "sizes fit" in shown
    assert "without shared parts" in shown
    assert contents(run_dir) == before


def test_the_state_at_an_error_is_listed_with_the_key_that_starts_another_run_from_it(run_dir, command, capfd):
    shutil.copytree(run_dir / "checkpoints/checkpoint_step_30", run_dir / "checkpoints/crash-35")
    assert f"persistence.load_checkpoint_path={run_dir.name}:crash-35" in command.output("checkpoints", run_dir)
    _, document, rows = listing(run_dir, capfd)
    assert [(row["name"], row["step"], row["state"]) for row in document["crashes"]] == [("crash-35", 35, "sizes fit")]
    assert 35 not in rows
    (run_dir / "checkpoints/crash-35/MANIFEST.json").write_text("{")
    assert listing(run_dir, capfd)[0] == 1


def test_json_has_every_field_of_a_checkpoint(run_dir, capfd):
    code, document, rows = listing(run_dir, capfd, "--verify")
    assert (code, document["run_dir"], document["buffers"]) == (0, str(run_dir), [])
    assert [row["marks"] for row in document["checkpoints"]] == [[], ["best"], ["latest"]]
    assert [row["objective"] for row in document["checkpoints"]] == [1.5, 7.25, None]
    assert {row["state"] for row in document["checkpoints"]} == {"whole"}
    assert rows[30]["attempt"] == 1
    assert rows[30]["saved"] >= rows[10]["saved"]


def test_shared_bytes_count_linked_files_once(run_dir, capfd):
    _, document, rows = listing(run_dir, capfd)
    size = part(run_dir, 10).stat().st_size
    assert [rows[step]["shared_bytes"] for step in (10, 20, 30)] == [size, 2 * size, 2 * size]
    total_bytes = sum(row["size_bytes"] for row in document["checkpoints"])
    assert total_bytes - document["disk_bytes"] == 3 * size
    files = [path.stat() for path in (run_dir / "checkpoints").rglob("*") if path.is_file()]
    assert document["disk_bytes"] == sum({stat.st_ino: stat.st_size for stat in files}.values())


def test_damage_of_the_same_size_is_detected_by_reading(run_dir, command, capfd):
    flip(part(run_dir, 30))
    assert listing(run_dir, capfd)[0] == 0
    code, _, rows = listing(run_dir, capfd, "--verify")
    assert (code, rows[30]["state"], rows[30]["marks"]) == (1, "partial", ["latest"])
    assert rows[20]["marks"] == ["best"]
    (problem,) = rows[30]["problems"]
    assert f"{part(run_dir, 30)} is damaged: its checksum does not match" in problem
    assert rows[30]["lost_rows"] == ["200-299"]
    code, out, _ = command("checkpoints", run_dir, "--verify")
    assert (code, "checkpoint_step_30: replay rows 200-299 are lost" in out) == (1, True)
    code, out, _ = command("verify", run_dir)
    assert (code, "rows 200-299 of the replay of step 30 are lost" in " ".join(out.split())) == (1, True)


def test_each_damaged_file_is_named_by_checkpoints_and_by_verify(run_dir, capfd):
    directory = run_dir / "checkpoints" / "checkpoint_step_30"
    (directory / "state.json").unlink()
    (directory / "state.safetensors").write_bytes(b"")
    flip(part(run_dir, 30))
    names = ("state.json", "state.safetensors", f"parts/{part(run_dir, 30).name}")
    problems = listing(run_dir, capfd, "--verify")[2][30]["problems"]
    assert [sum(str(directory / name) in problem for problem in problems) for name in names] == [1, 1, 1]
    assert main(["verify", str(run_dir)]) == 1
    shown = "".join(capfd.readouterr().out.split())
    assert all(f"checkpoint_step_30/{name}isdamaged" in shown for name in names)
    assert "ofstep20,isusedinstead" in shown


def test_a_damaged_shared_part_affects_each_checkpoint_that_links_it(run_dir, capfd):
    flip(part(run_dir, 10))
    code, document, _ = listing(run_dir, capfd, "--verify")
    assert code == 1
    assert [row["state"] for row in document["checkpoints"]] == ["partial"] * 3


def test_a_quarantined_checkpoint_is_listed_and_not_a_failure(run_dir, capfd):
    flip(run_dir / "checkpoints" / "checkpoint_step_30" / "MANIFEST.json")
    assert listing(run_dir, capfd)[2][30]["state"] == "damaged"
    assert CheckpointStore(run_dir / "checkpoints").latest().step == 20
    code, _, rows = listing(run_dir, capfd)
    assert (code, rows[30]["name"], rows[30]["state"]) == (0, "checkpoint_step_30.damaged", "set aside")
    assert rows[20]["marks"] == ["best", "latest"]


def test_a_symbolic_link_is_not_a_checkpoint(run_dir, tmp_path, capfd):
    (run_dir / "checkpoints" / "checkpoint_step_40").symlink_to(run_dir / "checkpoints" / "checkpoint_step_30")
    code, _, rows = listing(run_dir, capfd)
    assert (code, rows[40]["state"], rows[40]["marks"]) == (1, "link", [])
    assert main(["verify", str(run_dir)]) == 1


def test_buffers_and_files_of_0_1_5_are_listed(run_dir, command, capfd):
    CheckpointStore(run_dir / "buffers", prefix=BUFFER_PREFIX).save(20, encode({"buffer_list": [1]}))
    shutil.copy(DATA / "checkpoint_0_1_5.pkl", run_dir / "checkpoints" / "checkpoint_step_9.pkl")
    code, document, rows = listing(run_dir, capfd)
    assert (code, rows[9]["state"]) == (0, "0.1.5")
    assert [row["name"] for row in document["buffers"]] == ["buffer_step_20"]
    assert "trieye convert" in command.output("checkpoints", run_dir)


def test_a_run_without_checkpoints_and_a_missing_run_are_reported(run_dir, tmp_path, command):
    shutil.rmtree(run_dir / "checkpoints")
    assert "no checkpoints" in command.output("checkpoints", run_dir)
    assert "did you mean 'first'" in command.error("checkpoints", "frist", "--root", tmp_path / "root")
