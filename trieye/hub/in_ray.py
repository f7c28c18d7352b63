"""RayHub and RayEventChannel: proxies of a hub in a Ray actor; `take_over` ends a hub that outlived its driver."""

import contextlib
import hashlib
import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import ray

from trieye.config import RuntimeConfig, TrieyeConfig
from trieye.exceptions import ConfigurationError, RunLockedError, TrieyeError
from trieye.files.run_record import RunStatus
from trieye.hub.actor import RemoteHub, actor_name, find_hub
from trieye.hub.directory import HUB_GONE_AFTER_S
from trieye.hub.hub import EventChannel, Hub
from trieye.hub.ray_start import JOB_VARIABLE, join_ray, on_this_node
from trieye.hub.requests import is_slow
from trieye.process.crash_report import CrashReport
from trieye.process.lock import RunLock
from trieye.process.output import printed_path
from trieye.process.progress import say
from trieye.process.waiting import wait_while_moving
from trieye.sinks.base import Sink
from trieye.snapshot.signing import Trust

P = ParamSpec("P")
T = TypeVar("T")

START_TIMEOUT_S = 120.0
"""Minimum time limit for the start of a hub: it cannot report progress while it starts."""

ANSWER_TIMEOUT_S = 5.0
"""Time limit of a progress request."""

CALL_TIMEOUT_S = 60.0
"""Time limit for fetching an answer that Ray reports as ready."""

SEND_TIMEOUT_S = 10.0
"""Time limit of one delivery; afterwards the sender reports that the hub does not answer, and retries."""

ORPHAN_TIMEOUT_S = 10.0
"""Time limit for the request that lists a hub's living drivers."""


class RayEventChannel(EventChannel):
    """The connection to the actor of a run; works in any process to which Ray sends it.

    Args:
        actor: Handle of the actor.
        run_name: Name of its run.
        key: Unique key of this actor.
    """

    # Ray disconnects its workers before Python's exit handlers run, and ends a process that calls Ray afterwards
    works_at_exit = False

    def __init__(self, actor: Any, run_name: str, key: str) -> None:
        self.key = key
        self.run_name = run_name
        self._actor = actor

    def send(self, request: Callable[Concatenate[Any, P], object], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call the actor's method, and return its errors as those that every hub raises."""
        # no retries by Ray, which would be silent: the sender retries and reports
        method = getattr(self._actor, request.__name__).options(max_task_retries=0)
        self._get(method.remote(*args, **kwargs), SEND_TIMEOUT_S)

    def progress(self, timeout_s: float = ANSWER_TIMEOUT_S) -> str:
        """Return a description of the hub's current work and its progress, or that it does not answer."""
        try:
            return str(ray.get(self._actor.progress.remote(), timeout=timeout_s))
        except Exception:  # noqa: BLE001 - only a query: other requests report the cause
            return "it does not answer"

    def answer(self, reference: Any, stall_timeout_s: float, *, reports: bool = False) -> Any:
        """Return the result of a call; wait for it while the hub makes progress.

        Args:
            reference: Object reference of the result.
            stall_timeout_s: Seconds without progress after which to give up.
            reports: Print the hub's progress from time to time.

        Raises:
            ConnectionError: The hub makes no progress, or the actor restarts.
            TrieyeError: The actor is dead and will not restart, or the call failed.
        """

        def is_ready(timeout_s: float) -> bool:
            return bool(ray.wait([reference], timeout=timeout_s)[0])

        def report(progress: object) -> None:
            say(f"run {self.run_name!r}: waiting for its hub: {progress}")

        progress = partial(self.progress, min(ANSWER_TIMEOUT_S, stall_timeout_s))
        if not wait_while_moving(is_ready, progress, stall_timeout_s, tell=report if reports else None):
            raise ConnectionError(
                f"the hub of run {self.run_name!r} made no progress for {stall_timeout_s:g} s: {progress()}"
            )
        return self._get(reference)

    def _get(self, reference: Any, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        """Return the result of a call; translate Ray's errors into the errors that every hub raises.

        Raises:
            ConnectionError: The actor restarts, or does not answer in time.
            TrieyeError: The actor is dead and will not restart, or the call failed.
        """
        try:
            return ray.get(reference, timeout=timeout_s)
        except ray.exceptions.RayTaskError as error:
            raise (error.cause if isinstance(error.cause, TrieyeError) else TrieyeError(str(error))) from error
        except ray.exceptions.GetTimeoutError as error:
            raise ConnectionError(
                f"the hub of run {self.run_name!r} did not answer within {timeout_s:.0f} s"
            ) from error
        except ray.exceptions.ActorDiedError as error:
            raise TrieyeError(f"the hub of run {self.run_name!r} is gone for good: {_reason(error)}") from error
        except ray.exceptions.RayActorError as error:
            raise ConnectionError(
                f"the hub of run {self.run_name!r} is currently unreachable; Ray restarts it if it died"
            ) from error

    def __reduce__(self) -> tuple[Any, ...]:
        # pickle loads the state last: without Ray, the actor's handle would raise an error that names no remedy
        return _received, (self.run_name, self.key), {"_actor": self._actor}


def _received(run_name: str, key: str) -> RayEventChannel:
    if not ray.is_initialized():
        raise ConfigurationError(
            f"run {run_name!r} has its hub in Ray, to which this process is not connected: it or its client can be "
            "passed to Ray tasks and actors, but not to processes of multiprocessing"
        )
    return RayEventChannel(None, run_name, key)


class RayHub(RayEventChannel, Hub):
    """A hub in a Ray actor, so that logging and saving do not slow down the training process.

    Ray restarts the actor when it dies. Pickling a `RayHub` yields a `RayEventChannel`.

    Args:
        config: The config of the run, whose lock this process holds.
        extra_config: Further content of configs.json.
        sinks: Sinks in addition to the config's.

    Raises:
        ConfigurationError: The cluster is unreachable, or a sink cannot be pickled.
        TrieyeError: The actor did not start.
    """

    works_at_exit = True  # in the driver, which shuts Ray down afterwards

    def __init__(self, config: TrieyeConfig, extra_config: Mapping[str, Any], sinks: Sequence[Sink] = ()) -> None:
        self.connect(config.runtime, sinks)
        # two apps may have runs of the same name, but their directories differ
        digest = hashlib.sha256(str(config.persistence.get_run_base_dir()).encode()).hexdigest()[:8]
        options = RemoteHub.options(
            name=f"{actor_name(config.run_name)}_{digest}",
            namespace=config.runtime.namespace,
            num_cpus=0,
            scheduling_strategy=on_this_node(),
        )
        try:
            # the key of this process: the actor may run on another node or with another environment
            arguments: dict[str, Any] = {
                "trust": Trust.of_this_process(), "extra_config": dict(extra_config), "sinks": list(sinks),
                "output": printed_path(),  # of a job of a sweep
            }  # fmt: skip
            actor = _start_when_name_is_free(lambda: options.remote(config, **arguments))
            RayEventChannel.__init__(self, actor, config.run_name, uuid.uuid4().hex)
            self._stall_timeout_s = config.runtime.stall_timeout_s
            self._run_dir = config.persistence.get_run_base_dir()
            self.answer(self._actor.get_actor_name.remote(), max(START_TIMEOUT_S, self._stall_timeout_s), reports=True)
            Hub.__init__(self)
            self._crash_report = _crash_report(config)
        except (ValueError, ConnectionError, TrieyeError) as error:
            raise TrieyeError(f"the hub of run {config.run_name!r} did not start: {error}") from error

    @staticmethod
    def connect(runtime: RuntimeConfig, sinks: Sequence[Sink] = ()) -> None:
        """Join or start Ray; raises `ConfigurationError` if that fails or a sink cannot be pickled."""
        _check_picklable(sinks)
        join_ray(runtime)

    def ask(self, request: Callable[Concatenate[Any, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Send a request to the actor, and wait for the answer while the hub makes progress."""
        reference = getattr(self._actor, request.__name__).remote(*args, **kwargs)
        request_timeout_s: Any = kwargs.get("timeout_s", 0.0)
        answer: T = self.answer(reference, self._stall_timeout_s + request_timeout_s, reports=is_slow(request))
        return answer

    def close(self, status: RunStatus, *, required_sinks: Sequence[str] = ()) -> None:
        """Wait for saves, log the remaining events and end the actor."""
        try:
            self._saving.close()
            options = {"patient": status != "KILLED", "required_sinks": required_sinks}
            self.answer(self._actor.shutdown.remote(status, **options), self._stall_timeout_s)
        except ConnectionError as error:
            raise TrieyeError(
                f"{error}; the hub is killed now. Its accepted events are in the journal: "
                f"`trieye close {self._run_dir}` delivers them"
            ) from error
        finally:
            if self._crash_report is not None:
                self._crash_report.withdraw()
            ray.kill(self._actor)


def _crash_report(config: TrieyeConfig) -> CrashReport | None:
    """Return a crash report for the case that Ray kills this process, for example when the cluster's head is gone."""
    if config.runtime.kind != "cluster":
        return None
    if os.environ.get(JOB_VARIABLE) and not Path(config.persistence.root_data_dir).is_absolute():
        say(
            f"persistence.root_data_dir={config.persistence.root_data_dir} is relative, so the run is stored in "
            "this Ray job's copy of the project, and is deleted with it; set it to an absolute path outside that copy"
        )
    return CrashReport(
        f"run {config.run_name!r}: its program was ended at once, as Ray does when the cluster's head or the "
        "Ray of this machine is gone. Accepted events are in the journal. Start Ray again; then the same command with "
        f"run_name={config.run_name} resumes from the last checkpoint"
    )


def _check_picklable(sinks: Sequence[Sink]) -> None:
    for sink in sinks:
        try:
            ray.cloudpickle.dumps(sink)
        except Exception as error:
            raise ConfigurationError(
                f"sinks=[{sink!r}]: this sink cannot be sent to the hub, which is a separate process: {error}; open "
                "files and connections in its `open`, or set runtime=local"
            ) from error


def _start_when_name_is_free(start: Callable[[], Any]) -> Any:
    """Start a named actor; retry while the actor of a dead driver has the name, until Ray frees it."""
    deadline = time.monotonic() + HUB_GONE_AFTER_S
    while True:
        try:
            return start()
        except ValueError as error:  # older versions of Ray have no specific exception
            if "already taken" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def _reason(error: ray.exceptions.RayActorError) -> str:
    """Return the relevant lines of Ray's message: the first line and the cause."""
    lines = [line.strip() for line in str(error).strip().splitlines()]
    if error.actor_init_failed:
        return lines[-1]
    return " ".join([lines[0], *(line for line in lines[1:] if line.startswith("The actor"))])


def take_over(runtime: RuntimeConfig, run_name: str, lock: RunLock) -> None:
    """End the detached hub that holds a run; the next hub continues from the journal, which has all accepted events.

    Args:
        runtime: The cluster of the run.
        run_name: Name of the run.
        lock: Lock of the run.

    Raises:
        ConfigurationError: The cluster is unreachable.
        RunLockedError: A driver of the hub is alive, or the hub belongs to another cluster or does not answer.
    """
    join_ray(runtime)
    hub = find_hub(lock)
    if hub is None:
        raise RunLockedError(lock.refusal())
    try:
        drivers = ray.get(hub.living_drivers.remote(), timeout=ORPHAN_TIMEOUT_S)
    except ray.exceptions.ActorDiedError:
        return  # the hub is ending already
    except (ray.exceptions.RayError, TimeoutError) as error:
        raise RunLockedError(f"{lock.refusal()} (the hub does not answer: {error})") from error
    if drivers:
        raise RunLockedError(
            f"run {run_name!r} is being written by {' and '.join(drivers)}, through a detached hub; "
            "wait for it, stop it, or choose another run_name"
        )
    say(f"run {run_name!r}: its hub has no living driver; this process takes the run over")
    # undelivered events stay in the journal; `terminate` ends the actor, which `answer` reports as an error
    with contextlib.suppress(TrieyeError, ConnectionError):
        channel = RayEventChannel(hub, run_name, "")
        channel.answer(hub.terminate.remote("KILLED"), runtime.stall_timeout_s, reports=True)
    with contextlib.suppress(ray.exceptions.RayError):
        ray.kill(hub)
