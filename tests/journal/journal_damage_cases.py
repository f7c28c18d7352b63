"""Damage to the files of a journal, and the conditions that the journal must meet when it is opened afterwards.

A soak runs the complete form: `problems(directory, stride=1, bits=8)`. The tests run short ones.
"""

import contextlib
import itertools
import random
import shutil
import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trieye.journal.journal import Journal, JournalChunk, JournalEntry, Segment, Snapshot
from trieye.journal.wal import FRAME_BYTES, HEADER_BYTES

PAGE = 4096
NAME = "journal.db"
WAL = NAME + "-wal"
WATERMARK = "journal-watermark.jsonl"
KINDS = ("file", "log", "both", "copied")
MAX_LOST_WITH_A_PAGE = 100
"""Maximum number of entries on one page."""


@dataclass
class Truth:
    """Everything that a journal ever contained, and its contents after each of its last transactions."""

    records: dict[int, JournalEntry] = field(default_factory=dict)
    snapshots: list[Snapshot] = field(default_factory=list)
    chunks: dict[int, bytes] = field(default_factory=dict)
    segments: list[Segment] = field(default_factory=list)
    cursors: dict[str, list[tuple[int, str | None] | None]] = field(default_factory=lambda: defaultdict(lambda: [None]))
    meta: dict[str, list[bytes | None]] = field(default_factory=lambda: defaultdict(lambda: [None]))
    superseded: list[tuple[int, int]] = field(default_factory=list)
    latest: list[dict[str, object]] = field(default_factory=list)

    @property
    def contents(self) -> dict[str, object]:
        """Final contents of the journal."""
        return self.latest[-1]


class Writer:
    """Uses all functions of a journal, and records its calls in `truth`."""

    def __init__(self, path: Path, seed: int) -> None:
        self.journal = Journal(path)
        self.truth = Truth()
        self._random = random.Random(seed)
        self._seqs: dict[str, int] = defaultdict(int)
        self._index = 0

    def append(self, count: int) -> None:
        for _ in range(count):
            size = self._random.choice([0, 20, 300, 2800, 2800, 9000])
            kind, at = self._random.choice(["events", "pass"]), self._random.choice([1.0, 2.5, float(count)])
            client, seq = self._random.choice(["worker-1", "worker-2", "", "key"]), None
            if client == "key":
                client = f"key-{self.journal.last_pos}"
            elif client:
                self._seqs[client] += 1
                seq = self._seqs[client]
            payload = self._random.randbytes(size)
            pos = self.journal.append(kind, payload, at=at, client=client, seq=seq)
            assert pos is not None
            self.truth.records[pos] = JournalEntry(pos, kind, at, client, seq or 0, payload)

    def commit(self) -> None:
        chunk = JournalChunk(self._index, self._index + 10, self._random.randbytes(self._random.choice([500, 9000])))
        self._index += 10
        snapshot = Snapshot(self.journal.last_pos, self._index, 3.5, self._random.randbytes(6000))
        self.journal.commit(snapshot, chunks=[chunk], keep_after=snapshot.pos - 5)
        self.truth.snapshots.append(snapshot)
        self.truth.chunks[chunk.first] = chunk.payload

    def note(self) -> None:
        for sink in ("mlflow", "tensorboard", "console"):
            cursor = (self._random.randrange(self._index + 1), self._random.choice([None, "12:34"]))
            self.journal.set_cursor(sink, *cursor)
            self.truth.cursors[sink].append(cursor)
        for key in ("attempt", "status"):
            value = self._random.randbytes(200)
            self.journal.set_meta(key, value)
            self.truth.meta[key].append(value)
        self.journal.set_superseded([*self.journal.superseded(), (self._index - 5, self._index)])
        self.truth.superseded.append((self._index - 5, self._index))

    def roll(self) -> None:
        segment = Segment(0, 20, "points-0-20.parquet", 1234, 5678)
        self.journal.replace_chunks(segment)
        self.truth.segments.append(segment)


def contents(journal: Journal, truth: Truth) -> dict[str, object]:
    """Return everything that a journal contains."""
    return {
        "records": list(journal.records(0)),
        "snapshot": journal.snapshot(),
        "chunks": {first: journal.read_chunk(first) for first, _ in journal.chunks()},
        "segments": journal.segments(),
        "cursors": {sink: journal.cursor(sink) for sink in truth.cursors},
        "meta": {key: journal.meta(key) for key in truth.meta},
        "superseded": journal.superseded(),
        "last_pos": journal.last_pos,
        "last_at": journal.last_at,
    }


def make(directory: Path, kind: str, *, rounds: int, seed: int) -> Truth:
    """Write the files of a journal as a killed process leaves them.

    Args:
        directory: New directory for the files.
        kind: Location of the data: all in the `file`, nearly all in the write-ahead `log`, partly in each (`both`), or
            in the log and already `copied` into the file, except for changes after the start of a reader.
        rounds: Amount of data.
        seed: Seed of the contents.
    """
    scratch = directory / "scratch"
    writer = Writer(scratch / NAME, seed)
    for _ in range(rounds):
        writer.append(12)
        writer.commit()
        writer.note()
    reader = sqlite3.connect(scratch / NAME, isolation_level=None)
    if kind == "copied":
        reader.execute("BEGIN")
        reader.execute("SELECT 1 FROM meta").fetchone()
    writer.roll()
    writer.append(12)
    if kind == "both":
        checkpoint(scratch / NAME, "RESTART")
        writer.append(4)
        writer.note()
    for _ in range(5):
        writer.append(1)
        writer.truth.latest.append(contents(writer.journal, writer.truth))
    if kind == "copied":
        checkpoint(scratch / NAME, "PASSIVE")
    if kind == "file":
        writer.journal.close()
    for name in (NAME, WAL, WATERMARK):
        if (scratch / name).exists():
            shutil.copyfile(scratch / name, directory / name)
    reader.close()
    writer.journal.close()
    shutil.rmtree(scratch)
    return writer.truth


def checkpoint(path: Path, mode: str) -> None:
    """Let SQLite copy the write-ahead log into the file while the writer has both open."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA wal_checkpoint({mode})")


def cuts(data: bytes, stride: int) -> Iterator[tuple[str, bytes]]:
    """Truncate a file within its last 4 KiB, at each stride and at every byte of the last 40."""
    last = range(max(len(data) - PAGE, 0), len(data))
    for size in sorted({*last[::stride], *last[-40:]}):
        yield f"cut to {size} of {len(data)} bytes", data[:size]


def flips(data: bytes, *, is_log: bool, bits: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """Flip random bits, one at a time, in each page, and in the headers of a log."""
    source = random.Random(seed)
    begin, size = (HEADER_BYTES, FRAME_BYTES) if is_log else (0, PAGE)
    regions = [(start, min(start + size, len(data))) for start in range(begin, len(data), size)]
    regions += [(start, start + 24) for start in range(begin, len(data), size)] if is_log else [(0, 100)]
    regions += [(0, begin)] if is_log and data else []
    for first, end in regions:
        for _ in range(bits):
            offset, bit = source.randrange(first, end), source.randrange(8)
            flipped = bytearray(data)
            flipped[offset] ^= 1 << bit
            yield f"bit {bit} of byte {offset} flipped", bytes(flipped)


def wipes(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Overwrite each block of the disk with zeros, as a power loss may."""
    for start in range(0, len(data), PAGE):
        end = min(start + PAGE, len(data))
        yield f"bytes {start} to {end - 1} zero", data[:start] + bytes(end - start) + data[end:]


def check(directory: Path, truth: Truth, *, is_cut_log: bool) -> list[str]:
    """Open a journal with damaged files, and return descriptions of wrong or unreported contents."""
    journal = Journal(directory / NAME)
    observed = contents(journal, truth)
    wrong = [f"wrong {value}" for value in _wrong_values(observed, truth)]
    damage, num_lost = journal.damage, journal.num_lost
    journal.forget_repair()
    needed, present = (_not_in_snapshot(one["records"], observed["snapshot"]) for one in (truth.contents, observed))
    missing = len(needed) - len(present)
    if not num_lost and not is_cut_log:
        # the older snapshot can replace the newer one, and each replaces the entries before it
        same = [key for key in observed if key not in {"snapshot", "records"} or not damage]
        wrong += [f"{key} changed, not reported" for key in same if observed[key] != truth.contents[key]]
        wrong += ["entries changed, not reported"] if present != needed else []
    if present and observed["snapshot"] and present[-1].pos != observed["snapshot"].pos + len(present):
        wrong.append("entries behind a gap")
    if is_cut_log and not damage and observed not in truth.latest:
        wrong.append("not the contents before the last transactions")
    if missing > max(num_lost, MAX_LOST_WITH_A_PAGE):
        wrong.append(f"{missing} entries missing, {num_lost} reported")
    if damage and not any(path.name.startswith(f"{NAME}.damaged-1") for path in directory.iterdir()):
        wrong.append("not quarantined")
    pos = journal.append("events", b"new", at=9.0, client="newcomer", seq=1)
    if pos in {record.pos for record in observed["records"]}:
        wrong.append(f"position {pos} used twice")
    journal.close()
    return wrong + list(_changed_on_reopen(directory, truth, {**observed, "last_pos": pos, "last_at": 9.0}, pos))


def _not_in_snapshot(records: Sequence[JournalEntry], snapshot: Snapshot | None) -> list[JournalEntry]:
    return [record for record in records if snapshot is None or record.pos > snapshot.pos]


def _wrong_values(observed: dict[str, object], truth: Truth) -> Iterator[str]:
    """Yield the names of values that the journal returns, but that were never stored."""
    positions = [record.pos for record in observed["records"]]
    if positions != sorted(set(positions)):
        yield "order of entries"
    yield from (f"entry {r.pos}" for r in observed["records"] if r != truth.records.get(r.pos))
    if observed["snapshot"] not in [None, *truth.snapshots]:
        yield "snapshot"
    yield from (f"chunk {first}" for first, payload in observed["chunks"].items() if payload != truth.chunks.get(first))
    yield from (f"segment {segment.name}" for segment in observed["segments"] if segment not in truth.segments)
    yield from (f"meta {key}" for key, value in observed["meta"].items() if value not in truth.meta[key])
    for sink, cursor in observed["cursors"].items():  # if the newest entries are lost, each position is reset
        indices = {(stored[0], None) for stored in truth.cursors[sink] if stored is not None}
        if cursor not in truth.cursors[sink] and cursor not in indices:
            yield f"cursor of {sink}"
    yield from (f"superseded {pair}" for pair in observed["superseded"] if pair not in truth.superseded)


def _changed_on_reopen(directory: Path, truth: Truth, observed: dict[str, object], pos: int | None) -> Iterator[str]:
    """Yield differences that another process finds in the new journal."""
    journal = Journal(directory / NAME)
    again = contents(journal, truth)
    again["records"] = [record for record in again["records"] if record.pos != pos]
    if journal.damage or journal.num_lost:
        yield f"reported again: {journal.damage}"
    yield from (f"{key} changed by a second opening" for key in observed if observed[key] != again[key])
    if journal.append("events", b"new", at=9.0, client="newcomer", seq=1) is not None:
        yield "accepted twice"
    journal.close()


def damaged(directory: Path, *, stride: int, bits: int, seed: int = 0) -> Iterator[tuple[str, dict[str, bytes], bool]]:
    """Yield every damage to the files in a directory: its name, the files, and whether only the log was truncated."""
    names = (NAME, WAL, WATERMARK)
    files = {name: (directory / name).read_bytes() for name in names if (directory / name).exists()}
    for name, data in files.items():
        if name == WATERMARK:
            continue
        is_log = name == WAL
        for text, changed in cuts(data, stride):
            yield f"{name} {text}", {**files, name: changed}, is_log
        for text, changed in (*flips(data, is_log=is_log, bits=bits, seed=seed), *wipes(data)):
            yield f"{name} {text}", {**files, name: changed}, False


def problems(
    directory: Path,
    kinds: Sequence[str] = KINDS,
    *,
    stride: int,
    bits: int,
    rounds: int = 4,
    seed: int = 0,
    every: int = 1,
) -> Iterator[str]:
    """Yield the failures of journals below a directory after each `every`-th damage; none are expected."""
    for kind in kinds:
        truth = make(directory / kind, kind, rounds=rounds, seed=seed)
        cases = itertools.islice(damaged(directory / kind, stride=stride, bits=bits, seed=seed), 0, None, every)
        for text, files, is_cut_log in cases:
            scratch = directory / "scratch"
            scratch.mkdir()
            for name, data in files.items():
                (scratch / name).write_bytes(data)
            try:
                yield from (f"{kind}, {text}: {problem}" for problem in check(scratch, truth, is_cut_log=is_cut_log))
            except Exception as error:  # noqa: BLE001 - any error is a failure of this case
                yield f"{kind}, {text}: {error!r}"
            shutil.rmtree(scratch)
