"""Find out whether the history of a run is whole, and change nothing."""

from pathlib import Path

from trieye.cli.run_part import Damage, Part, size_of
from trieye.exceptions import SerializationError
from trieye.files.checksum import sums_of
from trieye.history.files import survey
from trieye.history.ranges import Range, merged, overlapping, uncovered
from trieye.history.segments import SegmentFile
from trieye.journal.journal import Segment
from trieye.journal.look import Contents

_MEANING = "sinks that have them keep them; one that is written anew, or comes later, does not get them"
_ADVICE = "restore {} from a backup; otherwise nothing is to be done"


def check_history(directory: Path, held: Contents | None) -> Part:
    """Look at the files of a history, and at what the journal knows of it.

    Args:
        directory: Where the files are; it need not exist.
        held: What the journal holds; None: it cannot be read.
    """
    segments, chunks = ([], []) if held is None else (held.segments, held.chunks)
    found = survey(directory, segments, chunks)
    files = dict.fromkeys(part.segment for part in found.stored if part.segment is not None)
    changed = {segment: lost for segment in files if (lost := _lost_in(directory, segment)) is not None}
    gaps = uncovered(0, found.end, merged(part[:2] for part in found.stored))
    damage, lost = _of_missing(found.missing, gaps)
    for segment, unreadable in changed.items():
        parts = [part[:2] for part in found.stored if part.segment == segment]
        lost_here = [span for part in parts for span in overlapping(*part, unreadable)]
        damage.append(_damage(segment.name, "is damaged", lost_here))
        lost += lost_here
    size_bytes = sum(size_of(directory / segment.name) for segment in files)
    place = f"in {len(files)} files" + (" and the journal" if chunks else "") if files else "in the journal"
    text = f"{found.end - _count(lost):,} points and operations, {place}" if found.end else "nothing yet"
    return Part("history", text, size_bytes, damage, is_there=found.end > 0)


def _of_missing(missing: list[Segment], gaps: list[Range]) -> tuple[list[Damage], list[Range]]:
    """Return what is damaged if these files are missing and these items are nowhere, and the items."""
    damage = []
    rest = gaps
    for segment in missing:
        gone = overlapping(*segment[:2], rest)
        rest = [span for gap in rest for span in uncovered(*gap, [segment[:2]])]
        if gone:
            damage.append(_damage(segment.name, "is missing", gone))
    if rest:
        damage.append(_damage("journal.db", "lacks a part of the history", rest))
    return damage, list(gaps)


def _lost_in(directory: Path, segment: Segment) -> list[Range] | None:
    """Return which items of a file cannot be read; None if it is as it was written."""
    path = directory / segment.name
    try:
        if path.stat().st_size == segment.size_bytes and sums_of(path)[1] == segment.crc:
            return None
        with path.open("rb") as file:
            opened = SegmentFile(file, segment[:2])
            numbered = enumerate(opened.about.groups)
            return merged(group[:2] for number, group in numbered if not _is_readable(opened, number))
    except (FileNotFoundError, SerializationError):
        return [segment[:2]]


def _is_readable(opened: SegmentFile, number: int) -> bool:
    try:
        opened.read(number)
    except SerializationError:
        return False
    return True


def _damage(name: str, what: str, lost: list[Range]) -> Damage:
    if not lost:
        return Damage(f"{name} {what}", "nothing is lost: what it holds can be read", "nothing is to be done")
    places = ", ".join(f"{first} to {end - 1}" for first, end in lost[:3]) + (", ..." if lost[3:] else "")
    return Damage(f"{name} {what}: {_count(lost):,} items are lost ({places})", _MEANING, _ADVICE.format(name))


def _count(ranges: list[Range]) -> int:
    return sum(end - first for first, end in ranges)
