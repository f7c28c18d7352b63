"""SlurmArray: the job array that runs a sweep, and the states of its tasks from squeue."""

import shutil
import subprocess
from collections.abc import Mapping

from trieye.sweeps.record import JsonRecord

_PATIENCE_S = 30.0


class SlurmArray(JsonRecord, kw_only=True):
    """The last submitted array of a sweep.

    Attributes:
        id: Its id in Slurm.
        tasks: The jobs of each task.
    """

    FILE = "slurm.json"
    ADVICE = "delete it after all arrays of the sweep have ended"

    id: str
    tasks: list[list[int]]

    def states(self) -> Mapping[int, str] | None:
        """Return the states of its pending and running tasks by number, such as `PENDING`; None if Slurm is unknown."""
        squeue = shutil.which("squeue")
        if squeue is None:
            return None
        command = [squeue, "--noheader", "--array", "--jobs", self.id, "--format", "%K %T"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
        except subprocess.TimeoutExpired:
            return None
        if done.returncode != 0:
            return {} if "invalid job id" in done.stderr.lower() else None
        pairs = (line.split() for line in done.stdout.splitlines() if line.strip())
        return {int(task): state for task, state in pairs}

    def jobs(self) -> Mapping[int, str]:
        """Return the state of the task of each job whose task is pending or running."""
        states = self.states() or {}
        return {index: states[task] for task, jobs in enumerate(self.tasks) if task in states for index in jobs}
