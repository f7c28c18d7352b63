"""Verify that everything a run stores on disk is intact; nothing is changed."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trieye.checkpoints.store import NONE_INTACT
from trieye.config import PersistenceConfig, TrieyeConfig
from trieye.exceptions import ConfigurationError, JournalError, SerializationError
from trieye.files.checksum import sums_of
from trieye.files.run_files import BUFFER_PREFIX, CHECKPOINT_PREFIX, CONFIGS, HISTORY, JOURNAL, RUN_RECORD
from trieye.files.run_record import RunRecord
from trieye.history.segments import SegmentFile
from trieye.history.store import survey
from trieye.hub.status import read_status
from trieye.journal.journal import Segment
from trieye.journal.ranges import Range, merged, overlapping, uncovered
from trieye.journal.scan import Contents, count, inspect
from trieye.journal.watermark import Expected, read_watermark, stored_watermark_path
from trieye.process.lock import is_alive
from trieye.runs.checkpoint_rows import CheckpointRow, rows_in
from trieye.runs.config import recorded_config, sinks_of
from trieye.runs.finding import RunReference, run_directory

MAX_TRIES = 5
"""How often a file is read again that a living run changes during the check."""


@dataclass(frozen=True)
class Damage:
    """Damage of a part: the finding, the loss, and the advice."""

    what: str
    meaning: str
    advice: str


@dataclass(frozen=True)
class VerifiedPart:
    """A part of a run on disk.

    Attributes:
        found: Its content, in words.
        damage: Its damage; empty if it is intact.
        is_there: Whether it exists.
    """

    name: str
    found: str
    size_bytes: int
    damage: list[Damage] = field(default_factory=list)
    is_there: bool = True


@dataclass(frozen=True)
class SinkPosition:
    """How far a sink is.

    Attributes:
        index: It has received all items of the history before this one.
        behind: Number of items that it has not received, if known.
        error: Its last reported error, or None.
    """

    name: str
    index: int
    behind: int
    error: str | None


@dataclass(frozen=True)
class RunCheck:
    """The result of a verification.

    Attributes:
        run_dir: Directory of the run.
        status: The recorded status of the run; None if its record cannot be read.
        is_alive: Whether a process writes to it.
        parts: Its files: record, config, journal, history, checkpoints and buffers.
        sinks: How far each sink is.
        notes: Remarks that are no damage.
    """

    run_dir: Path
    status: str | None
    is_alive: bool
    parts: list[VerifiedPart]
    sinks: list[SinkPosition]
    notes: list[str]

    @property
    def damage(self) -> list[Damage]:
        """The damage of all parts."""
        return [damage for part in self.parts for damage in part.damage]

    @property
    def is_killed(self) -> bool:
        """Whether its process is gone without recording how the run ended."""
        return self.status == "RUNNING" and not self.is_alive


def verify(run: RunReference, *, root: Path | None = None) -> RunCheck:
    """Read every byte of a run's journal, history, checkpoints and buffers; the run may be alive.

    Args:
        run: The run, its directory or its name.
        root: Directory of all apps; None: the directories of the project around the working directory.

    Raises:
        ConfigurationError: There is no such run.
    """
    run_dir = run_directory(run, root=root)
    record, of_record = _record(run_dir / RUN_RECORD)
    config, of_config = _config(run_dir)
    persistence = PersistenceConfig() if config is None else config.persistence
    contents, journal, history = _journal_and_history(run_dir, record, run_dir / persistence.tensorboard_dir_name)
    checkpoints = run_dir / persistence.checkpoint_save_dir_name
    buffers = run_dir / persistence.buffer_save_dir_name
    saved_parts = [_states("checkpoints", checkpoints, CHECKPOINT_PREFIX), _states("buffers", buffers, BUFFER_PREFIX)]
    return RunCheck(
        run_dir=run_dir,
        status=None if record is None else record.status,
        is_alive=is_alive(run_dir),
        parts=[of_record, of_config, journal, history, *saved_parts],
        sinks=_sinks(run_dir, contents, config),
        notes=list(_set_aside(run_dir, checkpoints, buffers)),
    )


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size if path.is_file() else 0
    except FileNotFoundError:
        return 0


def _record(path: Path) -> tuple[RunRecord | None, VerifiedPart]:
    try:
        record = RunRecord.read(path)
    except SerializationError as error:
        problem, _, advice = str(error).partition("; ")
        damage = Damage(problem, "its identity is unknown: it cannot be started again", advice)
        return None, VerifiedPart(path.name, "who the run is", _size_of(path), [damage])
    text = f"attempt {record.attempt}, {record.status}" if record is not None else "nothing"
    return record, VerifiedPart(path.name, text, _size_of(path))


def _config(run_dir: Path) -> tuple[TrieyeConfig | None, VerifiedPart]:
    size_bytes, content = _size_of(run_dir / CONFIGS), "the config of the run"
    if not (run_dir / CONFIGS).exists():
        return None, VerifiedPart(CONFIGS, "not written yet", 0, is_there=False)
    try:
        return recorded_config(run_dir), VerifiedPart(CONFIGS, content, size_bytes)
    except ConfigurationError as error:
        meaning = "`trieye close` and `trieye rebuild` do not know the sinks of the run"
        advice = "restore it from a backup, or start the run again, which rewrites it"
        return None, VerifiedPart(CONFIGS, content, size_bytes, [Damage(str(error), meaning, advice)])


def _journal_and_history(
    run_dir: Path, record: RunRecord | None, tensorboard: Path
) -> tuple[Contents | None, VerifiedPart, VerifiedPart]:
    """Check both; repeat while a living run changes the files of the history."""
    last_damage: list[Damage] | None = None
    for _ in range(MAX_TRIES):
        contents, journal = _journal(run_dir, record, tensorboard)
        history = _history(run_dir / HISTORY, contents)
        if not history.damage or history.damage == last_damage:
            break
        last_damage = history.damage
    return contents, journal, history


def _journal(run_dir: Path, record: RunRecord | None, tensorboard: Path) -> tuple[Contents | None, VerifiedPart]:
    path = run_dir / JOURNAL
    expected = Expected() if record is None else Expected(None, record.run_id, record.has_shown(tensorboard))
    size_bytes = sum(_size_of(path.with_name(path.name + suffix)) for suffix in ("", "-wal"))
    watermark = read_watermark(path)
    if not size_bytes:
        losses = list(_missing_journal(run_dir, is_begun=expected.is_begun or watermark is not None))
        return None, VerifiedPart("journal", "nothing" if losses else "not made yet", 0, losses, is_there=False)
    try:
        contents = inspect(path, expected)
    except (JournalError, OSError) as error:  # such as a file of another user
        finding = str(error) if isinstance(error, JournalError) else f"{path} cannot be read: {error.strerror}"
        damage = Damage(finding, "the last accepted events may be lost", "see the message")
        return None, VerifiedPart("journal", "not readable", size_bytes, [damage])
    num_newer = contents.last_pos - contents.snapshots[-1][0] if contents.snapshots else contents.num_records
    text = f"{contents.num_records:,} records, {max(num_newer, 0):,} newer than the last snapshot"
    meaning = "events after its newest intact snapshot may be lost; lost records are counted and reported"
    advice = "start the run again, or `trieye close` it: that repairs the journal and quarantines the damaged one"
    damage_found = [Damage(f"the journal is damaged: {finding}", meaning, advice) for finding in contents.damage]
    if watermark is not None and watermark.journal is None:
        problem = f"{stored_watermark_path(path).name} is damaged"
        meaning = "the end of the journal cannot be checked; its entries are intact"
        damage_found.append(Damage(problem, meaning, "no action is needed: the next start of the run rewrites it"))
    return contents, VerifiedPart("journal", text, size_bytes, damage_found)


def _missing_journal(run_dir: Path, *, is_begun: bool) -> Iterator[Damage]:
    has_history = any(run_dir.glob("history/points-*.parquet"))
    if is_begun or has_history:
        yield Damage(
            "there is a history, and no journal" if has_history else "the journal is missing",
            "the last accepted events are lost; points in the sinks remain",
            f"restore {JOURNAL} and {JOURNAL}-wal from a backup, or start the run again, which makes a new journal",
        )


def _history(directory: Path, contents: Contents | None) -> VerifiedPart:
    """Check the files of a history, and its entries in the journal if that can be read."""
    segments, chunks = ([], []) if contents is None else (contents.segments, contents.chunks)
    inventory = survey(directory, segments, chunks)
    damage, lost = [], uncovered(0, inventory.end, [part[:2] for part in inventory.stored])
    if lost:
        damage.append(_lost_items(JOURNAL, "lacks a part of the history", lost))
    files = dict.fromkeys(part.segment for part in inventory.stored if part.segment is not None)
    for segment in files:
        if (unreadable := _unreadable_in(directory / segment.name, segment)) is not None:
            parts = [part[:2] for part in inventory.stored if part.segment == segment]
            lost_spans = [span for part in parts for span in overlapping(*part, unreadable)]
            finding = "is damaged" if (directory / segment.name).exists() else "is missing"
            damage.append(_lost_items(segment.name, finding, lost_spans))
            lost = [*lost, *lost_spans]
    sizes = [_size_of(directory / segment.name) for segment in files if (directory / segment.name).exists()]
    location = f"in {len(sizes)} files" + (" and the journal" if chunks else "") if sizes else "in the journal"
    text = f"{inventory.end - count(lost):,} points and operations, {location}" if inventory.end else "nothing yet"
    return VerifiedPart("history", text, sum(sizes), damage, is_there=inventory.end > 0)


def _unreadable_in(path: Path, segment: Segment) -> list[Range] | None:
    """Return the unreadable items of a file; None if the file is intact."""
    ranges = []
    try:
        if sums_of(path)[:2] == (segment.size_bytes, segment.crc):
            return None
        with path.open("rb") as file:
            segment_file = SegmentFile(file, segment[:2])
            for index, group in enumerate(segment_file.about.groups):
                try:
                    segment_file.read(index)
                except SerializationError:
                    ranges.append(group[:2])
    except (FileNotFoundError, SerializationError):
        return [segment[:2]]
    return merged(ranges)


def _lost_items(name: str, finding: str, lost: list[Range]) -> Damage:
    if not lost:
        return Damage(f"{name} {finding}", "nothing is lost: its items can be read", "no action is needed")
    ranges = ", ".join(f"{first} to {end - 1}" for first, end in lost[:3]) + (", ..." if lost[3:] else "")
    return Damage(
        f"{name} {finding}: {count(lost):,} items are lost ({ranges})",
        "sinks that have them keep them; a rebuilt or later sink does not receive them",
        f"restore {name} from a backup; otherwise no action is needed",
    )


def _states(name: str, directory: Path, prefix: str) -> VerifiedPart:
    rows = rows_in(directory, prefix, checksums=True)
    states = sorted((state for state in rows if state.is_usable or state.is_broken), key=lambda state: state.step)
    usable_steps = [state.step for state in states if state.is_usable]
    newest_step = str(usable_steps[-1]) if usable_steps else "none"
    advice = f"no action is needed: the newest intact one, of step {newest_step}, is used instead"
    if not usable_steps:
        advice = NONE_INTACT
    text = f"{len(states):,}, the highest step is {newest_step}" if states else "none"
    damage = [
        Damage(problem, *(_lost_rows(state) if state.is_usable else ("it cannot be loaded", advice)))
        for state in states
        for problem in state.problems
    ]
    num_aside = sum(state.state == "set aside" for state in rows)
    if num_aside and not states:
        problem = f"none of the {name} is whole: {num_aside} were found damaged and set aside, and there is no other"
        damage = [Damage(problem, "the run cannot resume: its next start is an error, not a fresh start", advice)]
    return VerifiedPart(name, text, sum(state.size_bytes for state in states), damage, is_there=bool(states))


def _lost_rows(state: CheckpointRow) -> tuple[str, str]:
    """Return meaning and advice for a damaged part of a replay."""
    rows = ", ".join(state.lost_rows)
    meaning = f"rows {rows} of the replay of step {state.step} are lost; its model and all else are whole"
    advice = "no action is needed: the run resumes with the other rows and saves them again"
    return meaning, f"{advice}; with persistence.damaged_replay=refuse it stops instead"


def _sinks(run_dir: Path, contents: Contents | None, config: TrieyeConfig | None) -> list[SinkPosition]:
    status, enabled = dict[str, Any](), list[str]()
    with suppress(JournalError, ValueError):
        status = read_status(run_dir)
    with suppress(ConfigurationError):  # a library is not installed here
        enabled = [] if config is None else sinks_of(config)
    errors = {sink["name"]: sink["error"] for sink in status.get("sinks", ())}
    cursors, ends = dict[str, int](), [status.get("points", 0)]
    if contents is not None:
        cursors = contents.cursors
        ends += [end for _, end in [*contents.snapshots, *contents.chunks]]
        ends += [segment.end for segment in contents.segments]
    positions = {name: cursors.get(name, 0) for name in enabled or cursors}
    return [SinkPosition(name, index, max(max(ends) - index, 0), errors.get(name)) for name, index in positions.items()]


def _set_aside(run_dir: Path, *directories: Path) -> Iterator[str]:
    quarantined_paths = [*run_dir.glob(f"{JOURNAL}.damaged-*")]
    quarantined_paths += [path for directory in directories for path in directory.glob("*_step_*.damaged*")]
    for path in sorted(quarantined_paths):
        if not path.name.endswith(("-wal", "-shm")):
            yield f"{path.relative_to(run_dir)} was found damaged and set aside; delete it when you do not need it"
