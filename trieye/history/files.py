"""What of a history lies where: which files and chunks to read, and what a crash or a lost journal left behind."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from trieye.exceptions import SerializationError
from trieye.files.checksum import sums_of
from trieye.history.ranges import Range, merged, overlapping, uncovered
from trieye.history.segments import SegmentFile, range_of
from trieye.journal.journal import Segment

logger = logging.getLogger(__name__)


class Stored(NamedTuple):
    """Where the items [first, end) are.

    Attributes:
        first: Index of the first one.
        end: Index after the last one.
        chunk: Index with which the chunk of the journal begins; None if they are in a file.
        segment: The file; None if they are in a chunk.
        size_bytes: Size of a chunk that was written by this process, otherwise 0.
    """

    first: int
    end: int
    chunk: int | None = None
    segment: Segment | None = None
    size_bytes: int = 0


class Survey(NamedTuple):
    """What was found.

    Attributes:
        stored: What to read, ascending, without overlaps.
        end: Index after the last item that there ever was, as far as known.
        adopted: Files that the journal does not know, and that hold what is nowhere else.
        superfluous: Files whose items are elsewhere.
        missing: Files that the journal knows, and that are not there.
    """

    stored: list[Stored]
    end: int
    adopted: list[Segment]
    superfluous: list[Path]
    missing: list[Segment]


class _Stray(NamedTuple):
    segment: Segment
    is_whole: bool


def survey(directory: Path | None, segments: Sequence[Segment], chunks: Sequence[Range]) -> Survey:
    """Look at the files of a history, and change nothing.

    Args:
        directory: Where its files are, if anywhere; it need not exist.
        segments: The files that the journal knows.
        chunks: The chunks that the journal has.
    """
    present = {path.name: path for path in directory.glob("points-*.parquet")} if directory is not None else {}
    whole = [segment for segment in segments if _has_size(present.get(segment.name), segment.size_bytes)]
    broken = [segment for segment in segments if segment.name in present and segment not in whole]
    # the size is enough: what is damaged inside is found when it is read, and a checksum of all takes seconds
    known = merged([*(segment[:2] for segment in whole), *chunks])
    registered = {segment.name for segment in segments}
    strays = [path for name, path in present.items() if name not in registered and range_of(name) is not None]
    adopted, superfluous = _sort_strays(strays, known)
    spans = [stray.segment[:2] for stray in adopted]
    replaced = [segment for segment in whole if not uncovered(*segment[:2], merged(spans))]
    files = [*(stray.segment for stray in adopted), *(segment for segment in whole if segment not in replaced)]
    return Survey(
        _without_overlaps(files, chunks, broken),
        max([0, *(segment.end for segment in segments), *(end for _, end in chunks), *(end for _, end in spans)]),
        [stray.segment for stray in adopted],
        [*superfluous, *(present[segment.name] for segment in replaced)],
        [segment for segment in segments if segment.name not in present],
    )


def _has_size(path: Path | None, size_bytes: int) -> bool:
    try:
        return path is not None and path.stat().st_size == size_bytes
    except FileNotFoundError:
        return False


def _sort_strays(paths: Sequence[Path], known: list[Range]) -> tuple[list[_Stray], list[Path]]:
    """Return which files have something that is nowhere else, whole and large ones first, and which have not."""
    superfluous = [path for path in paths if not uncovered(*_span(path), known)]
    strays = [stray for path in paths if path not in superfluous and (stray := _look_at(path)) is not None]
    adopted: list[_Stray] = []
    for stray in sorted(strays, key=lambda stray: (not stray.is_whole, stray.segment.first - stray.segment.end)):
        span = stray.segment[:2]
        # adopting a file costs the chunks that it covers, so a damaged one must not cover any
        if uncovered(*span, known) if stray.is_whole else not overlapping(*span, known):
            adopted.append(stray)
            known = merged([*known, span])
        elif stray.is_whole:
            superfluous += [path for path in paths if path.name == stray.segment.name]
    return adopted, superfluous


def _span(path: Path) -> Range:
    return range_of(path.name) or (0, 0)


def _look_at(path: Path) -> _Stray | None:
    try:
        with path.open("rb") as file:
            opened = SegmentFile(file, _span(path))
            is_whole = opened.is_whole()
        segment = Segment(*_span(path), path.name, path.stat().st_size, sums_of(path)[1])
    except FileNotFoundError:
        return None
    except SerializationError as error:
        logger.warning("%s cannot be read, and is left alone: %s", path, error)
        return None
    return _Stray(segment, is_whole)


def _without_overlaps(files: Sequence[Segment], chunks: Sequence[Range], broken: Sequence[Segment]) -> list[Stored]:
    """Return each index once: from a whole file, else from a chunk, else from what is left of a file."""
    sources = [
        *(Stored(file.first, file.end, segment=file) for file in files),
        *(Stored(first, end, chunk=first) for first, end in chunks),
        *(Stored(file.first, file.end, segment=file) for file in broken),
    ]
    stored: list[Stored] = []
    covered: list[Range] = []
    for source in sources:
        for first, end in uncovered(source.first, source.end, covered):
            stored.append(source._replace(first=first, end=end))
        covered = merged([*covered, (source.first, source.end)])
    return sorted(stored, key=lambda part: part.first)
