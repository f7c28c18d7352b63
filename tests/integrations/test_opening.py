"""The status of runs that end with their program."""

import json
import subprocess
import sys
from pathlib import Path

PROGRAM = """
from trieye.integrations.opening import AdoptedRun

overrides = {"sinks": {"mlflow": {"enabled": False}}, "persistence": {"auto_resume_latest": True, "root_data_dir": "."}}
run = AdoptedRun.join("first", app="app", **overrides).run
state = {"loss": 1.0}
run.restore(state=state)
for step in run.steps(run.step + 3):
    run.log(state)
run.save(state=state)
"""


def test_a_resumed_run_finishes_with_its_program(tmp_path):
    for attempt in (1, 2):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120
        )
        record = json.loads(Path(tmp_path, "app/runs/first/run.json").read_text())
        assert (record["attempt"], record["status"]) == (attempt, "FINISHED")
        assert "was not closed" not in done.stderr
