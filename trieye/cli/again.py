"""A run begun again by its own program: the command for it, what has changed since, and whether a checkpoint fits."""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trieye.cli.found_runs import CONFIGS
from trieye.cli.stored_command import confirm
from trieye.config.fingerprint import json_of, leaves
from trieye.config.locations import checkpoint_reference, expanded
from trieye.config.names import check_name
from trieye.config.redaction import HIDDEN, redacted
from trieye.exceptions import CheckpointError, ConfigurationError, JournalError, SerializationError
from trieye.files.run_files import RUN_RECORD
from trieye.files.run_record import RunRecord
from trieye.process.child import run_program
from trieye.process.lock import is_alive
from trieye.process.terminal import Terminal, Text
from trieye.run.provenance import DIRECTORY, Commit, Provenance
from trieye.run.rehearsal import VARIABLE, Rehearsed, Stage
from trieye.sweeps.record import SweepRecord

NOT_COMPARED = {"run_name", "persistence.run_name", "persistence.MLFLOW_TRACKING_URI", "run_config"}
"""What two runs need not have in common."""

LOAD, RUN_NAME = "persistence.load_checkpoint_path", "run_name"
NOTHING_KEPT = (
    "persistence.mirror=null", "runtime.kind=local", "runtime.address=null", "sinks.mlflow.enabled=false",
    "sinks.tensorboard.enabled=false", "sinks.wandb.enabled=false", "sinks.console.enabled=false",
)  # fmt: skip
"""What a rehearsal adds, for its run is in a temporary directory and nobody is to see it."""

MAX_SHOWN = 30
MAX_LINES = 20
MAX_VALUE = 60
CONTEXT = 15
"""Characters of a long value that are shown before its first difference."""

_PYTHON_WITH_VALUE = ("-X", "-W", "--check-hash-based-pycs")
_HYDRA_WITH_VALUE = ("--config-name", "-cn", "--config-path", "-cp", "--config-dir", "-cd")
_PLAIN = re.compile(r"(?!(?:null|true|false|nan|inf)$)[a-z_/][\w./:-]*", re.IGNORECASE | re.ASCII)
"""A value that means itself in Hydra's grammar."""


@dataclass(frozen=True)
class Made:
    """How a run was made.

    Attributes:
        run_dir: Its directory.
        record: Who it is.
        config: Its configs.json.
        provenance: What its last attempt ran; None if it is of a version that wrote no such thing, or damaged.
    """

    run_dir: Path
    record: RunRecord
    config: Mapping[str, Any]
    provenance: Provenance | None

    @classmethod
    def of(cls, run_dir: Path) -> "Made":
        """Look at a run.

        Raises:
            ConfigurationError: Its run.json or its configs.json is missing or damaged.
            SerializationError: Its run.json is damaged.
        """
        record = RunRecord.read(run_dir / RUN_RECORD)
        if record is None:
            raise ConfigurationError(f"{run_dir} is no run: it has no {RUN_RECORD}")
        try:
            config = json_of(run_dir / CONFIGS)
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"{run_dir / CONFIGS}, the config of the run, cannot be read: {error}") from error
        return cls(run_dir, record, config, Provenance.last(run_dir))

    @property
    def name(self) -> str:
        """Its app and its name."""
        return f"{self.run_dir.parents[1].name}/{self.run_dir.name}"

    def final(self) -> dict[str, dict[str, Any]]:
        """Return last value, extremes and step of each of its metrics, also of a run that was not closed."""
        if self.record.summary and not is_alive(self.run_dir):
            return {name: dict(seen) for name, seen in self.record.summary.items()}
        from trieye.hub.status import read_status

        with suppress(JournalError, OSError):
            found: dict[str, dict[str, Any]] = read_status(self.run_dir).get("metrics", {})
            return found
        return {}


@dataclass(frozen=True)
class Program:
    """What composes the config of a run, and runs it.

    Attributes:
        words: The words that start it, to which overrides are added.
        directory: Where they were typed.
        overrides: The overrides of the run, as typed, without its name.
        is_signed: Whether this user's key signs all of that.
    """

    words: Sequence[str]
    directory: Path
    overrides: Sequence[str]
    is_signed: bool = False

    @classmethod
    def of(cls, made: Made) -> "Program":
        """Return the program that made a run.

        Raises:
            ConfigurationError: It cannot be started again with other values; the message says why, and what to do.
        """
        cannot = f"run {made.name!r} cannot be composed again"
        held = made.provenance
        if held is None:
            raise ConfigurationError(
                f"{cannot}: it has no whole {DIRECTORY}/attempt-{made.record.attempt}.json, as runs of trieye 0.1.5; "
                f"start its program yourself, with the values of {made.run_dir / CONFIGS}"
            )
        sweep = _sweep_of(made.record)
        has_records = (made.run_dir / ".hydra").is_dir()
        if not (held.overrides or has_records or sweep is not None):
            raise ConfigurationError(
                f"{cannot}: {shlex.join(held.command)} made its config without Hydra, so no override reaches it; put "
                "@trieye.main above its function, or start it yourself"
            )
        words = sweep.program if sweep is not None else _without_overrides(held.command)
        if not words:
            raise ConfigurationError(
                f"{cannot}: it was begun by {shlex.join(held.command)}, which names no program; start it yourself"
            )
        directory = Path(sweep.working_dir if sweep is not None else held.directory)
        if not directory.is_dir():
            raise ConfigurationError(
                f"{cannot}: it was started in {directory}, which is gone; where its program is now, type: "
                f"{shlex.join([*words, *held.overrides])}"
            )
        return cls(words, directory, held.overrides, held.is_signed and (sweep is None or sweep.is_signed))

    def with_overrides(
        self, own_name: str, given: Sequence[str], without: Sequence[str], fixed: Mapping[str, str]
    ) -> list[str]:
        """Return the overrides of another run: those of this one, and what is given in the place of the same keys.

        Args:
            own_name: Name of the run; a checkpoint of its own, to which it went back, is none of another run.
            given: Further overrides.
            without: Keys whose overrides are left out.
            fixed: What nobody types, by the keys: `run_name`, and where it begins.

        Raises:
            ConfigurationError: A secret was not written down, or there is no override of a key to leave out.
        """
        taken = {_key(word) for word in given} | fixed.keys() | set(without)
        if missing := set(without) - {_key(word) for word in self.overrides}:
            known = ", ".join(map(_key, self.overrides)) or "none"
            raise ConfigurationError(f"--without {min(missing)}: the run has no such override (it has: {known})")
        kept = [word for word in self.overrides if _key(word) not in taken and not _is_own(word, own_name)]
        if hidden := next((word for word in kept if HIDDEN in word), None):
            raise ConfigurationError(
                f"{hidden}: a secret is not written down; type it again, as in {_key(hidden)}='${{oc.env:MY_SECRET}}'"
            )
        free = [word for word in given if _key(word) not in fixed]
        return [*kept, *free, *(_override(key, value) for key, value in fixed.items())]

    def command(self, overrides: Sequence[str]) -> list[str]:
        """Return the command that starts it."""
        return [*self.words, *overrides]

    def line(self, overrides: Sequence[str]) -> str:
        """Return the command as one would type it."""
        return f"cd {shlex.quote(str(self.directory))} && {shlex.join(self.command(overrides))}"

    def confirm(self, overrides: Sequence[str], *, origin: str, is_confirmed: bool) -> None:
        """Ask the user whether to start it, unless its command is signed.

        Raises:
            ConfigurationError: The user does not confirm it.
        """
        command = self.command(overrides)
        confirm(command, self.directory, origin=origin, is_signed=self.is_signed, is_confirmed=is_confirmed)

    def rehearse(self, overrides: Sequence[str], stage: Stage, *, asked: str) -> Rehearsed:
        """Start it for what it says of itself; it makes nothing that stays.

        Args:
            overrides: What it is started with.
            stage: How far it is to go.
            asked: What is to be begun, for the message.

        Raises:
            ConfigurationError: It does not take the overrides, or does not come to the point.
            CheckpointError: The checkpoint does not fit.
        """
        with tempfile.TemporaryDirectory(prefix="trieye_rehearsal_") as place:
            answer = Path(place) / "said.json"
            more = [] if stage == "config" else [*NOTHING_KEPT, _override("persistence.root_data_dir", f"{place}/root")]
            environment = {**os.environ, VARIABLE: f"{stage}:{answer}"}
            try:
                done = subprocess.run(
                    self.command([*overrides, *more]), cwd=self.directory, env=environment, capture_output=True,
                    text=True, errors="replace", stdin=subprocess.DEVNULL, check=False,
                )  # fmt: skip
            except OSError as error:
                raise ConfigurationError(f"{asked}: {self.words[0]} cannot be started: {error.strerror}") from error
            with suppress(OSError, ValidationError):
                return Rehearsed.model_validate_json(answer.read_bytes())
        told = _end_of(done.stderr.strip() or done.stdout.strip())
        if stage == "restore":
            raise CheckpointError(f"{asked}: nothing is made, since the checkpoint is not taken:\n{told}")
        raise ConfigurationError(
            f"{asked}: nothing is made, since its program does not compose the config"
            + (f":\n{told}" if done.returncode else f"; it ended without a run: {shlex.join(self.command(overrides))}")
        )

    def start(self, overrides: Sequence[str]) -> int:
        """Run it, and return its exit code."""
        return run_program(self.command(overrides), self.directory)


@dataclass(frozen=True)
class Side:
    """One of two things that are compared: a run, or what would be begun."""

    config: Mapping[str, Any]
    provenance: Provenance | None

    @classmethod
    def of(cls, made: Made) -> "Side":
        """Return the side of a run."""
        return cls(made.config, made.provenance)


Differences = Mapping[str, tuple[Any, Any]]
"""What differs, by name, with the value of each side; None where a side has none."""


@dataclass(frozen=True)
class Drift:
    """What differs between two sides.

    Attributes:
        config: Values of the config.
        commit: The commit, and whether it was changed.
        packages: Versions of packages, and that of Python.
    """

    config: Differences
    commit: Differences
    packages: Differences

    @classmethod
    def between(cls, first: Side, second: Side, *, but: Sequence[str] = ()) -> "Drift":
        """Compare two sides; of one without provenance nothing is said but its config.

        Args:
            first: One side.
            second: The other one.
            but: Keys of the config that are left out.
        """
        both = [
            redacted(dict(leaves({key: held for key, held in side.config.items() if key != HIDDEN})))
            for side in (first, second)
        ]
        left_out = NOT_COMPARED | set(but)
        config = {
            key: pair
            for key, pair in _differing(*both).items()
            if key not in left_out and key.partition(".")[0] not in left_out
        }
        if first.provenance is None or second.provenance is None:
            return cls(config, {}, {})
        known = [{**side.packages, "python": side.python} for side in (first.provenance, second.provenance)]
        commits = [_about(side.commit) for side in (first.provenance, second.provenance)]
        return cls(config, _differing(*commits), _differing(*known))

    def plain(self) -> dict[str, dict[str, Any]]:
        """Return it as plain data for JSON."""
        parts = {"config": self.config, "commit": self.commit, "packages": self.packages}
        return {part: {key: list(pair) for key, pair in found.items()} for part, found in parts.items()}


def show_drift(earlier: Made, found: Rehearsed, asked: Sequence[str]) -> None:
    """Say on stderr what is different from an earlier run, and what of it was asked for."""
    # what code added to the config of the run is no part of what is composed; where a fork begins is said otherwise
    then = {key: value for key, value in earlier.config.items() if key in found.config}
    drift = Drift.between(Side(then, earlier.provenance), Side(found.config, found.provenance), but=(LOAD,))
    console, keys = Terminal(stderr=True), [_key(word) for word in asked]
    parts = {"config": drift.config, "commit": drift.commit, "packages": drift.packages}
    for part, differences in parts.items():
        for key, before, now in islice(lines_of(differences), MAX_SHOWN):
            is_asked = part == "config" and any(f"{key}.".startswith(f"{name.replace('/', '.')}.") for name in keys)
            line = f"{part}: {key}: {before} -> {now}{'  (asked for)' if is_asked else ''}"
            console.print(Text(line, "" if is_asked else "yellow"))
        if len(differences) > MAX_SHOWN:
            console.print(Text(f"{part}: and {len(differences) - MAX_SHOWN} more", "yellow"))
    held = earlier.provenance
    if held is None:
        console.print(Text("of which commit and packages the run was is not known", "yellow"))
    elif held.commit is not None and held.commit.is_dirty:
        patch = earlier.run_dir / DIRECTORY / f"attempt-{earlier.record.attempt}.patch"
        advice = f"its changes: {patch}" if patch.exists() else "its changes were not kept"
        console.print(Text(f"commit: the run had changes that were not committed; {advice}", "yellow"))
    if not any(parts.values()):
        console.print(f"nothing has changed since {earlier.name}: config, commit and packages are the same")


def new_name(made: Made, given: Sequence[str], suffix: str) -> str:
    """Return the name of a run that begins: the one that was typed, or that of another with a suffix.

    Raises:
        ConfigurationError: There is such a run already.
    """
    typed = next((word.partition("=")[2].strip("'\"") for word in reversed(given) if _key(word) == RUN_NAME), None)
    runs = made.run_dir.parent
    if typed is not None:
        try:
            check_name(RUN_NAME, typed)
        except ValueError as error:
            raise ConfigurationError(str(error)) from error
        check_free(runs / typed)
        return typed
    names = (f"{made.run_dir.name}_{suffix}{number}" for number in ("", *(f"_{count}" for count in range(2, 10_000))))
    return next(name for name in names if not (runs / name).exists())


def check_free(run_dir: Path) -> None:
    """Make sure that there is no such run.

    Raises:
        ConfigurationError: There is; the message says how to go on with it.
    """
    if not run_dir.exists():
        return
    if is_alive(run_dir):
        raise ConfigurationError(f"run_name={run_dir.name}: there is such a run, and it is alive; choose another name")
    begun = ""
    with suppress(ConfigurationError, SerializationError):
        program = Program.of(made := Made.of(run_dir))
        begun = f"; to go on with it: {program.line(made.provenance.overrides if made.provenance else ())}"
    raise ConfigurationError(f"run_name={run_dir.name}: there is such a run already; choose another name{begun}")


def place_of(found: Rehearsed, program: Program) -> Path:
    """Return the directory that a run will have."""
    held = found.config["persistence"]
    given = expanded("persistence.root_data_dir", str(held["root_data_dir"]))
    root = program.directory / Path(given).expanduser()
    return root / str(found.config["app_name"]) / str(held["runs_dir_name"]) / str(found.config["run_name"])


def _override(key: str, value: str) -> str:
    from trieye.config.hydra.axes import quoted  # with Hydra

    return f"{key}={value if _PLAIN.fullmatch(value) else quoted(value)}"


def begins_from(checkpoint: str) -> str:
    """Return the override that lets a run begin from a checkpoint."""
    return _override(LOAD, checkpoint)


def _sweep_of(record: RunRecord) -> SweepRecord | None:
    if record.group is None:
        return None
    with suppress(SerializationError):
        sweep = SweepRecord.read(Path(record.group))
        return sweep if sweep is not None and sweep.program else None
    return None


def _without_overrides(command: Sequence[str]) -> list[str]:
    """Return the words of a command up to its program, and the flags that say where its configs are."""
    at = 1
    while at < len(command) and command[at].startswith("-") and command[at] not in {"-m", "-c", "-"}:
        at += 2 if command[at] in _PYTHON_WITH_VALUE else 1
    if at >= len(command) or command[at] in {"-c", "-"}:
        return []
    begins, rest = at + (2 if command[at] == "-m" else 1), iter(command)
    words = [next(rest) for _ in range(begins)]
    for word in rest:
        if word in _HYDRA_WITH_VALUE:
            words += [word, next(rest, "")]
        elif word.startswith(tuple(f"{flag}=" for flag in _HYDRA_WITH_VALUE)):
            words.append(word)
    is_there = os.sep in words[0] and Path(words[0]).exists()
    return [words[0] if is_there else sys.executable, *words[1:]]


def _key(word: str) -> str:
    return word.partition("=")[0].lstrip("+~").partition("@")[0] if "=" in word else word.lstrip("+~")


def _is_own(word: str, own_name: str) -> bool:
    key, _, value = word.partition("=")
    reference = checkpoint_reference(value.strip("'\"")) if key == LOAD else None
    return reference is not None and reference.run_name in {None, own_name}


def _end_of(said: str) -> str:
    """Return the error with which a program ended, or else its last lines."""
    before, error, text = f"\n{said}".rpartition("\nerror: ")
    return "\n".join((text if error else before or text).strip().splitlines()[-MAX_LINES:])


def _about(commit: Commit | None) -> dict[str, Any]:
    if commit is None:
        return {}
    return {"sha": commit.sha, "branch": commit.branch, "uncommitted changes": commit.is_dirty}


def _differing(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    keys = dict.fromkeys([*first, *second])
    return {key: (first.get(key), second.get(key)) for key in keys if first.get(key) != second.get(key)}


def lines_of(found: Differences) -> Iterator[tuple[str, str, str]]:
    """Yield each difference as texts; of long values, the part that begins shortly before the first difference."""
    for key, pair in sorted(found.items()):
        first, second = ("none" if value is None else str(value) for value in pair)
        shorter = min(len(first), len(second))
        common = next((at for at in range(shorter) if first[at] != second[at]), shorter)
        begin = max(common - CONTEXT, 0) if max(len(first), len(second)) > MAX_VALUE else 0
        yield key, _excerpt(first, begin), _excerpt(second, begin)


def _excerpt(text: str, begin: int) -> str:
    end = begin + MAX_VALUE
    return f"{'...' if begin else ''}{text[begin:end]}{'...' if end < len(text) else ''}"
