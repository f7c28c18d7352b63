"""Compare histories with the reference model of supersession, for random sequences of attempts of one run.

Each attempt may restore a checkpoint, logs random metrics at random steps through one of the loggers, and exits or is
killed with SIGKILL after all events are accepted. After each sequence, the history must equal the model. Some sequences
have sinks: TensorBoard must equal the history, and MLflow must contain all points of the history.
"""

import argparse
import json
import os
import random
import sqlite3
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from tests.history.supersession_model import Attempt, Call, curves
from tests.history.supersession_programs import APP, PROGRAMS, Story

NO_SINKS = {"sinks": {"mlflow": {"enabled": False}, "tensorboard": {"enabled": False}}}
METRICS = ("loss", "val", "lr")


def random_calls(rng: random.Random, logger: str) -> list[Call]:
    """Return the calls of one process: interleaved curves, each in its original order."""
    curves_of_calls: list[list[Call]] = []
    for metric in rng.sample(METRICS, rng.randint(1, len(METRICS))):
        value = float(rng.randint(1, 3))
        start, stride, length = rng.choice((0, 0, rng.randrange(60))), rng.choice((1, 1, 2, 10)), rng.randint(1, 25)
        steps: list[int | None] = list(range(start, start + stride * length, stride))
        kind = rng.random()
        if kind < 0.15:
            steps = [rng.randrange(80) for _ in range(length)]
        elif kind < 0.3:
            steps = [0, *steps]
        elif kind < 0.4:
            steps = steps[:1]
        elif kind < 0.5 and logger == "SummaryWriter":
            steps = [None] * rng.randint(1, 3)
        curves_of_calls.append([Call(metric, step, value) for step in steps])
    curves_of_calls.append([Call("note", rng.randrange(80), 1.0, "medium") for _ in range(rng.randrange(3))])
    order = [number for number, calls in enumerate(curves_of_calls) for _ in calls]
    if rng.random() < 0.7:
        rng.shuffle(order)
    remaining = [iter(calls) for calls in curves_of_calls]
    return [next(remaining[number]) for number in order]


def random_attempts(rng: random.Random, logger: str) -> list[Attempt]:
    """Return two to four attempts, and a last one without calls."""
    attempts: list[Attempt] = []
    for number in range(rng.randint(2, 4)):
        calls, restored, checkpoint = random_calls(rng, logger), None, None
        kind = rng.random() if number else 1.0
        if kind < 0.25:
            restored = 0 if logger == "wandb" else rng.randrange(80)
        elif kind < 0.5 and logger == "Run":
            attempt = rng.randrange(number)
            checkpoint = attempt, rng.randint(0, len(attempts[attempt].calls))
        attempts.append(Attempt(calls, restored, checkpoint))
    return [*attempts, Attempt([])]  # moves the events of a killed attempt from the journal to the history


def problems_of_sinks(story: Story) -> list[str]:
    """Return the differences between the sinks of a run and its history."""
    from curves import curves_in_tensorboard

    history, problems = story.curves(), []
    in_tensorboard = {
        metric: curve
        for metric, curve in curves_in_tensorboard(story.run_dir).items()
        if not metric.startswith(("trieye/", "wandb/"))
    }
    if in_tensorboard != history:
        problems.append(f"TensorBoard shows {in_tensorboard}, the history {history}")
    with sqlite3.connect(story.root / APP / "mlruns" / "mlflow.db") as store:
        query = "SELECT m.key, m.step, m.value FROM metrics m JOIN runs r USING (run_uuid) WHERE r.name = ?"
        in_mlflow = set(store.execute(query, (story.name,)))
    missing = {(metric, *point) for metric, curve in history.items() for point in curve} - in_mlflow
    if missing:
        problems.append(f"MLflow lacks {sorted(missing)[:5]}")
    return problems


def compare(options: argparse.Namespace, root: Path) -> tuple[int, list[str]]:
    """Return the number of killed processes, and the differences from the model."""
    num_killed, problems = 0, list[str]()
    for number in range(options.sequences):
        rng = random.Random(f"{options.seed} {number}")
        logger = options.loggers[number % len(options.loggers)]
        attempts = random_attempts(rng, logger)
        has_sinks = number % options.sinks_every == options.sinks_every - 1
        killed = frozenset(n for n in range(len(attempts) - 1) if rng.random() < 0.4)
        story = Story(logger, f"run{number}", root / "data", attempts, killed, {} if has_sinks else NO_SINKS)
        story.play()
        num_killed += len(killed)
        if (actual := story.curves()) != (expected := curves(attempts)):
            problems.append(f"sequence {number} of seed {options.seed}, {logger}: {actual}, expected {expected}")
        if has_sinks:
            problems += [f"sequence {number}, {logger}: {problem}" for problem in problems_of_sinks(story)]
    return num_killed, problems


def main() -> int:
    """Print one JSON line; exit with 1 if there is a problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--sequences", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--loggers", nargs="+", choices=list(PROGRAMS), default=list(PROGRAMS))
    parser.add_argument("--sinks-every", type=int, default=25, help="every n-th sequence has sinks")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        os.chdir(root)
        os.environ |= {"TRIEYE_ROOT": str(root / "data"), "TRIEYE_APP": APP}
        terminal = os.dup(2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # each attempt reports the superseded points
        try:
            num_killed, problems = compare(options, root)
        finally:
            os.dup2(terminal, 2)
    figures = {"sequences": options.sequences, "killed": num_killed, "problems": problems[:5], "met": not problems}
    print(json.dumps({"benchmark": "supersession", **figures}))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
