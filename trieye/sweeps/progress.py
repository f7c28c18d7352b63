"""SweepProgress: the progress of a sweep, as a live table on a terminal, else as lines."""

import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from trieye.config.redaction import redacted_text
from trieye.process.progress import say
from trieye.process.text import counted, duration
from trieye.sweeps.grid import shown
from trieye.sweeps.jobs import Done, Job, JobElsewhereError

if TYPE_CHECKING:
    from trieye.process.terminal import TextTable

_MOST_SHOWN = 12
_REFRESH_S = 0.5
_RESTARTS = "restart"
"""Count of restarted processes; the other counts are of jobs."""


class SweepProgress:
    """Shows running, finished and failed jobs, their return values, and the estimated remaining time.

    Args:
        directory: Directory of the sweep.
        size: Number of jobs.
        varying: The keys that differ between jobs.
        of: `sweep` or `study`; the jobs of a study are called trials.
        location: Where the jobs run.
        is_live: Whether a table is redrawn on a terminal; not while jobs print to it.
    """

    def __init__(
        self,
        directory: Path,
        size: int,
        varying: Sequence[str],
        *,
        of: Literal["sweep", "study"] = "sweep",
        location: str = "",
        is_live: bool = True,
    ) -> None:
        self._is_live = is_live and sys.stderr.isatty()
        self._directory, self._size, self._varying, self._of = directory, size, varying, of
        self._location = f", {location}" if location else ""
        self._noun = "trial" if of == "study" else "job"
        self._reported: dict[int, tuple[int, float | None]] = {}
        self._running: dict[int, tuple[Job, float]] = {}
        self._durations_s: list[float] = []
        self._num_by_state = {"done": 0, "failed": 0, "skipped": 0, "pruned": 0, "completed before": 0, _RESTARTS: 0}
        self._began = time.monotonic()
        self._live: Any = None
        self._shown_at = 0.0

    def __enter__(self) -> Self:
        say(f"{self._of}: {counted(self._size, self._noun)} in {_short(self._directory)}{self._location}")
        if self._is_live:
            from rich.live import Live

            from trieye.process.terminal import Terminal

            self._live = Live(console=Terminal(stderr=True, soft_wrap=False), auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
        num_stopped = len(self._running)
        counts = {**self._num_by_state, "stopped": num_stopped, "left": self._size - self._num_ended - num_stopped}
        parts = [_part(name, number) for name, number in counts.items() if number]
        say(f"{self._of}: {', '.join(parts) or 'nothing to do'}, in {_clock(time.monotonic() - self._began)}")

    def began(self, job: Job) -> None:
        """Record that a job was submitted."""
        self._running[job.index] = (job, time.monotonic())

    def report(self, job: Job, step: int, objective: float | None) -> None:
        """Record the step and objective of a running job."""
        self._reported[job.index] = (step, objective)
        if job.index in self._running:
            self._running[job.index] = (job, self._running[job.index][1])

    def ended(self, job: Job, done: Done) -> None:
        """Record the outcome of a job, or that it was skipped because another process runs it."""
        if isinstance(done.error, JobElsewhereError):
            self._running.pop(job.index, None)
            self._num_by_state["skipped"] += 1
            self._say(f"{self._count()} {self._named(job)}: {done.error}")
            return
        _, began = self._running.pop(job.index)
        took = time.monotonic() - began
        self._durations_s.append(took)
        if done.is_pruned:
            self._num_by_state["pruned"] += 1
            value = "" if done.number is None else f" at {done.number:g}"
            outcome = f"pruned{value}{f': {done.reason}' if done.reason else ''}"
        elif done.error is not None:
            self._num_by_state["failed"] += 1
            outcome = f"FAILED: {done.error_text}"
        else:
            self._num_by_state["done"] += 1
            outcome = "done" if done.number is None else f"{done.number:g}"
        self._say(f"{self._count()} {self._named(job)}: {redacted_text(outcome)} ({_clock(took)})")
        self._shown_at = 0.0  # redraw at once

    def skipped(self) -> None:
        """Record that a job had ended in an earlier start."""
        self._num_by_state["completed before"] += 1

    def died(self, job: Job, reason: str) -> None:
        """Record that the process of a job was killed and the job restarts."""
        self._num_by_state[_RESTARTS] += 1
        self.retried(job, f"its process died; restarting it in another process ({reason})")

    def cancelled(self, job: Job) -> None:
        """Record that a job was cancelled before it started."""
        del self._running[job.index]

    def retried(self, job: Job, text: str) -> None:
        """Record that a job restarts, and print why."""
        self._running.pop(job.index, None)
        self._say(f"{self._named(job)}: {redacted_text(' '.join(text.split()))}")

    def show(self) -> None:
        """Redraw the table if due."""
        if self._live is not None and time.monotonic() - self._shown_at > _REFRESH_S:
            self._shown_at = time.monotonic()
            self._live.update(self._table(), refresh=True)

    def _table(self) -> "TextTable":
        from trieye.process.terminal import TextTable

        table = TextTable()
        table.note(self._caption())
        table.add_column(self._noun, justify="right")
        table.add_column("values", no_wrap=True)
        for name in ("step", "objective") if self._reported else ():
            table.add_column(name, justify="right")
        table.add_column("for", justify="right")
        now = time.monotonic()
        for job, began in list(self._running.values())[:_MOST_SHOWN]:
            step, objective = self._reported.get(job.index, (None, None))
            state = ("" if step is None else f"{step:,}", "" if objective is None else f"{objective:g}")
            table.add_row(str(job.index), self._words(job), *(state if self._reported else ()), _clock(now - began))
        if len(self._running) > _MOST_SHOWN:
            table.add_row("", f"and {len(self._running) - _MOST_SHOWN} more", "")
        return table

    def _caption(self) -> str:
        parts = [f"{len(self._running)} running", *(_part(*pair) for pair in self._num_by_state.items() if pair[1])]
        left_s = self._left_s()
        return f"{self._count()} {', '.join(parts)}" + ("" if left_s is None else f", about {_clock(left_s)} left")

    def _left_s(self) -> float | None:
        """Return the estimated remaining seconds, if a job has finished."""
        if not self._durations_s or not self._running:
            return None
        return statistics.fmean(self._durations_s) * (self._size - self._num_ended) / len(self._running)

    @property
    def _num_ended(self) -> int:
        return sum(self._num_by_state.values()) - self._num_by_state[_RESTARTS]

    def _count(self) -> str:
        return f"[{self._num_ended}/{self._size}]"

    def _named(self, job: Job) -> str:
        return f"{self._noun} {job.index} {self._words(job)}".rstrip()

    def _words(self, job: Job) -> str:
        return " ".join(shown(job.overrides, self._varying))

    def _say(self, line: str) -> None:
        if self._live is not None:
            self._live.console.print(line, soft_wrap=True)
        else:
            say(line)


def _part(name: str, count: int) -> str:
    return counted(count, name) if name == _RESTARTS else f"{count} {name}"


def _short(path: Path) -> str:
    cwd = Path.cwd()
    return str(path.relative_to(cwd) if path.is_relative_to(cwd) else path)


def _clock(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else duration(seconds)  # noqa: PLR2004 - a minute
