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
├── RunLockedError                             another process is writing to this run
└── RunClosedError                             the run was closed and takes nothing more

KeyboardInterrupt
└── RunInterrupted                             a signal asked the run to stop; its state is saved
"""


class TrieyeError(Exception):
    """Base of all errors of trieye."""


class ConfigurationError(TrieyeError, ValueError):
    """Raised when a key, value, name or path given by the user is not usable."""


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


class RunLockedError(TrieyeError):
    """Raised when another process is writing to the run; the message names it."""


class RunClosedError(TrieyeError):
    """Raised when something is logged to or saved in a run that was closed."""


class RunInterrupted(KeyboardInterrupt):
    """Raised at the end of `Run.steps` when a signal asked the run to stop.

    Attributes:
        exit_code: What the process should exit with (130 for Ctrl-C, 143 for SIGTERM).
    """

    def __init__(self, message: str, exit_code: int = 130) -> None:
        super().__init__(message)
        self.exit_code = exit_code
