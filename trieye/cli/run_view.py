"""RunView: what `trieye watch` shows of a run at one moment."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from trieye.checkpoints.store import CheckpointStore
from trieye.cli.run_status import is_alive
from trieye.exceptions import ConfigurationError, JournalError
from trieye.files.run_files import CHECKPOINTS, RUN_RECORD
from trieye.files.run_record import RunRecord
from trieye.hub.status import last_status, read_status

STALE_AFTER_S = 10.0
RATES_OVER_S = 10.0
"""The hub publishes once a second: over fewer seconds the rates would jump."""

MIN_METRICS = 3
MAX_ERROR = 80
"""Characters of an error; that of a server that is away has hundreds."""

COLORS = {"RUNNING": "green", "FINISHED": "cyan", "FAILED": "red", "KILLED": "yellow"}


class Sample(NamedTuple):
    """Counts at one look.

    Attributes:
        at: Monotonic time in seconds.
        accepted: Events.
        points: Items of the history.
    """

    at: float
    accepted: int
    points: int


class LastCheckpoint(NamedTuple):
    """The newest checkpoint.

    Attributes:
        changed_ns: Time at which the directory of the checkpoints was changed last.
        step: Its step; None if there is none.
        created: Unix time in seconds.
    """

    changed_ns: int
    step: int | None = None
    created: float = 0.0


@dataclass(frozen=True)
class RunView:
    """A run at one moment.

    Attributes:
        record: Who it is.
        is_alive: Whether a process writes to it.
        status: What its hub published last; empty before the first time.
        samples: Counts at the last looks, the newest one last.
        checkpoint: The newest checkpoint.
        problem: Why there is nothing newer; None if nothing is wrong.
    """

    record: RunRecord
    is_alive: bool
    status: Mapping[str, Any]
    samples: tuple[Sample, ...]
    checkpoint: LastCheckpoint
    problem: str | None


def read_view(run_dir: Path, before: RunView | None) -> RunView:
    """Return how a run is now.

    Args:
        run_dir: Its directory.
        before: The look before.

    Raises:
        ConfigurationError: The run is gone.
    """
    record = RunRecord.read(run_dir / RUN_RECORD)
    if record is None:
        raise ConfigurationError(f"the run {run_dir} is gone")
    problem, status = None, {} if before is None else before.status
    alive = record.status == "RUNNING" and is_alive(run_dir)
    try:
        status = read_status(run_dir) if alive else last_status(run_dir)
    except JournalError as error:  # it is being repaired, or somebody else's
        problem = str(error)
    return RunView(
        record=record,
        is_alive=alive,
        status=status,
        samples=_samples(status, () if before is None else before.samples),
        checkpoint=_checkpoint(run_dir / CHECKPOINTS, None if before is None else before.checkpoint),
        problem=problem,
    )


def _samples(status: Mapping[str, Any], earlier: tuple[Sample, ...]) -> tuple[Sample, ...]:
    if not status:
        return ()
    newest = Sample(time.monotonic(), status["accepted"], status["points"])
    return (*(sample for sample in earlier if newest.at - sample.at <= RATES_OVER_S), newest)


def _checkpoint(directory: Path, before: LastCheckpoint | None) -> LastCheckpoint:
    try:
        changed_ns = directory.stat().st_mtime_ns
    except OSError:
        return LastCheckpoint(0)
    if before is not None and before.changed_ns == changed_ns:  # there may be thousands of them
        return before
    entries = CheckpointStore(directory, read_only=True).entries()
    return LastCheckpoint(changed_ns, entries[-1].step, entries[-1].created) if entries else LastCheckpoint(changed_ns)


def render(view: RunView, console: Console | None = None) -> RenderableType:
    """Return the view.

    Args:
        view: The run.
        console: The terminal that it has to fit; None: it may be as long as it is.
    """
    parts = [_headline(view), *_facts(view), Text(), _sinks(view), Text()]
    max_metrics = None
    if console is not None:
        # two lines above the metrics, one below them, and that of the cursor
        used = len(console.render_lines(Group(*parts))) + 4
        max_metrics = max(console.height - used, MIN_METRICS)
    return Group(*parts, _metrics(view, max_metrics))


def _headline(view: RunView) -> Text:
    record = view.record
    text = Text.assemble((f"{record.app_name}/{record.run_name}", "bold"), "  ", (record.status, COLORS[record.status]))
    now, seen = time.time(), max(view.status.get("time", 0.0), record.started)
    until = record.ended or (now if view.is_alive else seen)
    text.append(f"  attempt {record.attempt}, for {duration(until - record.started)}")
    if view.is_alive and "pid" in view.status:
        text.append(f", process {view.status['pid']}")
    age_s = now - seen
    if view.problem is not None:
        text.append(f"\n{view.problem}", "red")
    elif record.status == "RUNNING" and not view.is_alive:
        text.append(f"\nno process writes to it, the last sign of life was {duration(age_s)} ago: ", "red")
        text.append("start it again, or `trieye close` it", "red")
    elif record.status == "RUNNING" and age_s > STALE_AFTER_S:
        text.append(f"\nnothing new for {duration(age_s)}", "yellow")
    return text


def _facts(view: RunView) -> Iterator[Text]:
    status = view.status
    if not status:
        yield Text("its hub has not published anything yet", "yellow")
        return
    facts = [
        f"events {status['accepted']:,}{_rate(view, 'accepted')}",
        f"points {status['points']:,}{_rate(view, 'points')}",
        f"queued {status['queued']:,}",
        f"journal {status['journal_bytes'] / 1e6:.1f} MB",
    ]
    if view.checkpoint.step is not None:
        facts.append(f"checkpoint step {view.checkpoint.step:,}, {duration(time.time() - view.checkpoint.created)} ago")
    yield Text(" · ".join(facts))
    losses = {"late": status["late"], **{f"dropped ({why})": count for why, count in status["dropped"].items()}}
    shown = [f"{what} {count:,}" for what, count in losses.items() if count]
    if shown:
        yield Text(" · ".join(shown), "yellow")
    for problem in (status["journal_error"], *status["journal_damage"]):
        if problem:
            yield Text(problem, "red")
    if status.get("mirror"):  # a run of an earlier version has none
        yield _mirror(status["mirror"])


def _mirror(mirror: Mapping[str, Any]) -> Text:
    facts = [f"mirror {mirror['url']}: {mirror['committed'] or 'no checkpoint yet'}"]
    if mirror["mirrored_at"] is not None:
        facts.append(f"journal as of {duration(time.time() - mirror['mirrored_at'])} ago")
    if mirror["pending"]:
        facts.append(f"{mirror['pending']:,} to upload")
    text = Text(" · ".join(facts))
    if mirror["error"]:
        error = mirror["error"].removeprefix(f"the mirror {mirror['url']} ")
        text.append(f" · {short(error)}", "red")
    return text


def _rate(view: RunView, what: str) -> str:
    """Return how many there are a second; nothing for a run that has ended, and at the first look."""
    if not view.is_alive or len(view.samples) < 2:  # noqa: PLR2004 - a difference
        return ""
    first, last = view.samples[0], view.samples[-1]
    rate = max(getattr(last, what) - getattr(first, what), 0) / (last.at - first.at)
    return f" ({rate:,.0f}/s)"


def _sinks(view: RunView) -> RenderableType:
    table = _table()
    table.add_column("sink")
    table.add_column("behind", justify="right")
    table.add_column("lag", justify="right")
    table.add_column("state", overflow="fold")
    for sink in view.status.get("sinks", ()):
        state = Text(short(sink["error"]), "red") if sink["error"] else Text("works" if view.is_alive else "", "green")
        if sink["refused"]:
            state.append(f"{', ' if state else ''}refused {sink['refused']:,}", "yellow")
        table.add_row(sink["name"], f"{sink['backlog']:,}", duration(sink["lag_s"]), state)
    return table if table.row_count else Text("no sinks")


def _metrics(view: RunView, max_metrics: int | None) -> RenderableType:
    metrics = view.status.get("metrics", {})
    table = _table()
    table.add_column("metric", overflow="ellipsis", no_wrap=True)
    for name in ("last", "min", "max", "step"):
        table.add_column(name, justify="right", no_wrap=True)
    shown = list(metrics.items())[:max_metrics]
    for name, seen in shown:
        table.add_row(Text(name), *(_number(seen[key]) for key in ("last", "min", "max")), f"{seen['step']:,}")
    if len(shown) < len(metrics):
        table.caption = f"and {len(metrics) - len(shown)} more"
    return table if metrics else Text("no metrics yet", "dim")


def _table() -> Table:
    return Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.6g}"  # JSON has no infinity


def short(error: str) -> str:
    """Return the beginning of an error; the log of the run has all of it."""
    error = error.removeprefix("TrieyeError: ")
    return error if len(error) <= MAX_ERROR else f"{error[:MAX_ERROR]} ..."


def duration(seconds: float) -> str:
    """Return a time in words."""
    seconds = max(seconds, 0.0)
    if seconds < 60:  # noqa: PLR2004 - a minute
        return f"{seconds:.0f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"
