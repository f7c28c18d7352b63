"""StoredParts: saves rows incrementally as immutable parts of snapshots; Gaps: rows lost with damaged parts."""

import logging
import secrets
import weakref
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trieye.exceptions import ConfigurationError
from trieye.replay.rows.episodes import NO_ROW
from trieye.replay.rows.ring import UnreadRows
from trieye.replay.rows.schema import PREFIX
from trieye.replay.rows.store import RowStore
from trieye.snapshot.parts import SavedParts

logger = logging.getLogger(__name__)

MAX_PART_BYTES = 64 << 20
"""Larger parts would be read by fewer threads, and retained longer for few remaining rows."""

SMALL_PART_BYTES = 8 << 20
MAX_SMALL_PARTS = 32
"""More small parts than this are merged into few large ones; each row is thus written less than twice."""

FORMAT = 2
"""Format of a buffer's saved state."""

_ROW, _LINK, _NEXT_ROWS, _NEXT = "row.", "link.", "next", "next."
_PREVIOUS = _LINK + "previous"
_THREADS = 4

Arrays = dict[str, NDArray[Any]]
Ids = NDArray[np.int64]
Range = tuple[int, int]


@dataclass(frozen=True)
class StoredPart:
    """Rows `[first, end)` stored in a single part.

    Attributes:
        name: Name of the part.
        first: Id of its first row.
        end: Id after its last row.
        size_bytes: Size of its arrays in bytes.
    """

    name: str
    first: int
    end: int
    size_bytes: int


class Gaps:
    """Ranges of lost rows within `[low, total)`.

    The rows before a gap move up, so that ids are contiguous and the newest row keeps its id. Links across a gap are
    cut, which interrupts the episode as `ReplayBuffer.interrupt` does.

    Args:
        ranges: First row and end id of each lost range.
        low: Id of the oldest row to restore.
        total: Id after the newest row.

    Attributes:
        ranges: The ranges, ascending and disjoint.
        num_rows: Number of lost rows.
        low: New id of the oldest row.
    """

    def __init__(self, ranges: Iterable[Range], low: int, total: int) -> None:
        self.ranges: list[Range] = []
        for first, end in sorted(ranges):
            if self.ranges and first <= self.ranges[-1][1]:
                self.ranges[-1] = self.ranges[-1][0], max(self.ranges[-1][1], min(end, total))
            else:
                self.ranges.append((max(first, low), min(end, total)))
        self._firsts, self._ends = np.array(self.ranges, np.int64).reshape(-1, 2).T
        sizes = self._ends - self._firsts
        self._above = np.append(np.cumsum(sizes[::-1])[::-1], 0)  # rows lost from each gap on
        self.num_rows, self._low, self._total = int(sizes.sum()), low, total
        self.low = low + self.num_rows

    def __str__(self) -> str:
        return ", ".join(f"{first}-{end - 1}" for first, end in self.ranges)

    def moved(self, ids: Ids) -> Ids:
        """Return the new ids of rows, -1 for lost rows."""
        gaps = self._count_before(ids)
        is_lost = (gaps > 0) & (ids < self._ends[gaps - 1])
        return np.where(is_lost, -1, ids + self._above[gaps])

    def remaining(self, first: int, end: int) -> list[Range]:
        """Return the remaining ranges of `[first, end)`, in old ids."""
        cuts = [max(first, self._low), *(edge for one in self.ranges for edge in one), min(end, self._total)]
        pairs = zip(cuts[::2], cuts[1::2], strict=True)
        ranges = [(max(start, first, self._low), min(stop, end)) for start, stop in pairs]
        return [(start, stop) for start, stop in ranges if start < stop]

    def run_start(self, row: int) -> int:
        """Return the new id of the first row in the gapless run that contains `row`."""
        gaps = int(self._count_before(np.array([row]))[0])
        return int((self._ends[gaps - 1] if gaps else self._low) + self._above[gaps])

    def applied(self, saved_state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the state of a `RowStore` and its sampler without the lost rows."""
        state = dict(saved_state)
        size = saved_state["total"] - saved_state["low"]
        lost_indices = np.concatenate([np.arange(first, end) for first, end in self.ranges]) - saved_state["low"]
        state["sampler"] = _without(saved_state["sampler"], lost_indices, size)
        state["low"] = saved_state["low"] + self.num_rows
        if saved_state["links"] is not None:
            state["links"] = {"last": self._newest(np.asarray(saved_state["links"]["last"]).reshape(-1, 4))}
        if (next_rows := saved_state["next_rows"]) is not None:
            ids = self.moved(np.asarray(next_rows["ids"]))
            newest = np.asarray(next_rows["newest"]).reshape(-1, 2).copy()
            newest[:, 1] = self.moved(newest[:, 1])
            values = {name: np.asarray(array)[ids >= 0] for name, array in next_rows["values"].items()}
            state["next_rows"] = {"ids": ids[ids >= 0], "values": values, "newest": newest[newest[:, 1] >= 0]}
        return state

    def _newest(self, newest_rows: Ids) -> Ids:
        """Return environment, newest row, step and first row of the open episodes; -1 for a lost row."""
        rows = np.where(newest_rows[:, 1] < 0, -1, self.moved(newest_rows[:, 1]))
        starts = newest_rows[:, 3] + rows - newest_rows[:, 1]
        runs = np.array([self.run_start(row) for row in newest_rows[:, 1].tolist()], np.int64)
        starts = np.where((rows < 0) | ((starts < runs) & (runs > self.low)), NO_ROW, starts)
        return np.stack([newest_rows[:, 0], rows, newest_rows[:, 2], starts], axis=1)

    def _count_before(self, ids: Ids) -> Ids:
        """Return the number of gaps that begin at or before each row."""
        return np.searchsorted(self._firsts, ids, side="right")


@dataclass(frozen=True)
class RowRange:
    """Rows being restored.

    Attributes:
        part: The part with their name and ids.
        arrays: Their arrays by key.
        low: Rows below it are gone, or not linked to these.
        is_cut: Whether a gap separates them.
    """

    part: StoredPart
    arrays: Mapping[str, NDArray[Any]]
    low: int
    is_cut: bool = False

    def joined(self) -> tuple[Ids, Ids]:
        """Return the indices of the rows with a predecessor in their episode, and the ids of the predecessors."""
        distance = np.asarray(self.arrays[_PREVIOUS]).astype(np.int64)
        indices = np.flatnonzero(distance > 0)
        return indices, self.part.first + indices - distance[indices]

    def moved(self, gaps: Gaps) -> "list[RowRange]":
        """Return the remaining rows under their new ids."""
        return [self._slice(first, end, gaps) for first, end in gaps.remaining(self.part.first, self.part.end)]

    def _slice(self, first: int, end: int, gaps: Gaps) -> "RowRange":
        start, stop = first - self.part.first, end - self.part.first
        next_rows = self.arrays.get(_NEXT_ROWS, np.zeros(0, np.int64))
        is_inside = (next_rows >= start) & (next_rows < stop)
        arrays = {
            key: (array[is_inside] if key.startswith(_NEXT_ROWS) else array[start:stop])
            for key, array in self.arrays.items()
        }
        if _NEXT_ROWS in arrays:
            arrays[_NEXT_ROWS] = arrays[_NEXT_ROWS] - start
        new_first, new_end = gaps.moved(np.array([first, end - 1])).tolist()
        part = StoredPart(self.part.name, new_first, new_end + 1, self.part.size_bytes)
        run = gaps.run_start(first)
        return RowRange(part, arrays, run, is_cut=run > gaps.low)


class StoredParts:
    """Tracks which part contains which rows.

    A buffer may be saved to several targets in turn, such as the checkpoints of a run and the snapshots of an actor.
    Each target has its own parts, so all written parts are remembered, and the known ones among them are reused.
    """

    def __init__(self) -> None:
        self._parts: list[StoredPart] = []  # of the latest save or restore
        self._part_by_name: dict[str, StoredPart] = {}  # all that may still contain rows
        self._new: dict[str, dict[str, weakref.ref[NDArray[Any]]]] = {}

    def save(self, store: RowStore, known_names: Collection[str]) -> tuple[tuple[str, ...], dict[str, Arrays]]:
        """Return the names of known parts to reuse, and new parts with the rows that they lack.

        A part of an unfinished save is returned again: under the same name, without another copy.

        Args:
            store: The rows.
            known_names: Names of the parts in finished checkpoints.
        """
        low, total = store.low, store.total
        arrays_by_name = {name: arrays for name in self._new if (arrays := self._unfinished_arrays(name)) is not None}
        self._part_by_name = {name: part for name, part in self._part_by_name.items() if part.end > low}
        kept_parts = _disjoint(
            [part for name, part in self._part_by_name.items() if name in known_names],
            [part for name, part in self._part_by_name.items() if name in arrays_by_name],
        )
        small_parts = [part for part in kept_parts if part.size_bytes < SMALL_PART_BYTES]
        if len(small_parts) > MAX_SMALL_PARTS:
            kept_parts = [part for part in kept_parts if part.size_bytes >= SMALL_PART_BYTES]
        reused_names = tuple(part.name for part in kept_parts if part.name in known_names)
        new_parts = {part.name: arrays_by_name[part.name] for part in kept_parts if part.name not in known_names}
        parts = list(kept_parts)
        row_bytes = sum(cells[:1].nbytes for cells in store.ring.cells.values())
        max_rows = max(MAX_PART_BYTES // max(row_bytes, 1), 1)
        for first, end in _uncovered(kept_parts, low, total):
            for start in range(first, end, max_rows):
                stop = min(start + max_rows, end)
                arrays = _arrays_of(store, start, stop)
                name = f"seg-{start}-{stop}-{secrets.token_hex(4)}"
                new_parts[name] = arrays
                parts.append(StoredPart(name, start, stop, sum(array.nbytes for array in arrays.values())))
        self._remember(sorted(parts, key=lambda part: part.first))
        # weak references, since the arrays are as large as the rows and useless once they are written
        self._new = {name: {key: weakref.ref(array) for key, array in part.items()} for name, part in new_parts.items()}
        return reused_names, new_parts

    def _remember(self, parts: list[StoredPart]) -> None:
        self._parts = parts
        self._part_by_name |= {part.name: part for part in parts}

    def _unfinished_arrays(self, name: str) -> Arrays | None:
        references = self._new[name]
        arrays = {key: array for key, reference in references.items() if (array := reference()) is not None}
        return arrays if len(arrays) == len(references) else None

    def state_dict(self) -> list[list[Any]]:
        """Return name, range and size of every part, as plain data."""
        return [[part.name, part.first, part.end, part.size_bytes] for part in self._parts]

    def restore(self, store: RowStore, saved: SavedParts, rows_state: Mapping[str, Any], *, lazy: bool) -> int:
        """Load a state and the newest rows into an empty store, several parts in parallel; each part is read once.

        Args:
            store: The store that receives the rows.
            saved: The parts.
            rows_state: The saved state of the store, with the result of `state_dict` under `segments`.
            lazy: Leave the rows in the files until they are accessed.

        Returns:
            The number of rows lost with damaged parts. If there are any, the other rows have moved.

        Raises:
            CheckpointError: A part is damaged and `saved` forbids skipping it.
        """
        low = max(rows_state["low"], rows_state["total"] - store.capacity)
        parts = [StoredPart(*entry) for entry in rows_state["segments"] if entry[2] > low]

        def read(part: StoredPart) -> RowRange | None:
            arrays = saved.whole(part.name)
            return None if arrays is None else copy(RowRange(part, arrays, low))

        def copy(rows: RowRange) -> RowRange:
            if not lazy:
                _copy_rows(store, rows, low)
            return rows

        with ThreadPoolExecutor(_THREADS) as threads:
            results = list(threads.map(read, parts))
            ranges = [rows for rows in results if rows is not None]
            gaps = None
            self._part_by_name, self._new = {}, {}  # ids of rows added after this state are assigned again
            if len(ranges) == len(parts):
                self._remember(parts)
            else:
                lost_parts = [part for part, rows in zip(parts, results, strict=True) if rows is None]
                gaps = _gaps_of(lost_parts, ranges, rows_state, low)
                _store_cut_off(store, ranges, gaps, rows_state)
                ranges = [moved_range for rows in ranges for moved_range in rows.moved(gaps)]
                low = gaps.low
                self._parts = []  # rewrite all remaining rows, since no part records where episodes are cut
                ranges = list(threads.map(copy, ranges))
        if lazy:
            unread = [(rows.part.first, _rows_in(store, rows.arrays)) for rows in ranges]
            store.ring.unread = UnreadRows(store.capacity, low, unread)
        for rows in ranges:
            _restore_links(store, rows)
        store.load_state_dict(rows_state if gaps is None else gaps.applied(rows_state), low)
        if gaps is None:
            return 0
        logger.warning(
            "rows %s of the replay are lost because their files are damaged; continuing with the other %d rows, which "
            "the next save rewrites",
            gaps,
            store.total - store.low,
        )
        return gaps.num_rows


def checked_state(state: Any, kind: str) -> SavedParts:
    """Return the saved state of a buffer.

    Args:
        state: The state.
        kind: The result of `checked_kind` for the sampler of the buffer being restored.

    Raises:
        ConfigurationError: Its format or its sampler differs.
    """
    buffer_state = state.state if isinstance(state, SavedParts) and isinstance(state.state, dict) else {}
    format_number = buffer_state.get("format", 1)  # the first format had no number
    if format_number != FORMAT:
        remedy = "use a newer trieye" if format_number > FORMAT else "restore the other objects without it"
        raise ConfigurationError(
            f"the replay state has format {format_number}, but this trieye reads format {FORMAT}; {remedy}"
        )
    if buffer_state.get("sampler") != kind:
        raise ConfigurationError(
            f"the replay state has sampler {buffer_state.get('sampler')!r}, but this buffer has {kind!r}; "
            "create the buffer with the same sampler and bounds"
        )
    saved_parts: SavedParts = state
    return saved_parts


def _gaps_of(lost_parts: list[StoredPart], ranges: list[RowRange], rows_state: Mapping[str, Any], low: int) -> Gaps:
    """Return the rows of lost parts, and the preceding rows whose next observation only those parts contained."""
    gaps = Gaps([(part.first, part.end) for part in lost_parts], low, rows_state["total"])
    if rows_state["next_rows"] is None:
        return gaps
    has_next = np.zeros(rows_state["total"] - low, np.bool_)
    with_next = [np.asarray(rows_state["next_rows"]["ids"])]
    for rows in ranges:
        with_next += [rows.joined()[1], rows.part.first + rows.arrays[_NEXT_ROWS]]
    ids = np.concatenate(with_next)
    has_next[ids[ids >= low] - low] = True
    extended_ranges, start = [], low
    for first, end in gaps.ranges:
        lacking = np.flatnonzero(~has_next[start - low : first - low])
        extended_ranges.append((start + int(lacking[0]) if lacking.size else first, end))
        start = end
    return Gaps(extended_ranges, low, rows_state["total"])


def _store_cut_off(store: RowStore, ranges: list[RowRange], gaps: Gaps, rows_state: Mapping[str, Any]) -> None:
    """Store the next observations of rows whose intact successors are dropped."""
    next_rows = store.next_rows
    if next_rows is None:
        return
    for rows in ranges:
        indices, previous_ids = rows.joined()
        new_ids, following_ids = gaps.moved(previous_ids), gaps.moved(rows.part.first + indices)
        is_stored = np.isin(previous_ids, rows_state["next_rows"]["ids"])
        is_cut = (previous_ids >= rows.low) & (new_ids >= 0) & (following_ids < 0) & ~is_stored
        values = {name: rows.arrays[_ROW + name.removeprefix(PREFIX)][indices[is_cut]] for name in next_rows.columns}
        next_rows.restore(new_ids[is_cut], values)


def _disjoint(*choices: list[StoredPart]) -> list[StoredPart]:
    """Return parts without common rows in order, preferring parts of earlier choices."""
    disjoint_parts: list[StoredPart] = []
    for parts in choices:
        for part in sorted(parts, key=lambda part: (part.first, -part.end)):
            index = bisect_left(disjoint_parts, part.first, key=lambda other: other.first)
            follows = not index or disjoint_parts[index - 1].end <= part.first
            if follows and (index == len(disjoint_parts) or part.end <= disjoint_parts[index].first):
                disjoint_parts.insert(index, part)
    return disjoint_parts


def _uncovered(parts: list[StoredPart], low: int, total: int) -> list[Range]:
    edges = [low, *(edge for part in parts for edge in (part.first, part.end)), total]
    return [(first, end) for first, end in zip(edges[::2], edges[1::2], strict=True) if first < end]


def _arrays_of(store: RowStore, first: int, end: int) -> Arrays:
    """Return new copies of the immutable data of rows, by key."""
    count = end - first
    arrays = {_ROW + name: array for name, array in store.ring.rows(first, count).items()}
    if store.links is not None:
        arrays |= {_LINK + name: array for name, array in store.links.rows(first, count).items()}
    if store.links is not None and store.next_rows is not None:
        next_values = store.next_rows.permanent(first, count, store.links.has_ended(np.arange(first, end)))
        arrays[_NEXT_ROWS] = next_values.pop("")
        arrays |= {_NEXT + name: array for name, array in next_values.items()}
    return arrays


def _rows_in(store: RowStore, arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    return {name: arrays[_ROW + name] for name in store.ring.columns}


def _copy_rows(store: RowStore, rows: RowRange, low: int) -> None:
    num_skipped = max(low - rows.part.first, 0)
    first_id = rows.part.first + num_skipped
    arrays = {name: array[num_skipped:] for name, array in _rows_in(store, rows.arrays).items()}
    store.ring.write_rows(first_id % store.capacity, arrays, rows.part.end - first_id)


def _restore_links(store: RowStore, rows: RowRange) -> None:
    part, arrays, low = rows.part, rows.arrays, rows.low
    if store.links is not None:
        links = {name.removeprefix(_LINK): array for name, array in arrays.items() if name.startswith(_LINK)}
        if not links:  # of a buffer that needed none: each row is an episode that ended or was interrupted
            count = part.end - part.first
            is_end = store.ends_in(_rows_in(store, arrays), count)
            links = {"previous": np.zeros(count, np.int64), "ended": is_end}
        store.links.restore_rows(part.first, links, low, is_cut=rows.is_cut)
    if store.next_rows is not None:
        ids = part.first + arrays[_NEXT_ROWS]
        present_indices = np.flatnonzero(ids >= low)
        values = {name: arrays[_NEXT + name][present_indices] for name in store.next_rows.columns}
        store.next_rows.restore(ids[present_indices], values)


def _without(state: Any, lost_indices: Ids, size: int) -> Any:
    """Return a sampler state without the entries of lost rows; its arrays have one entry per row."""
    if isinstance(state, Mapping):
        entries = {key: _without(value, lost_indices, size) for key, value in state.items()}
        return {**entries, "low": entries["low"] + len(lost_indices)} if "low" in entries else entries
    if isinstance(state, np.ndarray) and state.shape[:1] == (size,):
        return np.delete(state, lost_indices, axis=0)
    return state
