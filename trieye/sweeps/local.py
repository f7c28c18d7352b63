"""LocalPool: runs the jobs of a sweep in processes of this machine, without Ray."""

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import wait
from signal import SIGINT, SIGKILL, Signals
from typing import Any

from trieye.config.launcher import LauncherConfig
from trieye.exceptions import ConfigurationError
from trieye.sweeps.fork_client import ForkClient, Worker, discard, server_for
from trieye.sweeps.fork_server import Exited, Started
from trieye.sweeps.jobs import Done, JobLimitError
from trieye.sweeps.main_module import dumped
from trieye.sweeps.pools import STOP_S, Died, Outcome, WorkerPool
from trieye.sweeps.slots import Slots, gibibytes, num_cores, used_bytes
from trieye.sweeps.working import SweepContext, unpickled

_POLL_S = 0.05
_CHECK_MEMORY_S = 0.5


class LocalPool(WorkerPool):
    """Runs each job in a fork of a small server process, when its CPUs, GPUs and memory are free.

    Args:
        context: Data that all jobs share.
        options: The options of the launcher.

    Raises:
        ConfigurationError: An option needs Ray.
    """

    def __init__(self, context: SweepContext, options: LauncherConfig) -> None:
        if options.resources:
            raise ConfigurationError(
                f"hydra.launcher.resources={options.resources}: custom resources need hydra.launcher.backend=ray; "
                "backend=local knows num_cpus, num_gpus and memory"
            )
        self._directory, self._options = context.directory, options
        self._context_file = tempfile.TemporaryFile()  # noqa: SIM115 - until `close`
        self._context_file.write(dumped(context))
        self._context_file.flush()
        self._slots = Slots.of_machine()
        self._check_memory_at = 0.0
        self._workers: list[Worker] = []
        self._outcomes: list[Outcome] = []

    def has_room(self, resources: Mapping[str, Any]) -> bool:
        """Return whether a job with these resources may start now."""
        num_busy = sum(worker.is_busy for worker in self._workers)
        max_jobs = self._options.num_jobs or (None if resources.get("num_cpus") else num_cores())
        if max_jobs is not None and num_busy >= max_jobs:
            return False
        return not num_busy or self._slots.find(resources) is not None

    def refusal(self, resources: Mapping[str, Any]) -> str | None:
        """Return an error message if a job requests more than this machine has, else None."""
        return self._slots.refusal(resources)

    def begin(self, index: int, overrides: Sequence[str], resources: Mapping[str, Any]) -> None:
        """Start a job."""
        if (refusal := self._slots.refusal(resources)) is not None:
            self._outcomes.append(Done(index, error=ConfigurationError(refusal)))
            return
        assignment = self._slots.find(resources)
        assert assignment is not None  # noqa: S101 - `has_room` has found it
        idle_workers = (worker for worker in self._workers if worker.is_idle)
        environment, server = assignment.environment, None
        worker = next((worker for worker in idle_workers if worker.assignment.environment == environment), None)
        try:
            if worker is None:
                server = server_for(environment.get("OMP_NUM_THREADS", ""))
                worker = server.fork(assignment, self._context_file.fileno())
                worker.is_reusable = self._options.isolate == "worker"
                self._workers.append(worker)
            worker.connection.send((index, tuple(overrides), self._directory / str(index)))
        except OSError as error:
            if server is not None and not self._workers:  # no process of it is there to report its death
                discard(server)
            self._outcomes.append(Died(index, f"no process could be started for it: {error}"))
            return
        worker.index, worker.assignment = index, assignment
        self._slots.take(assignment)

    def wait(self, timeout_s: float) -> list[Outcome]:
        """Return ended jobs: immediately if there are any, else after at most `timeout_s`."""
        self._receive(0.0 if self._outcomes else timeout_s)
        self._enforce_limits()
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def _receive(self, timeout_s: float) -> None:
        """Wait for messages, and handle them: outcomes first, then exits."""
        clients = {worker.client.connection: worker.client for worker in self._workers}
        workers = {worker.connection: worker for worker in self._workers if worker.index is not None}
        ready_connections = wait([*workers, *clients], timeout_s) if clients else []
        for connection in ready_connections:
            if connection in workers:
                self._take_outcome(workers[connection])
        for connection in ready_connections:
            if connection in clients:
                self._handle_replies(clients[connection])

    def _take_outcome(self, worker: Worker) -> None:
        """Receive the outcome of a job; do nothing if its process died while it wrote."""
        index = worker.index
        if index is None:
            return
        try:
            done = unpickled(worker.connection.recv_bytes())
        except (EOFError, OSError):
            return
        worker.index = worker.excess = None
        if worker.is_reusable:
            self._outcomes.append(done)
            self._slots.release(worker.assignment)
        else:  # the job has ended when its process has exited
            worker.connection.close()
            worker.done, worker.kill_at = done, time.monotonic() + STOP_S

    def _handle_replies(self, client: ForkClient) -> None:
        workers = {worker.number: worker for worker in self._workers if worker.client is client}
        try:
            while client.connection.poll():
                reply = client.connection.recv()
                if (worker := workers.get(reply.number)) is None:  # of an earlier sweep
                    continue
                if isinstance(reply, Started):
                    worker.pid = reply.pid
                elif isinstance(reply, Exited):
                    self._take_exit(worker, _reason_of(reply.exit_code))
        except (EOFError, OSError):
            reason = f"its fork server died: {client.printed() or 'it was killed'}"
            discard(client)
            for worker in [worker for worker in self._workers if worker.client is client]:
                self._take_exit(worker, reason)

    def _take_exit(self, worker: Worker, reason: str) -> None:
        if worker.index is not None and worker.connection.poll():
            self._take_outcome(worker)
        if worker.done is not None:
            self._outcomes.append(worker.done)
        elif worker.index is not None:
            self._outcomes.append(
                Done(worker.index, error=worker.excess) if worker.excess else Died(worker.index, reason)
            )
        if worker.is_busy:
            self._slots.release(worker.assignment)
        worker.connection.close()
        self._workers.remove(worker)

    def _enforce_limits(self) -> None:
        for worker in self._workers:
            if worker.kill_at is not None and time.monotonic() > worker.kill_at:
                worker.signal(SIGKILL)
        if time.monotonic() < self._check_memory_at:
            return
        for worker in self._running():
            limit = int(worker.assignment.memory)
            if limit and worker.pid is not None and (used_memory := used_bytes(worker.pid)) > limit:
                worker.excess = JobLimitError(
                    f"it used {gibibytes(used_memory)} of memory, more than hydra.launcher.memory={limit} "
                    f"({gibibytes(limit)})"
                )
                worker.signal(SIGKILL)
        self._check_memory_at = time.monotonic() + _CHECK_MEMORY_S

    def _running(self, index: int | None = None) -> Iterator[Worker]:
        for worker in list(self._workers):
            if worker.index is not None and index in (None, worker.index):
                yield worker

    def cancel(self, index: int) -> None:
        """Interrupt a job like Ctrl-C."""
        for worker in self._running(index):
            worker.is_reusable = False  # the signal may arrive after the job
            worker.signal(SIGINT)

    def kill(self, index: int) -> None:
        """Kill a job, and the processes that it has started."""
        for worker in self._running(index):
            worker.signal(SIGKILL)

    def stop(self) -> None:
        """Stop all jobs: interrupt them like Ctrl-C, and kill them after 30 s."""
        for worker in self._running():
            worker.signal(SIGINT)
        deadline = time.monotonic() + STOP_S
        while any(self._running()):
            if time.monotonic() > deadline:
                for worker in self._running():
                    worker.signal(SIGKILL)
            self._receive(_POLL_S)

    def close(self) -> None:
        """End the processes that run no job; their server interrupts the other ones, and kills them 20 s later."""
        for worker in self._running():
            worker.client.is_abandoned = True
        for worker in self._workers:
            worker.connection.close()
        self._workers.clear()
        self._context_file.close()


def _reason_of(exit_code: int) -> str:
    if exit_code >= 0:
        return f"it exited with code {exit_code} before the job returned"
    name = Signals(-exit_code).name
    return f"{name}, perhaps because memory ran out" if name == "SIGKILL" else name
