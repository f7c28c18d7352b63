"""RayHub: the hub as an actor in a process of its own; `take_over` ends a detached hub without a living driver."""

import contextlib
import hashlib
import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import ray

from trieye.config import RuntimeConfig, TrieyeConfig
from trieye.exceptions import ConfigurationError, RunLockedError, TrieyeError
from trieye.files.run_record import RunStatus
from trieye.hub.actor import RemoteHub, actor_name, find_hub
from trieye.hub.directory import HUB_GONE_AFTER_S
from trieye.hub.hub import Channel, Hub, SaveThread
from trieye.hub.ray_start import JOB_VARIABLE, join_ray, on_this_node
from trieye.hub.requests import is_slow
from trieye.process.crash_report import CrashReport
from trieye.process.lock import RunLock
from trieye.process.progress import say
from trieye.process.waiting import wait_while_moving
from trieye.sinks.base import Sink
from trieye.snapshot.signing import Trust

P = ParamSpec("P")
T = TypeVar("T")

START_TIMEOUT_S = 120.0
"""How long a start may take at least: a hub that starts cannot tell its progress."""

ANSWER_TIMEOUT_S = 5.0
"""For the question how far the hub is."""

CALL_TIMEOUT_S = 60.0
"""How long it may take to fetch an answer that Ray has."""

SEND_TIMEOUT_S = 10.0
"""After which the user is told that the hub does not answer, and it is asked again."""

ORPHAN_TIMEOUT_S = 10.0
"""For the question whether a hub still has drivers."""


class RayChannel(Channel):
    """The way to the actor of a run, from any process that it is sent to by Ray.

    Args:
        actor: The actor.
        run_name: Name of its run.
        key: What tells this actor from every other one.
    """

    # Ray disconnects its workers before Python's exit handlers run, and ends a process that calls anything then
    works_at_exit = False

    def __init__(self, actor: Any, run_name: str, key: str) -> None:
        self.key = key
        self.run_name = run_name
        self._actor = actor

    def _send(self, request: Callable[Concatenate[Any, P], object], /, *args: P.args, **kwargs: P.kwargs) -> None:
        # not repeated by Ray, which would say nothing meanwhile: the sender does, and tells the user
        method = getattr(self._actor, request.__name__).options(max_task_retries=0)
        self._get(method.remote(*args, **kwargs), SEND_TIMEOUT_S)

    def progress(self, timeout_s: float = ANSWER_TIMEOUT_S) -> str:
        """Return what takes long in the hub and how far it is, or that it does not answer."""
        try:
            return str(ray.get(self._actor.progress.remote(), timeout=timeout_s))
        except Exception:  # noqa: BLE001 - a remote call that only asks: those that do something say what is wrong
            return "it does not answer"

    def answer(self, reference: Any, still_s: float, *, tells: bool = False) -> Any:
        """Wait for an answer as long as the hub makes progress, with errors as those of the other calls.

        Args:
            reference: Stands for the answer.
            still_s: Seconds without progress after which nobody waits any more.
            tells: Tell the user now and then what for.

        Raises:
            ConnectionError: There is no progress, or the actor restarts.
            TrieyeError: The actor is dead for good, or what it raised itself.
        """
        seen = ""

        def is_there(timeout_s: float) -> bool:
            return bool(ray.wait([reference], timeout=timeout_s)[0])

        def progress() -> str:
            nonlocal seen
            seen = self.progress(min(ANSWER_TIMEOUT_S, still_s))
            return seen

        def tell(progress: object) -> None:
            say(f"run {self.run_name!r}: waiting for its hub: {progress}")

        if not wait_while_moving(is_there, progress, still_s, tell=tell if tells else None):
            raise ConnectionError(f"the hub of run {self.run_name!r} made no progress for {still_s:g} s: {seen}")
        return self._get(reference)

    def _get(self, reference: Any, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        """Wait for an answer, with errors that mean the same for every hub.

        Raises:
            ConnectionError: The actor restarts, or does not answer in time.
            TrieyeError: It is dead for good, or what it raised itself.
        """
        try:
            return ray.get(reference, timeout=timeout_s)
        except ray.exceptions.RayTaskError as error:
            raise _cause(error) from error
        except ray.exceptions.GetTimeoutError as error:
            raise ConnectionError(f"the hub of run {self.run_name!r} did not answer in {timeout_s:.0f} s") from error
        except ray.exceptions.ActorDiedError as error:
            raise TrieyeError(f"the hub of run {self.run_name!r} is gone for good: {_why(error)}") from error
        except ray.exceptions.RayActorError as error:
            raise ConnectionError(
                f"the hub of run {self.run_name!r} is gone for now; Ray starts it again if it died"
            ) from error

    def __reduce__(self) -> tuple[Any, ...]:
        return RayChannel, (self._actor, self.run_name, self.key)


class RayHub(RayChannel, Hub):
    """A hub in a Ray actor, so that logging and saving take nothing from the training process.

    Ray starts the actor again when it dies. Sent to another process, this arrives as the channel that it is.

    Args:
        config: The config of the run, whose lock this process holds.
        extra_config: What configs.json holds besides.
        sinks: Sinks besides those of the config.

    Raises:
        ConfigurationError: The cluster cannot be reached, or a sink cannot be sent there.
        TrieyeError: The actor did not start.
    """

    works_at_exit = True  # in the driver, which ends Ray after that

    def __init__(self, config: TrieyeConfig, extra_config: Mapping[str, Any], sinks: Sequence[Sink] = ()) -> None:
        self.connect(config.runtime, sinks)
        # two apps may have runs of the same name; a run has one directory
        digest = hashlib.sha256(str(config.persistence.get_run_base_dir()).encode()).hexdigest()[:8]
        options = RemoteHub.options(
            name=f"{actor_name(config.run_name)}_{digest}",
            namespace=config.runtime.namespace,
            num_cpus=0,
            scheduling_strategy=on_this_node(),
        )
        try:
            # with the key of this process: the actor's one may be on another node, or have another environment
            arguments = {"trust": Trust.of_this_process(), "extra_config": dict(extra_config), "sinks": list(sinks)}
            actor = _once_free(lambda: options.remote(config, **arguments))
            super().__init__(actor, config.run_name, uuid.uuid4().hex)
            self._still_s, self._run_dir = config.runtime.stall_timeout_s, config.persistence.get_run_base_dir()
            self.answer(self._actor.get_actor_name.remote(), max(START_TIMEOUT_S, self._still_s), tells=True)
            self._sender = SaveThread()
            self._crash_report = _crash_report(config)
        except (ValueError, ConnectionError, TrieyeError) as error:
            raise TrieyeError(f"the hub of run {config.run_name!r} did not start: {error}") from error

    @staticmethod
    def connect(runtime: RuntimeConfig, sinks: Sequence[Sink] = ()) -> None:
        """Join or start Ray; raises `ConfigurationError` if that fails or a sink cannot be sent there."""
        _check_can_be_sent(sinks)
        join_ray(runtime)

    def ask(self, request: Callable[Concatenate[Any, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Make a request of the actor, and wait for the answer as long as the hub makes progress."""
        reference = getattr(self._actor, request.__name__).remote(*args, **kwargs)
        told: Any = kwargs.get("timeout_s", 0.0)
        answer: T = self.answer(reference, self._still_s + told, tells=is_slow(request))
        return answer

    def begin(self, request: Callable[Concatenate[Any, P], T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        """Make a request from a thread: to hand a state over, Ray copies it, and the actor writes it meanwhile."""
        return self._sender.submit(lambda: self.ask(request, *args, **kwargs))

    def close(self, status: RunStatus) -> None:
        """Wait for saves, log what is left, and end the actor."""
        try:
            self._sender.close()
            self.answer(self._actor.shutdown.remote(status, patient=status != "KILLED"), self._still_s)
        except ConnectionError as error:
            raise TrieyeError(
                f"{error}; it is ended now, and what it accepted is in its journal: `trieye close {self._run_dir}` "
                "delivers it"
            ) from error
        finally:
            if self._crash_report is not None:
                self._crash_report.withdraw()
            ray.kill(self._actor)


def _crash_report(config: TrieyeConfig) -> CrashReport | None:
    """Return the report for the case that Ray kills this process, as when the head of its cluster is gone."""
    if config.runtime.kind != "cluster":
        return None
    if os.environ.get(JOB_VARIABLE) and not Path(config.persistence.root_data_dir).is_absolute():
        say(
            f"persistence.root_data_dir={config.persistence.root_data_dir} is in the copy of the project that this job "
            "of Ray has, and goes with it: name a directory that stays, from /"
        )
    return CrashReport(
        f"run {config.run_name!r}: its program was ended at once; so Ray does when the head of the cluster, or the Ray "
        "of this machine, is gone. What was accepted is in the journal: start Ray again, and the same command with "
        f"run_name={config.run_name} goes on from the last checkpoint"
    )


def _check_can_be_sent(sinks: Sequence[Sink]) -> None:
    for sink in sinks:
        try:
            ray.cloudpickle.dumps(sink)
        except Exception as error:
            raise ConfigurationError(
                f"sinks=[{sink!r}]: it cannot be sent to the hub, which is a process of its own: {error}; open files "
                "and connections in its `open`, or set runtime=local"
            ) from error


def _once_free(start: Callable[[], Any]) -> Any:
    """Start an actor; after the death of a driver it takes Ray a moment to take the name from the last one."""
    deadline = time.monotonic() + HUB_GONE_AFTER_S
    while True:
        try:
            return start()
        except ValueError as error:  # older versions of Ray have no class of its own for it
            if "already taken" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def _why(error: ray.exceptions.RayActorError) -> str:
    """Return what is worth reading of Ray's message: its first line, and the one that says what happened."""
    lines = [line.strip() for line in str(error).strip().splitlines()]
    if error.actor_init_failed:
        return lines[-1]
    return " ".join([lines[0], *(line for line in lines[1:] if line.startswith("The actor"))])


def _cause(error: ray.exceptions.RayTaskError) -> Exception:
    cause = error.cause
    return cause if isinstance(cause, TrieyeError) else TrieyeError(str(error))


def take_over(config: TrieyeConfig, lock: RunLock) -> None:
    """End the hub that holds a run; what it accepted is in the journal, where the next hub goes on.

    Args:
        config: The config of the run.
        lock: Its lock.

    Raises:
        ConfigurationError: The cluster cannot be reached.
        RunLockedError: A driver of the hub lives, or the hub is none of this cluster, or does not answer.
    """
    join_ray(config.runtime)
    hub = find_hub(lock)
    if hub is None:
        raise RunLockedError(lock.refusal())
    try:
        drivers = ray.get(hub.living_drivers.remote(), timeout=ORPHAN_TIMEOUT_S)
    except ray.exceptions.ActorDiedError:
        return  # it ends by itself
    except (ray.exceptions.RayError, TimeoutError) as error:
        raise RunLockedError(f"{lock.refusal()} (the hub does not answer: {error})") from error
    if drivers:
        raise RunLockedError(
            f"run {config.run_name!r} is being written by {' and '.join(drivers)}, through a hub that outlives it; "
            "wait for it, stop it, or choose another run_name"
        )
    say(f"run {config.run_name!r}: its hub has no driver any more; this process takes the run over")
    # the journal keeps what the hub cannot deliver; `terminate` ends the actor, which `answer` takes for an error
    with contextlib.suppress(TrieyeError, ConnectionError):
        channel = RayChannel(hub, config.run_name, "")
        channel.answer(hub.terminate.remote("KILLED"), config.runtime.stall_timeout_s, tells=True)
    with contextlib.suppress(ray.exceptions.RayError):
        ray.kill(hub)
