"""ReplayActor and FragmentActor: replay servers as Ray actors, which only forward calls."""

import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from trieye.exceptions import ConfigurationError, TrieyeError
from trieye.process.niceness import SERVICE_NICENESS, limit_niceness
from trieye.process.progress import say
from trieye.replay.remote.channel import Group, Operation, operations_of
from trieye.replay.remote.replay_server import ReplayServer
from trieye.replay.remote.server import FragmentServer, Server, ServerType

NAMESPACE = "trieye"

Values = ParamSpec("Values")
Result = TypeVar("Result")
Actor = TypeVar("Actor", bound=type)


def _with_operations_of(server: type) -> Callable[[Actor], Actor]:
    """Give an actor class a method per operation of its server, on the threads of the operation's group.

    Each result comes with the identity of the actor, by which a channel recognizes a restarted one.
    """

    def method_of(name: str, group: Group | None) -> Any:
        def act(self: Any, *values: Any, **options: Any) -> Any:
            return self.identity, getattr(self.server, name)(*values, **options)

        return ray.method(concurrency_group=group)(act) if group else act

    def add(actor: Actor) -> Actor:
        for name, group in operations_of(server).items():
            setattr(actor, name, method_of(name, group))
        return actor

    return add


# `ingest` has one thread, which preserves the order of each writer's batches. Waiting calls run in `draw` and `wait`,
# for a second at most, so they block neither batches nor each other.
_NUM_THREADS: dict[Group, int] = {"ingest": 1, "draw": 8, "wait": 8, "save": 1, "update": 1}


class _ServerActor:
    """Hosts a server in a separate process."""

    server_class: type[Server]

    def __init__(self, **options: Any) -> None:
        limit_niceness(at_most=SERVICE_NICENESS)
        self.identity = uuid.uuid4().hex
        self.server = self.server_class(**options)


# Ray must not retry calls, which would reorder them: writers and readers retry themselves
@ray.remote(max_restarts=-1, max_task_retries=0, concurrency_groups={**_NUM_THREADS})
@_with_operations_of(ReplayServer)
class ReplayActor(_ServerActor):
    """Hosts a buffer; takes the arguments of `ReplayServer`."""

    server_class = ReplayServer


# A waiting fetch takes a thread for a second, and its reader keeps its place in the queue for another second. Up to 512
# fetches wait at once; with twice as many readers, those without a thread would lose their places. 160 readers were
# measured. Calls of workers may be repeated, since a duplicate fragment is recognized.
@ray.remote(max_restarts=-1, max_task_retries=0, concurrency_groups={"wait": 512, "save": 1})
@_with_operations_of(FragmentServer)
class FragmentActor(_ServerActor):
    """Hosts fragments; takes the arguments of `FragmentServer`."""

    server_class = FragmentServer


def ray_call(
    send: Callable[[], Any],
    translate: Callable[[BaseException], BaseException],
    result: Callable[[Any], Any] = lambda answer: answer,
) -> "Future[Any]":
    """Call an actor without blocking.

    Args:
        send: Sends the call, and returns Ray's reference.
        translate: Translates an error of Ray.
        result: Returns the result in an answer.
    """
    call: Future[Any] = Future()
    call.set_running_or_notify_cancel()

    def finish(done: "Future[Any]") -> None:
        error = done.exception()
        if error is None:
            call.set_result(result(done.result()))
        else:
            call.set_exception(translate(error))

    try:
        answer_future = send().future()
    except ray.exceptions.RayError as error:
        call.set_exception(translate(error))
    else:
        answer_future.add_done_callback(finish)
    return call


class RayReplayChannel(Generic[ServerType]):
    """Connection to a replay actor, from any process that receives it through Ray.

    Args:
        actor: The actor.
        name: Name of the replay in messages.
        reports: Report when its process has died and been restarted; set for one handle only.
    """

    def __init__(self, actor: Any, name: str, *, reports: bool = False) -> None:
        self.name = name
        self._actor, self._reports = actor, reports
        self._identity: str | None = None

    def begin(
        self, operation: Operation[ServerType, Values, Result], /, *values: Values.args, **options: Values.kwargs
    ) -> "Future[Result]":
        """Start a call; see `ReplayChannel.begin`."""
        method = getattr(self._actor, operation.__name__)
        return ray_call(lambda: method.remote(*values, **options), self._translated, self._result)

    def kill(self) -> None:
        """Stop the actor permanently."""
        ray.kill(self._actor)

    def _result(self, answer: tuple[str, Any]) -> Any:
        """Return the result in an answer; report a restart, during which a call may wait instead of failing."""
        identity, result = answer
        last_identity, self._identity = self._identity, identity
        if self._reports and last_identity not in {None, identity}:
            say(f"the process of replay {self.name!r} died; Ray restarted it, and it continues from its last snapshot")
        return result

    def _translated(self, error: BaseException) -> BaseException:
        """Translate a Ray error into the error that all kinds of channel raise."""
        if isinstance(error, ray.exceptions.RayTaskError):
            cause = error.cause
            return cause if isinstance(cause, TrieyeError) else TrieyeError(str(error))
        if isinstance(error, ray.exceptions.ActorDiedError):
            lines = str(error).strip().splitlines()
            why = lines[-1 if error.actor_init_failed else 0].strip()
            return TrieyeError(f"the actor of replay {self.name!r} is permanently gone: {why}")
        if isinstance(error, ray.exceptions.RayActorError):
            return ConnectionError(f"the actor of replay {self.name!r} is unreachable; Ray restarts it if it died")
        return TrieyeError(f"replay {self.name!r}: {error}")

    def __reduce__(self) -> tuple[Any, ...]:
        return RayReplayChannel, (self._actor, self.name)


def start_server(
    kind: Any,
    arguments: Mapping[str, Any],
    *,
    name: str | None = None,
    directory: str | Path | None = None,
    snapshot_every_s: float | None = None,
    **options: Any,
) -> RayReplayChannel[Any]:
    """Start a replay actor on this node, or find the existing one of that name, and return a connection to it.

    Args:
        kind: `ReplayActor` or `FragmentActor`.
        arguments: Arguments of the server.
        name: Name under which any script on the cluster finds it; without a name it ends with its starter.
        directory: Its snapshot directory; it resumes from an existing snapshot.
        snapshot_every_s: Interval between snapshots in seconds.
        **options: Ray options, such as `namespace` (default `trieye`), `num_cpus` (default 0) or `scheduling_strategy`.

    Raises:
        ConfigurationError: The existing actor is of another kind.
    """
    default_options: dict[str, Any] = {
        "num_cpus": 0,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False),
    }
    if name is not None:
        default_options |= {"name": name, "namespace": NAMESPACE, "lifetime": "detached", "get_if_exists": True}
    display_name = name or f"replay_{uuid.uuid4().hex[:8]}"
    actor = kind.options(**{**default_options, **options}).remote(
        **arguments,
        name=display_name,
        directory=None if directory is None else Path(directory).absolute(),
        snapshot_every_s=snapshot_every_s,
    )
    other = "FragmentActor" if kind is ReplayActor else "ReplayActor"
    if f"({other}," in repr(actor):  # Ray names the class of an existing actor only in this text
        raise ConfigurationError(f"name={name!r} belongs to a {other}; choose another name")
    return RayReplayChannel(actor, display_name, reports=True)
