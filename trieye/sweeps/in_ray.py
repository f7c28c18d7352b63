"""Places for jobs: tasks of Ray."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import ray

from trieye.config import RuntimeConfig
from trieye.config.launcher import LauncherConfig
from trieye.exceptions import ConfigurationError
from trieye.hub.cluster import Node
from trieye.hub.ray_start import join_ray
from trieye.process.progress import say
from trieye.sweeps.jobs import Done
from trieye.sweeps.pools import Died, Outcome
from trieye.sweeps.working import Composed, Shared, work

_ROUNDING = 1e-6
_LOOK_S = 1.0
_SHOWN = 5
_STOP_S = 30.0
"""How long jobs that are stopped may take to save."""


class RayPlaces:
    """Runs jobs as tasks of Ray, each with the resources that it asks for; Ray starts those that there is room for."""

    def __init__(self, shared: Shared, options: LauncherConfig) -> None:
        if options.address is None:
            join_ray(RuntimeConfig(kind="ray"))
        else:
            given = {"address": options.address, "working_dir": options.working_dir, "env": options.env}
            nodes = join_ray(RuntimeConfig.model_validate({"kind": "cluster", **given}), "hydra.launcher")
            _say_where_runs_stay(shared, [node for node in nodes if not node.sees_root])
        self._options, self._composing, self._shared = options, shared, ray.put(shared)
        self._task: Any = ray.remote(max_retries=0, max_calls=1 if options.isolate == "process" else 0)(work)
        self._running: dict[Any, int] = {}
        self._taken: dict[int, dict[str, float]] = {}
        self._ended: list[Outcome] = []
        self._whole: dict[str, float] = {}
        self._whole_until = 0.0

    def has_room(self, resources: Mapping[str, Any]) -> bool:
        """Tell whether a job that asks for these resources may be begun before another one has ended.

        What else runs on a cluster does not count: Ray lets the job wait for that.
        """
        if self._options.num_jobs is not None and len(self._taken) >= self._options.num_jobs:
            return False
        return not self._taken or all(
            sum(taken.get(name, 0.0) for taken in self._taken.values()) + wanted <= self._total(name) + _ROUNDING
            for name, wanted in _named(resources).items()
        )

    def begin(
        self, index: int, overrides: Sequence[str], resources: Mapping[str, Any], config: Composed | None = None
    ) -> None:
        """Begin a job as soon as there is room for what it asks for."""
        self._taken[index] = _named(resources)
        if self._options.address is None and (refusal := self._refusal(self._taken[index])) is not None:
            self._ended.append(Done(index, error=ConfigurationError(refusal)))
            return
        # another machine may have no such directory, or others' configs in it
        if config is None and self._options.address is not None:
            made = self._composing.composed_or_error(index, overrides)
            if isinstance(made, Exception):
                self._ended.append(Done(index, error=made))
                return
            config = made
        self._running[self._task.options(**resources).remote(self._shared, index, overrides, config)] = index

    def wait(self, timeout_s: float) -> list[Outcome]:
        """Return the jobs that have ended, at once if there are some, else within the time."""
        ended, self._ended = self._ended, []
        waiting = list(self._running)
        ready = ray.wait(waiting, timeout=0 if ended else timeout_s)[0] if waiting else []
        if ready and len(waiting) > 1:
            ready, _ = ray.wait(waiting, num_returns=len(waiting), timeout=0)
        ended += [self._outcome(reference) for reference in ready]
        for outcome in ended:
            del self._taken[outcome.index]
        return ended

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

    def _total(self, name: str) -> float:
        """Return how much of a resource all nodes have; asking Ray takes 2 ms, and nodes do not come that often."""
        if time.monotonic() > self._whole_until:
            self._whole, self._whole_until = ray.cluster_resources(), time.monotonic() + _LOOK_S
        return self._whole.get(name, 0.0)

    def _refusal(self, wanted: Mapping[str, float]) -> str | None:
        """Return what to say of a job that asks for more than a Ray on this machine alone has, else None."""
        for name, number in wanted.items():
            if number > self._total(name) + _ROUNDING:
                keys = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
                key = f"hydra.launcher.{keys.get(name, f'resources.{name}')}"
                return f"{key}={number:g}: this machine has {self._total(name):g} of these in all; ask for less"
        return None

    def cancel(self, index: int) -> None:
        """Stop a job, as by Ctrl-C."""
        for reference, running in self._running.items():
            if running == index:
                ray.cancel(reference, force=False)

    def stop(self) -> None:
        """Stop all jobs: as by Ctrl-C, and after a while by force."""
        waiting = list(self._running)
        self._running.clear()
        self._taken.clear()
        for reference in waiting:
            ray.cancel(reference, force=False)
        late = ray.wait(waiting, num_returns=len(waiting), timeout=_STOP_S)[1] if waiting else []
        for reference in late:
            ray.cancel(reference, force=True)


def _say_where_runs_stay(shared: Shared, apart: Sequence[Node]) -> None:
    if not apart or shared.has_mirror:
        return
    hosts = sorted({node.host or node.address for node in apart})
    say(
        f"{shared.working_dir} is not the same directory on {', '.join(hosts[:_SHOWN])}"
        f"{', ...' if len(hosts) > _SHOWN else ''}: the runs of jobs stay on the node that they ran on; start in a "
        "directory that all share, or set persistence.mirror=URL, from which `trieye sweep merge` brings them here"
    )


def _named(resources: Mapping[str, Any]) -> dict[str, float]:
    """Return what options of a task ask for, by the names that the nodes of Ray offer it under."""
    names = {"num_cpus": "CPU", "num_gpus": "GPU", "memory": "memory"}
    own: dict[str, float] = resources.get("resources", {})
    return {name: resources[key] for key, name in names.items() if resources.get(key)} | own
