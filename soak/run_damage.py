"""Damage what killed and finished runs keep, a hundred times, and start them again.

Real runs with checkpoints that share replay parts are killed or come to their end. Of a copy one to three files are
damaged: the journal, its log, its shared memory, its watermark, replay parts, manifests, model files; bits flip, ends
are cut off, files are missing, or belong to another run. Then `trieye verify` looks at it, and the run is closed, or
goes on from its checkpoint. Nothing wrong may ever be shown as right, what the sinks showed stays, what is lost up to
the last watermark is said, and the newest model whose own bytes are whole is what the run goes on from.
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

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from moved import moved

import trieye
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
"""How often each of the runs is killed."""

JOURNAL, LOG = "journal.db", "journal.db-wal"
TARGETS = {
    JOURNAL: ["flip", "cut", "delete", "swap"],
    LOG: ["flip", "cut", "delete", "swap"],
    "journal.db-shm": ["flip", "cut", "delete", "swap"],
    "journal-watermark.jsonl": ["flip", "cut", "delete"],
    "checkpoints/checkpoint_step_*/parts/*": ["flip", "cut", "delete"],
    "checkpoints/checkpoint_step_*/MANIFEST.json": ["flip", "cut", "delete"],
    "checkpoints/checkpoint_step_*/*.safetensors": ["flip", "cut", "delete"],
}


def config_of(root: Path, *, mlflow: bool) -> trieye.TrieyeConfig:
    """Return the config of a run that shows each value and counts them in windows."""
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
    """Log, fill the replay buffer and save, up to a step."""
    for step in run.steps(steps):
        run.log("value", sign * step)
        run.replay.extend({"row": np.arange((step - 1) * ROWS, step * ROWS)})
        if run.save_due:
            run.save(weights=np.full(1000, sign * step)).wait()
        if step % WINDOW == 0:
            time.sleep(0.02)


def live(root: Path, *, mlflow: bool, sign: float, kills: int) -> None:
    """Train; with kills to come this process does not survive a step that is less than the last one."""
    with trieye.Run(config_of(root, mlflow=mlflow)) as run:
        run.restore()
        assert not mlflow or run.mlflow_run_id(DEADLINE_S), "MLflow is not there"
        until = time.monotonic() + DEADLINE_S
        train(run, STEPS - 30 * kills if kills else STEPS, sign)
        run.flush()
        while kills and any(sink["backlog"] > STEPS // 4 for sink in run.health()["sinks"]):
            assert time.monotonic() < until, "the sinks get nothing"
            time.sleep(0.05)
        if kills:
            time.sleep(random.uniform(0.0, 1.5))
            os.kill(os.getpid(), signal.SIGKILL)


def made(root: Path, *, mlflow: bool, sign: float, kills: int) -> Path:
    """Make a run and return its directory."""
    options = ["--root", str(root), "--sign", str(sign), "--mlflow" if mlflow else "--no-mlflow"]
    for left in range(kills, 0, -1) if kills else [0]:
        command = [sys.executable, __file__, "--child", *options, "--kills", str(left)]
        code = subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode
        assert code == (-signal.SIGKILL if kills else 0), code
    return config_of(root, mlflow=mlflow).persistence.get_run_base_dir()


@dataclass(frozen=True)
class Original:
    """A run before it is damaged.

    Attributes:
        root: Where it is.
        run_dir: Its directory.
        last: The last step that it logged.
        sure_before: What was logged before this step is in the journal up to where the watermark has seen it.
        checkpoints: Steps of its checkpoints.
    """

    root: Path
    run_dir: Path
    last: int
    sure_before: int
    checkpoints: list[int]

    @classmethod
    def of(cls, root: Path, run_dir: Path, scratch: Path) -> "Original":
        """Look at a copy."""
        copy = copied(root, scratch) / run_dir.relative_to(root)
        watermark = read_watermark(copy / JOURNAL)
        assert watermark is not None
        with contextlib.closing(Journal(copy / JOURNAL)) as journal:
            assert not journal.damage, journal.damage
            events = {record.pos: record.payload for record in journal.records(0) if record.kind == "events"}
        steps = {pos: list(decode_events(payload)[0].steps) for pos, payload in events.items()}
        last = STEPS if not steps else max(step for found in steps.values() for step in found)
        unsure = [step for pos, found in steps.items() if pos > watermark.pos for step in found]
        saved = [int(path.name.rpartition("_")[2]) for path in (run_dir / "checkpoints").glob("checkpoint_step_*")]
        return cls(root, run_dir, last, min(unsure, default=last + 1), sorted(saved))


def copied(root: Path, target: Path) -> Path:
    """Copy a run so that what its checkpoints share is shared in the copy, too."""
    subprocess.run(["cp", "-a", str(root), str(target)], check=True)
    moved(config_of(target, mlflow=False).persistence.get_run_base_dir())
    return target


@dataclass
class Harm:
    """What was done to a copy of a run.

    Attributes:
        words: In words.
        names: Names of the files, without their directories.
        lost_models: Steps of the checkpoints whose manifest or model is not whole.
    """

    words: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    lost_models: set[int] = field(default_factory=set)

    def add(self, run_dir: Path, others: list[Path], choose: random.Random) -> None:
        """Damage one more file."""
        pattern = choose.choice(list(TARGETS))
        found = sorted(run_dir.glob(pattern))
        if not found:  # a run that finished has no log
            return
        path, way = choose.choice(found), choose.choice(TARGETS[pattern])
        sources = [other / path.name for other in others if (other / path.name).exists()]
        source = choose.choice(sources or [path])
        WAYS[way](path, source, choose)
        self.words.append(f"{way} {path.relative_to(run_dir)}")
        self.names.add(path.name)
        if "checkpoints" in pattern and "/parts/" not in pattern:
            self.lost_models.add(int(path.relative_to(run_dir).parts[1].rpartition("_")[2]))


def _flip(path: Path, _source: Path, choose: random.Random) -> None:
    with path.open("r+b") as file:  # in place: other checkpoints may share the file
        for _ in range(choose.choice([1, 1, 30])):
            place = choose.randrange(max(path.stat().st_size, 1))
            file.seek(place)
            byte = file.read(1)
            file.seek(place)
            file.write(bytes([byte[0] ^ 1 << choose.randrange(8)]) if byte else b"")


def _cut(path: Path, _source: Path, choose: random.Random) -> None:
    os.truncate(path, choose.randrange(max(path.stat().st_size, 1)))


def _delete(path: Path, _source: Path, _choose: random.Random) -> None:
    path.unlink()


def _swap(path: Path, source: Path, _choose: random.Random) -> None:
    path.write_bytes(source.read_bytes())


WAYS: dict[str, Callable[[Path, Path, random.Random], None]] = {
    "flip": _flip,
    "cut": _cut,
    "delete": _delete,
    "swap": _swap,
}


def curves_of(run_dir: Path, *, mlflow: bool) -> dict[str, dict[str, Curve]]:
    """Return what each place shows."""
    readers = {"tensorboard": curves_in_tensorboard, "history": curves_in_history}
    return {
        place: read(run_dir) for place, read in {**readers, **({"mlflow": curves_in_mlflow} if mlflow else {})}.items()
    }


def started(config: trieye.TrieyeConfig, harm: Harm, original: Original) -> Iterator[str]:
    """Let a run go on from its checkpoint, and yield what is wrong with what it goes on from."""
    whole = [step for step in original.checkpoints if step not in harm.lost_models]
    with trieye.Run(config) as run:
        try:
            run.restore()
        except CheckpointError as error:
            if whole:
                yield f"no model was loaded, and that of step {whole[-1]} is whole: {error}"
            return
        if run.step != max(whole, default=0):
            yield f"the model of step {run.step} was loaded, and that of {max(whole, default=0)} is whole"
        if run.step and not (run.restored["weights"] == run.step).all():
            yield f"wrong weights at step {run.step}"
        if run.step and len(run.replay):
            rows = run.replay.sample(min(len(run.replay), 200))
            if not (rows["row"] < run.step * ROWS).all():
                yield "the replay buffer has rows that the run never saw"
        train(run, MORE_STEPS, 1.0)


def problems_of(run_dir: Path, original: Original, harm: Harm, *, mlflow: bool, resumes: bool) -> Iterator[str]:
    """Verify a damaged run, start it again or close it, and yield what is wrong."""
    before = curves_of(run_dir, mlflow=mlflow)
    is_said = bool(verify(run_dir).damage)
    config = config_of(run_dir.parents[2], mlflow=mlflow)
    if resumes:
        yield from started(config, harm, original)
        last = MORE_STEPS
    else:
        with contextlib.redirect_stdout(sys.stderr):
            if code := trieye_command(["close", str(run_dir), "--timeout", "60"]):
                yield f"`trieye close` ended with {code}"
        last = original.last
    # the log's end and the only file that knows of it are gone: nothing is left that could tell
    unsure = {"journal-watermark.jsonl", LOG} <= harm.names
    for place, curves in curves_of(run_dir, mlflow=mlflow).items():
        # what is shown and lost is shown a second time when the run goes on from before it, and that is said
        may_repeat = (is_said or unsure) and place != "history"
        yield from (f"{place}: {text}" for text in wrong(curves, may_repeat=may_repeat))
        shown, then = ({step for step, _ in found.get("value", [])} for found in (before[place], curves))
        gone = sorted(step for step in shown - then if step < min(original.sure_before, last))
        if gone and place != "history" and not unsure:
            yield f"{place}: {len(gone)} points that were shown are gone, the first at step {gone[0]}"
        lost = [step for step in range(1, original.sure_before) if step not in then]
        if lost and not (is_said or unsure):
            yield f"{place}: {len(lost)} points are lost, the first at step {lost[0]}, and nothing was said"


def wrong(curves: dict[str, Curve], *, may_repeat: bool) -> Iterator[str]:
    """Yield values that the run never logged, windows with too many, and points that are there twice."""
    for step, value in curves.get("value", []):
        if value != step:
            yield f"value {value} at step {step}"
            return
    if any(count > WINDOW for _, count in curves.get("count", [])):
        yield "events counted twice"
    twice = [] if may_repeat else repeated(curves.get("value", [])) + repeated(curves.get("count", []))
    if twice:
        yield f"{len(twice)} steps are there twice, the first is {twice[0]}"


def soak(scratch: Path, runs: list[str], *, damages: int, seed: int, mlflow: bool) -> dict[str, Any]:
    """Damage runs and return what is wrong with what came of them."""
    originals = {}
    for name in runs:
        root = scratch / name
        run_dir = made(root, mlflow=mlflow, sign=1.0, kills=ORIGINALS[name])
        originals[name] = Original.of(root, run_dir, scratch / f"look_{name}")
    kills_of_others = sorted({min(ORIGINALS[name], 1) for name in runs})
    others = [made(scratch / f"other_{kills}", mlflow=mlflow, sign=-1.0, kills=kills) for kills in kills_of_others]
    problems: list[str] = []
    for number in range(damages):
        choose = random.Random(f"{seed} {number}")
        name = runs[number % len(runs)]
        original, harm = originals[name], Harm()
        root = copied(original.root, scratch / str(number))
        run_dir = root / original.run_dir.relative_to(original.root)
        while not harm.words or choose.random() < 0.3:
            harm.add(run_dir, others, choose)
        resumes = choose.random() < 0.5
        text = f"{number}: {name}, {', '.join(harm.words)}, then it {'goes on' if resumes else 'is closed'}"
        try:
            found = list(problems_of(run_dir, original, harm, mlflow=mlflow, resumes=resumes))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a problem of this case
            found = [repr(error)]
        problems += [f"{text}: {problem}" for problem in found]
        print(f"{text}: {found or 'well'}", file=sys.stderr)
        subprocess.run(["rm", "-r", str(root)], check=True)
    return {"damages": damages, "seed": seed, "problems": problems}


def main() -> int:
    """Print one JSON line; the exit code says whether all is well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--damages", type=int, default=100, help="how many damaged copies are tried (default: 100)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", nargs="+", choices=ORIGINALS, default=list(ORIGINALS), help="which runs are damaged")
    parser.add_argument("--mlflow", action=argparse.BooleanOptionalAction, default=True, help="with MLflow, too")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--root", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--sign", type=float, default=1.0, help=argparse.SUPPRESS)
    parser.add_argument("--kills", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        live(options.root, mlflow=options.mlflow, sign=options.sign, kills=options.kills)
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        figures = soak(Path(scratch), options.runs, damages=options.damages, seed=options.seed, mlflow=options.mlflow)
    met = not figures["problems"]
    print(json.dumps({"benchmark": "run_damage", **figures, "met": met}))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
