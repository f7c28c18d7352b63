"""Signal handlers: stop a loop after the current step, or unwind the program through its `with` blocks."""

import _thread
import contextlib
import functools
import math
import multiprocessing
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

CTRL_C_ONCE_WITHIN_S = 0.1
"""A launcher or `timeout -s INT` forwards a Ctrl-C to a process that has received it; too short for two keystrokes."""

_ALWAYS = frozenset({signal.SIGINT, signal.SIGTERM})
_OF_A_GROUP = frozenset({signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP})
_AT_MOST_ONCE = frozenset({signal.SIGXCPU, signal.SIGHUP})
"""Repeated without a second request: by the kernel every second, and when the shell of a closed terminal exits."""


def exit_code_of(signum: int, requeue_exit_code: int | None = None) -> int:
    """Return the exit code of a process that a signal stops.

    Args:
        signum: The signal.
        requeue_exit_code: Replaces 128 + signum, the convention of shells, except for Ctrl-C.
    """
    return 128 + signum if signum == signal.SIGINT or requeue_exit_code is None else requeue_exit_code


def is_by_signal(error: BaseException) -> bool:
    """Return whether a handler of a stop signal raised an error, or the error has the exit code of such a signal."""
    handlers = [signal.getsignal(signum) for signum in STOP_SIGNALS]
    codes = {getattr(getattr(handler, "__func__", handler), "__code__", None) for handler in handlers}
    has_exit_code = getattr(error, "code", None) in [exit_code_of(signum) for signum in STOP_SIGNALS]
    return has_exit_code or any(frame.f_code in codes for frame, _ in walk_tb(error.__traceback__))


_reason_file: Path | None = None


@contextlib.contextmanager
def stop_reason_in(path: Path) -> Iterator[None]:
    """Let another process explain, in a file, why it interrupts this one; the file is deleted before and after."""
    global _reason_file
    old_path, _reason_file = _reason_file, path
    path.unlink(missing_ok=True)
    try:
        yield
    finally:
        _reason_file = old_path
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
        message: Message printed at the first signal, or a function of the signal that returns it; None prints nothing.
        requeue_exit_code: See `exit_code_of`.
        received: Signals that count as received already.
        is_running: Whether the code of an open block is running. Otherwise, signals end the block and are forwarded to
            the previous handlers.

    Attributes:
        exit_code: Exit code of the process; None before the first signal.
        is_given_back: Whether signals have the effect again that they had before the block.
        has_stopped: Whether Ctrl-C stopped the block, so that the program may run it again.
    """

    def __init__(
        self,
        on_request: Callable[[int], None],
        message: str | Callable[[int], str] | None,
        *,
        requeue_exit_code: int | None = None,
        received: Collection[int] = (),
        is_running: Callable[[], bool] = lambda: True,
    ) -> None:
        self.exit_code: int | None = None
        self.is_given_back = self.has_stopped = False
        self._on_request = on_request
        self._message = message
        self._requeue_exit_code = requeue_exit_code
        self._received_signals = set(received)
        self._is_running = is_running
        self._old_handlers: dict[signal.Signals, Any] = {}
        self._asked_at = -math.inf
        self._ctrl_c_at = time.monotonic() if signal.SIGINT in received else -math.inf

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            _watch_forks()
            signums = [signum for signum in STOP_SIGNALS if signum in _ALWAYS or _is_free(signum) or _is_ours(signum)]
            self._old_handlers = {signum: signal.signal(signum, self._request) for signum in signums}
            self._asked_at = max((outer.asked_at for outer in _outer_ones(self._old_handlers)), default=-math.inf)
        return self

    def __exit__(self, *_: object) -> None:
        self.give_back()

    def _request(self, signum: int, frame: FrameType | None) -> None:
        if self.is_given_back or not self._is_running():
            self._pass_on(signum, frame)
            return
        if signum in _AT_MOST_ONCE:
            self._old_handlers.pop(signal.Signals(signum), None)
            _ignore_from_now_on(signum)
        if _is_once(self._ctrl_c_at) if signum == signal.SIGINT else _is_same(self._asked_at):
            return
        if self._received_signals and (signum == signal.SIGINT or signum in self._received_signals):
            self.give_back()
            self.note_stop()
            if signum == signal.SIGINT and signal.getsignal(signum) is signal.SIG_IGN:  # inherited from a shell's `&`
                signal.default_int_handler(signum, frame)
            signal.raise_signal(signum)
            return
        is_request = self._received_signals <= {signal.SIGINT}
        self._received_signals.add(signum)
        if signum == signal.SIGINT:
            self._ctrl_c_at = time.monotonic()
        else:
            self._asked_at = time.monotonic()
        if is_request:
            self.exit_code = exit_code_of(signum, self._requeue_exit_code)
            self._on_request(self.exit_code)
        if self._message is not None:
            message = self._message if isinstance(self._message, str) else self._message(signum)
            say(stop_reason() or f"{signal.Signals(signum).name}: {message}")

    def note_stop(self) -> None:
        """Set `has_stopped` after Ctrl-C; schedulers want the process to end."""
        self.has_stopped = self.exit_code == exit_code_of(signal.SIGINT)

    def _pass_on(self, signum: int, frame: FrameType | None) -> None:
        handler = self._old_handlers[signal.Signals(signum)]
        self.give_back()
        self.note_stop()
        if signum not in self._old_handlers:
            signal.raise_signal(signum)
        elif callable(handler):  # a later handler called this one
            handler(signum, frame)

    def give_back(self) -> None:
        """Restore the previous handlers; in another thread than the main one, the next signal restores them."""
        for outer in _outer_ones(self._old_handlers):
            outer.asked_at = max(outer.asked_at, self._asked_at)
        self.is_given_back = True
        if threading.current_thread() is threading.main_thread():
            for signum in [signum for signum in self._old_handlers if signal.getsignal(signum) == self._request]:
                signal.signal(signum, self._old_handlers.pop(signum))


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
        self._old_handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self.take()
        return self

    def __exit__(self, *_: object) -> None:
        self.give_back()

    def take(self) -> None:
        """Install the handlers; idempotent."""
        if self.is_given_back:
            self.asked_at, self.is_given_back = -math.inf, False
        if threading.current_thread() is not threading.main_thread():
            return
        if not self._old_handlers:
            _watch_forks()
            signums = [
                signum
                for signum in FROM_OUTSIDE
                if _is_free(signum) or _raises_run_interrupted(signal.getsignal(signum))
            ]
            self._old_handlers = {signum: signal.signal(signum, self._leave) for signum in signums}
        if self not in _open:
            _open.append(self)

    def give_back(self) -> None:
        """Restore the previous handlers; after a request only once `SAME_WITHIN_S` has passed.

        A program that is exiting thus ends with its chosen exit code, and not by a repetition of the signal. In another
        thread than the main one, the next signal restores its handler.
        """
        _open[:] = [other for other in _open if other is not self]
        self.is_given_back = True
        if threading.current_thread() is not threading.main_thread():
            return
        for signum in [signum for signum in self._old_handlers if signal.getsignal(signum) != self._leave]:
            old_handler = self._old_handlers.pop(signum)
            for nested in _open:
                nested.restore_instead(signum, self._leave, old_handler)
        if not _is_same(self.asked_at):
            for signum in list(self._old_handlers):
                self._restore(signum)

    def restore_instead(self, signum: signal.Signals, closed_handler: Any, old_handler: Any) -> None:
        """Restore the handler from before another object of this class that was given back first."""
        if self._old_handlers.get(signum) == closed_handler:
            self._old_handlers[signum] = old_handler

    def _restore(self, signum: int) -> None:
        signal.signal(signum, self._old_handlers.pop(signal.Signals(signum)))

    def _leave(self, signum: int, frame: FrameType | None) -> None:
        del frame
        if self.is_given_back:
            if not _is_same(self.asked_at):
                self._restore(signum)
                signal.raise_signal(signum)
            return
        _deferred[:] = [signum]
        if _forks_under_way:
            return
        _deferred.clear()
        if signum in _AT_MOST_ONCE:
            _ignore_from_now_on(signum)
        if _is_same(self.asked_at):
            return
        for open_object in _open:
            open_object.asked_at = time.monotonic()
        message = f"{signal.Signals(signum).name}: {self._message}"
        error = RunInterrupted(message, exit_code_of(signum, self._requeue_exit_code))
        error.tell(say)
        raise error


_open: list[LeaveOnSignal] = []
"""Open objects, in the order in which they installed their handlers."""

# Python discards an exception raised in a hook of `os.fork`, and the rest of the hook, such as releasing the lock of
# `logging`, does not run. Handlers that raise are therefore deferred until all threads have finished forking.
_forks_under_way: list[None] = []
_deferred: list[int] = []
_forking = threading.local()


def _block_ours() -> None:
    """Block the signals that trieye handles in the forking thread, and so in the child until its handlers are set."""
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signum for signum in STOP_SIGNALS if _is_ours(signum)])


def _unblock_ours() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _hand_over_in_child() -> None:
    """Restore in a forked child, which has no run to close, the handlers from before trieye and Ray.

    Ray's handler calls `sys.exit`, which multiprocessing reports as an error and fork hooks discard.
    """
    _deferred.clear()
    for signum in [signum for signum in STOP_SIGNALS if _is_ours(signum)]:
        handler = signal.getsignal(signum)
        while _owner(handler) == __name__:
            owner = getattr(handler, "__self__", None)
            handler = getattr(owner, "_old_handlers", {}).pop(signum, signal.SIG_DFL)
        is_free = (
            handler is None or _owner(handler).partition(".")[0] == "ray"
        )  # None: a handler that was not installed from Python
        signal.signal(signum, signal.SIG_DFL if is_free else handler)
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


def _ignore_from_now_on(signum: int) -> None:
    signal.signal(signum, signal.SIG_IGN)
    if signum == signal.SIGHUP:
        discard_dead_output()


def _is_same(asked_at: float) -> bool:
    return time.monotonic() - asked_at <= SAME_WITHIN_S


def _is_once(ctrl_c_at: float) -> bool:
    return time.monotonic() - ctrl_c_at <= CTRL_C_ONCE_WITHIN_S


def _is_free(signum: signal.Signals) -> bool:
    """Return whether a signal has no handler, except those of a closed run and of Ray, which exits silently."""
    handler = signal.getsignal(signum)
    is_over = getattr(getattr(handler, "__self__", None), "is_given_back", False)
    return handler is signal.SIG_DFL or is_over or _owner(handler).partition(".")[0] == "ray"


def _is_ours(signum: signal.Signals) -> bool:
    return _owner(signal.getsignal(signum)) == __name__


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
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, _OF_A_GROUP)
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
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
    if was_ended:
        signal.raise_signal(signal.SIGTERM)


@contextlib.contextmanager
def interrupt_deferred(message: str) -> Iterator[None]:
    """Let Ctrl-C take effect when the block ends, and a second one at once.

    Args:
        message: What is awaited, printed at the first Ctrl-C.
    """
    old_handler, received_at = signal.getsignal(signal.SIGINT), list[float]()

    def receive(signum: int, frame: FrameType | None) -> None:
        if not received_at:
            received_at.append(time.monotonic())
            say(f"SIGINT: {message}")
        elif callable(old_handler) and not _is_once(received_at[0]):
            old_handler(signum, frame)

    if threading.current_thread() is not threading.main_thread() or not callable(old_handler):
        yield
        return
    signal.signal(signal.SIGINT, receive)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is receive:
            signal.signal(signal.SIGINT, old_handler)
    if received_at:
        old_handler(signal.SIGINT, None)


def ignore_stop_signals(worker_id: int = 0) -> None:
    """Ignore stop signals in this process: the `worker_init_fn` of a `torch.utils.data.DataLoader`.

    Ctrl-C in a terminal and signals of schedulers reach all processes of a program. If they end a worker, the last step
    of the training gets no batch and fails before it saves. With this function, only the training ends its workers.
    The worker becomes the leader of a new process group, and its subprocesses inherit SIGTERM as blocked.

    Args:
        worker_id: Ignored; `DataLoader` passes the number of the worker.
    """
    del worker_id
    os.setpgid(0, 0)
    for signum in {*STOP_SIGNALS} - {signal.SIGTERM}:
        signal.signal(signum, lambda *_: None)
    if hasattr(signal, "sigwaitinfo"):  # macOS lacks it
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        parent = multiprocessing.parent_process()  # os.getppid() may be a fork server
        threading.Thread(target=_end_by_parent, args=[parent and parent.pid], daemon=True).start()


def _end_by_parent(parent_pid: int | None) -> None:
    """End this process when its parent sends SIGTERM, as `multiprocessing` does; handlers do not learn the sender."""
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent_pid:
        pass
    os._exit(0)


def let_sigterm_through() -> None:
    """Unblock SIGTERM, which this process inherited as blocked, for the processes that it starts."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def outlive_signals() -> None:
    """Ignore signals to every process of a job or a terminal; child processes are not affected."""
    if threading.current_thread() is threading.main_thread():
        for signum in _OF_A_GROUP:
            signal.signal(signum, lambda *_: None)  # not SIG_IGN, which would be inherited
