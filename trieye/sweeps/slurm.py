"""Slurm: the script of a job array that runs a sweep, and its submission."""

import math
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from trieye.exceptions import ConfigurationError

SCRIPT, LOGS = "slurm.sh", "slurm"
"""The script, and the directory of the tasks' output, in the directory of the sweep."""

_PATIENCE_S = 120.0
_LEAST_H, _MOST_H = 1.0 / 60.0, 8760.0
_HINTS = (
    ("invalid account", "--account sets the account to charge; `sacctmgr show associations user=$USER` lists yours"),
    ("invalid partition", "--partition sets the partition; `sinfo -s` lists the partitions"),
    ("partition specified", "--partition sets the partition; `sinfo -s` lists the partitions"),
    ("time limit", "the partition allows less than --hours; `sinfo -o '%P %l'` lists its limits"),
    ("memory specification", "no node has this much memory: lower --memory-gib or --max-concurrent"),
    (
        "node configuration is not available",
        "no node has these resources: lower --memory-gib, --cpus, --gpus or --max-concurrent",
    ),
    ("job array specification", "too many tasks for one array: raise --per-task"),
    ("qosmax", "submission limit reached: raise --per-task, or wait for other jobs to end"),
    ("assocmax", "submission limit reached: raise --per-task, or wait for other jobs to end"),
    ("invalid qos", "`sacctmgr show qos` lists the QOS; set it by --option qos=NAME"),
    ("gres", "no node has the GPUs of --gpus; `sinfo -o '%P %G'` lists the GPUs"),
    ("unable to contact", "the controller does not answer: try again later"),
    ("socket timed out", "the controller does not answer: check with `squeue --me` whether the array was submitted"),
)
"""Lower-case parts of sbatch errors, and advice for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayRequest:
    """Requested resources and options of a job array.

    Attributes:
        hours: Time limit of a task; one second is subtracted, so that limits of full hours stay below them.
        memory_gib: Memory of a job in GiB; None: the default of the cluster.
        cpus: CPUs of a job.
        gpus: GPUs of a job; the jobs of a task can share GPUs by fractions.
        per_task: Jobs per task.
        max_concurrent: Parallel jobs within a task.
        max_tasks: Maximum number of running tasks; None: no limit.
        signal_s: Seconds before the time limit when jobs are signaled to save; the task is then requeued.
        name: Name of the array.
        options: Further sbatch options, each `KEY=VALUE` or `KEY`.
    """

    hours: float
    memory_gib: float | None = None
    cpus: int = 1
    gpus: float = 0.0
    per_task: int = 1
    max_concurrent: int = 1
    max_tasks: int | None = None
    signal_s: int = 120
    name: str
    options: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Check the bounds of all values."""
        for key, value, least in (
            ("cpus", self.cpus, 1),
            ("per-task", self.per_task, 1),
            ("max-concurrent", self.max_concurrent, 1),
            ("max-running-tasks", self.max_tasks or 1, 1),
            ("gpus", self.gpus, 0),
        ):
            if value < least:
                raise ConfigurationError(f"--{key} {value}: expected {least} or more")
        if not _LEAST_H <= self.hours <= _MOST_H:
            raise ConfigurationError(f"--hours {self.hours:g}: expected between a minute (0.017) and a year (8760)")
        if self.memory_gib is not None and self.memory_gib <= 0.0:
            raise ConfigurationError(f"--memory-gib {self.memory_gib:g}: expected a value above 0")
        if not 0 <= self.signal_s < self.hours * 3600.0:
            raise ConfigurationError(
                f"--signal {self.signal_s}: expected less than --hours {self.hours:g}, which is {self.hours * 3600:g} s"
            )
        if self.max_concurrent > self.per_task:
            raise ConfigurationError(
                f"--max-concurrent {self.max_concurrent}: expected at most --per-task {self.per_task}"
            )


def time_text(hours: float) -> str:
    """Format a time limit for Slurm, minus one second: 3 hours are 2:59:59."""
    minutes, seconds = divmod(max(round(hours * 3600.0) - 1, 1), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}"


def memory_text(gigs: float) -> str:
    """Format an amount of memory for Slurm: 4 GiB are 4G, 0.5 GiB are 512M."""
    return f"{gigs:g}G" if float(gigs).is_integer() else f"{math.ceil(gigs * 1024)}M"


def ranges(indices: Sequence[int]) -> str:
    """Format indices as ranges, such as `0-3,7`."""
    runs: list[list[int]] = []
    for index in sorted(indices):
        if runs and runs[-1][1] == index - 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def numbers(text: str) -> list[int]:
    """Parse indices from ranges such as `0-3,7`.

    Raises:
        ConfigurationError: The text has another format.
    """
    if not re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", text):
        raise ConfigurationError(f"-i {text}: expected indices of jobs, such as 7 or 0-9,12")
    pairs = ([int(number) for number in part.split("-")] for part in text.split(","))
    return [index for first, *last in pairs for index in range(first, (last[0] if last else first) + 1)]


def script_of(directory: Path, indices: Sequence[int], request: ArrayRequest, *, working_dir: str) -> str:
    """Return the bash script of an array that runs these jobs of the sweep in a directory.

    Before the time limit, and before preemption, jobs are signaled to save; they resume when the task runs again.

    Raises:
        ConfigurationError: A line break or another control character would break a line of the header.
    """
    tasks = [indices[begin : begin + request.per_task] for begin in range(0, len(indices), request.per_task)]
    directory = directory.resolve()
    command = [sys.executable, "-m", "trieye.cli", "sweep", "run", "--yes", "-d", str(directory)]
    command += ["--max-concurrent", str(request.max_concurrent)] if request.max_concurrent > 1 else []
    options = list(_options(directory, len(tasks), request))
    for text in (str(directory), *options):
        if not text.isprintable():
            raise ConfigurationError(
                f"{text!r}: control characters are not allowed, since sbatch reads options line by line; rename the "
                "directory of the sweep, or correct the option"
            )
    header = "\n".join(f"#SBATCH --{option}" for option in options)
    return f"""#!/bin/bash
# {len(indices)} jobs of the sweep in {directory}, written by `trieye sweep slurm`
{header}

jobs=({" ".join(ranges(task) for task in tasks)})

again=0
tell() {{ again=$1; kill -USR1 "$child"; }}
trap 'tell 1' USR1  # shortly before the time limit
trap 'tell 0' TERM  # preemption: Slurm requeues the task itself
cd {shlex.quote(working_dir)} || exit
{shlex.join(command)} -i "${{jobs[$SLURM_ARRAY_TASK_ID]}}" &
child=$!
wait "$child"
while kill -0 "$child" 2>/dev/null; do wait "$child"; done
wait "$child"
code=$?
if [ "$again" = 1 ] && [ "$code" != 0 ]; then scontrol requeue "$SLURM_JOB_ID"; fi
exit "$code"
"""


def _options(directory: Path, num_tasks: int, request: ArrayRequest) -> Iterator[str]:
    yield f"job-name={shlex.quote(request.name)}"
    most = "" if request.max_tasks is None else f"%{request.max_tasks}"
    yield f"array=0-{num_tasks - 1}{most}"
    yield f"time={time_text(request.hours)}"
    yield "nodes=1"
    yield "ntasks=1"
    yield f"cpus-per-task={request.cpus * request.max_concurrent}"
    if request.memory_gib is not None:
        yield f"mem={memory_text(request.memory_gib * request.max_concurrent)}"
    if request.gpus:
        yield f"gres=gpu:{math.ceil(request.gpus * request.max_concurrent)}"
    if request.signal_s:
        yield f"signal=B:USR1@{request.signal_s}"
    yield "requeue"
    yield "open-mode=append"
    logs = str(directory / LOGS).replace("%", "%%")  # sbatch expands %j and similar patterns in file names
    yield f"output={shlex.quote(f'{logs}/%A_%a.log')}"
    yield from request.options


def submit(script: Path) -> str:
    """Submit a script to sbatch; return the id of the array.

    Raises:
        ConfigurationError: sbatch is not installed, or refused the script.
    """
    sbatch = shutil.which("sbatch")
    if sbatch is None:
        raise ConfigurationError(
            f"sbatch is not installed on this machine; submit the script elsewhere: sbatch {shlex.quote(str(script))}"
        )
    try:
        done = subprocess.run(
            [sbatch, "--parsable", str(script)], capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise ConfigurationError(
            f"sbatch did not answer for {_PATIENCE_S:.0f} s; check with `squeue --me` whether the array was submitted"
        ) from None
    number = done.stdout.strip().rpartition("\n")[2].partition(";")[0]
    if done.returncode == 0 and number.isdecimal():
        return number
    raise ConfigurationError(_refusal(done.stderr.strip() or done.stdout.strip(), done.returncode))


def _refusal(output: str, code: int) -> str:
    lines = [re.sub(r"^sbatch: (error: )?", "", line).strip() for line in output.splitlines()]
    reason = "; ".join(line for line in lines if line) or f"exit code {code} without output"
    hint = next((hint for words, hint in _HINTS if words in output.lower()), None)
    return f"sbatch refused the script: {reason}" + (f". {hint}" if hint else "")
