"""Cost of a replay buffer with 100 000 rows in a checkpoint: the first save, and a save with 1 % new rows.

Prints one JSON line. Goals: with 1 % new rows, <= 3 % of the bytes and <= 10 % of the time of a full snapshot. During
30 saves of a 100 MB model with that buffer, disk usage <= (keep_last + 2) checkpoints, and the 30th save writes new
rows only.
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


def size_on_disk(*directories: Path) -> int:
    """Return the total size of all files in the directories, counting hard links once."""
    stats = [
        path.stat() for root in directories for path in root.rglob("*") if path.is_file() and not path.is_symlink()
    ]
    return sum({(stat.st_dev, stat.st_ino): stat.st_size for stat in stats}.values())


def snapshots(directory: Path) -> dict[str, float]:
    """Return median durations in seconds and bytes of full snapshots, and of snapshots with 1 % new rows."""
    figures: dict[str, list[float]] = {"full_s": [], "full_bytes": [], "next_s": [], "next_bytes": []}
    for number in range(ROUNDS):
        buffer, path = ReplayBuffer(ROWS), directory / f"buffer{number}"
        buffer.extend(rows(ROWS))
        for kind in ("full", "next"):
            before = size_on_disk(directory)
            start = time.perf_counter()
            buffer.save(path)
            figures[f"{kind}_s"].append(time.perf_counter() - start)
            # overwritten rows free disk space, so only growth counts
            figures[f"{kind}_bytes"].append(max(size_on_disk(directory) - before, 0))
            buffer.extend(rows(NEW_ROWS))
        shutil.rmtree(path)
    return {name: statistics.median(values) for name, values in figures.items()}


def many_saves(root: Path) -> dict[str, float]:
    """Return the size of a checkpoint, peak disk usage during 30 saves, and the size of the last save's new files."""
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
        peak = first_size = written = 0
        for _ in run.steps(SAVES):
            run.replay.extend(rows(NEW_ROWS))
            before = {path.stat().st_ino for path in checkpoints.rglob("*.safetensors")}
            path = run.save(model=model).wait()
            first_size = first_size or size_on_disk(path)
            peak = max(peak, size_on_disk(checkpoints))
            new = [file.stat() for file in path.rglob("parts/*") if file.stat().st_ino not in before]
            written = sum(stat.st_size for stat in new)
    return {"one_bytes": first_size, "peak_bytes": peak, "last_new_replay_bytes": written}


def main() -> None:
    """Measure both and print one JSON line."""
    with tempfile.TemporaryDirectory() as directory:
        single = snapshots(Path(directory))
    with tempfile.TemporaryDirectory() as directory:
        repeated = many_saves(Path(directory))
    ratios = {"bytes": single["next_bytes"] / single["full_bytes"], "time": single["next_s"] / single["full_s"]}
    row_bytes = sum(array[:1].nbytes for array in rows(1).values())
    met = ratios["bytes"] <= 0.03 and ratios["time"] <= 0.1
    met = met and repeated["peak_bytes"] <= (KEEP_LAST + 2) * repeated["one_bytes"]
    met = met and repeated["last_new_replay_bytes"] <= 1.1 * NEW_ROWS * row_bytes
    report = {
        "benchmark": "replay_checkpoint",
        **{f"ratio_{name}": round(ratio, 4) for name, ratio in ratios.items()},
        "goal": "ratio_bytes <= 0.03, ratio_time <= 0.1, peak <= (keep_last + 2) checkpoints",
        "met": met,
        "rounds": ROUNDS,
        "peak_checkpoints": round(repeated["peak_bytes"] / repeated["one_bytes"], 2),
        "keep_last": KEEP_LAST,
        **{name: round(value, 4) for name, value in (single | repeated).items()},
        "new_rows_bytes": NEW_ROWS * row_bytes,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
