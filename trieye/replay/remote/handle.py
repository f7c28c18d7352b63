"""RemoteReplay and RemoteFragments: user handles of replay actors for rows and for fragments."""

import asyncio
import contextlib
import time
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from trieye.config.replay import ReplayConfig
from trieye.exceptions import ConfigurationError
from trieye.replay.buffer import ReplayBuffer
from trieye.replay.fragments import AddResult, Chunk, FragmentMeta, Lease
from trieye.replay.fragments.fragment import lease_id
from trieye.replay.remote.channel import Client, Deadline
from trieye.replay.remote.reader import Reader
from trieye.replay.remote.replay_server import ReplayServer
from trieye.replay.remote.server import FragmentServer, Server, ServerType
from trieye.replay.remote.writer import Writer
from trieye.replay.rows.store import AttachedReplay
from trieye.replay.samplers.base import paired
from trieye.snapshot.nodes import StateParts
from trieye.snapshot.parts import SavedParts

NO_TIMEOUT_S = 1e9


class Remote(Client[ServerType]):
    """A server in another process; can be sent to tasks and actors.

    It implements the interface of `Run.save` and `Run.restore`, so that its content can be part of a checkpoint.
    `fetch` waits for its own timeout in addition to `timeout_s`.
    """

    def snapshot(self, directory: str | Path | None = None) -> None:
        """Write a snapshot of the server's entire content on its machine.

        Args:
            directory: Target directory; the server's snapshot directory if None.

        Raises:
            ConfigurationError: The server has no snapshot directory.
            SerializationError: Writing failed.
        """
        self.ask(Server.snapshot, None if directory is None else Path(directory).absolute())

    def restore(self, directory: str | Path) -> None:
        """Restore a snapshot. Create new writers and readers afterwards.

        Open writers resend rows added after the snapshot, and open readers without access to the server's memory
        return a few batches drawn before the restore.

        Raises:
            CheckpointError: The snapshot does not exist or is incomplete.
            ConfigurationError: Its rows have another schema, or its chunks another length.
        """
        self.ask(Server.restore, Path(directory).absolute())

    def state_parts(self, known_parts: Collection[str]) -> StateParts:
        """Return a snapshot of the server's entire content; see `StateParts`."""
        return self.ask(Server.state_parts, set(known_parts))

    def load_state_dict(self, saved_parts: SavedParts) -> None:
        """Restore a snapshot whose files are readable on the server's machine."""
        self.ask(Server.load_state_dict, saved_parts)

    def close(self) -> None:
        """Stop the server and release its memory."""
        self.channel.kill()


class RemoteReplay(Remote[ReplayServer]):
    """A `ReplayBuffer` in a separate process, with writers and readers anywhere."""

    @classmethod
    def start(cls, buffer: Mapping[str, Any], *, timeout_s: float = 60.0, **options: Any) -> Self:
        """Start a replay actor on this node; Ray must be initialized.

        Args:
            buffer: The arguments of the `ReplayBuffer`; its storage defaults to `shm`.
            timeout_s: Maximum wait for a response in seconds.
            **options: Options of `trieye.replay.remote.actor.start_server`.
        """
        from trieye.replay.remote.actor import ReplayActor, start_server

        arguments = {"buffer": {"storage": "shm", **buffer}}
        return cls(start_server(ReplayActor, arguments, **options), timeout_s=timeout_s)

    @classmethod
    def from_config(cls, config: ReplayConfig, *, seed: int = 0, **options: Any) -> Self:
        """Start a replay actor with the buffer that the `replay` group of a config describes.

        `ram` storage becomes `shm`, which readers can access.

        Args:
            config: The config; its kind is not `fragment`.
            seed: Seed of the draws.
            **options: Options of `start`.

        Raises:
            ConfigurationError: The kind is `fragment`.
        """
        return cls.start(shared_arguments(config, seed=seed), **options)

    def writer(self, **options: Any) -> Writer:
        """Create a writer; see `Writer`."""
        return Writer(self.channel, **options)

    def reader(self, **options: Any) -> Reader:
        """Create a reader; see `Reader`."""
        return Reader(self.channel, **options)

    def attach(self) -> AttachedReplay:
        """Return a read-only view of the rows on this machine, valid until the server dies.

        Raises:
            ConfigurationError: The server is on another machine, or the replay has no rows or no shared memory.
        """
        _, handle = self.ask(ReplayServer.memory)
        if handle is None:
            raise ConfigurationError(
                f"cannot attach to replay {self.channel.name!r}: it has no rows yet, or is not in shared memory"
            )
        return AttachedReplay(handle)

    def stats(self) -> dict[str, float]:
        """Return counts as plain numbers."""
        return self.ask(ReplayServer.stats)

    def metrics(self) -> dict[str, float]:
        """Return the metrics, ready for logging."""
        return self.ask(ReplayServer.metrics)

    def set_version(self, version: int) -> None:
        """Set the model version of rows added from now on; return once the server has applied it."""
        self.ask(ReplayServer.set_version, version)

    def leave(self, client: str) -> None:
        """Unregister the writer `client` of a dead process, without waiting for the server."""
        self.channel.begin(ReplayServer.leave, client)


def shared_arguments(config: ReplayConfig, *, seed: int = 0) -> dict[str, Any]:
    """Return the arguments of the buffer that a config describes, in memory that other processes can read.

    Raises:
        ConfigurationError: It describes fragments.
    """
    ReplayBuffer.from_config(config)  # checks the config here rather than in the actor
    storage = "shm" if config.storage == "ram" else config.storage
    limiter = None if config.limiter.samples_per_insert is None else config.limiter.model_dump()
    return {**config.buffer_arguments, "storage": storage, "seed": seed, "limiter": limiter}


class RemoteFragments(Remote[FragmentServer]):
    """A `FragmentBuffer` in a separate process.

    Fragments travel through the object store; resent duplicates are recognized. After a crash, the actor resumes from
    its last snapshot; leases end, and the first fragment that each worker adds afterwards is a gap. Fragments of a
    version that the snapshot lacks are early until the handle that announced it calls `fetch`, which repeats its last
    `set_version`.
    """

    _announced: tuple[str, int] | None = None  # by the last `set_version` of this handle

    @classmethod
    def start(cls, rules: Mapping[str, Any], *, timeout_s: float = 60.0, **options: Any) -> Self:
        """Start an actor on this node; Ray must be initialized.

        Args:
            rules: The arguments of `FragmentRules`.
            timeout_s: Maximum wait for a response in seconds.
            **options: `limiter` and `seed` as in `FragmentServer`, and options of
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

    def restore(self, directory: str | Path) -> None:
        """Restore a snapshot with its version; see `Remote.restore`."""
        super().restore(directory)
        self._announced = None

    def load_state_dict(self, saved_parts: SavedParts) -> None:
        """Restore a snapshot with its version; see `Remote.load_state_dict`."""
        super().load_state_dict(saved_parts)
        self._announced = None

    def set_version(self, session: str, version: int) -> None:
        """Announce the weights that workers use from now on; see `FragmentBuffer.set_version`."""
        self.ask(FragmentServer.set_version, session, version)
        self._announced = session, version

    def fetch(self, n: int, timeout_s: float | None = None, strict: bool = True) -> Lease:
        """Lease `n` chunks and copy them to this process; see `FragmentBuffer.fetch`."""
        with _Fetch(self, n, timeout_s, strict=strict) as calls:
            while True:
                calls.begin(self._announced)
                outcome = calls.outcome()
                if isinstance(outcome, Lease):
                    return outcome
                time.sleep(outcome)

    async def afetch(self, n: int, timeout_s: float | None = None, strict: bool = True) -> Lease:
        """Implement `fetch` without blocking the event loop; a cancelled task holds no lease."""
        with _Fetch(self, n, timeout_s, strict=strict) as calls:
            while True:
                call = asyncio.gather(asyncio.wrap_future(calls.begin(self._announced)), return_exceptions=True)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(calls.response_deadline.left_s):
                        await call
                outcome = calls.outcome()
                if isinstance(outcome, Lease):
                    return outcome
                await asyncio.sleep(outcome)

    def read(self, lease: Lease | str, rank: int = 0, world: int = 1) -> tuple[Chunk, ...]:
        """Return the chunks of one of several ranks; see `FragmentBuffer.read`."""
        return self.ask(FragmentServer.read, lease_id(lease), rank, world)

    def release(self, lease: Lease | str) -> bool:
        """Close a lease, and return whether it was open."""
        return self.ask(FragmentServer.release, lease_id(lease))

    def update_priorities(self, chunk_ids: Sequence[int] | np.ndarray, priorities: ArrayLike) -> int:
        """Set the priorities of chunks; see `FragmentBuffer.update_priorities`."""
        return self.ask(FragmentServer.update_priorities, *paired(chunk_ids, priorities))

    def metrics(self, *, reset: bool = True) -> dict[str, float]:
        """Return plain numbers, ready for logging; see `FragmentBuffer.metrics`."""
        return self.ask(FragmentServer.metrics, reset=reset)


class _Fetch:
    """The calls of one `RemoteFragments.fetch`; each waits on the server for a second at most.

    Attributes:
        response_deadline: Time until which the server must respond.
    """

    def __init__(self, fragments: RemoteFragments, n: int, timeout_s: float | None, *, strict: bool) -> None:
        name, wait_s = fragments.channel.name, NO_TIMEOUT_S if timeout_s is None else timeout_s
        self._channel, self._call = fragments.channel, Future[Lease | None]()
        self._reader, self._num_chunks, self._is_strict = uuid.uuid4().hex, n, strict
        self._deadline = Deadline(wait_s, lambda: f"fetch({n}) from {name!r} failed")
        self.response_deadline = Deadline(wait_s + fragments.timeout_s, lambda: f"fetch({n}): {name!r} did not answer")

    def begin(self, announced: tuple[str, int] | None) -> "Future[Lease | None]":
        """Start the next call."""
        request = self._reader, self._num_chunks, self._deadline.left_s
        self._call = self._channel.begin(FragmentServer.fetch, *request, strict=self._is_strict, announced=announced)
        return self._call

    def outcome(self) -> Lease | float:
        """Return the lease, or the seconds until the next call; raises what `RemoteFragments.fetch` raises."""
        try:
            return self.response_deadline.result(self._call) or 0.0
        except ConnectionError as error:
            return self._deadline.next_pause_s(str(error))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._channel.begin(FragmentServer.leave, self._reader)
            self._call.add_done_callback(self._release)

    def _release(self, call: "Future[Lease | None]") -> None:
        """Release a lease that arrived too late."""
        if call.exception() is None and (lease := call.result()) is not None:
            self._channel.begin(FragmentServer.release, lease.id)
