"""ConsoleSink: points as lines that one can see on the terminal, in a Ray worker too."""

import contextlib
import logging
import sys
from collections.abc import Iterator, Sequence

from trieye.sinks.base import RunInfo, RunStatus
from trieye.stats.point import Point

LOGGER = logging.getLogger("trieye.stats_processor")
"""The logger of trieye 0.1.5, whose users configure it by this name."""


class ConsoleSink:
    """Logs `STATS [<step>]: <name> = <value>` at INFO.

    Where the application has a handler for such records, that one prints them. Where nobody configured logging, as in a
    Ray worker, they go to the standard error of the moment, which Ray forwards and a progress bar of rich takes over.
    """

    name = "console"
    live_only = True

    def open(self, run: RunInfo) -> None:  # noqa: ARG002 - the protocol
        """Let INFO pass, unless the application chose a level for these loggers."""
        LastResort.add_to(LOGGER)
        if LOGGER.level == logging.NOTSET and logging.getLogger("trieye").level == logging.NOTSET:
            LOGGER.setLevel(logging.INFO)

    def write(self, points: Sequence[Point]) -> None:
        """Log a line for each point."""
        for point in points:
            LOGGER.info("STATS [%d]: %s = %.4f", point.step, point.metric, point.value)

    def close(self, status: RunStatus) -> None:
        """Do nothing: other runs of this process may go on."""


class LastResort(logging.Handler):
    """Prints records that no handler of the application shows.

    Python does so itself until a logger has a handler, such as one that writes to a file.

    Args:
        owner: The logger to which it is added.
    """

    def __init__(self, owner: logging.Logger) -> None:
        super().__init__()
        self._owner = owner

    @classmethod
    def add_to(cls, owner: logging.Logger, level: int = logging.NOTSET, form: str = "%(message)s") -> None:
        """Give one to a logger that has none; it stays, as other runs of this process may go on.

        Args:
            owner: The logger.
            level: What is printed at least.
            form: How, as for `logging.Formatter`.
        """
        if not any(isinstance(handler, cls) for handler in owner.handlers):
            handler = cls(owner)
            handler.setLevel(level)
            handler.setFormatter(logging.Formatter(form))
            owner.addHandler(handler)

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record."""
        if any(_shows(handler, record.levelno) for handler in _handlers_above(self._owner)):
            return
        # the stream of this moment, in one write: rich and pytest replace sys.stderr while they are active
        stream = sys.stderr
        if stream is None:
            return
        # closed, or its encoding lacks a character: there is nobody to tell, and a line is not worth a retry
        with contextlib.suppress(OSError, ValueError):
            stream.write(self.format(record) + "\n")
            stream.flush()


def _handlers_above(logger: logging.Logger) -> Iterator[logging.Handler]:
    current: logging.Logger | None = logger
    while current is not None:
        yield from current.handlers
        current = current.parent if current.propagate else None


def _shows(handler: logging.Handler, level: int) -> bool:
    # a log file is no terminal: the run's own one is below this logger too
    hidden = isinstance(handler, LastResort | logging.FileHandler | logging.NullHandler)
    return not hidden and handler.level <= level
