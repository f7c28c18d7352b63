"""The tables and columns in which the commands show a run, what it has saved, and a check of it."""

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from rich.filesize import decimal

from trieye.checkpoints.store import CheckpointEntry, CheckpointStore
from trieye.cli.runs import RUN_COLORS
from trieye.exceptions import JournalError
from trieye.files.run_files import CHECKPOINTS
from trieye.hub.status import last_status, read_status
from trieye.process.terminal import Group, RenderableType, Table, Terminal, Text
from trieye.process.text import duration
from trieye.runs.checkpoint_rows import CheckpointRow, SavedFiles
from trieye.runs.stored_run import StoredRun
from trieye.runs.verification import RunCheck, SinkPosition

STALE_AFTER_S = 10.0
RATES_OVER_S = 10.0
"""The hub publishes once a second: over fewer seconds the rates would jump."""

_LAG = re.compile(r"explorer/(\d+)/staleness")

MIN_METRICS = 3
MAX_ERROR = 80
"""Characters of an error; that of a server that is away has hundreds."""

SAVED_COLORS = {
    "whole": "green", "sizes fit": "", "partial": "yellow", "damaged": "red", "link": "red", "set aside": "yellow",
    "0.1.5": "yellow",
}  # fmt: skip


@dataclass(frozen=True)
class RunView:
    """A run at one moment, with the last statuses of its hub, from which rates are computed.

    Attributes:
        run: The run.
        statuses: What its hub published within the last seconds, the newest last, each with the monotonic time in
            seconds; empty before the hub published anything.
        checkpoint: Its newest checkpoint, if there is one.
        problem: Why the status cannot be read; None if it can.
    """

    run: StoredRun
    statuses: tuple[tuple[float, Mapping[str, Any]], ...]
    checkpoint: CheckpointEntry | None
    problem: str | None

    @property
    def status(self) -> Mapping[str, Any]:
        """What the hub of the run published last; empty before the first time."""
        return self.statuses[-1][1] if self.statuses else {}


def read_view(run_dir: Path, before: RunView | None) -> RunView:
    """Return how a run is now.

    Args:
        run_dir: Its directory.
        before: The previous view, if there is one.

    Raises:
        ConfigurationError: The run is gone.
        SerializationError: Its run.json is damaged.
    """
    run = StoredRun.read(run_dir)
    problem, status = None, {} if before is None else before.status
    try:
        status = read_status(run_dir) if run.is_alive else last_status(run_dir)
    except JournalError as error:  # it is being repaired, or somebody else's
        problem = str(error)
    now = time.monotonic()
    statuses = [one for one in (() if before is None else before.statuses) if now - one[0] <= RATES_OVER_S]
    return RunView(
        run=run,
        statuses=(*statuses, (now, status)) if status else (),
        checkpoint=_newest_checkpoint(run_dir / CHECKPOINTS),
        problem=problem,
    )


def _newest_checkpoint(directory: Path) -> CheckpointEntry | None:
    try:
        return _newest_of(directory, directory.stat().st_mtime_ns)
    except OSError:
        return None


@lru_cache(maxsize=1)
def _newest_of(directory: Path, _changed_ns: int) -> CheckpointEntry | None:
    """Return the newest checkpoint; there may be thousands, which are read again when their directory was changed."""
    entries = CheckpointStore(directory, read_only=True).entries()
    return entries[-1] if entries else None


def document_of(view: RunView) -> dict[str, Any]:
    """Return a view for JSON."""
    run, checkpoint = view.run, view.checkpoint
    saved = None if checkpoint is None else {"step": checkpoint.step, "created": checkpoint.created}
    state = {"status": run.status, "attempt": run.attempt, "is_alive": run.is_alive, "took_s": run.took_s}
    document = {"run": str(run), "run_dir": run.run_dir, **state, "checkpoint": saved}
    return {**document, "problem": view.problem, "hub": view.status or None}


def render_run(view: RunView, console: Terminal | None = None) -> RenderableType:
    """Return a run for a terminal, which it has to fit if one is given."""
    parts = [_headline(view), *_facts(view), Text(), _sinks_of_run(view), Text()]
    max_metrics = None
    if console is not None:
        # two lines above the metrics, one below them, and that of the cursor
        used = len(console.render_lines(Group(*parts))) + 4
        max_metrics = max(console.height - used, MIN_METRICS)
    return Group(*parts, _metrics(view, max_metrics))


def _headline(view: RunView) -> Text:
    record = view.run.record
    color = RUN_COLORS[record.status]
    text = Text.assemble((f"{record.app_name}/{record.run_name}", "bold"), "  ", (record.status, color))
    now, seen = time.time(), max(view.status.get("time", 0.0), record.started)
    until = record.ended or (now if view.run.is_alive else seen)
    text.append(f"  attempt {record.attempt}, for {duration(until - record.started)}")
    if view.run.is_alive and "pid" in view.status:
        text.append(f", process {view.status['pid']}")
    ago = duration(now - seen)
    if view.problem is not None:
        text.append(f"\n{view.problem}", "red")
    elif record.status == "RUNNING" and not view.run.is_alive:
        advice = "start it again, or `trieye close` it"
        text.append(f"\nno process writes to it, the last sign of life was {ago} ago: {advice}", "red")
    elif record.status == "RUNNING" and now - seen > STALE_AFTER_S:
        text.append(f"\nnothing new for {ago}", "yellow")
    if record.forked_from is not None:
        text.append(f"\nforked from {record.forked_from.line}", "dim")
    return text


def _facts(view: RunView) -> Iterator[Text]:
    status = view.status
    if not status:
        yield Text("its hub has not published anything yet", "yellow")
        return
    facts = [
        f"{what} {status[key]:,}{_rate(view, key)}" for what, key in (("events", "accepted"), ("points", "points"))
    ]
    facts += [f"queued {status['queued']:,}", f"journal {status['journal_bytes'] / 1e6:.1f} MB"]
    if (newest := view.checkpoint) is not None:
        facts.append(f"checkpoint step {newest.step:,}, {duration(time.time() - newest.created)} ago")
    yield Text(" · ".join(facts))
    losses = {"late": status["late"], **{f"dropped ({why})": count for why, count in status["dropped"].items()}}
    if shown := [f"{what} {count:,}" for what, count in losses.items() if count]:
        yield Text(" · ".join(shown), "yellow")
    for problem in (status["journal_error"], *status["journal_damage"]):
        if problem:
            yield Text(problem, "red")
    yield from _explorers(status["metrics"])
    if status.get("mirror"):  # a run of an earlier version has none
        yield _mirror(status["mirror"])


def _explorers(metrics: Mapping[str, Any]) -> Iterator[Text]:
    """Yield how the explorers of a training are; nothing if it has none."""
    last = {name: seen["last"] for name, seen in metrics.items() if seen["last"] is not None}
    if "explorer/alive" not in last:
        return
    words = {"explorer/alive": "explorers alive", "sync/version": "version", "sync/publish_ms": "ms to publish"}
    words |= {"replay/staleness_mean": "staleness mean", "replay/staleness_max": "max"}
    text = Text(" · ".join(f"{word} {_number(last[name])}" for name, word in words.items() if name in last))
    for name, word in {"explorer/restarts": "restarts", "explorer/lost_fragments": "fragments lost"}.items():
        if name in last:
            text.append(f" · {word} {_number(last[name])}", "yellow" if last[name] else "")
    yield text
    lags = {int(match[1]): lag for name, lag in last.items() if (match := _LAG.fullmatch(name))}
    if lags:
        yield Text("lag " + ", ".join(f"{index}: {_number(lags[index])}" for index in sorted(lags)))


def _rate(view: RunView, what: str) -> str:
    """Return how many there are a second; nothing for a run that has ended, and at the first look."""
    if not view.run.is_alive or len(view.statuses) == 1:
        return ""
    (then, first), (now, last) = view.statuses[0], view.statuses[-1]
    return f" ({max(last[what] - first[what], 0) / (now - then):,.0f}/s)"


def _mirror(mirror: Mapping[str, Any]) -> Text:
    facts = [f"mirror {mirror['url']}: {mirror['committed'] or 'no checkpoint yet'}"]
    if mirror["mirrored_at"] is not None:
        facts.append(f"journal as of {duration(time.time() - mirror['mirrored_at'])} ago")
    if mirror["pending"]:
        facts.append(f"{mirror['pending']:,} to upload")
    text = Text(" · ".join(facts))
    if mirror["error"]:
        error = mirror["error"].removeprefix(f"the mirror {mirror['url']} ")
        text.append(f" · {_short(error)}", "red")
    return text


def _sinks_of_run(view: RunView) -> RenderableType:
    table = _table("sink", right=("behind", "lag"))
    table.add_column("state")
    for sink in view.status.get("sinks", ()):
        state = (
            Text(_short(sink["error"]), "red") if sink["error"] else Text("works" if view.run.is_alive else "", "green")
        )
        if sink["refused"]:
            state.append(f"{', ' if state else ''}refused {sink['refused']:,}", "yellow")
        table.add_row(sink["name"], f"{sink['backlog']:,}", duration(sink["lag_s"]), state)
    return table if table.row_count else Text("no sinks")


def _metrics(view: RunView, max_metrics: int | None) -> RenderableType:
    known = view.status.get("metrics", {})
    of_explorers = ("explorer/", "sync/") if "explorer/alive" in known else ()  # they have lines of their own
    metrics = {name: seen for name, seen in known.items() if not name.startswith(of_explorers)}
    table = _table("metric", right=("last", "min", "max", "step"))
    table.columns[0].no_wrap = True
    shown = list(metrics.items())[:max_metrics]
    for name, seen in shown:
        table.add_row(name, *(_number(seen[key]) for key in ("last", "min", "max")), f"{seen['step']:,}")
    if len(shown) < len(metrics):
        table.note(f"and {len(metrics) - len(shown)} more")
    return table if metrics else Text("no metrics yet", "dim")


def render_saved(saved: SavedFiles) -> RenderableType:
    """Return the checkpoints of a run for a terminal, the newest last, and their size on disk."""
    run_dir, disk_bytes, checkpoints, buffers = saved.run_dir, saved.disk_bytes, saved.checkpoints, saved.buffers
    lines: list[RenderableType] = [Text(str(run_dir), "bold"), Text()]
    lines.append(_states("checkpoint", checkpoints) if checkpoints else Text("no checkpoints"))
    if buffers:
        lines += [Text(), _states("buffer", buffers)]
    rows = [*checkpoints, *buffers]
    lines += [Text(problem, "red") for row in rows if row.state != "set aside" for problem in row.problems]
    lines += [
        Text(f"{row.name}: rows {', '.join(row.lost_rows)} of its replay are lost, all else is whole", "yellow")
        for row in rows
        if row.state == "partial"
    ]
    if any(row.state == "0.1.5" for row in rows):
        lines.append(Text(f"files of trieye 0.1.5: `trieye convert {run_dir}` makes checkpoints of them", "yellow"))
    if rows:
        apart = sum(row.size_bytes for row in rows)
        shared = f", {decimal(apart)} without sharing" if apart > disk_bytes else ""
        lines += [Text(), Text(f"{decimal(disk_bytes)} on the disk{shared}")]
    return Group(*lines)


def _states(kind: str, rows: list[CheckpointRow]) -> Table:
    """Return a table without the columns that would be empty: 80 characters are not many."""
    columns = {
        kind: [Text(f"{row.step:,}") for row in rows],
        "saved": [Text("" if row.saved is None else _date(row.saved)) for row in rows],
        "objective": [Text("" if row.objective is None else f"{row.objective:.6g}") for row in rows],
        "size": [Text(decimal(row.size_bytes) if row.size_bytes else "") for row in rows],
        "shared": [Text(decimal(row.shared_bytes) if row.shared_bytes else "") for row in rows],
        "": [Text(" ".join(row.marks), "bold") for row in rows],
        "state": [Text(row.state, SAVED_COLORS[row.state]) for row in rows],
    }
    table = Table(is_ruled=False)
    shown = {name: cells for name, cells in columns.items() if any(cell.plain for cell in cells)}
    for name in shown:
        table.add_column(name, justify="left" if name in {"", "state"} else "right", no_wrap=bool(name))
    for cells in zip(*shown.values(), strict=True):
        table.add_row(*cells)
    return table


def render_check(found: RunCheck) -> RenderableType:
    """Return a check of a run for a terminal."""
    lines = [Text()]
    for damage in found.damage:
        lines += [Text(damage.what, "red"), Text(f"  {damage.meaning}\n  {damage.advice}")]
    lines += [Text(f"note: {note}", "dim") for note in found.notes]
    if not found.damage:
        lines.append(Text("everything is whole", "green"))
    state = "alive" if found.is_alive else "no process writes to it"
    headline = f"{found.status or 'it cannot be read who it is'}, {state}"
    parts = _table("part", "found", right=("size",))
    parts.add_column("state", no_wrap=True)
    for part in found.parts:
        mark = Text("damaged", "red") if part.damage else Text("whole", "green") if part.is_there else Text("-")
        parts.add_row(part.name, part.found, decimal(part.size_bytes) if part.size_bytes else "", mark)
    sinks = _sinks_of_check(found)
    return Group(Text(str(found.run_dir), "bold"), headline, Text(), parts, Text(), sinks, *lines)


def _sinks_of_check(found: RunCheck) -> RenderableType:
    table = _table("sink", right=("has", "behind"))
    table.add_column("state")
    for sink in found.sinks:
        # nobody knows which points the last records of a killed run give
        behind = f"{sink.behind:,}" + (" or more" if found.is_killed else "")
        table.add_row(sink.name, f"{sink.index:,}", behind, _state(sink, found))
    return table if found.sinks else Text("no sinks")


def _state(sink: SinkPosition, found: RunCheck) -> Text:
    if not sink.behind and not found.is_killed:
        return Text("has everything", "green")
    if not found.is_alive:
        return Text("`trieye close` delivers the rest", "yellow")
    return Text(_short(sink.error), "red") if sink.error else Text("gets the rest now")


def _table(*left: str, right: tuple[str, ...] = ()) -> Table:
    table = Table(*left, is_ruled=False)
    for name in right:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.6g}"  # JSON has no infinity


def _short(error: str) -> str:
    """Return the beginning of an error; the log of the run has all of it."""
    error = error.removeprefix("TrieyeError: ")
    return error if len(error) <= MAX_ERROR else f"{error[:MAX_ERROR]} ..."


def _date(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds).astimezone():%Y-%m-%d %H:%M}"
