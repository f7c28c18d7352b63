"""`trieye sweep slurm`: have a batch system run what is missing of a sweep."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trieye.cli.arguments import add_confirmed
from trieye.cli.output import print_json
from trieye.exceptions import ConfigurationError

if TYPE_CHECKING:
    from trieye.sweeps.slurm import Asked

_MUCH_H = 10_000
"""Core-hours from which a sweep is worth a second look."""


def add_slurm(actions: Any, again: Sequence[str]) -> None:
    """Add the action to the others; `again` are the states of jobs that it can be asked to run."""
    slurm = actions.add_parser("slurm", help="write a script that runs them on Slurm, or submit it")
    slurm.add_argument("dir", nargs="?", type=Path, metavar="DIR", help="directory of the sweep, which all nodes see")
    slurm.add_argument(
        "--hours", type=float, required=True, metavar="H", help="time limit of a task; 3 becomes 2:59:59"
    )
    slurm.add_argument(
        "--memory-gib", type=float, metavar="GIB", help="memory of a job in GiB (default: that of the cluster)"
    )
    slurm.add_argument("--cpus", type=int, default=1, metavar="N", help="CPUs of a job (1)")
    slurm.add_argument("--gpus", type=float, default=0.0, metavar="N", help="GPUs of a job; 0.25 lets four share one")
    slurm.add_argument("--per-task", type=int, default=1, metavar="N", help="jobs that a task of the array runs (1)")
    slurm.add_argument(
        "--max-concurrent", type=int, default=1, metavar="N", help="maximum jobs of a task at the same time (1)"
    )
    slurm.add_argument("--max-tasks", type=int, metavar="N", help="maximum tasks at the same time (default: no limit)")
    slurm.add_argument(
        "--signal", type=int, default=120, metavar="S",
        help="seconds before the time is over at which jobs save, and are queued again to go on; 0 = not (120)",
    )  # fmt: skip
    slurm.add_argument("--account", metavar="NAME", help="who pays")
    slurm.add_argument("--partition", metavar="NAME", help="where to run")
    slurm.add_argument(
        "--option", action="append", default=[], metavar="KEY=VALUE", help="any other of sbatch, as in constraint=v100"
    )
    slurm.add_argument("--only", default=",".join(again), metavar="HOW,...", help=f"of {', '.join(again)} (all)")
    add_confirmed(slurm)
    slurm.add_argument("--submit", action="store_true", help="hand it to sbatch")


def write_script(options: argparse.Namespace, directory: Path, indices: Sequence[int], working_dir: str) -> int:
    """Write the script for some jobs of a sweep, say what it asks for, and submit it if that is wanted."""
    from trieye.files.atomic import write_atomic
    from trieye.sweeps.slurm import LOGS, SCRIPT, script_of, submit

    asked = _asked(options, directory)
    path = directory / SCRIPT
    (directory / LOGS).mkdir(exist_ok=True)
    write_atomic(path, script_of(directory, indices, asked, working_dir=working_dir).encode())
    tasks = -(-len(indices) // asked.per_task)
    core_h = tasks * asked.hours * asked.cpus * asked.max_concurrent
    if options.json:
        number = submit(path) if options.submit else None
        document = {"sweep": directory, "jobs": list(indices), "num_tasks": tasks, "core_hours": core_h}
        print_json("sweep.slurm", {**document, "script": path, "submitted": number})
        return 0
    print(f"{len(indices)} jobs in {tasks} task{'s' if tasks > 1 else ''}, {core_h:,.0f} core-hours at most", end="")
    print(f" ({core_h / 8766:,.1f} core-years)" if core_h >= _MUCH_H else "")
    if not options.submit:
        print(f"written to {path}; submit it: sbatch {path}, or --submit")
        return 0
    number = submit(path)
    print(f"submitted as {number}: squeue -j {number}; trieye sweep status {directory}")
    return 0


def _asked(options: argparse.Namespace, directory: Path) -> "Asked":
    from trieye.sweeps.slurm import Asked

    for option in options.option:
        if not option or option.startswith("-") or "\n" in option:
            raise ConfigurationError(f"--option {option!r}: it is KEY=VALUE or KEY, as in constraint=v100")
    named = {"account": options.account, "partition": options.partition}
    return Asked(
        hours=options.hours,
        memory_gib=options.memory_gib,
        cpus=options.cpus,
        gpus=options.gpus,
        per_task=options.per_task,
        max_concurrent=options.max_concurrent,
        max_tasks=options.max_tasks,
        signal_s=options.signal,
        name=directory.resolve().name,
        options=[*(f"{key}={value}" for key, value in named.items() if value), *options.option],
    )
