"""What `trieye checkpoints` shows."""

from datetime import datetime
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from trieye.cli.check_view import size_text
from trieye.cli.saved_files import Saved

STYLES = {
    "whole": "green",
    "sizes fit": "",
    "partial": "yellow",
    "damaged": "red",
    "link": "red",
    "set aside": "yellow",
    "0.1.5": "yellow",
}


def render_saved(run_dir: Path, checkpoints: list[Saved], buffers: list[Saved], disk_bytes: int) -> RenderableType:
    """Return what was saved, for a terminal.

    Args:
        run_dir: Directory of the run.
        checkpoints: Its checkpoints, the newest last.
        buffers: Its buffers.
        disk_bytes: What all of it takes on the disk.
    """
    lines: list[RenderableType] = [Text(str(run_dir), "bold"), Text()]
    lines.append(_table("checkpoint", checkpoints) if checkpoints else Text("no checkpoints"))
    if buffers:
        lines += [Text(), _table("buffer", buffers)]
    saved = [*checkpoints, *buffers]
    lines += [Text(problem, "red") for row in saved if row.state != "set aside" for problem in row.problems]
    lines += [
        Text(f"{row.name}: rows {', '.join(row.lost_rows)} of its replay are lost, all else is whole", "yellow")
        for row in saved
        if row.state == "partial"
    ]
    if any(row.state == "0.1.5" for row in saved):
        lines.append(Text(f"files of trieye 0.1.5: `trieye convert {run_dir}` makes checkpoints of them", "yellow"))
    if saved:
        apart = sum(row.size_bytes for row in saved)
        shared = f", {size_text(apart)} without sharing" if apart > disk_bytes else ""
        lines += [Text(), Text(f"{size_text(disk_bytes)} on the disk{shared}")]
    return Group(*lines)


def _table(kind: str, rows: list[Saved]) -> Table:
    """Return a table without the columns that would be empty: 80 characters are not many."""
    columns = {
        kind: [Text(f"{row.step:,}") for row in rows],
        "saved": [Text("" if row.saved is None else _time(row.saved)) for row in rows],
        "objective": [Text("" if row.objective is None else f"{row.objective:.6g}") for row in rows],
        "size": [Text(size_text(row.size_bytes) if row.size_bytes else "") for row in rows],
        "shared": [Text(size_text(row.shared_bytes) if row.shared_bytes else "") for row in rows],
        "": [Text(" ".join(row.marks), "bold") for row in rows],
        "state": [Text(row.state, STYLES[row.state]) for row in rows],
    }
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    shown = {name: cells for name, cells in columns.items() if any(cell.plain for cell in cells)}
    for name in shown:
        table.add_column(name, justify="left" if name in {"", "state"} else "right", no_wrap=bool(name))
    for cells in zip(*shown.values(), strict=True):
        table.add_row(*cells)
    return table


def _time(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds).astimezone():%Y-%m-%d %H:%M}"
