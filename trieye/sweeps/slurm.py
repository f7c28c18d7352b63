"""Slurm: the script of a job array that runs a sweep, its submission, and the wait for it."""

import math
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from trieye.config.launcher import LauncherConfig, ranges
from trieye.exceptions import ConfigurationError, RunInterrupted
from trieye.files.atomic import write_atomic
from trieye.process.progress import say
from trieye.process.text import command_text, counted
from trieye.sweeps.jobs import Done, Job, JobRecord, ReportedError
from trieye.sweeps.progress import SweepProgress
from trieye.sweeps.slurm_array import SlurmArray

SCRIPT, LOGS = "slurm.sh", "slurm"
"""The script, and the directory of the tasks' output, in the directory of the sweep."""

_FIRST_POLL_S, _LONGEST_POLL_S = 1.0, 15.0
_USUAL = {"None", "Resources", "Priority", "JobArrayTaskLimit", "BeginTime", "Cleaning"}
"""Reasons of pending tasks that need no action."""

_LARGE_CORE_H = 10_000
"""Threshold in core-hours above which core-years are shown too, as a warning."""

_TASK_KEYS = tuple(
    f"hydra.launcher.{key}="
    for key in ("num_cpus", "num_gpus", "memory", "retries", "timeout_min", "fail_fast", "isolate")
)
"""Options of the launcher that apply inside a task, too."""

_PATIENCE_S = 120.0
_GIB, _MIB = 1 << 30, 1 << 20
_HINTS = (
    ("invalid account", "slurm.account sets the account; `sacctmgr show associations user=$USER` lists yours"),
    ("invalid partition", "slurm.partition sets the partition; `sinfo -s` lists the partitions"),
    ("partition specified", "slurm.partition sets the partition; `sinfo -s` lists the partitions"),
    ("time limit", "the partition allows less than slurm.hours; `sinfo -o '%P %l'` lists its limits"),
    ("memory specification", "no node has this much memory: lower memory or slurm.max_concurrent"),
    (
        "node configuration is not available",
        "no node has these resources: lower num_cpus, num_gpus, memory or slurm.max_concurrent",
    ),
    ("job array specification", "too many tasks for one array: raise slurm.jobs_per_task"),
    ("qosmax", "submission limit reached: raise slurm.jobs_per_task, or wait for other jobs to end"),
    ("assocmax", "submission limit reached: raise slurm.jobs_per_task, or wait for other jobs to end"),
    ("invalid qos", "`sacctmgr show qos` lists the QOS; slurm.options={qos: NAME} sets it"),
    ("gres", "no node has num_gpus GPUs; `sinfo -o '%P %G'` lists the GPUs"),
    ("unable to contact", "the controller does not answer: try again later"),
    ("socket timed out", "the controller does not answer: check with `squeue --me` whether the array was submitted"),
)
"""Lower-case parts of sbatch errors, and advice with keys of `hydra.launcher` for each."""


def run_on_slurm(
    directory: Path, jobs: Sequence[Job], options: LauncherConfig, progress: SweepProgress, *, words: Sequence[str]
) -> dict[int, Done]:
    """Submit jobs, and return their outcomes by index; a detached sweep has none.

    Args:
        directory: Directory of the sweep.
        jobs: The jobs.
        options: Options of the launcher.
        progress: Shows the jobs.
        words: The overrides of Hydra's keys at this start.

    Raises:
        ConfigurationError: An array of the sweep is still pending or running, or sbatch refused the script.
        RunInterrupted: A signal arrived; the array continues.
    """
    if not jobs:
        return {}
    old_records = {job.index: JobRecord.read(directory / str(job.index)) for job in jobs}
    array = submit_jobs(directory, [job.index for job in jobs], options, words=words)
    commands = f"status: {command_text('sweep', 'status', directory)}; cancel: {shlex.join(array.command('scancel'))}"
    num = len(array.tasks)
    say(f"sweep: submitted Slurm array {array.id}: {counted(num, 'task')}{_cost(num, options)}")
    if options.detach:
        say(f"sweep: {commands}")
        return {}
    try:
        return _wait(directory, {job.index: job for job in jobs}, array, old_records, progress)
    except KeyboardInterrupt:
        interrupt = RunInterrupted(f"Slurm array {array.id} continues; {commands}")
    interrupt.tell(say)
    raise interrupt


def _cost(num_tasks: int, options: LauncherConfig) -> str:
    """Return the maximum core-hours of so many tasks as text; nothing without a time limit."""
    slurm = options.slurm
    if slurm.hours is None:
        return ""
    hours = num_tasks * slurm.hours * _num_cpus(options) * slurm.max_concurrent
    years = f" ({hours / 8766:,.1f} core-years)" if hours >= _LARGE_CORE_H else ""
    return f", at most {hours:,.0f} core-hours{years}"


def _wait(
    directory: Path,
    jobs_left: dict[int, Job],
    array: SlurmArray,
    old_records: Mapping[int, JobRecord | None],
    progress: SweepProgress,
) -> dict[int, Done]:
    """Return the outcomes of jobs when all have ended, or the array has."""
    outcomes: dict[int, Done] = {}
    running_indices: set[int] = set()
    reasons: set[str] = set()
    poll_s = _FIRST_POLL_S
    while jobs_left:
        tasks = array.states()
        is_over = tasks == {}  # before the records, which are then final
        for reason in {task.reason for task in (tasks or {}).values() if task.state == "PENDING"} - _USUAL - reasons:
            reasons.add(reason)
            command = shlex.join(array.command("squeue", "-j"))
            say(f"sweep: tasks are pending because of {reason}; `{command}` lists them")
        for index, job in list(jobs_left.items()):
            record = JobRecord.read(directory / str(index))
            is_new = record is not None and record != old_records[index]
            if (is_new or is_over) and index not in running_indices:
                progress.began(job)
                running_indices.add(index)
            done = _outcome(index, record if is_new else None, directory / LOGS / f"{array.id}_*.log", is_over=is_over)
            if done is not None:
                progress.ended(jobs_left.pop(index), done)
                outcomes[index] = done
        progress.show()
        if jobs_left:
            time.sleep(poll_s)
            poll_s = min(1.5 * poll_s, _LONGEST_POLL_S)
    return outcomes


def _outcome(index: int, record: JobRecord | None, logs: Path, *, is_over: bool) -> Done | None:
    """Return the outcome of a job; None if it has not ended."""
    if record is not None and record.state in ("completed", "pruned"):
        return Done(index, record.objective, is_pruned=record.state == "pruned")
    if record is not None and record.state == "failed":
        return Done(index, error=ReportedError(record.error or "failed"))
    if is_over:
        return Done(index, error=ReportedError(f"its Slurm task ended before the job did; output of the tasks: {logs}"))
    return None


def submit_jobs(
    directory: Path, indices: Sequence[int], options: LauncherConfig, *, words: Sequence[str] = ()
) -> SlurmArray:
    """Submit an array that runs jobs of a sweep, and record it.

    Args:
        directory: Directory of the sweep, visible to all nodes.
        indices: The jobs.
        options: Options of the launcher.
        words: The overrides of Hydra's keys at this start.

    Raises:
        ConfigurationError: An array of the sweep is still pending or running, or sbatch refused the script.
    """
    directory = directory.resolve()
    size = options.slurm.jobs_per_task
    tasks = [list(indices[begin : begin + size]) for begin in range(0, len(indices), size)]
    before = SlurmArray.read(directory)
    states = {} if before is None else before.states()
    if before is not None and states is None:
        raise ConfigurationError(
            f"{directory}: squeue does not answer, so its Slurm array {before.id} may still run; try again later, or "
            f"delete {directory / before.FILE} after the array has ended"
        )
    if before is not None and states:
        raise ConfigurationError(
            f"{directory}: {len(states)} tasks of its Slurm array {before.id} are still pending or running; wait for "
            f"them (`{command_text('sweep', 'status', directory)}`), or cancel them "
            f"(`{shlex.join(before.command('scancel'))}`) and try again"
        )
    (directory / LOGS).mkdir(parents=True, exist_ok=True)
    write_atomic(directory / SCRIPT, script_of(directory, tasks, options, words=words).encode())
    array_id, cluster = _submit(directory / SCRIPT)
    array = SlurmArray(id=array_id, cluster=cluster, tasks=tasks)
    array.write(directory)
    return array


def _num_cpus(options: LauncherConfig) -> int:
    return max(math.ceil(options.num_cpus), 1)


def time_text(hours: float) -> str:
    """Format a time limit for Slurm, minus one second: 3 hours are 2:59:59."""
    minutes, seconds = divmod(max(round(hours * 3600.0) - 1, 1), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}"


def memory_text(size_bytes: int) -> str:
    """Format an amount of memory for Slurm: 4 GiB are 4G, half a GiB is 512M."""
    return f"{size_bytes // _GIB}G" if size_bytes % _GIB == 0 else f"{math.ceil(size_bytes / _MIB)}M"


def script_of(
    directory: Path, tasks: Sequence[Sequence[int]], options: LauncherConfig, *, words: Sequence[str] = ()
) -> str:
    """Return the bash script of an array whose tasks run these jobs of the sweep in a directory.

    Before the time limit, and before preemption, jobs are signaled to save; they resume when the task runs again.
    Tasks receive those of `words` that set options of their jobs.

    Raises:
        ConfigurationError: A line break or another control character would break a line of the header.
    """
    directory = directory.resolve()
    command = [sys.executable, "-m", "trieye.cli", "sweep", "run", "--yes", "-d", str(directory)]
    if options.slurm.max_concurrent > 1:
        command += ["--max-concurrent", str(options.slurm.max_concurrent)]
    command += [word for word in (word.lstrip("+") for word in words) if word.startswith(_TASK_KEYS)]
    header = list(_options(directory, len(tasks), options))
    for text in (str(directory), *header):
        if not text.isprintable():
            raise ConfigurationError(
                f"{text!r}: control characters are not allowed, since sbatch reads options line by line; rename the "
                "directory of the sweep, or correct the option"
            )
    lines = "\n".join(f"#SBATCH --{option}" for option in header)
    return f"""#!/bin/bash
# {sum(map(len, tasks))} jobs of the sweep in {directory}, written by hydra.launcher.backend=slurm
{lines}

jobs=({" ".join(ranges(task) for task in tasks)})

again=0
tell() {{ again=$1; kill -USR1 "$child"; }}
trap 'tell 1' USR1  # shortly before the time limit
trap 'tell 0' TERM  # preemption: Slurm requeues the task itself
cd {shlex.quote(str(directory))} || exit
{shlex.join(command)} -i "${{jobs[$SLURM_ARRAY_TASK_ID]}}" &
child=$!
wait "$child"
while kill -0 "$child" 2>/dev/null; do wait "$child"; done
wait "$child"
code=$?
if [ "$again" = 1 ] && [ "$code" != 0 ]; then scontrol requeue "$SLURM_JOB_ID"; fi
exit "$code"
"""


def _options(directory: Path, num_tasks: int, options: LauncherConfig) -> Iterator[str]:
    slurm, num_parallel = options.slurm, options.slurm.max_concurrent
    limit = "" if options.num_jobs is None else f"%{max(options.num_jobs // num_parallel, 1)}"
    logs = str(directory / LOGS).replace("%", "%%")  # sbatch expands %j and similar patterns in file names
    values = {
        "job-name": directory.name,
        "array": f"0-{num_tasks - 1}{limit}",
        "time": slurm.hours and time_text(slurm.hours),
        "nodes": 1,
        "ntasks": 1,
        "cpus-per-task": _num_cpus(options) * num_parallel,
        "mem": options.memory and memory_text(options.memory * num_parallel),
        "gres": options.num_gpus and f"gpu:{math.ceil(options.num_gpus * num_parallel)}",
        "signal": slurm.signal_s and f"B:USR1@{slurm.signal_s}",
        "open-mode": "append",
        "output": f"{logs}/%A_%a.log",
        "account": slurm.account,
        "partition": slurm.partition,
    }
    yield "requeue"
    for key, value in ({key: value for key, value in values.items() if value} | slurm.options).items():
        if not re.fullmatch(r"[a-z][a-z-]*", key):
            raise ConfigurationError(
                f"hydra.launcher.slurm.options: {key!r} is not an sbatch option; expected a name without dashes in "
                "front, such as constraint"
            )
        yield key if value is None else f"{key}={shlex.quote(str(value))}"


def _submit(script: Path) -> tuple[str, str]:
    """Submit a script to sbatch; return the id of the array, and its cluster if there are several."""
    sbatch = shutil.which("sbatch")
    if sbatch is None:
        raise ConfigurationError(
            f"sbatch is not installed on this machine; submit the script elsewhere: sbatch {shlex.quote(str(script))}"
        )
    try:
        process = subprocess.run(
            [sbatch, "--parsable", str(script)], capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise ConfigurationError(
            f"sbatch did not answer for {_PATIENCE_S:.0f} s; check with `squeue --me` whether the array was submitted"
        ) from None
    array_id, _, cluster = process.stdout.strip().rpartition("\n")[2].partition(";")
    if process.returncode == 0 and array_id.isdecimal():
        return array_id, cluster
    raise ConfigurationError(_refusal(process.stderr.strip() or process.stdout.strip(), process.returncode))


def _refusal(output: str, code: int) -> str:
    lines = [re.sub(r"^sbatch: (error: )?", "", line).strip() for line in output.splitlines()]
    reason = "; ".join(line for line in lines if line) or f"exit code {code} without output"
    hint = next((hint for words, hint in _HINTS if words in output.lower()), None)
    return f"sbatch refused the script: {reason}" + (f". {hint}" if hint else "")
