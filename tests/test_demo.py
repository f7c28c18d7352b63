"""The demo trains, is killed, resumes, solves CartPole and plots its curve."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[1] / "demo" / "run.py"


@pytest.mark.slow
@pytest.mark.long
def test_the_demo_is_killed_resumes_and_solves_cartpole(tmp_path):
    command = [sys.executable, str(DEMO), "--folder", str(tmp_path)]
    demo = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert demo.returncode == 0, demo.stdout + demo.stderr
    project = tmp_path / "demo_agent"
    kill = json.loads((project / "demo_seed0_killed.json").read_text())
    assert 40_000 <= kill["resumed_from"] <= kill["killed_at"] < 100_000
    record = json.loads((project / ".trieye_data/demo_agent/runs/demo_seed0/run.json").read_text())
    assert (record["status"], record["attempt"]) == ("FINISHED", 2)
    assert record["summary"]["eval/return"]["last"] >= 475.0
    assert f"killed at step {kill['killed_at']:,}, resumed from {kill['resumed_from']:,}" in demo.stdout
    assert (project / "curve.png").stat().st_size > 5000
