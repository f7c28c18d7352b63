"""Mirror: a thread that keeps a copy of a run in an object store, and never holds anybody up."""

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
"""Keeps many runs from coming back to a store all at once."""


class _StoppedError(Exception):
    """The run is being closed: a download ends at once, an upload when nobody waits any longer."""


@dataclass(frozen=True)
class MirrorHealth:
    """Whether a mirror works, and how much of the run it has.

    Attributes:
        url: Where it is.
        error: Why the last pass of the thread failed, or None.
        pending: Checkpoints and buffers that the mirror has not got.
        committed: Name of the newest checkpoint that is complete there, or None.
        mirrored_at: Unix time in seconds of the newest journal that is complete there, or None.
        sent_bytes: Bytes that this attempt uploaded.
    """

    url: str
    error: str | None = None
    pending: int = 0
    committed: str | None = None
    mirrored_at: float | None = None
    sent_bytes: int = 0


class Mirror:
    """Uploads checkpoints as they are finished, and the journal with the history every so often, on a daemon thread.

    Args:
        url: Where to; `check_mirror_url` allows it.
        paths: File names of the run, which this process alone writes.
        every_s: Seconds between two copies of the journal.
        fetches_rest: Bring here what a restore has left in the mirror; otherwise it stays there.
        first_delay_s: Seconds of the first pause after a failure.

    Raises:
        ConfigurationError: The package for the store is missing.
        SerializationError: What the run's directory knows of the mirror cannot be read.
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
        # guards `_is_woken` and `_closing`, and wakes the thread; taken with no other lock held; `_is_abandoned` goes
        # from False to True once, and needs no lock
        self._changed = threading.Condition()
        self._is_woken = True
        self._closing = self._is_abandoned = False
        self._health = MirrorHealth(url)  # the thread replaces it as a whole
        self._local.clean_up()
        self._say_what_was_restored()
        self._upload = MirrorUpload(self._store, self._local, self._check)
        self._thread = threading.Thread(target=self._main, name="trieye-mirror", daemon=True)
        self._thread.start()

    @classmethod
    def of(cls, config: "PersistenceConfig", paths: RunFiles) -> Self | None:
        """Return the mirror that a config asks for, None if it asks for none."""
        if config.mirror is None:
            return None
        # with all checkpoints kept there may be more of them than fit on this disk
        return cls(config.mirror, paths, every_s=config.mirror_every_s, fetches_rest=config.keep_last > 0)

    def _say_what_was_restored(self) -> None:
        record = self._local.record()
        if record.note is not None:
            logger.info("%s", record.note)
            record.note = None
            self._local.keep(record)

    # what others see and ask for

    def health(self) -> dict[str, Any]:
        """Return the fields of `MirrorHealth` as plain data."""
        return asdict(self._health)

    def wake(self) -> None:
        """Let the thread look for new checkpoints now; returns at once."""
        with self._changed:
            self._is_woken = True
            self._changed.notify_all()

    def close(self, timeout_s: float, *, patient: bool = False) -> bool:
        """Let the thread upload the rest within a time, and tell whether the mirror then has the whole run.

        After a failure the thread tries once more.

        Args:
            timeout_s: Seconds to wait at most.
            patient: Only count those seconds in which nothing goes on.
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if patient:
            wait_while_moving(self._has_ended, lambda: (self._upload.sent_bytes, moved_bytes()), timeout_s)
        has_ended = self._has_ended(0 if patient else timeout_s)
        self._is_abandoned = not has_ended  # the thread ends with the object that it puts now, or with the process
        health = self._health
        is_complete = has_ended and health.error is None and not health.pending
        if not is_complete:
            late = f"it did not go on for {timeout_s:g} s" if patient else f"{timeout_s:g} s were not enough"
            logger.warning(
                "the mirror %s did not get the end of run %r (%s): the newest complete checkpoint there is %s; what is "
                "left is uploaded when the run is started again",
                health.url,
                self._local.paths.run_base_dir.name,
                health.error or late,
                health.committed or "none",
            )
        return is_complete

    def _has_ended(self, timeout_s: float) -> bool:
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # the thread

    def _main(self) -> None:
        goes_on = True
        while goes_on:
            is_last = self._wait()
            goes_on = not self._is_abandoned and self._pass() and not is_last

    def _wait(self) -> bool:
        """Wait until there is something to upload, or the pause is over; tell whether the run is being closed."""
        failures = self._backoff.failures
        with self._changed:
            # a save does not end the pause after a failure, the end of the run does
            self._changed.wait_for(lambda: self._closing or (self._is_woken and not failures), self._pause_s)
            self._is_woken = False
            return self._closing

    def _pass(self) -> bool:
        """Upload what is new; tell whether the thread goes on."""
        try:
            self._bring()
        except _StoppedError:
            return not self._is_abandoned
        except (ConfigurationError, RunLockedError) as error:
            logger.error("%s", error)  # noqa: TRY400 - a sentence for the user
            self._note(error=str(error))
            return False
        except Exception as error:  # noqa: BLE001 - nobody waits here: reported, retried, visible in the health
            self._failed(error)
            return True
        if self._backoff.failures:
            logger.warning("the mirror %s works again", self._health.url)
        self._backoff.worked()
        self._pause_s = self._every_s
        return True

    def _bring(self) -> None:
        self._upload.connect()
        while pending := self._upload.pending():
            self._note(pending=len(pending))
            self._upload.bring(pending[0])
            self._upload.clean()
        self._upload.bring_state()
        self._upload.clean()
        self._note(error=None, pending=0)
        while self._fetches_rest and (elsewhere := self._upload.elsewhere):
            self._fetch(elsewhere[-1])

    def _failed(self, error: Exception) -> None:
        if not self._backoff.failures:
            logger.warning("%s; the run goes on, and it is tried again", error)
        self._pause_s = self._backoff.failed()
        pending = len(self._upload.pending())
        self._upload.disconnect()
        self._note(error=str(error), pending=pending)

    def _fetch(self, key: str) -> None:
        saved = SaveName.of(key)
        self._check_open()
        try:
            if not (self._local.folders[saved.folder] / saved.name).exists():
                fetch_save(self._store, key, self._local, check=self._check_open)
        except (SerializationError, FileNotFoundError) as error:
            logger.warning("%s of the mirror %s is left there: %s", saved.name, self._health.url, error)
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
