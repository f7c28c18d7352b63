"""The watchdog process: interrupts, or kills, a training whose environment hangs after a signal."""

import contextlib
import json
import mmap
import os
import select
import signal
import sys
import time

NUM_SLOTS = 64
HANDLED, MAIN_THREAD = 0, 1
"""Indices in the shared memory: whether Python has handled the signal; calls of the main thread."""

STOP_SIGNALS = frozenset(map(int, (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGXCPU, signal.SIGHUP)))
INTERRUPT_S, AGAIN_S, END_S = 2.0, 1.0, 7.0
"""Seconds from the signal to the first interrupt, between interrupts, and from the signal to SIGKILL."""

REPORT_S = 30.0
"""Calls longer than this are reported, without any signal, too."""

_POLL_S = 0.1


class CallTimer:
    """Measures how long the current calls have lasted.

    Args:
        memory: Unsigned 64-bit numbers, odd while a call is under way.
        settings: Names of the run and its environment, pid of the training, and number of the interrupting signal.
    """

    def __init__(self, memory: memoryview, settings: dict[str, object]) -> None:
        self._memory = memory
        self._run_name, self._env_id = settings["run_name"], settings["env_id"]
        self._parent, self._poke = int(str(settings["parent"])), int(str(settings["poke"]))
        self._call_by_slot: dict[int, tuple[int, float]] = {}
        self._reported_calls: set[tuple[int, int]] = set()

    def durations(self, now: float) -> dict[int, float]:
        """Return the observed duration of each call under way, in seconds, by slot."""
        duration_by_slot = {}
        for slot in range(MAIN_THREAD, NUM_SLOTS):
            count = self._memory[slot]
            if count % 2 == 0:
                self._call_by_slot.pop(slot, None)
                continue
            if self._call_by_slot.get(slot, (-1, 0.0))[0] != count:
                self._call_by_slot[slot] = (count, now)
            duration_by_slot[slot] = now - self._call_by_slot[slot][1]
        return duration_by_slot

    def report_long_calls(self) -> None:
        """Report unusually long calls of the main thread; `ExplorerGroup` reports those of explorers."""
        for slot, lasted_s in self.durations(time.monotonic()).items():
            key = (slot, self._memory[slot])
            if slot == MAIN_THREAD and lasted_s >= REPORT_S and key not in self._reported_calls:
                self._reported_calls.add(key)
                say(
                    f"run {self._run_name!r}: {self._env_id} has not returned for {lasted_s:.0f} s; Ctrl-C saves and "
                    "ends the run"
                )

    def follow(self) -> bool:
        """Watch the calls after a signal until the pipe closes; return False if the process was killed."""
        began_at = poked_at = time.monotonic()
        self._call_by_slot.clear()
        while True:
            if select.select([0], [], [], _POLL_S)[0] and not os.read(0, 4096):
                return True
            now = time.monotonic()
            durations = self.durations(now)
            limit_s = INTERRUPT_S if poked_at == began_at else AGAIN_S
            if durations.get(MAIN_THREAD, 0.0) >= limit_s and now - poked_at >= limit_s:
                poked_at = now
                os.kill(self._parent, self._poke)
            is_deaf = not self._memory[HANDLED]
            hung_slots = [
                slot for slot, lasted_s in durations.items() if lasted_s >= END_S and (slot == MAIN_THREAD or is_deaf)
            ]
            if hung_slots:
                self._end(now - began_at)
                return False

    def _end(self, waited_s: float) -> None:
        say(
            f"run {self._run_name!r}: {self._env_id} has not returned for {waited_s:.0f} s since the signal, and "
            f"cannot be interrupted: the process is killed; run_name={self._run_name} resumes from the last checkpoint"
        )
        os.kill(self._parent, signal.SIGKILL)


def say(text: str) -> None:
    """Print a line for the user."""
    with contextlib.suppress(OSError):
        os.write(2, f"trieye: {text}\n".encode())


def main() -> None:
    """Wait for a signal to the parent, which holds the other end of standard input."""
    for signum in STOP_SIGNALS:
        signal.signal(signum, signal.SIG_IGN)
    descriptor, settings = int(sys.argv[1]), json.loads(sys.argv[2])
    timer = CallTimer(memoryview(mmap.mmap(descriptor, 8 * NUM_SLOTS)).cast("Q"), settings)
    while True:
        if not select.select([0], [], [], REPORT_S / 3)[0]:
            timer.report_long_calls()
            if os.getppid() != settings["parent"]:
                return
            continue
        heard = os.read(0, 4096)
        if not heard or (STOP_SIGNALS.intersection(heard) and timer.follow()):
            return


if __name__ == "__main__":
    main()
