"""Store: the persistent items of a history, in chunks of the journal and in Parquet files."""

import logging
import threading
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from trieye.exceptions import JournalError, JournalFullError, SerializationError
from trieye.files.atomic import fsync_directory
from trieye.files.checksum import sums_of
from trieye.history.columns import Columns
from trieye.history.segments import SegmentFile, range_of, write_segment
from trieye.journal.journal import Journal, JournalChunk, Segment
from trieye.journal.ranges import Range, merged, overlapping, uncovered

ROLL_BYTES = 4 << 20
"""Total size of chunks that justifies a file: 100 000 points, or some images."""

LEFTOVERS = ".*points-*"
"""Temporary files of a crashed writer."""

RECENT = 8
"""Number of cached row groups or chunks, about 20 MB: a reader takes a thousand items at a time."""

logger = logging.getLogger(__name__)


class Stored(NamedTuple):
    """The location of the items [first, end).

    Attributes:
        first: Index of the first item.
        end: Index after the last item.
        segment: The file; None if the items are in a chunk.
        chunk: First index of the chunk.
        size_bytes: Size of the chunk; for a chunk of an earlier attempt, whose size is unknown, `ROLL_BYTES`.
    """

    first: int
    end: int
    segment: Segment | None = None
    chunk: int = 0
    size_bytes: int = ROLL_BYTES


class Inventory(NamedTuple):
    """The locations of all items of a history.

    Attributes:
        stored: Locations in ascending order without overlaps, including those in missing files.
        end: Index after the last item ever stored, if it can be determined.
        adopted: Unregistered files with items that exist nowhere else.
        superfluous: Unregistered files whose items exist elsewhere.
    """

    stored: list[Stored]
    end: int
    adopted: list[Segment]
    superfluous: list[Path]


def survey(directory: Path | None, segments: Sequence[Segment], chunks: Sequence[Range]) -> Inventory:
    """Locate the items of a history, without changing anything.

    Args:
        directory: Directory of its files, which need not exist, or None.
        segments: The files that are registered in the journal.
        chunks: The chunks in the journal.
    """
    present = {path.name: path for path in directory.glob("points-*.parquet")} if directory is not None else {}
    files = [Stored(*segment[:2], segment) for segment in segments if segment.name in present]
    missing_parts = [Stored(*segment[:2], segment) for segment in segments if segment.name not in present]
    available_ranges = merged([*(part[:2] for part in files), *chunks])
    registered_names = {segment.name for segment in segments}
    strays = {present[name]: span for name in present.keys() - registered_names if (span := range_of(name)) is not None}
    superfluous_paths = [path for path, span in strays.items() if not uncovered(*span, available_ranges)]
    opened_segments = [_open_stray(path, span) for path, span in strays.items() if path not in superfluous_paths]
    adopted_segments = [segment for segment in opened_segments if segment is not None]
    stored_parts: list[Stored] = []
    # registered files take precedence over chunks, and both over unregistered files
    registered_parts = [*files, *(Stored(*chunk, chunk=chunk[0]) for chunk in chunks)]
    for layer in (registered_parts, [Stored(*segment[:2], segment) for segment in adopted_segments], missing_parts):
        covered_ranges = merged(part[:2] for part in stored_parts)
        missing_spans = [(part, gap) for part in _disjoint(layer) for gap in uncovered(*part[:2], covered_ranges)]
        stored_parts += [part._replace(first=first, end=end) for part, (first, end) in missing_spans]
    end = max((span[1] for span in [*chunks, *(segment[:2] for segment in (*segments, *adopted_segments))]), default=0)
    return Inventory(sorted(stored_parts, key=attrgetter("first")), end, adopted_segments, superfluous_paths)


def _disjoint(parts: Iterable[Stored]) -> Iterator[Stored]:
    """Yield parts in ascending order, each without the items of earlier ones."""
    index = 0
    for part in sorted(parts, key=attrgetter("first")):
        if part.end > index:
            yield part._replace(first=max(part.first, index))
            index = part.end


def _open_stray(path: Path, span: Range) -> Segment | None:
    try:
        with path.open("rb") as file:
            SegmentFile(file, span)
        return Segment(*span, path.name, *sums_of(path)[:2])
    except FileNotFoundError:
        return None
    except SerializationError as error:
        logger.warning("ignoring %s, which cannot be read: %s", path, error)
        return None


class Store:
    """Reads items from chunks and files, and moves chunks to files; thread-safe.

    The constructor changes nothing on the disk.

    Args:
        journal: Stores the chunks and the list of files.
        directory: Directory of the files; None: everything stays in the journal.

    Attributes:
        end: Index after the last item ever stored, as determined by the constructor.
        lost: Ranges of items known to be missing or damaged, ascending and disjoint.

    Raises:
        OSError: The directory cannot be read.
    """

    def __init__(self, journal: Journal, directory: Path | None) -> None:
        self._journal = journal
        self._directory = directory or Path()
        self._has_directory = directory is not None
        self._inventory = survey(directory, journal.segments(), journal.chunks())
        self._parts = self._inventory.stored
        self.end = self._inventory.end
        self.lost: Sequence[Range] = ()
        self._warned_locations: set[str] = set()
        self._recent_columns: tuple[Columns, ...] = ()  # replaced atomically, so readers need no lock
        # guards changes of `_parts`, `lost`, `_warned_locations`; acquired after `_rolling`, before the journal's lock
        self._lock = threading.Lock()
        self._rolling = threading.Lock()  # held by the only thread that writes files
        for gap in uncovered(0, self.end, [part[:2] for part in self._parts]):
            self.note_lost(gap, "journal", "not found")
        for part in self._parts:
            if part.segment is not None and (problem := self._problem_of(part.segment)) is not None:
                self.note_lost(part[:2], part.segment.name, problem)

    def _problem_of(self, segment: Segment) -> str | None:
        """Return the problem of a missing or truncated file; Parquet cannot be read without its end."""
        try:
            size_bytes = (self._directory / segment.name).stat().st_size
        except FileNotFoundError:
            return "not found"
        is_truncated = size_bytes < segment.size_bytes
        return f"it has {size_bytes} bytes, {segment.size_bytes} were written" if is_truncated else None

    def superseded(self) -> list[Range]:
        """Return the superseded ranges of the journal, plus those in the files if the journal may have lost some."""
        inventory = self._inventory
        if not (inventory.adopted or self._journal.damage) or not inventory.stored:
            return self._journal.superseded()
        recorded = merged(span for part in inventory.stored if part.segment for span in self._recorded(part.segment))
        # indices beyond the end will be reused for other items
        return merged([*self._journal.superseded(), *overlapping(0, inventory.stored[-1].end, recorded)])

    def _recorded(self, segment: Segment) -> list[Range]:
        try:
            with (self._directory / segment.name).open("rb") as file:
                return SegmentFile(file, segment[:2]).about.superseded
        except (FileNotFoundError, SerializationError):
            return []

    def settle(self) -> None:
        """Reconcile journal and files after a crash or the loss of a journal.

        Raises:
            OSError: The directory cannot be written.
        """
        registered_ranges = [*(segment[:2] for segment in self._journal.segments()), *self._journal.chunks()]
        if self._inventory.adopted or self._journal.damage:
            self._journal.set_superseded(self.superseded())
        for segment in self._inventory.adopted:
            logger.warning("%s was not registered in the journal, and is part of the history again", segment.name)
            if not overlapping(
                *segment[:2], merged(registered_ranges)
            ):  # otherwise it fills gaps, and is adopted at each start
                self._journal.replace_chunks(segment)
                registered_ranges.append(segment[:2])
        for path in [*self._inventory.superfluous, *(self._directory.glob(LEFTOVERS) if self._has_directory else ())]:
            path.unlink(missing_ok=True)

    def add(self, chunks: Sequence[JournalChunk]) -> None:
        """Register new chunks of the journal."""
        new_parts = [Stored(first, end, chunk=first, size_bytes=len(payload)) for first, end, payload in chunks]
        with self._lock:
            self._parts = [*self._parts, *new_parts]

    def note_lost(self, lost: Range, location: str, reason: object) -> None:
        """Record items that cannot be read, and warn once per location."""
        with self._lock:
            self.lost = merged([*self.lost, lost])
            is_new = location not in self._warned_locations
            self._warned_locations.add(location)
        if is_new:
            count, last = lost[1] - lost[0], lost[1] - 1
            logger.warning(
                "%d items of the history (%d to %d) are lost: %s: %s", count, lost[0], last, location, reason
            )

    # reading

    def load(self, index: int) -> Columns | Range | None:
        """Return the chunk or row group with an index, or a lost range that contains it; None at the end.

        Raises:
            OSError: The file is temporarily unreadable.
            JournalError: The journal is temporarily unreadable.
        """
        for columns in self._recent_columns:
            if columns.first <= index < columns.end:
                return columns
        loaded_part = self._load(index)
        if isinstance(loaded_part, Columns):
            self._recent_columns = (loaded_part, *self._recent_columns[: RECENT - 1])
        return loaded_part

    def _load(self, index: int) -> Columns | Range | None:
        while (part := self._find(index)) is not None:
            if index < part.first:
                self.note_lost((index, part.first), "journal", "not found")
                return index, part.first
            try:
                return self._read(part, index)
            except (FileNotFoundError, JournalError, SerializationError) as error:
                with self._lock:  # `_move` holds it while it replaces chunks by a file
                    if self._find(index) != part:
                        continue
                if isinstance(error, JournalError):
                    self._journal.segments()  # raises if the journal itself, not the chunk, fails: closed or busy
                location = f"chunk {part.chunk} of the journal" if part.segment is None else part.segment.name
                self.note_lost(part[:2], location, error)
                return part[:2]
        return None

    def _find(self, index: int) -> Stored | None:
        parts = self._parts
        position = bisect_right(parts, index, key=attrgetter("end"))
        return parts[position] if position < len(parts) else None

    def _read(self, part: Stored, index: int) -> Columns | Range:
        if part.segment is None:
            return _within(part, Columns.from_chunk(self._journal.read_chunk(part.chunk)))
        with (self._directory / part.segment.name).open("rb") as file:
            segment_file = SegmentFile(file, part.segment[:2])
            group_index = segment_file.group_of(index)
            try:
                return _within(part, segment_file.read(group_index))
            except SerializationError as error:
                (lost,) = overlapping(*segment_file.about.groups[group_index][:2], [part[:2]])
                self.note_lost(lost, part.segment.name, error)
                return lost

    # rolling

    def roll(self, superseded_ranges: Sequence[Range], *, force: bool) -> None:
        """Move items from the journal to a file if there are enough.

        Args:
            superseded_ranges: The superseded ranges, for the file's metadata.
            force: Move all items.

        Raises:
            JournalFullError: The file cannot be written at the moment; nothing is moved.
        """
        with self._rolling:
            # a damaged chunk stays in the journal and separates two files
            chunks = [part for part in self._parts if part.segment is None and not overlapping(*part[:2], self.lost)]
            is_due = force or sum(part.size_bytes for part in chunks) >= ROLL_BYTES
            if not is_due or not self._has_directory:
                return
            try:
                if not self._directory.is_dir():
                    self._directory.mkdir(parents=True)
                    fsync_directory(self._directory.parent)
                readable = [part for part in chunks if isinstance(self._load(part.first), Columns)]
                for first, end in merged(part[:2] for part in readable):
                    self._move([part for part in readable if first <= part.first < end], superseded_ranges)
            except JournalFullError:
                raise
            except OSError as error:
                raise JournalFullError(
                    f"{self._directory} cannot be written at the moment, retrying later: {error}"
                ) from error

    def _move(self, chunks: Sequence[Stored], superseded_ranges: Sequence[Range]) -> None:
        columns = (_within(part, Columns.from_chunk(self._journal.read_chunk(part.chunk))) for part in chunks)
        segment = write_segment(self._directory, columns, superseded_ranges)
        moved_parts = set(chunks)
        with self._lock:
            # a crash before this line leaves a file whose items are also in chunks: `settle` removes it
            self._journal.replace_chunks(segment)
            other_parts = [part for part in self._parts if part not in moved_parts]
            self._parts = sorted([*other_parts, Stored(*segment[:2], segment)], key=attrgetter("first"))


def _within(part: Stored, columns: Columns) -> Columns:
    return columns.part(max(columns.first, part.first), min(columns.end, part.end))
