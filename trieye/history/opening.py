"""Opening: the files of a history and what the journal knows of them become one again."""

import logging
from collections.abc import Sequence
from pathlib import Path

from trieye.exceptions import SerializationError
from trieye.history.files import Survey, survey
from trieye.history.ranges import Range, merged, overlapping, uncovered
from trieye.history.segments import SCRATCH, SegmentFile
from trieye.history.store import Opener, Store
from trieye.journal.journal import Journal, Segment

logger = logging.getLogger(__name__)


def open_store(journal: Journal, directory: Path | None) -> tuple[Store, int]:
    """Return what has been stored, and the index after it; remove and adopt what a crash or a lost journal left.

    Raises:
        OSError: The directory cannot be read or written.
    """
    place = directory if directory is not None else Path()
    segments = journal.segments()
    found = survey(directory, segments, journal.chunks())
    store = Store(journal, found.stored, lambda name: (place / name).open("rb"))
    for segment in found.adopted:
        _adopt(journal, segment, segments)
    if found.adopted or journal.damage:  # rows of superseded items may be lost, too
        known = journal.superseded()
        for said in superseded_by_files(found, store.open_file):
            for span in uncovered(*said, known):
                journal.supersede(*span)
    for path in [*found.superfluous, *place.glob(SCRATCH)] if directory is not None else []:
        path.unlink(missing_ok=True)
    note_gaps(store, found)
    return store, found.end


def _adopt(journal: Journal, segment: Segment, known: Sequence[Segment]) -> None:
    logger.warning("%s was not known to the journal, and is part of the history again", segment.name)
    inside = [other.first for other in known if not uncovered(*other[:2], [segment[:2]])]
    # the journal has one file for each first index
    same = [other.first for other in known if other.first == segment.first]
    journal.replace_chunks(segment, segments=sorted({*inside, *same}))


def superseded_by_files(found: Survey, open_file: Opener) -> list[Range]:
    """Return what is superseded by what the files say; not beyond what is stored: those indices go to other items."""
    end = found.stored[-1].end if found.stored else 0
    said = merged(span for part in found.stored if part.segment for span in _said(part.segment, open_file))
    return overlapping(0, end, said)


def _said(segment: Segment, open_file: Opener) -> list[Range]:
    try:
        with open_file(segment.name) as file:
            return SegmentFile(file, segment[:2]).about.superseded
    except (FileNotFoundError, SerializationError):
        return []


def note_gaps(store: Store, found: Survey) -> None:
    """Count as lost what is neither in a chunk nor in a file."""
    for gap in uncovered(0, found.end, [part[:2] for part in found.stored]):
        names = [segment.name for segment in found.missing if overlapping(*gap, [segment[:2]])]
        store.note_lost(gap, ", ".join(names) or "journal", "not found")
