"""Kill programs that were written for other loggers, and that one changed line made runs of; start them again.

Each is one file, unchanged but for that line. It is killed with -9 some times and started again until it ends. Then
every value that was acknowledged is in MLflow; the history and TensorBoard show the same values, each once; and the run
is one.
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

HERE = Path(__file__).parent / "scripts"
LINES = {
    "tensorboard": ("from torch.utils.tensorboard import", "from trieye.integrations.tensorboard import"),
    "wandb": ("import wandb\n", "import trieye.integrations.wandb as wandb\n"),
}
"""The line that changes, by the logger."""

SCRIPTS = [f"{algorithm}_{logger}" for logger in LINES for algorithm in ("dqn", "ppo", "sac")]

DEADLINE_S = 300.0


def killed(program: Path, kills: int) -> list[str]:
    """Run a program until it ends, killed so many times before; return what went wrong."""
    words = [sys.executable, program.name, "--run-name", "killed"]
    with (program.parent / "log").open("ab") as log:
        for _ in range(kills):
            process = subprocess.Popen(words, cwd=program.parent, stdout=log, stderr=log)
            deadline = time.monotonic() + DEADLINE_S
            before = accepted(program.parent)
            while accepted(program.parent) < before + 20 and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)
            time.sleep(random.uniform(0.0, 1.0))
            process.kill()
            process.wait()
        code = subprocess.run(
            words, cwd=program.parent, stdout=log, stderr=log, timeout=DEADLINE_S, check=False
        ).returncode
    text = (program.parent / "log").read_text(errors="replace")
    return [f"it ended with {code}: {text[-2000:]}"] if code else []


def accepted(root: Path) -> int:
    """Return how many records the journal of the run has taken."""
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
        problems.append(f"the run is {record}")
    table = read_history(run_dir)
    rows = zip(*(table[name].to_pylist() for name in ("metric", "step", "value")), strict=True)
    history = Counter((name, step, round(value, 4)) for name, step, value in rows)
    again = [key for key, count in history.items() if count > 1 and not key[0].startswith("charts/")]
    if again:
        problems.append(f"more than once in the history: {again[:3]}")
    shown = EventAccumulator(str(run_dir), size_guidance={"scalars": 0})
    shown.Reload()
    events = Counter(
        (tag, one.step, round(one.value, 4)) for tag in shown.Tags()["scalars"] for one in shown.Scalars(tag)
    )
    if {key[:2] for key in events} != {key[:2] for key in history} or events.total() != history.total():
        problems.append(f"TensorBoard shows {events.total()} values, the history {history.total()}")
    with sqlite3.connect(next(root.glob(".trieye_data/*/mlruns/mlflow.db"))) as store:
        stored = list(store.execute("SELECT key, step, value, timestamp FROM metrics"))
        runs = store.execute("SELECT count(*) FROM runs").fetchone()[0]
    in_mlflow = Counter((name, step, round(value, 4)) for name, step, value, _ in stored)
    missing = history - in_mlflow
    if missing:
        said = [line for line in (root / "log").read_text(errors="replace").splitlines() if "WARNING" in line]
        problems.append(f"{missing.total()} values are not in MLflow: {list(missing)[:3]}; {said[-3:]}")
    if runs != 1 or max(Counter(stored).values()) > 1:
        problems.append(f"MLflow has {runs} runs, or a value twice")
    return {"values": history.total(), "in_mlflow": len(stored)}, problems


def main() -> int:
    """Print one JSON line; the exit code says whether all is well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--kills", type=int, default=3, help="of each program")
    parser.add_argument("--only", choices=SCRIPTS, help="one of the programs")
    options = parser.parse_args()
    found: dict[str, Any] = {}
    problems: list[str] = []
    for name in SCRIPTS:
        if options.only not in {None, name}:
            continue
        root = Path(tempfile.mkdtemp())
        try:
            before, after = LINES[name.partition("_")[2]]
            text = (HERE / f"{name}.py").read_text()
            assert text.count(before) == 1, name
            (root / "program.py").write_text(text.replace(before, after))
            own = killed(root / "program.py", options.kills)
            found[name], more = check(root, options.kills) if not own else ({}, [])
            problems += [f"{name}: {problem}" for problem in own + more]
        finally:
            shutil.rmtree(root, ignore_errors=True)
    print(json.dumps({"benchmark": "adopted_kills", **found, "problems": problems[:10], "met": not problems}))
    return 0 if not problems else 1


if __name__ == "__main__":
    sys.exit(main())
