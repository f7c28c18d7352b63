"""Start programs in forks of a process that has imported slow modules: Hydra, torch, MLflow.

Tests whose subject is not the start of a program use it instead of `subprocess`: importing torch, the compiler of its
first optimizer and MLflow takes 5 s of CPU, and the tests start hundreds of programs. They also create hundreds of
MLflow stores, whose tables take a second: each store is a copy of the first one.
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
import weakref
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import trieye
from trieye.sinks.mlflow import store

LIGHT = (
    "trieye.config.hydra.compose", "trieye.config.hydra.main", "trieye.config.hydra.running", "hydra._internal.hydra",
    "hydra._internal.logging_config", "hydra.core.plugins", "yaml", "trieye.config.schedule",
)  # fmt: skip
RUN = (
    *LIGHT, "numpy", "pandas", "pyarrow.pandas_compat", "pyarrow.parquet", "gymnasium", "trieye.run.run",
    "trieye.sinks.tensorboard.sink", "tensorboard.compat.proto.event_pb2",
    "tensorboard.plugins.hparams.plugin_data_pb2", "trieye.experiment.loop", "trieye.cli.verify",
    "trieye.sweeps.sweeper", "trieye.sweeps.launcher",
)  # fmt: skip
HEAVY = (
    *RUN, "torch", "torch._dynamo", "mlflow", "mlflow.store.tracking.sqlalchemy_store", "cookiecutter.main",
    "sqlalchemy.dialects.sqlite", "mlflow.store.tracking.sqlalchemy_workspace_store", "trieye.sinks.mlflow.sink",
    "trieye.training.engine", "trieye.training.gae", "trieye.training.loading", "trieye.training.launch",
    "gymnasium.envs.classic_control",
)  # fmt: skip

BASES = {HEAVY: RUN, RUN: LIGHT}
PlainPopen = subprocess.Popen  # tests replace `subprocess.Popen`

PARAMETERS = list(inspect.signature(subprocess.Popen._execute_child).parameters)[1:]
PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
UNSUPPORTED = ("preexec_fn", "pass_fds", "shell", "executable")
TABLES = "TRIEYE_TESTS_TABLES"
"""Environment variable: path of an MLflow store with empty tables, which the first store creates."""
SUBREAPER = 36
"""`PR_SET_CHILD_SUBREAPER`: the process becomes the parent of grandchildren whose parent ends."""


class Warm:
    """A process that has imported some modules and forks for each program.

    Args:
        modules: Modules to import before the first fork.
    """

    def __init__(self, modules: tuple[str, ...]) -> None:
        self._requests, receiver = socket.socketpair()
        self._startup = startup_variables(os.environ)
        command, base = [sys.executable, __file__, *modules], BASES.get(modules)
        with receiver:
            if base is not None:  # a fork of another warm process imports the other modules only
                self._server = POPEN[base](command, stdin=receiver)
            else:
                env = {**os.environ, "PYTHONWARNINGS": "error::DeprecationWarning:trieye"}
                self._server = PlainPopen(command, stdin=receiver, env=env)
        self._lock = threading.Lock()
        atexit.register(self.close)

    def close(self) -> None:
        """End the process; a second call does nothing."""
        self._requests.close()
        self._server.wait()

    def is_alive(self) -> bool:
        """Return True if the process can fork."""
        return self._server.poll() is None

    def can_start(self, command: list[str], cwd: str, env: Mapping[str, str]) -> bool:
        """Return True if a fork behaves like a new interpreter with these arguments."""
        is_program = command[0] in {"-c", "-m"} or (command[0].endswith(".py") and Path(cwd, command[0]).is_file())
        is_own_program = not any("site-packages" in word for word in command[:2])  # as in Ray's commands
        return is_program and is_own_program and Path(cwd).is_dir() and startup_variables(env) == self._startup

    def start(self, command: list[str], cwd: str, env: Mapping[str, str], files: list[int], *, leads: bool) -> int:
        """Start a program as a child of this process and return its id.

        Args:
            command: `-c` and code, `-m` and a module, or the path of a script, and arguments.
            cwd: Its working directory.
            env: Its environment.
            files: Descriptors of its input, output and errors.
            leads: Whether the program leads a new session.
        """
        request = json.dumps([command, cwd, dict(env), leads]).encode()
        system = ctypes.CDLL(None)
        with self._lock:
            system.prctl(SUBREAPER, 1)
            try:
                socket.send_fds(self._requests, [len(request).to_bytes(4)], files)
                self._requests.sendall(request)
                return int.from_bytes(self._requests.recv(4))
            finally:
                system.prctl(SUBREAPER, 0)


class Popen(subprocess.Popen):
    """A process as `subprocess` starts it; a Python program is a fork if possible, and a child of this process.

    `_execute_child` is private: without it, programs start as interpreters, and `test_warm.py` fails.
    """

    modules = HEAVY

    def _execute_child(self, *arguments: Any) -> None:
        values = dict(zip(PARAMETERS, arguments, strict=True))
        command = [os.fspath(word) for word in values["args"]] if isinstance(values["args"], list | tuple) else []
        cwd, env = os.fspath(values["cwd"] or Path.cwd()), os.environ if values["env"] is None else values["env"]
        is_plain = sys.platform == "linux" and not any(values[name] for name in UNSUPPORTED)
        if not (
            is_plain and command[:1] == [sys.executable] and server_of(self.modules).can_start(command[1:], cwd, env)
        ):
            super()._execute_child(*arguments)
            return
        pipes = [values[name] for name in PIPES]
        files = [standard if end == -1 else end for standard, end in enumerate((pipes[0], pipes[3], pipes[5]))]
        self.pid = server_of(self.modules).start(command[1:], cwd, env, files, leads=values["start_new_session"])
        self._child_created = True
        self._close_pipe_fds(*pipes)


class PopenLight(Popen):
    """Forks of a process that has imported little more than Hydra."""

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
        env: Its environment; None for the current one.
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
    """Exempt all existing objects from garbage collection, and collect later ones less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


def copy_tables(template: Path, draft: Path) -> None:
    """Create the tables of a store like the sink's `make_tables`, as a copy of a template."""
    if template.exists():
        shutil.copyfile(template, draft)
        return
    make_tables(draft)  # concurrent processes may do the same
    temporary = template.with_name(f"{os.getpid()}-{threading.get_ident()}")
    shutil.copyfile(draft, temporary)
    temporary.replace(template)


def keep_schema() -> None:
    """Cache the newest schema revision of MLflow, and copy the tables of a new store.

    MLflow imports 60 scripts each time it opens a store, and runs all of them to create one.
    """
    from mlflow.store.db import utils

    utils._get_latest_schema_revision = cache(utils._get_latest_schema_revision)
    utils._get_latest_schema_revision()
    initialize, template = utils._initialize_tables, Path(os.environ[TABLES])

    def copy(engine: Any) -> None:
        if engine.url.database and template.exists():
            engine.dispose()
            shutil.copyfile(template, engine.url.database)
        else:
            initialize(engine)

    utils._initialize_tables = copy


def startup_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that an interpreter reads only at its start."""
    return {name: value for name, value in env.items() if name.startswith("PYTHON")}


def prepare(modules: list[str]) -> None:
    """Import modules, and do all that each program would do again at its start or exit."""
    for module in modules:
        importlib.import_module(module)
    trieye.compose()  # the first composition scans for plugins and completes models, which takes 40 ms
    for finalizer in weakref.finalize._registry.values():
        finalizer.atexit = False  # torch would unregister 174 libraries of operators, which takes 30 ms
    if "mlflow" in modules:
        keep_schema()
    store._make_tables = partial(copy_tables, Path(os.environ[TABLES]))
    freeze()  # a collection in a child would copy all imported objects, which takes seconds


def serve(requests: socket.socket, modules: list[str]) -> tuple[list[str], str]:
    """Fork for each request; a child returns from here with its command and its directory."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C at the terminal is for the tests
    prepare(modules)
    while True:
        size, files, _, _ = socket.recv_fds(requests, 4, 3)
        if not size:
            os._exit(0)
        command, cwd, env, leads = json.loads(requests.recv(int.from_bytes(size), socket.MSG_WAITALL))
        parent_end, child_end = socket.socketpair()
        if between := os.fork():
            with parent_end, child_end:
                pid = parent_end.recv(4)
                os.waitpid(between, 0)  # from now on the program is a child of the tests
                parent_end.sendall(b".")
            for each in files:
                os.close(each)
            requests.sendall(pid)
            continue
        if os.fork():
            os._exit(0)
        if leads:
            os.setsid()
        with parent_end, child_end, requests:
            child_end.sendall(os.getpid().to_bytes(4))
            child_end.recv(1)
        for target, each in enumerate(files):
            os.dup2(each, target)
            os.close(each)
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(env)
        return command, cwd


def become(command: list[str], cwd: str) -> None:
    """Run a program as a new interpreter does."""
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
    """Exit as an interpreter does, by SIGINT for that code, but without cleanup: it would copy all imported objects."""
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    if code == -signal.SIGINT:  # as an interpreter ends
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code)


def main() -> NoReturn:
    """Fork for each request, and in a child run its program."""
    program = serve(socket.socket(fileno=sys.stdin.fileno()), sys.argv[1:])
    try:
        become(*program)
    except SystemExit as error:
        if isinstance(error.code, str):
            sys.stderr.write(f"{error.code}\n")
        end(error.code if isinstance(error.code, int) else int(error.code is not None))
    except KeyboardInterrupt:
        sys.excepthook(*sys.exc_info())
        end(-signal.SIGINT)
    except Exception:  # noqa: BLE001 - any uncaught error of the program
        sys.excepthook(*sys.exc_info())
        end(1)
    end(0)


if __name__ == "__main__":
    main()
