"""SlurmArray: the job array that runs a sweep, and the states of its tasks from squeue."""

import re
import shutil
import subprocess
from collections.abc import Mapping
from typing import NamedTuple

from trieye.sweeps.record import JsonRecord

_PATIENCE_S = 30.0


class TaskState(NamedTuple):
    """State of a task in the queue, such as `PENDING`, and the reason why it is pending, such as `Resources`."""

    state: str
    reason: str


class SlurmArray(JsonRecord, kw_only=True):
    """The last submitted array of a sweep.

    Attributes:
        id: Its id in Slurm.
        cluster: Name of its cluster; empty without several clusters.
        tasks: The jobs of each task.
    """

    FILE = "slurm.json"
    ADVICE = "delete it after all arrays of the sweep have ended"

    id: str
    cluster: str = ""
    tasks: list[list[int]]

    def command(self, program: str, *options: str) -> list[str]:
        """Return the words of a Slurm command, with its cluster and, after the options, its id."""
        return [program, *([f"--clusters={self.cluster}"] if self.cluster else []), *options, self.id]

    def states(self) -> Mapping[int, TaskState] | None:
        """Return the states of its pending and running tasks by number; None if squeue gives no usable answer."""
        squeue = shutil.which("squeue")
        if squeue is None:
            return None
        command = self.command(squeue, "--noheader", "--array", "--format", "%K %T %r", "--jobs")
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
        except subprocess.TimeoutExpired:
            return None
        if done.returncode != 0:
            return {} if "invalid job id" in done.stderr.lower() else None
        lines = [line.strip() for line in done.stdout.splitlines()]
        lines = [line for line in lines if line and not line.startswith("CLUSTER:")]
        rows = [re.fullmatch(r"(\d+) +(\w+) +(.*)", line) for line in lines]
        states = {int(row[1]): TaskState(row[2], row[3]) for row in rows if row is not None}
        return None if None in rows else states

    def jobs(self) -> Mapping[int, TaskState]:
        """Return the state of the task of each job whose task is pending or running."""
        states = self.states() or {}
        return {index: states[task] for task, jobs in enumerate(self.tasks) if task in states for index in jobs}
