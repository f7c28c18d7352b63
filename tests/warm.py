"""Programs that start in a fork of a process which has imported what takes seconds: Hydra, and torch and MLflow too.

Tests whose subject is not the start of a program use it instead of `subprocess`: an interpreter that imports torch, the
compiler of its first optimizer and MLflow takes 5 s of CPU, and the tests start hundreds. They also create hundreds of
MLflow stores, whose tables take a second: these are copies of a single store.
"""

import atexit
import ctypes
import gc
import importlib
import inspect
import json
import os
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from trieye.sinks.mlflow import store

LIGHT = (
    "trieye.config.hydra.compose", "trieye.config.hydra.main", "trieye.config.hydra.running", "hydra._internal.hydra",
    "hydra.core.plugins", "yaml",
)  # fmt: skip
RUN = (
    *LIGHT, "numpy", "pandas", "pyarrow.parquet", "gymnasium", "trieye.run.run", "trieye.sinks.tensorboard.sink",
    "trieye.experiment.loop", "trieye.cli.verify",
)  # fmt: skip
HEAVY = (
    *RUN, "torch", "torch._dynamo", "mlflow", "mlflow.store.tracking.sqlalchemy_store", "cookiecutter.main",
    "trieye.sinks.mlflow.sink", "trieye.training.engine", "trieye.training.loading", "trieye.training.launch",
    "gymnasium.envs.classic_control",
)  # fmt: skip

STARTED = list(inspect.signature(subprocess.Popen._execute_child).parameters)[1:]
PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
ASKS_FOR_MORE = ("preexec_fn", "pass_fds", "shell", "executable")
TABLES = "TRIEYE_TESTS_TABLES"
"""Variable of the environment: the file of a store with MLflow's tables and nothing else, or where it shall be."""
SUBREAPER = 36
"""`PR_SET_CHILD_SUBREAPER`: who has it becomes the parent of grandchildren whose parent ends."""


class Warm:
    """A process that has imported some modules and forks for each program.

    Args:
        modules: Modules to import before the first fork.
    """

    def __init__(self, modules: tuple[str, ...]) -> None:
        self._asks, asked = socket.socketpair()
        self._startup = startup_variables(os.environ)
        with asked:
            self._server = subprocess.Popen(
                [sys.executable, __file__, str(asked.fileno()), *modules],
                stdin=subprocess.DEVNULL,
                pass_fds=[asked.fileno()],
                env={**os.environ, "PYTHONWARNINGS": "error::DeprecationWarning:trieye"},
            )
        self._lock = threading.Lock()
        atexit.register(self.close)

    def close(self) -> None:
        """End the process; a second call does nothing."""
        self._asks.close()
        self._server.wait()

    def is_alive(self) -> bool:
        """Return True if the process can fork."""
        return self._server.poll() is None

    def can_start(self, command: list[str], cwd: str, env: Mapping[str, str]) -> bool:
        """Return True if a fork behaves like a new interpreter with these arguments."""
        is_program = command[0] in {"-c", "-m"} or (command[0].endswith(".py") and Path(cwd, command[0]).is_file())
        is_of_tests = not any("site-packages" in word for word in command[:2])  # Ray's processes start with theirs
        return is_program and is_of_tests and Path(cwd).is_dir() and startup_variables(env) == self._startup

    def start(self, command: list[str], cwd: str, env: Mapping[str, str], files: list[int], *, leads: bool) -> int:
        """Start a program as a child of this process and return its id.

        Args:
            command: `-c` and code, `-m` and a module, or the path of a script, and arguments.
            cwd: Its working directory.
            env: Its environment.
            files: Descriptors of its input, output and errors.
            leads: Whether the program leads a new session.
        """
        asked = json.dumps([command, cwd, dict(env), leads]).encode()
        system = ctypes.CDLL(None)
        with self._lock:
            system.prctl(SUBREAPER, 1)
            try:
                socket.send_fds(self._asks, [len(asked).to_bytes(4)], files)
                self._asks.sendall(asked)
                return int.from_bytes(self._asks.recv(4))
            finally:
                system.prctl(SUBREAPER, 0)


class Popen(subprocess.Popen):
    """A process as `subprocess` starts it; a Python program that can be a fork is one, whose parent is this process.

    `_execute_child` is private: without it programs start as interpreters, and `test_warm.py` fails.
    """

    modules = HEAVY

    def _execute_child(self, *values: Any) -> None:
        given = dict(zip(STARTED, values, strict=True))
        command = [os.fspath(word) for word in given["args"]] if isinstance(given["args"], list | tuple) else []
        cwd, env = os.fspath(given["cwd"] or Path.cwd()), os.environ if given["env"] is None else given["env"]
        is_plain = sys.platform == "linux" and not any(given[name] for name in ASKS_FOR_MORE)
        if not (
            is_plain and command[:1] == [sys.executable] and server_of(self.modules).can_start(command[1:], cwd, env)
        ):
            super()._execute_child(*values)
            return
        pipes = [given[name] for name in PIPES]
        files = [own if end == -1 else end for own, end in enumerate((pipes[0], pipes[3], pipes[5]))]
        self.pid = server_of(self.modules).start(command[1:], cwd, env, files, leads=given["start_new_session"])
        self._child_created = True
        self._close_pipe_fds(*pipes)


class PopenLight(Popen):
    """Forks of a process that has imported Hydra and little else."""

    modules = LIGHT


class PopenRun(Popen):
    """Forks of a process that has imported the modules of a run without torch and MLflow."""

    modules = RUN


POPEN = {each.modules: each for each in (Popen, PopenLight, PopenRun)}
_servers: dict[tuple[str, ...], Warm] = {}


def server_of(modules: tuple[str, ...]) -> Warm:
    """Return the process with these modules, shared by all tests of this process."""
    if modules not in _servers or not _servers[modules].is_alive():
        _servers[modules] = Warm(modules)
    return _servers[modules]


def run(
    command: list[str], cwd: Path, *, env: Mapping[str, str] | None = None, modules: tuple[str, ...] = HEAVY
) -> subprocess.CompletedProcess[str]:
    """Run a Python program, as `subprocess.run` with captured text does.

    Args:
        command: `-c` and code, `-m` and a module, or the path of a script, and arguments.
        cwd: Its working directory.
        env: Its environment; None: the present one.
        modules: Modules that are imported before the program starts.
    """
    command = [sys.executable, *command]
    with POPEN[modules](
        command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            out, err = process.communicate(timeout=280)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


make_tables = store._make_tables


def freeze() -> None:
    """Exempt all present objects from garbage collection, and collect later ones less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


def copy_tables(made: Path, draft: Path) -> None:
    """Create the tables like the sink's `make_tables`, as a copy of the first ones."""
    if made.exists():
        shutil.copyfile(made, draft)
        return
    make_tables(draft)  # and several at once may
    own = made.with_name(f"{os.getpid()}-{threading.get_ident()}")
    shutil.copyfile(draft, own)
    own.replace(made)


def keep_schema() -> None:
    """Let MLflow look up the newest revision of its tables once, and copy the tables of a new store.

    It imports 60 scripts each time it opens a store, and runs them all to create one.
    """
    from mlflow.store.db import utils

    utils._get_latest_schema_revision = cache(utils._get_latest_schema_revision)
    utils._get_latest_schema_revision()
    initialize, made = utils._initialize_tables, Path(os.environ[TABLES])

    def copied(engine: Any) -> None:
        if engine.url.database and made.exists():
            engine.dispose()
            shutil.copyfile(made, engine.url.database)
        else:
            initialize(engine)

    utils._initialize_tables = copied


def startup_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Return what only an interpreter that starts reads."""
    return {name: value for name, value in env.items() if name.startswith("PYTHON")}


def serve(asked: socket.socket, modules: list[str]) -> tuple[list[str], str]:
    """Fork for each request; a child returns from here with its command and its directory."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C at the terminal is for the tests
    for module in modules:
        importlib.import_module(module)
    if "mlflow" in modules:
        keep_schema()
    store._make_tables = partial(copy_tables, Path(os.environ[TABLES]))
    freeze()  # a collection in a child would copy all of it, which takes seconds
    while True:
        size, files, _, _ = socket.recv_fds(asked, 4, 3)
        if not size:
            os._exit(0)
        command, cwd, env, leads = json.loads(asked.recv(int.from_bytes(size), socket.MSG_WAITALL))
        here, there = socket.socketpair()
        if between := os.fork():
            with here, there:
                pid = here.recv(4)
                os.waitpid(between, 0)  # from now on the program is a child of the tests
                here.sendall(b".")
            for each in files:
                os.close(each)
            asked.sendall(pid)
            continue
        if os.fork():
            os._exit(0)
        if leads:
            os.setsid()
        with here, there, asked:
            there.sendall(os.getpid().to_bytes(4))
            there.recv(1)
        for own, each in enumerate(files):
            os.dup2(each, own)
            os.close(each)
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(env)
        return command, cwd


def become(command: list[str], cwd: str) -> None:
    """Run a program as an interpreter does that starts with it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    importlib.invalidate_caches()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    for file, is_errors in ((sys.stdout, False), (sys.stderr, True)):
        file.reconfigure(line_buffering=is_errors or file.isatty(), write_through="PYTHONUNBUFFERED" in os.environ)
    sys.orig_argv = [sys.executable, *command]
    if command[0] == "-c":
        sys.argv, sys.path[0], sys.modules["__main__"] = ["-c", *command[2:]], "", ModuleType("__main__")
        exec(command[1], vars(sys.modules["__main__"]))  # noqa: S102 - as `python -c` does
    elif command[0] == "-m":
        sys.argv, sys.path[0] = command[1:], cwd
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        script = str(Path(cwd, command[0]))
        sys.argv, sys.path[0] = list(command), str(Path(script).parent)
        runpy.run_path(script, run_name="__main__")


def end(code: int) -> NoReturn:
    """End as an interpreter does, by SIGINT if the code says so, but take nothing apart: that copies all imports."""
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    if code == -signal.SIGINT:  # by which an interpreter ends, too
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code)


def main() -> NoReturn:
    """Fork for each request, and in a child run its program."""
    program = serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
    try:
        become(*program)
    except SystemExit as wanted:
        if isinstance(wanted.code, str):
            sys.stderr.write(f"{wanted.code}\n")
        end(wanted.code if isinstance(wanted.code, int) else int(wanted.code is not None))
    except KeyboardInterrupt:
        sys.excepthook(*sys.exc_info())
        end(-signal.SIGINT)
    except Exception:  # noqa: BLE001 - any that the program lets through
        sys.excepthook(*sys.exc_info())
        end(1)
    end(0)


if __name__ == "__main__":
    main()
