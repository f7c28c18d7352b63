"""The exception hierarchy of trieye.

TrieyeError
├── ConfigurationError (ValueError)            invalid key, value, name or path from the user
│   └── MissingPackageError (ModuleNotFoundError)  a package is not installed; the message has the pip command
├── SerializationError                         bytes on disk are unreadable, or an object cannot be written
│   ├── CheckpointError                        saving a checkpoint failed, or no existing checkpoint is intact
│   └── UntrustedPickleError                   a pickled part is not signed with the user's key
├── ProcessingError                            metrics cannot be processed
├── JournalError                               the journal of a run cannot be opened, read or written
│   ├── JournalFullError (OSError)             the journal cannot grow: disk full or limit reached; retry later
│   └── SequenceGapError                       a batch arrived before its predecessor; send the predecessor first
├── SinkBusyError                              another process locks the store of a sink; the sink retries
├── SinkGoneError                              the target of a sink was deleted; retrying does not help
├── RunLockedError                             another process is writing to this run
├── RunClosedError                             the run is closed and accepts nothing
├── ReplayClosedError                          a replay buffer, its writer or its reader is closed
├── EnvironmentLostError (ConnectionError)     the process of an environment died
├── ReplayTimeoutError (TimeoutError)          a replay buffer had no room or no rows before the timeout
├── LeaseExpiredError (LookupError)            the lease of fetched chunks was released or has expired
└── NonFiniteError (FloatingPointError)        NaN or infinity in training while `loop.on_nonfinite` is `stop`

KeyboardInterrupt, SystemExit
└── RunInterrupted                             a signal stopped the run; the next start resumes it
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar


class TrieyeError(Exception):
    """Base class of all trieye errors.

    Attributes:
        exit_code: Exit code of a command that fails with this error.
    """

    exit_code: ClassVar[int] = 1


class ConfigurationError(TrieyeError, ValueError):
    """Raised when a key, value, name or path from the user is invalid."""

    exit_code = 2  # as argparse


class MissingPackageError(ConfigurationError, ModuleNotFoundError):
    """Raised when a package is needed that is not installed; the message has the pip command."""


class SerializationError(TrieyeError):
    """Raised when bytes on disk are unreadable, or an object cannot be written."""


class CheckpointError(SerializationError):
    """Raised when saving a checkpoint failed, or when checkpoints exist and none is intact."""


class UntrustedPickleError(SerializationError):
    """Raised when a pickled part is not signed with the user's key and pickles are not allowed."""


class ProcessingError(TrieyeError):
    """Raised when metrics cannot be processed."""


class JournalError(TrieyeError):
    """Raised when the journal of a run cannot be opened, read or written."""


class JournalFullError(JournalError, OSError):
    """Raised when the journal cannot grow; the events were not accepted, and the same call may succeed later."""


class SequenceGapError(JournalError):
    """Raised when a batch arrived before its predecessor.

    Attributes:
        expected: Sequence number of the batch to send next.
    """

    def __init__(self, message: str, expected: int) -> None:
        super().__init__(message, expected)
        self.expected = expected

    def __str__(self) -> str:
        return str(self.args[0])


class SinkBusyError(TrieyeError):
    """Raised by a sink while another process locks its store; the call is repeated soon, without a retry limit."""


class SinkGoneError(TrieyeError):
    """Raised by a sink when its target was deleted; the message describes the remedy."""


class RunLockedError(TrieyeError):
    """Raised when another process is writing to the run; the message names the process."""

    exit_code = 3


class RunClosedError(TrieyeError):
    """Raised by logging to a closed run or saving in it."""


class ReplayClosedError(TrieyeError):
    """Raised by a call to a closed replay buffer, writer or reader."""


class EnvironmentLostError(TrieyeError, ConnectionError):
    """Raised when the process of an environment died; the message names the environment and the cause."""


class ReplayTimeoutError(TrieyeError, TimeoutError):
    """Raised when a replay buffer had no room for new rows, or no rows to sample, before the caller's timeout."""


class LeaseExpiredError(TrieyeError, LookupError):
    """Raised by reading chunks of a fragment buffer after their lease was released or has expired."""


class NonFiniteError(TrieyeError, FloatingPointError):
    """Raised when an observation, reward, loss, gradient or weight is NaN or infinite; the message names the value."""


class RunInterrupted(KeyboardInterrupt, SystemExit):
    """Raised after a signal asked a run to stop; inside a `Run.steps` loop, once the loop has ended.

    A program that does not catch it exits with `exit_code` and without a traceback.

    Attributes:
        exit_code: Exit code for the process: 130 after Ctrl-C; after another signal `runtime.requeue_exit_code` if set,
            otherwise 128 plus the signal number.
        is_told: Whether the message was shown to the user.
    """

    def __init__(self, message: str, exit_code: int = 130) -> None:
        super().__init__(message)
        self.exit_code = self.code = exit_code
        self.is_told = False

    def tell(self, say: Callable[[str], None]) -> None:
        """Show the message and its notes to the user once, by calling `say` with the text."""
        if not self.is_told:
            self.is_told = True
            say("; ".join([str(self), *getattr(self, "__notes__", ())]))


@contextmanager
def noted(error: BaseException | None, doing: str) -> Iterator[None]:
    """Run a cleanup step; if it fails, add its error as a note to the error that caused the cleanup.

    Args:
        error: The propagating error; with None, an error of the step is raised.
        doing: Name of the step, for the note.
    """
    try:
        yield
    except Exception as second:
        if error is None:
            raise
        error.add_note(f"{doing} also failed: {second}")
