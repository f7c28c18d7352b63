"""ConsoleSink: prints points to the terminal, in Ray workers too."""

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

    A handler of the application prints the records, if it has one for them. Without configured logging, as in a Ray
    worker, they go to the current `sys.stderr`, which Ray forwards and a rich progress bar intercepts.
    """

    name = "console"
    live_only = True

    def open(self, run: RunInfo) -> None:  # noqa: ARG002 - the protocol
        """Set the level to INFO, unless the application has set a level for these loggers."""
        LastResort.add_to(LOGGER)
        if LOGGER.level == logging.NOTSET and logging.getLogger("trieye").level == logging.NOTSET:
            LOGGER.setLevel(logging.INFO)

    def write(self, points: Sequence[Point]) -> None:
        """Log a line for each point."""
        for point in points:
            LOGGER.info("STATS [%d]: %s = %.4f", point.step, point.metric, point.value)

    def close(self, status: RunStatus) -> None:
        """Do nothing: the logger may serve other runs of this process."""


class LastResort(logging.Handler):
    """Prints records that no handler of the application shows.

    `logging.lastResort` of Python does so only until a logger has any handler, such as a file handler.

    Args:
        owner: The logger that gets the handler.
    """

    def __init__(self, owner: logging.Logger) -> None:
        super().__init__()
        self._owner = owner

    @classmethod
    def add_to(cls, owner: logging.Logger, level: int = logging.NOTSET, form: str = "%(message)s") -> None:
        """Add a handler to a logger that has none; it is never removed, as other runs of this process may need it.

        Args:
            owner: The logger.
            level: Lowest level that is printed.
            form: Format string for `logging.Formatter`.
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
        # look up sys.stderr now, and write once: rich and pytest replace it while they are active
        stream = sys.stderr
        if stream is None:
            return
        # a closed stream or an unencodable character: it cannot be reported, and a line is not worth a retry
        with contextlib.suppress(OSError, ValueError):
            stream.write(self.format(record) + "\n")
            stream.flush()


def _handlers_above(logger: logging.Logger) -> Iterator[logging.Handler]:
    ancestor: logging.Logger | None = logger
    while ancestor is not None:
        yield from ancestor.handlers
        ancestor = ancestor.parent if ancestor.propagate else None


def _shows(handler: logging.Handler, level: int) -> bool:
    # a file handler does not print to the terminal: the run's log file is attached to this logger too
    is_silent = isinstance(handler, LastResort | logging.FileHandler | logging.NullHandler)
    return not is_silent and handler.level <= level
