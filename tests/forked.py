"""What a forked child finds out, or leaves behind when it is killed."""

import contextlib
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

PATIENCE_S = 20


def in_a_child(check: Callable[[], object]) -> int:
    """Return what a function returns in a forked child, 0 to 254; 255 if it raises, and less than 0 if it hangs."""
    child = _fork()
    if child == 0:
        answer = 255
        signal.alarm(PATIENCE_S)
        try:
            answer = int(check() or 0)
        finally:
            os._exit(answer)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


Work = Callable[[Callable[[object], object]], object]
"""Gets what says a line, and goes on until it is killed; what it imports has to be imported by then."""


@contextlib.contextmanager
def forked(work: Work) -> Iterator[TextIO]:
    """Let a forked child work, give the lines that it says, and kill it with SIGKILL when the block ends."""
    child, said = _begin(work)
    with said:
        try:
            yield said
        finally:
            _kill(child)


def said_until_killed(work: Work, count: int) -> list[str]:
    """Let a forked child work, kill it with SIGKILL when it has said so many lines, and return all whole lines."""
    child, said = _begin(work)
    with said:
        lines = [said.readline() for _ in range(count)]
        _kill(child)
        lines += said.readlines()
    return [line[:-1] for line in lines if line.endswith("\n")]


def _begin(work: Work) -> tuple[int, TextIO]:
    reading, writing = os.pipe()
    child = _fork()
    if child == 0:
        os.close(reading)
        signal.alarm(5 * PATIENCE_S)
        try:
            work(lambda line: os.write(writing, f"{line}\n".encode()))
        except BaseException:  # noqa: BLE001 - the parent sees that it was not killed
            traceback.print_exc()
        finally:
            os._exit(255)
    os.close(writing)
    return child, os.fdopen(reading, encoding="utf-8")


def _kill(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL, "it ended by itself"


def _fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forks beside threads
        return os.fork()


def killed_at_each(
    operations: set[str], prepare: Callable[[int], Path], work: Callable[[Path], object]
) -> Iterator[tuple[int, Path, bool]]:
    """Kill some work with SIGKILL at its first audited operation, at its second one, and so on to its end.

    Args:
        operations: Names of audit events; those of the work's own process count.
        prepare: Makes the directory for the work that is killed at the number-th of them.
        work: Is done in a forked child. What it imports has to be imported by then.

    Yields:
        The number, the directory as the work left it, and whether it came to its end; then nothing follows.
    """
    for number in range(1, 1000):
        directory = prepare(number)
        code = in_a_child(lambda number=number, directory=directory: _killed_at(number, operations, work, directory))
        assert code in {0, -signal.SIGKILL}, f"killed at operation {number}: {code}"
        yield number, directory, code == 0
        if code == 0:
            return


def _killed_at(number: int, operations: set[str], work: Callable[[Path], object], directory: Path) -> None:
    count = 0

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal count
        if event in operations and str(directory) in str(arguments):
            count += 1
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    work(directory)
