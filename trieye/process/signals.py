"""What signals do: stop a loop after the present step, or leave the program by the way it came."""

import _thread
import contextlib
import functools
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from types import FrameType, TracebackType
from typing import Any, Self

from trieye.exceptions import RunInterrupted
from trieye.process.progress import say

FROM_OUTSIDE = (signal.SIGTERM, signal.SIGUSR1, signal.SIGXCPU)
"""What schedulers and resource limits send: an end that may come back, unlike Ctrl-C."""

STOP_SIGNALS = (signal.SIGINT, *FROM_OUTSIDE)

SAME_WITHIN_S = 3.0
"""`timeout`, Slurm and systemd reach a process directly and through its group: that is one request, not two."""

_ALWAYS = frozenset({signal.SIGINT, signal.SIGTERM})
_OF_A_SCHEDULER = frozenset({signal.SIGTERM, signal.SIGUSR1})


def exit_code_of(number: int, requeue_exit_code: int | None = None) -> int:
    """Return what a process that a signal ends should exit with.

    Args:
        number: The signal.
        requeue_exit_code: What the user wants instead of 128 + the number, which is what shells have; not for Ctrl-C.
    """
    return 128 + number if number == signal.SIGINT or requeue_exit_code is None else requeue_exit_code


class StopSignals:
    """Turn the first signal into a request, and a repeated one into its usual effect.

    Ctrl-C after any other signal is a repeat. A scheduler's signal that comes after Ctrl-C, or after another signal of
    the scheduler, is not: what is being saved goes on, and after Ctrl-C the request is made again with its exit code.
    SIGUSR1 and SIGXCPU are left alone if the program has a handler of its own. Python delivers signals to the main
    thread only; elsewhere this does nothing. Left in another thread, as by the garbage collection of a loop that an
    error ended, it passes on what comes.

    Args:
        on_request: Called at the first signal with what the process should exit with; if it raises, the block ends.
        message: What the user is told then.
        requeue_exit_code: See `exit_code_of`.
        received: Signals that count as received before.

    Attributes:
        exit_code: What the process should exit with; None before the first signal.
        is_given_back: Whether signals do what they did before.
    """

    def __init__(
        self,
        on_request: Callable[[int], None],
        message: str,
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._give_back()

    def _request(self, number: int, frame: FrameType | None) -> None:
        if self.is_given_back:
            self._pass_on(number, frame)
            return
        if number == signal.SIGXCPU:
            self._ignore_from_now_on(signal.SIGXCPU)
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
        say(f"{signal.Signals(number).name}: {self._message}")

    def _ignore_from_now_on(self, number: signal.Signals) -> None:
        # the kernel repeats it every second, which is nobody's second request
        self._before.pop(number, None)
        signal.signal(number, signal.SIG_IGN)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        handler = self._before[signal.Signals(number)]
        self._give_back()
        if number not in self._before:
            signal.raise_signal(number)
        elif callable(handler):  # a later handler has called this one
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

    A handler that was there before is left alone, unless it is that of Ray, and so is one that came later. Python runs
    handlers in the main thread only; elsewhere this does nothing.

    Args:
        message: Message of the error.
        requeue_exit_code: See `exit_code_of`.

    Attributes:
        asked_at: When the last request came, here or to a `StopSignals` inside, by `time.monotonic`; what comes within
            `SAME_WITHIN_S` of it is no other request.
        is_given_back: Whether it raises no more.
    """

    def __init__(self, message: str, *, requeue_exit_code: int | None = None) -> None:
        self.asked_at, self.is_given_back = -math.inf, False
        self._message = message
        self._requeue_exit_code = requeue_exit_code
        self._before: dict[signal.Signals, Any] = {}

    def take(self) -> None:
        """Install the handlers; does nothing if that was done."""
        if self.is_given_back:
            self.asked_at, self.is_given_back = -math.inf, False
        if threading.current_thread() is threading.main_thread() and not self._before:
            _watch_forks()
            chosen = [number for number in FROM_OUTSIDE if _is_free(number)]
            self._before = {number: signal.signal(number, self._leave) for number in chosen}

    def give_back(self) -> None:
        """Restore what there was before; after a request, not until the time in which it may come again is over.

        A program that is on its way out thus ends with the exit code that it chose, not by the same signal again.
        """
        for number in [number for number in self._before if signal.getsignal(number) != self._leave]:
            del self._before[number]
        self.is_given_back = True
        if not _is_same(self.asked_at):
            for number in list(self._before):
                self._restore(number)

    def _restore(self, number: int) -> None:
        signal.signal(number, self._before.pop(signal.Signals(number)))

    def _leave(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.is_given_back:
            if not _is_same(self.asked_at):
                self._restore(number)
                signal.raise_signal(number)
            return
        _put_off[:] = [number]
        if _forks_under_way:
            return
        _put_off.clear()
        if number == signal.SIGXCPU:  # see `StopSignals`
            signal.signal(number, signal.SIG_IGN)
        if _is_same(self.asked_at):
            return
        self.asked_at = time.monotonic()
        message = f"{signal.Signals(number).name}: {self._message}"
        interrupt = RunInterrupted(message, exit_code_of(number, self._requeue_exit_code))
        interrupt.tell(say)
        raise interrupt


# What a hook of `os.fork` raises is swallowed, and what that hook had still to do, such as to release the lock of
# `logging`, is never done. So a handler that raises waits for the end of the forks of all threads.
_forks_under_way: list[None] = []
_put_off: list[int] = []
_forking = threading.local()


def _block_ours() -> None:
    """Keep the signals that we handle from the thread that forks, and so from the child until it has its handlers."""
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, [number for number in STOP_SIGNALS if _is_ours(number)])


def _unblock_ours() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _hand_over_in_child() -> None:
    """Let the signals do to a forked child, which has no run to leave, what they would do without us, or without Ray.

    Ray's handler ends a process by `sys.exit`, which multiprocessing takes for an error and a hook swallows.
    """
    _put_off.clear()
    for number in [number for number in STOP_SIGNALS if _is_ours(number)]:
        handler = signal.getsignal(number)
        while _owner(handler) == __name__:
            owner = getattr(handler, "__self__", None)
            handler = getattr(owner, "_before", {}).pop(number, signal.SIG_DFL)
        is_free = handler is None or _owner(handler).partition(".")[0] == "ray"  # None: one that is not of Python
        signal.signal(number, signal.SIG_DFL if is_free else handler)
    _unblock_ours()


@functools.cache
def _watch_forks() -> None:
    """Hook into `os.fork`, once a process has handlers: then the hooks of the libraries that it imported run inside."""
    os.register_at_fork(before=_block_ours, after_in_parent=_unblock_ours, after_in_child=_hand_over_in_child)
    # these are written in C: in a function in Python a handler may be called before the first line and after the last
    os.register_at_fork(
        before=functools.partial(_forks_under_way.append, None),
        after_in_parent=_forks_under_way.pop,
        after_in_child=_forks_under_way.clear,
    )
    os.register_at_fork(after_in_parent=functools.partial(max, _put_off, key=_thread.interrupt_main, default=None))


def _outer_ones(handlers: Mapping[signal.Signals, Any]) -> list[LeaveOnSignal]:
    owners = [getattr(handler, "__self__", None) for handler in handlers.values()]
    return [owner for owner in owners if isinstance(owner, LeaveOnSignal) and not owner.is_given_back]


def _is_same(asked_at: float) -> bool:
    return time.monotonic() - asked_at <= SAME_WITHIN_S


def _is_free(number: signal.Signals) -> bool:
    """Tell whether nobody minds a signal but a run that is over, and Ray, which ends the process without a word."""
    handler = signal.getsignal(number)
    is_over = getattr(getattr(handler, "__self__", None), "is_given_back", False)
    return handler is signal.SIG_DFL or is_over or _owner(handler).partition(".")[0] == "ray"


def _is_ours(number: signal.Signals) -> bool:
    return _owner(signal.getsignal(number)) == __name__


def _owner(handler: Any) -> str:
    """Return the module of the function that is a handler."""
    return getattr(getattr(handler, "__func__", handler), "__module__", None) or ""


@contextlib.contextmanager
def children_outlive_signals() -> Iterator[None]:
    """Keep SIGTERM and SIGUSR1 from the processes that the block starts, and its handler of SIGTERM from this one.

    Schedulers send them to every process of a job. A mask is inherited; what comes meanwhile waits until the end of the
    block.
    """
    handler = signal.getsignal(signal.SIGTERM)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _OF_A_SCHEDULER)
    was_ended = False
    try:
        yield
    except SystemExit as left:  # that handler, if another thread of this process took the signal
        if isinstance(left, RunInterrupted):
            raise
        was_ended = True
    finally:
        if threading.current_thread() is threading.main_thread() and handler is not None:
            signal.signal(signal.SIGTERM, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if was_ended:
        signal.raise_signal(signal.SIGTERM)


def let_sigterm_through() -> None:
    """Take SIGTERM out of the mask that this process inherited, for what it starts itself."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def outlive_signals() -> None:
    """Let this process go on when schedulers signal every process of a job; what it starts itself is not concerned."""
    if threading.current_thread() is threading.main_thread():
        for number in _OF_A_SCHEDULER:
            signal.signal(number, lambda *_: None)  # not SIG_IGN, which would be inherited
