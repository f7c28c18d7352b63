"""Synchronizer: the board that says which weights are the newest; the weights themselves never pass through it."""

import asyncio
import threading
from dataclasses import dataclass, field
from typing import Any, Protocol

from trieye.exceptions import ConfigurationError


@dataclass(frozen=True, slots=True)
class Published:
    """Weights that explorers can fetch.

    Attributes:
        version: Counts what was published, from 0 on, without a gap.
        step: Steps of the learner behind them.
        handle: What the transport needs to fetch them.
        session: The attempt of the run that published them.
    """

    version: int
    step: int = 0
    handle: Any = field(default=None, repr=False)
    session: str = ""


@dataclass(frozen=True, slots=True)
class Handle:
    """Names weights that are broadcast.

    Attributes:
        serial: A number that a version which was published again does not share.
        version: As in `Published`.
    """

    serial: int
    version: int


class Board(Protocol):
    """Where versions are announced; one in this process, or the way to that of another one."""

    def publish(self, published: Published) -> None:
        """Announce weights; their version, handle and step become visible at once."""

    def latest(self) -> Published | None:
        """Return the newest ones."""

    def wait_newer(self, version: int, timeout_s: float) -> Published | None:
        """Return the newest ones once they are newer than a version; None if the time is over before."""

    def close(self) -> None:
        """End what is behind it."""


class Synchronizer:
    """A board in one process; any thread may call any method at any time."""

    def __init__(self) -> None:
        self._published: Published | None = None
        self._changed = threading.Condition()
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    def publish(self, published: Published) -> None:
        """Announce weights.

        Raises:
            ConfigurationError: Their version is not above that of the newest ones.
        """
        with self._changed:
            newest = self._published
            if newest is not None and published.session == newest.session and published.version <= newest.version:
                raise ConfigurationError(
                    f"version {published.version} was to be published after version {newest.version}; versions grow"
                )
            self._published = published
            self._changed.notify_all()
            for loop, event in self._waiting:
                loop.call_soon_threadsafe(event.set)

    def latest(self) -> Published | None:
        """Return the newest ones; None before the first."""
        return self._published

    def wait_newer(self, version: int, timeout_s: float) -> Published | None:
        """Return the newest ones once they are newer than a version; None if the time is over before."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_newer(version), timeout_s)
            return self._published if self._is_newer(version) else None

    async def await_newer(self, version: int, timeout_s: float) -> Published | None:
        """Do what `wait_newer` does, without holding up the event loop."""
        event = asyncio.Event()
        entry = (asyncio.get_running_loop(), event)
        with self._changed:
            self._waiting.add(entry)
        try:
            if not self._is_newer(version):
                async with asyncio.timeout(timeout_s):
                    await event.wait()
        except TimeoutError:
            return None
        finally:
            with self._changed:
                self._waiting.discard(entry)
        return self._published if self._is_newer(version) else None

    def close(self) -> None:
        """Do nothing."""

    def _is_newer(self, version: int) -> bool:
        return self._published is not None and self._published.version > version
