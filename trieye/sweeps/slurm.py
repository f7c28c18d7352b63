"""Slurm: the script of an array that runs jobs of a sweep, and its submission."""

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
"""The script in the directory of the sweep, and beside it the directory of what tasks print."""

_PATIENCE_S = 120.0
_LEAST_H, _MOST_H = 1.0 / 60.0, 8760.0
_HINTS = (
    ("invalid account", "--account names who pays; `sacctmgr show associations user=$USER` lists yours"),
    ("invalid partition", "--partition names where to run; `sinfo -s` lists what there is"),
    ("partition specified", "--partition names where to run; `sinfo -s` lists what there is"),
    ("time limit", "the partition allows less than --hours; `sinfo -o '%P %l'` lists its limits"),
    ("memory specification", "no node has that much: lower --gigs or --at-once"),
    ("node configuration is not available", "no node has all of that: lower --gigs, --cpus, --gpus or --at-once"),
    ("job array specification", "too many tasks for one array: raise --per-task"),
    ("qosmax", "you may not submit so many: raise --per-task, or wait until others have ended"),
    ("assocmax", "you may not submit so many: raise --per-task, or wait until others have ended"),
    ("invalid qos", "`sacctmgr show qos` lists what there is; give it by --option qos=NAME"),
    ("gres", "--gpus asks for what no node has; `sinfo -o '%P %G'` lists what there is"),
    ("unable to contact", "the controller does not answer: try again later"),
    ("socket timed out", "the controller does not answer: look with `squeue --me` whether it was submitted after all"),
)
"""What sbatch says, in small letters, and what to do then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What an array asks for.

    Attributes:
        hours: Time limit of a task; it ends a second earlier, so that it counts among those of so many hours.
        gigs: Memory of a job, GiB; None = what the cluster gives.
        cpus: CPUs of a job.
        gpus: GPUs of a job; a fraction lets the jobs of a task share them.
        per_task: Jobs of a task.
        at_once: Jobs of a task that run side by side.
        most_tasks: Tasks that run at the same time; None = as many as there is room for.
        signal_s: Seconds before the time is over at which jobs are told to save and to be queued again.
        name: Of the array.
        options: Further ones of sbatch, each `KEY=VALUE` or `KEY`.
    """

    hours: float
    gigs: float | None = None
    cpus: int = 1
    gpus: float = 0.0
    per_task: int = 1
    at_once: int = 1
    most_tasks: int | None = None
    signal_s: int = 120
    name: str
    options: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        for key, value, least in (
            ("cpus", self.cpus, 1),
            ("per-task", self.per_task, 1),
            ("at-once", self.at_once, 1),
            ("most-tasks", self.most_tasks or 1, 1),
            ("gpus", self.gpus, 0),
        ):
            if value < least:
                raise ConfigurationError(f"--{key} {value}: it has to be {least} or more")
        if not _LEAST_H <= self.hours <= _MOST_H:
            raise ConfigurationError(f"--hours {self.hours:g}: it has to be between a minute (0.017) and a year (8760)")
        if self.gigs is not None and self.gigs <= 0.0:
            raise ConfigurationError(f"--gigs {self.gigs:g}: it has to be above 0")
        if not 0 <= self.signal_s < self.hours * 3600.0:
            raise ConfigurationError(f"--signal {self.signal_s}: it has to be below the {self.hours:g} h of --hours")
        if self.at_once > self.per_task:
            raise ConfigurationError(f"--at-once {self.at_once}: a task has --per-task {self.per_task}")


def time_text(hours: float) -> str:
    """Return a time limit as Slurm reads it, a second below: 3 hours are 2:59:59."""
    minutes, seconds = divmod(max(round(hours * 3600.0) - 1, 1), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}"


def memory_text(gigs: float) -> str:
    """Return an amount of memory as Slurm reads it: 4 GiB are 4G, half of one is 512M."""
    return f"{gigs:g}G" if float(gigs).is_integer() else f"{math.ceil(gigs * 1024)}M"


def ranges(indices: Sequence[int]) -> str:
    """Return numbers in words, as in `0-3,7`."""
    runs: list[list[int]] = []
    for index in sorted(indices):
        if runs and runs[-1][1] == index - 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def numbers(text: str) -> list[int]:
    """Return the numbers of `0-3,7`.

    Raises:
        ConfigurationError: It is something else.
    """
    if not re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", text):
        raise ConfigurationError(f"-i {text}: jobs are named by their numbers, as in 7, or 0-9,12")
    pairs = ([int(number) for number in part.split("-")] for part in text.split(","))
    return [index for first, *last in pairs for index in range(first, (last[0] if last else first) + 1)]


def script_of(directory: Path, indices: Sequence[int], asked: Asked, *, working_dir: str) -> str:
    """Return a bash script whose array runs these jobs of the sweep in a directory.

    Time that runs out, and a task that is to make room, tell the jobs to save; they go on when the task runs again.

    Raises:
        ConfigurationError: A line break or another control character would end a line of the header.
    """
    tasks = [indices[begin : begin + asked.per_task] for begin in range(0, len(indices), asked.per_task)]
    directory = directory.resolve()
    command = [sys.executable, "-m", "trieye.cli", "sweep", "run", "--yes", "-d", str(directory)]
    command += ["--at-once", str(asked.at_once)] if asked.at_once > 1 else []
    options = list(_options(directory, len(tasks), asked))
    for text in (str(directory), *options):
        if not text.isprintable():
            raise ConfigurationError(
                f"{text!r}: sbatch reads its options line by line, so they cannot hold control characters; rename the "
                "directory of the sweep, or correct the option"
            )
    header = "\n".join(f"#SBATCH --{option}" for option in options)
    return f"""#!/bin/bash
# {len(indices)} jobs of the sweep in {directory}, written by `trieye sweep slurm`
{header}

jobs=({" ".join(ranges(task) for task in tasks)})

again=0
tell() {{ again=$1; kill -USR1 "$child"; }}
trap 'tell 1' USR1  # the time is nearly over
trap 'tell 0' TERM  # Slurm needs the nodes, and queues the task again by itself
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


def _options(directory: Path, num_tasks: int, asked: Asked) -> Iterator[str]:
    yield f"job-name={shlex.quote(asked.name)}"
    most = "" if asked.most_tasks is None else f"%{asked.most_tasks}"
    yield f"array=0-{num_tasks - 1}{most}"
    yield f"time={time_text(asked.hours)}"
    yield "nodes=1"
    yield "ntasks=1"
    yield f"cpus-per-task={asked.cpus * asked.at_once}"
    if asked.gigs is not None:
        yield f"mem={memory_text(asked.gigs * asked.at_once)}"
    if asked.gpus:
        yield f"gres=gpu:{math.ceil(asked.gpus * asked.at_once)}"
    if asked.signal_s:
        yield f"signal=B:USR1@{asked.signal_s}"
    yield "requeue"
    yield "open-mode=append"
    logs = str(directory / LOGS).replace("%", "%%")  # sbatch expands %j and the like in the names of files
    yield f"output={shlex.quote(f'{logs}/%A_%a.log')}"
    yield from asked.options


def submit(script: Path) -> str:
    """Hand a script to sbatch; return the number of the array.

    Raises:
        ConfigurationError: There is no sbatch, or it refused the script.
    """
    sbatch = shutil.which("sbatch")
    if sbatch is None:
        raise ConfigurationError(
            f"there is no sbatch on this machine; submit it where there is one: sbatch {shlex.quote(str(script))}"
        )
    try:
        done = subprocess.run(
            [sbatch, "--parsable", str(script)], capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise ConfigurationError(
            f"sbatch does not answer for {_PATIENCE_S:.0f} s; `squeue --me` says whether it was submitted after all"
        ) from None
    number = done.stdout.strip().rpartition("\n")[2].partition(";")[0]
    if done.returncode == 0 and number.isdecimal():
        return number
    raise ConfigurationError(_refusal(done.stderr.strip() or done.stdout.strip(), done.returncode))


def _refusal(said: str, code: int) -> str:
    lines = [re.sub(r"^sbatch: (error: )?", "", line).strip() for line in said.splitlines()]
    told = "; ".join(line for line in lines if line) or f"exit code {code}, and no word"
    hint = next((hint for words, hint in _HINTS if words in said.lower()), None)
    return f"sbatch refused the script: {told}" + (f". {hint}" if hint else "")
