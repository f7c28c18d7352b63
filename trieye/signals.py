"""What Ctrl-C and SIGTERM do: stop a loop after the present step, or leave the program by the way it came."""

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

from trieye.progress import say

EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
"""128 + the number of the signal, as shells have it."""


class StopSignals:
    """Turn the first signal into a request and the second into what it usually does.

    Python delivers signals to the main thread only; elsewhere this does nothing.

    Args:
        on_request: Called at the first signal.
        message: What the user is told then.

    Attributes:
        exit_code: What the process should exit with.
    """

    def __init__(self, on_request: Callable[[], None], message: str) -> None:
        self.exit_code = EXIT_CODES[signal.SIGINT]
        self._on_request = on_request
        self._message = message
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._request) for number in EXIT_CODES}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._give_back()

    def _request(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.exit_code = EXIT_CODES[signal.Signals(number)]
        self._give_back()
        say(self._message)
        self._on_request()

    def _give_back(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}


class ExitOnTerm:
    """Make SIGTERM raise `SystemExit(143)`, so that a program leaves its `with` blocks; to be entered once.

    A handler that was there before is left alone, and so is one that came later. Python runs handlers in the main
    thread only; elsewhere this does nothing.
    """

    def __init__(self) -> None:
        self._before: Any = None
        self._is_free = False

    def __enter__(self) -> Self:
        self._is_free = (
            threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Install the handler, if the signal had none when the block began; the block may have started Ray."""
        if self._is_free and error is None:
            self._before = signal.signal(signal.SIGTERM, self._exit)

    def give_back(self) -> None:
        """Restore what there was at the end of the block."""
        before, self._before = self._before, None
        if before is not None and signal.getsignal(signal.SIGTERM) == self._exit:
            signal.signal(signal.SIGTERM, before)

    def _exit(self, number: int, frame: FrameType | None) -> None:
        del frame
        raise SystemExit(EXIT_CODES[signal.Signals(number)])
