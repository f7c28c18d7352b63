"""A sweep on a real cluster that loses one node."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.long
def test_twelve_jobs_on_three_nodes_complete_despite_the_loss_of_one(tmp_path):
    command = [sys.executable, str(Path(__file__).with_name("lost_node.py")), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=290)
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["nodes"] == 3, report["printed"]
    assert report["code"] == 0, report["printed"]
    assert [(job["state"], job["objective"]) for job in report["jobs"].values()] == [("completed", 60.0)] * 12
    lost = report["jobs"][report["victim"]]
    assert (lost["attempt"], lost["deaths"]) == (2, 1)
    assert "checkpoint_step_" in report["run"]["resumed_from"]
