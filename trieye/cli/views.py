"""Render runs, checkpoints and verification results for the terminal."""

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
from trieye.process.terminal import Group, RenderableType, Terminal, Text, TextTable
from trieye.process.text import duration
from trieye.runs.checkpoint_rows import CheckpointRow, SavedFiles
from trieye.runs.stored_run import StoredRun
from trieye.runs.verification import RunCheck, SinkPosition

STALE_AFTER_S = 10.0
RATES_OVER_S = 10.0
"""Averaging window of rates; the hub publishes once a second, so a shorter window would make them jump."""

_LAG = re.compile(r"explorer/(\d+)/staleness")

MIN_METRICS = 3
MAX_ERROR = 80
"""Displayed characters of an error; connection errors have hundreds."""

SAVED_COLORS = {
    "whole": "green", "sizes fit": "", "partial": "yellow", "damaged": "red", "link": "red", "set aside": "yellow",
    "0.1.5": "yellow",
}  # fmt: skip


@dataclass(frozen=True)
class RunView:
    """A run at one moment, with recent statuses of its hub, from which rates are computed.

    Attributes:
        run: The run.
        statuses: Statuses that the hub published within the last `RATES_OVER_S` seconds, newest last, each with the
            monotonic time in seconds of reading; empty before the hub published one.
        checkpoint: The newest checkpoint; None if there is none.
        problem: Why the status cannot be read; None if it can.
    """

    run: StoredRun
    statuses: tuple[tuple[float, Mapping[str, Any]], ...]
    checkpoint: CheckpointEntry | None
    problem: str | None

    @property
    def status(self) -> Mapping[str, Any]:
        """The last published status of the hub; empty before the first one."""
        return self.statuses[-1][1] if self.statuses else {}


def read_view(run_dir: Path, last_view: RunView | None) -> RunView:
    """Read the current state of a run.

    Args:
        run_dir: Directory of the run.
        last_view: The previous view, whose statuses are the basis of rates; None for the first view.

    Raises:
        ConfigurationError: The run no longer exists.
        SerializationError: Its run.json is damaged.
    """
    run = StoredRun.read(run_dir)
    problem, status = None, {} if last_view is None else last_view.status
    try:
        status = read_status(run_dir) if run.is_alive else last_status(run_dir)
    except JournalError as error:  # the journal is being repaired, or belongs to another run
        problem = str(error)
    now = time.monotonic()
    old_statuses = () if last_view is None else last_view.statuses
    statuses = [(seconds, published) for seconds, published in old_statuses if now - seconds <= RATES_OVER_S]
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
    """Return the newest checkpoint; cached until the directory changes, because there may be thousands of entries."""
    entries = CheckpointStore(directory, read_only=True).entries()
    return entries[-1] if entries else None


def document_of(view: RunView) -> dict[str, Any]:
    """Return the JSON document of a view."""
    run, newest = view.run, view.checkpoint
    checkpoint = None if newest is None else {"step": newest.step, "created": newest.created}
    state = {"status": run.status, "attempt": run.attempt, "is_alive": run.is_alive, "took_s": run.took_s}
    document = {"run": str(run), "run_dir": run.run_dir, **state, "checkpoint": checkpoint}
    return {**document, "problem": view.problem, "hub": view.status or None}


def render_run(view: RunView, console: Terminal | None = None) -> RenderableType:
    """Render a run for a terminal.

    Args:
        view: The run.
        console: Terminal whose height limits the number of metrics; None: unlimited.
    """
    parts = [_headline(view), *_facts(view), Text(), _sinks_of_run(view), Text()]
    max_metrics = None
    if console is not None:
        # two heading lines of the metrics, one note below them, and the cursor line
        num_used_lines = len(console.render_lines(Group(*parts))) + 4
        max_metrics = max(console.height - num_used_lines, MIN_METRICS)
    return Group(*parts, _metrics(view, max_metrics))


def _headline(view: RunView) -> Text:
    record = view.run.record
    color = RUN_COLORS[record.status]
    text = Text.assemble((f"{record.app_name}/{record.run_name}", "bold"), "  ", (record.status, color))
    now, last_seen = time.time(), max(view.status.get("time", 0.0), record.started)
    end = record.ended or (now if view.run.is_alive else last_seen)
    text.append(f"  attempt {record.attempt}, for {duration(end - record.started)}")
    if view.run.is_alive and "pid" in view.status:
        text.append(f", process {view.status['pid']}")
    ago = duration(now - last_seen)
    if view.problem is not None:
        text.append(f"\n{view.problem}", "red")
    elif record.status == "RUNNING" and not view.run.is_alive:
        advice = "restart the run, or finish it with `trieye close`"
        text.append(f"\nthe process of the run is gone, last status {ago} ago: {advice}", "red")
    elif record.status == "RUNNING" and now - last_seen > STALE_AFTER_S:
        text.append(f"\nno new status for {ago}", "yellow")
    if record.forked_from is not None:
        text.append(f"\nforked from {record.forked_from.line}", "dim")
    return text


def _facts(view: RunView) -> Iterator[Text]:
    status = view.status
    if not status:
        yield Text("the hub has not published a status yet", "yellow")
        return
    counters = (("events", "accepted"), ("points", "points"))
    facts = [f"{label} {status[key]:,}{_rate(view, key)}" for label, key in counters]
    facts += [f"queued {status['queued']:,}", f"journal {status['journal_bytes'] / 1e6:.1f} MB"]
    if (newest := view.checkpoint) is not None:
        facts.append(f"checkpoint step {newest.step:,}, {duration(time.time() - newest.created)} ago")
    yield Text(" · ".join(facts))
    losses = {"late": status["late"], **{f"dropped ({reason})": count for reason, count in status["dropped"].items()}}
    if loss_texts := [f"{label} {count:,}" for label, count in losses.items() if count]:
        yield Text(" · ".join(loss_texts), "yellow")
    for problem in (status["journal_error"], *status["journal_damage"]):
        if problem:
            yield Text(problem, "red")
    yield from _explorers(status["metrics"])
    if status.get("mirror"):  # earlier versions do not publish it
        yield _mirror(status["mirror"])


def _explorers(metrics: Mapping[str, Any]) -> Iterator[Text]:
    """Yield lines on the explorers of a training; none if it has no explorers."""
    values = {name: metric["last"] for name, metric in metrics.items() if metric["last"] is not None}
    if "explorer/alive" not in values:
        return
    words = {"explorer/alive": "explorers alive", "sync/version": "version", "sync/publish_ms": "ms to publish"}
    words |= {"replay/staleness_mean": "staleness mean", "replay/staleness_max": "max"}
    text = Text(" · ".join(f"{word} {_number(values[name])}" for name, word in words.items() if name in values))
    for name, word in {"explorer/restarts": "restarts", "explorer/lost_fragments": "fragments lost"}.items():
        if name in values:
            text.append(f" · {word} {_number(values[name])}", "yellow" if values[name] else "")
    yield text
    lags = {int(match[1]): lag for name, lag in values.items() if (match := _LAG.fullmatch(name))}
    if lags:
        yield Text("lag " + ", ".join(f"{index}: {_number(lags[index])}" for index in sorted(lags)))


def _rate(view: RunView, key: str) -> str:
    """Return the rate per second of a counter; empty for ended runs and for the first view."""
    if not view.run.is_alive or len(view.statuses) == 1:
        return ""
    (start, old_status), (end, new_status) = view.statuses[0], view.statuses[-1]
    return f" ({max(new_status[key] - old_status[key], 0) / (end - start):,.0f}/s)"


def _mirror(mirror_status: Mapping[str, Any]) -> Text:
    facts = [f"mirror {mirror_status['url']}: {mirror_status['committed'] or 'no checkpoint yet'}"]
    if mirror_status["mirrored_at"] is not None:
        facts.append(f"journal as of {duration(time.time() - mirror_status['mirrored_at'])} ago")
    if mirror_status["pending"]:
        facts.append(f"{mirror_status['pending']:,} to upload")
    text = Text(" · ".join(facts))
    if mirror_status["error"]:
        error = mirror_status["error"].removeprefix(f"the mirror {mirror_status['url']} ")
        text.append(f" · {_short(error)}", "red")
    return text


def _sinks_of_run(view: RunView) -> RenderableType:
    table = _table("sink", right=("behind", "lag"))
    table.add_column("state")
    for sink in view.status.get("sinks", ()):
        state = (
            Text(_short(sink["error"]), "red") if sink["error"] else Text("ok" if view.run.is_alive else "", "green")
        )
        if sink["refused"]:
            state.append(f"{', ' if state else ''}refused {sink['refused']:,}", "yellow")
        table.add_row(sink["name"], f"{sink['backlog']:,}", duration(sink["lag_s"]), state)
    return table if table.row_count else Text("no sinks")


def _metrics(view: RunView, max_metrics: int | None) -> RenderableType:
    published = view.status.get("metrics", {})
    prefixes = ("explorer/", "sync/") if "explorer/alive" in published else ()  # shown on separate lines
    metrics = {name: summary for name, summary in published.items() if not name.startswith(prefixes)}
    table = _table("metric", right=("last", "min", "max", "step"))
    table.columns[0].no_wrap = True
    shown_items = list(metrics.items())[:max_metrics]
    for name, summary in shown_items:
        table.add_row(name, *(_number(summary[key]) for key in ("last", "min", "max")), f"{summary['step']:,}")
    if len(shown_items) < len(metrics):
        table.note(f"{len(metrics) - len(shown_items)} more metrics")
    return table if metrics else Text("no metrics yet", "dim")


def render_saved(files: SavedFiles) -> RenderableType:
    """Render the checkpoints of a run, newest last, and their size on disk."""
    run_dir, disk_bytes, checkpoints, buffers = files.run_dir, files.disk_bytes, files.checkpoints, files.buffers
    lines: list[RenderableType] = [Text(str(run_dir), "bold"), Text()]
    lines.append(_states("checkpoint", checkpoints) if checkpoints else Text("no checkpoints"))
    if buffers:
        lines += [Text(), _states("buffer", buffers)]
    if files.crashes:
        lines += [Text(), _states("at an error", files.crashes)]
        reference = f"{run_dir.name}:{files.crashes[-1].name}"
        lines.append(Text(f"start another run from it: persistence.load_checkpoint_path={reference}"))
    rows = [*checkpoints, *buffers, *files.crashes]
    lines += [Text(problem, "red") for row in rows if row.state != "set aside" for problem in row.problems]
    lines += [
        Text(f"{row.name}: replay rows {', '.join(row.lost_rows)} are lost; everything else is intact", "yellow")
        for row in rows
        if row.state == "partial"
    ]
    if any(row.state == "0.1.5" for row in rows):
        lines.append(Text(f"trieye 0.1.5 checkpoints: convert them with `trieye convert {run_dir}`", "yellow"))
    if rows:
        total_bytes = sum(row.size_bytes for row in rows)
        sharing_text = f", {decimal(total_bytes)} without shared parts" if total_bytes > disk_bytes else ""
        lines += [Text(), Text(f"{decimal(disk_bytes)} on disk{sharing_text}")]
    return Group(*lines)


def _states(heading: str, rows: list[CheckpointRow]) -> TextTable:
    """Return a table without empty columns, to fit 80 characters."""
    columns = {
        heading: [Text(f"{row.step:,}") for row in rows],
        "saved": [Text("" if row.saved is None else _date(row.saved)) for row in rows],
        "objective": [Text("" if row.objective is None else f"{row.objective:.6g}") for row in rows],
        "size": [Text(decimal(row.size_bytes) if row.size_bytes else "") for row in rows],
        "shared": [Text(decimal(row.shared_bytes) if row.shared_bytes else "") for row in rows],
        "": [Text(" ".join(row.marks), "bold") for row in rows],
        "state": [Text(row.state, SAVED_COLORS[row.state]) for row in rows],
    }
    table = TextTable(is_ruled=False)
    cells_by_heading = {name: cells for name, cells in columns.items() if any(cell.plain for cell in cells)}
    for name in cells_by_heading:
        table.add_column(name, justify="left" if name in {"", "state"} else "right", no_wrap=bool(name))
    for cells in zip(*cells_by_heading.values(), strict=True):
        table.add_row(*cells)
    return table


def render_check(check: RunCheck) -> RenderableType:
    """Render the result of a verification."""
    lines = [Text()]
    for damage in check.damage:
        lines += [Text(damage.what, "red"), Text(f"  {damage.meaning}\n  {damage.advice}")]
    lines += [Text(f"note: {note}", "dim") for note in check.notes]
    if not check.damage:
        lines.append(Text("everything is intact", "green"))
    state = "alive" if check.is_alive else "no process is writing to it"
    headline = f"{check.status or 'run record unreadable'}, {state}"
    parts = _table("part", "content", right=("size",))
    parts.add_column("state", no_wrap=True)
    for part in check.parts:
        mark = Text("damaged", "red") if part.damage else Text("intact", "green") if part.is_there else Text("-")
        parts.add_row(part.name, part.found, decimal(part.size_bytes) if part.size_bytes else "", mark)
    sinks = _sinks_of_check(check)
    return Group(Text(str(check.run_dir), "bold"), headline, Text(), parts, Text(), sinks, *lines)


def _sinks_of_check(check: RunCheck) -> RenderableType:
    table = _table("sink", right=("delivered", "behind"))
    table.add_column("state")
    for sink in check.sinks:
        # the last journal entries of a killed run are unprocessed, so their number of points is unknown
        lag_text = f"{sink.behind:,}" + (" or more" if check.is_killed else "")
        table.add_row(sink.name, f"{sink.index:,}", lag_text, _state(sink, check))
    return table if check.sinks else Text("no sinks")


def _state(sink: SinkPosition, check: RunCheck) -> Text:
    if not sink.behind and not check.is_killed:
        return Text("complete", "green")
    if not check.is_alive:
        return Text("`trieye close` delivers the rest", "yellow")
    return Text(_short(sink.error), "red") if sink.error else Text("delivering")


def _table(*left: str, right: tuple[str, ...] = ()) -> TextTable:
    table = TextTable(*left, is_ruled=False)
    for name in right:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.6g}"  # JSON has no infinity


def _short(error: str) -> str:
    """Return the beginning of an error; the run's log contains the full text."""
    error = error.removeprefix("TrieyeError: ")
    return error if len(error) <= MAX_ERROR else f"{error[:MAX_ERROR]} ..."


def _date(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds).astimezone():%Y-%m-%d %H:%M}"
