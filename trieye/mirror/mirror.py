"""Mirror: a thread that uploads a run to an object store without blocking the run."""

import logging
import threading
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from trieye.exceptions import ConfigurationError, RunLockedError, SerializationError
from trieye.files.run_files import RunFiles
from trieye.mirror.layout import SaveName
from trieye.mirror.local import LocalRun
from trieye.mirror.restore import fetch_save
from trieye.mirror.store import MirrorStore
from trieye.mirror.upload import MirrorUpload
from trieye.process.waiting import Backoff, moved_bytes, wait_while_moving

if TYPE_CHECKING:
    from trieye.config import PersistenceConfig

logger = logging.getLogger(__name__)

FIRST_DELAY_S = 1.0
LONGEST_DELAY_S = 60.0
SPREAD = 0.25
"""Jitter: many runs must not retry a recovered store simultaneously."""


class _StoppedError(Exception):
    """The run is closing: a download stops immediately, an upload when `close` has timed out."""


@dataclass(frozen=True)
class MirrorHealth:
    """Health and progress of a mirror.

    Attributes:
        url: URL of the mirror.
        error: Error of the latest upload, or None.
        pending: Number of checkpoints and buffers that are not yet uploaded.
        committed: Name of the newest complete checkpoint in the mirror, or None.
        mirrored_at: Unix time in seconds of the newest complete journal in the mirror, or None.
        sent_bytes: Bytes that this attempt uploaded.
    """

    url: str
    error: str | None = None
    pending: int = 0
    committed: str | None = None
    mirrored_at: float | None = None
    sent_bytes: int = 0


class Mirror:
    """Uploads completed checkpoints, and periodically the journal and the history, on a daemon thread.

    Args:
        url: URL of the mirror, accepted by `check_mirror_url`.
        paths: File names of the run, which only this process writes.
        every_s: Seconds between two uploads of the journal.
        fetches_rest: Download older checkpoints that a restore has left in the mirror.
        first_delay_s: Seconds between the first failure and the first retry.

    Raises:
        ConfigurationError: The package for the store is missing.
        SerializationError: The run's record of the mirror cannot be read.
    """

    def __init__(
        self,
        url: str,
        paths: RunFiles,
        *,
        every_s: float,
        fetches_rest: bool = False,
        first_delay_s: float = FIRST_DELAY_S,
    ) -> None:
        self._store = MirrorStore(url, paths.app_root_dir.name, paths.run_base_dir.name)
        self._local = LocalRun(paths)
        self._every_s = self._pause_s = every_s
        self._fetches_rest = fetches_rest
        self._backoff = Backoff(first_delay_s, LONGEST_DELAY_S, spread=SPREAD)
        # guards `_is_woken` and `_closing`, and wakes the thread; acquired without other locks; `_is_abandoned` changes
        # once from False to True, and needs no lock
        self._condition = threading.Condition()
        self._is_woken = True
        self._closing = self._is_abandoned = False
        self._health = MirrorHealth(url)  # the thread replaces it atomically
        self._local.clean_up()
        self._report_restore()
        self._upload = MirrorUpload(self._store, self._local, self._check)
        self._thread = threading.Thread(target=self._main, name="trieye-mirror", daemon=True)
        self._thread.start()

    @classmethod
    def of(cls, config: "PersistenceConfig", paths: RunFiles) -> Self | None:
        """Create the configured mirror; None without one."""
        if config.mirror is None:
            return None
        # if all checkpoints are retained, there may be more of them than fit on this disk
        return cls(config.mirror, paths, every_s=config.mirror_interval_s, fetches_rest=config.keep_last > 0)

    def _report_restore(self) -> None:
        record = self._local.record()
        if record.note is not None:
            logger.info("%s", record.note)
            record.note = None
            self._local.store_record(record)

    # called by other threads

    def health(self) -> dict[str, Any]:
        """Return the fields of `MirrorHealth` as plain data."""
        return asdict(self._health)

    def wake(self) -> None:
        """Make the thread check for new checkpoints; returns immediately."""
        with self._condition:
            self._is_woken = True
            self._condition.notify_all()

    def close(self, timeout_s: float, *, patient: bool = False) -> bool:
        """Upload the remaining files, and return whether the mirror has the whole run.

        After a failure the thread retries once.

        Args:
            timeout_s: Maximum seconds to wait.
            patient: Apply the timeout to time without any activity instead of total time.
        """
        with self._condition:
            self._closing = True
            self._condition.notify_all()
        if patient:
            wait_while_moving(self._has_ended, lambda: (self._upload.sent_bytes, moved_bytes()), timeout_s)
        has_ended = self._has_ended(0 if patient else timeout_s)
        self._is_abandoned = not has_ended  # the thread ends after its current object, or with the process
        health = self._health
        is_complete = has_ended and health.error is None and not health.pending
        if not is_complete:
            timeout = f"no progress for {timeout_s:g} s" if patient else f"timeout of {timeout_s:g} s"
            logger.warning(
                "the mirror %s did not receive the end of run %r (%s): its newest complete checkpoint is %s; the rest "
                "is uploaded when the run is restarted",
                health.url,
                self._local.paths.run_base_dir.name,
                health.error or timeout,
                health.committed or "none",
            )
        return is_complete

    def _has_ended(self, timeout_s: float) -> bool:
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # the thread

    def _main(self) -> None:
        is_running = True
        while is_running:
            is_last = self._wait()
            is_running = not self._is_abandoned and self._synchronize() and not is_last

    def _wait(self) -> bool:
        """Wait for new files or the end of the delay; return whether the run is closing."""
        failures = self._backoff.failures
        with self._condition:
            # after a failure, the end of the run interrupts the delay, but a save does not
            self._condition.wait_for(lambda: self._closing or (self._is_woken and not failures), self._pause_s)
            self._is_woken = False
            return self._closing

    def _synchronize(self) -> bool:
        """Upload new files; return whether the thread continues."""
        try:
            self._transfer()
        except _StoppedError:
            return not self._is_abandoned
        except (ConfigurationError, RunLockedError) as error:
            logger.error("%s", error)  # noqa: TRY400 - a sentence for the user
            self._note(error=str(error))
            return False
        except Exception as error:  # noqa: BLE001 - a border to object stores: reported, retried, visible in the health
            self._fail(error)
            return True
        if self._backoff.failures:
            logger.warning("the mirror %s works again", self._health.url)
        self._backoff.worked()
        self._pause_s = self._every_s
        return True

    def _transfer(self) -> None:
        self._upload.connect()
        while pending := self._upload.pending():
            self._note(pending=len(pending))
            self._upload.upload_save(pending[0])
            self._upload.clean()
        self._upload.upload_state()
        self._upload.clean()
        self._note(error=None, pending=0)
        while self._fetches_rest and (elsewhere := self._upload.elsewhere):
            self._fetch(elsewhere[-1])

    def _fail(self, error: Exception) -> None:
        if not self._backoff.failures:
            logger.warning("%s; the run continues, and the upload is retried", error)
        self._pause_s = self._backoff.failed()
        pending = len(self._upload.pending())
        self._upload.disconnect()
        self._note(error=str(error), pending=pending)

    def _fetch(self, key: str) -> None:
        save_name = SaveName.of(key)
        self._check_open()
        try:
            if not (self._local.folders[save_name.folder] / save_name.name).exists():
                fetch_save(self._store, key, self._local, check=self._check_open)
        except (SerializationError, FileNotFoundError) as error:
            logger.warning("%s cannot be downloaded from the mirror %s: %s", save_name.name, self._health.url, error)
            self._fetches_rest = False
        else:
            self._upload.note_fetched(key)

    def _note(self, **changes: Any) -> None:
        upload = self._upload
        done = {"committed": upload.committed, "mirrored_at": upload.mirrored_at, "sent_bytes": upload.sent_bytes}
        self._health = replace(self._health, **{**done, **changes})

    def _check_open(self) -> None:
        if self._closing:
            raise _StoppedError

    def _check(self) -> None:
        if self._is_abandoned:
            raise _StoppedError
