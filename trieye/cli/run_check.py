"""RunCheck: whether everything that a run keeps on the disk is whole; nothing is changed."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from trieye.cli.history_check import check_history
from trieye.cli.run_config import recorded_config, sinks_of
from trieye.cli.run_part import Damage, Part, size_of
from trieye.cli.run_status import is_alive
from trieye.cli.saved_files import Saved, saved_in
from trieye.config import PersistenceConfig
from trieye.exceptions import ConfigurationError, JournalError, SerializationError
from trieye.files.run_files import BUFFER_PREFIX, CHECKPOINT_PREFIX, JOURNAL, RUN_RECORD
from trieye.files.run_record import RunRecord
from trieye.hub.status import read_status
from trieye.journal.look import Contents, inspect
from trieye.journal.witness import Expected, read_witness, witness_path

MAX_TRIES = 5
"""How often what a living run changes under the check is looked at again."""


@dataclass(frozen=True)
class SinkPlace:
    """Where a sink is.

    Attributes:
        name: Name of the sink.
        index: Everything in the history before it has arrived.
        behind: Items of the history that it has not got, as far as known.
        error: Why it did not work when the hub said so last, or None.
    """

    name: str
    index: int
    behind: int
    error: str | None


@dataclass(frozen=True)
class RunCheck:
    """What was found.

    Attributes:
        run_dir: Directory of the run.
        status: How the run ended, or RUNNING; None if its record cannot be read.
        is_alive: Whether a process writes to it.
        parts: What it keeps.
        sinks: Where its sinks are.
        notes: What is no damage, and good to know.
    """

    run_dir: Path
    status: str | None
    is_alive: bool
    parts: list[Part]
    sinks: list[SinkPlace]
    notes: list[str] = field(default_factory=list)

    @property
    def damage(self) -> list[Damage]:
        """What is damaged."""
        return [damage for part in self.parts for damage in part.damage]

    @property
    def is_killed(self) -> bool:
        """Whether nobody writes to the run, and nobody recorded how it ended."""
        return self.status == "RUNNING" and not self.is_alive


def check_run(run_dir: Path) -> RunCheck:
    """Look at everything that a run keeps on the disk, also while it is alive."""
    record, of_record = _record(run_dir)
    of_config, persistence, enabled = _config(run_dir)
    held, journal, history = _journal_and_history(run_dir, record, run_dir / persistence.tensorboard_dir_name)
    checkpoints = run_dir / persistence.checkpoint_save_dir_name
    buffers = run_dir / persistence.buffer_save_dir_name
    saved = [_states("checkpoints", checkpoints, CHECKPOINT_PREFIX), _states("buffers", buffers, BUFFER_PREFIX)]
    return RunCheck(
        run_dir=run_dir,
        status=None if record is None else record.status,
        is_alive=is_alive(run_dir),
        parts=[of_record, of_config, journal, history, *saved],
        sinks=_sinks(run_dir, held, enabled),
        notes=list(_set_aside(run_dir, checkpoints, buffers)),
    )


def _record(run_dir: Path) -> tuple[RunRecord | None, Part]:
    path = run_dir / RUN_RECORD
    try:
        record = RunRecord.read(path)
    except SerializationError as error:
        return None, Part(RUN_RECORD, "who the run is", size_of(path), [Damage(*_in_three(str(error)))])
    found = f"attempt {record.attempt}, {record.status}" if record is not None else "nothing"
    return record, Part(RUN_RECORD, found, size_of(path))


def _in_three(message: str) -> tuple[str, str, str]:
    what, _, advice = message.partition("; ")
    return what, "nobody knows which run this is: it cannot be started again", advice


def _config(run_dir: Path) -> tuple[Part, PersistenceConfig, list[str]]:
    """Return the part, the names of the directories, and the sinks that are enabled."""
    path = run_dir / "configs.json"
    if not path.exists():
        return Part("configs.json", "not written yet", 0, is_there=False), PersistenceConfig(), []
    try:
        config = recorded_config(run_dir)
    except ConfigurationError as error:
        damage = Damage(
            str(error),
            "`trieye close` and `trieye rebuild` cannot tell which sinks the run has",
            "restore it from a backup, or start the run again, which writes it anew",
        )
        return Part("configs.json", "the config of the run", size_of(path), [damage]), PersistenceConfig(), []
    try:
        enabled = sinks_of(config)
    except ConfigurationError:  # a library is not installed here
        enabled = []
    return Part("configs.json", "the config of the run", size_of(path)), config.persistence, enabled


def _journal_and_history(
    run_dir: Path, record: RunRecord | None, tensorboard: Path
) -> tuple[Contents | None, Part, Part]:
    """Look at both, and again as long as a living run changes the files of the history."""
    before: list[Damage] | None = None
    for _ in range(MAX_TRIES):
        held, journal = _journal(run_dir, record, tensorboard)
        history = check_history(run_dir / "history", held)
        if not history.damage or history.damage == before:
            break
        before = history.damage
    return held, journal, history


def _journal(run_dir: Path, record: RunRecord | None, tensorboard: Path) -> tuple[Contents | None, Part]:
    path = run_dir / JOURNAL
    expected = Expected() if record is None else Expected(None, record.run_id, record.has_shown(tensorboard))
    size_bytes = sum(size_of(path.with_name(path.name + suffix)) for suffix in ("", "-wal"))
    if not size_bytes:
        missing = _missing_journal(run_dir, is_begun=expected.is_begun or read_witness(path) is not None)
        return None, Part("journal", "nothing" if missing else "not made yet", 0, missing, is_there=False)
    try:
        held = inspect(path, expected)
    except JournalError as error:
        damage = Damage(str(error), "what was accepted last may be lost", "see the message")
        return None, Part("journal", "not readable", size_bytes, [damage])
    since = held.last_pos - held.snapshots[-1][0] if held.snapshots else held.num_records
    found = f"{held.num_records:,} records, {max(since, 0):,} newer than the last snapshot"
    damage_found = [
        Damage(
            f"the journal is damaged: {finding}",
            "some of what was accepted may be lost; all that is whole in it is kept, and what is lost is counted",
            "start the run again, or `trieye close` it: that repairs the journal and sets the damaged one aside",
        )
        for finding in held.damage
    ]
    witness = read_witness(path)
    if witness is not None and witness.journal is None:
        damage_found.append(
            Damage(
                f"{witness_path(path).name} is damaged",
                "nobody knows how far the journal has to reach; what the journal has is whole",
                "nothing is to be done: the next start of the run writes it anew",
            )
        )
    return held, Part("journal", found, size_bytes, damage_found)


def _missing_journal(run_dir: Path, *, is_begun: bool) -> list[Damage]:
    has_history = any(run_dir.glob("history/points-*.parquet"))
    if not (is_begun or has_history):
        return []
    return [
        Damage(
            "there is a history, and no journal" if has_history else "the journal is missing",
            "what was accepted last is lost; what the sinks show stays",
            "restore journal.db and journal.db-wal from a backup, or start the run again, which makes a new journal",
        )
    ]


def _states(name: str, directory: Path, prefix: str) -> Part:
    found_there = saved_in(directory, prefix, checksums=True)
    saved = sorted(
        (state for state in found_there if state.state in {"whole", "partial", "damaged", "link"}),
        key=lambda state: state.step,
    )
    usable = [state.step for state in saved if state.is_usable]
    newest = str(usable[-1]) if usable else "none"
    advice = f"nothing is to be done: the newest one that is whole, of step {newest}, is used instead"
    if not usable:
        advice = "restore one from a backup; to start afresh, delete them or choose another run_name"
    found = f"{len(saved):,}, the highest step is {newest}" if saved else "none"
    broken = [
        Damage(problem, *(_part_lost(state) if state.is_usable else ("it cannot be loaded", advice)))
        for state in saved
        for problem in state.problems
    ]
    num_aside = sum(state.state == "set aside" for state in found_there)
    if num_aside and not saved:
        what = f"none of the {name} is whole: {num_aside} were found damaged and set aside, and there is no other"
        broken = [Damage(what, "the run does not go on: its next start is an error, not a fresh start", advice)]
    return Part(name, found, sum(state.size_bytes for state in saved), broken, is_there=bool(saved))


def _part_lost(state: Saved) -> tuple[str, str]:
    """Return what it means that a part of a replay is damaged, and what to do."""
    rows = ", ".join(state.lost_rows)
    meaning = f"rows {rows} of the replay of step {state.step} are lost; its model and all else are whole"
    advice = "nothing is to be done: the run goes on with the other rows and saves them anew"
    return meaning, f"{advice}; with persistence.damaged_replay=refuse it stops instead"


def _sinks(run_dir: Path, held: Contents | None, enabled: list[str]) -> list[SinkPlace]:
    try:
        status = read_status(run_dir)
    except (JournalError, ValueError):
        status = {}
    errors = {sink["name"]: sink["error"] for sink in status.get("sinks", ())}
    cursors = {} if held is None else held.cursors
    ends = [] if held is None else [end for _, end in [*held.snapshots, *held.chunks]]
    ends += [] if held is None else [segment.end for segment in held.segments]
    end = max([status.get("points", 0), *ends], default=0)
    places = {name: cursors.get(name, 0) for name in enabled or cursors}
    return [SinkPlace(name, index, max(end - index, 0), errors.get(name)) for name, index in places.items()]


def _set_aside(run_dir: Path, *directories: Path) -> Iterator[str]:
    found = [*run_dir.glob(f"{JOURNAL}.damaged-*")]
    found += [path for directory in directories for path in directory.glob("*_step_*.damaged*")]
    for path in sorted(found):
        if not path.name.endswith(("-wal", "-shm")):
            yield f"{path.relative_to(run_dir)} was found damaged and set aside; delete it when you do not need it"
