"""Places for jobs: tasks of Ray."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import ray

from trieye.config import RuntimeConfig
from trieye.config.launcher import LauncherConfig
from trieye.hub.ray_start import join_ray
from trieye.sweeps.jobs import Done
from trieye.sweeps.places import Died, Outcome
from trieye.sweeps.working import Shared, work

_STOP_S = 30.0
"""How long jobs that are stopped may take to save."""


class RayPlaces:
    """Runs jobs as tasks of Ray, each with the resources that it asks for; Ray starts those that there is room for."""

    def __init__(self, shared: Shared, options: LauncherConfig) -> None:
        kind = "ray" if options.address is None else "cluster"
        join_ray(RuntimeConfig(kind=kind, address=options.address))
        self._options, self._shared = options, ray.put(shared)
        self._task: Any = ray.remote(max_retries=0, max_calls=1 if options.isolate == "process" else 0)(work)
        self._running: dict[Any, int] = {}

    @property
    def room(self) -> int:
        """How many jobs may be begun before one has ended."""
        total: dict[str, float] = ray.cluster_resources()
        limits = [
            total.get(name, 0.0) / wanted
            for name, wanted in (("CPU", self._options.num_cpus), ("GPU", self._options.num_gpus))
            if wanted
        ]
        most = max(1, math.floor(min(limits, default=total.get("CPU", 1.0))))
        return min(most, self._options.num_jobs or most) - len(self._running)

    def begin(self, index: int, overrides: Sequence[str], resources: Mapping[str, Any]) -> None:
        """Begin a job as soon as there is room for what it asks for."""
        self._running[self._task.options(**resources).remote(self._shared, index, overrides)] = index

    def wait(self, timeout_s: float) -> list[Outcome]:
        """Return the jobs that have ended, at once if there are some, else within the time."""
        ready, _ = ray.wait(list(self._running), num_returns=1, timeout=timeout_s)
        if ready and len(self._running) > 1:
            ready, _ = ray.wait(list(self._running), num_returns=len(self._running), timeout=0)
        return [self._outcome(reference) for reference in ready]

    def _outcome(self, reference: Any) -> Outcome:
        index = self._running.pop(reference)
        try:
            done: Done = ray.get(reference)
        except ray.exceptions.RayTaskError as error:  # what is around the job: its directory, its config
            return Done(index, error=error.cause if isinstance(error.cause, Exception) else error)
        except (ray.exceptions.TaskCancelledError, KeyboardInterrupt):
            return Done(index, error=RuntimeError(f"job {index} was stopped"))
        except ray.exceptions.RayError as error:
            return Died(index, " ".join(str(error).split())[:200])
        return done

    def cancel(self, index: int) -> None:
        """Stop a job, as by Ctrl-C."""
        for reference, running in self._running.items():
            if running == index:
                ray.cancel(reference, force=False)

    def stop(self) -> None:
        """Stop all jobs: as by Ctrl-C, and after a while by force."""
        waiting = list(self._running)
        for reference in waiting:
            ray.cancel(reference, force=False)
        ray.wait(waiting, num_returns=len(waiting), timeout=_STOP_S) if waiting else None
        for reference in waiting:
            ray.cancel(reference, force=True) if self._options.isolate == "process" else None
        self._running.clear()
