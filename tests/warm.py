"""Programs that start in a fork of a process which has imported what takes seconds: Hydra, and torch and MLflow too.

A test that is not about starting uses it in place of `subprocess.run`: an interpreter that imports torch, its compiler
for the first optimizer, and MLflow takes 7 s of a core, and a hundred tests start one.
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

LIGHT = ("trieye.config.hydra.compose", "hydra._internal.hydra", "hydra.core.plugins", "yaml")
HEAVY = (
    *LIGHT, "torch", "torch._dynamo", "mlflow", "mlflow.store.tracking.sqlalchemy_store", "gymnasium", "pandas",
    "pyarrow.parquet", "cookiecutter.main", "trieye.run.run",
    "trieye.sinks.mlflow.sink", "trieye.sinks.tensorboard.sink",
)  # fmt: skip


class Warm:
    """Runs programs one after the other, each in a fork of a process that has imported some modules.

    Args:
        modules: What it has imported.
    """

    def __init__(self, modules: tuple[str, ...]) -> None:
        self._server = subprocess.Popen(
            [sys.executable, __file__, *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONWARNINGS": "error::DeprecationWarning:trieye"},
            start_new_session=True,
        )
        atexit.register(self.close)

    def close(self) -> None:
        """End the process; a second call does nothing."""
        self._server.communicate()

    def run(
        self, command: list[str], cwd: Path, *, env: Mapping[str, str] | None = None, timeout: float = 280
    ) -> subprocess.CompletedProcess[str]:
        """Run a Python program, as `subprocess.run` with captured text does.

        Args:
            command: `-m` and a module, or the path of a script, and arguments.
            cwd: Its working directory.
            env: Its environment; None: the present one.
            timeout: Seconds after which it is killed.
        """
        with tempfile.TemporaryDirectory() as scratch:
            out, err = Path(scratch, "out"), Path(scratch, "err")
            request = [command, str(cwd), dict(os.environ if env is None else env), str(out), str(err)]
            self._server.stdin.write(json.dumps(request).encode() + b"\n")
            self._server.stdin.flush()
            if not select.select([self._server.stdout], [], [], timeout)[0]:
                os.killpg(self._server.pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(command, timeout, out.read_text(), err.read_text())
            code = json.loads(self._server.stdout.readline())
            return subprocess.CompletedProcess(command, code, out.read_text(), err.read_text())

    def is_alive(self) -> bool:
        """Tell whether it can run another one."""
        return self._server.poll() is None


_servers: dict[tuple[str, ...], Warm] = {}


def run(
    command: list[str], cwd: Path, *, env: Mapping[str, str] | None = None, modules: tuple[str, ...] = HEAVY
) -> subprocess.CompletedProcess[str]:
    """Run a Python program in a fork of a process that later tests use, too; see `Warm.run`."""
    if modules not in _servers or not _servers[modules].is_alive():
        _servers[modules] = Warm(modules)
    return _servers[modules].run(command, cwd, env=env)


def serve(modules: list[str]) -> None:
    """Fork for each request; a child returns from here when its program has ended."""
    answers = os.dup(1)
    for module in modules:
        importlib.import_module(module)
    gc.freeze()  # a collection in a child would copy all of it, which takes seconds
    for line in sys.stdin:
        command, cwd, environment, out, err = json.loads(line)
        if pid := os.fork():
            _, status = os.waitpid(pid, 0)
            os.write(answers, json.dumps(os.waitstatus_to_exitcode(status)).encode() + b"\n")
            continue
        os.close(answers)
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(environment)
        for path, descriptor, flags in ((os.devnull, 0, os.O_RDONLY), (out, 1, os.O_WRONLY), (err, 2, os.O_WRONLY)):
            os.dup2(os.open(path, flags | os.O_CREAT), descriptor)
        importlib.invalidate_caches()
        _become(command, cwd)
        return


def _become(command: list[str], cwd: str) -> None:
    if command[0] == "-m":
        sys.argv, sys.path[0] = command[1:], cwd
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        script = str(Path(cwd, command[0]))
        sys.argv, sys.path[0] = list(command), str(Path(script).parent)
        runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    serve(sys.argv[1:])
