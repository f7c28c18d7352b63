"""Terminal output by rich: consoles and tables that show every value literally, one row per line in a pipe."""

import sys
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.status import Status
from rich.table import Table as RichTable
from rich.text import Text

from trieye.process.text import visible

__all__ = ["Group", "RenderableType", "Terminal", "Text", "TextTable"]

_UNLIMITED = 1_000_000_000


class Terminal(Console):
    """Console without markup, emoji codes, highlighting and control characters.

    The width is unlimited in pipes and files, which get one line per row whatever COLUMNS says.

    Args:
        stderr: Write to standard error.
        soft_wrap: Leave long lines to the terminal. A live view counts its lines and needs `False`.
    """

    def __init__(self, *, stderr: bool = False, soft_wrap: bool = True) -> None:
        stream = sys.stderr if stderr else sys.stdout  # None if the program was started without it
        width = None if stream is not None and stream.isatty() else _UNLIMITED
        super().__init__(stderr=stderr, soft_wrap=soft_wrap, width=width, markup=False, emoji=False, highlight=False)

    def render(self, renderable: RenderableType, options: Any = None) -> Any:
        """Render strings and texts without control characters."""
        return super().render(_visible(renderable) if isinstance(renderable, str | Text) else renderable, options)

    def status(self, status: RenderableType, **options: Any) -> Status:
        """Show a spinner with a literal text."""
        return super().status(_visible(status) if isinstance(status, str) else status, **options)


class TextTable(RichTable):
    """Table whose title, headings, cells and note are literal, each on one line.

    Args:
        headings: Headings of the first columns.
        right: Headings of right-aligned columns after them.
        title: Title above the headings.
        is_ruled: Draw a line below the headings.
    """

    def __init__(
        self, *headings: str | Text, right: Sequence[str] = (), title: str = "", is_ruled: bool = True
    ) -> None:
        look: dict[str, Any] = {"box": box.SIMPLE_HEAD} if is_ruled else {"box": None, "padding": (0, 2, 0, 0)}
        super().__init__(pad_edge=is_ruled, header_style="bold", title_justify="left", caption_justify="left", **look)
        if title:
            self.title = _visible(Text(title, "bold", no_wrap=True, overflow="ignore"), keep="")
        for heading in headings:
            self.add_column(heading)
        for heading in right:
            self.add_column(heading, justify="right")

    def add_column(self, header: RenderableType = "", *args: Any, **options: Any) -> None:
        """Add a column; long values are folded rather than cut, unless it is `no_wrap`."""
        options.setdefault("overflow", "ellipsis" if options.get("no_wrap") else "fold")
        super().add_column(_one_line(header), *args, **options)

    def add_row(self, *renderables: RenderableType | None, **options: Any) -> None:
        """Add a row of literal cells."""
        super().add_row(*(cell if cell is None else _one_line(cell) for cell in renderables), **options)

    def note(self, text: str) -> None:
        """Show a text below the table, after earlier ones."""
        lines = text if self.caption is None else f"{self.caption}\n{text}"
        self.caption = _visible(Text(lines, "table.caption", no_wrap=True, overflow="ignore"), keep="\n")


def _one_line(cell: RenderableType) -> RenderableType:
    return _visible(cell, keep="") if isinstance(cell, str | Text) else cell


def _visible(text: str | Text, *, keep: str = "\n\t") -> Text:
    copy = Text(text) if isinstance(text, str) else text.copy()
    copy.plain = visible(copy.plain, keep=keep)
    return copy
