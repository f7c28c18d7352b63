"""Snapshots: what a server holds as a directory, written now and then by a thread."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trieye.checkpoints.directory import has_parts, load_parts, save_parts
from trieye.exceptions import ConfigurationError, TrieyeError
from trieye.process.progress import say
from trieye.snapshot.parts import Growing


class Snapshots:
    """Writes and reads the snapshots of one server.

    Args:
        name: Of the server, for messages.
        directory: Where they are; without one there are only those that are asked for by path.
        every_s: How often they are written, seconds; only when asked for if None.

    Attributes:
        num_written: Snapshots written.
        num_failed: Snapshots that the timer could not write.

    Raises:
        ConfigurationError: There is an interval and no directory.
    """

    def __init__(self, name: str, directory: Path | None, every_s: float | None) -> None:
        if every_s is not None and directory is None:
            raise ConfigurationError(f"replay {name!r}: snapshot_every_s needs a directory for the snapshots")
        self.num_written = self.num_failed = 0
        self._name, self._directory, self._every_s = name, directory, every_s
        self._lock = threading.Lock()
        self._is_closing = threading.Event()
        self._timer: threading.Thread | None = None

    @property
    def has_directory(self) -> bool:
        """Whether there is one from which the server would go on."""
        return self._directory is not None

    def begin(self, load: Callable[[Any], None], write: Callable[[], None]) -> None:
        """Load what is in the directory, if anything is, and start the timer.

        Args:
            load: Takes over the `SavedParts`.
            write: Writes a snapshot.

        Raises:
            CheckpointError: What is there is damaged.
        """
        directory = self._directory
        if directory is not None and has_parts(directory):
            load(load_parts(directory))
        if self._every_s is not None:
            arguments = (self._every_s, write)
            self._timer = threading.Thread(
                target=self._write_for_ever, args=arguments, name="trieye-replay-snapshots", daemon=True
            )
            self._timer.start()

    def write(self, growing: Growing, directory: Path | None) -> bool:
        """Write a snapshot; of what the directory holds already only the new is written.

        Args:
            growing: What to save.
            directory: Where to; the server's own if None.

        Returns:
            Whether it is the one from which the server would go on.

        Raises:
            ConfigurationError: There is no directory.
            SerializationError: It could not be written; the one that was there is untouched.
        """
        target = directory or self._directory
        if target is None:
            raise ConfigurationError(f"replay {self._name!r} has no directory for snapshots; name one")
        with self._lock:
            save_parts(target, growing)
            self.num_written += 1
        return target == self._directory

    def close(self) -> None:
        """End the timer."""
        self._is_closing.set()
        if self._timer is not None:
            self._timer.join()

    def _write_for_ever(self, every_s: float, write: Callable[[], None]) -> None:
        while not self._is_closing.wait(every_s):
            try:
                write()
            except TrieyeError as error:
                self.num_failed += 1
                say(f"replay {self._name!r}: no snapshot was written: {error}")
