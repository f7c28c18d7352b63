"""Rolling: chunks of the journal become Parquet files, and small files become larger ones."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import accumulate, islice, takewhile
from pathlib import Path

from trieye.exceptions import JournalFullError, SerializationError
from trieye.files.atomic import fsync_directory
from trieye.history.columns import Columns
from trieye.history.files import Stored
from trieye.history.ranges import Range
from trieye.history.segments import write_segment
from trieye.history.store import Store
from trieye.journal.journal import Journal

ROLL_ITEMS = 50_000
"""Items in chunks that are worth a file."""

ROLL_BYTES = 16 << 20
"""Bytes in chunks that are: the journal stays small when there are many pictures."""

MAX_WEIGHT = 5_000_000
"""Items of the largest file."""

MERGED_AT_ONCE = 4
"""Neighbors of similar size that become one file, so that their number grows with the logarithm of the items."""

GROUPS_PER_CALL = 8
"""Row groups that a merge writes at each call: 0.2 s."""

_BYTES_PER_ITEM = 32
"""A file that is larger for its items counts by its bytes: it is full of pictures."""

logger = logging.getLogger(__name__)


class Rolling:
    """Moves items to files, one call at a time.

    Args:
        journal: Has the chunks, and remembers the files.
        store: What is where.
        directory: Where the files belong.
        superseded: Returns what is superseded, for the files to say so.
    """

    def __init__(
        self, journal: Journal, store: Store, directory: Path, superseded: Callable[[], Sequence[Range]]
    ) -> None:
        self._journal = journal
        self._store = store
        self._directory = directory
        self._superseded = superseded
        self._lock = threading.Lock()
        self._merge = _nothing()
        # those of an earlier attempt go at once: their size is not known
        self._is_due = any(part.segment is None for part in store.stored)

    def roll(self, *, force: bool) -> None:
        """Write what is due.

        Args:
            force: Write all there is, and give up a merge that is under way: it is the end.

        Raises:
            JournalFullError: It cannot be written now; it stays where it is.
        """
        with self._lock:
            try:
                self._make_directory()
                for run in self._due_runs(force=force):
                    deque(self._rewrite(run), maxlen=0)
                self._is_due = False
                if force:
                    self._merge.close()
                else:
                    self._go_on_merging()
            except JournalFullError:
                raise
            except OSError as error:
                raise JournalFullError(
                    f"{self._directory}: cannot be written now, tried again later: {error}"
                ) from error

    def _make_directory(self) -> None:
        if not self._directory.is_dir():
            self._directory.mkdir(parents=True)
            fsync_directory(self._directory.parent)

    def _due_runs(self, *, force: bool) -> list[list[Stored]]:
        chunks = [p for p in self._store.stored if p.segment is None and not self._store.has_lost(p[:2])]
        is_due = (
            force
            or self._is_due
            or sum(part.end - part.first for part in chunks) >= ROLL_ITEMS
            or sum(part.size_bytes for part in chunks) >= ROLL_BYTES
        )
        # a chunk that is damaged stays where it is, and ends the file before it
        return _neighbors([part for part in chunks if self._is_readable(part)]) if is_due else []

    def _is_readable(self, part: Stored) -> bool:
        return isinstance(self._store.load(part.first, keep=False), Columns)

    def _rewrite(self, run: Sequence[Stored]) -> Generator[None, None, None]:
        """Write neighbors into one file, forget them where they were; yields after each row group."""
        segment = yield from write_segment(self._directory, self._columns_of(run), self._superseded)
        old = [part.segment for part in run if part.segment is not None]
        # a kill before this leaves a file that nobody knows, one after it files that nobody needs: `history_opening`
        self._journal.replace_chunks(segment, segments=[file.first for file in old])
        self._store.replace(segment)
        for file in old:
            (self._directory / file.name).unlink(missing_ok=True)

    def _columns_of(self, run: Sequence[Stored]) -> Iterator[Columns]:
        index, end = run[0].first, run[-1].end
        while index < end:
            found = self._store.load(index, keep=False)  # what is kept is for readers, who are elsewhere
            if not isinstance(found, Columns):
                raise SerializationError(f"item {index} of the history is lost")
            yield found
            index = found.end

    def _go_on_merging(self) -> None:
        try:
            if sum(1 for _ in islice(self._merge, GROUPS_PER_CALL)) < GROUPS_PER_CALL:
                self._merge = self._next_merge()
        except SerializationError as error:  # the files stay as they are, for what can be read of them
            logger.warning("files of the history are not merged: %s", error)
            self._merge = _nothing()

    def _next_merge(self) -> Generator[None, None, None]:
        files = [part for part in self._store.stored if part.segment is not None and self._is_intact(part)]
        run = _neighbors(files)[-1] if files else []
        first, end = to_merge([_weight(part) for part in run])
        return self._rewrite(run[first:end]) if first < end else _nothing()

    def _is_intact(self, part: Stored) -> bool:
        return part.segment is not None and part[:2] == part.segment[:2] and not self._store.has_lost(part[:2])


def to_merge(weights: Sequence[int]) -> Range:
    """Return which neighbors are to become one file, as positions; an empty range if none.

    Args:
        weights: Items of each file, the newest at last.
    """
    bound = ROLL_ITEMS * MERGED_AT_ONCE
    while bound < MAX_WEIGHT:
        first = len(weights) - sum(1 for _ in takewhile(bound.__gt__, reversed(weights)))
        totals = accumulate(weights[first:])
        end = first + sum(1 for _ in takewhile(MAX_WEIGHT.__ge__, totals))
        if len(weights) - first >= MERGED_AT_ONCE and end - first > 1:
            return first, end
        bound *= MERGED_AT_ONCE
    return 0, 0


def _weight(part: Stored) -> int:
    size_bytes = part.segment.size_bytes if part.segment is not None else 0
    return max(part.end - part.first, size_bytes // _BYTES_PER_ITEM)


def _neighbors(parts: Sequence[Stored]) -> list[list[Stored]]:
    runs: list[list[Stored]] = []
    for part in parts:
        if runs and runs[-1][-1].end == part.first:
            runs[-1].append(part)
        else:
            runs.append([part])
    return runs


def _nothing() -> Generator[None, None, None]:
    yield from ()
