"""The peer of several goals: trieye 0.1.5 from the package index, in an environment of its own beside `.venv`.

Everything else in that environment has the versions of `constraints.txt`, so that only trieye differs.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

VERSION = "0.1.5"
ROOT = Path(__file__).resolve().parents[2]
DIRECTORY = ROOT / ".peers" / "trieye015"
# the one line of settings without which it does nothing at all: MLflow refuses its file store since 3.17
SETTINGS = {"MLFLOW_ALLOW_FILE_STORE": "true"}


class Peer:
    """A process of trieye 0.1.5 that measures once whenever it is asked to, so that both sides can take turns.

    Args:
        script: A file in this directory, which prints a line of JSON for every line that it reads.
        *arguments: What it is given.

    Raises:
        RuntimeError: trieye 0.1.5 could not be installed.
    """

    def __init__(self, script: str, *arguments: object) -> None:
        self._command = [str(installed()), str(Path(__file__).with_name(script)), *map(str, arguments)]
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed in __exit__
        self._process: subprocess.Popen[str]

    def __enter__(self) -> Self:
        # with PYTHONPATH it could import the trieye of this directory instead of its own
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env=environment | SETTINGS,
            cwd=DIRECTORY,  # Ray's processes import from there before anything else
            text=True,
        )
        return self

    def measure(self) -> dict[str, float]:
        """Return the figures of one more round.

        Raises:
            RuntimeError: The process has ended; the message holds what it said.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, and said why
            print(file=self._process.stdin, flush=True)
        for line in self._process.stdout:
            if line.startswith("{"):
                figures: dict[str, float] = json.loads(line)
                return figures
        self._said.seek(0)
        raise RuntimeError(f"{' '.join(self._command)} failed:\n{self._said.read()[-4000:]}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()  # the end of its input is the end of it
        self._said.close()


def installed() -> Path:
    """Return the Python of the peer's environment, which is made if it is not there, not complete or not up to date.

    Raises:
        RuntimeError: It could not be made.
    """
    python = DIRECTORY / ("Scripts" if os.name == "nt" else "bin") / "python"
    constraints = ROOT / "constraints.txt"
    ready = DIRECTORY / ".ready"
    if not ready.exists() or ready.read_text() != constraints.read_text():
        print(f"installing trieye {VERSION}, the peer, into {DIRECTORY} (some minutes, once) ...", file=sys.stderr)
        _run([sys.executable, "-m", "venv", "--clear", str(DIRECTORY)])
        install = [
            str(python),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "-c",
            str(constraints),
        ]
        _run([*install, f"trieye=={VERSION}"])
        ready.write_text(constraints.read_text())
    return python


def _run(command: list[str]) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise RuntimeError(
            f"trieye {VERSION}, against which this benchmark measures, could not be installed into {DIRECTORY}; "
            f"it comes from the package index. `{' '.join(command)}` said:\n{done.stdout[-4000:]}"
        )
