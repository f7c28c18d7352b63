"""FragmentBuffer: collects fragments of experience from many workers and leases chunks of consecutive fragments."""

import asyncio
import contextlib
import copy
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from trieye.checkpoints.directory import load_parts, save_parts
from trieye.config.replay import ReplayConfig
from trieye.exceptions import ConfigurationError, ReplayClosedError, ReplayTimeoutError
from trieye.replay.fragments.content import FragmentState
from trieye.replay.fragments.fragment import AddResult, Chunk, FragmentMeta, FragmentRules, Lease, lease_id
from trieye.replay.fragments.readers import ReaderQueue, Ticket
from trieye.replay.fragments.saving import SavedGroups, capture, restore, stack_group
from trieye.replay.limiter import RateLimiter
from trieye.replay.samplers.base import checked_priorities
from trieye.snapshot.nodes import StateParts
from trieye.snapshot.parts import SavedParts

_LEAST_PRIORITY = 1e-6


class FragmentBuffer:
    """Collects fragments of workers into chunks, and leases chunks to readers.

    A chunk is `fragments_per_chunk` consecutive fragments of one worker. A fetch draws distinct chunks, which stay
    readable until their lease is released or expires, independent of later changes to the buffer. No fetch returns a
    chunk that exceeds the staleness or reuse bounds of the rules. Thread-safe.

    Example:
        >>> buffer = FragmentBuffer(FragmentRules(max_chunks=100, max_staleness=2))
        >>> buffer.set_version("run-1", 0)
        >>> steps = {"obs": np.zeros((16, 4), np.float32), "reward": np.zeros(16, np.float32)}
        >>> buffer.add(steps, FragmentMeta("worker-0", fid=0, model_version=0, session="run-1")).status
        'accepted'
        >>> lease = buffer.fetch(1)
        >>> lease.stack()["obs"].shape
        (1, 1, 16, 4)
        >>> buffer.release(lease)
        True
    """

    def __init__(
        self,
        rules: FragmentRules,
        *,
        seed: int = 0,
        limiter: RateLimiter | None = None,
        clock: Callable[[], float] = time.monotonic,
        first_id: int = 0,
    ) -> None:
        """Create an empty buffer.

        Args:
            rules: Capacity, retention and sampling.
            seed: Seed of the draws.
            limiter: Bounds the ratio of fetched to added chunks (its rows are chunks); None for no bound. It does not
                reject writers while a reader waits for more chunks than the buffer has.
            clock: Monotonic clock in seconds, for the ages of partial chunks and leases.
            first_id: Id of the first chunk.
        """
        self.rules = rules
        self._seed, self._limiter, self._clock, self._first_id = seed, limiter, clock, first_id
        self._lock = threading.Lock()  # guards the state, the queue and the groups
        self._queue = ReaderQueue()
        self._groups = SavedGroups()
        self._is_closed = False
        self._state = self._empty()

    @classmethod
    def from_config(cls, config: ReplayConfig, *, seed: int = 0) -> Self:
        """Create the buffer that the `replay` group of a config describes.

        Raises:
            ConfigurationError: Its kind is not `fragment`.
        """
        return cls(FragmentRules.from_config(config), seed=seed, limiter=RateLimiter.from_config(config.limiter))

    def __len__(self) -> int:
        """Return the number of chunks that can be fetched."""
        with self._lock:
            return len(self._state.pool)

    def missing(self, fragments: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
        """Return which of these fragments, each a worker and a fragment number, the buffer does not contain."""
        with self._lock:
            stored_fragments = self._open().holders.keys
            return [fragment for fragment in fragments if fragment not in stored_fragments]

    @property
    def session(self) -> str:
        """The current session; empty before the first `set_version`."""
        return self._state.sessions.session

    @property
    def model_version(self) -> int:
        """The current version; -1 before the first `set_version`."""
        return self._state.sessions.version

    def add(self, payload: Any, meta: FragmentMeta) -> AddResult:
        """Copy a fragment into the buffer.

        An invalid fragment is reported in the result rather than raised, so that one bad fragment stops no worker.

        Args:
            payload: Arrays by key. The first fragment determines keys, shapes and dtypes.
            meta: The fragment's origin.

        Raises:
            ReplayClosedError: The buffer is closed.
        """
        return self.add_batch([(payload, meta)])[0]

    def add_batch(self, fragments: Iterable[tuple[Any, FragmentMeta]]) -> list[AddResult]:
        """Copy fragments, pairs of payload and meta, into the buffer; equivalent to `add` for each in order."""
        rows = list(fragments)
        with self._lock:
            state = self._swept()
            state.num_wanted = self._queue.num_wanted
            results = [state.add(payload, meta, self._clock()) for payload, meta in rows]
            self._queue.wake_first(len(self._state.pool))
        return results

    def set_version(self, session: str, version: int) -> None:
        """Announce the weights that workers use from now on.

        Chunks that become too stale are removed, and early fragments of this session and version are accepted. With a
        new session, `session_policy` determines whether the content is discarded or retained; retained chunks of a
        higher version are removed.

        Raises:
            ConfigurationError: The session already had a higher version, or an argument has the wrong type.
            ReplayClosedError: The buffer is closed.
        """
        message = FragmentMeta("set_version", 0, version, session)  # validates and converts
        with self._lock:
            self._swept().set_version(message.session, message.model_version, self._clock())
            self._queue.wake_first(len(self._state.pool))

    def repeat_version(self, session: str, version: int) -> None:
        """Repeat a `set_version` that this buffer may have lost in a crash; no effect if it is not ahead of the buffer.

        Raises:
            ReplayClosedError: The buffer is closed.
        """
        with self._lock:
            state = self._swept()
            if state.sessions.is_ahead(session, version):
                state.set_version(session, version, self._clock())
                self._queue.wake_first(len(self._state.pool))

    def fetch(self, n: int, timeout_s: float | None = None, strict: bool = True, *, reader: str = "") -> Lease:
        """Lease `n` distinct chunks; wait until that many are available. Readers are served in order of arrival.

        Args:
            n: Number of chunks.
            timeout_s: Maximum wait in seconds; unlimited if None, no waiting if 0.
            strict: If False, return fewer chunks rather than none after the timeout.
            reader: Name of a reader that waits in several calls: after a timeout, it keeps its place among the readers
                for a second.

        Raises:
            ConfigurationError: `n` is not in 1 to `max_chunks`, or exceeds the most that the limiter can ever permit.
            ReplayTimeoutError: Too few chunks were available in time; a `TimeoutError`. Nothing was leased.
            ReplayClosedError: The buffer is closed, or was closed during the wait.
        """
        event = threading.Event()

        def wake() -> bool:
            event.set()
            return True

        with self._queued(n, wake, reader) as ticket:
            deadline = _deadline(timeout_s)
            while True:
                event.clear()
                if lease := self._turn(ticket):
                    return lease
                if not event.wait(_remaining(deadline)):
                    return self._last_turn(ticket, strict=strict)

    async def afetch(self, n: int, timeout_s: float | None = None, strict: bool = True, *, reader: str = "") -> Lease:
        """Implement `fetch` without blocking the event loop; a cancelled task has leased nothing."""
        event, loop = asyncio.Event(), asyncio.get_running_loop()

        def wake() -> bool:
            try:
                loop.call_soon_threadsafe(event.set)
            except RuntimeError:  # the loop is closed
                return False
            return True

        with self._queued(n, wake, reader) as ticket:
            deadline = _deadline(timeout_s)
            while True:
                event.clear()
                if lease := self._turn(ticket):
                    return lease
                try:
                    async with asyncio.timeout(_remaining(deadline)):
                        await event.wait()
                except TimeoutError:
                    return self._last_turn(ticket, strict=strict)

    def leave(self, reader: str) -> None:
        """End the wait of a reader in several calls; a call that it still makes takes no chunks."""
        with self._lock:
            self._queue.remove(reader)
            self._queue.wake_first(len(self._state.pool))

    def read(self, lease: Lease | str, rank: int = 0, world: int = 1) -> tuple[Chunk, ...]:
        """Return the chunks of a lease for one of several ranks, and restart the lease's expiry.

        Args:
            lease: The lease or its id.
            rank: 0 to `world` - 1; gets the chunks `[rank::world]`.
            world: Number of ranks.

        Raises:
            LeaseExpiredError: The lease was released or has expired.
            ConfigurationError: The rank is out of range.
            ReplayClosedError: The buffer is closed.
        """
        if not 0 <= rank < world:
            raise ConfigurationError(f"read: rank={rank} must be between 0 and {world - 1} (world={world})")
        with self._lock:
            return self._swept().leases.read(lease_id(lease), self._clock()).chunks[rank::world]

    def release(self, lease: Lease | str) -> bool:
        """Close a lease and free the memory of chunks without other holders; return whether the lease was open."""
        with self._lock:
            return not self._is_closed and self._swept().release(lease_id(lease))

    def update_priorities(self, chunk_ids: Sequence[int] | np.ndarray, priorities: ArrayLike) -> int:
        """Set the priorities of chunks; ignore chunks that left the buffer.

        Args:
            chunk_ids: `[n]`, as `Chunk.id`.
            priorities: `[n]`, at least 0; 1e-6 is added, so that every chunk can be drawn.

        Returns:
            The number of chunks that are still in the buffer.

        Raises:
            ConfigurationError: The lengths differ, an id is not an integer, or a priority is negative or not finite.
        """
        ids, values = checked_priorities(chunk_ids, priorities)
        with self._lock:
            state, pairs = self._swept(), zip(ids.tolist(), (values + _LEAST_PRIORITY).tolist(), strict=True)
            updates = [(chunk_id, priority) for chunk_id, priority in pairs if chunk_id in state.pool]
            state.pool.prioritize(dict(updates))
            state.top_priority = max([state.top_priority, *(priority for _, priority in updates)])
            return len(updates)

    def metrics(self, *, reset: bool = True) -> dict[str, float]:
        """Return plain numbers under names such as `replay/size`, omitting those without a value yet.

        Like every call, it first removes expired leases and fragments.

        Means, extremes and the histogram `replay/staleness/<versions>` cover the time since the last reset, all others
        the lifetime of the buffer. `replay/dropped/<reason>` counts fragments that were never fetched;
        `replay/reuse_mean` is the mean number of fetches of the chunks that left the buffer.

        Args:
            reset: Start a new period.
        """
        with self._lock:
            state, now = self._swept(), self._clock()
            metrics = {**state.metrics(now), "replay/waiting_readers": len(self._queue)}
            if reset:
                state.figures.reset(now)
            return metrics

    def state_parts(self, known_parts: Collection[str]) -> StateParts:
        """Return a snapshot for a checkpoint; fragments in a known part are not written again.

        Leases are not saved: their chunks count as used.
        """
        with self._lock:
            state = self._swept()
            saved_state, known_groups, new_groups = capture(state, self._groups, known_parts, self._clock())
        return StateParts(saved_state, known_groups, {name: stack_group(group) for name, group in new_groups.items()})

    def load_state_dict(self, saved_parts: SavedParts) -> None:
        """Replace the content by a snapshot; the next fetch equals the next fetch of the saved buffer.

        The rules of this buffer apply. Open leases are closed.

        Raises:
            ConfigurationError: The snapshot's chunks have another length or schema; nothing was changed.
            SerializationError: The snapshot is incomplete, or not of a fragment buffer; nothing was changed.
        """
        with self._lock:
            old_schema = self._open().schema
            state, groups = self._empty(), SavedGroups()
            restore(state, groups, saved_parts, now=self._clock(), schema=old_schema)
            state.next_chunk = max(state.next_chunk, self._state.next_chunk)  # ids of replaced chunks are not reused
            self._state, self._groups = state, groups
            self._queue.wake_first(len(self._state.pool))

    def save(self, path: str | Path) -> None:
        """Write the buffer to a directory, replaced atomically; data that it already contains is not written again.

        Raises:
            ConfigurationError: The path is a file, or a directory with content other than an earlier save.
            SerializationError: The directory is not writable, or the disk is full.
        """
        save_parts(Path(path), self)

    def load(self, path: str | Path) -> None:
        """Restore the content of a directory that `save` wrote.

        Raises:
            CheckpointError: The directory does not exist or is damaged.
            ConfigurationError: As for `load_state_dict`.
        """
        self.load_state_dict(load_parts(Path(path)))

    def close(self) -> None:
        """Release the memory; waiting readers get a `ReplayClosedError`. Idempotent."""
        with self._lock:
            self._is_closed = True
            self._state, self._groups = self._empty(), SavedGroups()
            self._queue.wake_all()

    def _empty(self) -> FragmentState:
        limiter = copy.copy(self._limiter)  # its counts belong to the state
        state = FragmentState(self.rules, seed=self._seed, now=self._clock(), limiter=limiter)
        state.next_chunk = self._first_id
        return state

    def _open(self) -> FragmentState:
        if self._is_closed:
            raise ReplayClosedError("the fragment buffer is closed; create a new one")
        return self._state

    def _swept(self) -> FragmentState:
        state = self._open()
        state.sweep(self._clock())
        self._queue.sweep(self._clock())
        return state

    @contextlib.contextmanager
    def _queued(self, n: int, wake: Callable[[], bool], reader: str) -> Iterator[Ticket]:
        """Keep a ticket in the queue while the reader waits."""
        self.rules.check_count(n)
        ticket = Ticket(int(n), self._clock(), wake, reader)
        with self._lock:
            self._open()
            self._queue.join(ticket)
        try:
            yield ticket
        finally:
            with self._lock:
                self._queue.leave(ticket)
                self._queue.wake_first(len(self._state.pool))

    def _turn(self, ticket: Ticket) -> Lease | None:
        with self._lock:
            return self._take(ticket, ticket.num_chunks)

    def _last_turn(self, ticket: Ticket, *, strict: bool) -> Lease:
        with self._lock:
            lease = self._take(ticket, ticket.num_chunks)
            available, num_before = len(self._state.pool), self._queue.position(ticket)
            num_chunks = 0 if strict else min(available, ticket.num_chunks)
            while lease is None and num_chunks:
                lease = self._take(ticket, num_chunks)
                num_chunks -= 1
            now = self._clock()
            if lease is None and ticket.reader:
                self._queue.pause(ticket, now)
        if lease is not None:
            return lease
        reason = f"{num_before} other fetches come first"
        if available >= ticket.num_chunks and not num_before:
            reason = "the limiter requires more inserts first"
        raise ReplayTimeoutError(
            f"fetch({ticket.num_chunks}): {available} of {ticket.num_chunks} chunks are available after "
            f"{round(now - ticket.requested_at, 2):g} s, and {reason}"
        )

    def _take(self, ticket: Ticket, n: int) -> Lease | None:
        state, now = self._swept(), self._clock()
        if not self._queue.is_first(ticket):
            return None
        lease = state.fetch(n, now)
        if lease is not None:
            state.figures.waited(now - ticket.requested_at)
        return lease


def _deadline(timeout_s: float | None) -> float | None:
    return None if timeout_s is None else time.monotonic() + timeout_s


def _remaining(deadline: float | None) -> float | None:
    return None if deadline is None else min(max(deadline - time.monotonic(), 0.0), threading.TIMEOUT_MAX)
