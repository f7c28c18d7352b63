"""Kill `make reference` at random times, restart it immediately, and check that no completed job runs again.

Each kill ends the process group of `benchmarks/reference/run.py`, including the sweep that it runs, with SIGKILL. At
the end, the records of all jobs that were completed before a kill must be unchanged, and the curves must be stored.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SWEEPS = ROOT / ".reference/sweeps"


def completed() -> dict[str, tuple[float, float, int]]:
    """Return start, end and attempt of each completed job, by its directory."""
    jobs = {}
    for path in SWEEPS.glob("*/*/*/*/status.json"):
        with contextlib.suppress(ValueError):  # being replaced
            record = json.loads(path.read_text())
            if record["state"] == "completed":
                jobs[str(path.parent.relative_to(SWEEPS))] = (record["started"], record["ended"], record["attempt"])
    return jobs


def start(words: list[str], log: Path) -> subprocess.Popen[bytes]:
    """Start the reference tables in a separate process group."""
    command = [sys.executable, str(ROOT / "benchmarks/reference/run.py"), *words]
    with log.open("ab") as file:
        return subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)


def main() -> None:
    """Run the tables, kill them, and report; exit with 1 if a completed job started again or kills are missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", default=["classic"], help="arguments of run.py (default: classic)")
    parser.add_argument("--cell", nargs="*", default=[], help="cells to run (default: all)")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--longest-s", type=float, default=150.0, help="longest time between two kills")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    words = [*options.words, *(["--cell", *options.cell] if options.cell else [])]
    generator, log = random.Random(options.seed), ROOT / ".reference/kills.log"
    before: dict[str, tuple[float, float, int]] = {}
    kills = 0
    while True:
        process = start(words, log)
        wait_s = generator.uniform(5.0, options.longest_s) if kills < options.kills else None
        try:
            code = process.wait(wait_s)
            break
        except subprocess.TimeoutExpired:
            before |= completed()
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            kills += 1
            print(f"{time.strftime('%T')} kill {kills}: {len(before)} jobs completed", flush=True)
    after = completed()
    repeated = {job: (before[job], after.get(job)) for job in before if before[job] != after.get(job)}
    print(json.dumps({"soak": "reference_kills", "kills": kills, "exit_code": code, "jobs": len(after),
                      "completed_before_a_kill": len(before), "repeated": repeated}))  # fmt: skip
    if kills < options.kills:
        print(f"the tables ended after {kills} of {options.kills} kills: select tables without stored curves, or a "
              "shorter --longest-s", file=sys.stderr)  # fmt: skip
    sys.exit(bool(repeated) or code != 0 or kills < options.kills)


if __name__ == "__main__":
    main()
