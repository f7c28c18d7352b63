"""Backlog: what one sink has still to do, bounded in memory, the rest in its spool file."""

import logging
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from trieye.sinks.base import MAX_POINTS_PER_WRITE
from trieye.sinks.operations import Operation, WritePoints
from trieye.sinks.spool import Spool

log = logging.getLogger("trieye.sinks")


class Backlog:
    """A thread-safe first-in first-out queue of operations.

    Order is kept by one rule: the head is older than the spool file, and the file is older than the memory. Too much in
    memory therefore moves its oldest part to the end of the file.

    Attributes:
        changed: Notified whenever something arrives or is finished; its lock guards everything here.
        arrived: Weight of all that was ever put, what earlier attempts left included.
        finished: Weight of all that was sent, refused or lost.
        lost: Weight of what could be kept neither in memory nor on disk.
    """

    def __init__(self, path: Path, max_points: int) -> None:
        self.changed = threading.Condition()
        self.arrived = 0
        self.finished = 0
        self.lost = 0
        self._max_points = max_points
        self._memory: deque[Operation] = deque()
        self._memory_weight = 0
        self._spool = Spool(path)
        self._head: tuple[Operation, int] | None = None  # its size in the file, 0 if it came from memory
        self._saved = False
        self._warned = False

    @property
    def weight(self) -> int:
        """Weight of what is neither sent nor refused."""
        return self.arrived - self.finished

    def load(self) -> None:
        """Take over what earlier attempts left in the file."""
        with self.changed:
            try:
                left = self._spool.load()
            except OSError as error:
                log.warning("points of an earlier attempt are not sent: %s", error)
                return
            self.arrived += left
        if left:
            log.info("%d points of an earlier attempt are sent now", left)

    def put(self, operations: Sequence[Operation]) -> None:
        """Add operations; takes as long as writing as many to the file, if memory is full."""
        with self.changed:
            self._memory.extend(operations)
            weight = sum(operation.weight for operation in operations)
            self._memory_weight += weight
            self.arrived += weight
            while self._memory_weight > self._max_points:
                self._spill_oldest()
            self.changed.notify_all()

    def peek(self) -> Operation | None:
        """Return the oldest operation, consecutive points joined; it stays until `pop`."""
        with self.changed:
            if self._head is None and not self._saved:
                self._head = self._from_spool()
                if self._head is None and self._memory:
                    self._head = (self._take_from_memory(), 0)
            return None if self._head is None else self._head[0]

    def pop(self) -> None:
        """Take the operation that `peek` returned away: it was sent or refused."""
        with self.changed:
            if self._head is None:
                return  # `save` was faster: it is in the file and counts as not sent
            operation, size_bytes = self._head
            self._head = None
            self.finished += operation.weight
            if size_bytes:
                self._spool.pop(operation, size_bytes)
            self.changed.notify_all()

    def save(self) -> None:
        """Put everything into the file durably, for the next attempt; nothing can be taken any more."""
        with self.changed:
            in_memory = [operation for operation, size_bytes in [self._head] if not size_bytes] if self._head else []
            self._head = None
            self._saved = True
            rest: list[Operation] = []
            while self._memory:
                rest.append(self._take_from_memory())
            try:
                if in_memory or rest or self._spool.weight:
                    self._spool.rewrite(before=in_memory, after=rest)
            except OSError as error:
                self._lose(sum(operation.weight for operation in (*in_memory, *rest)), error)

    def _from_spool(self) -> tuple[Operation, int] | None:
        try:
            return self._spool.peek()
        except OSError as error:
            self._lose(self._spool.forget(), error)
            return None

    def _spill_oldest(self) -> None:
        operation = self._take_from_memory()
        try:
            self._spool.append([operation])
        except OSError as error:
            self._lose(operation.weight, error)

    def _lose(self, weight: int, error: OSError) -> None:
        self.lost += weight
        self.finished += weight
        if not self._warned:
            self._warned = True
            log.error("unsent points are lost, %d so far: the disk does not keep them (%s)", self.lost, error)

    def _take_from_memory(self) -> Operation:
        operation = self._memory.popleft()
        if isinstance(operation, WritePoints):
            operation = self._joined_with_followers(operation)
        self._memory_weight -= operation.weight
        return operation

    def _joined_with_followers(self, first: WritePoints) -> WritePoints:
        points = list(first.points)
        while self._memory:
            following = self._memory[0]
            if not isinstance(following, WritePoints) or len(points) + following.weight > MAX_POINTS_PER_WRITE:
                break
            points.extend(following.points)
            self._memory.popleft()
        return WritePoints(tuple(points))
