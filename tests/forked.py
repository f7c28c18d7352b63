"""Run checks in forked children, and kill forked children at chosen moments."""

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
    """Return the result of a function in a forked child, 0 to 254; 255 if it raises, negative if it hangs."""
    child = _fork()
    if child == 0:
        exit_code = 255
        signal.alarm(PATIENCE_S)
        try:
            exit_code = int(check() or 0)
        finally:
            os._exit(exit_code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


Work = Callable[[Callable[[object], object]], object]
"""Gets a function that reports a line, and works until it is killed; its imports must have been imported before."""


@contextlib.contextmanager
def forked(work: Work) -> Iterator[TextIO]:
    """Start work in a forked child, yield its stream of reported lines, and SIGKILL it when the block ends."""
    child, output = _begin(work)
    with output:
        try:
            yield output
        finally:
            _kill(child)


def lines_until_killed(work: Work, count: int) -> list[str]:
    """SIGKILL a forked child after it has reported `count` lines, and return all its complete lines."""
    child, output = _begin(work)
    with output:
        lines = [output.readline() for _ in range(count)]
        _kill(child)
        lines += output.readlines()
    return [line[:-1] for line in lines if line.endswith("\n")]


def _begin(work: Work) -> tuple[int, TextIO]:
    reading, writing = os.pipe()
    child = _fork()
    if child == 0:
        os.close(reading)
        signal.alarm(5 * PATIENCE_S)
        try:
            work(lambda line: os.write(writing, f"{line}\n".encode()))
        except BaseException:  # noqa: BLE001 - the exit code reports the failure
            traceback.print_exc()
        finally:
            os._exit(255)
    os.close(writing)
    return child, os.fdopen(reading, encoding="utf-8")


def _kill(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL, "the child ended before it was killed"


def _fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forks in processes with threads
        return os.fork()


def killed_at_each(
    operations: set[str], prepare: Callable[[int], Path], work: Callable[[Path], object]
) -> Iterator[tuple[int, Path, bool]]:
    """Kill work with SIGKILL at its first audited operation, at its second, and so on until it completes.

    Args:
        operations: Names of audit events to count, in the process that does the work. `open to write` are the opens
            after which a file may change.
        prepare: Creates the directory for the work to kill at operation `number`.
        work: Runs in a forked child. Its imports must have been imported before.

    Yields:
        The number, the directory after the kill, and whether the work completed, which is the last item.
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
        if event == "open" and "open to write" in operations:
            event = "open to write" if arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) else "open to read"
        is_in_open_directory = event in {"os.remove", "os.rmdir"} and arguments[-1] != -1  # as by shutil.rmtree
        if event in operations and (is_in_open_directory or str(directory) in str(arguments)):
            count += 1
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    work(directory)
