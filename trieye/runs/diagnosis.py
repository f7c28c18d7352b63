"""Diagnosis: why a run ended or makes no progress, and what to do next."""

import math
import re
import shlex
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trieye.checkpoints.store import CheckpointEntry, CheckpointStore
from trieye.exceptions import JournalError, SerializationError
from trieye.files.run_files import CRASH_PREFIX
from trieye.hub.status import last_status, read_status
from trieye.process.text import duration
from trieye.runs.checkpoint_rows import rows_in
from trieye.runs.config import persistence_of
from trieye.runs.finding import RunReference, get
from trieye.runs.program import RUN_NAME, command_to_resume, key_of, located_program
from trieye.runs.stored_run import StoredRun
from trieye.sweeps.jobs import RUN, JobRecord

STALE_AFTER_S = 10.0
"""The hub of a running run publishes its status every second."""

_MAX_LINES, _MAX_ERROR_LINES, _MAX_BYTES = 15, 40, 1 << 18
_HEADING = re.compile(r"--- attempt \d+, .* ---")


@dataclass(frozen=True)
class NextStep:
    """A command for a shell, and its effect."""

    command: str
    effect: str


@dataclass(frozen=True)
class Diagnosis:
    """The state of a run for a person who asks why it ended or makes no progress.

    Attributes:
        run: The run.
        reason: What happened, in one sentence.
        error: The end of the traceback that ended its last attempt; None without one.
        output: The last printed lines of its last attempt, without that traceback.
        output_path: The file with the whole output; None if it does not exist.
        sinks: `name`, `backlog` (items to deliver) and `error` (None if it works) of each sink.
        checkpoint: The newest checkpoint; None without one.
        next_steps: Commands, the most useful first.
    """

    run: StoredRun
    reason: str
    error: str | None
    output: list[str]
    output_path: Path | None
    sinks: list[dict[str, Any]]
    checkpoint: CheckpointEntry | None
    next_steps: list[NextStep]


def diagnose(run: RunReference, *, root: Path | None = None) -> Diagnosis:
    """Return why a run ended or makes no progress; the run may be alive.

    Args:
        run: The run, its directory or its name.
        root: Directory of all apps; None: the directories of the project around the working directory.

    Raises:
        ConfigurationError: There is no such run.
    """
    stored = get(run, root=root)
    persistence = persistence_of(stored.run_dir)
    checkpoints = stored.run_dir / persistence.checkpoint_save_dir_name
    path = stored.run_dir / persistence.log_dir_name / "output.log"
    error = _traceback(path.parent, stored.attempt)
    status, problem = _status(stored)
    sinks = [{key: sink[key] for key in ("name", "backlog", "error")} for sink in status.get("sinks", ())]
    entry = _newest_checkpoint(checkpoints)
    return Diagnosis(
        run=stored,
        reason=_reason(stored, status, error) + problem,
        error="\n".join(error[-_MAX_ERROR_LINES:]) or None,
        output=_without(_last_output(path), error)[-_MAX_LINES:],
        output_path=path if path.is_file() else None,
        sinks=sinks,
        checkpoint=entry,
        next_steps=list(_next_steps(stored, sinks, entry, _crash(stored, checkpoints))),
    )


def _last_output(path: Path) -> list[str]:
    """Return the last printed lines of the last attempt; reading anything but a regular file could block."""
    if not path.is_file():
        return []
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(file.tell() - _MAX_BYTES, 0))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return []
    headings = [number for number, line in enumerate(lines) if _HEADING.fullmatch(line)]
    attempt = lines[headings[-1] + 1 :] if headings else lines
    return [line for line in attempt if not line.startswith("trieye: closing run ")]


def _traceback(logs: Path, attempt: int) -> list[str]:
    """Return the lines of the traceback that ended an attempt; [] without one."""
    path = logs / f"failure_of_attempt_{attempt}.txt"
    with suppress(OSError):
        return path.read_text("utf-8", "replace").splitlines() if path.is_file() else []
    return []


def _exception(error: list[str]) -> str:
    """Return the line of a traceback with the exception, which follows the last frame; notes may follow it."""
    start = max((n for n, line in enumerate(error) if line.startswith("Traceback (")), default=-1)
    return next((line for line in error[start + 1 :] if line and not line.startswith((" ", "\t"))), error[-1])


def _without(lines: list[str], block: list[str]) -> list[str]:
    """Return the lines without the last occurrence of a block."""
    for start in reversed(range(len(lines) - len(block) + 1)):
        if block and lines[start : start + len(block)] == block:
            return lines[:start] + lines[start + len(block) :]
    return lines


def _status(stored: StoredRun) -> tuple[dict[str, Any], str]:
    """Return the last status that the hub published, and why it cannot be read."""
    try:
        return (read_status if stored.is_alive else last_status)(stored.run_dir), ""
    except JournalError as error:
        return {}, f"; its journal cannot be read: {error}"


def _newest_checkpoint(directory: Path) -> CheckpointEntry | None:
    with suppress(OSError):
        entries = CheckpointStore(directory, read_only=True).entries()
        return entries[-1] if entries else None
    return None


def _crash(stored: StoredRun, directory: Path) -> str | None:
    """Return the name of the state at the error that ended a run; None without one."""
    if stored.status != "FAILED":
        return None
    rows = rows_in(directory, CRASH_PREFIX, checksums=False)
    return rows[-1].name if rows and rows[-1].is_usable else None


def _reason(stored: StoredRun, status: dict[str, Any], error: list[str]) -> str:
    after = f"after {duration(stored.took_s)}"
    if stored.status == "FAILED":
        return f"its program failed {after}" + (f": {_exception(error)}" if error else "; no traceback was recorded")
    if stored.status == "KILLED":
        job = _pruned_job(stored)
        value = "" if job is None or job.objective is None else f" at an objective of {job.objective:g}"
        by_signal = f"it was stopped {after}: by Ctrl-C, a closed terminal, another signal or `trieye close`"
        by_search = f"the pruner or scheduler of its sweep stopped it {after}{value}"
        return by_signal if job is None else f"{by_search}: {job.reason}" if job.reason else by_search
    if stored.status == "LOST":
        original = stored.record.copy_of(stored.run_dir)
        copied = f"it is a copy of {original}, made before that run recorded its end"
        ended = f"its process ended {after} without recording why"
        killed = f"{ended}: SIGKILL, such as for lack of memory, or a machine that stopped"
        return killed if original is None else copied
    if stored.status == "FINISHED":
        return f"it finished {after}"
    silent_s = time.time() - status.get("time", time.time() - stored.took_s)
    if silent_s > STALE_AFTER_S:
        return f"it has been running for {duration(stored.took_s)}, and its hub is silent for {duration(silent_s)}"
    return f"it is running, for {duration(stored.took_s)} so far"


def _pruned_job(stored: StoredRun) -> JobRecord | None:
    """Return the record of the job that a run belongs to, if its sweep pruned it."""
    if stored.status != "KILLED" or stored.sweep is None:
        return None
    links = (path for path in Path(stored.sweep).glob(f"*/{RUN}") if path.resolve() == stored.run_dir.resolve())
    with suppress(SerializationError):
        record = next((JobRecord.read(path.parent) for path in links), None)
        if record is not None and record.state == "pruned" and stored.record.started <= (record.ended or math.inf):
            return record  # else the run was started again afterwards
    return None


def _next_steps(
    stored: StoredRun, sinks: list[dict[str, Any]], checkpoint: CheckpointEntry | None, crash: str | None
) -> Iterator[NextStep]:
    name = shlex.quote(str(stored.run_dir))
    if stored.is_alive:
        yield NextStep(f"trieye watch {name}", "follow it live")
        return
    if (original := stored.record.copy_of(stored.run_dir)) is not None:
        yield from _steps_of_copy(name, original, checkpoint)
        return
    if stored.status == "FINISHED":
        yield NextStep(f"trieye metrics {name}", "show its metrics")
    elif _pruned_job(stored) is not None:
        yield NextStep(f"trieye sweep status {shlex.quote(str(stored.sweep))}", "compare the jobs of its sweep")
    elif stored.sweep is not None and Path(stored.sweep).is_dir():
        yield NextStep(f"trieye sweep relaunch {shlex.quote(stored.sweep)}", "run the unfinished jobs of its sweep")
    else:
        yield from _continuation(stored, checkpoint)
    if crash is not None:
        key = f"persistence.load_checkpoint_path={stored.name}:{crash}"
        effect = f"show the state at the error; another run starts from it: {key}"
        yield NextStep(f"trieye checkpoints {name}", effect)
    if stored.status == "LOST" or any(sink["backlog"] for sink in sinks):
        yield NextStep(f"trieye close {name}", "deliver its pending points, and record it as ended")
    if stored.status == "LOST":
        yield NextStep(f"trieye verify {name}", "check its files for damage")


def _continuation(stored: StoredRun, checkpoint: CheckpointEntry | None) -> Iterator[NextStep]:
    if (provenance := stored.provenance) is None:
        return
    start = "from step 0" if checkpoint is None else f"from the checkpoint of step {checkpoint.step:,}"
    command = command_to_resume(stored, provenance)
    located = located_program(stored, command, Path(provenance.directory))
    if located is None:
        yield NextStep(shlex.join(command), f"continue {start}, in the directory of its program")
        return
    unfound = f"run its program, which does not find the run in {shlex.quote(str(stored.run_dir))}"
    is_named = stored.name == stored.record.run_name or any(key_of(word) == RUN_NAME for word in command)
    effect = f"continue {start}" if located.finds_run and is_named else unfound
    yield NextStep(f"cd {shlex.quote(str(located.directory))} && {shlex.join(located.words)}", effect)


def _steps_of_copy(name: str, original: Path, checkpoint: CheckpointEntry | None) -> Iterator[NextStep]:
    """Yield the commands that work in a copy: the others refuse it, and its program would continue the original."""
    if checkpoint is not None:
        yield NextStep(f"trieye fork {name}", f"start another run from the checkpoint of step {checkpoint.step:,}")
    yield NextStep(f"trieye rm {name}", f"delete this copy, and keep the run in {original}")
