"""trieye 0.1.5, the peer of several benchmarks, in a separate environment in `.peers`.

All other packages in that environment have the versions of `constraints.txt`, so only trieye differs.
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
SCRIPTS = ROOT / "benchmarks" / "trieye015"
# MLflow 3.17 and newer refuse the file store that trieye 0.1.5 needs
SETTINGS = {"MLFLOW_ALLOW_FILE_STORE": "true"}


class Peer:
    """A process with trieye 0.1.5 that measures one round per request, so that rounds of both versions alternate.

    Args:
        script: A file in `benchmarks/trieye015` that prints one JSON line per line of stdin.
        *arguments: Command-line arguments of the script.

    Raises:
        RuntimeError: trieye 0.1.5 could not be installed.
    """

    def __init__(self, script: str, *arguments: object) -> None:
        self._command = [str(installed()), str(SCRIPTS / script), *map(str, arguments)]
        self._stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed in __exit__
        self._process: subprocess.Popen[str]

    def __enter__(self) -> Self:
        # PYTHONPATH could make it import the trieye of this repository
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=environment | SETTINGS,
            cwd=DIRECTORY,  # comes first on the import path of Ray workers
            text=True,
        )
        return self

    def measure(self) -> dict[str, float]:
        """Measure one round and return its figures.

        Raises:
            RuntimeError: The process has exited; the message contains its stderr.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # the process has exited; its stderr is raised below
            print(file=self._process.stdin, flush=True)
        for line in self._process.stdout:
            if line.startswith("{"):
                figures: dict[str, float] = json.loads(line)
                return figures
        self._stderr.seek(0)
        raise RuntimeError(f"{' '.join(self._command)} failed:\n{self._stderr.read()[-4000:]}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()  # the script exits at the end of stdin
        self._stderr.close()


def installed() -> Path:
    """Return the Python of the peer's environment; create the environment if it is missing, incomplete or outdated.

    Raises:
        RuntimeError: The installation failed.
    """
    python = DIRECTORY / ("Scripts" if os.name == "nt" else "bin") / "python"
    constraints = ROOT / "constraints.txt"
    ready = DIRECTORY / ".ready"
    if not ready.exists() or ready.read_text() != constraints.read_text():
        print(f"installing trieye {VERSION} into {DIRECTORY} (once, takes a few minutes) ...", file=sys.stderr)
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
            f"trieye {VERSION}, the peer of this benchmark, could not be installed into {DIRECTORY}: "
            f"`{' '.join(command)}` exited with {done.returncode}:\n{done.stdout[-4000:]}"
        )
