"""What `trieye verify` shows."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from trieye.cli.run_check import RunCheck, SinkPlace
from trieye.cli.run_view import short


def render_check(found: RunCheck) -> RenderableType:
    """Return what was found, for a terminal."""
    lines = [Text()]
    for damage in found.damage:
        lines += [Text(damage.what, "red"), Text(f"  {damage.meaning}\n  {damage.advice}")]
    lines += [Text(f"note: {note}", "dim") for note in found.notes]
    if not found.damage:
        lines.append(Text("everything is whole", "green"))
    state = "alive" if found.is_alive else "no process writes to it"
    headline = f"{found.status or 'it cannot be read who it is'}, {state}"
    return Group(Text(str(found.run_dir), "bold"), headline, Text(), _parts(found), Text(), _sinks(found), *lines)


def _parts(found: RunCheck) -> RenderableType:
    table = _table("part", "found")
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for part in found.parts:
        state = Text("damaged", "red") if part.damage else Text("whole", "green") if part.is_there else Text("-")
        table.add_row(part.name, part.found, size_text(part.size_bytes) if part.size_bytes else "", state)
    return table


def _sinks(found: RunCheck) -> RenderableType:
    if not found.sinks:
        return Text("no sinks")
    table = _table("sink")
    table.add_column("has", justify="right")
    table.add_column("behind", justify="right")
    table.add_column("state", overflow="fold")
    for sink in found.sinks:
        # nobody knows which points the last records of a killed run give
        behind = f"{sink.behind:,}" + (" or more" if found.is_killed else "")
        table.add_row(sink.name, f"{sink.index:,}", behind, _state(sink, found))
    return table


def _state(sink: SinkPlace, found: RunCheck) -> Text:
    if not sink.behind and not found.is_killed:
        return Text("has everything", "green")
    if not found.is_alive:
        return Text("`trieye close` delivers the rest", "yellow")
    return Text(short(sink.error), "red") if sink.error else Text("gets the rest now")


def _table(*columns: str) -> Table:
    return Table(*columns, box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))


def size_text(size_bytes: int) -> str:
    """Return a size in words."""
    """Return a size in words."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.1f} {unit}"
    return f"{size_bytes} B"
