"""Watchdog: a separate process interrupts, or kills, calls into environments that hang after a signal.

Python runs signal handlers between bytecode instructions, so a call into C that never returns would block the process
forever. The watchdog process, `process/watchdog_program.py`, receives signals through the file descriptor of
`signal.set_wakeup_fd`, to which the C-level handler writes, and reads the calls under way from shared memory. It works
even if the blocking call holds the GIL.
"""

import contextlib
import json
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import threading
from types import FrameType
from typing import Any

from trieye.process import watchdog_program
from trieye.process.stopping import StepInterrupted, StopRequest
from trieye.process.watchdog_program import HANDLED, MAIN_THREAD, NUM_SLOTS

POKE = signal.SIGURG
"""Sent by the watchdog process; ignored by default."""


class StepCounter:
    """Counts the calls of one thread into environments: odd while a call is under way.

    Args:
        memory: Unsigned 64-bit numbers.
        slot: Index of the counter.
    """

    __slots__ = ("_memory", "_slot")

    def __init__(self, memory: Any, slot: int) -> None:
        self._memory, self._slot = memory, slot

    def __enter__(self) -> None:
        self._memory[self._slot] += 1

    def __exit__(self, *_: object) -> None:
        self._memory[self._slot] += 1


class Watchdog:
    """Watches the calls of this process into environments; created by the main thread, one at a time.

    Args:
        run_name: Name of the run, for messages.
        env_id: Id of its environments, likewise.
        stop: Whether a stop was requested.
    """

    def __init__(self, run_name: str, env_id: str, stop: StopRequest) -> None:
        self._stop, self._env_id = stop, env_id
        self._next_slot, self._lock = MAIN_THREAD + 1, threading.Lock()
        with tempfile.TemporaryFile() as file:
            file.truncate(8 * NUM_SLOTS)
            self._map = mmap.mmap(file.fileno(), 8 * NUM_SLOTS)
            self.memory = memoryview(self._map).cast("Q")
            reading, self._pipe = os.pipe()
            os.set_blocking(self._pipe, False)
            settings = json.dumps({"run_name": run_name, "env_id": env_id, "poke": int(POKE), "parent": os.getpid()})
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", watchdog_program.__file__, str(file.fileno()), settings],
                stdin=reading,
                stdout=subprocess.DEVNULL,
                pass_fds=[file.fileno()],
            )
            os.close(reading)
        self._handler_before = signal.signal(POKE, self._poked)
        self._fd_before = signal.set_wakeup_fd(self._pipe, warn_on_full_buffer=False)
        if self._fd_before != -1:  # an event loop uses it; Python's handler forwards signals
            signal.set_wakeup_fd(self._fd_before, warn_on_full_buffer=False)

    def calls(self) -> StepCounter:
        """Return the call counter of the current thread."""
        if threading.current_thread() is threading.main_thread():
            return StepCounter(self.memory, MAIN_THREAD)
        with self._lock:
            slot, self._next_slot = self._next_slot, MAIN_THREAD + 1 + self._next_slot % (NUM_SLOTS - MAIN_THREAD - 1)
        return StepCounter(self.memory, slot)

    def note_request(self) -> None:
        """Report to the watchdog process that Python has handled a stop request."""
        self.memory[HANDLED] = 1
        with contextlib.suppress(OSError):
            os.write(self._pipe, bytes([signal.SIGTERM]))

    def close(self) -> None:
        """Stop the watchdog process."""
        if threading.current_thread() is threading.main_thread():
            if self._fd_before == -1:
                signal.set_wakeup_fd(-1)
            if signal.getsignal(POKE) == self._poked:
                signal.signal(POKE, self._handler_before)
        os.close(self._pipe)
        self._process.wait()

    def _poked(self, signum: int, frame: FrameType | None) -> None:
        del signum, frame
        if self._stop.is_made and self.memory[MAIN_THREAD] % 2:
            raise StepInterrupted(f"{self._env_id} did not return")


_current: Watchdog | None = None


def start(run_name: str, env_id: str, stop: StopRequest) -> None:
    """Start the watchdog; does nothing outside the main thread, which alone receives signals."""
    global _current
    if threading.current_thread() is threading.main_thread():
        end()
        _current = Watchdog(run_name, env_id, stop)


def end() -> None:
    """Stop the watchdog, if it runs."""
    global _current
    if _current is not None:
        watchdog, _current = _current, None
        watchdog.close()


def note_request() -> None:
    """Report that Python has handled a stop request."""
    if _current is not None:
        _current.note_request()


def calls() -> StepCounter:
    """Return a context manager for each call of the current thread into an environment."""
    return StepCounter([0], 0) if _current is None else _current.calls()


def _forget_in_child() -> None:
    global _current
    if _current is not None:
        _current = None
        with contextlib.suppress(ValueError):  # forked by another thread
            signal.set_wakeup_fd(-1)


os.register_at_fork(after_in_child=_forget_in_child)
