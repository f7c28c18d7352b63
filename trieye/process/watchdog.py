"""Watchdog: calls into environments that do not return after a signal; a process of its own interrupts or ends them.

Python runs signal handlers between its own instructions, so that a call into C that never returns would hold the
process for ever, with its lock if that call keeps it. The process beside it, `process/watchdog_program.py`, hears of
signals through the file descriptor of `signal.set_wakeup_fd`, which the system's handler writes to, and sees in shared
memory which calls are under way.
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
"""What the process beside this one sends; ignored by default."""


class Calls:
    """Calls that one thread makes into environments: odd while one is under way.

    Args:
        memory: Unsigned 64-bit numbers.
        slot: Which of them counts.
    """

    __slots__ = ("_memory", "_slot")

    def __init__(self, memory: Any, slot: int) -> None:
        self._memory, self._slot = memory, slot

    def __enter__(self) -> None:
        self._memory[self._slot] += 1

    def __exit__(self, *_: object) -> None:
        self._memory[self._slot] += 1


class Watchdog:
    """Watches the calls into the environments of a training in this process; one at a time, made by the main thread.

    Args:
        run_name: Name of the run, for messages.
        env_id: What its environments are, likewise.
        stop: Whether the run was asked to stop.
    """

    def __init__(self, run_name: str, env_id: str, stop: StopRequest) -> None:
        self._stop, self._pid, self._env_id = stop, os.getpid(), env_id
        self._next_slot, self._lock = MAIN_THREAD + 1, threading.Lock()
        with tempfile.TemporaryFile() as file:
            file.truncate(8 * NUM_SLOTS)
            self._map = mmap.mmap(file.fileno(), 8 * NUM_SLOTS)
            self.memory = memoryview(self._map).cast("Q")
            reading, self._pipe = os.pipe()
            os.set_blocking(self._pipe, False)
            told = json.dumps({"run_name": run_name, "env_id": env_id, "poke": int(POKE), "parent": os.getpid()})
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", watchdog_program.__file__, str(file.fileno()), told],
                stdin=reading,
                stdout=subprocess.DEVNULL,
                pass_fds=[file.fileno()],
            )
            os.close(reading)
        self._handler_before = signal.signal(POKE, self._poked)
        self._fd_before = signal.set_wakeup_fd(self._pipe, warn_on_full_buffer=False)
        if self._fd_before != -1:  # an event loop of the program has it, and Python's handler tells of signals
            signal.set_wakeup_fd(self._fd_before, warn_on_full_buffer=False)

    def calls(self) -> Calls:
        """Return what counts the calls of the present thread."""
        if threading.current_thread() is threading.main_thread():
            return Calls(self.memory, MAIN_THREAD)
        with self._lock:
            slot, self._next_slot = self._next_slot, MAIN_THREAD + 1 + self._next_slot % (NUM_SLOTS - MAIN_THREAD - 1)
        return Calls(self.memory, slot)

    def note_request(self) -> None:
        """Let the process beside this one know that Python hears signals, and that a stop was requested."""
        self.memory[HANDLED] = 1
        with contextlib.suppress(OSError):
            os.write(self._pipe, bytes([signal.SIGTERM]))

    def close(self) -> None:
        """End the watching; a second call does nothing."""
        if self._pid != os.getpid() or self._pipe < 0:
            return
        if threading.current_thread() is threading.main_thread():
            if self._fd_before == -1:
                signal.set_wakeup_fd(-1)
            if signal.getsignal(POKE) == self._poked:
                signal.signal(POKE, self._handler_before)
        os.close(self._pipe)
        self._pipe = -1
        self._process.wait()

    def _poked(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        if self._stop.is_made and self.memory[MAIN_THREAD] % 2:
            raise StepInterrupted(f"{self._env_id} did not return")


_current: Watchdog | None = None


def start(run_name: str, env_id: str, stop: StopRequest) -> None:
    """Watch the calls that are counted from now on, until `end`; only in the main thread, which hears of signals."""
    global _current
    if threading.current_thread() is threading.main_thread():
        end()
        _current = Watchdog(run_name, env_id, stop)


def end() -> None:
    """End the watching; does nothing if nobody watches."""
    global _current
    if _current is not None:
        watchdog, _current = _current, None
        watchdog.close()


def note_request() -> None:
    """Take note that Python has handled a request to stop."""
    if _current is not None:
        _current.note_request()


def calls() -> Calls:
    """Return what counts the calls of the present thread into environments, as a context for each of them."""
    return Calls([0], 0) if _current is None else _current.calls()


def _forget_in_child() -> None:
    global _current
    if _current is not None:
        _current = None
        with contextlib.suppress(ValueError):  # the fork was made by another thread
            signal.set_wakeup_fd(-1)


os.register_at_fork(after_in_child=_forget_in_child)
