"""Signal handlers: stop a loop after the current step, or unwind the program through its `with` blocks."""

import _thread
import contextlib
import functools
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from traceback import walk_tb
from types import FrameType
from typing import Any, Self

from trieye.exceptions import RunInterrupted
from trieye.process.output import discard_dead_output
from trieye.process.progress import say

FROM_OUTSIDE = (signal.SIGTERM, signal.SIGUSR1, signal.SIGXCPU, signal.SIGHUP)
"""Signals of schedulers, resource limits and closed terminals: they may be repeated for one request, unlike Ctrl-C."""

STOP_SIGNALS = (signal.SIGINT, *FROM_OUTSIDE)

SAME_WITHIN_S = 3.0
"""`timeout`, Slurm and systemd signal a process and its group: equal signals within this time are one request."""

_ALWAYS = frozenset({signal.SIGINT, signal.SIGTERM})
_OF_A_GROUP = frozenset({signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP})
_AT_MOST_ONCE = frozenset({signal.SIGXCPU, signal.SIGHUP})
"""Repeated without a second request: by the kernel every second, and when the shell of a closed terminal exits."""


def exit_code_of(number: int, requeue_exit_code: int | None = None) -> int:
    """Return the exit code of a process that a signal stops.

    Args:
        number: The signal.
        requeue_exit_code: Replaces 128 + number, the convention of shells, except for Ctrl-C.
    """
    return 128 + number if number == signal.SIGINT or requeue_exit_code is None else requeue_exit_code


def is_by_signal(error: BaseException) -> bool:
    """Return whether a handler of a stop signal raised an error, or the error has the exit code of such a signal."""
    handlers = [signal.getsignal(number) for number in STOP_SIGNALS]
    codes = {getattr(getattr(handler, "__func__", handler), "__code__", None) for handler in handlers}
    has_exit_code = getattr(error, "code", None) in [exit_code_of(number) for number in STOP_SIGNALS]
    return has_exit_code or any(frame.f_code in codes for frame, _ in walk_tb(error.__traceback__))


_reason_file: Path | None = None


@contextlib.contextmanager
def stop_reason_in(path: Path) -> Iterator[None]:
    """Let another process explain, in a file, why it interrupts this one; the file is deleted before and after."""
    global _reason_file
    before, _reason_file = _reason_file, path
    path.unlink(missing_ok=True)
    try:
        yield
    finally:
        _reason_file = before
        path.unlink(missing_ok=True)


def stop_reason() -> str | None:
    """Return why another process interrupts this one; None after Ctrl-C and other signals."""
    with contextlib.suppress(OSError):
        return None if _reason_file is None else _reason_file.read_text("utf-8")
    return None


class StopSignals:
    """Turn the first signal into a stop request, and pass a repeated one to the previous handler.

    Ctrl-C after any other signal counts as a repetition. A scheduler's signal after Ctrl-C, or after another signal of
    the scheduler, does not: saving continues, and after Ctrl-C the request is repeated with the signal's exit code.
    SIGUSR1, SIGXCPU and SIGHUP are not handled if the program handles or, as under `nohup`, ignores them. Python
    delivers signals to the main thread only; in other threads this class does nothing. If the block is left in another
    thread, for example when the garbage collector closes a loop after an error, later signals are forwarded to the
    previous handlers.

    Args:
        on_request: Called at the first signal with the exit code of the process; if it raises, the block ends.
        message: Message printed at the first signal, or a function of the signal that returns it.
        requeue_exit_code: See `exit_code_of`.
        received: Signals that count as received already.

    Attributes:
        exit_code: Exit code of the process; None before the first signal.
        is_given_back: Whether signals have the effect again that they had before the block.
    """

    def __init__(
        self,
        on_request: Callable[[int], None],
        message: str | Callable[[int], str],
        *,
        requeue_exit_code: int | None = None,
        received: Collection[int] = (),
    ) -> None:
        self.exit_code: int | None = None
        self.is_given_back = False
        self._on_request = on_request
        self._message = message
        self._requeue_exit_code = requeue_exit_code
        self._received = set(received)
        self._before: dict[signal.Signals, Any] = {}
        self._asked_at = -math.inf

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            _watch_forks()
            chosen = [number for number in STOP_SIGNALS if number in _ALWAYS or _is_free(number) or _is_ours(number)]
            self._before = {number: signal.signal(number, self._request) for number in chosen}
            self._asked_at = max((outer.asked_at for outer in _outer_ones(self._before)), default=-math.inf)
        return self

    def __exit__(self, *_: object) -> None:
        self._give_back()

    def _request(self, number: int, frame: FrameType | None) -> None:
        if self.is_given_back:
            self._pass_on(number, frame)
            return
        if number in _AT_MOST_ONCE:
            self._before.pop(signal.Signals(number), None)
            _ignore_from_now_on(number)
        if number != signal.SIGINT and _is_same(self._asked_at):
            return
        if self._received and (number == signal.SIGINT or number in self._received):
            self._give_back()
            if number == signal.SIGINT and signal.getsignal(number) is signal.SIG_IGN:  # inherited from a shell's `&`
                signal.default_int_handler(number, frame)
            signal.raise_signal(number)
            return
        is_request = self._received <= {signal.SIGINT}
        self._received.add(number)
        if number != signal.SIGINT:
            self._asked_at = time.monotonic()
        if is_request:
            self.exit_code = exit_code_of(number, self._requeue_exit_code)
            self._on_request(self.exit_code)
        message = self._message if isinstance(self._message, str) else self._message(number)
        say(stop_reason() or f"{signal.Signals(number).name}: {message}")

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        handler = self._before[signal.Signals(number)]
        self._give_back()
        if number not in self._before:
            signal.raise_signal(number)
        elif callable(handler):  # a later handler called this one
            handler(number, frame)

    def _give_back(self) -> None:
        for outer in _outer_ones(self._before):
            outer.asked_at = max(outer.asked_at, self._asked_at)
        self.is_given_back = True
        if threading.current_thread() is threading.main_thread():
            for number in [number for number in self._before if signal.getsignal(number) == self._request]:
                signal.signal(number, self._before.pop(number))


class LeaveOnSignal:
    """Make the signals of schedulers raise `RunInterrupted`, so that a program leaves its `with` blocks.

    Existing handlers are preserved, except Ray's, and so are handlers installed later. Python runs handlers in the main
    thread only; in other threads this class does nothing.

    Args:
        message: Message of the error.
        requeue_exit_code: See `exit_code_of`.

    Attributes:
        asked_at: Time of the last request (`time.monotonic`), received here or by a nested `StopSignals`; signals
            within `SAME_WITHIN_S` of it belong to the same request.
        is_given_back: Whether signals no longer raise.
    """

    def __init__(self, message: str, *, requeue_exit_code: int | None = None) -> None:
        self.asked_at, self.is_given_back = -math.inf, False
        self._message = message
        self._requeue_exit_code = requeue_exit_code
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self.take()
        return self

    def __exit__(self, *_: object) -> None:
        self.give_back()

    def take(self) -> None:
        """Install the handlers; idempotent."""
        if self.is_given_back:
            self.asked_at, self.is_given_back = -math.inf, False
        if threading.current_thread() is threading.main_thread() and not self._before:
            _watch_forks()
            chosen = [
                number
                for number in FROM_OUTSIDE
                if _is_free(number) or _raises_run_interrupted(signal.getsignal(number))
            ]
            self._before = {number: signal.signal(number, self._leave) for number in chosen}
            _open.append(self)

    def give_back(self) -> None:
        """Restore the previous handlers; after a request only once `SAME_WITHIN_S` has passed.

        A program that is exiting thus ends with its chosen exit code, and not by a repetition of the signal.
        """
        _open[:] = [other for other in _open if other is not self]
        for number in [number for number in self._before if signal.getsignal(number) != self._leave]:
            before = self._before.pop(number)
            for later in _open:
                later.restore_instead(number, self._leave, before)
        self.is_given_back = True
        if not _is_same(self.asked_at):
            for number in list(self._before):
                self._restore(number)

    def restore_instead(self, number: signal.Signals, closed: Any, before: Any) -> None:
        """Restore the handler from before another object of this class that was given back first."""
        if self._before.get(number) == closed:
            self._before[number] = before

    def _restore(self, number: int) -> None:
        signal.signal(number, self._before.pop(signal.Signals(number)))

    def _leave(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.is_given_back:
            if not _is_same(self.asked_at):
                self._restore(number)
                signal.raise_signal(number)
            return
        _deferred[:] = [number]
        if _forks_under_way:
            return
        _deferred.clear()
        if number in _AT_MOST_ONCE:
            _ignore_from_now_on(number)
        if _is_same(self.asked_at):
            return
        for one in _open:
            one.asked_at = time.monotonic()
        message = f"{signal.Signals(number).name}: {self._message}"
        interrupt = RunInterrupted(message, exit_code_of(number, self._requeue_exit_code))
        interrupt.tell(say)
        raise interrupt


_open: list[LeaveOnSignal] = []
"""Open objects, in the order in which they installed their handlers."""

# Python discards an exception raised in a hook of `os.fork`, and the rest of the hook, such as releasing the lock of
# `logging`, does not run. Handlers that raise are therefore deferred until all threads have finished forking.
_forks_under_way: list[None] = []
_deferred: list[int] = []
_forking = threading.local()


def _block_ours() -> None:
    """Block the signals that trieye handles in the forking thread, and so in the child until its handlers are set."""
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, [number for number in STOP_SIGNALS if _is_ours(number)])


def _unblock_ours() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _hand_over_in_child() -> None:
    """Restore in a forked child, which has no run to close, the handlers from before trieye and Ray.

    Ray's handler calls `sys.exit`, which multiprocessing reports as an error and fork hooks discard.
    """
    _deferred.clear()
    for number in [number for number in STOP_SIGNALS if _is_ours(number)]:
        handler = signal.getsignal(number)
        while _owner(handler) == __name__:
            owner = getattr(handler, "__self__", None)
            handler = getattr(owner, "_before", {}).pop(number, signal.SIG_DFL)
        is_free = (
            handler is None or _owner(handler).partition(".")[0] == "ray"
        )  # None: a handler that was not installed from Python
        signal.signal(number, signal.SIG_DFL if is_free else handler)
    _unblock_ours()


@functools.cache
def _watch_forks() -> None:
    """Register hooks of `os.fork`, once handlers are installed, so that hooks of imported libraries run inside ours."""
    os.register_at_fork(before=_block_ours, after_in_parent=_unblock_ours, after_in_child=_hand_over_in_child)
    # implemented in C: a Python function could be interrupted by a handler before its first and after its last line
    os.register_at_fork(
        before=functools.partial(_forks_under_way.append, None),
        after_in_parent=_forks_under_way.pop,
        after_in_child=_forks_under_way.clear,
    )
    os.register_at_fork(after_in_parent=functools.partial(max, _deferred, key=_thread.interrupt_main, default=None))


def _outer_ones(handlers: Mapping[signal.Signals, Any]) -> list[LeaveOnSignal]:
    owners = [handler.__self__ for handler in handlers.values() if _raises_run_interrupted(handler)]
    return [owner for owner in owners if not owner.is_given_back]


def _raises_run_interrupted(handler: Any) -> bool:
    """Return whether a handler belongs to a `LeaveOnSignal`."""
    return isinstance(getattr(handler, "__self__", None), LeaveOnSignal)


def _ignore_from_now_on(number: int) -> None:
    signal.signal(number, signal.SIG_IGN)
    if number == signal.SIGHUP:
        discard_dead_output()


def _is_same(asked_at: float) -> bool:
    return time.monotonic() - asked_at <= SAME_WITHIN_S


def _is_free(number: signal.Signals) -> bool:
    """Return whether a signal has no handler, except those of a closed run and of Ray, which exits silently."""
    handler = signal.getsignal(number)
    is_over = getattr(getattr(handler, "__self__", None), "is_given_back", False)
    return handler is signal.SIG_DFL or is_over or _owner(handler).partition(".")[0] == "ray"


def _is_ours(number: signal.Signals) -> bool:
    return _owner(signal.getsignal(number)) == __name__


def _owner(handler: Any) -> str:
    """Return the name of the module that defines a handler."""
    return getattr(getattr(handler, "__func__", handler), "__module__", None) or ""


@contextlib.contextmanager
def children_outlive_signals() -> Iterator[None]:
    """Block such signals in processes started by the block, and undo a SIGTERM handler that the block installs.

    Schedulers signal every process of a job, a closed terminal all its foreground processes. Children inherit the mask;
    signals to this process are pending until the block ends.
    """
    handler = signal.getsignal(signal.SIGTERM)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _OF_A_GROUP)
    was_ended = False
    try:
        yield
    except SystemExit as error:  # raised by that handler if another thread received the signal
        if isinstance(error, RunInterrupted):
            raise
        was_ended = True
    finally:
        if threading.current_thread() is threading.main_thread() and handler is not None:
            signal.signal(signal.SIGTERM, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if was_ended:
        signal.raise_signal(signal.SIGTERM)


@contextlib.contextmanager
def interrupt_deferred(message: str) -> Iterator[None]:
    """Let Ctrl-C take effect when the block ends, and a second one at once.

    Args:
        message: What is awaited, printed at the first Ctrl-C.
    """
    before, received = signal.getsignal(signal.SIGINT), list[int]()

    def receive(number: int, frame: FrameType | None) -> None:
        if received and callable(before):
            before(number, frame)
        elif not received:
            received.append(number)
            say(f"SIGINT: {message}")

    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    signal.signal(signal.SIGINT, receive)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is receive:
            signal.signal(signal.SIGINT, before)
    if received:
        before(signal.SIGINT, None)


def let_sigterm_through() -> None:
    """Unblock SIGTERM, which this process inherited as blocked, for the processes that it starts."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def outlive_signals() -> None:
    """Ignore signals to every process of a job or a terminal; child processes are not affected."""
    if threading.current_thread() is threading.main_thread():
        for number in _OF_A_GROUP:
            signal.signal(number, lambda *_: None)  # not SIG_IGN, which would be inherited
