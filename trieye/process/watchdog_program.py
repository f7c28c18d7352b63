"""A program of its own beside a training: interrupts, or ends, a call into an environment that hangs after a signal."""

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
"""Places in the shared memory: whether Python has handled the signal, and the calls of the main thread."""

STOP_SIGNALS = frozenset(map(int, (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGXCPU)))
INTERRUPT_S, AGAIN_S, END_S = 2.0, 1.0, 7.0
"""How long after the signal a call may last until it is interrupted, until it is interrupted again, until its process
is ended."""

TELL_S = 30.0
"""A call that lasts so long is worth a line, also if nobody asked for a stop."""

_POLL_S = 0.1


class Watch:
    """What is known of the calls.

    Args:
        memory: Unsigned 64-bit numbers, odd while a call is under way.
        told: What to call the run and its environment, the process that is watched, the signal that interrupts.
    """

    def __init__(self, memory: memoryview, told: dict[str, object]) -> None:
        self._memory = memory
        self._run_name, self._env_id = told["run_name"], told["env_id"]
        self._parent, self._poke = int(str(told["parent"])), int(str(told["poke"]))
        self._since: dict[int, tuple[int, float]] = {}
        self._told: set[tuple[int, int]] = set()

    def look(self, now: float) -> dict[int, float]:
        """Return how long the calls under way have lasted, as far as is known, by slot."""
        lasting = {}
        for slot in range(MAIN_THREAD, NUM_SLOTS):
            count = self._memory[slot]
            if count % 2 == 0:
                self._since.pop(slot, None)
                continue
            if self._since.get(slot, (-1, 0.0))[0] != count:
                self._since[slot] = (count, now)
            lasting[slot] = now - self._since[slot][1]
        return lasting

    def tell_long_ones(self) -> None:
        """Say which calls last unusually long; of explorers their group says so."""
        for slot, lasted_s in self.look(time.monotonic()).items():
            key = (slot, self._memory[slot])
            if slot == MAIN_THREAD and lasted_s >= TELL_S and key not in self._told:
                self._told.add(key)
                say(
                    f"run {self._run_name!r}: {self._env_id} has not returned for {lasted_s:.0f} s; Ctrl-C saves and "
                    "ends the run"
                )

    def follow(self) -> bool:
        """Watch the calls after a signal until the pipe is closed; return False if the process was ended."""
        began = poked = time.monotonic()
        self._since.clear()
        while True:
            if select.select([0], [], [], _POLL_S)[0] and not os.read(0, 4096):
                return True
            now = time.monotonic()
            lasting = self.look(now)
            first = INTERRUPT_S if poked == began else AGAIN_S
            if lasting.get(MAIN_THREAD, 0.0) >= first and now - poked >= first:
                poked = now
                os.kill(self._parent, self._poke)
            is_deaf = not self._memory[HANDLED]
            hung = [
                slot for slot, lasted_s in lasting.items() if lasted_s >= END_S and (slot == MAIN_THREAD or is_deaf)
            ]
            if hung:
                self._end(now - began)
                return False

    def _end(self, waited_s: float) -> None:
        say(
            f"run {self._run_name!r}: {self._env_id} has not returned for {waited_s:.0f} s since the signal, and "
            f"cannot be interrupted: the process is ended; run_name={self._run_name} resumes from the last checkpoint"
        )
        os.kill(self._parent, signal.SIGKILL)


def say(text: str) -> None:
    """Tell the user."""
    with contextlib.suppress(OSError):
        os.write(2, f"trieye: {text}\n".encode())


def main() -> None:
    """Wait for a signal to the process that has the other end of standard input."""
    for number in (*STOP_SIGNALS, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    file, told = int(sys.argv[1]), json.loads(sys.argv[2])
    watch = Watch(memoryview(mmap.mmap(file, 8 * NUM_SLOTS)).cast("Q"), told)
    while True:
        if not select.select([0], [], [], TELL_S / 3)[0]:
            watch.tell_long_ones()
            if os.getppid() != told["parent"]:
                return
            continue
        heard = os.read(0, 4096)
        if not heard or (STOP_SIGNALS.intersection(heard) and watch.follow()):
            return


if __name__ == "__main__":
    main()
