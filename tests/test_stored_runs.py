"""Projects with a finished run, as earlier commits wrote them, open, verify, act and resume with this one.

Each archive in `tests/stored/` holds a generated project and its data: made with `trieye new stored_agent`, then
`python -m stored_agent.train runtime=local run_name=stored agent.hidden_sizes=[8] replay.capacity=120
loop.env_steps=150 agent.learning_starts=64 agent.batch_size=16`. Never make an archive again: add one.
"""

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import torch

import trieye
from trieye import runs
from trieye.cli import main
from trieye.results import load

ARCHIVES = sorted((Path(__file__).parent / "stored").glob("*.tar.xz"))


@pytest.fixture(scope="module", params=ARCHIVES, ids=lambda path: path.name.partition(".")[0])
def project(request, tmp_path_factory, warm_programs):
    """A project in a directory other than the one where it was made."""
    root = tmp_path_factory.mktemp("stored")
    with tarfile.open(request.param) as archive:
        archive.extractall(root, filter="data")
    return root / "stored_agent"


@pytest.fixture
def run_dir(project):
    return project / ".trieye_data/stored_agent/runs/stored"


def test_a_stored_run_is_intact(run_dir, capsys):
    assert main(["verify", str(run_dir)]) == 0
    assert "155" in capsys.readouterr().out


def test_a_stored_run_has_its_curves(run_dir):
    (series,) = load(str(run_dir)).series("progress/env_steps")
    assert series.values[-1] == 155
    assert json.loads((run_dir / "run.json").read_text())["summary"]["progress/updates"]["last"] == 45


def test_a_stored_policy_has_its_weights(project, run_dir, monkeypatch):
    monkeypatch.syspath_prepend(str(project))
    values = trieye.load_policy(run_dir)(torch.zeros(2, 4))
    assert values.shape == (2, 2)
    assert values[0].tolist() == pytest.approx([0.1938, -0.1652], abs=1e-4)


def test_the_config_of_a_stored_run_has_the_current_keys(run_dir):
    """All archives before December 2026 have the keys that were renamed then."""
    stored = json.loads((run_dir / "configs.json").read_text())
    assert (stored["tune"]["grace"], stored["explorer"]["steps"], stored["bench"]["which"]) == (1, None, "each")
    config = trieye.TrieyeConfig.of_run(run_dir)
    assert (config.tune.grace_period, config.stats.hub_metrics_interval_s, config.sinks.log_config) == (1, 30, True)
    assert runs.get(run_dir).config["explorer"]["max_in_flight"] == 2
    assert runs.select([runs.get(run_dir)], where={"explorer.max_in_flight": "2"}) != []
    with pytest.raises(
        trieye.ConfigurationError, match=r"in_flight=2: explorer.in_flight was renamed to explorer.max_"
    ):
        runs.select([runs.get(run_dir)], where={"explorer.in_flight": "2"})


def test_overrides_of_a_stored_run_are_rerun_with_the_current_keys(project, run_dir, capsys):
    attempt = run_dir / "provenance/attempt-1.json"
    recorded = attempt.read_text()
    old = ["tune.grace=3", "++explorer.in_flight=3", "loop.evaluate_beside=true"]
    values = json.loads(recorded)
    values |= {"directory": str(project), "overrides": [*values["overrides"], *old]}
    attempt.write_text(json.dumps(values))
    try:
        assert main(["rerun", str(run_dir), "--dry-run", "--yes", "--json"]) == 0
    finally:
        attempt.write_text(recorded)
    printed = capsys.readouterr()
    rerun = json.loads(printed.out)
    new = ["tune.grace_period=3", "++explorer.max_in_flight=3", "loop.background_evaluation=true"]
    assert rerun["command"][-4:-1] == new
    assert set(rerun["changes"]["config"]) >= {"tune.grace_period", "explorer.max_in_flight"}
    assert "tune.grace=3 was renamed to tune.grace_period=3" in printed.err


@pytest.mark.long
def test_a_stored_run_resumes_with_its_unchanged_project(project, run_dir):
    assert main(["claim", str(run_dir)]) == 0  # the directory is a copy until then
    assert (run_dir / "journal-witness.jsonl").exists()
    options = ["runtime=local", "run_name=stored", "agent.hidden_sizes=[8]", "replay.capacity=120"]
    limits = ["loop.env_steps=220", "agent.learning_starts=64", "agent.batch_size=16"]
    command = [sys.executable, "-m", "stored_agent.train", *options, *limits]
    ended = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    record = json.loads((run_dir / "run.json").read_text())
    assert (record["status"], record["attempt"]) == ("FINISHED", 2)
    summary = record["summary"]
    assert summary["progress/env_steps"]["last"] >= 220
    assert summary["progress/updates"]["last"] > 45  # the count continues from the checkpoint
    assert main(["verify", str(run_dir)]) == 0
    assert {path.name for path in run_dir.glob("*.jsonl")} == {"journal-watermark.jsonl"}
