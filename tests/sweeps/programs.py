"""Programs of the tests of sweeps, started as users start them."""

import subprocess
import sys


def started(directory, program, *words, timeout=120):
    """Run a program in a directory, and return how it ended."""
    (directory / "program.py").write_text(program)
    command = [sys.executable, "program.py", *words]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=timeout)
