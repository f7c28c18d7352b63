"""Fork server of the local backend: a small process with one thread, whose forks run the jobs of a sweep.

It imports the installed packages that the program has imported, so that a fork starts in milliseconds. Each fork
imports the modules of the project itself, so jobs share no state. If an import starts a thread or opens a GPU, which
forks do not survive safely, the server restarts without these imports.
"""

import atexit
import ctypes
import faulthandler
import gc
import importlib
import os
import pickle
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from hydra import compose, initialize

from trieye.process.output import flush_streams, printing_to
from trieye.process.signals import FROM_OUTSIDE
from trieye.sweeps.jobs import ORPHANED_STOP_S, OUTPUT, Done, ReportedError
from trieye.sweeps.main_module import loaded
from trieye.sweeps.working import SweepContext, pickled, work

_POLL_S = 1.0
_PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>
_CUDA = "/dev/nvidia-uvm"


@dataclass(frozen=True, slots=True)
class WorkerRequest:
    """Request to fork a worker, followed by two file descriptors: its connection to the driver, and its context.

    The context is a file with the pickled `SweepContext`.

    Attributes:
        number: Number of the worker.
        environment: Its environment variables.
    """

    number: int
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SignalRequest:
    """Request to send a signal to a worker; SIGKILL also to the processes that it has started."""

    number: int
    signal: int


@dataclass(frozen=True, slots=True)
class Started:
    """Reply: the process of a worker has started."""

    number: int
    pid: int


@dataclass(frozen=True, slots=True)
class Exited:
    """Reply: the process of a worker has exited, with an exit code as of `os.waitstatus_to_exitcode`."""

    number: int
    exit_code: int


class ForkServer:
    """Forks workers for a driver, forwards signals to them, and reports their exits.

    Args:
        control: Connection to the driver.
    """

    def __init__(self, control: Connection) -> None:
        self._control = control
        self._parent = os.getppid()
        self._pids: dict[int, int] = {}  # number of the worker -> pid
        self._interrupted: set[int] = set()
        self._kill_at: float | None = None
        self._exits, self._wakeup = os.pipe()
        for end in (self._exits, self._wakeup):
            os.set_blocking(end, False)

    def serve(self) -> None:
        """Serve until the driver closes the connection and all workers have exited; forks run jobs and exit."""
        signal.signal(signal.SIGCHLD, _ignore)
        signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        while True:
            readable: list[int | Connection] = [self._exits]
            if self._kill_at is None:
                readable.append(self._control)
            ready, _, _ = select.select(readable, [], [], _POLL_S)
            if self._exits in ready:
                os.read(self._exits, 4096)
                self._report_exits()
            if self._control in ready:
                self._answer()
            if self._kill_at is None and os.getppid() != self._parent:
                self._stop()
            if self._kill_at is not None:
                self._report_exits()
                if not self._pids:
                    return
                if time.monotonic() > self._kill_at:
                    self._signal(self._pids.values(), signal.SIGKILL)

    def _answer(self) -> None:
        """Execute the next request."""
        try:
            request = self._control.recv()
            if isinstance(request, SignalRequest):
                if (pid := self._pids.get(request.number)) is not None:
                    self._signal([pid], request.signal)
                return
            descriptors = recv_handle(self._control), recv_handle(self._control)
        except (EOFError, OSError):
            self._stop()
        else:
            self._fork(request, *descriptors)

    def _fork(self, request: WorkerRequest, driver_fd: int, context_fd: int) -> None:
        server_pid, old_mask = os.getpid(), signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            pid = os.fork()
        except OSError:
            self._stop()
            return
        if pid == 0:  # SIGINT remains blocked until a job runs
            os.setsid()
            _die_with(server_pid)
            signal.set_wakeup_fd(-1)
            for signal_number in (*FROM_OUTSIDE, signal.SIGCHLD):
                signal.signal(signal_number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self._control.close()
            os.close(self._exits)
            os.close(self._wakeup)
            run_jobs(Connection(driver_fd), context_fd, request.environment)
            _exit()
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
        os.close(driver_fd)
        os.close(context_fd)
        self._pids[request.number] = pid
        self._tell(Started(request.number, pid))

    def _report_exits(self) -> None:
        for worker_number, worker_pid in list(self._pids.items()):
            pid, status = os.waitpid(worker_pid, os.WNOHANG)
            if pid == 0:
                continue
            if os.WIFSIGNALED(status) or pid in self._interrupted:
                with suppress(ProcessLookupError, PermissionError):  # its children must not run beside another attempt
                    os.killpg(pid, signal.SIGKILL)
            self._interrupted.discard(pid)
            del self._pids[worker_number]
            self._tell(Exited(worker_number, os.waitstatus_to_exitcode(status)))

    def _tell(self, message: Started | Exited) -> None:
        with suppress(OSError):  # the driver is gone
            self._control.send(message)

    def _stop(self) -> None:
        """Interrupt all jobs, since the driver is gone; they are killed later."""
        self._kill_at = time.monotonic() + ORPHANED_STOP_S
        self._signal(self._pids.values(), signal.SIGINT)

    def _signal(self, pids: Iterable[int], signal_number: int) -> None:
        for pid in pids:
            self._interrupted.add(pid)
            with suppress(ProcessLookupError):
                (os.killpg if signal_number == signal.SIGKILL else os.kill)(pid, signal_number)


def run_jobs(driver: Connection, context_fd: int, environment: Mapping[str, str]) -> None:
    """Run the jobs that a driver sends, until it closes the connection.

    Args:
        driver: Connection to the driver.
        context_fd: File descriptor of a file with the pickled `SweepContext`.
        environment: Environment variables of the jobs.
    """
    os.environ.clear()
    os.environ.update(environment)
    faulthandler.enable()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr] # both are text files
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        numpy_random.seed()  # otherwise all workers would inherit one state
    with suppress(EOFError, OSError):
        while True:
            index, overrides, directory = driver.recv()
            try:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
                try:
                    done = work(_unpickled(context_fd, directory), index, overrides)
                finally:
                    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            except KeyboardInterrupt:
                done = Done(index, error=ReportedError("it was interrupted; a relaunch continues it"))
            except Exception as error:  # noqa: BLE001 - outside of the job, such as in its directory or its modules
                done = Done(index, error=error)
            driver.send_bytes(pickled(done, directory))


def _exit() -> NoReturn:
    """Exit like a program whose main module has ended, except that no module is torn down (60 ms of CPU)."""
    threading._shutdown()  # type: ignore[attr-defined] # noqa: SLF001 - waits for threads, as `multiprocessing` does
    atexit._run_exitfuncs()  # noqa: SLF001 - wandb and others save in them
    flush_streams()
    os._exit(0)


def _unpickled(context_fd: int, directory: Path) -> SweepContext:
    """Return the context of the sweep, anew for each job, which may change it; imports the modules of the project."""
    with printing_to(directory / OUTPUT):
        try:
            context: SweepContext = loaded(_content(context_fd))
        except Exception:
            traceback.print_exc()
            raise
        streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = streams  # which a module may have replaced, for its job
    return context


def _die_with(server_pid: int) -> None:
    """Let the kernel kill this process when the server dies, where it can."""
    if sys.platform == "linux":
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != server_pid:
            os._exit(1)


_libc: Any = ctypes.CDLL(None)


def _warm_up() -> None:
    """Compose a config, so that forks inherit Hydra's plugins and the tables of its parsers (80 ms of CPU)."""
    with initialize(version_base=None, config_path=None):
        compose(overrides=["hydra.job.name=x", "+a=0.1", "+b=[1,x]", "+c={d: ${a}}"], return_hydra_config=True)


def _preload(modules: Sequence[str]) -> None:
    for name in modules:
        if name not in sys.modules:
            with suppress(Exception):  # the program may have imported it under other conditions
                importlib.import_module(name)


def _is_safe_to_fork() -> bool:
    """Return whether the process has one thread, and no GPU is open."""
    threads, files = Path("/proc/self/task"), Path("/proc/self/fd")
    if not threads.is_dir():
        return sys.platform != "darwin"
    links = []
    for link in files.iterdir():
        with suppress(OSError):
            links.append(str(link.readlink()))
    return sum(1 for _ in threads.iterdir()) == 1 and _CUDA not in links


def _ignore(number: int, frame: FrameType | None) -> None:
    """Do nothing; a Python function, since ignored signals would be ignored in forks and their programs as well."""


def _content(descriptor: int) -> bytes:
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)


def main(control_fd: int, setup_fd: int, command: Sequence[str]) -> None:
    """Run the server, and in its forks their jobs.

    Args:
        control_fd: File descriptor of the connection to the driver.
        setup_fd: File descriptor of a file with the pickled modules to import, and the arguments of the program.
        command: Command that starts this server.
    """
    for signal_number in (signal.SIGINT, *FROM_OUTSIDE):  # schedulers signal every process of a job
        signal.signal(signal_number, _ignore)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    modules, sys.argv[:] = pickle.loads(_content(setup_fd))  # noqa: S301 - written by the driver
    _warm_up()
    if command[-1] != "bare":
        _preload(modules)
        if not _is_safe_to_fork():
            for descriptor in (control_fd, setup_fd):
                os.set_inheritable(descriptor, True)  # noqa: FBT003 - not by keyword
            os.execv(command[0], [*command, "bare"])  # noqa: S606 - the command that started this process
    os.close(setup_fd)
    gc.freeze()  # collections in forks then copy no shared pages
    ForkServer(Connection(control_fd)).serve()
    _exit()
