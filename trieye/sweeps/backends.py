"""Backends: where the processes of a sweep's jobs run, by `hydra.launcher.backend`."""

import os

from trieye.config.launcher import Backend, LauncherConfig
from trieye.config.packages import is_installed, require
from trieye.exceptions import ConfigurationError
from trieye.process.progress import say
from trieye.process.text import counted
from trieye.sweeps.pools import ThisProcess, WorkerPool
from trieye.sweeps.slots import has_nvidia_driver, num_cores
from trieye.sweeps.working import SweepContext

_RAY_NOTICE = "A worker died or was killed"
"""Notice of Ray that the sweep itself reports, in a line with the job."""


def backend_of(options: LauncherConfig, *, runs_in_ray: bool) -> Backend:
    """Return the backend of a sweep: by default Ray if its options need Ray or its jobs would each start it.

    A local process starts 30 times faster than a process of Ray.

    Args:
        options: The options of the launcher.
        runs_in_ray: Whether the program's config runs its jobs in Ray.
    """
    if options.backend is not None:
        return options.backend
    if options.address is not None or options.resources:
        return "ray"
    return "ray" if runs_in_ray and is_installed("ray") else "local"


def location_of(options: LauncherConfig, context: SweepContext) -> str:
    """Return where the jobs of a sweep run, for its first line."""
    if options.is_sequential:
        return "one after another in this process"
    backend = backend_of(options, runs_in_ray=context.runs_in_ray)
    location = f"at {options.address}" if options.address is not None else f"on {counted(num_cores(), 'core')}"
    return f"backend {backend}" if backend == "slurm" else f"backend {backend} {location}"


def pool_of(options: LauncherConfig, context: SweepContext) -> WorkerPool:
    """Return the pool that runs the jobs of a sweep.

    Raises:
        ConfigurationError: The options do not fit the backend, or it is not available.
    """
    if options.is_sequential:
        if options.timeout_min is not None:
            raise ConfigurationError(
                f"hydra.launcher.timeout_min={options.timeout_min:g}: with isolate=none, jobs run in this process and "
                "cannot be stopped; set hydra.launcher.isolate=process"
            )
        return ThisProcess(context)
    backend = backend_of(options, runs_in_ray=context.runs_in_ray)
    if options.address is not None and backend != "ray":
        raise ConfigurationError(
            f"hydra.launcher.address={options.address}: a Ray cluster needs hydra.launcher.backend=ray, not {backend}"
        )
    if not options.num_gpus and has_nvidia_driver():
        say("sweep: jobs see no GPU; hydra.launcher.num_gpus=1 gives each job one, 0.5 lets two jobs share one")
    if backend == "ray":
        require("ray", "hydra.launcher.backend=ray", "set hydra.launcher.backend=local")
        os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", _RAY_NOTICE)  # read when Ray is imported
        from trieye.sweeps.in_ray import RayPool

        return RayPool(context, options)
    from trieye.sweeps.local import LocalPool  # also in the tasks of a Slurm array

    return LocalPool(context, options)
