"""Replay buffers of several libraries: adding, sampling, memory and saving, with CartPole rows and Atari frames.

All sides alternate in one process, in an environment in `.peers/replay` that is created on first use, with the NumPy,
torch and trieye of the current environment. Peers that fail to install or run are listed in `skipped`. `take` is the
upper bound: `np.take` of the same number of rows into reused memory. `sample_out` reuses the memory of an earlier
batch. `fragmented`: the heap also contains unrelated blocks of all sizes; `mapped`: the allocator maps new memory for
each batch.

Speeds are thousand rows per CPU second with one thread, medians of interleaved rounds; `ratios` are medians of the
rounds' ratios. Memory is the growth of the process, as a multiple of the bytes of the rows. Saving is wall-clock time;
only trieye's data is on disk when the call returns. The goals of the actor are in `replay_actor.py`. Prints one JSON
line.
"""

import argparse
import ctypes
import gc
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from peer.environments import REPLAY, installed
from peer.replay_sides import BATCH, BLOCK, SIDES, Case, Cpprb, Sb3, Side, Take, Tianshou, Torchrl, Trieye

CASES = {"cartpole": Case((4,), np.float32, 100_000), "atari": Case((84, 84, 4), np.uint8, 4_000)}
ROWS_OF = {"add": 1, "extend": BLOCK, "sample": BATCH, "sample_out": BATCH, "prioritized": BATCH}
AT_LEAST = {
    "cartpole add / sb3": 2.0,
    "atari add / sb3": 2.0,
    "cartpole extend / cpprb": 5.0,
    "atari extend / cpprb": 1.0,
    "cartpole sample / cpprb": 1.6,
    "atari sample / take": 0.95,
    "atari sample_out / take": 0.95,
    "atari fragmented sample / take": 0.95,
    "atari fragmented sample_out / take": 0.95,
    "atari mapped sample / take": 0.95,
    "atari mapped sample_out / take": 0.95,
    "cartpole prioritized / tianshou": 1.1,
    "atari prioritized / cpprb": 1.0,
    "million prioritized, M rows/s": 1.0,
    "atari save of 1 % / torchrl": 10.0,
    "atari load / torchrl": 1.0,
}
AT_MOST = {
    "cartpole memory / payload": 1.02,
    "atari memory / payload": 1.02,
    "atari dedup_next memory / payload": 0.52,
    "atari save of 1 % / full save": 0.05,
}
M_MMAP_THRESHOLD = -3  # of mallopt(3)


class Bench:
    """Collects measurements.

    Args:
        rounds: Rounds per side.
        seconds: CPU time per figure and round.
    """

    def __init__(self, rounds: int, seconds: float) -> None:
        self.rounds, self.seconds = rounds, seconds
        self.figures: dict[str, Any] = {}
        self.ratios: dict[str, float] = {}
        self.skipped: dict[str, str] = {}

    def filled(self, makers: Mapping[str, Callable[[], Side]]) -> dict[str, Side]:
        """Return full buffers of all sides that can be created."""
        sides = {}
        for name, make in makers.items():
            try:
                side = make()
                fill(side)
            except Exception as error:  # noqa: BLE001 - a failing peer must not stop the others
                self.skip(name, error)
            else:
                sides[name] = side
        return sides

    def skip(self, name: str, error: Exception) -> None:
        """Record why a side is not measured."""
        self.skipped[name] = f"{type(error).__name__}: {error}"[:200]

    def compare(self, title: str, sides: Mapping[str, Side], figures: Iterable[str]) -> None:
        """Measure all sides in turn, and the ratios of trieye to the others."""
        for figure in figures:
            calls = {name: getattr(side, figure) for name, side in sides.items() if hasattr(side, figure)}
            speeds: dict[str, list[float]] = {name: [] for name in calls}
            for _ in range(self.rounds):
                for name, call in calls.items():
                    speeds[name].append(thousands_per_s(call, rows=ROWS_OF[figure], seconds=self.seconds))
            self.figures[f"{title} {figure}"] = {name: statistics.median(values) for name, values in speeds.items()}
            for name in speeds.keys() - {"trieye"}:
                self.ratio(f"{title} {figure} / {name}", speeds["trieye"], speeds[name])

    def ratio(self, name: str, ours: list[float], others: list[float]) -> None:
        """Record the median of the ratios of each round."""
        self.ratios[name] = statistics.median(our / other for our, other in zip(ours, others, strict=True))


def thousands_per_s(call: Callable[[], object], *, rows: int, seconds: float) -> float:
    """Repeat a call for some CPU seconds and return thousand rows per second."""
    call()
    num_calls, burst, start = 0, 1, time.process_time()  # CPU time, so that other processes do not count
    while (elapsed := time.process_time() - start) < seconds:
        for _ in range(burst):
            call()
        num_calls += burst
        burst = min(num_calls, 64)
    return num_calls * rows / elapsed / 1000


def fill(side: Side) -> None:
    """Fill the buffer to its capacity."""
    extend: Callable[[], object] = getattr(side, "extend", lambda: None)
    for _ in range(-(-side.case.capacity // BLOCK)):
        extend()


def uniform(bench: Bench, name: str, case: Case) -> None:
    """Measure adding and sampling."""
    kinds = {side: kind for side, kind in SIDES.items() if (side, name) != ("rllib", "atari")}  # would take minutes
    sides = bench.filled({side: partial(kind, case) for side, kind in kinds.items()})
    bench.compare(name, sides, ["add", "extend"])
    sides["take"] = Take(case)
    bench.compare(name, sides, ["sample", "sample_out"])
    if name == "atari":
        fastest: dict[str, Side] = {side: sides[side] for side in ("trieye", "cpprb", "take") if side in sides}
        blocks = fragmented()
        bench.compare("atari fragmented", fastest, ["sample", "sample_out"])
        del blocks
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 17)
        bench.compare("atari mapped", fastest, ["sample", "sample_out"])


def fragmented() -> list[Any]:
    """Return memory blocks separated by freed blocks."""
    rng = random.Random(0)
    blocks = [np.ones(int(2 ** rng.uniform(6, 23)), np.uint8) for _ in range(400)]
    rng.shuffle(blocks)
    del blocks[::2]
    return blocks


def prioritized(bench: Bench, name: str, case: Case) -> None:
    """Measure prioritized sampling and updating the priorities of the sampled rows."""
    kinds: dict[str, Callable[..., Side]] = {"trieye": Trieye, "cpprb": Cpprb, "tianshou": Tianshou}
    sides = bench.filled({side: partial(kind, case, sampler="prioritized") for side, kind in kinds.items()})
    bench.compare(name, sides, ["prioritized"])


def million(bench: Bench) -> None:
    """Measure the sum tree with a million rows."""
    case = replace(CASES["cartpole"], capacity=1_000_000)
    bench.compare("million", bench.filled({"trieye": lambda: Trieye(case, sampler="prioritized")}), ["prioritized"])
    bench.ratios["million prioritized, M rows/s"] = bench.figures["million prioritized"]["trieye"] / 1000


def memory(bench: Bench) -> None:
    """Measure the memory of a full buffer, each side in a separate process."""
    for side in SIDES:
        done = subprocess.run([sys.executable, __file__, "--memory", side], stdout=subprocess.PIPE, check=False)
        for title, ratio in json.loads(done.stdout.splitlines()[-1] if done.stdout else "{}").items():
            bench.figures.setdefault(title, {})[side] = ratio
            if side == "trieye":
                bench.ratios[title] = ratio


def memory_of(side: str) -> dict[str, float]:
    """Return the growth of this process as a multiple of the bytes of the rows."""
    options = [("", {}), *([("dedup_next ", {"dedup_next": True})] if side == "trieye" else [])]
    ratios = {}
    for name, case in CASES.items():
        if (side, name) == ("rllib", "atari"):
            continue
        for prefix, option in options:
            fill(SIDES[side](replace(case, capacity=BLOCK), **option))  # imports the library
            before = resident_bytes()
            buffer = SIDES[side](case, **option)
            fill(buffer)
            ratios[f"{name} {prefix}memory / payload"] = (resident_bytes() - before) / payload_bytes(case)
            del buffer
    return ratios


def disk(bench: Bench, name: str, case: Case) -> None:
    """Measure saving all rows, saving again with 1 % new rows, and loading."""
    kinds = {"trieye": Trieye, "torchrl": Torchrl, "sb3": Sb3}
    times: dict[str, dict[str, list[float]]] = {}
    for _ in range(3):
        for side, kind in kinds.items():
            if side in bench.skipped:
                continue
            try:
                durations = save_and_load(kind, case)
            except ImportError as error:
                bench.skip(side, error)
                continue
            for operation, elapsed in durations.items():
                times.setdefault(operation, {}).setdefault(side, []).append(elapsed)
    for operation, by_side in times.items():
        medians = {side: statistics.median(durations) for side, durations in by_side.items()}
        bench.figures[f"{name} {operation}, ms"] = {side: 1e3 * median for side, median in medians.items()}
        for side in by_side.keys() - {"trieye"}:
            bench.ratio(f"{name} {operation} / {side}", by_side[side], by_side["trieye"])
    bench.ratio(f"{name} save of 1 % / full save", times["save of 1 %"]["trieye"], times["save"]["trieye"])


def save_and_load(kind: type[Any], case: Case) -> dict[str, float]:
    """Return the times in seconds."""
    side, fresh = kind(case), kind(case)
    fill(side)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "replay")
        times = {"save": seconds(lambda: side.save(path))}
        for _ in range(case.capacity // 100):
            side.add()
        times["save of 1 %"] = seconds(lambda: side.save(path))
        times["load"] = seconds(lambda: fresh.load(path))
    return times


def seconds(call: Callable[[], object]) -> float:
    """Return the duration of a call in seconds."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def payload_bytes(case: Case) -> int:
    """Return the size of the values of all rows in bytes."""
    return sum(array[:1].nbytes for array in case.rows(1).values()) * case.capacity


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * 4096


def measure(rounds: int, seconds_each: float, disk_rows: int) -> None:
    """Measure everything in this process and print one JSON line."""
    import torch

    torch.set_num_threads(1)
    bench = Bench(rounds, seconds_each)
    for name, case in CASES.items():
        prioritized(bench, name, case)
    million(bench)
    memory(bench)
    for name, case in CASES.items():
        disk(bench, name, case if name == "cartpole" else replace(case, capacity=disk_rows))
    for name, case in CASES.items():  # last, since it changes the allocator permanently
        uniform(bench, name, case)
    goals: dict[str, Any] = {}
    for name in [*AT_LEAST, *AT_MOST]:
        ratio = bench.ratios.pop(name, None)
        met = None if ratio is None else ratio >= AT_LEAST.get(name, 0) and ratio <= AT_MOST.get(name, ratio)
        goal = f"<= {AT_MOST[name]}" if name in AT_MOST else f">= {AT_LEAST[name]}"
        goals[name] = {"ratio": ratio, "goal": goal, "met": met}
    report: dict[str, Any] = {"benchmark": "replay_peers", "unit": "thousand rows/CPU s", "goals": goals}
    report |= {"ratios": bench.ratios, "figures": bench.figures, "skipped": bench.skipped}
    report["met"] = all(goal["met"] is not False for goal in goals.values())
    print(json.dumps(rounded(report)))


def rounded(figures: Any) -> Any:
    """Round numbers to three significant digits."""
    if isinstance(figures, dict):
        return {name: rounded(value) for name, value in figures.items()}
    return float(f"{figures:.3g}") if isinstance(figures, float) else figures


def main() -> None:
    """Start the measurement in the environment of the peers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="rounds of each comparison")
    parser.add_argument("--seconds", type=float, default=0.03, help="CPU time for each figure of a round")
    parser.add_argument("--disk-rows", type=int, default=10_000, help="Atari rows that are saved")
    parser.add_argument("--memory", choices=SIDES, help="measure the memory of one side (used by this script)")
    parser.add_argument("--here", action="store_true", help="measure in this environment (used by this script)")
    options = parser.parse_args()
    if options.memory:
        print(json.dumps(memory_of(options.memory)))
        return
    if options.here:
        measure(options.rounds, options.seconds, options.disk_rows)
        return
    arguments = [
        f"--{name.replace('_', '-')}={value}" for name, value in vars(options).items() if name not in ("here", "memory")
    ]
    subprocess.run([installed("replay", REPLAY), __file__, "--here", *arguments], check=True)


if __name__ == "__main__":
    main()
