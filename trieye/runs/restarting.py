"""Start runs like stored ones: `rerun` from the beginning, `fork` from a checkpoint."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trieye.checkpoints.choose import named_checkpoint
from trieye.checkpoints.directory import peek
from trieye.checkpoints.store import CheckpointEntry
from trieye.config.loop import LoopConfig
from trieye.config.names import check_name
from trieye.exceptions import ConfigurationError, SerializationError
from trieye.experiment.finished import TrainingProgress
from trieye.files.run_files import RunFiles
from trieye.mirror.restore import has_run
from trieye.process.lock import is_alive
from trieye.run.provenance import sources_in
from trieye.runs.comparing import Divergence
from trieye.runs.config import config_of
from trieye.runs.finding import RunReference, get
from trieye.runs.program import LOAD, RUN_NAME, Confirm, Program, directory_of, key_of, override
from trieye.runs.stored_run import StoredRun


@dataclass(frozen=True)
class RestartPlan:
    """A run that is about to be started by the program of a stored one.

    Attributes:
        source: The stored run.
        run_dir: Directory of the new run.
        program: The program.
        overrides: The overrides of the new run.
        divergence: Differences to the stored run in config, commit and packages.
        checkpoint: The checkpoint that a fork starts from; None for a rerun.
        typed_overrides: The overrides that replace or extend those of the stored run.
        mirror_url: URL of the mirror of the new run; None without a mirror.
    """

    source: StoredRun
    run_dir: Path
    program: Program
    overrides: list[str]
    divergence: Divergence
    checkpoint: CheckpointEntry | None = None
    typed_overrides: Sequence[str] = ()
    mirror_url: str | None = None

    @property
    def line(self) -> str:
        """The command for a shell."""
        return self.program.line(self.overrides)

    def check_fit(self) -> None:
        """Start the program once up to the restore, to see that the checkpoint fits.

        Raises:
            CheckpointError: It does not.
        """
        if self.checkpoint is not None:
            path = override(LOAD, str(self.checkpoint.path))
            purpose = f"fork of {self.source} at step {self.checkpoint.step}"
            self.program.dry_run([*self.overrides[:-1], path], "restore", purpose=purpose)

    @contextmanager
    def reserved(self) -> Iterator["RestartPlan"]:
        """Create the directory of the new run, so that no other restart uses its name.

        Yields:
            The plan, with the next free name if another restart took a name that was not typed.

        Raises:
            ConfigurationError: The typed name is taken, the directory cannot be created, or the mirror of the new run
                cannot be reached.
        """
        plan = self
        while _is_mirrored(plan.run_dir, plan.mirror_url) or not _is_created(plan.run_dir):
            plan = _renamed(plan)
        try:
            yield plan
        finally:
            with suppress(OSError):  # the program has used it
                plan.run_dir.rmdir()

    def start(self) -> int:
        """Run the program in the foreground, and return its exit code; see `reserved` for the name of the run."""
        with self.reserved() as plan:
            return plan.program.start(plan.overrides)


def rerun(
    run: RunReference,
    overrides: Sequence[str] = (),
    *,
    without: Sequence[str] = (),
    root: Path | None = None,
    confirm: Confirm | None = None,
) -> int:
    """Start a run like a stored one, in the foreground, and return the exit code of its program.

    The program starts in the same directory with the same overrides, and composes its current config.

    Args:
        run: The run, its directory or its name.
        overrides: Overrides of the new run, which replace inherited ones; its name is `<run>_rerun` by default.
        without: Keys whose overrides are left out.
        root: Directory of all apps; None: the directories of the project around the working directory.
        confirm: Asks whether to run a stored command that this user's key does not sign; None refuses it.

    Raises:
        ConfigurationError: There is no such run, its program cannot be started again, its command was not confirmed, a
            typed name is taken, or the mirror of the new run cannot be reached.
    """
    return plan_rerun(run, overrides, without=without, root=root, confirm=confirm).start()


def fork(
    run: RunReference,
    overrides: Sequence[str] = (),
    *,
    checkpoint: str = "latest",
    without: Sequence[str] = (),
    root: Path | None = None,
    confirm: Confirm | None = None,
) -> int:
    """Start a new run from a checkpoint of a stored one, and return the exit code of its program.

    Args:
        run: The run, its directory or its name.
        overrides: Overrides of the new run, which replace inherited ones; its name is `<run>_fork` by default.
        checkpoint: The checkpoint: `best`, `latest` or `step:<N>`.
        without: Keys whose overrides are left out.
        root: Directory of all apps; None: the directories of the project around the working directory.
        confirm: Asks whether to run a stored command that this user's key does not sign; None refuses it.

    Raises:
        ConfigurationError: As `rerun`; or there is no such checkpoint, or the run would be over at once.
        CheckpointError: The checkpoint is damaged or does not fit.
    """
    restart = plan_fork(run, overrides, checkpoint=checkpoint, without=without, root=root, confirm=confirm)
    restart.check_fit()
    return restart.start()


def plan_rerun(
    run: RunReference,
    overrides: Sequence[str] = (),
    *,
    without: Sequence[str] = (),
    root: Path | None = None,
    confirm: Confirm | None = None,
) -> RestartPlan:
    """Return what `rerun` would start; its program is started for a dry run only. See `rerun` for the arguments."""
    source = get(run, root=root)
    value_by_key = {RUN_NAME: _new_name(source.run_dir, overrides, "rerun")}
    return _plan(source, overrides, without, value_by_key, confirm, purpose=f"rerun of {source}")


def plan_fork(
    run: RunReference,
    overrides: Sequence[str] = (),
    *,
    checkpoint: str = "latest",
    without: Sequence[str] = (),
    root: Path | None = None,
    confirm: Confirm | None = None,
) -> RestartPlan:
    """Return what `fork` would start; its program is started for a dry run only. See `fork` for the arguments."""
    source = get(run, root=root)
    purpose = f"fork of {source} --checkpoint {checkpoint}"
    if any(word.lstrip("+~").startswith(LOAD) for word in overrides):
        raise ConfigurationError(f"{LOAD}: a fork starts from the checkpoint that --checkpoint names")
    entry = named_checkpoint(RunFiles(config_of(source.run_dir).persistence), checkpoint, option=purpose)
    value_by_key = {RUN_NAME: _new_name(source.run_dir, overrides, "fork"), LOAD: str(entry.path)}
    return _plan(source, overrides, without, value_by_key, confirm, purpose=purpose, checkpoint=entry)


def _plan(
    source: StoredRun,
    overrides: Sequence[str],
    without: Sequence[str],
    value_by_key: Mapping[str, str],
    confirm: Confirm | None,
    *,
    purpose: str,
    checkpoint: CheckpointEntry | None = None,
) -> RestartPlan:
    old_config = source.config
    program = Program.of(source)
    words = program.with_overrides(source.name, overrides, without, value_by_key)
    program.require_consent(words, origin=f"run {source}", confirm=confirm)
    report = program.dry_run(words, "config", purpose=purpose)
    run_dir = directory_of(report.config, program.directory)
    if checkpoint is not None:
        _check_unfinished(report.config, checkpoint, purpose)
        if run_dir.parent.resolve() == source.run_dir.parent:  # a name stays true when both runs are moved
            words[-1] = override(LOAD, f"{source.name}:step:{checkpoint.step}")
    # values that code added to the config of the run are not composed; the checkpoint is reported apart
    old_values = {key: value for key, value in old_config.items() if key in report.config}
    provenance = report.provenance
    if source.provenance is not None and provenance is not None:  # a dry run imports few modules
        sources = sources_in(program.directory, source.provenance.sources) | provenance.sources
        provenance = provenance.model_copy(update={"sources": sources})
    divergence = Divergence.between((old_values, source.provenance), (report.config, provenance), ignored=(LOAD,))
    mirror_url = report.config["persistence"]["mirror"]
    plan = RestartPlan(source, run_dir, program, words, divergence, checkpoint, overrides, mirror_url)
    return _renamed(plan) if _is_taken(run_dir, mirror_url) else plan


def _renamed(plan: RestartPlan) -> RestartPlan:
    """Return a plan with the next free name; a typed name that is taken is refused."""
    suffix = "rerun" if plan.checkpoint is None else "fork"
    name = _new_name(plan.run_dir.with_name(plan.source.name), plan.typed_overrides, suffix, mirror_url=plan.mirror_url)
    words = [override(RUN_NAME, name) if key_of(word) == RUN_NAME else word for word in plan.overrides]
    return replace(plan, run_dir=plan.run_dir.with_name(name), overrides=words)


def _is_created(run_dir: Path) -> bool:
    """Create a directory, and return False if it exists."""
    try:
        run_dir.parent.mkdir(parents=True, exist_ok=True)
        run_dir.mkdir()
    except OSError as error:
        if run_dir.exists():
            return False
        raise ConfigurationError(f"{run_dir} cannot be created: {error.strerror}") from error
    return True


def _is_taken(run_dir: Path, mirror_url: str | None) -> bool:
    return run_dir.exists() or _is_mirrored(run_dir, mirror_url)


def _is_mirrored(run_dir: Path, mirror_url: str | None) -> bool:
    """Return whether a program that starts in a new directory would restore and resume a run of the mirror."""
    return mirror_url is not None and has_run(mirror_url, run_dir.parents[1].name, run_dir.name)


def _new_name(source_dir: Path, overrides: Sequence[str], suffix: str, *, mirror_url: str | None = None) -> str:
    """Return the name of a run next to `source_dir`: the typed name, or the name of that directory with a suffix."""
    typed_name = next(
        (word.partition("=")[2].strip("'\"") for word in reversed(overrides) if key_of(word) == RUN_NAME), None
    )
    runs = source_dir.parent
    if typed_name is not None:
        check_name(RUN_NAME, typed_name)
        _check_free(runs / typed_name, mirror_url)
        return typed_name
    names = (f"{source_dir.name}_{suffix}{number}" for number in ("", *(f"_{count}" for count in range(2, 10_000))))
    return next(name for name in names if not _is_taken(runs / name, mirror_url))


def _check_free(run_dir: Path, mirror_url: str | None) -> None:
    if not _is_taken(run_dir, mirror_url):
        return
    state, resume = "" if run_dir.exists() else f" in the mirror {mirror_url}", ""
    if is_alive(run_dir):
        state = " and is still running"
    else:
        with suppress(ConfigurationError, SerializationError):
            program = Program.of(StoredRun.read(run_dir))
            resume = f"; to resume it: {program.line(program.resuming(run_dir.name))}"
    raise ConfigurationError(f"run_name={run_dir.name}: this run already exists{state}; choose another name{resume}")


def _check_unfinished(config: Mapping[str, Any], checkpoint: CheckpointEntry, purpose: str) -> None:
    """Refuse a fork that would be over at once."""
    try:
        progress = TrainingProgress(**{**peek(checkpoint.path, "objects", "loop"), "best": None})
    except (SerializationError, TypeError):  # the program has another loop
        return
    limits = LoopConfig.model_validate(config["loop"])
    reason = progress.reason_to_stop(limits, progress.counted()[limits.axis] or checkpoint.step)
    if reason is not None:
        raise ConfigurationError(
            f"{purpose}: it would be over at once, since its checkpoint has {reason}; raise that limit"
        )
