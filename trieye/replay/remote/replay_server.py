"""ReplayServer: a replay buffer shared by many writers and readers, with acknowledged row counts per writer."""

import os
import threading
import time
import uuid
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from trieye.exceptions import ConfigurationError, ReplayTimeoutError
from trieye.replay.batch import Batch
from trieye.replay.buffer import ReplayBuffer
from trieye.replay.limiter import RateLimiter
from trieye.replay.remote.channel import operation
from trieye.replay.remote.messages import INTERRUPTION, LOST_ROWS, Ack, Drawn, RowBatch
from trieye.replay.remote.server import Server
from trieye.replay.rows.store import ReplayHandle
from trieye.replay.samplers.base import Ids, SampledIds
from trieye.snapshot.nodes import StateParts
from trieye.snapshot.parts import SavedParts

NUM_CALLS = 4
"""Number of calls after which the draws of a call have been copied: two readers with two calls each."""

MAX_SHARE = 10
"""At most one row in `MAX_SHARE` is held back."""

SERVER = "server"
"""Key of the server's own state, beside the keys of the buffer's state."""


class ReplayServer(Server):
    """Serves a replay buffer; the operations of a replay actor, with their thread groups.

    Rows of different writers are interleaved; the rows of one writer arrive in order. Callers that wait for rows or
    for room do not block others.

    Args:
        buffer: The arguments of a `ReplayBuffer`, optionally with `limiter`, a dict of `RateLimiter` arguments.
        name: As in `Server`, which validates the arguments.
        directory: As in `Server`.
        snapshot_every_s: As in `Server`.
    """

    def __init__(
        self,
        buffer: Mapping[str, Any],
        *,
        name: str = "replay",
        directory: Path | None = None,
        snapshot_every_s: float | None = None,
    ) -> None:
        limiter = buffer.get("limiter")
        rate_limiter = None if limiter is None else RateLimiter(**limiter)
        self._buffer = ReplayBuffer(**{**buffer, "limiter": rate_limiter})
        # hindsight relabelling needs the buffer, so other processes cannot copy such rows themselves
        self._is_shared = buffer.get("her") is None
        self.generation = uuid.uuid4().hex
        self._recent_ends: deque[int] = deque(maxlen=NUM_CALLS)  # `_end` at the last calls that drew rows
        self._changed = threading.Condition()  # guards all fields, the buffer and the limiter included
        self._counts = AcknowledgedCounts()
        self._env_codes: dict[str, dict[int, int]] = {}
        self._num_envs = self._num_duplicates = self._num_late = 0
        super().__init__(name, directory, snapshot_every_s)

    @operation("ingest")
    def add_batch(self, client: str, first_number: int, oldest: int, rows: RowBatch) -> Ack:
        """Add a batch, unless it is a duplicate or earlier batches are missing.

        Args:
            client: Name of the writer.
            first_number: Number of the first row, counted over the lifetime of the writer.
            oldest: Number of the oldest row that the writer can still send.
            rows: The rows.

        Raises:
            ConfigurationError: The rows do not match the schema of the buffer.
        """
        with self._changed:
            verdict, reason = self._counts.judge(client, first_number, oldest), ""
            self._num_duplicates += verdict == "duplicate"
            if verdict == "next":
                reason = self._refusal()
                if not reason:
                    has_gap = self._counts.ack(client).end < first_number
                    if has_gap:
                        self._interrupt(client)  # the rows in between are lost
                    self._add(client, rows, lost_rows=has_gap or self._counts.ack(client).lost > 0)
                    self._counts.record(client, first_number, len(rows))
                    self._changed.notify_all()
            return self._counts.ack(client, reason)

    @operation("wait")
    def await_insert(self, client: str, timeout_s: float) -> Ack:
        """Return a writer's progress once there is room for another batch, or after the timeout."""
        with self._changed:
            self._changed.wait_for(lambda: not self._refusal(), timeout_s)
            return self._counts.ack(client, self._refusal())

    @operation()
    def leave(self, client: str) -> None:
        """Unregister a writer."""
        with self._changed:
            self._counts.forget(client)
            self._interrupt(client)  # these episodes do not continue

    @operation("draw")
    def plan(self, k: int, n: int, timeout_s: float, again: bool = False) -> Drawn[SampledIds] | str:
        """Draw up to `k` times `n` rows, for a reader that copies them from shared memory.

        Args:
            k: Number of draws.
            n: Rows or sequences per draw.
            timeout_s: Maximum wait for rows to draw, in seconds.
            again: The draws replace rows of earlier draws that were overwritten before they were copied.

        Returns:
            The generation of the rows and at least one draw, or the reason why no draw was possible in that time.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while True:
                draws, hindrance = self._draws(k, n, again=again)
                if draws:
                    self._recent_ends.append(self._end)
                    self._changed.notify_all()
                    return self.generation, draws
                left_s = deadline - time.monotonic()
                if left_s <= 0 or not self._changed.wait(left_s):
                    return hindrance

    @operation("draw")
    def batches(self, k: int, n: int, keys: Sequence[str] | None, timeout_s: float) -> Drawn[Batch] | str:
        """Draw like `plan` and copy the rows, for a reader on another machine."""
        with self._changed:
            plan = self.plan(k, n, timeout_s)
            if isinstance(plan, str):
                return plan
            return plan[0], [self._buffer.rows(draw, keys=keys) for draw in plan[1]]

    @operation("wait")
    def await_rows(self, min_size: int, timeout_s: float) -> int:
        """Return the number of rows once it reaches `min_size`, or after the timeout."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._buffer) >= min_size, timeout_s)
            return len(self._buffer)

    @operation("update")
    def update_priorities(self, generation: str, ids: Ids, priorities: ArrayLike) -> None:
        """Set priorities; count updates of removed rows and ignore them otherwise."""
        with self._changed:
            if generation == self.generation:
                self._buffer.update_priorities(ids, priorities)
            else:  # the ids may refer to other rows now
                self._num_late += len(ids)

    @operation("update")
    def set_version(self, version: int) -> None:
        """Set the model version of rows added from now on."""
        with self._changed:
            self._buffer.set_version(version)

    @operation()
    def memory(self) -> tuple[str, ReplayHandle | None]:
        """Return the generation of the rows and their handle, or None if other processes cannot read them.

        The generation changes when the server gets new memory, as after its process died.
        """
        with self._changed:
            try:
                return self.generation, self._buffer.handle if self._is_shared else None
            except ConfigurationError:  # not in shared memory
                return self.generation, None

    @operation()
    def stats(self) -> dict[str, float]:
        """Return counts of the buffer and the snapshots, and the process id, as plain numbers."""
        with self._changed:
            counts, stats = self._counts, self._buffer.stats()
            return {
                **stats,
                "late_updates": stats["late_updates"] + self._num_late,
                "writers": len(counts),
                "duplicate_batches": self._num_duplicates,
                "lost_rows": counts.num_lost,
                "snapshots": self.num_written,
                "failed_snapshots": self.num_failed,
                "pid": os.getpid(),
            }

    @operation()
    def metrics(self) -> dict[str, float]:
        """Return the metrics of the buffer."""
        with self._changed:
            return self._buffer.metrics()

    def _parts(self, known_parts: Collection[str]) -> StateParts:
        """Return a snapshot of rows and acknowledged counts while other calls wait."""
        with self._changed:
            parts = self._buffer.state_parts(known_parts)
            envs = [(client, env, code) for client, codes in self._env_codes.items() for env, code in codes.items()]
            state = {
                "receipts": self._counts.state_dict(),
                "envs": envs,
                "num_envs": self._num_envs,
                "edge": list(self._recent_ends),
            }
            return replace(parts, state={**parts.state, SERVER: state})

    def _restore(self, saved_parts: SavedParts) -> None:
        """Restore a snapshot, or the state of a buffer, which has no writers; earlier draws become invalid."""
        with self._changed:
            self._buffer.load_state_dict(saved_parts)
            state = saved_parts.state.get(SERVER)
            if state is None:  # its environments may have the codes of new ones
                self._buffer.interrupt()
                state = {"receipts": AcknowledgedCounts().state_dict(), "envs": [], "num_envs": 0, "edge": []}
            self._counts.load_state_dict(state["receipts"])
            self._recent_ends = deque(state["edge"], maxlen=NUM_CALLS)
            self._num_envs, self._env_codes = int(state["num_envs"]), {}
            for client, env, code in state["envs"]:
                self._env_codes.setdefault(client, {})[int(env)] = int(code)
            self.generation = uuid.uuid4().hex
            self._changed.notify_all()

    def _is_saved(self, state: Any) -> None:
        with self._changed:  # writers may discard the saved rows
            self._counts.are_saved(state[SERVER]["receipts"]["ends"])

    def _release_memory(self) -> None:
        with self._changed:
            self._buffer.close()
            self._changed.notify_all()

    @property
    def _end(self) -> int:
        """Id of the next row."""
        return int(self._buffer.stats()["added"])

    def _interrupt(self, client: str) -> None:
        """Start new episodes with the next row of each environment of a writer."""
        for code in self._env_codes.pop(client, {}).values():
            self._buffer.interrupt(code)

    def _add(self, client: str, rows: RowBatch, *, lost_rows: bool) -> None:
        versions = rows.versions
        if versions is not None:
            versions = np.where(versions < 0, self._buffer.version, versions)
        codes = self._codes(client, rows, lost_rows=lost_rows)
        ids = self._buffer.extend(rows.by_key(), env_ids=codes, versions=versions)
        if rows.priorities is not None:
            is_explicit = ~np.isnan(rows.priorities)
            self._buffer.update_priorities(ids[is_explicit], rows.priorities[is_explicit])

    def _codes(self, client: str, rows: RowBatch, *, lost_rows: bool) -> Ids:
        """Return a code per row that is unique for each environment of each writer.

        Args:
            client: Name of the writer.
            rows: The rows.
            lost_rows: Whether earlier rows of a new environment may be lost.
        """
        codes = self._env_codes.setdefault(client, {})
        envs, inverse = (
            (np.zeros(1, np.int64), 0) if rows.env_ids is None else np.unique(rows.env_ids, return_inverse=True)
        )
        new_envs = [env for env in envs.tolist() if env not in codes]
        for env in new_envs:
            codes[env] = self._num_envs
            self._num_envs += 1
        if lacking := [env for env in new_envs if lost_rows or env >= LOST_ROWS]:
            self._buffer.extend({name: array[:0] for name, array in rows.by_key().items()})  # creates the schema
            for env in lacking:
                self._buffer.interrupt(codes[env], lost_rows=True)
        first_code = max(new_envs, default=0) // INTERRUPTION * INTERRUPTION
        if first_code > 0:  # after an interruption the writer sends no more rows of its previous environments
            for env in [env for env in codes if env < first_code and env not in envs]:
                self._buffer.interrupt(codes.pop(env))
        codes_of_envs = np.array([codes[env] for env in envs.tolist()], np.int64)
        return np.broadcast_to(codes_of_envs[inverse], len(rows))

    def _refusal(self) -> str:
        """Return why no batch can be added now; empty if one can."""
        if self._buffer.limiter is None or self._buffer.limiter.can_insert():
            return ""
        return f"the limiter of replay {self.name!r} requires more draws first"

    def _draws(self, k: int, n: int, *, again: bool) -> tuple[list[SampledIds], str]:
        """Return as many of `k` draws as are possible now, and what prevents the next one."""
        draws: list[SampledIds] = []
        try:
            while len(draws) < k:
                draws.append(self._draw(n, again=again))
        except (ConfigurationError, ReplayTimeoutError) as error:  # such as a missing sequence; new rows may add one
            return draws, str(error)
        return draws, ""

    def _draw(self, n: int, *, again: bool) -> SampledIds:
        """Draw rows, avoiding rows that may be overwritten before they are copied.

        As many rows as recent calls saw overwritten are held back. It uses no clock, so that a restored server makes
        the same draws.
        """
        size, end = len(self._buffer), self._end
        num_overwritten = end - next(iter(self._recent_ends), end) - (self._buffer.capacity - size)
        num_held_back = min(max(num_overwritten, 0), size // MAX_SHARE)
        return self._buffer.draw(n, above=end - size + num_held_back, again=again)


class AcknowledgedCounts:
    """Number of acknowledged rows of each writer, by the writer's name.

    A writer numbers its rows from 0 and sends them in batches with fixed boundaries, so the number of a batch's first
    row distinguishes new, duplicate and early batches.
    """

    def __init__(self) -> None:
        self._acks: dict[str, Ack] = {}
        self.num_lost = 0
        """Acknowledged rows that are lost: after the server died, no writer had them any more."""

    def __len__(self) -> int:
        return len(self._acks)

    def ack(self, client: str, refusal: str = "") -> Ack:
        """Return a writer's progress, and why its batch was not added."""
        return replace(self._acks.get(client, Ack(0)), refused=refusal)

    def judge(self, client: str, first_number: int, oldest: int) -> Literal["next", "duplicate", "early"]:
        """Classify a batch.

        Args:
            client: The writer.
            first_number: Number of the first row of the batch.
            oldest: Number of the oldest row that the writer can still send.
        """
        end = self.ack(client).end
        if first_number < end:
            return "duplicate"
        return "next" if first_number in {end, oldest} else "early"

    def record(self, client: str, first: int, count: int) -> None:
        """Record an added batch."""
        ack = self.ack(client)
        gap = first - ack.end
        self.num_lost += gap
        self._acks[client] = replace(ack, end=first + count, lost=ack.lost + gap)

    def forget(self, client: str) -> None:
        """Forget a writer that sends nothing more."""
        self._acks.pop(client, None)

    def are_saved(self, ends: Mapping[str, int]) -> None:
        """Record that a snapshot contains these ends, which `state_dict` returned."""
        for client in self._acks.keys() & ends.keys():
            self._acks[client] = replace(self._acks[client], saved=ends[client])

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a snapshot."""
        ends, lost = ({client: getattr(ack, name) for client, ack in self._acks.items()} for name in ("end", "lost"))
        return {"ends": ends, "lost": lost, "num_lost": self.num_lost}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a snapshot; all rows that it contains are saved."""
        lost = state["lost"]
        self._acks = {client: Ack(end, saved=end, lost=lost[client]) for client, end in state["ends"].items()}
        self.num_lost = int(state["num_lost"])
