"""Store: the items of a history that have left the memory, in chunks of the journal and in Parquet files."""

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
from trieye.journal.journal import Chunk, Journal, Segment
from trieye.journal.ranges import Range, merged, overlapping, uncovered

ROLL_BYTES = 4 << 20
"""Bytes in chunks that are worth a file: 100 000 points, or some pictures."""

LEFTOVERS = ".*points-*"
"""What a process that died while it wrote leaves behind."""

RECENT = 8
"""Decoded row groups or chunks that are kept, some 20 MB: a reader takes a thousand items at a time."""

logger = logging.getLogger(__name__)


class Stored(NamedTuple):
    """Where the items [first, end) are.

    Attributes:
        first: Index of the first one.
        end: Index after the last one.
        segment: The file; None if they are in a chunk.
        chunk: Index with which the chunk begins.
        size_bytes: Size of the chunk; of one that an earlier attempt left it is not known, and taken for enough.
    """

    first: int
    end: int
    segment: Segment | None = None
    chunk: int = 0
    size_bytes: int = ROLL_BYTES


class Survey(NamedTuple):
    """What of a history lies where.

    Attributes:
        stored: What to read, ascending, without overlaps; what is in a missing file only is there, too.
        end: Index after the last item that there ever was, as far as known.
        adopted: Files that the journal does not know, and that hold what is nowhere else.
        superfluous: Files whose items are elsewhere.
    """

    stored: list[Stored]
    end: int
    adopted: list[Segment]
    superfluous: list[Path]


def survey(directory: Path | None, segments: Sequence[Segment], chunks: Sequence[Range]) -> Survey:
    """Look at the files of a history, and change nothing.

    Args:
        directory: Where its files are, if anywhere; it need not exist.
        segments: The files that the journal knows.
        chunks: The chunks that the journal has.
    """
    present = {path.name: path for path in directory.glob("points-*.parquet")} if directory is not None else {}
    files = [Stored(*segment[:2], segment) for segment in segments if segment.name in present]
    missing = [Stored(*segment[:2], segment) for segment in segments if segment.name not in present]
    known = merged([*(part[:2] for part in files), *chunks])
    registered = {segment.name for segment in segments}
    strays = {present[name]: span for name in present.keys() - registered if (span := range_of(name)) is not None}
    superfluous = [path for path, span in strays.items() if not uncovered(*span, known)]
    looked_at = [_look_at(path, span) for path, span in strays.items() if path not in superfluous]
    adopted = [segment for segment in looked_at if segment is not None]
    stored: list[Stored] = []
    # whatever is in a file and in a chunk, or in a file that the journal does not know, too, is read from the former
    first_of_all = [*files, *(Stored(*chunk, chunk=chunk[0]) for chunk in chunks)]
    for layer in (first_of_all, [Stored(*segment[:2], segment) for segment in adopted], missing):
        covered = merged(part[:2] for part in stored)
        gaps = [(part, gap) for part in _disjoint(layer) for gap in uncovered(*part[:2], covered)]
        stored += [part._replace(first=first, end=end) for part, (first, end) in gaps]
    end = max((span[1] for span in [*chunks, *(segment[:2] for segment in (*segments, *adopted))]), default=0)
    return Survey(sorted(stored, key=attrgetter("first")), end, adopted, superfluous)


def _disjoint(parts: Iterable[Stored]) -> Iterator[Stored]:
    """Yield parts in ascending order, each without what one before it has."""
    index = 0
    for part in sorted(parts, key=attrgetter("first")):
        if part.end > index:
            yield part._replace(first=max(part.first, index))
            index = part.end


def _look_at(path: Path, span: Range) -> Segment | None:
    try:
        with path.open("rb") as file:
            SegmentFile(file, span)
        return Segment(*span, path.name, *sums_of(path)[:2])
    except FileNotFoundError:
        return None
    except SerializationError as error:
        logger.warning("%s cannot be read, and is left alone: %s", path, error)
        return None


class Store:
    """Reads what is in chunks and files, and moves chunks to files; safe to use from several threads.

    Making one changes nothing on the disk.

    Args:
        journal: Has the chunks, and remembers the files.
        directory: Where the files belong; None: everything stays in the journal.

    Attributes:
        end: Index after the last item that there ever was, as far as known when the store was made.
        lost: Items that are missing or damaged, as far as known: ascending ranges, apart from each other.

    Raises:
        OSError: The directory cannot be read.
    """

    def __init__(self, journal: Journal, directory: Path | None) -> None:
        self._journal = journal
        self._directory = directory or Path()
        self._has_directory = directory is not None
        self._survey = survey(directory, journal.segments(), journal.chunks())
        self._stored = self._survey.stored
        self.end = self._survey.end
        self.lost: Sequence[Range] = ()
        self._warned: set[str] = set()
        self._recent: tuple[Columns, ...] = ()  # replaced as a whole, so a reader needs no lock
        # guards `_stored`, `lost` and `_warned` where they change; taken after `_rolling`, before the journal's
        self._lock = threading.Lock()
        self._rolling = threading.Lock()  # held by the one thread that writes files
        for gap in uncovered(0, self.end, [part[:2] for part in self._stored]):
            self.note_lost(gap, "journal", "not found")
        for part in self._stored:
            if part.segment is not None and (problem := self._problem_of(part.segment)) is not None:
                self.note_lost(part[:2], part.segment.name, problem)

    def _problem_of(self, segment: Segment) -> str | None:
        """Return what is wrong with a file at first sight: one that was cut lacks its end and cannot be read."""
        try:
            size_bytes = (self._directory / segment.name).stat().st_size
        except FileNotFoundError:
            return "not found"
        is_cut = size_bytes < segment.size_bytes
        return f"it has {size_bytes} bytes, {segment.size_bytes} were written" if is_cut else None

    def superseded(self) -> list[Range]:
        """Return what is superseded: as the journal says, and as the files say if the journal may have lost some."""
        found = self._survey
        if not (found.adopted or self._journal.damage) or not found.stored:
            return self._journal.superseded()
        said = merged(span for part in found.stored if part.segment for span in self._said(part.segment))
        # what is beyond goes to other items
        return merged([*self._journal.superseded(), *overlapping(0, found.stored[-1].end, said)])

    def _said(self, segment: Segment) -> list[Range]:
        try:
            with (self._directory / segment.name).open("rb") as file:
                return SegmentFile(file, segment[:2]).about.superseded
        except (FileNotFoundError, SerializationError):
            return []

    def settle(self) -> None:
        """Let journal and files agree again after a kill, or after the loss of a journal.

        Raises:
            OSError: The directory cannot be written.
        """
        known = [*(segment[:2] for segment in self._journal.segments()), *self._journal.chunks()]
        if self._survey.adopted or self._journal.damage:
            self._journal.set_superseded(self.superseded())
        for segment in self._survey.adopted:
            logger.warning("%s was not known to the journal, and is part of the history again", segment.name)
            if not overlapping(*segment[:2], merged(known)):  # else it only fills gaps, and is found again next time
                self._journal.replace_chunks(segment)
                known.append(segment[:2])
        for path in [*self._survey.superfluous, *(self._directory.glob(LEFTOVERS) if self._has_directory else ())]:
            path.unlink(missing_ok=True)

    def add(self, chunks: Sequence[Chunk]) -> None:
        """Take note of chunks that came into the journal."""
        added = [Stored(first, end, chunk=first, size_bytes=len(payload)) for first, end, payload in chunks]
        with self._lock:
            self._stored = [*self._stored, *added]

    def note_lost(self, lost: Range, where: str, reason: object) -> None:
        """Count items that cannot be read, and say so once for each place."""
        with self._lock:
            self.lost = merged([*self.lost, lost])
            is_news = where not in self._warned
            self._warned.add(where)
        if is_news:
            count, last = lost[1] - lost[0], lost[1] - 1
            logger.warning("%d items of the history (%d to %d) are lost: %s: %s", count, lost[0], last, where, reason)

    # reading

    def load(self, index: int) -> Columns | Range | None:
        """Return the item at an index with its neighbors, or the range of what is lost there; None if nothing follows.

        Raises:
            OSError: It cannot be read now.
            JournalError: The journal cannot be read now.
        """
        for columns in self._recent:
            if columns.first <= index < columns.end:
                return columns
        found = self._load(index)
        if isinstance(found, Columns):
            self._recent = (found, *self._recent[: RECENT - 1])
        return found

    def _load(self, index: int) -> Columns | Range | None:
        while (part := self._find(index)) is not None:
            if index < part.first:
                self.note_lost((index, part.first), "journal", "not found")
                return index, part.first
            try:
                return self._read(part, index)
            except (FileNotFoundError, JournalError, SerializationError) as error:
                with self._lock:  # which `_move` holds while the items of a chunk are going into a file
                    if self._find(index) != part:
                        continue
                if isinstance(error, JournalError):
                    self._journal.segments()  # raises again if it is not the chunk, but the journal: closed or busy
                place = f"chunk {part.chunk} of the journal" if part.segment is None else part.segment.name
                self.note_lost(part[:2], place, error)
                return part[:2]
        return None

    def _find(self, index: int) -> Stored | None:
        stored = self._stored
        position = bisect_right(stored, index, key=attrgetter("end"))
        return stored[position] if position < len(stored) else None

    def _read(self, part: Stored, index: int) -> Columns | Range:
        if part.segment is None:
            return _within(part, Columns.from_chunk(self._journal.read_chunk(part.chunk)))
        with (self._directory / part.segment.name).open("rb") as file:
            opened = SegmentFile(file, part.segment[:2])
            number = opened.group_of(index)
            try:
                return _within(part, opened.read(number))
            except SerializationError as error:
                (lost,) = overlapping(*opened.about.groups[number][:2], [part[:2]])
                self.note_lost(lost, part.segment.name, error)
                return lost

    # rolling

    def roll(self, superseded: Sequence[Range], *, force: bool) -> None:
        """Move items from the journal to a file if there are enough.

        Args:
            superseded: What the file is to say of superseded items.
            force: Move all there are.

        Raises:
            JournalFullError: It cannot be written now; everything stays where it is.
        """
        with self._rolling:
            # a chunk that is damaged stays where it is, and ends the file before it
            chunks = [part for part in self._stored if part.segment is None and not overlapping(*part[:2], self.lost)]
            is_due = force or sum(part.size_bytes for part in chunks) >= ROLL_BYTES
            if not is_due or not self._has_directory:
                return
            try:
                if not self._directory.is_dir():
                    self._directory.mkdir(parents=True)
                    fsync_directory(self._directory.parent)
                readable = [part for part in chunks if isinstance(self._load(part.first), Columns)]
                for first, end in merged(part[:2] for part in readable):
                    self._move([part for part in readable if first <= part.first < end], superseded)
            except JournalFullError:
                raise
            except OSError as error:
                raise JournalFullError(
                    f"{self._directory}: cannot be written now, tried again later: {error}"
                ) from error

    def _move(self, chunks: Sequence[Stored], superseded: Sequence[Range]) -> None:
        columns = (_within(part, Columns.from_chunk(self._journal.read_chunk(part.chunk))) for part in chunks)
        segment = write_segment(self._directory, columns, superseded)
        moved = set(chunks)
        with self._lock:
            # a kill before this leaves a file whose items are in chunks: `settle` removes it
            self._journal.replace_chunks(segment)
            rest = [part for part in self._stored if part not in moved]
            self._stored = sorted([*rest, Stored(*segment[:2], segment)], key=attrgetter("first"))


def _within(part: Stored, columns: Columns) -> Columns:
    return columns.part(max(columns.first, part.first), min(columns.end, part.end))
