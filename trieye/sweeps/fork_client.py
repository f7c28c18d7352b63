"""ForkClient: the driver's side of a fork server, and the workers that it has forked."""

import atexit
import itertools
import json
import os
import pickle
import site
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from multiprocessing.reduction import send_handle

from trieye.sweeps.fork_server import SignalRequest, WorkerRequest
from trieye.sweeps.jobs import Done, JobLimitError
from trieye.sweeps.slots import Assignment

_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from trieye.sweeps.fork_server import main; "
    "main(int(sys.argv[2]), int(sys.argv[3]), sys.orig_argv)"
)
_INSTALLED = {
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    *site.getsitepackages(),
    site.getusersitepackages(),
}
_OURS = ("trieye", "hydra_plugins")
_SHOWN = 300
_EXIT_S = 5.0


@dataclass(slots=True, eq=False)
class Worker:
    """A forked process that runs jobs.

    Attributes:
        client: Its server.
        number: Its number, unique in the pool.
        connection: Sends it jobs, and receives their outcomes.
        assignment: The resources that it occupies while it is busy.
        pid: Its process; None until it has started.
        index: The job that it runs, if any.
        is_reusable: Whether it may run another job after this one.
        done: The outcome of its last job, while it exits.
        kill_at: When it is killed, if it has not exited.
        excess: Set when it is killed because its job uses too much memory.
    """

    client: "ForkClient"
    number: int
    connection: Connection
    assignment: Assignment
    pid: int | None = None
    index: int | None = None
    is_reusable: bool = False
    done: Done | None = None
    kill_at: float | None = None
    excess: JobLimitError | None = None

    @property
    def is_busy(self) -> bool:
        """Whether it runs a job, or exits after one."""
        return self.index is not None or self.kill_at is not None

    @property
    def is_idle(self) -> bool:
        """Whether it waits for another job."""
        return self.is_reusable and not self.is_busy

    def signal(self, signal_number: int) -> None:
        """Send a signal to its process; SIGKILL also to the processes that this has started."""
        with suppress(OSError):  # the server is dead, and so are its workers
            self.client.connection.send(SignalRequest(self.number, signal_number))


class ForkClient:
    """Starts a fork server and sends it requests.

    Use `server_for`: the server of a process serves all its sweeps.

    Args:
        environment: Environment of the server.

    Attributes:
        connection: Connection to the server, which sends `Started` and `Exited`.
        is_abandoned: Whether it still stops jobs, for which this process does not wait.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.connection, child_connection = Pipe()
        self._numbers = itertools.count()
        self.is_abandoned = False
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - until `close`
        with child_connection, tempfile.TemporaryFile() as setup_file:
            pickle.dump((_installed_modules(), sys.argv), setup_file)
            setup_file.flush()
            descriptors = (child_connection.fileno(), setup_file.fileno())
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, json.dumps([str(path) for path in sys.path]), *map(str, descriptors)],
                env=environment,
                pass_fds=descriptors,
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                start_new_session=True,  # Ctrl-C in the terminal does not reach the jobs
            )

    def fork(self, assignment: Assignment, context: int) -> Worker:
        """Fork a worker.

        Args:
            assignment: Its resources.
            context: File descriptor of a file with the pickled `SweepContext`.

        Raises:
            OSError: The server is dead.
        """
        own_connection, child_connection = Pipe()
        worker = Worker(self, next(self._numbers), own_connection, assignment)
        with child_connection:
            self.connection.send(WorkerRequest(worker.number, {**os.environ, **assignment.environment}))
            for descriptor in (child_connection.fileno(), context):
                send_handle(self.connection, descriptor, self._process.pid)
        return worker

    def printed(self) -> str:
        """Return the last output of the server, on one line."""
        self._output.seek(0)
        return " ".join(self._output.read().decode(errors="replace").split())[-_SHOWN:]

    def close(self) -> None:
        """Let the server end, which stops its forks."""
        self.connection.close()
        self._output.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(0.0 if self.is_abandoned else _EXIT_S)


_clients: dict[tuple[int, str], ForkClient] = {}


def server_for(num_threads: str) -> ForkClient:
    """Return the running fork server of this process, whose libraries use a number of threads, or start it.

    Args:
        num_threads: Value of OMP_NUM_THREADS; "" = unchanged.
    """
    key = (os.getpid(), num_threads)
    if key not in _clients:
        threads = {"OMP_NUM_THREADS": num_threads} if num_threads else {}
        _clients[key] = ForkClient({**os.environ, **threads})
    return _clients[key]


def discard(client: ForkClient) -> None:
    """Forget a server that has died, so that `server_for` starts another one."""
    for key in [key for key, value in _clients.items() if value is client]:
        del _clients[key]
    client.close()


@atexit.register
def _close_all() -> None:
    for (pid, _), client in _clients.items():
        if pid == os.getpid():
            client.close()


def _installed_modules() -> list[str]:
    """Return the modules of installed packages that this process has imported, in the order of their imports.

    The program's own package is left out, also if it is installed.
    """
    roots = tuple({f"{os.path.realpath(path)}{os.sep}" for path in _INSTALLED})
    main_root = str(getattr(getattr(sys.modules["__main__"], "__spec__", None), "name", "__main__")).partition(".")[0]
    return [
        name
        for name, module in list(sys.modules.items())
        if (root := name.partition(".")[0]) not in ("__main__", main_root)
        and (root in _OURS or str(getattr(module, "__file__", None) or "").startswith(roots))
    ]
