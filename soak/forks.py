"""Send SIGTERM to children right after an open run forks them, and to a run that forks continuously.

SIGTERM must end every child, at any phase of the fork: outside and inside the loop, and while other threads fork. The
run must handle every signal, including signals during a fork.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator

import trieye
import trieye.process.signals

PATIENCE_S = 1.0
LONGEST_DELAY_S = 0.002
NUM_THREADS = 4


def fork_sleeper() -> int:
    """Fork a child that sleeps, and return its process id."""
    child = os.fork()
    if child == 0:
        time.sleep(2 * PATIENCE_S)
        os._exit(0)
    return child


def ended_by_sigterm(child: int) -> bool:
    """Send SIGTERM to a new child, and return whether it ended; kill it otherwise."""
    if (delay_s := random.uniform(-LONGEST_DELAY_S, LONGEST_DELAY_S)) > 0:  # half of them without delay
        time.sleep(delay_s)
    os.kill(child, signal.SIGTERM)
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        if (done := os.waitpid(child, os.WNOHANG))[0]:
            return os.waitstatus_to_exitcode(done[1]) == -signal.SIGTERM
        time.sleep(0.0005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def survivors(forks: int) -> int:
    """Fork `forks` children, and return how many survive SIGTERM."""
    return sum(not ended_by_sigterm(fork_sleeper()) for _ in range(forks))


def survivors_of_threads(forks: int) -> int:
    """Fork `forks` children from several threads, and return how many survive SIGTERM."""
    counts: list[int] = []
    shares = [len(range(number, forks, NUM_THREADS)) for number in range(NUM_THREADS)]
    threads = [threading.Thread(target=lambda share=share: counts.append(survivors(share))) for share in shares]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts)


@contextlib.contextmanager
def busy_thread() -> Iterator[None]:
    """Run a second thread, which receives the signals that the main thread blocks."""
    is_over = threading.Event()
    thread = threading.Thread(target=is_over.wait)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def num_lost_signals(signals: int) -> int:
    """Return how many of `signals` SIGTERMs from another process are lost while this process forks."""
    trieye.process.signals.SAME_WITHIN_S = -1.0  # each signal counts as a separate request
    requests_in, requests_out = os.pipe()
    sender = os.fork()
    if sender == 0:
        os.close(requests_out)
        while os.read(requests_in, 1):
            time.sleep(random.uniform(0, LONGEST_DELAY_S))
            os.kill(os.getppid(), signal.SIGTERM)
        os._exit(0)
    num_lost = sum(not is_signal_received(requests_out) for _ in range(signals))
    os.close(requests_in)
    os.close(requests_out)
    os.waitpid(sender, 0)
    return num_lost


def is_signal_received(requests_out: int) -> bool:
    """Request a signal, fork until it arrives, and return whether it did."""
    try:
        os.write(requests_out, b".")
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            if (child := os.fork()) == 0:
                os._exit(0)
            os.waitpid(child, 0)
    except trieye.RunInterrupted:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        return True
    return False


def main() -> int:
    """Print one JSON line; exit with 1 if there is a problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--forks", type=int, default=400, help="number of children, and of signals to the run")
    parser.add_argument("--runtime", choices=("local", "ray"), default="local")
    options = parser.parse_args()
    warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns about forks of multi-threaded processes
    figures = {}
    with tempfile.TemporaryDirectory() as root:
        config = trieye.TrieyeConfig(
            run_name="forks", persistence={"root_data_dir": root}, sinks={}, runtime={"kind": options.runtime}
        )
        with trieye.Run(config) as run:
            figures["outside_the_loop"] = survivors(options.forks)
            figures["in_threads"] = survivors_of_threads(options.forks)
            with busy_thread():
                figures["lost_signals"] = num_lost_signals(options.forks)
            for _ in run.steps(1):
                figures["in_the_loop"] = survivors(options.forks)
    met = not any(figures.values())
    print(json.dumps({"benchmark": "forks", "forks": options.forks, "survivors_and_lost_signals": figures, "met": met}))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
