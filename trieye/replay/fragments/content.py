"""FragmentState: the content and statistics of a fragment buffer and their transitions, without locks or waiting."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trieye.exceptions import ConfigurationError
from trieye.replay.fragments.fragment import (
    AddResult,
    AddStatus,
    Array,
    Chunk,
    Fragment,
    FragmentMeta,
    FragmentRules,
    Lease,
)
from trieye.replay.fragments.payloads import Holders, PayloadSchema
from trieye.replay.fragments.pool import ChunkPool, StoredChunk
from trieye.replay.fragments.readers import Leases
from trieye.replay.fragments.streams import EarlyFragment, EarlyFragments, Sessions, Streams
from trieye.replay.limiter import RateLimiter

_MAX_BAR = 16  # of the histogram, since staleness may be unbounded


class Figures:
    """Totals over the lifetime of the buffer, and statistics since the last reset.

    Attributes:
        dropped: Fragments that were never fetched, by reason.
        totals: Fragments and chunks added, chunks fetched, gaps, fragments refused for now, leases expired.
    """

    def __init__(self, now: float) -> None:
        self.dropped: Counter[str] = Counter()
        self.totals: Counter[str] = Counter()
        self.reset(now)

    def reset(self, now: float) -> None:
        """Start a new period."""
        self._since = now
        self._inserted_before = self.totals["fragments"]
        self._uses: list[int] = [0, 0]  # sum, number of chunks
        self._staleness: Counter[int] = Counter()
        self._waits: list[float] = [0.0, 0.0, 0.0]  # sum, longest, number

    def left(self, num_uses: int) -> None:
        """Count a removed chunk by its number of uses."""
        self._uses[0] += num_uses
        self._uses[1] += 1

    def handed_out(self, staleness: int) -> None:
        """Count a fetched chunk."""
        self.totals["sampled"] += 1
        self._staleness[staleness] += 1

    def waited(self, seconds: float) -> None:
        """Record how long a reader waited for its chunks."""
        self._waits = [self._waits[0] + seconds, max(self._waits[1], seconds), self._waits[2] + 1]

    def metrics(self, now: float) -> dict[str, float]:
        """Return the totals and the statistics of the period, omitting those without a value."""
        metrics: dict[str, float] = {f"replay/dropped/{reason}": count for reason, count in self.dropped.items()}
        for name in ("gaps", "pushed_back", "expired_leases"):
            metrics[f"replay/{name}"] = self.totals[name]
        if now > self._since:
            metrics["replay/inserts_per_s"] = (self.totals["fragments"] - self._inserted_before) / (now - self._since)
        if self.totals["chunks"]:
            metrics["replay/samples_per_insert"] = self.totals["sampled"] / self.totals["chunks"]
        if self._uses[1]:
            metrics["replay/reuse_mean"] = self._uses[0] / self._uses[1]
        if self._waits[2]:
            metrics["replay/wait_s_mean"] = self._waits[0] / self._waits[2]
            metrics["replay/wait_s_max"] = self._waits[1]
        if count := self._staleness.total():
            metrics["replay/staleness_mean"] = sum(age * num for age, num in self._staleness.items()) / count
            metrics["replay/staleness_max"] = max(self._staleness)
            for age, num in sorted(self._staleness.items()):
                bar = f"replay/staleness/{age if age < _MAX_BAR else f'{_MAX_BAR}_or_more'}"
                metrics[bar] = metrics.get(bar, 0) + num
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """Return the totals as plain data."""
        return {"dropped": dict(self.dropped), "totals": dict(self.totals)}

    def load_state_dict(self, state: Mapping[str, Any], now: float) -> None:
        """Restore totals and start a new period."""
        self.dropped, self.totals = Counter(state["dropped"]), Counter(state["totals"])
        self.reset(now)


class _RefusedError(Exception):
    """States why a fragment is not stored."""

    def __init__(self, status: AddStatus, reason: str = "") -> None:
        super().__init__(reason)
        self.result = AddResult(status, reason)


class FragmentState:
    """Streams of fragments, chunks and leases, and the rules for their removal.

    Not thread-safe. Times are seconds of any one monotonic clock.
    """

    def __init__(self, rules: FragmentRules, *, seed: int, now: float, limiter: RateLimiter | None) -> None:
        self.rules, self.limiter = rules, limiter
        self.schema: PayloadSchema | None = None
        self.rng = np.random.default_rng(seed)
        self.sessions = Sessions(rules.session_policy, rules.max_staleness)
        self.streams = Streams()
        self.early = EarlyFragments()
        self.pool = ChunkPool(rules)
        self.leases = Leases(rules.lease_ttl_s)
        self.holders = Holders()
        self.figures = Figures(now)
        self.next_fragment = self.next_chunk = 0
        self.top_priority = 1.0
        self.num_wanted = 0  # chunks requested by the first reader in the queue

    def add(self, payload: Any, meta: Any, now: float) -> AddResult:
        """Store a fragment or return why not; see `FragmentBuffer.add`."""
        try:
            return AddResult(self._store(payload, meta, now))
        except _RefusedError as refused:
            result = refused.result
        if result.should_retry:
            self.figures.totals["pushed_back"] += 1
        else:
            self.figures.dropped[result.status] += 1
        return result

    def sweep(self, now: float) -> None:
        """Remove incomplete chunks and early fragments that timed out, and expired leases."""
        for lease_id in self.leases.expired(now):
            self.release(lease_id)
            self.figures.totals["expired_leases"] += 1
        oldest_allowed = now - self.rules.partial_ttl_s
        self._drop(self.streams.take_silent(oldest_allowed), "expired")
        self._drop([row.fragment for row in self.early.take_before(oldest_allowed)], "expired")

    def set_version(self, session: str, version: int, now: float) -> None:
        """Change session and version, and remove unusable content; see `FragmentBuffer.set_version`."""
        if self.sessions.change(session, version):
            for chunk in list(self.pool):
                self._leave(chunk, "wrong_session")
            self._drop(self.streams.take_all(), "wrong_session")
        for chunk in self.pool.newer_than(version):  # only a resumed session can lag behind its content
            self._leave(chunk, "future_version")
        self.expire()
        self._drop(self.streams.keep_if(self._is_usable), "stale")
        for row in self.early.take_all():
            self._reconsider(row, now)

    def expire(self) -> None:
        """Remove every chunk that is too stale."""
        for chunk in self.pool.older_than(self.sessions.lowest_version):
            self._leave(chunk, "stale")

    def apply_bounds(self) -> None:
        """Remove content that the rules forbid, after restoring the content of a buffer with other rules."""
        for chunk in list(self.pool):
            if self.rules.max_reuse is not None and chunk.num_uses >= self.rules.max_reuse:
                self._leave(chunk, "exhausted")
        self.expire()
        while len(self.pool) and (len(self.pool) > self.rules.max_chunks or self._is_over_budget()):
            self._leave_oldest()

    def fetch(self, n: int, now: float) -> Lease | None:
        """Lease `n` distinct chunks; return None if there are fewer, or the limiter forbids it."""
        if len(self.pool) < n or (self.limiter is not None and not self.limiter.sample(n)):
            return None
        stored_chunks, weights = self.pool.choose(n, self.rng)
        chunks = []
        for chunk, weight in zip(stored_chunks, weights.tolist(), strict=True):
            chunk.num_uses += 1
            staleness = self.sessions.version - chunk.version
            chunks.append(Chunk(chunk.id, chunk.fragments, chunk.version, staleness, chunk.num_uses, weight))
            self.figures.handed_out(staleness)
            self.holders.hold(chunk.fragments)
            if self.rules.max_reuse is not None and chunk.num_uses >= self.rules.max_reuse:
                self._leave(chunk, "exhausted")
        return self.leases.open(tuple(chunks), now)

    def release(self, lease_id: str) -> bool:
        """Close a lease, and return whether it was open."""
        chunks = self.leases.close(lease_id)
        for chunk in chunks:
            self.holders.drop(chunk.fragments)
        return bool(chunks)

    @property
    def size_bytes(self) -> int:
        """Size of all fragments."""
        return len(self.holders) * self.schema.size_bytes if self.schema else 0

    def metrics(self, now: float) -> dict[str, float]:
        """Return sizes and statistics."""
        return {
            "replay/size": len(self.pool),
            "replay/fragments": len(self.holders),
            "replay/bytes": self.size_bytes,
            "replay/partial_chunks": self.streams.num_partial,
            "replay/waiting_fragments": len(self.early),
            "replay/leases": len(self.leases),
            "replay/model_version": self.sessions.version,
            **self.figures.metrics(now),
        }

    def _store(self, payload: Any, meta: Any, now: float) -> AddStatus:
        self._check_type_and_order(payload, meta)
        schema, arrays = self._conform(payload, meta)
        verdict = self.sessions.judge(meta)
        if verdict in {"stale", "wrong_session"}:
            self._skip(meta, now)
            raise _RefusedError(verdict)
        if verdict == "fits":
            self._drop_left_sessions(meta, now)
        is_early = verdict == "early" or self.early.has_worker(meta.worker)
        self._admit(meta, schema, is_early=is_early)
        try:
            fragment = Fragment(meta, schema.copied(arrays), self.next_fragment)
        except MemoryError as error:
            raise _RefusedError("full", f"no memory for {schema.size_bytes} bytes: {error}") from error
        self.schema = schema  # only now, so that a refused first fragment leaves no schema behind
        self.next_fragment += 1
        self.holders.hold([fragment])
        self.figures.totals["fragments"] += 1
        if is_early:
            self.early.add(EarlyFragment(fragment, now))
            return "early"
        return "gap" if self._append(fragment, now) == "gap" else "accepted"

    def _check_type_and_order(self, payload: Any, meta: Any) -> None:
        if not isinstance(meta, FragmentMeta):
            raise _RefusedError("rejected", f"meta must be a FragmentMeta, got {type(meta).__name__}")
        if not isinstance(payload, Mapping):
            raise _RefusedError("rejected", f"payload must be a dict of arrays, got {type(payload).__name__}")
        continuation = self.streams.classify(meta)
        if continuation == "old_incarnation":
            raise _RefusedError("old_incarnation")
        if continuation == "duplicate" or meta in self.early:
            raise _RefusedError("duplicate")

    def _conform(self, payload: Mapping[str, Any], meta: FragmentMeta) -> tuple[PayloadSchema, dict[str, Array]]:
        try:
            schema = self.schema or PayloadSchema.of(payload)
            arrays = schema.conform(payload)
        except ConfigurationError as error:
            raise _RefusedError("rejected", f"fragment {meta.fid} of worker {meta.worker!r}: {error}") from error
        chunk_bytes = schema.size_bytes * self.rules.fragments_per_chunk
        if self.rules.max_bytes is not None and chunk_bytes > self.rules.max_bytes:
            raise _RefusedError(
                "rejected",
                f"a chunk of such fragments takes {chunk_bytes} bytes, more than max_bytes={self.rules.max_bytes}",
            )
        return schema, arrays

    def _admit(self, meta: FragmentMeta, schema: PayloadSchema, *, is_early: bool) -> None:
        num_pending = self.streams.num_pending(meta)
        if is_early and len(self.early) >= self.rules.max_early:
            raise _RefusedError(
                "future_version",
                f"session {meta.session!r} version {meta.model_version} is not announced yet, and "
                f"max_early={self.rules.max_early} fragments already wait",
            )
        makes_a_chunk = not is_early and num_pending + 1 == self.rules.fragments_per_chunk
        # unused chunks that were removed count as inserted; without this, readers and writers could deadlock
        is_wanted = len(self.pool) < self.num_wanted
        if makes_a_chunk and not is_wanted and self.limiter is not None and not self.limiter.can_insert():
            raise _RefusedError("full", "the limiter requires more chunks to be fetched first")
        if not self._make_room(meta, schema.size_bytes, num_pending):
            raise _RefusedError(
                "full",
                f"{self.size_bytes} bytes are stored, most of them in the chunks of {len(self.leases)} leases "
                f"that are not released, and max_bytes={self.rules.max_bytes}; release them and add the fragment "
                "again, or set a larger max_bytes",
            )

    def _append(self, fragment: Fragment, now: float) -> str:
        meta = fragment.meta
        continuation = self.streams.classify(meta)
        self._drop(self.streams.advance(meta, now), continuation)
        if continuation == "gap":
            self.figures.totals["gaps"] += 1
        pending = self.streams.append(meta.worker, fragment)
        if len(pending) == self.rules.fragments_per_chunk:
            self._seal(tuple(self.streams.take(meta.worker)))
        return continuation

    def _seal(self, fragments: tuple[Fragment, ...]) -> None:
        while len(self.pool) >= self.rules.max_chunks:
            self._leave_oldest()
        self.pool.add(StoredChunk(self.next_chunk, fragments, priority=self.top_priority))
        self.next_chunk += 1
        self.figures.totals["chunks"] += 1
        if self.limiter is not None:
            self.limiter.inserted(1)

    def _reconsider(self, row: EarlyFragment, now: float) -> None:
        """Append an early fragment to its stream, or keep it waiting; the fragments of a worker stay in order."""
        verdict = self.sessions.judge(row.meta)
        if verdict == "fits":
            self._drop_left_sessions(row.meta, now)
        continuation = self.streams.classify(row.meta)
        if continuation in {"duplicate", "old_incarnation"}:
            self._drop([row.fragment], continuation)
        elif verdict == "early" or self.early.has_worker(row.meta.worker):
            self.early.add(row)
        elif verdict == "fits":
            self._append(row.fragment, now)
        else:
            self._skip(row.meta, now)
            self._drop([row.fragment], verdict)

    def _drop_left_sessions(self, meta: FragmentMeta, now: float) -> None:
        """Drop the worker's fragments that wait for sessions it has left, so that they block no later ones."""
        for row in self.early.take_left(meta, self.sessions.session):
            if self.streams.classify(row.meta) not in {"duplicate", "old_incarnation"}:
                self._skip(row.meta, now)
            self._drop([row.fragment], "wrong_session")

    def _skip(self, meta: FragmentMeta, now: float) -> None:
        """Advance the stream past a fragment that is not stored, so that the next one is no gap."""
        continuation = self.streams.classify(meta)
        self._drop(self.streams.advance(meta, now), continuation)
        self._drop(self.streams.take(meta.worker), "gap")

    def _make_room(self, meta: FragmentMeta, size_bytes: int, num_pending: int) -> bool:
        """Evict the oldest data until a fragment fits, and return whether it does."""
        if self.rules.max_bytes is None:
            return True
        room = self.rules.max_bytes // size_bytes
        while len(self.holders) >= room:
            chunk = self.pool.oldest(apart_from=self.leases.pinned)
            if chunk is not None:
                self._leave(chunk, "evicted")
            elif fragments := self.streams.take_longest_silent(apart_from=meta.worker if num_pending else ""):
                self._drop(fragments, "evicted")
            elif rows := self.early.take_oldest():
                self._drop([row.fragment for row in rows], "evicted")
            else:
                return False
        return True

    def _is_over_budget(self) -> bool:
        return self.rules.max_bytes is not None and self.size_bytes > self.rules.max_bytes

    def _leave_oldest(self) -> None:
        self._leave(next(iter(self.pool)), "evicted")

    def _leave(self, chunk: StoredChunk, reason: str) -> None:
        self.pool.remove(chunk)
        if self.limiter is not None and reason != "evicted":
            self.limiter.removed(1)
        self.figures.left(chunk.num_uses)
        if not chunk.num_uses:
            self.figures.dropped[reason] += len(chunk.fragments)
        self.holders.drop(chunk.fragments)

    def _drop(self, fragments: Sequence[Fragment], reason: str) -> None:
        if fragments:
            self.figures.dropped[reason] += len(fragments)
            self.holders.drop(fragments)

    def _is_usable(self, fragment: Fragment) -> bool:
        version = fragment.meta.model_version
        return version <= self.sessions.version and self.sessions.is_fresh(version)
