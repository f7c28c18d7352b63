"""Damage the files of killed and finished runs a hundred times, and resume or close the runs.

Runs with checkpoints that share replay parts are killed, or complete. In a copy, one to three files are damaged: the
journal, its write-ahead log, its shared memory, its watermark, replay parts, manifests or model files. Bits are
flipped, files are truncated, deleted, or replaced by files of another run. Then `trieye verify` checks the copy, and
the run is closed or resumed. No wrong value may appear, points in the sinks must survive, losses up to the last
watermark must be reported, and the run must resume from the newest checkpoint with an intact manifest and model.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from curves import Curve, curves_in_history, curves_in_mlflow, curves_in_tensorboard, repeated

sys.path.append(str(Path(__file__).parents[1]))
import trieye
from tests.moved import moved
from trieye.cli import main as trieye_command
from trieye.exceptions import CheckpointError
from trieye.journal.event_payloads import decode_events
from trieye.journal.journal import Journal
from trieye.journal.watermark import read_watermark
from trieye.runs import verify

STEPS, MORE_STEPS = 300, 400
SAVE_EVERY = 50
WINDOW = 10
ROWS = 20
DEADLINE_S = 240.0
ORIGINALS = {"killed": 1, "killed_twice": 2, "finished": 0}
"""Number of kills of each run."""

JOURNAL, WAL = "journal.db", "journal.db-wal"
TARGETS = {
    JOURNAL: ["flip", "cut", "delete", "swap"],
    WAL: ["flip", "cut", "delete", "swap"],
    "journal.db-shm": ["flip", "cut", "delete", "swap"],
    "journal-watermark.jsonl": ["flip", "cut", "delete"],
    "checkpoints/checkpoint_step_*/parts/*": ["flip", "cut", "delete"],
    "checkpoints/checkpoint_step_*/MANIFEST.json": ["flip", "cut", "delete"],
    "checkpoints/checkpoint_step_*/*.safetensors": ["flip", "cut", "delete"],
}


def config_of(root: Path, *, mlflow: bool) -> trieye.TrieyeConfig:
    """Return the config of a run with a metric of each value and a count in windows."""
    return trieye.TrieyeConfig(
        app_name="soak",
        run_name="run",
        runtime={"kind": "local", "flush_interval_s": 0.02},
        persistence={"root_data_dir": str(root), "checkpoint_save_freq_steps": SAVE_EVERY, "keep_last": 3},
        replay={"capacity": 100_000},
        sinks={
            "tensorboard": {"enabled": True, "flush_interval_s": 0.05},
            "mlflow": {"enabled": mlflow},
            "console": {"enabled": False},
        },
        stats={
            "processing_interval_seconds": 0.05,
            "hub_metrics_interval_s": 0,
            "metrics": [
                {"name": "value", "log_frequency_steps": 1},
                {"name": "count", "raw_event_name": "value", "aggregation": "count", "log_frequency_steps": WINDOW},
            ],
        },
    )


def train(run: trieye.Run, steps: int, sign: float) -> None:
    """Log, fill the replay buffer and save until step `steps`."""
    for step in run.steps(steps):
        run.log("value", sign * step)
        run.replay.extend({"row": np.arange((step - 1) * ROWS, step * ROWS)})
        if run.save_due:
            run.save(weights=np.full(1000, sign * step)).wait()
        if step % WINDOW == 0:
            time.sleep(0.02)


def run_attempt(root: Path, *, mlflow: bool, sign: float, kills: int) -> None:
    """Train; with `kills` > 0, kill this process before the last step."""
    with trieye.Run(config_of(root, mlflow=mlflow)) as run:
        run.restore()
        assert not mlflow or run.mlflow_run_id(DEADLINE_S), "MLflow did not start"
        until = time.monotonic() + DEADLINE_S
        train(run, STEPS - 30 * kills if kills else STEPS, sign)
        run.flush()
        while kills and any(sink["backlog"] > STEPS // 4 for sink in run.health()["sinks"]):
            assert time.monotonic() < until, "the sinks do not drain"
            time.sleep(0.05)
        if kills:
            time.sleep(random.uniform(0.0, 1.5))
            os.kill(os.getpid(), signal.SIGKILL)


def create_run(root: Path, *, mlflow: bool, sign: float, kills: int) -> Path:
    """Create a run and return its directory."""
    options = ["--root", str(root), "--sign", str(sign), "--mlflow" if mlflow else "--no-mlflow"]
    for remaining in range(kills, 0, -1) if kills else [0]:
        command = [sys.executable, __file__, "--child", *options, "--kills", str(remaining)]
        code = subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode
        assert code == (-signal.SIGKILL if kills else 0), code
    return config_of(root, mlflow=mlflow).persistence.get_run_base_dir()


@dataclass(frozen=True)
class Original:
    """A run before it is damaged.

    Attributes:
        root: Its root directory.
        run_dir: Its run directory.
        last: Its last logged step.
        durable_before: The journal up to the watermark contains all earlier steps.
        checkpoints: Steps of its checkpoints.
    """

    root: Path
    run_dir: Path
    last: int
    durable_before: int
    checkpoints: list[int]

    @classmethod
    def of(cls, root: Path, run_dir: Path, scratch: Path) -> "Original":
        """Inspect a copy of the run."""
        copy = copy_run(root, scratch) / run_dir.relative_to(root)
        watermark = read_watermark(copy / JOURNAL)
        assert watermark is not None
        with contextlib.closing(Journal(copy / JOURNAL)) as journal:
            assert not journal.damage, journal.damage
            payloads = {entry.pos: entry.payload for entry in journal.records(0) if entry.kind == "events"}
        steps = {pos: list(decode_events(payload)[0].steps) for pos, payload in payloads.items()}
        last = STEPS if not steps else max(step for batch in steps.values() for step in batch)
        unflushed = [step for pos, batch in steps.items() if pos > watermark.pos for step in batch]
        saved = [int(path.name.rpartition("_")[2]) for path in (run_dir / "checkpoints").glob("checkpoint_step_*")]
        return cls(root, run_dir, last, min(unflushed, default=last + 1), sorted(saved))


def copy_run(root: Path, target: Path) -> Path:
    """Copy a run, including the hard links between its checkpoints."""
    subprocess.run(["cp", "-a", str(root), str(target)], check=True)
    moved(config_of(target, mlflow=False).persistence.get_run_base_dir())
    return target


@dataclass
class Damage:
    """The damage to a copy of a run.

    Attributes:
        descriptions: Kind of damage and path of each file.
        names: Names of the damaged files, without directories.
        lost_models: Steps of the checkpoints with a damaged manifest or model.
    """

    descriptions: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    lost_models: set[int] = field(default_factory=set)

    def add(self, run_dir: Path, others: list[Path], generator: random.Random) -> None:
        """Damage another file."""
        pattern = generator.choice(list(TARGETS))
        paths = sorted(run_dir.glob(pattern))
        if not paths:  # a finished run has no write-ahead log
            return
        path, kind = generator.choice(paths), generator.choice(TARGETS[pattern])
        sources = [other / path.name for other in others if (other / path.name).exists()]
        source = generator.choice(sources or [path])
        DAMAGE_KINDS[kind](path, source, generator)
        self.descriptions.append(f"{kind} {path.relative_to(run_dir)}")
        self.names.add(path.name)
        if "checkpoints" in pattern and "/parts/" not in pattern:
            self.lost_models.add(int(path.relative_to(run_dir).parts[1].rpartition("_")[2]))


def _flip(path: Path, _source: Path, generator: random.Random) -> None:
    with path.open("r+b") as file:  # in place, because checkpoints share the file
        for _ in range(generator.choice([1, 1, 30])):
            offset = generator.randrange(max(path.stat().st_size, 1))
            file.seek(offset)
            byte = file.read(1)
            file.seek(offset)
            file.write(bytes([byte[0] ^ 1 << generator.randrange(8)]) if byte else b"")


def _cut(path: Path, _source: Path, generator: random.Random) -> None:
    os.truncate(path, generator.randrange(max(path.stat().st_size, 1)))


def _delete(path: Path, _source: Path, _generator: random.Random) -> None:
    path.unlink()


def _swap(path: Path, source: Path, _generator: random.Random) -> None:
    path.write_bytes(source.read_bytes())


DAMAGE_KINDS: dict[str, Callable[[Path, Path, random.Random], None]] = {
    "flip": _flip,
    "cut": _cut,
    "delete": _delete,
    "swap": _swap,
}


def curves_of(run_dir: Path, *, mlflow: bool) -> dict[str, dict[str, Curve]]:
    """Return the curves in each store."""
    readers = {"tensorboard": curves_in_tensorboard, "history": curves_in_history}
    return {
        store: read(run_dir) for store, read in {**readers, **({"mlflow": curves_in_mlflow} if mlflow else {})}.items()
    }


def resume(config: trieye.TrieyeConfig, damage: Damage, original: Original) -> Iterator[str]:
    """Resume and complete a run, and yield the problems of its restored state."""
    intact = [step for step in original.checkpoints if step not in damage.lost_models]
    with trieye.Run(config) as run:
        try:
            run.restore()
        except CheckpointError as error:
            if intact:
                yield f"no checkpoint was loaded, but step {intact[-1]} is intact: {error}"
            return
        if run.step != max(intact, default=0):
            yield f"step {run.step} was loaded, but step {max(intact, default=0)} is intact"
        if run.step and not (run.restored["weights"] == run.step).all():
            yield f"wrong weights at step {run.step}"
        if run.step and len(run.replay):
            rows = run.replay.sample(min(len(run.replay), 200))
            if not (np.asarray(rows["row"], np.int64) < run.step * ROWS).all():
                yield "the replay buffer has rows that were never added"
        train(run, MORE_STEPS, 1.0)


def problems_of(run_dir: Path, original: Original, damage: Damage, *, mlflow: bool, resumes: bool) -> Iterator[str]:
    """Verify a damaged run, resume or close it, and yield the problems."""
    before = curves_of(run_dir, mlflow=mlflow)
    is_reported = bool(verify(run_dir).damage)
    config = config_of(run_dir.parents[2], mlflow=mlflow)
    if resumes:
        yield from resume(config, damage, original)
        last = MORE_STEPS
    else:
        with contextlib.redirect_stdout(sys.stderr):
            if code := trieye_command(["close", str(run_dir), "--timeout", "60"]):
                yield f"`trieye close` exited with {code}"
        last = original.last
    # without the end of the write-ahead log and the watermark, the loss cannot be detected
    is_undetectable = {"journal-watermark.jsonl", WAL} <= damage.names
    for store, curves in curves_of(run_dir, mlflow=mlflow).items():
        # a resumed run logs points again that sinks have and the journal lost, after a report
        may_repeat = (is_reported or is_undetectable) and store != "history"
        yield from (f"{store}: {problem}" for problem in problems_of_curves(curves, may_repeat=may_repeat))
        steps_before, steps = ({step for step, _ in each.get("value", [])} for each in (before[store], curves))
        removed = sorted(step for step in steps_before - steps if step < min(original.durable_before, last))
        if removed and store != "history" and not is_undetectable:
            yield f"{store}: {len(removed)} points disappeared, the first at step {removed[0]}"
        lost = [step for step in range(1, original.durable_before) if step not in steps]
        if lost and not (is_reported or is_undetectable):
            yield f"{store}: {len(lost)} points are lost without a report, the first at step {lost[0]}"


def problems_of_curves(curves: dict[str, Curve], *, may_repeat: bool) -> Iterator[str]:
    """Yield wrong values, windows with too many events, and repeated points."""
    for step, value in curves.get("value", []):
        if value != step:
            yield f"value {value} at step {step}"
            return
    if any(count > WINDOW for _, count in curves.get("count", [])):
        yield "events counted twice"
    repeated_steps = [] if may_repeat else repeated(curves.get("value", [])) + repeated(curves.get("count", []))
    if repeated_steps:
        yield f"{len(repeated_steps)} steps are repeated, the first is {repeated_steps[0]}"


def soak(scratch: Path, runs: list[str], *, damages: int, seed: int, mlflow: bool) -> dict[str, Any]:
    """Damage runs, resume or close them, and return the figures and problems."""
    originals = {}
    for name in runs:
        root = scratch / name
        run_dir = create_run(root, mlflow=mlflow, sign=1.0, kills=ORIGINALS[name])
        originals[name] = Original.of(root, run_dir, scratch / f"inspected_{name}")
    kills_of_others = sorted({min(ORIGINALS[name], 1) for name in runs})
    others = [
        create_run(scratch / f"other_{kills}", mlflow=mlflow, sign=-1.0, kills=kills) for kills in kills_of_others
    ]
    problems: list[str] = []
    for number in range(damages):
        generator = random.Random(f"{seed} {number}")
        name = runs[number % len(runs)]
        original, damage = originals[name], Damage()
        root = copy_run(original.root, scratch / str(number))
        run_dir = root / original.run_dir.relative_to(original.root)
        while not damage.descriptions or generator.random() < 0.3:
            damage.add(run_dir, others, generator)
        resumes = generator.random() < 0.5
        text = f"{number}: {name}, {', '.join(damage.descriptions)}, then {'resumed' if resumes else 'closed'}"
        try:
            own_problems = list(problems_of(run_dir, original, damage, mlflow=mlflow, resumes=resumes))
        except Exception as error:  # noqa: BLE001 - any exception is a problem of this case
            own_problems = [repr(error)]
        problems += [f"{text}: {problem}" for problem in own_problems]
        print(f"{text}: {own_problems or 'ok'}", file=sys.stderr)
        subprocess.run(["rm", "-r", str(root)], check=True)
    return {"damages": damages, "seed": seed, "problems": problems}


def main() -> int:
    """Print one JSON line; exit with 1 if there is a problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--damages", type=int, default=100, help="number of damaged copies (default: 100)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", nargs="+", choices=ORIGINALS, default=list(ORIGINALS), help="runs to damage")
    parser.add_argument("--mlflow", action=argparse.BooleanOptionalAction, default=True, help="also check MLflow")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--root", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--sign", type=float, default=1.0, help=argparse.SUPPRESS)
    parser.add_argument("--kills", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        run_attempt(options.root, mlflow=options.mlflow, sign=options.sign, kills=options.kills)
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        figures = soak(Path(scratch), options.runs, damages=options.damages, seed=options.seed, mlflow=options.mlflow)
    met = not figures["problems"]
    print(json.dumps({"benchmark": "run_damage", **figures, "met": met}))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
