"""ReplayActor and FragmentActor: replay servers as Ray actors; they only forward."""

import asyncio
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from trieye.exceptions import TrieyeError
from trieye.process.niceness import get_a_fair_share
from trieye.replay.remote.server import FragmentServer, ReplayServer

NAMESPACE = "trieye"

Method = TypeVar("Method", bound=Callable[..., Any])


def _in_group(name: str) -> Callable[[Method], Method]:
    """Run a method on the threads of a concurrency group."""
    decorator: Callable[[Method], Method] = ray.method(concurrency_group=name)
    return decorator


# `ingest` has one thread, so batches are taken in the order in which each writer sent them. Calls that wait do so in
# `draw` and `wait`, a second at most, so they hold up neither a batch nor each other. Nothing is repeated by Ray, which
# would change the order: writers and readers do it themselves.
@ray.remote(
    max_restarts=-1, max_task_retries=0, concurrency_groups={"ingest": 1, "draw": 8, "wait": 8, "save": 1, "update": 1}
)
class ReplayActor:
    """Holds the tables in a process of its own; the arguments and methods are those of `ReplayServer`."""

    def __init__(self, tables: Mapping[str, Mapping[str, Any]], **options: Any) -> None:
        get_a_fair_share()
        self._server = ReplayServer(tables, **options)

    @_in_group("ingest")
    def add_batch(self, *values: Any) -> Any:
        """Take rows of a writer."""
        return self._server.add_batch(*values)

    @_in_group("wait")
    def await_insert(self, *values: Any) -> Any:
        """Wait for room."""
        return self._server.await_insert(*values)

    @_in_group("wait")
    def await_rows(self, *values: Any) -> Any:
        """Wait for rows."""
        return self._server.await_rows(*values)

    @_in_group("draw")
    def plan(self, *values: Any) -> Any:
        """Draw rows."""
        return self._server.plan(*values)

    @_in_group("draw")
    def batches(self, *values: Any) -> Any:
        """Draw rows and copy them."""
        return self._server.batches(*values)

    @_in_group("update")
    def update_priorities(self, *values: Any) -> None:
        """Set priorities."""
        self._server.update_priorities(*values)

    @_in_group("update")
    def set_version(self, *values: Any) -> None:
        """Tell the version of the model."""
        self._server.set_version(*values)

    @_in_group("save")
    def snapshot(self, *values: Any) -> None:
        """Write a snapshot."""
        self._server.snapshot(*values)

    @_in_group("save")
    def restore(self, *values: Any) -> None:
        """Go on from a snapshot."""
        self._server.restore(*values)

    @_in_group("save")
    def state_parts(self, *values: Any) -> Any:
        """Return a snapshot."""
        return self._server.state_parts(*values)

    @_in_group("save")
    def load_state_dict(self, *values: Any) -> None:
        """Go on from a snapshot."""
        self._server.load_state_dict(*values)

    def memory(self, *values: Any) -> Any:
        """Return where the rows of a table are."""
        return self._server.memory(*values)

    def stats(self, *values: Any) -> Any:
        """Return counts."""
        return self._server.stats(*values)

    def metrics(self, *values: Any) -> Any:
        """Return the metrics of a table."""
        return self._server.metrics(*values)

    def leave(self, *values: Any) -> None:
        """Forget a writer."""
        self._server.leave(*values)


# what is done in a worker's name can be done again: a fragment that comes twice is recognized
@ray.remote(max_restarts=-1, max_task_retries=0)
class FragmentActor:
    """Holds fragments in a process of its own; the arguments are those of `FragmentServer`.

    Its methods share one event loop, in which any number of fetches may wait.
    """

    def __init__(self, rules: Mapping[str, Any], **options: Any) -> None:
        get_a_fair_share()
        self._server = FragmentServer(rules, **options)

    async def add_batch(self, *values: Any) -> Any:
        """Take fragments."""
        return self._server.buffer.add_batch(*values)

    async def set_version(self, *values: Any) -> None:
        """Take over the session and version of the model."""
        self._server.buffer.set_version(*values)

    async def fetch(self, *values: Any) -> Any:
        """Lease chunks, when there are enough."""
        return await self._server.buffer.afetch(*values)

    async def read(self, *values: Any) -> Any:
        """Return chunks of a lease."""
        return self._server.buffer.read(*values)

    async def release(self, *values: Any) -> Any:
        """End a lease."""
        return self._server.buffer.release(*values)

    async def update_priorities(self, *values: Any) -> Any:
        """Set the priorities of chunks."""
        return self._server.buffer.update_priorities(*values)

    async def metrics(self, *values: Any) -> Any:
        """Return plain numbers."""
        return self._server.metrics(*values)

    async def snapshot(self, *values: Any) -> None:
        """Write a snapshot."""
        await asyncio.to_thread(self._server.snapshot, *values)

    async def state_parts(self, *values: Any) -> Any:
        """Return a snapshot."""
        return await asyncio.to_thread(self._server.buffer.state_parts, *values)

    async def load_state_dict(self, *values: Any) -> None:
        """Go on from a snapshot."""
        await asyncio.to_thread(self._server.load_state_dict, *values)


class RayChannel:
    """The way to a replay actor, from any process that it is sent to by Ray.

    Args:
        actor: The actor.
        name: Of the replay, for messages.
    """

    def __init__(self, actor: Any, name: str) -> None:
        self.name = name
        self._actor = actor

    def begin(self, method: str, *values: Any) -> "Future[Any]":
        """Begin a call; see `Channel.begin`."""
        call: Future[Any] = Future()
        try:
            sent = getattr(self._actor, method).remote(*values).future()
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
        if error is None:
            call.set_result(done.result())
        else:
            call.set_exception(self._meaning(error))

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


def start_actor(
    tables: Mapping[str, Mapping[str, Any]],
    *,
    name: str | None = None,
    directory: str | Path | None = None,
    snapshot_every_s: float | None = None,
    **options: Any,
) -> RayChannel:
    """Start a replay actor on this node, or find the one of that name, and return the way to it.

    Args:
        tables: The arguments of a `ReplayBuffer` for each table, by name; the storage is `shm` unless they say another.
        name: By which any script on the cluster finds it; without one it ends with the process that started it.
        directory: Where its snapshots are; if there is one, it goes on from there.
        snapshot_every_s: How often they are written, seconds.
        **options: Ray options, such as `namespace` (`trieye` if not given), `num_cpus` (0) or `scheduling_strategy`.
    """
    shared = {table: {"storage": "shm", **spec} for table, spec in tables.items()}
    return _started(ReplayActor, shared, {}, name, directory, snapshot_every_s, options)


def start_fragments(
    rules: Mapping[str, Any],
    *,
    limiter: Mapping[str, Any] | None = None,
    seed: int = 0,
    name: str | None = None,
    directory: str | Path | None = None,
    snapshot_every_s: float | None = None,
    **options: Any,
) -> RayChannel:
    """Start an actor for fragments on this node, or find the one of that name, and return the way to it.

    Args:
        rules: The arguments of `FragmentRules`.
        limiter: Those of a `Limiter`; None for none.
        seed: Of the generator that chooses.
        name: As in `start_actor`.
        directory: As in `start_actor`.
        snapshot_every_s: As in `start_actor`.
        **options: Ray options, as in `start_actor`.
    """
    own = {"limiter": limiter, "seed": seed}
    return _started(FragmentActor, rules, own, name, directory, snapshot_every_s, options)


def _started(
    kind: Any,
    content: Mapping[str, Any],
    arguments: Mapping[str, Any],
    name: str | None,
    directory: str | Path | None,
    snapshot_every_s: float | None,
    options: Mapping[str, Any],
) -> RayChannel:
    own: dict[str, Any] = {
        "num_cpus": 0,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False),
    }
    if name is not None:
        own |= {"name": name, "namespace": NAMESPACE, "lifetime": "detached", "get_if_exists": True}
    shown = name or f"replay_{uuid.uuid4().hex[:8]}"
    actor = kind.options(**{**own, **options}).remote(
        content,
        **arguments,
        name=shown,
        directory=None if directory is None else Path(directory).absolute(),
        snapshot_every_s=snapshot_every_s,
    )
    return RayChannel(actor, shown)
