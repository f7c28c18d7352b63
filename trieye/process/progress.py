"""ProgressBar: a bar with key metrics on a terminal, an updated line in a notebook, plain lines elsewhere."""

import contextlib
import inspect
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from trieye.process.text import visible

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

LINE_INTERVAL_S = 10.0
REFRESH_INTERVAL_S = 0.2
MAX_SHOWN_METRICS = 4

_COLOR = re.compile(r"\x1b\[[0-9;]*m")


def say(text: str) -> None:
    """Print a line for the user on standard error, without breaking a progress bar.

    Errors of a closed terminal are ignored, so that they cannot interrupt the caller, such as a signal handler.
    """
    if sys.stderr is None:  # it was closed; `print` would write to stdout
        return
    line = visible(_COLOR.sub("", text))  # errors of Ray have colors
    with contextlib.suppress(OSError, ValueError):
        print(f"trieye: {line}", file=sys.stderr, flush=True)  # noqa: T201 - addressed to the terminal


class ProgressBar:
    """Shows the progress of a run; `update` may be called at every step.

    Args:
        name: Name of the run.
        total: Last step; None if unknown.
        start: Step at which the run resumes.
        metrics: Returns the values to show.
        has_bar: Draw a bar on a terminal; False prints lines there too.
    """

    def __init__(
        self,
        name: str,
        total: int | None,
        start: int,
        metrics: Callable[[], Mapping[str, float]],
        *,
        has_bar: bool = True,
    ) -> None:
        self._name, self._total, self._start, self._metrics = name, total, start, metrics
        self._has_bar = has_bar
        self._step = start
        self._printed_step = -1
        self._is_in_notebook, self._line_length = _in_a_notebook(), 0
        self._began = time.monotonic()
        self._next_refresh = self._began + REFRESH_INTERVAL_S
        self._bar: RichProgress | None = None
        self._handlers: list[tuple[logging.StreamHandler[Any], Any]] = []
        self._hook_before: Callable[..., Any] | None = None

    def __enter__(self) -> Self:
        if self._has_bar and sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
            self._bar = _rich_bar(has_end=self._total is not None)
            self._task = self._bar.add_task(visible(self._name), total=self._total, completed=self._start, metrics="")
            self._start_bar()
        return self

    def _start_bar(self) -> None:
        if self._bar is not None:
            self._bar.start()
            self._handlers = _through_the_bar()
            self._hook_before, sys.breakpointhook = sys.breakpointhook, self._debug

    def _stop_bar(self) -> None:
        if self._bar is not None and self._hook_before is not None:
            self._bar.stop()
            for handler, stream in self._handlers:
                handler.setStream(stream)
            sys.breakpointhook, self._hook_before = self._hook_before, None

    def _debug(self, *args: Any, **kwargs: Any) -> Any:
        """Leave the terminal to a debugger, at the line that called `breakpoint`, until it no longer traces."""
        hook = self._hook_before or sys.__breakpointhook__
        self._stop_bar()
        hook_name = os.environ.get("PYTHONBREAKPOINT", "")
        # Ray sets its own hook, which waits for an editor to attach
        is_pdb = hook_name in {"", "pdb.set_trace"} or hook_name.startswith("ray.util.rpdb.")
        if hook is not sys.__breakpointhook__ or not is_pdb:
            return hook(*args, **kwargs)
        import pdb  # noqa: T100 - not `set_trace`, which would stop in this frame

        frame = inspect.currentframe()
        return pdb.Pdb().set_trace(None if frame is None else frame.f_back)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None or self._printed_step != self._step:
            self._show()
        if self._line_length:
            print()  # noqa: T201 - further output of the cell starts on a new line
        self._stop_bar()

    def update(self, step: int) -> None:
        """Record that a step is done; redraws at most every `REFRESH_INTERVAL_S`, or prints every `LINE_INTERVAL_S`."""
        self._step = step
        now = time.monotonic()
        if now >= self._next_refresh:
            if self._hook_before is None:
                if sys.gettrace() is not None:  # a debugger is stepping
                    return
                self._start_bar()
            self._next_refresh = now + (REFRESH_INTERVAL_S if self._bar or self._is_in_notebook else LINE_INTERVAL_S)
            self._show()

    def _show(self) -> None:
        text = _shown(self._metrics())
        if self._bar is not None:
            self._bar.update(self._task, completed=self._step, metrics=text)
            return
        self._printed_step = self._step
        elapsed_s = max(time.monotonic() - self._began, 1e-9)
        rate = (self._step - self._start) / elapsed_s
        total = f"/{self._total} ({min(100 * self._step / self._total, 100.0):.0f} %)" if self._total else ""
        line = f"{self._name}: step {self._step}{total}, {rate:.1f} steps/s, {text}".rstrip(", ")
        if self._is_in_notebook:
            print(f"\r{line:<{self._line_length}}", end="", flush=True)  # noqa: T201 - replaces the line below the cell
            self._line_length = len(line)
        else:
            say(line)


def _in_a_notebook() -> bool:
    # the module lacks the function while another thread imports it, as MLflow does
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return get_ipython is not None and hasattr(get_ipython(), "kernel")


def _through_the_bar() -> list[tuple["logging.StreamHandler[Any]", Any]]:
    """Redirect log handlers through the bar, so that they do not break it; return them with their streams."""
    current_streams = {sys.__stdout__: sys.stdout, sys.__stderr__: sys.stderr}
    loggers = [logging.getLogger(), *(logging.getLogger(name) for name in ("trieye", "trieye.stats_processor"))]
    handlers = {handler for logger in loggers for handler in logger.handlers if type(handler) is logging.StreamHandler}
    redirected_handlers = [(handler, handler.stream) for handler in handlers if handler.stream in current_streams]
    for handler, stream in redirected_handlers:
        handler.setStream(current_streams[stream])
    return redirected_handlers


def _shown(metrics: Mapping[str, float]) -> str:
    pairs = [f"{visible(name)}={value:.4g}" for name, value in metrics.items()]
    return "  ".join(pairs[:MAX_SHOWN_METRICS])


def _rich_bar(*, has_end: bool) -> "RichProgress":
    from rich import progress
    from rich.table import Column

    from trieye.process.terminal import Terminal, Text

    class Metrics(progress.TextColumn):
        """Column that is truncated, like the bar, on a narrow terminal."""

        def render(self, task: progress.Task) -> Text:
            text = super().render(task)
            text.no_wrap, text.overflow = True, "ellipsis"
            return text

    # rich first shrinks columns that may wrap, then all columns equally
    column = partial(Column, no_wrap=True)
    return progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(bar_width=30, table_column=Column()),
        progress.MofNCompleteColumn(table_column=column()),
        progress.TimeElapsedColumn(table_column=column()),
        progress.TextColumn("elapsed"),
        *((progress.TimeRemainingColumn(table_column=column()), progress.TextColumn("left")) if has_end else ()),
        Metrics("{task.fields[metrics]}", markup=False, table_column=Column()),
        console=Terminal(stderr=True, soft_wrap=False),
        refresh_per_second=1 / REFRESH_INTERVAL_S,
    )
