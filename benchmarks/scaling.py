"""Number of explorers that saturates each receiver: a cost model, checked with 10 to 1000 simulated explorers.

First, the benchmark measures costs: the CPU time per message of the replay actor, the hub and the learner, under a
closed loop with few senders, and the size of each message. `scale/model.py` derives the number of
explorers that saturates a receiver with a processor to itself. Then it checks the model: many explorers, coroutines of
two processes, send the messages of real explorers to the real actors, on schedule and without waiting for replies.
`met`: the accepted messages agree with the prediction within a factor of 1.5, relative to the share of a processor that
a saturated receiver got. Prints one JSON line per part, and a summary; docs/scaling.md explains them.
"""

import argparse
import json
import logging
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from scale.messages import WORLDS, bytes_per_event, bytes_per_step
from scale.model import (
    MOST,
    Cost,
    Forecast,
    Kind,
    Part,
    forecast,
    hub_events_saturate_at,
    is_within,
    saturates_at,
    save_bytes,
)
from scale.parts import HubRig, LearnerRig, Outcome, ReplayRig, Sample

import trieye

FACTOR = 1.5
SATURATED = 0.9
"""A part is saturated if it accepts less than this fraction of the offered messages."""

NEW_ROWS = 2_000

MOST_QUICK = 100
"""Maximum number of explorers with `--quick`; more take longer until each has been served once."""


def main() -> None:
    """Print one JSON line per part, and the summary."""
    options = arguments()
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the output of libraries goes to stderr
    torch.set_num_threads(1)
    ray.init(
        address="local", num_cpus=2, include_dashboard=False, object_store_memory=1 << 30, namespace="trieye",
        log_to_driver=False, logging_level=logging.ERROR,
    )  # fmt: skip
    lines = []
    with tempfile.TemporaryDirectory() as root:
        for line in measure(Path(root), options):
            lines.append(line)
            print(json.dumps(rounded({"benchmark": "scaling", **line})), file=output, flush=True)
    ray.shutdown()
    summary = {"benchmark": "scaling", "part": "summary", **summary_of(lines)}
    print(json.dumps(rounded(summary)), file=output, flush=True)


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--explorers", type=int, nargs="+", default=[10, 100, 1000], help="numbers to simulate")
    parser.add_argument("--seconds", type=float, default=10.0, help="duration of each simulation")
    parser.add_argument("--quick", action="store_true", help=f"simulate 2 s, with at most {MOST_QUICK} explorers")
    parser.add_argument("--parts", nargs="+", default=list(RIGS), choices=list(RIGS), help="parts to measure")
    options = parser.parse_args()
    if options.quick:
        options.seconds = 2.0
        options.explorers = [num for num in options.explorers if num <= MOST_QUICK]
    options.calibration_s = 0.7 if options.quick else 3.0
    return options


def measure(root: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the figures of each part."""
    yield sizes()
    yield saves(root)
    for name in options.parts:
        start = time.monotonic()
        line = RIGS[name](name, root, options)
        yield {**line, "took_s": time.monotonic() - start, "load": os.getloadavg()[0]}


def sizes() -> dict[str, Any]:
    """Return message sizes in bytes."""
    kinds = {name: world.kind() for name, world in WORLDS.items()}
    return {
        "part": "bytes",
        "machine": f"{os.cpu_count()} processors, Ray {ray.__version__}, Python {sys.version.split()[0]}",
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "per_env_step": bytes_per_step(),
        "per_publish": {name: kind.policy_bytes for name, kind in kinds.items()},
        "per_event": {str(num): bytes_per_event(num) for num in (10, 100, 10_000)},
        "kinds": {name: asdict(kind) for name, kind in kinds.items()},
    }


def saves(root: Path) -> dict[str, Any]:
    """Return the measured and the predicted bytes of a checkpoint with new rows."""
    world = WORLDS["floats"]
    policy = world.policy()
    optimizer = torch.optim.Adam(policy.parameters())
    torch.stack([parameter.sum() for parameter in policy.parameters()]).sum().backward()
    optimizer.step()
    config = trieye.TrieyeConfig(
        run_name="saves", runtime={"kind": "local"}, persistence={"root_data_dir": str(root)}, sinks={},
        replay={"capacity": world.capacity},
    )  # fmt: skip
    rows, envs = world.rows(1, NEW_ROWS).transitions()
    with trieye.Run(config) as run:
        saved_bytes = []
        for _ in run.steps(2):
            run.replay.extend(rows, envs)
            before = {path.stat().st_ino for path in run.dir.rglob("*") if path.is_file()}
            path = run.save(policy=policy, optimizer=optimizer).wait()
            files = [file.stat() for file in path.rglob("*") if file.is_file() and not file.is_symlink()]
            saved_bytes.append(sum(file.st_size for file in files if file.st_ino not in before))
    row_bytes = sum(array.nbytes for array in rows.values()) / NEW_ROWS
    policy_bytes = sum(tensor.nbytes for tensor in policy.state_dict().values())
    expected = save_bytes(policy_bytes, 2 * policy_bytes, NEW_ROWS, row_bytes)
    return {
        "part": "save",
        "new_rows": NEW_ROWS,
        "predicted_bytes": expected,
        "bytes": saved_bytes[-1],
        "besides_bytes": saved_bytes[-1] - expected,
        "met": is_within(saved_bytes[-1], expected, FACTOR),
    }


def replay_line(name: str, root: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of the replay actor for rows of one kind."""
    del root
    kind = WORLDS[name.partition("_")[2]].kind()
    rig, seconds = ReplayRig(kind), options.calibration_s
    rig.warm_up()
    batch_rows = (max(kind.fragment_rows // 8, 1), max(kind.fragment_rows // 2, 1))
    small, large = (rig.calibrate(rows, seconds) for rows in batch_rows)
    rig.prepare()
    line = line_of(name, "replay", kind, (small, large), rig.simulate, options)
    rig.close()
    rows_per_s = max(simulation["accepted_per_s"] for simulation in line["simulated"]) * kind.fragment_rows
    return {**line, "rows_per_s": rows_per_s, "bytes_per_s": rows_per_s * kind.row_bytes}


def hub_line(name: str, root: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of the hub."""
    kind = WORLDS["floats"].kind()
    rig = HubRig(kind, root)
    rig.calibrate(10, 0.5)
    samples = (rig.calibrate(10, options.calibration_s), rig.calibrate(2_000, options.calibration_s))
    line = line_of(name, "hub", kind, samples, rig.simulate, options)
    rig.close()
    events_at = hub_events_saturate_at(kind, cost_of(samples))
    return {**line, "values_pile_up_at": events_at, "events_per_s": events_at * kind.events_per_s}


def learner_line(name: str, root: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of the learner, with or without rows in the fragment results."""
    del root
    kind = WORLDS["floats"].kind()
    rig = LearnerRig(kind, has_rows=name == "learner_with_rows")
    rig.calibrate(16, 0.5)
    samples = (rig.calibrate(16, options.calibration_s), rig.calibrate(512, options.calibration_s))
    line = line_of(name, "learner", kind, samples, rig.simulate, options)
    rig.close()
    return line


def line_of(
    name: str,
    part: Part,
    kind: Kind,
    samples: tuple[Sample, Sample],
    simulate: Callable[[int, float], Outcome],
    options: argparse.Namespace,
) -> dict[str, Any]:
    """Simulate all numbers of explorers, and return the figures of a part: costs, saturation and simulations."""
    cost = cost_of(samples)
    simulated = []
    for num in options.explorers:
        outcome = simulate(num, options.seconds)
        is_full = outcome.accepted_per_s < SATURATED * outcome.offered_per_s
        if part == "hub":  # its clients send fewer and larger batches, so all events are accepted
            is_full = (outcome.p50_ms or math.inf) > 1e3 * kind.flush_interval_s
        # a saturated receiver shares the machine with other processes
        effective_cost = cost.with_share(outcome.receiver_cpu) if is_full else cost
        figures = compared(outcome, forecast(part, num, kind, effective_cost))
        simulated.append({"explorers": num, "is_full": is_full, **figures})
    return {
        "part": name,
        "kind": kind.name,
        "calibration": [asdict(sample) for sample in samples],
        "cost": {"call_us": 1e6 * cost.call_s, "unit_ns": 1e9 * cost.unit_s},
        "saturates_at": saturates_at(part, kind, cost),
        "full_between": full_between(simulated),
        "simulated": simulated,
        "met": all(simulation["met"] for simulation in simulated),
    }


def cost_of(samples: tuple[Sample, Sample]) -> Cost:
    """Fit the cost to two calibrations."""
    small, large = samples
    return Cost.of((small.units, 1e6 / small.cpu_us), (large.units, 1e6 / large.cpu_us))


def compared(outcome: Outcome, prediction: Forecast) -> dict[str, Any]:
    """Return the figures of a simulation and their predictions."""
    return {
        **{name: value for name, value in asdict(outcome).items() if value is not None},
        "receiver_cpu_us": outcome.cpu_us,
        "predicted_per_s": prediction.accepted_per_s,
        "predicted_utilization": prediction.utilization,
        "met": is_within(outcome.accepted_per_s, prediction.accepted_per_s, FACTOR),
    }


def full_between(simulated: list[dict[str, Any]]) -> list[int | None]:
    """Return the largest number of explorers that a part supported, and the smallest that saturated it."""
    supported = [simulation["explorers"] for simulation in simulated if not simulation["is_full"]]
    saturating = [simulation["explorers"] for simulation in simulated if simulation["is_full"]]
    return [max(supported, default=0), min(saturating, default=None)]


def summary_of(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the saturation of each part, and the parts that missed their goals."""
    parts = {line["part"]: line for line in lines if "saturates_at" in line}
    return {
        "explorers": "1000 environment steps/s each, one fragment a message; hub: 50 values/s each, sent every 0.2 s",
        "saturates_at": {
            name: None if line["saturates_at"] >= MOST else line["saturates_at"] for name, line in parts.items()
        },
        "full_between": {name: line["full_between"] for name, line in parts.items()},
        "goal": f"accepted = predicted, within a factor of {FACTOR}",
        "missed": [line["part"] for line in lines if not line.get("met", True)],
        "met": all(line.get("met", True) for line in lines),
    }


def rounded(figures: Any) -> Any:
    """Round numbers to three significant digits."""
    if isinstance(figures, dict):
        return {name: rounded(value) for name, value in figures.items()}
    if isinstance(figures, list | tuple):
        return [rounded(value) for value in figures]
    if isinstance(figures, float | np.floating):
        return float(f"{figures:.3g}")
    return figures


RIGS: dict[str, Callable[[str, Path, argparse.Namespace], dict[str, Any]]] = {
    "replay_floats": replay_line,
    "replay_frames": replay_line,
    "hub": hub_line,
    "learner": learner_line,
    "learner_with_rows": learner_line,
}
"""Function that measures each part."""


if __name__ == "__main__":
    main()
