"""Damage files of the checkpoints of a run repeatedly, and resume the run each time.

The run must resume from the newest checkpoint with intact files outside of `parts/`: with the weights of that step, and
with exactly the replay rows in intact parts. Without an intact checkpoint, it must fail.
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
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

import trieye
from trieye.exceptions import CheckpointError

CAPACITY, ROWS, WIDTH = 1200, 90, 16


def flip(path: Path, generator: random.Random) -> None:
    """Flip one bit in place, which damages all hard links of the file."""
    with path.open("r+b") as file:
        offset = generator.randrange(path.stat().st_size)
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 1 << generator.randrange(8)]))


def cut(path: Path, generator: random.Random) -> None:
    """Truncate a file."""
    with path.open("r+b") as file:
        file.truncate(generator.randrange(path.stat().st_size))


def blank(path: Path, generator: random.Random) -> None:
    """Overwrite a block with zeros, as after the loss of a disk sector."""
    with path.open("r+b") as file:
        file.seek(generator.randrange(max(path.stat().st_size - 512, 1)))
        file.write(bytes(min(512, path.stat().st_size - file.tell())))


def delete(path: Path, generator: random.Random) -> None:  # noqa: ARG001 - the signature of `DAMAGES`
    """Delete one hard link of a file."""
    path.unlink()


DAMAGES: list[Callable[[Path, random.Random], None]] = [flip, flip, cut, blank, delete]


def is_intact(directory: Path, name: str, entry: dict[str, Any]) -> bool:
    """Compare a file with its entry in the manifest, without the code of trieye."""
    with contextlib.suppress(FileNotFoundError):
        content = (directory / name).read_bytes()
        return bool(len(content) == entry["size_bytes"] and zlib.crc32(content) == entry["crc32"])
    return False


@dataclass(frozen=True)
class Expected:
    """The checkpoint that a run must resume from: its step, and the row ranges of its intact and damaged parts."""

    step: int
    intact: list[tuple[int, int]]
    lost: list[tuple[int, int]]


def newest_intact(checkpoints: Path) -> Expected | None:
    """Return the newest checkpoint with intact files outside of `parts/`."""
    candidates = []
    for directory in checkpoints.glob("checkpoint_step_*"):
        if not directory.name.removeprefix("checkpoint_step_").isdigit():
            continue
        with contextlib.suppress(FileNotFoundError, ValueError, KeyError, UnicodeDecodeError):
            sealed = json.loads((directory / "MANIFEST.json").read_bytes())
            manifest = sealed["manifest"]
            if zlib.crc32(json.dumps(manifest, sort_keys=True).encode()) == sealed["crc32"]:
                candidates.append((manifest["sequence"], manifest["step"], directory, manifest["files"]))
    for _, step, directory, files in sorted(candidates, key=itemgetter(0), reverse=True):
        damaged = [name for name, entry in files.items() if not is_intact(directory, name, entry)]
        if all(name.startswith("parts/") for name in damaged):
            parts = [name for name in files if name.startswith("parts/") and name not in damaged]
            return Expected(step, list(map(range_of, parts)), list(map(range_of, damaged)))
    return None


def range_of(part: str) -> tuple[int, int]:
    """Return the row range of a part."""
    first, end = part.split("-")[1:3]
    return int(first), int(end)


def rows_of(first: int, count: int) -> dict[str, Any]:
    """Return rows whose content can be computed from their numbers."""
    numbers = np.arange(first, first + count)
    return {"obs": obs_of(numbers), "n": numbers, "done": numbers % 7 == 6}


def obs_of(numbers: Any) -> Any:
    """Return the observations of the rows with these numbers."""
    return (numbers[:, None] * 2654435761 + np.arange(WIDTH)) % 65521


def weights_of(step: int) -> Any:
    """Return the weights after a step."""
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
    """Return the problems of a restored run."""
    problems = [] if run.step == expected.step else [f"step {run.step} instead of {expected.step}"]
    if not np.array_equal(run.restored["weights"], weights_of(run.step)):
        problems.append("wrong weights")
    stats = run.replay.stats()
    added, low = int(stats["added"]), max(int(stats["added"]) - CAPACITY, 0)
    num_intact = sum(max(min(end, added) - max(first, low), 0) for first, end in expected.intact)
    if stats["size"] != num_intact:
        problems.append(f"{stats['size']} rows, {num_intact} are intact")
    if stats["size"]:
        batch = run.replay.sample(2000)
        problems += [] if np.array_equal(batch["obs"], obs_of(batch["n"])) else ["a row has wrong content"]
    return problems


def resume(root: Path, generator: random.Random, expected: Expected | None) -> list[str]:
    """Restore the run, check it, save it a few times, and return the problems."""
    with trieye.Run(config_of(root)) as run:
        is_restored = run.restore()
        problems = [] if expected is None or not is_restored else problems_of(run, expected)
        if is_restored is (expected is None):
            problems.append("no checkpoint was restored" if expected is not None else "a checkpoint was restored")
        for _ in range(generator.randrange(1, 6)):
            run.step += 1
            run.replay.extend(rows_of(int(run.replay.stats()["added"]), ROWS))
            run.save(weights=weights_of(run.step)).wait()
    return problems


def soak(root: Path, damages: int, generator: random.Random) -> dict[str, Any]:
    """Damage and resume a run `damages` times, and return the damage and the problems."""
    checkpoints = root / "soak" / "runs" / "run" / "checkpoints"
    problems, kinds, expected = [], Counter[str](), None
    for number in range(damages + 1):
        try:
            problems += [f"damage {number}: {text}" for text in resume(root, generator, expected)]
        except CheckpointError as error:
            kinds["none intact"] += 1
            if expected is not None or "none is intact" not in str(error):
                problems.append(f"damage {number}: {error}")
            shutil.rmtree(checkpoints.parents[1])
            resume(root, generator, None)
        for _ in range(generator.choice([1, 1, 2, 4, 12])):
            path = generator.choice([path for path in checkpoints.glob("checkpoint_step_*/**/*") if path.is_file()])
            damage = generator.choice(DAMAGES)
            if path.stat().st_size:
                damage(path, generator)
            kinds[f"{damage.__name__} {'part' if path.parent.name == 'parts' else path.name}"] += 1
        if (expected := newest_intact(checkpoints)) is not None:
            kinds["rows lost" if expected.lost else "all rows intact"] += 1
        print(f"{number} of {damages} damages, next: {expected}", file=sys.stderr)
    return {"damages": damages, "kinds": dict(kinds), "problems": problems}


def main() -> int:
    """Print one JSON line; exit with 1 if there is a problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--damages", type=int, default=100, help="number of times that files are damaged")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30), help="seed of all random choices")
    options = parser.parse_args()
    logging.disable()
    with tempfile.TemporaryDirectory() as root, contextlib.redirect_stderr(io.StringIO()) as output:
        figures = soak(Path(root), options.damages, random.Random(options.seed))
    if figures["problems"]:
        print(output.getvalue()[-5000:], file=sys.stderr)
    print(
        json.dumps({"benchmark": "checkpoint_damage", "seed": options.seed, **figures, "met": not figures["problems"]})
    )
    return 1 if figures["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
