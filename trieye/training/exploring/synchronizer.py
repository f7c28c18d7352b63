"""Synchronizer: announces the newest version of the weights; a transport delivers the weights themselves."""

import threading
from dataclasses import dataclass, field
from typing import Any, Protocol

from trieye.exceptions import ConfigurationError


@dataclass(frozen=True, slots=True)
class Published:
    """Announcement of weights that explorers can fetch.

    Attributes:
        version: Sequence number, from 0 without gaps.
        step: Learner step after which they were published.
        handle: Argument of the transport's `fetch`.
        session: The attempt of the run that published them.
    """

    version: int
    step: int = 0
    handle: Any = field(default=None, repr=False)
    session: str = ""


@dataclass(frozen=True, slots=True)
class Handle:
    """Identifies broadcast weights.

    Attributes:
        serial: Unique number; distinguishes repeated publications of the same version.
        version: As in `Published`.
    """

    serial: int
    version: int


class VersionRegistry(Protocol):
    """Announces versions of the weights, within a process or to other processes."""

    def publish(self, published: Published) -> None:
        """Announce weights; version, handle and step become visible atomically."""

    def wait_newer(self, version: int, timeout_s: float) -> Published | None:
        """Wait until the newest announcement is newer than `version`, and return it; None after `timeout_s`."""

    def close(self) -> None:
        """Release the resources of the registry."""


class Synchronizer:
    """A version registry within one process; thread-safe."""

    def __init__(self) -> None:
        self._published: Published | None = None
        self._changed = threading.Condition()

    def publish(self, published: Published) -> None:
        """Announce weights.

        Raises:
            ConfigurationError: Their version is not above the newest one.
        """
        with self._changed:
            newest = self._published
            if newest is not None and published.session == newest.session and published.version <= newest.version:
                raise ConfigurationError(
                    f"version {published.version} is not above version {newest.version}, which is already published"
                )
            self._published = published
            self._changed.notify_all()

    def wait_newer(self, version: int, timeout_s: float) -> Published | None:
        """Wait until the newest announcement is newer than `version`, and return it; None after `timeout_s`."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_newer(version), timeout_s)
            return self._published if self._is_newer(version) else None

    def close(self) -> None:
        """Do nothing: there are no resources."""

    def _is_newer(self, version: int) -> bool:
        return self._published is not None and self._published.version > version
