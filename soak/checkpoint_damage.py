"""Damage a file of a run's checkpoints, again and again, and go on from what is left.

After each damage the run has to begin with the newest checkpoint whose own files are whole, with the weights of that
step and with just those rows of its replay whose parts are whole; where no checkpoint is whole, it has to refuse.
"""

import argparse
import contextlib
import io
import json
import logging
import random
import shutil
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import trieye
from trieye.exceptions import CheckpointError

CAPACITY, ROWS, WIDTH = 1200, 90, 16


def flip(path: Path, chance: random.Random) -> None:
    """Flip one bit where it lies: all names of the file are damaged."""
    with path.open("r+b") as file:
        place = chance.randrange(path.stat().st_size)
        file.seek(place)
        (byte,) = file.read(1)
        file.seek(place)
        file.write(bytes([byte ^ 1 << chance.randrange(8)]))


def cut(path: Path, chance: random.Random) -> None:
    """Cut a file short."""
    with path.open("r+b") as file:
        file.truncate(chance.randrange(path.stat().st_size))


def blank(path: Path, chance: random.Random) -> None:
    """Write zeros over a block, as a disk does that lost a sector."""
    with path.open("r+b") as file:
        file.seek(chance.randrange(max(path.stat().st_size - 512, 1)))
        file.write(bytes(min(512, path.stat().st_size - file.tell())))


def delete(path: Path, chance: random.Random) -> None:  # noqa: ARG001 - as the others
    """Delete one name of a file."""
    path.unlink()


HARMS: list[Callable[[Path, random.Random], None]] = [flip, flip, cut, blank, delete]


def is_whole(directory: Path, name: str, about: dict[str, Any]) -> bool:
    """Compare a file with what the manifest says, with as little of trieye as can be."""
    with contextlib.suppress(FileNotFoundError):
        content = (directory / name).read_bytes()
        return len(content) == about["size_bytes"] and zlib.crc32(content) == about["crc32"]
    return False


@dataclass(frozen=True)
class Expected:
    """A checkpoint from which a run goes on: its step, and the ranges of rows that its whole and damaged parts hold."""

    step: int
    whole: list[tuple[int, int]]
    lost: list[tuple[int, int]]


def survey(checkpoints: Path) -> Expected | None:
    """Return the newest checkpoint whose own files are whole."""
    found = []
    for directory in checkpoints.glob("checkpoint_step_*"):
        if not directory.name.removeprefix("checkpoint_step_").isdigit():
            continue
        with contextlib.suppress(FileNotFoundError, ValueError, KeyError, UnicodeDecodeError):
            sealed = json.loads((directory / "MANIFEST.json").read_bytes())
            held = sealed["manifest"]
            if zlib.crc32(json.dumps(held, sort_keys=True).encode()) == sealed["crc32"]:
                found.append((held["sequence"], held["step"], directory, held["files"]))
    for _, step, directory, files in sorted(found, key=lambda one: one[0], reverse=True):
        damaged = [name for name, about in files.items() if not is_whole(directory, name, about)]
        if all(name.startswith("parts/") for name in damaged):
            parts = [name for name in files if name.startswith("parts/") and name not in damaged]
            return Expected(step, list(map(range_of, parts)), list(map(range_of, damaged)))
    return None


def range_of(part: str) -> tuple[int, int]:
    """Return the rows of a part."""
    first, end = part.split("-")[1:3]
    return int(first), int(end)


def rows_of(first: int, count: int) -> dict[str, Any]:
    """Return rows that tell whether they are whole."""
    numbers = np.arange(first, first + count)
    return {"obs": obs_of(numbers), "n": numbers, "done": numbers % 7 == 6}


def obs_of(numbers: Any) -> Any:
    """Return what the rows of these numbers hold."""
    return (numbers[:, None] * 2654435761 + np.arange(WIDTH)) % 65521


def weights_of(step: int) -> Any:
    """Return what the weights are after a step."""
    return np.random.default_rng(step).random(500)


def config_of(root: Path) -> trieye.TrieyeConfig:
    """Return the config of the run."""
    return trieye.TrieyeConfig(
        app_name="soak",
        run_name="run",
        runtime={"kind": "local"},
        sinks={},
        persistence={"root_data_dir": str(root), "keep_last": 4},
        replay={"capacity": CAPACITY},
    )


def problems_of(run: trieye.Run, expected: Expected) -> list[str]:
    """Return what is wrong with what a run has restored."""
    problems = [] if run.step == expected.step else [f"step {run.step} instead of {expected.step}"]
    if not np.array_equal(run.restored["weights"], weights_of(run.step)):
        problems.append("wrong weights")
    stats = run.replay.stats()
    added, low = int(stats["added"]), max(int(stats["added"]) - CAPACITY, 0)
    there = sum(max(min(end, added) - max(first, low), 0) for first, end in expected.whole)
    if stats["size"] != there:
        problems.append(f"{stats['size']} rows, where {there} are whole")
    if stats["size"]:
        drawn = run.replay.sample(2000)
        problems += [] if np.array_equal(drawn["obs"], obs_of(drawn["n"])) else ["a row is not what was added"]
    return problems


def live(root: Path, chance: random.Random, expected: Expected | None) -> list[str]:
    """Restore the run, look at it, save it a few times, and return what is wrong."""
    with trieye.Run(config_of(root)) as run:
        found = run.restore()
        problems = [] if expected is None or not found else problems_of(run, expected)
        if found is (expected is None):
            problems.append("it began afresh" if expected is not None else "it found something")
        for _ in range(chance.randrange(1, 6)):
            run.step += 1
            run.replay.extend(rows_of(int(run.replay.stats()["added"]), ROWS))
            run.save(weights=weights_of(run.step)).wait()
    return problems


def soak(root: Path, damages: int, chance: random.Random) -> dict[str, Any]:
    """Damage a run that often, and return what is wrong, and what was damaged."""
    checkpoints = root / "soak" / "runs" / "run" / "checkpoints"
    problems, kinds, expected = [], Counter[str](), None
    for number in range(damages + 1):
        try:
            problems += [f"damage {number}: {text}" for text in live(root, chance, expected)]
        except CheckpointError as error:
            kinds["none whole"] += 1
            if expected is not None or "none is intact" not in str(error):
                problems.append(f"damage {number}: {error}")
            shutil.rmtree(checkpoints.parents[1])
            live(root, chance, None)
        for _ in range(chance.choice([1, 1, 2, 4, 12])):
            path = chance.choice([path for path in checkpoints.glob("checkpoint_step_*/**/*") if path.is_file()])
            harm = chance.choice(HARMS)
            if path.stat().st_size:
                harm(path, chance)
            kinds[f"{harm.__name__} {'part' if path.parent.name == 'parts' else path.name}"] += 1
        if (expected := survey(checkpoints)) is not None:
            kinds["rows lost" if expected.lost else "all there"] += 1
        print(f"{number} of {damages} damages, next: {expected}", file=sys.stderr)
    return {"damages": damages, "kinds": dict(kinds), "problems": problems}


def main() -> int:
    """Print one JSON line; the exit code says whether all is well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--damages", type=int, default=100, help="how often")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30), help="decides about everything")
    options = parser.parse_args()
    logging.disable()
    with tempfile.TemporaryDirectory() as root, contextlib.redirect_stderr(io.StringIO()) as told:
        figures = soak(Path(root), options.damages, random.Random(options.seed))
    if figures["problems"]:
        print(told.getvalue()[-5000:], file=sys.stderr)
    print(
        json.dumps({"benchmark": "checkpoint_damage", "seed": options.seed, **figures, "met": not figures["problems"]})
    )
    return 1 if figures["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
