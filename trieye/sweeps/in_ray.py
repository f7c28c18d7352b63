"""RayPool: runs the jobs of a sweep as Ray tasks."""

import contextlib
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import ray

from trieye.config import RuntimeConfig
from trieye.config.launcher import LauncherConfig
from trieye.exceptions import ConfigurationError, TrieyeError
from trieye.hub.cluster import Node
from trieye.hub.ray_start import join_ray, on_this_node
from trieye.process.progress import say
from trieye.sweeps.jobs import Done, ReportedError
from trieye.sweeps.pools import STOP_S, Died, Outcome, WorkerPool
from trieye.sweeps.slots import shortage
from trieye.sweeps.working import SweepContext, pickled, unpickled, work

_ROUNDING = 1e-6
_LOOK_S = 1.0
_SHOWN = 5


class Starts:
    """Actor that decides whether a job starts or is cancelled; its record may be on the disk of another machine."""

    def __init__(self) -> None:
        self._started: set[int] = set()
        self._cancelled: set[int] = set()

    def start(self, submission: int) -> bool:
        """Return whether a job may start, and record that it has."""
        if submission in self._cancelled:
            return False
        self._started.add(submission)
        return True

    def started(self) -> set[int]:
        """Return the submissions whose jobs have started."""
        return self._started

    def cancel(self, submissions: set[int]) -> set[int]:
        """Cancel the jobs that have not started, and return their submissions."""
        self._cancelled |= submissions - self._started
        return submissions & self._cancelled


def _work(starts: Any, submission: int, context: SweepContext, index: int, *arguments: Any) -> bytes:
    with contextlib.suppress(ray.exceptions.RayActorError):
        # `ray.get` would release the resources of this job while it waits
        if starts is not None and not starts.start.remote(submission).future().result():
            raise KeyboardInterrupt
    return pickled(work(context, index, *arguments), context.directory / str(index))


class RayPool(WorkerPool):
    """Runs jobs as Ray tasks with their requested resources; Ray schedules them when resources are free."""

    def __init__(self, context: SweepContext, options: LauncherConfig) -> None:
        self._starts: Any = None
        if options.address is None:
            join_ray(RuntimeConfig(kind="ray"), log_to_driver=False)  # jobs print to their files
        else:
            cluster = options.model_dump(include={"address", "working_dir", "runtime_env"})
            nodes = join_ray(RuntimeConfig(kind="cluster", **cluster), "hydra.launcher", log_to_driver=False)
            _warn_about_remote_runs(context, [node for node in nodes if not node.sees_root])
            self._starts = ray.remote(num_cpus=0, scheduling_strategy=on_this_node())(Starts).remote()
        self._options, self._context, self._context_reference = options, context, ray.put(context)
        self._task: Any = ray.remote(max_retries=0, max_calls=0 if options.isolate == "worker" else 1)(_work)
        self._running: dict[Any, int] = {}
        self._num_submissions = 0
        self._submissions: dict[int, int] = {}
        self._allocated: dict[int, dict[str, float]] = {}
        self._outcomes: list[Outcome] = []
        self._reported_requests: set[str] = set()
        self._cluster: dict[str, float] = {}
        self._cluster_until = 0.0

    def has_room(self, resources: Mapping[str, Any]) -> bool:
        """Return whether a job with these resources may start now.

        Other work on the cluster does not count: Ray queues the job until resources are free.
        """
        if self._options.num_jobs is not None and len(self._allocated) >= self._options.num_jobs:
            return False
        return not self._allocated or all(
            sum(allocated.get(name, 0.0) for allocated in self._allocated.values()) + amount
            <= self._total(name) + _ROUNDING
            for name, amount in _named(resources).items()
        )

    def refusal(self, resources: Mapping[str, Any]) -> str | None:
        """Return an error message if a job requests more than a local Ray has, else None."""
        keys = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
        for name, amount in _named(resources).items() if self._options.address is None else ():
            if amount > self._total(name) + _ROUNDING:
                return shortage(keys.get(name, f"resources.{name}"), amount, self._total(name))
        return None

    def begin(self, index: int, overrides: Sequence[str], resources: Mapping[str, Any]) -> None:
        """Submit a job; Ray starts it when its resources are free."""
        self._allocated[index] = _named(resources)
        if (refusal := self.refusal(resources)) is not None:
            self._outcomes.append(Done(index, error=ConfigurationError(refusal)))
            return
        config = None
        if self._options.address is not None:  # on another machine, this directory may be missing or differ
            try:
                config = self._context.composed_here(index, overrides)
            except TrieyeError as error:
                self._outcomes.append(Done(index, error=error))
                return
        request = ", ".join(f"{name}={amount}" for name, amount in resources.items() if amount)
        if request not in self._reported_requests and not _fits_on_a_node(self._allocated[index]):
            self._reported_requests.add(request)
            say(f"sweep: job {index} waits: no node of the cluster has {request}")
        self._num_submissions += 1
        self._submissions[index] = self._num_submissions
        task = self._task.options(**resources).remote(
            self._starts, self._num_submissions, self._context_reference, index, overrides, config
        )
        self._running[task] = index

    def wait(self, timeout_s: float) -> list[Outcome]:
        """Return ended jobs: immediately if there are any, else after at most `timeout_s`."""
        outcomes, self._outcomes = self._outcomes, []
        references = list(self._running)
        ended_references = ray.wait(references, timeout=0 if outcomes else timeout_s)[0] if references else []
        if ended_references and len(references) > 1:
            ended_references, _ = ray.wait(references, num_returns=len(references), timeout=0)
        outcomes += [self._outcome(reference) for reference in ended_references]
        for outcome in outcomes:
            del self._allocated[outcome.index]
        return outcomes

    def _outcome(self, reference: Any) -> Outcome:
        index = self._running.pop(reference)
        try:
            return unpickled(ray.get(reference))
        except ray.exceptions.RayTaskError as error:  # an error outside of the job, such as in its directory or config
            return Done(index, error=error.cause if isinstance(error.cause, Exception) else error)
        except (ray.exceptions.TaskCancelledError, KeyboardInterrupt):
            return Done(index, error=ReportedError("it was interrupted; a relaunch continues it"))
        except ray.exceptions.RayError as error:
            return Died(index, " ".join(str(error).split())[:200])

    def _total(self, name: str) -> float:
        """Return the total amount of a resource on all nodes; cached for 1 s, as a call of Ray takes 2 ms."""
        if time.monotonic() > self._cluster_until:
            self._cluster, self._cluster_until = ray.cluster_resources(), time.monotonic() + _LOOK_S
        return self._cluster.get(name, 0.0)

    def kill(self, index: int) -> None:
        """Kill the process of a job."""
        self.cancel(index, force=True)

    def cancel(self, index: int, *, force: bool = False) -> None:
        """Interrupt a job like Ctrl-C, or kill its process."""
        for reference, running_index in self._running.items():
            if running_index == index:
                ray.cancel(reference, force=force)

    def started_jobs(self) -> Collection[int] | None:
        """Return the indices of the jobs whose process has started; None if their records show it."""
        return None if self._starts is None else self._indices(self._starts.started.remote())

    def cancel_waiting(self) -> list[int]:
        """Cancel jobs that wait for nodes of a cluster, and return their indices."""
        if self._starts is None:
            return []
        running = {self._submissions[index] for index in self._running.values()}
        cancelled = self._indices(self._starts.cancel.remote(running))
        for task, index in list(self._running.items()):
            if index in cancelled:
                ray.cancel(task)
                del self._running[task], self._allocated[index]
        return list(cancelled)

    def _indices(self, submissions: Any) -> set[int]:
        """Return the jobs of submissions that the actor returns; none if it was killed."""
        try:
            numbers = ray.get(submissions)
        except ray.exceptions.RayActorError:
            self._starts = None
            return set()
        return {index for index, number in self._submissions.items() if number in numbers}

    def stop(self) -> None:
        """Stop all jobs: interrupt them like Ctrl-C, and kill them after 30 s."""
        references = list(self._running)
        self._running.clear()
        self._allocated.clear()
        for reference in references:
            ray.cancel(reference, force=False)
        late_references = ray.wait(references, num_returns=len(references), timeout=STOP_S)[1] if references else []
        for reference in late_references:
            ray.cancel(reference, force=True)


def _warn_about_remote_runs(context: SweepContext, remote_nodes: Sequence[Node]) -> None:
    if not remote_nodes or context.has_mirror:
        return
    hosts = sorted({node.host or node.address for node in remote_nodes})
    say(
        f"{context.working_dir} is not the same directory on {', '.join(hosts[:_SHOWN])}"
        f"{', ...' if len(hosts) > _SHOWN else ''}: runs stay on the node that ran the job; start in a directory that "
        "all nodes share, or set persistence.mirror=URL, from which `trieye sweep merge` copies the runs here"
    )


def _fits_on_a_node(requested: Mapping[str, float]) -> bool:
    """Return whether a living node has the requested resources, free or not."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return any(all(node.get(name, 0.0) + _ROUNDING >= amount for name, amount in requested.items()) for node in nodes)


def _named(resources: Mapping[str, Any]) -> dict[str, float]:
    """Return the requested resources by Ray's resource names."""
    names = {"num_cpus": "CPU", "num_gpus": "GPU", "memory": "memory"}
    custom_resources: dict[str, float] = resources.get("resources", {})
    return {name: resources[key] for key, name in names.items() if resources.get(key)} | custom_resources
