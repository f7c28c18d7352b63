"""Every error that trieye raises.

TrieyeError
├── ConfigurationError (ValueError)            a key, value, name or path given by the user is not usable
├── SerializationError                         bytes on disk cannot be read, or an object cannot be written
│   ├── CheckpointError                        a checkpoint could not be saved or none of the existing ones is whole
│   └── UntrustedPickleError                   a pickled part is not signed with the user's own key
├── ProcessingError                            metrics cannot be processed
├── JournalError                               the journal of a run cannot be used
│   ├── JournalFullError (OSError)             it cannot grow now: the disk is full, or a limit is reached; try again
│   └── SequenceGapError                       a batch came before the one that it follows; send that one first
├── SinkBusyError                              others hold what a sink needs; waiting for them is no failure
├── SinkGoneError                              what a sink wrote to was deleted; waiting does not bring it back
├── RunLockedError                             another process is writing to this run
├── RunClosedError                             the run was closed and takes nothing more
├── ReplayClosedError                          a replay buffer, or its writer or reader, was closed
├── EnvironmentLostError (ConnectionError)     the process of an environment is gone
├── ReplayTimeoutError (TimeoutError)          a replay buffer had no room, or no rows, for as long as one would wait
├── LeaseExpiredError (LookupError)            the chunks of a fetch were given back, or kept longer than allowed
└── NonFiniteError (FloatingPointError)        a training met NaN or infinity, and `loop.on_nonfinite` is `stop`

KeyboardInterrupt, SystemExit
└── RunInterrupted                             a signal asked the run to stop; the next start goes on
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar


class TrieyeError(Exception):
    """Base of all errors of trieye.

    Attributes:
        exit_code: What a command that ends with this error exits with.
    """

    exit_code: ClassVar[int] = 1


class ConfigurationError(TrieyeError, ValueError):
    """Raised when a key, value, name or path given by the user is not usable."""

    exit_code = 2  # that of argparse


class SerializationError(TrieyeError):
    """Raised when bytes on disk cannot be read back, or an object cannot be written."""


class CheckpointError(SerializationError):
    """Raised when a checkpoint could not be saved, or when some exist and none of them is whole."""


class UntrustedPickleError(SerializationError):
    """Raised when a pickled part carries no signature of the user's own key and pickles were not allowed."""


class ProcessingError(TrieyeError):
    """Raised when metrics cannot be processed."""


class JournalError(TrieyeError):
    """Raised when the journal of a run cannot be opened, read or written."""


class JournalFullError(JournalError, OSError):
    """Raised when the journal cannot grow now; nothing was accepted, and the same call may succeed later."""


class SequenceGapError(JournalError):
    """Raised when a batch came before the one that it follows.

    Attributes:
        expected: Number of the batch that has to come next.
    """

    def __init__(self, message: str, expected: int) -> None:
        super().__init__(message, expected)
        self.expected = expected

    def __str__(self) -> str:
        return str(self.args[0])


class SinkBusyError(TrieyeError):
    """Raised by a sink that others keep from its store for now; the same call comes again soon, however often."""


class SinkGoneError(TrieyeError):
    """Raised by a sink when what it wrote to was deleted; the message says what brings it back."""


class RunLockedError(TrieyeError):
    """Raised when another process is writing to the run; the message names it."""

    exit_code = 3


class RunClosedError(TrieyeError):
    """Raised when something is logged to or saved in a run that was closed."""


class ReplayClosedError(TrieyeError):
    """Raised when something is asked of a replay buffer, or of its writer or reader, that was closed."""


class EnvironmentLostError(TrieyeError, ConnectionError):
    """Raised when the process of an environment is gone; the message names the environment and how it ended."""


class ReplayTimeoutError(TrieyeError, TimeoutError):
    """Raised when a replay buffer had no room for rows, or none to draw, for as long as the caller would wait."""


class LeaseExpiredError(TrieyeError, LookupError):
    """Raised when chunks of a fragment buffer are read whose lease was released or ran out."""


class NonFiniteError(TrieyeError, FloatingPointError):
    """Raised when an observation, a reward, a loss, a gradient or a weight is NaN or infinite; the message names it."""


class RunInterrupted(KeyboardInterrupt, SystemExit):
    """Raised where a signal asked a run to stop, at the end of `Run.steps` if it is under way.

    A program that does not catch it ends without a traceback, with the exit code.

    Attributes:
        exit_code: What the process should exit with: 130 for Ctrl-C; for other signals `runtime.requeue_exit_code`, or
            else 128 + their number.
        is_told: Whether the user has read the message.
    """

    def __init__(self, message: str, exit_code: int = 130) -> None:
        super().__init__(message)
        self.exit_code = self.code = exit_code
        self.is_told = False

    def tell(self, say: Callable[[str], None]) -> None:
        """Show the message and the notes to the user, unless that was done; `say` shows a text."""
        if not self.is_told:
            self.is_told = True
            say("; ".join([str(self), *getattr(self, "__notes__", ())]))


@contextmanager
def noted(error: BaseException | None, doing: str) -> Iterator[None]:
    """Take a step that belongs to a way out: where it fails, too, the error that is on its way stays, with a note.

    Args:
        error: That error; None: there is none, and what the step raises comes out.
        doing: What the step is, for the note.
    """
    try:
        yield
    except Exception as second:
        if error is None:
            raise
        error.add_note(f"{doing} failed, too: {second}")
