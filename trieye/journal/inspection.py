"""Look at a journal without changing anything, also while it is being written."""

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from trieye.exceptions import JournalError
from trieye.journal.check import examine
from trieye.journal.file import rollback_path, wal_path
from trieye.journal.salvage import salvage
from trieye.journal.schema import Segment
from trieye.journal.witness import Expected, read_witness

_MAX_TRIES = 20


@dataclass(frozen=True)
class Inspection:
    """What a journal holds.

    Attributes:
        num_records: Records that no snapshot has made superfluous.
        first_pos: Position of the first of them; 0 if there is none.
        last_pos: Position of the last of them; 0 if there is none.
        clients: Number of the last batch of each sender.
        snapshots: Position and index of the snapshots, the newest one last.
        chunks: First index and index after the last one of each chunk.
        segments: Files of the history.
        cursors: Index of each sink.
        superseded: Indices that rewinds left out.
        damage: What is damaged, in words; empty if nothing is.
    """

    num_records: int
    first_pos: int
    last_pos: int
    clients: dict[str, int]
    snapshots: list[tuple[int, int]]
    chunks: list[tuple[int, int]]
    segments: list[Segment]
    cursors: dict[str, int]
    superseded: list[tuple[int, int]]
    damage: list[str]


def inspect(path: Path, expected: Expected | None = None) -> Inspection:
    """Look at a copy of a journal; not for the process that has it open, whose locks end when another file is closed.

    Args:
        path: The file.
        expected: What is known of it besides its witness.

    Raises:
        JournalError: There is none, it is no journal, or it cannot be read.
    """
    if not path.exists() and not wal_path(path).exists():
        raise JournalError(f"there is no journal {path}")
    with tempfile.TemporaryDirectory(prefix="trieye-journal-") as scratch:
        copy = Path(scratch) / path.name
        known = (expected or Expected())._replace(witness=read_witness(path))  # before the journal, which goes on
        damage = _examine_copy(path, copy, known)
        found = salvage(copy, known.journal)
    records = found.rows["records"]
    # a sender's newest batches are in the records only
    clients = {str(name): int(row[1]) for name, row in found.rows["clients"].items()}
    clients |= {row[3]: row[4] for row in found.ordered("records") if row[4]}
    return Inspection(
        num_records=len(records),
        first_pos=min(records, default=0),
        last_pos=max(records, default=0),
        clients=clients,
        snapshots=[(row[1], row[2]) for row in found.ordered("snapshots")],
        chunks=[(row[0], row[1]) for row in found.ordered("chunks")],
        segments=[Segment.of(row[:-1]) for row in found.ordered("segments")],
        cursors={str(name): int(row[1]) for name, row in found.rows["cursors"].items()},
        superseded=[(row[0], row[1]) for row in found.ordered("superseded")],
        damage=damage,
    )


def _examine_copy(path: Path, copy: Path, expected: Expected) -> list[str]:
    """Copy a journal and return what is damaged; what a writer changed under the copy is no damage."""
    before: list[str] | None = None
    for _ in range(_MAX_TRIES):
        if not _copy(path, copy):
            continue
        try:
            damage = examine(copy, expected)
        except JournalError as error:
            raise JournalError(str(error).replace(str(copy), str(path))) from error
        # damage stays where it is, while a half-written frame or page is complete the next time
        if not damage or damage == before:
            return damage
        before = damage
    return before or ["it was written too fast to be copied"]


def _copy(path: Path, copy: Path) -> bool:
    """Copy the files of a journal; return whether they belong together."""
    before = _round(path)
    for source, target in ((path, copy), (rollback_path(path), rollback_path(copy)), (wal_path(path), wal_path(copy))):
        target.unlink(missing_ok=True)
        try:
            # the log last: it has whatever was moved from it into the file meanwhile, unless it began anew
            shutil.copyfile(source, target)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise JournalError(f"{source} cannot be copied: {error.strerror or error}") from error
    return before == _round(path)


def _round(path: Path) -> tuple[bytes, bytes, float]:
    """Return what changes when the log begins anew, or, without a log, with every transaction."""
    try:
        with wal_path(path).open("rb") as log:
            header = log.read(32)
    except FileNotFoundError:
        header = b""
    if header:
        return header, b"", 0.0
    try:
        with path.open("rb") as file:
            return b"", file.read(100), rollback_path(path).stat().st_mtime if rollback_path(path).exists() else 0.0
    except FileNotFoundError:
        return b"", b"", 0.0
