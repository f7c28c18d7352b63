"""Start programs on a separate terminal, and read their output."""

import contextlib
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from io import FileIO


@contextlib.contextmanager
def on_a_terminal(
    code: str, *arguments: str, start_new_session: bool = False, **variables: str
) -> Iterator[tuple[FileIO, subprocess.Popen[bytes]]]:
    """Run a program on a separate terminal; yield the other end of the terminal, and the process."""
    descriptor, program_end = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=program_end,
        stdout=program_end,
        stderr=program_end,
        env={**os.environ, "TERM": "xterm", "PYTHONPATH": os.pathsep.join(sys.path), **variables},
        start_new_session=start_new_session,
    )
    os.close(program_end)
    with FileIO(descriptor, "r+") as terminal:
        try:
            yield terminal, process
        finally:
            process.kill()
            process.wait()


def read_until(terminal: FileIO, pattern: str, within_s: float = 30.0) -> str:
    """Return the output of a program up to a pattern."""
    output, ends = "", time.monotonic() + within_s
    while not re.search(pattern, output):
        assert time.monotonic() < ends, output
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                output += os.read(terminal.fileno(), 4096).decode()
            except OSError as error:  # the program has ended
                raise AssertionError(output) from error
    return output
