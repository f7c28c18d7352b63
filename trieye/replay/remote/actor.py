"""ReplayActor and FragmentActor: replay servers as Ray actors; they only forward."""

import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from trieye.exceptions import TrieyeError
from trieye.process.niceness import get_a_fair_share
from trieye.process.progress import say
from trieye.replay.remote.channel import Group, operations_of
from trieye.replay.remote.server import FragmentServer, ReplayServer

NAMESPACE = "trieye"

Server = TypeVar("Server")
Values = ParamSpec("Values")
Result = TypeVar("Result")
Actor = TypeVar("Actor", bound=type)


def _with_operations_of(server: type, *, in_event_loop: bool = False) -> Callable[[Actor], Actor]:
    """Give a class of actors a method for each operation of its server, on the threads of the operation's group."""

    def method_of(name: str) -> Any:
        def act(self: Any, *values: Any, **options: Any) -> Any:
            return getattr(self.server, name)(*values, **options)

        async def answer(self: Any, *values: Any, **options: Any) -> Any:
            return await self.server.answer(name, *values, **options)

        return answer if in_event_loop else act

    def add(actor: Actor) -> Actor:
        for name, group in operations_of(server).items():
            in_group = ray.method(concurrency_group=group) if group else lambda method: method
            setattr(actor, name, in_group(method_of(name)))
        return actor

    return add


# `ingest` has one thread, so batches are taken in the order in which each writer sent them. Calls that wait do so in
# `draw` and `wait`, a second at most, so they hold up neither a batch nor each other.
_NUM_THREADS: dict[Group, int] = {"ingest": 1, "draw": 8, "wait": 8, "save": 1, "update": 1}


# nothing is repeated by Ray, which would change the order: writers and readers do it themselves
@ray.remote(max_restarts=-1, max_task_retries=0, concurrency_groups={**_NUM_THREADS})
@_with_operations_of(ReplayServer)
class ReplayActor:
    """Holds the tables in a process of its own; the arguments are those of `ReplayServer`."""

    def __init__(self, tables: Mapping[str, Mapping[str, Any]], **options: Any) -> None:
        get_a_fair_share()
        self.server = ReplayServer(tables, **options)


# Fetches wait in one event loop, and snapshots are written in another. What is done in a worker's name can be done
# again: a fragment that comes twice is recognized.
@ray.remote(max_restarts=-1, max_task_retries=0, concurrency_groups={"save": 1})
@_with_operations_of(FragmentServer, in_event_loop=True)
class FragmentActor:
    """Holds fragments in a process of its own; the arguments are those of `FragmentServer`."""

    def __init__(self, rules: Mapping[str, Any], **options: Any) -> None:
        get_a_fair_share()
        self.server = FragmentServer(rules, **options)


class RayChannel(Generic[Server]):
    """The way to a replay actor, from any process that it is sent to by Ray.

    Args:
        actor: The actor.
        name: Of the replay, for messages.
        tells: Report when its process dies and when it responds again; set for one handle only.
    """

    def __init__(self, actor: Any, name: str, *, tells: bool = False) -> None:
        self.name = name
        self._actor, self._tells, self._is_gone = actor, tells, False

    def begin(
        self,
        operation: Callable[Concatenate[Server, Values], Result],
        /,
        *values: Values.args,
        **options: Values.kwargs,
    ) -> "Future[Result]":
        """Begin a call; see `Channel.begin`."""
        call: Future[Result] = Future()
        try:
            sent = getattr(self._actor, operation.__name__).remote(*values, **options).future()
        except ray.exceptions.RayError as error:
            call.set_exception(self._meaning(error))
            return call
        sent.add_done_callback(lambda done: self._settle(call, done))
        return call

    def kill(self) -> None:
        """End the actor for good."""
        ray.kill(self._actor)

    def _settle(self, call: "Future[Any]", done: "Future[Any]") -> None:
        error = done.exception()
        self._tell(is_gone=isinstance(error, ray.exceptions.RayActorError))
        if error is None:
            call.set_result(done.result())
        else:
            call.set_exception(self._meaning(error))

    def _tell(self, *, is_gone: bool) -> None:
        if self._tells and is_gone != self._is_gone:
            self._is_gone = is_gone
            what = "died; Ray restarts it, and it continues from its last snapshot" if is_gone else "answers again"
            say(f"the process of replay {self.name!r} {what}")

    def _meaning(self, error: BaseException) -> BaseException:
        """Return the error that means the same for every kind of channel."""
        if isinstance(error, ray.exceptions.RayTaskError):
            cause = error.cause
            return cause if isinstance(cause, TrieyeError) else TrieyeError(str(error))
        if isinstance(error, ray.exceptions.ActorDiedError):
            lines = str(error).strip().splitlines()
            why = lines[-1 if error.actor_init_failed else 0].strip()
            return TrieyeError(f"the actor of replay {self.name!r} is gone for good: {why}")
        if isinstance(error, ray.exceptions.RayActorError):
            return ConnectionError(f"the actor of replay {self.name!r} is gone for now; Ray starts it again if it died")
        return TrieyeError(f"replay {self.name!r}: {error}")

    def __reduce__(self) -> tuple[Any, ...]:
        return RayChannel, (self._actor, self.name)


def start_server(
    kind: Any,
    arguments: Mapping[str, Any],
    *,
    name: str | None = None,
    directory: str | Path | None = None,
    snapshot_every_s: float | None = None,
    **options: Any,
) -> RayChannel[Any]:
    """Start a replay actor on this node, or find the one of that name, and return the way to it.

    Args:
        kind: `ReplayActor` or `FragmentActor`.
        arguments: What the server is made of.
        name: By which any script on the cluster finds it; without one it ends with the process that started it.
        directory: Where its snapshots are; if there is one, it goes on from there.
        snapshot_every_s: How often they are written, seconds.
        **options: Ray options, such as `namespace` (`trieye` if not given), `num_cpus` (0) or `scheduling_strategy`.
    """
    own: dict[str, Any] = {
        "num_cpus": 0,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False),
    }
    if name is not None:
        own |= {"name": name, "namespace": NAMESPACE, "lifetime": "detached", "get_if_exists": True}
    shown = name or f"replay_{uuid.uuid4().hex[:8]}"
    actor = kind.options(**{**own, **options}).remote(
        **arguments,
        name=shown,
        directory=None if directory is None else Path(directory).absolute(),
        snapshot_every_s=snapshot_every_s,
    )
    return RayChannel(actor, shown, tells=True)
