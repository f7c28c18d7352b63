"""What user code holds of a replay actor: RemoteReplay for tables, RemoteFragments for fragments."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from trieye.config.replay import ReplayConfig
from trieye.exceptions import ConfigurationError
from trieye.replay.buffer import arguments_of
from trieye.replay.fragments import AddResult, Chunk, FragmentMeta, Lease
from trieye.replay.fragments.fragment import lease_id
from trieye.replay.remote.channel import Channel, Deadline, ask, group_of
from trieye.replay.remote.messages import DEFAULT_TABLE
from trieye.replay.remote.reader import Reader
from trieye.replay.remote.server import FragmentServer, ReplayServer, Server
from trieye.replay.remote.writer import Writer
from trieye.replay.rows.store import AttachedReplay
from trieye.snapshot.nodes import StateParts
from trieye.snapshot.parts import SavedParts

SAVE_TIMEOUT_S = 3600.0
FOR_EVER_S = 1e9

Held = TypeVar("Held", bound=Server)
Values = ParamSpec("Values")
Result = TypeVar("Result")


class Remote(Generic[Held]):
    """A server in a process of its own; can be sent to tasks and actors.

    It has what `Run.save` and `Run.restore` need, so that its content is part of a checkpoint.

    Args:
        channel: The way to the server.
        timeout_s: How long a call waits for an answer, seconds; the time that a fetch may wait comes on top.
    """

    def __init__(self, channel: Channel[Held], *, timeout_s: float = 60.0) -> None:
        self._channel, self._timeout_s = channel, timeout_s

    def ask(
        self, operation: Callable[Concatenate[Held, Values], Result], /, *values: Values.args, **options: Values.kwargs
    ) -> Result:
        """Do an operation of the server, such as `ReplayServer.stats`, and return its result; it may be done twice.

        Raises:
            ReplayTimeoutError: It was not answered in time.
            TrieyeError: What the server raised.
        """
        timeout_s = SAVE_TIMEOUT_S if group_of(operation) == "save" else self._timeout_s
        return ask(self._channel, timeout_s, operation, *values, **options)

    def snapshot(self, directory: str | Path | None = None) -> None:
        """Write a snapshot of all that the server holds, on its machine.

        Args:
            directory: Where to; the server's own if None.

        Raises:
            ConfigurationError: There is none.
            SerializationError: It could not be written.
        """
        self.ask(Server.snapshot, None if directory is None else Path(directory).absolute())

    def restore(self, directory: str | Path) -> None:
        """Go on from a snapshot; make new writers afterwards, as those that are open send again what came after it.

        Raises:
            CheckpointError: There is none, or it is not whole.
            ConfigurationError: It holds rows of another schema, or chunks of another length.
        """
        self.ask(Server.restore, Path(directory).absolute())

    def state_parts(self, known: Collection[str]) -> StateParts:
        """Return a snapshot of all that the server holds; see `StateParts`."""
        return self.ask(Server.state_parts, set(known))

    def load_state_dict(self, held: SavedParts) -> None:
        """Go on from a snapshot whose files can be read on the machine of the server."""
        self.ask(Server.load_state_dict, held)

    def close(self) -> None:
        """End the server and give its memory back."""
        self._channel.kill()


class RemoteReplay(Remote[ReplayServer]):
    """Tables in a process of their own, with writers and readers anywhere."""

    @classmethod
    def start(cls, tables: Mapping[str, Mapping[str, Any]], *, timeout_s: float = 60.0, **options: Any) -> Self:
        """Start a replay actor on this node; Ray has to be started.

        Args:
            tables: The arguments of a `ReplayBuffer` for each table, by name; the storage is `shm` unless they say
                another.
            timeout_s: How long a call waits for an answer, seconds.
            **options: Those of `trieye.replay.remote.actor.start_server`.
        """
        from trieye.replay.remote.actor import ReplayActor, start_server

        shared = {table: {"storage": "shm", **spec} for table, spec in tables.items()}
        return cls(start_server(ReplayActor, {"tables": shared}, **options), timeout_s=timeout_s)

    @classmethod
    def from_config(cls, config: ReplayConfig, *, seed: int = 0, **options: Any) -> Self:
        """Start a replay actor with the one table that the `replay` group of a config describes.

        Rows that the config keeps in ordinary memory are kept in memory that readers can see.

        Args:
            config: The config; its kind is not `fragment`.
            seed: Seed of the draws.
            **options: Those of `start`.

        Raises:
            ConfigurationError: The kind is `fragment`.
        """
        return cls.start({DEFAULT_TABLE: table_of(config, seed=seed)}, **options)

    def writer(self, table: str = DEFAULT_TABLE, **options: Any) -> Writer:
        """Return a new writer; see `Writer`."""
        return Writer(self._channel, table, **options)

    def reader(self, table: str = DEFAULT_TABLE, **options: Any) -> Reader:
        """Return a new reader; see `Reader`."""
        return Reader(self._channel, table, **options)

    def attach(self, table: str = DEFAULT_TABLE) -> AttachedReplay:
        """Return a view of the rows of a table on this machine, to be read only, until the server dies.

        Raises:
            ConfigurationError: The server is on another machine, or the table has no rows yet or does not share them.
        """
        memory = self.ask(ReplayServer.memory, table)
        if memory.handle is None:
            raise ConfigurationError(
                f"table {table!r} cannot be attached to: it has no rows yet, or does not share them"
            )
        return AttachedReplay(memory.handle)

    def stats(self, table: str = DEFAULT_TABLE) -> dict[str, float]:
        """Return counts of a table as plain numbers."""
        return self.ask(ReplayServer.stats, table)

    def metrics(self, table: str = DEFAULT_TABLE) -> dict[str, float]:
        """Return the metrics of a table, ready to be logged."""
        return self.ask(ReplayServer.metrics, table)

    def set_version(self, version: int, table: str = DEFAULT_TABLE) -> None:
        """Tell which version of the model the rows come from that are added from now on; return when it is known."""
        self.ask(ReplayServer.set_version, table, version)

    def leave(self, client: str, table: str = DEFAULT_TABLE) -> None:
        """Let the server forget a writer whose process died, by its `client`; nobody waits for that."""
        self._channel.begin(ReplayServer.leave, table, client)


def table_of(config: ReplayConfig, *, seed: int = 0) -> dict[str, Any]:
    """Return the arguments of the table that a config describes.

    Raises:
        ConfigurationError: It describes fragments.
    """
    if config.kind == "fragment":
        raise ConfigurationError(
            "replay.kind=fragment is no table of rows; use RemoteFragments.start(config.fragment_rules)"
        )
    table = {**arguments_of(config), "storage": "shm" if config.storage == "ram" else config.storage, "seed": seed}
    if config.limiter.samples_per_insert is not None:
        table["limiter"] = config.limiter.model_dump()
    return table


class RemoteFragments(Remote[FragmentServer]):
    """A `FragmentBuffer` in a process of its own.

    Fragments travel through the object store; a fragment that is sent twice is recognized. After the death of the
    actor it goes on from its last snapshot; leases end, and what workers added since begins with a gap.
    """

    @classmethod
    def start(cls, rules: Mapping[str, Any], *, timeout_s: float = 60.0, **options: Any) -> Self:
        """Start an actor on this node; Ray has to be started.

        Args:
            rules: The arguments of `FragmentRules`.
            timeout_s: How long a call waits for an answer, seconds.
            **options: `limiter` and `seed` as in `FragmentServer`, and those of
                `trieye.replay.remote.actor.start_server`.
        """
        from trieye.replay.remote.actor import FragmentActor, start_server

        return cls(start_server(FragmentActor, {"rules": rules}, **options), timeout_s=timeout_s)

    def add(self, payload: Mapping[str, Any], meta: FragmentMeta) -> AddResult:
        """Add one fragment; see `FragmentBuffer.add`."""
        return self.add_batch([(payload, meta)])[0]

    def add_batch(self, fragments: Iterable[tuple[Mapping[str, Any], FragmentMeta]]) -> list[AddResult]:
        """Add fragments with one call; see `FragmentBuffer.add_batch`."""
        return self.ask(FragmentServer.add_batch, list(fragments))

    def set_version(self, session: str, version: int) -> None:
        """Announce the weights that workers use from now on; see `FragmentBuffer.set_version`."""
        self.ask(FragmentServer.set_version, session, version)

    def fetch(self, n: int, timeout_s: float | None = None, strict: bool = True) -> Lease:
        """Lease `n` chunks, which are copied to this process; see `FragmentBuffer.fetch`."""
        wait_s = FOR_EVER_S if timeout_s is None else timeout_s
        enough = Deadline(wait_s, lambda: f"fetch({n}) from {self._channel.name!r} was not possible")
        answer = Deadline(wait_s + self._timeout_s, lambda: f"fetch({n}): {self._channel.name!r} did not answer")
        while True:
            left_s = None if timeout_s is None else enough.left_s
            try:
                return answer.result(self._channel.begin(FragmentServer.fetch, n, left_s, strict))
            except ConnectionError as error:
                enough.pause(str(error))

    async def afetch(self, n: int, timeout_s: float | None = None, strict: bool = True) -> Lease:
        """Do what `fetch` does, without holding up the event loop."""
        return await asyncio.to_thread(self.fetch, n, timeout_s, strict)

    def read(self, lease: Lease | str, rank: int = 0, world: int = 1) -> tuple[Chunk, ...]:
        """Return the chunks of one of several ranks; see `FragmentBuffer.read`."""
        return self.ask(FragmentServer.read, lease_id(lease), rank, world)

    def release(self, lease: Lease | str) -> bool:
        """End a lease, and return whether it was open."""
        return self.ask(FragmentServer.release, lease_id(lease))

    def update_priorities(self, chunk_ids: Sequence[int] | np.ndarray, priorities: ArrayLike) -> int:
        """Set the priorities of chunks; see `FragmentBuffer.update_priorities`."""
        return self.ask(FragmentServer.update_priorities, np.asarray(chunk_ids), np.asarray(priorities))

    def metrics(self, *, reset: bool = True) -> dict[str, float]:
        """Return plain numbers, ready to be logged; see `FragmentBuffer.metrics`."""
        return self.ask(FragmentServer.metrics, reset=reset)
