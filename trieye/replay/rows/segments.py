"""Segments: rows as immutable parts of snapshots, so that only new ones are written; Holes: what damaged parts took."""

import secrets
import weakref
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trieye.replay.rows.ring import UnreadRows
from trieye.replay.rows.schema import PREFIX, as_saved
from trieye.replay.rows.store import RowStore
from trieye.snapshot.parts import SavedParts

MAX_PART_BYTES = 64 << 20
"""Larger ones would be read by fewer threads, and kept longer for the few rows that are left of them."""

SMALL_PART_BYTES = 8 << 20
MAX_SMALL_PARTS = 32
"""With more of them, their rows are written again as few large parts; every row is then written less than twice."""

MAX_REMEMBERED = 4096
"""Parts of earlier saves that are remembered, as another place that is saved to may hold them."""

_ROW, _LINK, _KEPT_ROWS, _KEPT = "row.", "link.", "next", "next."
_PREVIOUS = _LINK + "previous"
_THREADS = 4

Arrays = dict[str, NDArray[Any]]
Ids = NDArray[np.int64]
Range = tuple[int, int]

_NO_ROW = -(1 << 31)
"""In place of the first row of an episode that began in a hole or before it: no row is so far away."""


@dataclass(frozen=True)
class Segment:
    """Rows `[first, end)` as one part.

    Attributes:
        name: Name of the part.
        first: Id of its first row.
        end: Id after its last row.
        size_bytes: Bytes of its arrays.
    """

    name: str
    first: int
    end: int
    size_bytes: int


class Holes:
    """Ranges of rows `[low, total)` that are lost.

    The rows before a hole move up, so that ids have no gap, and the newest row keeps its id. What joined rows across a
    hole is cut: there an episode is interrupted, as by `ReplayBuffer.interrupt`.

    Args:
        ranges: First row, and the id after the last one, of what is lost.
        low: Id of the oldest row wanted.
        total: Id after the newest one.

    Attributes:
        ranges: The ranges, the first one first, none of which touch.
        num_rows: Rows that are lost.
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
        self._above = np.append(np.cumsum(sizes[::-1])[::-1], 0)  # rows lost from each hole on
        self.num_rows, self._low, self._total = int(sizes.sum()), low, total
        self.low = low + self.num_rows

    def __str__(self) -> str:
        return ", ".join(f"{first}-{end - 1}" for first, end in self.ranges)

    def moved(self, ids: Ids) -> Ids:
        """Return the new ids of rows, -1 for those that are lost."""
        holes = self._before(ids)
        is_lost = (holes > 0) & (ids < self._ends[holes - 1])
        return np.where(is_lost, -1, ids + self._above[holes])

    def pieces(self, first: int, end: int) -> list[Range]:
        """Return the ranges of `[first, end)` that are left, by their old ids."""
        cuts = [max(first, self._low), *(edge for one in self.ranges for edge in one), min(end, self._total)]
        pairs = zip(cuts[::2], cuts[1::2], strict=True)
        found = [(max(start, first, self._low), min(stop, end)) for start, stop in pairs]
        return [(start, stop) for start, stop in found if start < stop]

    def run_of(self, row: int) -> int:
        """Return the new id of the first row that nothing parts from a row."""
        holes = int(self._before(np.array([row]))[0])
        return int((self._ends[holes - 1] if holes else self._low) + self._above[holes])

    def applied(self, held: Mapping[str, Any]) -> dict[str, Any]:
        """Return the state of a `RowStore` and of its sampler as if the rows had never been there."""
        state = dict(held)
        size = held["total"] - held["low"]
        lost = np.concatenate([np.arange(first, end) for first, end in self.ranges]) - held["low"]
        state["sampler"] = _without(held["sampler"], lost, size)
        state["low"] = held["low"] + self.num_rows
        if held["links"] is not None:
            state["links"] = {"last": self._newest(np.asarray(held["links"]["last"]).reshape(-1, 4))}
        if (kept := held["next_rows"]) is not None:
            ids = self.moved(np.asarray(kept["ids"]))
            newest = np.asarray(kept["newest"]).reshape(-1, 2).copy()
            newest[:, 1] = self.moved(newest[:, 1])
            values = {name: np.asarray(array)[ids >= 0] for name, array in kept["values"].items()}
            state["next_rows"] = {"ids": ids[ids >= 0], "values": values, "newest": newest[newest[:, 1] >= 0]}
        return state

    def _newest(self, last: Ids) -> Ids:
        """Return environment, newest row, step and first row of the episodes that go on; -1 for a row that is lost."""
        rows = np.where(last[:, 1] < 0, -1, self.moved(last[:, 1]))
        starts = last[:, 3] + rows - last[:, 1]
        runs = np.array([self.run_of(row) for row in last[:, 1].tolist()], np.int64)
        starts = np.where((rows < 0) | ((starts < runs) & (runs > self.low)), _NO_ROW, starts)
        return np.stack([last[:, 0], rows, last[:, 2], starts], axis=1)

    def _before(self, ids: Ids) -> Ids:
        """Return the number of holes that begin at each row or before it."""
        return np.searchsorted(self._firsts, ids, side="right")


@dataclass(frozen=True)
class Piece:
    """Rows that are put back.

    Attributes:
        segment: Which ones they are.
        arrays: All of them, by key.
        low: Rows below it are gone, or nothing joins these to them.
        is_cut: Whether a hole is what parts them.
    """

    segment: Segment
    arrays: Mapping[str, NDArray[Any]]
    low: int
    is_cut: bool = False

    def joined(self) -> tuple[Ids, Ids]:
        """Return the places of the rows that follow another one of their episode, and the ids of those others."""
        distance = np.asarray(self.arrays[_PREVIOUS]).astype(np.int64)
        places = np.flatnonzero(distance > 0)
        return places, self.segment.first + places - distance[places]

    def moved(self, holes: Holes) -> "list[Piece]":
        """Return what is left of the rows, under their new ids."""
        return [self._slice(first, end, holes) for first, end in holes.pieces(self.segment.first, self.segment.end)]

    def _slice(self, first: int, end: int, holes: Holes) -> "Piece":
        start, stop = first - self.segment.first, end - self.segment.first
        kept = self.arrays.get(_KEPT_ROWS, np.zeros(0, np.int64))
        here = (kept >= start) & (kept < stop)
        arrays = {
            key: (array[here] if key.startswith(_KEPT_ROWS) else array[start:stop])
            for key, array in self.arrays.items()
        }
        if _KEPT_ROWS in arrays:
            arrays[_KEPT_ROWS] = arrays[_KEPT_ROWS] - start
        new_first, new_end = holes.moved(np.array([first, end - 1])).tolist()
        segment = Segment(self.segment.name, new_first, new_end + 1, self.segment.size_bytes)
        run = holes.run_of(first)
        return Piece(segment, arrays, run, is_cut=run > holes.low)


class Segments:
    """Which rows lie in which part.

    A buffer may be saved to several places in turn, such as the checkpoints of a run and the snapshots of an actor.
    Each holds parts of its own, so all that were written are remembered, and the known ones among them are kept.
    """

    def __init__(self) -> None:
        self._segments: list[Segment] = []  # of the newest save, or of what was restored
        self._earlier: dict[str, Segment] = {}  # all that may still hold rows, those that were used last at the end
        self._new: dict[str, dict[str, weakref.ref[NDArray[Any]]]] = {}

    def save(self, store: RowStore, known: Collection[str]) -> tuple[tuple[str, ...], dict[str, Arrays]]:
        """Return the known parts that still hold rows, and the rows that are in none of them as new parts.

        A part of a save that is under way is given out again as it is: under the same name, without another copy.

        Args:
            store: The rows.
            known: Names of parts that a finished checkpoint holds.
        """
        low, total = store.low, store.total
        under_way = {name: arrays for name in self._new if (arrays := self._arrays_under_way(name)) is not None}
        self._earlier = {name: segment for name, segment in self._earlier.items() if segment.end > low}
        held = _side_by_side(
            [segment for name, segment in self._earlier.items() if name in known],
            [segment for name, segment in self._earlier.items() if name in under_way],
        )
        small = [segment for segment in held if segment.size_bytes < SMALL_PART_BYTES]
        if len(small) > MAX_SMALL_PARTS:
            held = [segment for segment in held if segment.size_bytes >= SMALL_PART_BYTES]
        kept = tuple(segment.name for segment in held if segment.name in known)
        new = {segment.name: under_way[segment.name] for segment in held if segment.name not in known}
        segments = list(held)
        row_bytes = sum(cells[:1].nbytes for cells in store.ring.cells.values())
        most = max(MAX_PART_BYTES // max(row_bytes, 1), 1)
        for first, end in _gaps(held, low, total):
            for start in range(first, end, most):
                stop = min(start + most, end)
                arrays = _arrays_of(store, start, stop)
                name = f"seg-{start}-{stop}-{secrets.token_hex(4)}"
                new[name] = arrays
                segments.append(Segment(name, start, stop, sum(array.nbytes for array in arrays.values())))
        self._remember(sorted(segments, key=lambda segment: segment.first))
        # not the arrays themselves: they are as large as the rows, and of no use when they are written
        self._new = {name: {key: weakref.ref(array) for key, array in part.items()} for name, part in new.items()}
        return kept, new

    def _remember(self, segments: list[Segment]) -> None:
        self._segments = segments
        for segment in segments:
            self._earlier.pop(segment.name, None)
            self._earlier[segment.name] = segment
        for name in list(self._earlier)[: -max(MAX_REMEMBERED, len(segments))]:
            del self._earlier[name]

    def _arrays_under_way(self, name: str) -> Arrays | None:
        references = self._new[name]
        arrays = {key: array for key, reference in references.items() if (array := reference()) is not None}
        return arrays if len(arrays) == len(references) else None

    def state_dict(self) -> list[list[Any]]:
        """Return name, range and size of every part, as plain data."""
        return [[segment.name, segment.first, segment.end, segment.size_bytes] for segment in self._segments]

    def restore(
        self, store: RowStore, saved: SavedParts, held: Mapping[str, Any], low: int, *, lazy: bool
    ) -> Holes | None:
        """Put the rows of parts into a store without any, several parts at a time; each is read once.

        Args:
            store: Where the rows belong.
            saved: The parts.
            held: What was saved of the store, with what `state_dict` returned as `segments`.
            low: Id of the first row wanted.
            lazy: Leave the rows in the files until they are asked for.

        Returns:
            Which rows are lost, since their parts are damaged; None if none is. The others have moved then.

        Raises:
            CheckpointError: A part is damaged, and that is refused.
        """
        wanted = [Segment(*entry) for entry in held["segments"] if entry[2] > low]

        def take(segment: Segment) -> Piece | None:
            arrays = saved.whole(segment.name)
            return None if arrays is None else put(Piece(segment, arrays, low))

        def put(piece: Piece) -> Piece:
            if not lazy:
                _copy_rows(store, piece, low)
            return piece

        with ThreadPoolExecutor(_THREADS) as threads:
            found = list(threads.map(take, wanted))
            pieces = [piece for piece in found if piece is not None]
            holes = None
            self._earlier, self._new = {}, {}  # those of rows that came after what is restored have ids given anew
            if len(pieces) == len(wanted):
                self._remember(wanted)
            else:
                lost = [segment for segment, piece in zip(wanted, found, strict=True) if piece is None]
                holes = _holes(lost, pieces, held, low)
                _keep_cut_off(store, pieces, holes, held)
                pieces = [part for piece in pieces for part in piece.moved(holes)]
                low = holes.low
                self._segments = []  # all that is left is written anew: what no part says is where its episodes are cut
                pieces = list(threads.map(put, pieces))
        if lazy:
            parts = [(piece.segment.first, _rows_in(store, piece.arrays)) for piece in pieces]
            store.ring.unread = UnreadRows(store.capacity, low, parts)
        for piece in pieces:
            _restore_links(store, piece)
        return holes


def _holes(lost: list[Segment], pieces: list[Piece], held: Mapping[str, Any], low: int) -> Holes:
    """Return the rows of lost parts, and before them those whose next observation lay there and nowhere else."""
    holes = Holes([(segment.first, segment.end) for segment in lost], low, held["total"])
    if held["next_rows"] is None:
        return holes
    has_next = np.zeros(held["total"] - low, np.bool_)
    known = [np.asarray(held["next_rows"]["ids"])]
    for piece in pieces:
        known += [piece.joined()[1], piece.segment.first + piece.arrays[_KEPT_ROWS]]
    ids = np.concatenate(known)
    has_next[ids[ids >= low] - low] = True
    ranges, start = [], low
    for first, end in holes.ranges:
        lacking = np.flatnonzero(~has_next[start - low : first - low])
        ranges.append((start + int(lacking[0]) if lacking.size else first, end))
        start = end
    return Holes(ranges, low, held["total"])


def _keep_cut_off(store: RowStore, pieces: list[Piece], holes: Holes, held: Mapping[str, Any]) -> None:
    """Keep the next observations of rows from those that are given up although they are whole."""
    next_rows = store.next_rows
    if next_rows is None:
        return
    for piece in pieces:
        places, rows = piece.joined()
        new, following = holes.moved(rows), holes.moved(piece.segment.first + places)
        is_cut = (rows >= piece.low) & (new >= 0) & (following < 0) & ~np.isin(rows, held["next_rows"]["ids"])
        values = {
            name: column.restored(piece.arrays[_ROW + name.removeprefix(PREFIX)])[places[is_cut]]
            for name, column in next_rows.columns.items()
        }
        next_rows.restore(new[is_cut], values)


def _side_by_side(*choices: list[Segment]) -> list[Segment]:
    """Return segments in order, of the first choice where there are any, that have no row in common."""
    chosen: list[Segment] = []
    for segments in choices:
        for segment in sorted(segments, key=lambda segment: (segment.first, -segment.end)):
            place = bisect_left(chosen, segment.first, key=lambda other: other.first)
            follows = not place or chosen[place - 1].end <= segment.first
            if follows and (place == len(chosen) or segment.end <= chosen[place].first):
                chosen.insert(place, segment)
    return chosen


def _gaps(kept: list[Segment], low: int, total: int) -> list[Range]:
    edges = [low, *(edge for segment in kept for edge in (segment.first, segment.end)), total]
    return [(first, end) for first, end in zip(edges[::2], edges[1::2], strict=True) if first < end]


def _arrays_of(store: RowStore, first: int, end: int) -> Arrays:
    """Return copies of all that never changes about rows, by key; nobody else has them."""
    count = end - first
    arrays = {_ROW + name: as_saved(array) for name, array in store.ring.rows(first, count).items()}
    if store.links is not None:
        arrays |= {_LINK + name: array for name, array in store.links.rows(first, count).items()}
    if store.links is not None and store.next_rows is not None:
        kept = store.next_rows.kept_for_good(first, count, store.links.has_ended(np.arange(first, end)))
        arrays[_KEPT_ROWS] = kept.pop("")
        arrays |= {_KEPT + name: as_saved(array) for name, array in kept.items()}
    return arrays


def _rows_in(store: RowStore, arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    columns = store.ring.columns
    return {name: column.restored(arrays[_ROW + name]) for name, column in columns.items()}


def _copy_rows(store: RowStore, piece: Piece, low: int) -> None:
    skipped = max(low - piece.segment.first, 0)
    first = piece.segment.first + skipped
    rows = {name: array[skipped:] for name, array in _rows_in(store, piece.arrays).items()}
    store.ring.write_rows(first % store.capacity, rows, piece.segment.end - first)


def _restore_links(store: RowStore, piece: Piece) -> None:
    segment, arrays, low = piece.segment, piece.arrays, piece.low
    if store.links is not None:
        links = {name.removeprefix(_LINK): array for name, array in arrays.items() if name.startswith(_LINK)}
        if not links:  # of a buffer that needed none: each row is an episode, which ended or was interrupted
            count = segment.end - segment.first
            ended = store.ends_in(_rows_in(store, arrays), count)
            links = {"previous": np.zeros(count, np.int64), "ended": ended}
        store.links.restore_rows(segment.first, links, low, is_cut=piece.is_cut)
    if store.next_rows is not None:
        ids = segment.first + arrays[_KEPT_ROWS]
        here = np.flatnonzero(ids >= low)
        columns = store.next_rows.columns
        values = {name: column.restored(arrays[_KEPT + name])[here] for name, column in columns.items()}
        store.next_rows.restore(ids[here], values)


def _without(state: Any, lost: Ids, size: int) -> Any:
    """Return the state of a sampler without what it has of lost rows: its arrays have one entry for each row."""
    if isinstance(state, Mapping):
        found = {key: _without(value, lost, size) for key, value in state.items()}
        return {**found, "low": found["low"] + len(lost)} if "low" in found else found
    if isinstance(state, np.ndarray) and state.shape[:1] == (size,):
        return np.delete(state, lost, axis=0)
    return state
