"""Table: a replay buffer that many writers and readers share, with the receipts of its writers."""

import threading
import time
import uuid
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from trieye.exceptions import ConfigurationError, ReplayTimeoutError
from trieye.replay.batch import Batch
from trieye.replay.buffer import ReplayBuffer
from trieye.replay.limiter import Limiter
from trieye.replay.remote.delivery import Ack, Receipts
from trieye.replay.remote.messages import INTERRUPTION, Memory, Plan, Rows
from trieye.replay.samplers.base import Draw, Ids
from trieye.snapshot.nodes import StateParts
from trieye.snapshot.parts import SavedParts

NUM_CALLS = 4
"""So many calls later, what one of them decided has been copied: two readers with two calls each."""

MAX_SHARE = 10
"""At most one in so many rows is held back."""


class Table:
    """One buffer of a replay server; safe to call from threads.

    Rows of different writers may come in any order, those of one writer come in its own. Whoever waits, for rows to
    draw or for room, holds up nobody else.

    Args:
        name: Of the table, for messages.
        buffer: Where the rows are; nobody else uses it.
        limiter: Keeps draws and new rows in a ratio.
        is_shared: Whether other processes may copy the rows themselves.
    """

    def __init__(
        self, name: str, buffer: ReplayBuffer, *, limiter: Limiter | None = None, is_shared: bool = True
    ) -> None:
        self.name = name
        self.generation = uuid.uuid4().hex
        self._buffer, self._limiter, self._is_shared = buffer, limiter, is_shared
        self._edge = Edge(buffer.capacity)
        self._end = 0  # id of the next row
        self._version = 0
        self._changed = threading.Condition()  # guards all fields, the buffer and the limiter included
        self._receipts = Receipts()
        self._env_codes: dict[str, dict[int, int]] = {}
        self._num_envs = self._num_duplicates = self._num_late = 0

    def add_batch(self, client: str, first: int, oldest: int, rows: Rows) -> Ack:
        """Take a batch, unless it was taken before or the one before it is missing.

        Args:
            client: Name of the writer.
            first: Number of the first row, counted over the life of the writer.
            oldest: Number of the oldest row that the writer can still send.
            rows: The rows.

        Raises:
            ConfigurationError: The table takes rows of another schema.
        """
        with self._changed:
            verdict, refused = self._receipts.judge(client, first, oldest), ""
            self._num_duplicates += verdict == "known"
            if verdict == "next":
                refused = self._refusal(len(rows))
                if not refused:
                    if self._receipts.ack(client).end < first:
                        self._interrupt(client)  # the rows in between are lost
                    self._take(client, rows)
                    self._receipts.take(client, first, len(rows))
                    self._changed.notify_all()
            return self._receipts.ack(client, refused)

    def await_insert(self, client: str, count: int, timeout_s: float) -> Ack:
        """Say how far the rows of a writer have come, once there is room for so many more or the time is over."""
        with self._changed:
            self._changed.wait_for(lambda: not self._refusal(count), timeout_s)
            return self._receipts.ack(client, self._refusal(count))

    def leave(self, client: str) -> None:
        """Forget a writer that will send nothing more."""
        with self._changed:
            self._receipts.forget(client)
            self._interrupt(client)  # these episodes do not continue

    def plan(self, k: int, n: int, timeout_s: float, again: bool = False) -> Plan | str:
        """Draw up to `k` times `n` rows, for somebody who copies them out of the shared memory.

        Args:
            k: Number of draws.
            n: Rows, or sequences, of each.
            timeout_s: How long to wait at most until there is something to draw, seconds.
            again: In place of rows of earlier draws that were overwritten before they were copied.

        Returns:
            At least one draw; or why there was nothing to draw in that time.
        """
        until = time.monotonic() + timeout_s
        with self._changed:
            while True:
                draws, hindrance = self._draws(k, n, again=again)
                if draws:
                    self._edge.called(self._end)
                    self._changed.notify_all()
                    return Plan.of(self.generation, draws)
                left_s = until - time.monotonic()
                if left_s <= 0 or not self._changed.wait(left_s):
                    return hindrance

    def batches(self, k: int, n: int, keys: Sequence[str] | None, timeout_s: float) -> list[tuple[str, Batch]] | str:
        """Do as `plan` does, and copy the rows as well, for somebody on another machine; with their generation."""
        with self._changed:
            plan = self.plan(k, n, timeout_s)
            if isinstance(plan, str):
                return plan
            return [(plan.generation, self._buffer.rows(draw, keys=keys)) for draw in plan.draws()]

    def await_rows(self, min_size: int, timeout_s: float) -> int:
        """Return the number of rows, once it has reached `min_size` or the time is over."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._buffer) >= min_size, timeout_s)
            return len(self._buffer)

    def update_priorities(self, generation: str, ids: Ids, priorities: ArrayLike) -> None:
        """Set priorities; those of rows that are gone are counted and otherwise ignored."""
        with self._changed:
            if generation == self.generation:
                self._buffer.update_priorities(ids, priorities)
            else:  # the ids may be those of other rows by now
                self._num_late += len(ids)

    def set_version(self, version: int) -> None:
        """Tell which version of the model the rows come from that are added from now on."""
        with self._changed:
            self._buffer.set_version(version)
            self._version = version

    def memory(self) -> Memory:
        """Return where the rows are."""
        with self._changed:
            try:
                return Memory(self.generation, self._buffer.handle if self._is_shared else None)
            except ConfigurationError:  # not in shared memory
                return Memory(self.generation)

    def stats(self) -> dict[str, float]:
        """Return counts as plain numbers, ready to be logged."""
        with self._changed:
            receipts, stats = self._receipts, self._buffer.stats()
            return {
                **stats,
                "late_updates": stats["late_updates"] + self._num_late,
                "writers": len(receipts),
                "duplicate_batches": self._num_duplicates,
                "lost_rows": receipts.num_lost,
            }

    def metrics(self) -> dict[str, float]:
        """Return the buffer's metrics."""
        with self._changed:
            return self._buffer.metrics()

    def state_parts(self, known: Collection[str]) -> StateParts:
        """Return a snapshot of the rows and the receipts; see `StateParts`. New rows are copied while others wait."""
        with self._changed:
            parts = self._buffer.state_parts(known)
            envs = [(client, env, code) for client, codes in self._env_codes.items() for env, code in codes.items()]
            state = {
                "buffer": parts.state,
                "receipts": self._receipts.state_dict(),
                "envs": envs,
                "num_envs": self._num_envs,
                "end": self._end,
                "edge": self._edge.state_dict(),
                "version": self._version,
                "limiter": None if self._limiter is None else self._limiter.state_dict(),
            }
            return replace(parts, state=state)

    def load_state_dict(self, held: SavedParts) -> None:
        """Go on where a snapshot was taken; what was drawn before means nothing any more."""
        with self._changed:
            state = held.state
            self._buffer.load_state_dict(replace(held, state=state["buffer"]))
            self._receipts.load_state_dict(state["receipts"])
            self._end = int(state["end"])
            self._edge.load_state_dict(state["edge"])
            self._version = int(state["version"])
            if self._limiter is not None and state["limiter"] is not None:
                self._limiter.load_state_dict(state["limiter"])
            self._num_envs, self._env_codes = int(state["num_envs"]), {}
            for client, env, code in state["envs"]:
                self._env_codes.setdefault(client, {})[int(env)] = int(code)
            self.generation = uuid.uuid4().hex
            self._changed.notify_all()

    def are_saved(self, ends: Mapping[str, int]) -> None:
        """Take note that a snapshot holds what `state_parts` returned; writers need not keep that any more.

        Args:
            ends: The rows of each writer that it holds.
        """
        with self._changed:
            self._receipts.are_saved(ends)

    def close(self) -> None:
        """Give the memory back."""
        with self._changed:
            self._buffer.close()
            self._changed.notify_all()

    def _interrupt(self, client: str) -> None:
        """Let the next row of each environment of a writer begin an episode."""
        for code in self._env_codes.pop(client, {}).values():
            self._buffer.interrupt(code)

    def _take(self, client: str, rows: Rows) -> None:
        versions = rows.versions
        if versions is not None:
            versions = np.where(versions < 0, self._version, versions)
        ids = self._buffer.extend(rows.by_key(), env_ids=self._codes(client, rows), versions=versions)
        self._end = int(ids[-1]) + 1
        if self._limiter is not None:
            self._limiter.insert(len(rows))
        if rows.priorities is not None:
            given = ~np.isnan(rows.priorities)
            self._buffer.update_priorities(ids[given], rows.priorities[given])

    def _codes(self, client: str, rows: Rows) -> Ids:
        """Return a number for each row that is different for each environment of each writer."""
        codes = self._env_codes.setdefault(client, {})
        envs, places = (
            (np.zeros(1, np.int64), 0) if rows.env_ids is None else np.unique(rows.env_ids, return_inverse=True)
        )
        new = [env for env in envs.tolist() if env not in codes]
        for env in new:
            codes[env] = self._num_envs
            self._num_envs += 1
        first = max(new, default=0) // INTERRUPTION * INTERRUPTION
        if first > 0:  # after an interruption the writer sends no more rows of its earlier environments
            for env in [env for env in codes if env < first and env not in envs]:
                self._buffer.interrupt(codes.pop(env))
        known = np.array([codes[env] for env in envs.tolist()], np.int64)
        return np.broadcast_to(known[places], len(rows))

    def _refusal(self, count: int) -> str:
        """Return why so many rows cannot be taken now; empty if they can."""
        if self._limiter is None or self._limiter.can_insert(count):
            return ""
        return f"the limiter of table {self.name!r} waits for rows to be drawn"

    def _draws(self, k: int, n: int, *, again: bool) -> tuple[list[Draw], str]:
        """Return as many of `k` draws as there can be now, and what hinders the next one."""
        draws: list[Draw] = []
        hindrance = ""
        try:
            while len(draws) < k and not hindrance:
                hindrance = self._hindrance(n, again=again)
                if not hindrance:
                    draws.append(self._draw(n, again=again))
        except (ConfigurationError, ReplayTimeoutError) as error:  # such as no whole sequence; new rows may come
            hindrance = str(error)
        return draws, hindrance

    def _hindrance(self, n: int, *, again: bool) -> str:
        if not len(self._buffer):
            return "it is empty"
        if self._limiter is not None and not again and not self._limiter.can_sample(n):
            return "its limiter waits for new rows"
        return ""

    def _draw(self, n: int, *, again: bool) -> Draw:
        """Draw rows, but not those that may be overwritten before they are copied."""
        size = len(self._buffer)
        draw = self._buffer.draw(n, above=self._end - size + self._edge.rows(self._end, size), again=again)
        if self._limiter is not None and not again:
            self._limiter.sample(n)
        return draw


class Edge:
    """Guesses from the rows that came during the last calls how many come before these rows are copied.

    It knows no clock, so that a restored table decides the same.

    Args:
        capacity: Rows of the ring.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._ends: deque[int] = deque(maxlen=NUM_CALLS)

    def rows(self, end: int, size: int) -> int:
        """Return how many of the oldest rows to hold back.

        Args:
            end: Id of the next row.
            size: Number of rows that there are.
        """
        if not self._ends:
            return 0
        overwritten = end - self._ends[0] - (self._capacity - size)
        return min(max(overwritten, 0), size // MAX_SHARE)

    def called(self, end: int) -> None:
        """Take note of a call that decides about rows; `end` as in `rows`."""
        self._ends.append(end)

    def state_dict(self) -> list[int]:
        """Return what is needed to go on exactly here."""
        return list(self._ends)

    def load_state_dict(self, state: list[int]) -> None:
        """Take over what `state_dict` returned."""
        self._ends = deque(state, maxlen=NUM_CALLS)
