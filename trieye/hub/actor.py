"""HubActor: the hub as a Ray actor, which only forwards calls to `HubLogic`; `find_hub` looks an actor up."""

import functools
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import ray

from trieye.config import TrieyeConfig
from trieye.files.run_record import RunStatus
from trieye.hub.directory import HubFiles
from trieye.hub.ledger import Ledger
from trieye.hub.logic import HubLogic
from trieye.hub.requests import Group, requests_of
from trieye.hub.status import HubStatus
from trieye.hub.tracking import Tracking
from trieye.process.lock import RunLock, describe_process
from trieye.process.niceness import SERVICE_NICENESS, limit_niceness
from trieye.process.output import print_to
from trieye.process.signals import outlive_signals
from trieye.sinks.base import Sink
from trieye.snapshot.signing import Trust

ACTOR_OPTIONS: Any = {
    "max_restarts": -1,
    "max_task_retries": -1,
    "concurrency_groups": {"ingest": 1, "save": 1, "wait": 4},  # see `requests.Group`
}

Method = TypeVar("Method", bound=Callable[..., Any])
Class = TypeVar("Class", bound=type)


def in_group(name: str) -> Callable[[Method], Method]:
    """Run a method on the threads of a concurrency group."""
    decorator: Callable[[Method], Method] = ray.method(concurrency_group=name)
    return decorator


def actor_name(run_name: str) -> str:
    """Return the name under which Ray registers the actor of a run."""
    return f"trieye_actor_{run_name}"


def _is_restart() -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray calls deprecated functions of Ray
        return bool(ray.get_runtime_context().was_current_actor_reconstructed)


def describe_hub() -> None:
    """Record this actor and its cluster in the locks that this process takes."""
    context = ray.get_runtime_context()
    describe_process(
        kind="hub",
        address=context.gcs_address,
        namespace=context.namespace,
        actor=context.get_actor_name() or "",
        actor_id=context.get_actor_id() or "",
    )


def find_hub(lock: RunLock) -> Any | None:
    """Return the actor that holds a run, in any namespace; None if it is dead or belongs to another cluster.

    Args:
        lock: The lock of the run.
    """
    holder = lock.holder() or {}
    if not lock.is_of_hub or not holder.get("actor"):
        return None
    try:
        actor = ray.get_actor(holder["actor"], namespace=holder.get("namespace"))
    except ValueError:
        return None
    # an actor of another cluster may have the same name
    return actor if actor._actor_id.hex() == holder.get("actor_id") else None  # noqa: SLF001 - docs/private_apis.md


def this_job() -> str:
    """Return Ray's job id of this process's driver."""
    return str(ray.get_runtime_context().get_job_id())


def _forwarding(request: Callable[..., Any], group: Group) -> Callable[..., Any]:
    """Return a method of the actor that forwards a request to its logic."""
    has_key = "key" in inspect.signature(request).parameters

    @functools.wraps(request)
    def forward(self: "HubActor", *args: Any, **kwargs: Any) -> Any:
        if has_key:
            kwargs.setdefault("key", ray.get_runtime_context().get_task_id())  # the same if Ray retries the call
        return request(self._logic.parts[request.__name__], *args, **kwargs)

    # Ray would look for its attributes on the wrapped function, which has none
    del forward.__wrapped__
    forward.__signature__ = inspect.signature(request)  # type: ignore[attr-defined]
    return in_group(group)(forward) if group else forward


def with_requests(*parts: type) -> Callable[[Class], Class]:
    """Give a class a method for each request of the parts of a hub."""

    def decorate(actor: Class) -> Class:
        for part in parts:
            for request, group in requests_of(part):
                setattr(actor, request.__name__, _forwarding(request, group))
        return actor

    return decorate


@with_requests(HubLogic, Ledger, Tracking, HubStatus)
class HubActor:
    """The hub of a run in a separate process.

    Heavy libraries are imported in the background, so that the actor answers at once. In addition to the methods below,
    the actor has a method for each request (`trieye.hub.requests`) of `HubLogic`, `Ledger`, `Tracking` and `HubStatus`,
    with the same name and arguments: `log_columns`, `set_tags`, `progress` and so on.

    Args:
        config: The config of the run, whose lock the driver holds.
        trust: Signs pickled parts with the key of the driver.
        extra_config: Further content of configs.json.
        sinks: Sinks in addition to the config's.
        output: File for the output of this process; None: Ray's log.
    """

    def __init__(
        self,
        config: TrieyeConfig,
        *,
        trust: Trust,
        extra_config: Mapping[str, Any],
        sinks: Sequence[Sink],
        output: Path | None = None,
    ) -> None:
        if output is not None:
            print_to(output)
        files = HubFiles(config, trust)
        self._open(HubLogic(config, files=files, sinks=sinks), owns_run=False, extra_config=extra_config)

    def _open(self, logic: HubLogic, *, owns_run: bool, extra_config: Mapping[str, Any] | None) -> None:
        outlive_signals()
        limit_niceness(at_most=SERVICE_NICENESS)
        describe_hub()
        self._jobs = {this_job()}  # of the drivers that use this hub; the first one started it
        self._logic = logic.open(owns_run=owns_run, is_restart=_is_restart(), extra_config=extra_config)

    @in_group("save")
    def shutdown(
        self, status: RunStatus = "FINISHED", *, patient: bool = False, required_sinks: Sequence[str] = ()
    ) -> None:
        """Wait for earlier saves and events, log the remaining events and close everything."""
        me = ray.get_runtime_context().current_actor
        ray.wait([me.flush.remote(), me.health.remote()], num_returns=2)  # run after earlier calls of both groups
        self._logic.shutdown(status, patient=patient, required_sinks=required_sinks)

    @in_group("save")
    def terminate(self, status: RunStatus = "FINISHED") -> None:
        """Shut down and end the process, so that a detached actor frees its name."""
        self.shutdown(status)
        ray.actor.exit_actor()

    def get_actor_name(self) -> str:
        """Return `trieye_actor_<run_name>`."""
        return actor_name(self._logic.config.run_name)

    def add_driver(self, job_id: str) -> None:
        """Register another driver of this hub."""
        self._jobs.add(job_id)

    def living_drivers(self) -> list[str]:
        """Return process and machine of each living driver that started this hub or called `get_or_create`."""
        table = ray._private.state.jobs()  # noqa: SLF001 - docs/private_apis.md
        return [
            f"process {job['DriverPid']} on {job['DriverIPAddress']}"
            for job in table
            if job["JobID"] in self._jobs and not job["IsDead"]
        ]


RemoteHub: Any = ray.remote(**ACTOR_OPTIONS)(HubActor)
