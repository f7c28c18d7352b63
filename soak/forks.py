"""Fork children of an open run and end them by SIGTERM at once, and send SIGTERM to a run that does nothing but fork.

Every child has to end, in whichever phase of its fork the signal comes: outside of the loop and in it, and while other
threads fork as well. And the run has to hear every signal, the ones that come in the middle of a fork included.
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
    """Return a child that sleeps until a signal ends it."""
    child = os.fork()
    if child == 0:
        time.sleep(2 * PATIENCE_S)
        os._exit(0)
    return child


def ended_by_sigterm(child: int) -> bool:
    """Tell whether SIGTERM ends a child that was just forked; afterwards it has ended in any case."""
    if (delay_s := random.uniform(-LONGEST_DELAY_S, LONGEST_DELAY_S)) > 0:  # half of them at once
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
    """Return how many of so many children outlive SIGTERM."""
    return sum(not ended_by_sigterm(fork_sleeper()) for _ in range(forks))


def survivors_of_threads(forks: int) -> int:
    """Return how many children outlive SIGTERM that several threads fork at once."""
    found: list[int] = []
    shares = [len(range(number, forks, NUM_THREADS)) for number in range(NUM_THREADS)]
    threads = [threading.Thread(target=lambda share=share: found.append(survivors(share))) for share in shares]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(found)


@contextlib.contextmanager
def busy_thread() -> Iterator[None]:
    """Keep a second thread, which takes the signals that the first one has blocked."""
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def unheard(signals: int) -> int:
    """Return how many of the SIGTERMs that another process sends to this one, which forks all the time, are lost."""
    trieye.process.signals.SAME_WITHIN_S = -1.0  # each is a request of its own
    heard, told = os.pipe()
    sender = os.fork()
    if sender == 0:
        os.close(told)
        while os.read(heard, 1):
            time.sleep(random.uniform(0, LONGEST_DELAY_S))
            os.kill(os.getppid(), signal.SIGTERM)
        os._exit(0)
    num_lost = sum(not heard_one(told) for _ in range(signals))
    os.close(heard)
    os.close(told)
    os.waitpid(sender, 0)
    return num_lost


def heard_one(told: int) -> bool:
    """Ask for a signal, fork until it is there, and tell whether it came."""
    try:
        os.write(told, b".")
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
    """Print one JSON line; the exit code says whether all is well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--forks", type=int, default=400, help="children, and signals to the run that forks them")
    parser.add_argument("--runtime", choices=("local", "ray"), default="local")
    options = parser.parse_args()
    warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forks beside threads
    figures = {}
    with tempfile.TemporaryDirectory() as root:
        config = trieye.TrieyeConfig(
            run_name="forks", persistence={"root_data_dir": root}, sinks={}, runtime={"kind": options.runtime}
        )
        with trieye.Run(config) as run:
            figures["outside_the_loop"] = survivors(options.forks)
            figures["in_threads"] = survivors_of_threads(options.forks)
            with busy_thread():
                figures["unheard"] = unheard(options.forks)
            for _ in run.steps(1):
                figures["in_the_loop"] = survivors(options.forks)
    met = not any(figures.values())
    print(json.dumps({"benchmark": "forks", "forks": options.forks, "survivors_and_unheard": figures, "met": met}))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
