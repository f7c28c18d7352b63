"""Program: the program of a stored run, its overrides, and the command that starts it again."""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from pydantic import ValidationError

from trieye.config.locations import checkpoint_reference, expanded
from trieye.config.redaction import HIDDEN
from trieye.config.sinks import OUR_NAMES
from trieye.exceptions import CheckpointError, ConfigurationError, SerializationError
from trieye.files.run_files import CONFIGS
from trieye.process.child import environment_in, run_program
from trieye.renames import current_overrides
from trieye.run.provenance import DIRECTORY, Provenance
from trieye.run.rehearsal import VARIABLE, Rehearsed, Stage
from trieye.runs.stored_run import StoredRun
from trieye.snapshot.signing import key_source
from trieye.sweeps.record import SweepRecord, moved_program, project_of

LOAD, RUN_NAME = "persistence.load_checkpoint_path", "run_name"
_NO_OUTPUT = (
    "persistence.mirror=null", "runtime.kind=local", "runtime.address=null",
    *(f"sinks.{name}.enabled=false" for name in OUR_NAMES),
)  # fmt: skip
"""Overrides of a dry run, whose run is in a temporary directory and not for users to see."""

_MAX_LINES = 20

_PYTHON_WITH_VALUE = ("-X", "-W", "--check-hash-based-pycs")
_HYDRA_WITH_VALUE = ("--config-name", "-cn", "--config-path", "-cp", "--config-dir", "-cd")
_PLAIN = re.compile(r"(?!(?:null|true|false|nan|inf)$)[a-z_/][\w./:-]*", re.IGNORECASE | re.ASCII)
"""A value that needs no quotes in Hydra's grammar."""


@dataclass(frozen=True)
class Program:
    """The program that composes the config of a run, and runs it.

    Attributes:
        words: The words of its command without overrides.
        directory: Its working directory.
        overrides: The overrides of the run, with the current names of their keys.
        is_signed: Whether this user's key signs the stored command.
        renamed: Overrides with a renamed key, as typed, and their current form.
    """

    words: Sequence[str]
    directory: Path
    overrides: Sequence[str]
    is_signed: bool = False
    renamed: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, run: StoredRun) -> "Program":
        """Return the program of a run.

        Raises:
            ConfigurationError: It cannot be started with other values; the message has the reason and the remedy.
        """
        cannot = f"run {str(run)!r} cannot be composed again"
        provenance = run.provenance
        if provenance is None:
            raise ConfigurationError(
                f"{cannot}: it has no intact {DIRECTORY}/attempt-{run.attempt}.json, as runs of trieye 0.1.5; "
                f"start its program yourself, with the values of {run.run_dir / CONFIGS}"
            )
        sweep = _sweep_of(run, Path(provenance.directory))
        command = shlex.join(provenance.command if sweep is None else sweep.program)  # a job is started by trieye
        words = sweep.program if sweep is not None else _without_overrides(provenance.command)
        if not words or not _takes_name(run, provenance, is_job=sweep is not None):
            raise ConfigurationError(
                f"{cannot}: no override of {command} can name the new run; put @trieye.main above the function of its "
                f"program, or add {RUN_NAME} to its Hydra config and pass it to TrieyeConfig, or start it yourself"
            )
        started_in = Path(sweep.working_dir if sweep is not None else provenance.directory)
        located = located_program(run, words, started_in)
        if located is None:
            raise ConfigurationError(
                f"{cannot}: it was started in {started_in}, which is gone; change to the directory of its program, and "
                f"start it there, with another run_name: {shlex.join([*words, *provenance.overrides])}"
            )
        # a run in another place, such as a copied one, may be next to another program than the one that was signed
        is_original = located.finds_run and located.directory == started_in
        is_signed = provenance.is_signed and (sweep is None or sweep.is_signed) and is_original
        overrides = current_overrides(provenance.overrides, run.config)
        pairs = zip(provenance.overrides, overrides, strict=True)
        return cls(
            located.words, located.directory, overrides, is_signed, {old: new for old, new in pairs if old != new}
        )

    def with_overrides(
        self, own_name: str, new_words: Sequence[str], removed_keys: Sequence[str], value_by_key: Mapping[str, str]
    ) -> list[str]:
        """Return the overrides of another run: inherited ones, and the extra ones instead of the same keys.

        Args:
            own_name: Name of the run; an override that loads a checkpoint of this run is dropped.
            new_words: Further overrides.
            removed_keys: Keys whose overrides are left out.
            value_by_key: Values that users do not type: `run_name`, and the checkpoint to start from.

        Raises:
            ConfigurationError: A secret was not recorded, or there is no override of a key to leave out.
        """
        replaced_keys = {key_of(word) for word in new_words} | value_by_key.keys() | set(removed_keys)
        if missing_keys := set(removed_keys) - {key_of(word) for word in self.overrides}:
            known_keys = ", ".join(map(key_of, self.overrides)) or "none"
            raise ConfigurationError(
                f"--without {min(missing_keys)}: the run has no such override (it has: {known_keys})"
            )
        words = [word for word in self.overrides if key_of(word) not in replaced_keys and not _is_own(word, own_name)]
        if hidden := next((word for word in words if HIDDEN in word), None):
            example = shlex.quote(hidden.replace(HIDDEN, "${oc.env:MY_SECRET}"))
            raise ConfigurationError(f"{hidden}: secrets are not recorded; type it again, as in {example}")
        free_words = [word for word in new_words if key_of(word) not in value_by_key]
        return [*words, *free_words, *(override(key, value) for key, value in value_by_key.items())]

    def resuming(self, run_name: str) -> list[str]:
        """Return its overrides for the next attempt of the run that has this name now."""
        return _named(self.overrides, run_name)

    def command(self, overrides: Sequence[str]) -> list[str]:
        """Return the command that starts it."""
        return [*self.words, *overrides]

    def line(self, overrides: Sequence[str]) -> str:
        """Return the command for a shell."""
        return f"cd {shlex.quote(str(self.directory))} && {shlex.join(self.command(overrides))}"

    def require_consent(self, overrides: Sequence[str], *, origin: str, confirm: "Confirm | None") -> None:
        """Let the user confirm the command, unless it is signed.

        Args:
            overrides: The overrides.
            origin: The run that it was read from.
            confirm: Asks the user, and raises if the answer is no; None: unsigned commands are refused.

        Raises:
            ConfigurationError: The command is unsigned and not confirmed.
        """
        if self.is_signed:
            return
        if confirm is None:
            raise ConfigurationError(
                f"{origin} stores a command that your key ({key_source()}) has not signed for this directory; pass "
                f"confirm to allow it: {self.line(overrides)}"
            )
        confirm(self.command(overrides), self.directory, origin)

    def dry_run(self, overrides: Sequence[str], stage: Stage, *, purpose: str) -> Rehearsed:
        """Start it up to a stage, and return its report; nothing that it writes remains.

        Args:
            overrides: The overrides.
            stage: The last stage.
            purpose: The request of the user, for the message.

        Raises:
            ConfigurationError: It does not accept the overrides, or does not reach the stage.
            CheckpointError: The checkpoint does not fit.
        """
        with tempfile.TemporaryDirectory(prefix="trieye_rehearsal_") as scratch:
            report_path = Path(scratch) / "report.json"
            words = [] if stage == "config" else [*_NO_OUTPUT, override("persistence.root_data_dir", f"{scratch}/root")]
            environment = {**environment_in(self.directory), VARIABLE: f"{stage}:{report_path}"}
            try:
                process = subprocess.run(
                    self.command([*overrides, *words]), cwd=self.directory, env=environment, capture_output=True,
                    text=True, errors="replace", stdin=subprocess.DEVNULL, check=False,
                )  # fmt: skip
            except OSError as error:
                raise ConfigurationError(f"{purpose}: {self.words[0]} cannot be started: {error.strerror}") from error
            with suppress(OSError, ValidationError):
                return Rehearsed.model_validate_json(report_path.read_bytes())
        output = _end_of(process.stderr.strip() or process.stdout.strip())
        if stage == "restore":
            raise CheckpointError(f"{purpose}: no run was created: the checkpoint does not fit:\n{output}")
        ended = f"; it ended without a run: {shlex.join(self.command(overrides))}"
        reason = f":\n{output}" if process.returncode else ended
        raise ConfigurationError(f"{purpose}: no run was created: the program rejected the config{reason}")

    def start(self, overrides: Sequence[str], *, stdout: TextIO | None = None) -> int:
        """Run it in the foreground, and return its exit code; `stdout` receives its standard output."""
        return run_program(self.command(overrides), self.directory, stdout=stdout)


Confirm = Callable[[Sequence[str], Path, str], None]
"""Asks the user about a command, its working directory and the run that stores it; raises if the answer is no."""


def override(key: str, value: str) -> str:
    """Return an override of a key, with the quotes that Hydra needs."""
    from trieye.config.hydra.axes import quoted  # with Hydra

    return f"{key}={value if _PLAIN.fullmatch(value) else quoted(value)}"


def command_to_resume(run: StoredRun, provenance: Provenance) -> list[str]:
    """Return the command for the next attempt of a run, with its present name if an override can set it."""
    words, overrides = _without_overrides(provenance.command), provenance.overrides
    if not words or not _takes_name(run, provenance):
        return provenance.command
    with suppress(ConfigurationError):  # a damaged configs.json
        overrides = current_overrides(overrides, run.config)
    return [*words, *_named(overrides, run.name)]


def _takes_name(run: StoredRun, provenance: Provenance, *, is_job: bool = False) -> bool:
    """Return whether an override can set `run_name`; a program whose keys were not recorded may use Hydra."""
    if provenance.program_keys:
        return RUN_NAME in provenance.program_keys
    return is_job or bool(provenance.overrides) or (run.run_dir / ".hydra").is_dir()


class LocatedProgram(NamedTuple):
    """The words of a command and its working directory.

    Attributes:
        words: The words.
        directory: The working directory.
        finds_run: Whether the run belongs to the project in this directory; else the command would start another run.
    """

    words: list[str]
    directory: Path
    finds_run: bool


def located_program(run: StoredRun, words: Sequence[str], started_in: Path) -> LocatedProgram | None:
    """Return a command of a run; None if it is gone.

    If the run was moved or copied with its program, this is the program next to the run, not the original one.

    Args:
        run: The run.
        words: The command of the run.
        started_in: The working directory of the command.
    """
    project = _new_project_of(run, started_in)
    moved_words = None if project is None else moved_program(words, started_in, project)
    if project is not None and moved_words is not None:
        return LocatedProgram(moved_words, project, finds_run=True)
    if not started_in.is_dir():
        return None
    run_dir = run.run_dir.resolve()
    finds_run = _recorded_dir(run, started_in).resolve() == run_dir or run_dir.is_relative_to(started_in.resolve())
    return LocatedProgram(list(words), started_in, finds_run)


def directory_of(config: Mapping[str, Any], working_dir: Path) -> Path:
    """Return the directory of the run that a program starts with a config.

    Args:
        config: The config.
        working_dir: Working directory of the program.

    Raises:
        ConfigurationError: An environment variable in `persistence.root_data_dir` is not set.
    """
    persistence = config["persistence"]
    root = Path(expanded("persistence.root_data_dir", str(persistence["root_data_dir"]))).expanduser()
    names = (config["app_name"], persistence["runs_dir_name"], config["run_name"])
    return Path(working_dir, root, *map(str, names))


def _named(overrides: Sequence[str], run_name: str) -> list[str]:
    return [*(word for word in overrides if key_of(word) != RUN_NAME), override(RUN_NAME, run_name)]


def _recorded_dir(run: StoredRun, started_in: Path) -> Path:
    """Return the directory of a run at its last start."""
    with suppress(ConfigurationError, KeyError):  # a damaged configs.json, or an environment variable that is not set
        return directory_of(run.config, started_in).with_name(run.name)
    return started_in


def _new_project_of(run: StoredRun, started_in: Path) -> Path | None:
    """Return the project that a run was moved or copied with; None if the run is where it was started, or alone."""
    run_dir, recorded_dir = run.run_dir.resolve(), _recorded_dir(run, started_in)
    return None if recorded_dir.resolve() == run_dir else project_of(run_dir, recorded_dir, started_in)


def _sweep_of(run: StoredRun, started_in: Path) -> SweepRecord | None:
    """Return the sweep of a run, first the one that was moved or copied with the run."""
    if run.record.group is None:
        return None
    directory, project = Path(run.record.group), _new_project_of(run, started_in)
    sweep_dirs = [directory]
    if project is not None and directory.is_relative_to(started_in):
        sweep_dirs.insert(0, project / directory.relative_to(started_in))
    for sweep_dir in sweep_dirs:
        with suppress(SerializationError):
            sweep = SweepRecord.read(sweep_dir)
            if sweep is not None and sweep.program:
                return sweep
    return None


def _without_overrides(command: Sequence[str]) -> list[str]:
    """Return the words of a command up to its program, and the flags that locate its configs."""
    index = 1
    while index < len(command) and command[index].startswith("-") and command[index] not in {"-m", "-c", "-"}:
        index += 2 if command[index] in _PYTHON_WITH_VALUE else 1
    if index >= len(command) or command[index] in {"-c", "-"}:
        return []
    num_leading, words_left = index + (2 if command[index] == "-m" else 1), iter(command)
    words = [next(words_left) for _ in range(num_leading)]
    for word in words_left:
        if word in _HYDRA_WITH_VALUE:
            words += [word, next(words_left, "")]
        elif word.startswith(tuple(f"{flag}=" for flag in _HYDRA_WITH_VALUE)):
            words.append(word)
    is_there = os.sep in words[0] and Path(words[0]).exists()
    return [words[0] if is_there else sys.executable, *words[1:]]


def key_of(word: str) -> str:
    """Return the key of an override as Hydra takes it."""
    return word.partition("=")[0].lstrip("+~").partition("@")[0] if "=" in word else word.lstrip("+~")


def _is_own(word: str, own_name: str) -> bool:
    key, _, value = word.partition("=")
    reference = checkpoint_reference(value.strip("'\"")) if key == LOAD else None
    return reference is not None and reference.run_name in {None, own_name}


def _end_of(output: str) -> str:
    """Return the error message of a program, or else its last lines."""
    output_before, error, text = f"\n{output}".rpartition("\nerror: ")
    return "\n".join((text if error else output_before or text).strip().splitlines()[-_MAX_LINES:])
