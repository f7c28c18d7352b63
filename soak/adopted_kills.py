"""Kill and restart programs that were written for other loggers and use trieye by one changed import.

Each program is one file. It is killed with SIGKILL several times and restarted until it completes. Then MLflow must
have every acknowledged value, the history and TensorBoard must show the same values exactly once, and all attempts must
belong to one run.
"""

import argparse
import json
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

DIRECTORY = Path(__file__).parent / "scripts"
LINES = {
    "tensorboard": ("from torch.utils.tensorboard import", "from trieye.integrations.tensorboard import"),
    "wandb": ("import wandb\n", "import trieye.integrations.wandb as wandb\n"),
}
"""The import of each logger and its replacement."""

SCRIPTS = [f"{algorithm}_{logger}" for logger in LINES for algorithm in ("dqn", "ppo", "sac")]

DEADLINE_S = 300.0

NEVER_DONE = ["--total-timesteps", "1000000"]
"""Options of a start that is killed: another start after a complete one is another run with `resume="auto"`."""


def run_killed(program: Path, kills: int) -> list[str]:
    """Kill a program `kills` times, run it until it completes, and return the problems."""
    words = [sys.executable, program.name, "--run-name", "killed"]
    with (program.parent / "log").open("ab") as log:
        for _ in range(kills):
            process = subprocess.Popen([*words, *NEVER_DONE], cwd=program.parent, stdout=log, stderr=log)
            deadline = time.monotonic() + DEADLINE_S
            before = num_entries(program.parent)
            while num_entries(program.parent) < before + 20 and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)
            time.sleep(random.uniform(0.0, 1.0))
            process.kill()
            process.wait()
        code = subprocess.run(
            words, cwd=program.parent, stdout=log, stderr=log, timeout=DEADLINE_S, check=False
        ).returncode
    text = (program.parent / "log").read_text(errors="replace")
    return [f"exited with {code}: {text[-2000:]}"] if code else []


def num_entries(root: Path) -> int:
    """Return the number of entries in the journal of the run."""
    for path in root.glob(".trieye_data/*/runs/*/journal.db"):
        try:
            with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as journal:
                return int(journal.execute("SELECT max(pos) FROM records").fetchone()[0] or 0)
        except sqlite3.Error:
            return 0
    return 0


def check(root: Path, kills: int) -> tuple[dict[str, Any], list[str]]:
    """Compare the history, TensorBoard and MLflow."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from trieye.files.run_record import RunRecord
    from trieye.history.history import read_history

    problems = []
    (run_dir,) = root.glob(".trieye_data/*/runs/*")
    record = RunRecord.read(run_dir / "run.json")
    if record is None or (record.attempt, record.status) != (kills + 1, "FINISHED"):
        problems.append(f"not FINISHED after {kills + 1} attempts: {record}")
    table = read_history(run_dir)
    rows = zip(*(table[name].to_pylist() for name in ("metric", "step", "value")), strict=True)
    history = Counter((name, step, round(value, 4)) for name, step, value in rows)
    repeated = [key for key, count in history.items() if count > 1 and not key[0].startswith("charts/")]
    if repeated:
        problems.append(f"more than once in the history: {repeated[:3]}")
    accumulator = EventAccumulator(str(run_dir), size_guidance={"scalars": 0})
    accumulator.Reload()
    events = Counter(
        (tag, event.step, round(event.value, 4))
        for tag in accumulator.Tags()["scalars"]
        for event in accumulator.Scalars(tag)
    )
    if {key[:2] for key in events} != {key[:2] for key in history} or events.total() != history.total():
        problems.append(f"TensorBoard shows {events.total()} values, the history {history.total()}")
    with sqlite3.connect(next(root.glob(".trieye_data/*/mlruns/mlflow.db"))) as store:
        stored = list(store.execute("SELECT key, step, value, timestamp FROM metrics"))
        runs = store.execute("SELECT count(*) FROM runs").fetchone()[0]
    in_mlflow = Counter((name, step, round(value, 4)) for name, step, value, _ in stored)
    missing = history - in_mlflow
    if missing:
        warnings = [line for line in (root / "log").read_text(errors="replace").splitlines() if "WARNING" in line]
        problems.append(f"{missing.total()} values are not in MLflow: {list(missing)[:3]}; {warnings[-3:]}")
    if runs != 1 or max(Counter(stored).values()) > 1:
        problems.append(f"MLflow has {runs} runs, or a value twice")
    return {"values": history.total(), "in_mlflow": len(stored)}, problems


def main() -> int:
    """Print one JSON line; exit with 1 if there is a problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--kills", type=int, default=3, help="kills of each program")
    parser.add_argument("--only", choices=SCRIPTS, help="run only this program")
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    problems: list[str] = []
    for name in SCRIPTS:
        if options.only not in {None, name}:
            continue
        root = Path(tempfile.mkdtemp())
        try:
            before, after = LINES[name.partition("_")[2]]
            text = (DIRECTORY / f"{name}.py").read_text()
            assert text.count(before) == 1, name
            (root / "program.py").write_text(text.replace(before, after))
            if not (program_problems := run_killed(root / "program.py", options.kills)):
                figures[name], program_problems = check(root, options.kills)
            problems += [f"{name}: {problem}" for problem in program_problems]
        finally:
            shutil.rmtree(root, ignore_errors=True)
    print(json.dumps({"benchmark": "adopted_kills", **figures, "problems": problems[:10], "met": not problems}))
    return 0 if not problems else 1


if __name__ == "__main__":
    sys.exit(main())
