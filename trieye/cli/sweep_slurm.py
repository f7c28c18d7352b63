"""`trieye sweep slurm`: write a Slurm script for unfinished jobs of a sweep, or submit it."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trieye.cli.arguments import add_action, add_confirmed
from trieye.cli.output import print_json
from trieye.exceptions import ConfigurationError

if TYPE_CHECKING:
    from trieye.sweeps.slurm import ArrayRequest

_LARGE_CORE_H = 10_000
"""Threshold in core-hours above which the output also gives core-years, as a warning."""


def add_slurm(actions: Any, states: Sequence[str]) -> None:
    """Add the `slurm` action.

    Args:
        actions: Subparsers of `trieye sweep`.
        states: Job states that --only accepts.
    """
    slurm = add_action(actions, "slurm", "write a Slurm script that runs unfinished jobs, or submit it")
    slurm.add_argument("dir", nargs="?", type=Path, metavar="DIR", help="sweep directory, visible to all nodes")
    slurm.add_argument(
        "--hours",
        type=float,
        required=True,
        metavar="H",
        help="time limit of a Slurm task in hours, minus one second: 3 becomes 2:59:59",
    )
    slurm.add_argument("--memory-gib", type=float, metavar="G", help="memory per job in GiB (default: Slurm's default)")
    slurm.add_argument("--cpus", type=int, default=1, metavar="N", help="CPUs per job (default: 1)")
    slurm.add_argument(
        "--gpus", type=float, default=0.0, metavar="N", help="GPUs per job; with 0.25, four jobs share one (default: 0)"
    )
    slurm.add_argument(
        "--per-task", type=int, default=1, metavar="N",
        help="jobs per task of the array; --max-concurrent of them run in parallel (default: 1)",
    )  # fmt: skip
    slurm.add_argument("--max-concurrent", type=int, default=1, metavar="N", help="parallel jobs per task (default: 1)")
    slurm.add_argument(
        "--max-running-tasks",
        type=int,
        metavar="N",
        help="maximum number of tasks that run at the same time (default: no limit)",
    )
    slurm.add_argument(
        "--signal", type=int, default=120, metavar="S",
        help="jobs save and are requeued S seconds before the time limit; 0 disables this (default: 120)",
    )  # fmt: skip
    slurm.add_argument("--account", metavar="NAME", help="Slurm account")
    slurm.add_argument("--partition", metavar="NAME", help="Slurm partition")
    slurm.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="additional sbatch option, such as constraint=v100; repeatable",
    )
    slurm.add_argument(
        "--only",
        default=",".join(states),
        metavar="STATE,...",
        help=f"run only jobs in these states: {', '.join(states)} (default: all of them)",
    )
    add_confirmed(slurm)
    slurm.add_argument("--submit", action="store_true", help="submit the script with sbatch")


def write_script(options: argparse.Namespace, directory: Path, indices: Sequence[int], working_dir: str) -> int:
    """Write the script for some jobs of a sweep, print the resources it requests, and submit it with --submit."""
    from trieye.files.atomic import write_atomic
    from trieye.sweeps.slurm import LOGS, SCRIPT, script_of, submit

    request = _request(options, directory)
    path = directory / SCRIPT
    (directory / LOGS).mkdir(exist_ok=True)
    write_atomic(path, script_of(directory, indices, request, working_dir=working_dir).encode())
    tasks = -(-len(indices) // request.per_task)
    core_h = tasks * request.hours * request.cpus * request.max_concurrent
    if options.json:
        number = submit(path) if options.submit else None
        document = {"sweep": directory, "jobs": list(indices), "num_tasks": tasks, "core_hours": core_h}
        print_json("sweep.slurm", {**document, "script": path, "submitted": number})
        return 0
    print(f"{len(indices)} jobs in {tasks} task{'s' if tasks > 1 else ''}, at most {core_h:,.0f} core-hours", end="")
    print(f" ({core_h / 8766:,.1f} core-years)" if core_h >= _LARGE_CORE_H else "")
    if not options.submit:
        print(f"written to {path}; submit it with `sbatch {path}` or --submit")
        return 0
    number = submit(path)
    print(f"submitted as {number}; status: squeue -j {number}, trieye sweep status {directory}")
    return 0


def _request(options: argparse.Namespace, directory: Path) -> "ArrayRequest":
    from trieye.sweeps.slurm import ArrayRequest

    for option in options.option:
        if not option or option.startswith("-") or "\n" in option:
            raise ConfigurationError(f"--option {option!r}: expected KEY=VALUE or KEY, such as constraint=v100")
    named = {"account": options.account, "partition": options.partition}
    return ArrayRequest(
        hours=options.hours,
        memory_gib=options.memory_gib,
        cpus=options.cpus,
        gpus=options.gpus,
        per_task=options.per_task,
        max_concurrent=options.max_concurrent,
        max_tasks=options.max_running_tasks,
        signal_s=options.signal,
        name=directory.resolve().name,
        options=[*(f"{key}={value}" for key, value in named.items() if value), *options.option],
    )
