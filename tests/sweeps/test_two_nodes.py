"""A sweep on a real cluster of two nodes, of which one is lost."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.long
def test_jobs_of_a_node_that_is_lost_go_on_from_their_checkpoints_on_another(tmp_path):
    command = [sys.executable, str(Path(__file__).with_name("two_nodes.py")), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["nodes"] == 2, told["printed"]
    assert told["code"] == 0, told["printed"]
    assert {job["state"] for job in told["jobs"].values()} == {"completed"}
    assert {job["objective"] for job in told["jobs"].values()} == {60.0}
    lost = told["jobs"][told["victim"]]
    assert (lost["attempt"], lost["deaths"]) == (2, 1)
    assert "checkpoint_step_" in told["run"]["resumed_from"]


@pytest.mark.slow
@pytest.mark.long
def test_twelve_jobs_on_three_nodes_of_which_one_is_lost_half_way_are_all_completed(tmp_path):
    command = [sys.executable, str(Path(__file__).with_name("two_nodes.py")), str(tmp_path), "3", "12"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=290)
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["nodes"] == 3, told["printed"]
    assert told["code"] == 0, told["printed"]
    assert [(job["state"], job["objective"]) for job in told["jobs"].values()] == [("completed", 60.0)] * 12
    lost = told["jobs"][told["victim"]]
    assert (lost["attempt"], lost["deaths"]) == (2, 1)
    assert "checkpoint_step_" in told["run"]["resumed_from"]
