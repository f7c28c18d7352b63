"""FragmentBuffer: fragments of experience from many workers in, chunks of consecutive ones out."""

import asyncio
import contextlib
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
from trieye.replay.fragments.content import Content
from trieye.replay.fragments.fragment import AddResult, Chunk, FragmentMeta, FragmentRules, Lease, lease_id
from trieye.replay.fragments.readers import Ticket, WaitingLine
from trieye.replay.fragments.saving import SavedGroups, capture, restore, stack_group
from trieye.replay.limiter import Limiter
from trieye.replay.samplers.base import paired
from trieye.snapshot.nodes import StateParts
from trieye.snapshot.parts import SavedParts

_LEAST_PRIORITY, _MOST_PRIORITY = 1e-6, 1e30


class FragmentBuffer:
    """Collects fragments of workers into chunks, and leases chunks to readers.

    A chunk is `fragments_per_chunk` consecutive fragments of one worker. A fetch draws distinct chunks; they stay
    readable until their lease is released or runs out, whatever happens in the buffer meanwhile. No chunk is handed out
    that is staler or more used than the rules allow. Any thread may call any method at any time.

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
        limiter: Limiter | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make an empty buffer.

        Args:
            rules: How much is kept, for how long, and how chunks are chosen.
            seed: Of the generator that chooses.
            limiter: Keeps chunks that are fetched and added in a ratio; what it calls rows are chunks. None for none. A
                writer is not pushed back while a reader waits for more chunks than there are.
            clock: Seconds, for the ages of partial chunks and leases; never goes back.
        """
        self.rules = rules
        self._seed, self._limiter, self._clock = seed, limiter, clock
        self._lock = threading.Lock()  # guards the content, the line and the groups
        self._line = WaitingLine()
        self._groups = SavedGroups()
        self._is_closed = False
        self._content = self._empty()

    @classmethod
    def from_config(cls, config: ReplayConfig, *, seed: int = 0) -> Self:
        """Make the buffer that the `replay` group of a config describes.

        Raises:
            ConfigurationError: Its kind is another than `fragment`.
        """
        return cls(FragmentRules.from_config(config), seed=seed, limiter=Limiter.from_config(config.limiter))

    def __len__(self) -> int:
        """Return the number of chunks that can be handed out."""
        with self._lock:
            return len(self._content.pool)

    @property
    def session(self) -> str:
        """The present session; empty before the first `set_version`."""
        return self._content.sessions.session

    @property
    def model_version(self) -> int:
        """The present version; -1 before the first `set_version`."""
        return self._content.sessions.version

    def add(self, payload: Any, meta: FragmentMeta) -> AddResult:
        """Copy a fragment in.

        What is wrong with a fragment never raises, so that one bad fragment stops no worker: the result says it.

        Args:
            payload: Arrays by key. The first fragment decides on keys, shapes and dtypes.
            meta: Where it comes from.

        Raises:
            ReplayClosedError: The buffer is closed.
        """
        return self.add_batch([(payload, meta)])[0]

    def add_batch(self, fragments: Iterable[tuple[Any, FragmentMeta]]) -> list[AddResult]:
        """Copy fragments in, pairs of payload and meta, in this order; the same as `add` of each."""
        rows = list(fragments)
        with self._lock:
            content = self._swept()
            content.num_wanted = self._line.num_wanted
            results = [content.add(payload, meta, self._clock()) for payload, meta in rows]
            self._line.wake_first(len(self._content.pool))
        return results

    def set_version(self, session: str, version: int) -> None:
        """Announce the weights that workers use from now on.

        Chunks that have become too stale leave; fragments that came before this announcement are taken in. With
        another session, the content is discarded or kept, as `session_policy` says; kept chunks of a higher version go.

        Raises:
            ConfigurationError: The session had a higher version already, or one of the two is of a wrong kind.
            ReplayClosedError: The buffer is closed.
        """
        told = FragmentMeta("set_version", 0, version, session)  # checks and converts
        with self._lock:
            self._swept().set_version(told.session, told.model_version, self._clock())
            self._line.wake_first(len(self._content.pool))

    def fetch(self, n: int, timeout_s: float | None = None, strict: bool = True) -> Lease:
        """Lease `n` distinct chunks; wait until there are as many. Who came first is served first.

        Args:
            n: Number of chunks.
            timeout_s: How long to wait; without end if None, not at all if 0.
            strict: If False, take fewer chunks rather than none when the time is up.

        Raises:
            ConfigurationError: `n` is not from 1 to `max_chunks`, or more than the limiter can ever let pass.
            ReplayTimeoutError: There were not enough chunks in time; it is a `TimeoutError`. Nothing was taken.
            ReplayClosedError: The buffer is closed, or was closed meanwhile.
        """
        event = threading.Event()

        def wake() -> bool:
            event.set()
            return True

        with self._place(n, wake) as ticket:
            deadline = _deadline(timeout_s)
            while True:
                event.clear()
                if lease := self._turn(ticket):
                    return lease
                if not event.wait(_remaining(deadline)):
                    return self._last_turn(ticket, timeout_s, strict=strict)

    async def afetch(self, n: int, timeout_s: float | None = None, strict: bool = True) -> Lease:
        """Do what `fetch` does, without holding up the event loop; a task that is cancelled has taken nothing."""
        event, loop = asyncio.Event(), asyncio.get_running_loop()

        def wake() -> bool:
            try:
                loop.call_soon_threadsafe(event.set)
            except RuntimeError:  # the loop is closed
                return False
            return True

        with self._place(n, wake) as ticket:
            deadline = _deadline(timeout_s)
            while True:
                event.clear()
                if lease := self._turn(ticket):
                    return lease
                try:
                    async with asyncio.timeout(_remaining(deadline)):
                        await event.wait()
                except TimeoutError:
                    return self._last_turn(ticket, timeout_s, strict=strict)

    def read(self, lease: Lease | str, rank: int = 0, world: int = 1) -> tuple[Chunk, ...]:
        """Return the chunks of a lease that belong to one of several ranks, and let the lease's time begin anew.

        Args:
            lease: The lease or its id.
            rank: From 0 to `world` - 1; gets the chunks `[rank::world]`.
            world: Number of ranks.

        Raises:
            LeaseExpiredError: The lease was released, or ran out.
            ConfigurationError: There is no such rank.
            ReplayClosedError: The buffer is closed.
        """
        if not 0 <= rank < world:
            raise ConfigurationError(f"read: rank={rank} of world={world} is expected to be from 0 to {world - 1}")
        with self._lock:
            return self._swept().leases.read(lease_id(lease), self._clock()).chunks[rank::world]

    def release(self, lease: Lease | str) -> bool:
        """End a lease, and return whether it was open; the memory of chunks that nothing else holds is given back."""
        with self._lock:
            return not self._is_closed and self._swept().release(lease_id(lease))

    def update_priorities(self, chunk_ids: Sequence[int] | np.ndarray, priorities: ArrayLike) -> int:
        """Set the priorities of chunks; those that have left meanwhile are passed over.

        Args:
            chunk_ids: `[n]`, as `Chunk.id`.
            priorities: `[n]`, at least 0; 1e-6 is added, so that every chunk can be drawn.

        Returns:
            How many of the chunks are still in the buffer.

        Raises:
            ConfigurationError: The lengths differ, or a priority is negative, above 1e30 or not a number.
        """
        ids, values = paired(np.asarray(chunk_ids, np.int64), priorities)
        if not ((values >= 0) & (values <= _MOST_PRIORITY)).all():
            raise ConfigurationError("update_priorities: priorities must be numbers from 0 to 1e30")
        with self._lock:
            return self._swept().update_priorities(ids.tolist(), (values + _LEAST_PRIORITY).tolist())

    def metrics(self, *, reset: bool = True) -> dict[str, float]:
        """Return plain numbers under names like `replay/size`; what has no value yet is left out.

        As every call, it lets go what ran out.

        Means, extremes and the histogram `replay/staleness/<versions>` cover the time since the last reset, everything
        else the life of the buffer. `replay/dropped/<reason>` counts fragments that were never handed out;
        `replay/reuse_mean` is how often chunks had been handed out when they left.

        Args:
            reset: Whether a new period begins.
        """
        with self._lock:
            content, now = self._swept(), self._clock()
            found = {**content.metrics(now), "replay/waiters": len(self._line)}
            if reset:
                content.figures.reset(now)
            return found

    def state_parts(self, known: Collection[str]) -> StateParts:
        """Return a snapshot for a checkpoint; fragments that are in a known part are not written again.

        Everything comes back except leases: what they hold counts as used.
        """
        with self._lock:
            content = self._swept()
            state, kept, new = capture(content, self._groups, known, self._clock())
            fragments = {name: [content.payloads[serial] for serial in serials] for name, serials in new.items()}
            held = [serial for serials in new.values() for serial in serials]
            content.payloads.hold(held)
        try:
            arrays = {name: stack_group(group) for name, group in fragments.items()}
        finally:
            with self._lock:
                content.payloads.drop(held)
        return StateParts(state=state, kept=kept, new=arrays)

    def load_state_dict(self, saved: SavedParts) -> None:
        """Take over a snapshot instead of the present content; the next fetch draws what it would have drawn.

        The rules stay this buffer's own. Open leases end.

        Raises:
            ConfigurationError: The snapshot has chunks of another length or schema; nothing was changed.
            SerializationError: It is not whole, or not that of a fragment buffer; nothing was changed.
        """
        with self._lock:
            before = self._open().schema
            content, groups = self._empty(), SavedGroups()
            restore(content, groups, saved, now=self._clock(), schema=before)
            self._content.clear()
            self._content, self._groups = content, groups
            self._line.wake_first(len(self._content.pool))

    def save(self, path: str | Path) -> None:
        """Write the content as a directory; of what it held before only the new is written, and a kill harms nothing.

        Raises:
            SerializationError: The directory cannot be written, or the disk is full.
        """
        save_parts(Path(path), self)

    def load(self, path: str | Path) -> None:
        """Take over the content of a directory that `save` wrote.

        Raises:
            CheckpointError: There is none, or it is damaged.
            ConfigurationError: As `load_state_dict`.
        """
        self.load_state_dict(load_parts(Path(path)))

    def close(self) -> None:
        """Give the memory back; who waits gets a `ReplayClosedError`. Closing twice is fine."""
        with self._lock:
            self._is_closed = True
            self._content.clear()
            self._line.wake_all()

    def _empty(self) -> Content:
        return Content(self.rules, seed=self._seed, now=self._clock(), limiter=self._limiter)

    def _open(self) -> Content:
        if self._is_closed:
            raise ReplayClosedError("the fragment buffer is closed; make a new one")
        return self._content

    def _swept(self) -> Content:
        content = self._open()
        content.sweep(self._clock())
        return content

    @contextlib.contextmanager
    def _place(self, n: int, wake: Callable[[], bool]) -> Iterator[Ticket]:
        """Give a reader a place in the line, for as long as it waits."""
        self.rules.check_count(n)
        ticket = Ticket(int(n), self._clock(), wake)
        with self._lock:
            self._open()
            self._line.join(ticket)
        try:
            yield ticket
        finally:
            with self._lock:
                self._line.leave(ticket)
                self._line.wake_first(len(self._content.pool))

    def _turn(self, ticket: Ticket) -> Lease | None:
        with self._lock:
            return self._take(ticket, ticket.num_chunks)

    def _last_turn(self, ticket: Ticket, timeout_s: float | None, *, strict: bool) -> Lease:
        with self._lock:
            lease = self._take(ticket, ticket.num_chunks)
            available, before = len(self._content.pool), self._line.place(ticket)
            if lease is None and not strict and available:
                lease = self._take(ticket, min(available, ticket.num_chunks))
        if lease is not None:
            return lease
        raise ReplayTimeoutError(
            f"fetch({ticket.num_chunks}): {available} of {ticket.num_chunks} chunks are there after {timeout_s:g} s, "
            f"and {before} other fetches come first"
        )

    def _take(self, ticket: Ticket, n: int) -> Lease | None:
        content, now = self._swept(), self._clock()
        content.expire()
        if self._line.place(ticket):
            return None
        lease = content.fetch(n, now)
        if lease is not None:
            content.figures.waited(now - ticket.began)
        return lease


def _deadline(timeout_s: float | None) -> float | None:
    return None if timeout_s is None else time.monotonic() + timeout_s


def _remaining(deadline: float | None) -> float | None:
    return None if deadline is None else max(deadline - time.monotonic(), 0.0)
