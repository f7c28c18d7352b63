"""Run a program in the foreground: forward signals to it and return its exit code."""

import os
import signal
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from trieye.process.signals import FROM_OUTSIDE, exit_code_of


def run_program(command: Sequence[str], directory: Path | str, *, stdout: TextIO | None = None) -> int:
    """Run a program to its end and return its exit code; 128 + N if signal N killed it, as in a shell.

    Ctrl-C reaches the program through the terminal; the signals of schedulers are forwarded.

    Args:
        command: Program and arguments.
        directory: Working directory.
        stdout: Target of its standard output; None inherits standard output.
    """
    process = subprocess.Popen(command, cwd=directory, env=environment_in(directory), stdout=stdout)
    forwarded_signals = FROM_OUTSIDE if threading.current_thread() is threading.main_thread() else ()
    handlers = {signum: signal.signal(signum, lambda got, _: process.send_signal(got)) for signum in forwarded_signals}
    try:
        while True:
            try:
                code = process.wait()
            except KeyboardInterrupt:
                continue
            return exit_code_of(-code) if code < 0 else code
    finally:
        for signum, handler in handlers.items():
            signal.signal(signum, handler)


def environment_in(directory: Path | str) -> dict[str, str]:
    """Return the environment of a program in a working directory, with its `PWD` as a shell sets it."""
    pwd = Path(os.environ.get("PWD", ""))  # may contain links
    is_current = pwd.is_absolute() and pwd.resolve() == Path(directory).resolve()
    return {**os.environ, "PWD": str(pwd if is_current else Path(directory).absolute())}
