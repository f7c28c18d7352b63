"""What a replay buffer of 100 000 rows costs a checkpoint: the first time, and with 1 % new rows.

Prints one JSON line. Goals: with 1 % new, <= 3 % of the bytes and <= 10 % of the time of a full snapshot. And 30 saves
of a 100 MB model with that buffer: disk <= (keep_last + 2) checkpoints, and the 30th save writes new rows only.
"""

import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import trieye
from trieye.replay import ReplayBuffer

ROWS = 100_000
NEW_ROWS = ROWS // 100
OBS_SHAPE = (256,)
ROUNDS = 7
SAVES = 30
KEEP_LAST = 3
MODEL_BYTES = 100_000_000


def rows(count: int) -> dict[str, Any]:
    """Return rows of 2 KB each."""
    obs = np.random.default_rng(count).standard_normal((count, *OBS_SHAPE), np.float32)
    return {"obs": obs, "next_obs": obs, "action": np.zeros(count, np.int64), "reward": np.zeros(count, np.float32)}


def size_on_disk(*places: Path) -> int:
    """Return the bytes of all files below the places, each file once however many names it has."""
    files = [path.stat() for place in places for path in place.rglob("*") if path.is_file() and not path.is_symlink()]
    return sum({(found.st_dev, found.st_ino): found.st_size for found in files}.values())


def snapshots(directory: Path) -> dict[str, float]:
    """Return medians of time in seconds and bytes of full snapshots, and of those with 1 % new rows."""
    figures: dict[str, list[float]] = {"full_s": [], "full_bytes": [], "next_s": [], "next_bytes": []}
    for number in range(ROUNDS):
        buffer, path = ReplayBuffer(ROWS), directory / f"buffer{number}"
        buffer.extend(rows(ROWS))
        for kind in ("full", "next"):
            before = size_on_disk(directory)
            started = time.perf_counter()
            buffer.save(path)
            figures[f"{kind}_s"].append(time.perf_counter() - started)
            # what fell out of the ring is given back, so only what was added counts
            figures[f"{kind}_bytes"].append(max(size_on_disk(directory) - before, 0))
            buffer.extend(rows(NEW_ROWS))
        shutil.rmtree(path)
    return {name: statistics.median(values) for name, values in figures.items()}


def many_saves(root: Path) -> dict[str, float]:
    """Return bytes of one checkpoint, of all that are there after 30 saves, and of the new files of the last one."""
    model = np.zeros(MODEL_BYTES // 8)
    config = trieye.TrieyeConfig(
        runtime={"kind": "local"},
        persistence={"root_data_dir": str(root), "keep_last": KEEP_LAST},
        replay={"capacity": ROWS},
        sinks={},
    )
    with trieye.Run(config) as run:
        run.replay.extend(rows(ROWS))
        checkpoints = run.dir / "checkpoints"
        peak = one = written = 0
        for _ in run.steps(SAVES):
            run.replay.extend(rows(NEW_ROWS))
            before = {path.stat().st_ino for path in checkpoints.rglob("*.safetensors")}
            path = run.save(model=model).wait()
            one = one or size_on_disk(path)
            peak = max(peak, size_on_disk(checkpoints))
            new = [file.stat() for file in path.rglob("parts/*") if file.stat().st_ino not in before]
            written = sum(found.st_size for found in new)
    return {"one_bytes": one, "peak_bytes": peak, "last_new_replay_bytes": written}


def main() -> None:
    """Measure both."""
    with tempfile.TemporaryDirectory() as directory:
        found = snapshots(Path(directory))
    with tempfile.TemporaryDirectory() as directory:
        kept = many_saves(Path(directory))
    ratios = {"bytes": found["next_bytes"] / found["full_bytes"], "time": found["next_s"] / found["full_s"]}
    row_bytes = sum(array[:1].nbytes for array in rows(1).values())
    met = ratios["bytes"] <= 0.03 and ratios["time"] <= 0.1
    met = met and kept["peak_bytes"] <= (KEEP_LAST + 2) * kept["one_bytes"]
    met = met and kept["last_new_replay_bytes"] <= 1.1 * NEW_ROWS * row_bytes
    report = {
        "benchmark": "replay_checkpoint",
        **{f"ratio_{name}": round(ratio, 4) for name, ratio in ratios.items()},
        "goal": "ratio_bytes <= 0.03, ratio_time <= 0.1, peak <= (keep_last + 2) checkpoints",
        "met": met,
        "rounds": ROUNDS,
        "peak_checkpoints": round(kept["peak_bytes"] / kept["one_bytes"], 2),
        "keep_last": KEEP_LAST,
        **{name: round(value, 4) for name, value in (found | kept).items()},
        "new_rows_bytes": NEW_ROWS * row_bytes,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
