"""RunRecord: identity and attempts of a run in `run.json`, its owner directory, and the earlier runs of an app."""

import logging
import re
import time
import uuid
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from typing_extensions import TypedDict  # required by pydantic before Python 3.12

from trieye.config.names import Name
from trieye.exceptions import ConfigurationError, SerializationError
from trieye.files.atomic import write_atomic
from trieye.files.owner import Owner
from trieye.files.run_files import RUN_RECORD, RunFiles

logger = logging.getLogger(__name__)

_DATE_IN_NAME = re.compile(r"\d{8}_\d{6}")

MAX_EARLIER_FORKS = 20
"""Maximum number of earlier fork points in a record: pydantic cannot read JSON of more than 199 nested objects."""


RunStatus = Literal["RUNNING", "FINISHED", "FAILED", "KILLED"]


class MetricSummary(TypedDict):
    """Summary of a metric: last value, extremes, and the step of the last value."""

    last: float
    min: float
    max: float
    step: int


class ForkPoint(BaseModel):
    """The checkpoint of another run that a run was forked from; the record outlives that run.

    Attributes:
        app_name: App of the other run.
        run_name: Name of the other run.
        run_id: Identity of the other run; None for a run of trieye 0.1.5.
        mlflow_run_id: MLflow run of the other run.
        step: Global step of the checkpoint; None for a 0.1.5 file that records it only in its content.
        objective: Objective of the checkpoint.
        checkpoint: Path of the checkpoint at the time of the fork.
        before: The checkpoint that the other run was forked from, with at most `MAX_EARLIER_FORKS` fork points in all.
    """

    model_config = ConfigDict(extra="allow")

    app_name: str
    run_name: str
    run_id: str | None = None
    mlflow_run_id: str | None = None
    step: int | None = None
    objective: float | None = None
    checkpoint: str
    before: "ForkPoint | None" = None

    @field_validator("before")
    @classmethod
    def _shorten(cls, before: "ForkPoint | None") -> "ForkPoint | None":
        return None if before is None else before._newest(MAX_EARLIER_FORKS)  # noqa: SLF001 - its own class

    def _newest(self, num: int) -> "ForkPoint":
        """Return a copy with at most `num` fork points, this one included."""
        before = None if self.before is None or num == 1 else self.before._newest(num - 1)  # noqa: SLF001 - its own class
        return self.model_copy(update={"before": before})

    @property
    def name(self) -> str:
        """App, run and step: `agents/first@1200`."""
        return f"{self.app_name}/{self.run_name}" + ("" if self.step is None else f"@{self.step}")

    @property
    def line(self) -> str:
        """The name, followed by the names of earlier fork points."""
        return self.name if self.before is None else f"{self.name}, which was forked from {self.before.line}"

    def tags(self) -> dict[str, str]:
        """Return tags for sinks."""
        tags = {"trieye.forked_from": self.name, "trieye.forked_from_run_id": self.run_id}
        tags["trieye.forked_from_mlflow_run_id"] = self.mlflow_run_id
        return {name: text for name, text in tags.items() if text}


class MirrorIdentity(BaseModel):
    """The name of a run in its mirror, and the owner's token in the states of that mirror."""

    model_config = ConfigDict(extra="allow", frozen=True)

    app_name: Name
    run_name: Name
    token: str


class RunRecord(BaseModel):
    """Identity of a run across its attempts; all times are Unix seconds.

    Attributes:
        attempt: Number of the current attempt; 1 for the first start.
        created: Time of the first start.
        started: Start of the current attempt.
        ended: End of the current attempt; None while it runs.
        resumed_from: Source of the attempt's state, such as the path of a checkpoint.
        status_before: Status of the previous attempt; RUNNING if it was killed.
        went_back_to: The `load_checkpoint_path` of an attempt that went back to an earlier checkpoint of this run; None
            after a restore without that setting.
        went_back_in: Number of that attempt.
        forked_from: The checkpoint of another run that this run was forked from; None if it started at step 0.
        config_hash: Hash of the config values that must match for a checkpoint to fit.
        group: The sweep of the run.
        job: Index of its job in the sweep; None if no job of Hydra started the run.
        tags: Tags of the run.
        params: Parameters recorded in addition to the config, as text.
        git_sha: Commit of the code.
        axis: Unit of the steps, `loop.axis`.
        summary: Summaries of the metrics.
        owner: The directory that owns the MLflow run and the mirror; None until an attempt starts in this directory,
            for example after a restore from the mirror.
        former_mirrors: Mirrors of the run under its other names; deleting the run deletes them too.
    """

    # newer versions may add fields, and older versions must still be able to read the identity
    model_config = ConfigDict(extra="allow", validate_assignment=True)

    run_id: str = Field(default_factory=lambda: uuid.uuid4().hex, min_length=1)
    app_name: Name
    run_name: Name
    mlflow_run_id: str | None = None
    attempt: int = Field(default=1, ge=1)
    status: RunStatus = "RUNNING"
    created: float = Field(default_factory=time.time)
    started: float = Field(default_factory=time.time)
    ended: float | None = None
    resumed_from: str | None = None
    status_before: RunStatus | None = None
    went_back_to: str | None = None
    went_back_in: int | None = None
    forked_from: ForkPoint | None = None
    config_hash: str | None = None
    group: str | None = None
    job: int | None = None
    tags: dict[str, str] = Field(default_factory=dict)
    params: dict[str, str] = Field(default_factory=dict)
    git_sha: str | None = None
    axis: str = "step"
    summary: dict[str, MetricSummary] = Field(default_factory=dict)
    owner: Owner | None = None
    former_mirrors: list[MirrorIdentity] = Field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Return the record in a file, or None if the file does not exist.

        Raises:
            SerializationError: The file exists and cannot be read; a new identity would split the run in two.
        """
        try:
            return cls.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            if isinstance(error, NotADirectoryError):
                raise SerializationError(f"{path.parent} is not a directory, so it contains no run") from error
            reason = error.strerror if isinstance(error, OSError) else "it is not a complete run record"
            raise SerializationError(
                f"{path}, the identity of the run, cannot be read: {reason}; restore it from a backup, or delete it to "
                "give the run a new identity (its earlier curves then stay with the old one)"
            ) from error

    def save(self, path: Path) -> None:
        """Write the record atomically.

        Raises:
            SerializationError: The file cannot be written.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, self.model_dump_json(indent=2).encode() + b"\n")
        except OSError as error:
            raise SerializationError(f"{path} cannot be written: {error.strerror or error}") from error

    def copy_of(self, run_dir: Path) -> Path | None:
        """Return the directory that `run_dir`, which contains this record, was copied from; None if none is found."""
        if self.owner is None or self.owner.is_at(run_dir, is_path_free=False):
            return None
        for original in filter(None, (Path(self.owner.path), self.owner.renamed())):
            try:
                record = RunRecord.read(original / RUN_RECORD)
                if record is not None and record.run_id == self.run_id:
                    return None if original.samefile(run_dir) else original
            except (OSError, SerializationError):
                continue
        return None

    @property
    def mirror(self) -> MirrorIdentity | None:
        """Where the latest attempt is mirrored, if `persistence.mirror` is set; None without an owner."""
        if self.owner is None:
            return None
        return MirrorIdentity(app_name=self.app_name, run_name=self.run_name, token=self.owner.token)

    def refusal(self, run_dir: Path) -> str | None:
        """Return why `run_dir`, which contains this record, does not own MLflow run and mirror; None if it does."""
        if self.owner is None:
            return f"its {RUN_RECORD} does not record which directory owns them"
        original = self.copy_of(run_dir)
        if original is not None:
            return f"it is a copy of {original}, which owns them"
        if self.owner.is_at(run_dir, is_path_free=True):
            return None
        return f"its {RUN_RECORD} names {self.owner.path} on {self.owner.host} as their owner, which cannot be checked"

    def refusal_in(self, group: str | None, job: int | None) -> str | None:
        """Return why an attempt in a sweep (None: outside) and its job must not resume the run; None if it may."""
        if self.group == group and (job is None or self.job in (None, job)):
            return None
        of_job = "" if self.job is None else f"job {self.job} of "
        owner = "was started outside of a sweep" if self.group is None else f"belongs to {of_job}the sweep {self.group}"
        note = "" if job is None else f", and this is job {job}" + ("" if self.group == group else f" of {group}")
        example = f'run_name=f"{self.run_name}_{{HydraConfig.get().job.num}}"'
        return f"this run {owner}{note}; choose another run_name; jobs of a sweep omit it, or add the job: {example}"

    def has_shown(self, tensorboard_dir: Path) -> bool:
        """Return whether an attempt published points: it has an MLflow run, an event file, or a summary of its metrics.

        The journal records an attempt before this, so a run without a journal has lost it.
        """
        return self.mlflow_run_id is not None or any(tensorboard_dir.glob("*.trieye")) or bool(self.summary)

    def close(self, path: Path, status: RunStatus) -> None:
        """Write the record with the final status of this attempt."""
        self.status = status
        self.ended = time.time()
        self.save(path)


def open_run_record(path: Path, *, app_name: str, run_name: str, **details: Any) -> RunRecord:
    """Begin an attempt: create the record of a new run, or update the record of an existing run, and save it.

    Args:
        path: The run's `run.json`.
        app_name: Name of the app.
        run_name: Name of the run.
        details: `config_hash`, `group`, `job`, `tags`, `resumed_from`, `git_sha`, `axis`, `mlflow_run_id`; None leaves
            a value unchanged.

    Raises:
        ConfigurationError: The directory is a copy of the run, or may be one.
        SerializationError: The file exists and cannot be read, or cannot be written.
    """
    fields = {name: value for name, value in details.items() if value is not None}
    last_record = RunRecord.read(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if last_record is not None:
        require_owner(last_record, path.parent, accept_move=True)
    record = (
        _new(app_name, run_name, fields)
        if last_record is None
        else _next_attempt(last_record, app_name, run_name, fields)
    )
    if record.owner is None or not record.owner.is_exactly(path.parent):
        record.owner = Owner.of(path.parent)
    former_mirror = None if last_record is None else last_record.mirror
    if former_mirror is not None and former_mirror not in (record.mirror, *record.former_mirrors):
        record.former_mirrors = [*record.former_mirrors, former_mirror]
    record.save(path)
    return record


def require_owner(record: RunRecord, run_dir: Path, *, accept_move: bool = False) -> None:
    """Raise unless a directory owns the MLflow run and the mirror of its run.

    Args:
        record: The record in the directory's `run.json`.
        run_dir: The directory.
        accept_move: Also accept a directory if the recorded one is gone, as after a move to another file system.

    Raises:
        ConfigurationError: The directory is a copy, or may be one.
    """
    refusal = record.refusal(run_dir)
    if refusal is None or record.owner is None:
        return
    _refuse_copy(record, run_dir)
    if accept_move and record.owner.is_gone():
        return
    raise ConfigurationError(
        f"{run_dir} may be a copy of the run, and a copy must not write to its MLflow run and mirror: {refusal}; "
        f"if the run was moved here, run `trieye claim {run_dir}`"
    )


def claim(run_dir: Path) -> None:
    """Record a directory as the owner of the MLflow run and the mirror of its run; the caller holds the run's locks.

    Raises:
        ConfigurationError: The directory is a copy of a run that still exists, or is not a run.
        SerializationError: Its `run.json` cannot be read or written.
    """
    record = RunRecord.read(run_dir / RUN_RECORD)
    if record is None:
        raise ConfigurationError(f"{run_dir} is not a run directory: it has no {RUN_RECORD}")
    _refuse_copy(record, run_dir)
    if record.refusal(run_dir) is not None:
        record.owner = Owner.of(run_dir)
        record.save(run_dir / RUN_RECORD)


def _refuse_copy(record: RunRecord, run_dir: Path) -> None:
    original = record.copy_of(run_dir)
    if original is not None:
        raise ConfigurationError(
            f"{run_dir} is a copy of run {original.name!r} ({original}): both would write to the same MLflow run and "
            f"mirror; to start a separate run from this state, use `trieye fork {run_dir}`, or another run_name with "
            f"persistence.load_checkpoint_path={original.name}:latest"
        )


def _new(app_name: str, run_name: str, fields: Mapping[str, Any]) -> RunRecord:
    created_at = time.time()
    return RunRecord(app_name=app_name, run_name=run_name, created=created_at, started=created_at, **fields)


def _next_attempt(old_record: RunRecord, app_name: str, run_name: str, fields: Mapping[str, Any]) -> RunRecord:
    new_fields = {"resumed_from": None, **fields, "tags": {**old_record.tags, **fields.get("tags", {})}}
    attempt = {"attempt": old_record.attempt + 1, "status": "RUNNING", "started": time.time(), "ended": None}
    status_fields = {"status_before": old_record.status}
    names = {"app_name": app_name, "run_name": run_name}
    return RunRecord.model_validate({**old_record.model_dump(), **names, **attempt, **status_fields, **new_fields})


class EarlierRun(NamedTuple):
    """A run of the app that was created before another run, at a Unix time in seconds; no record in trieye 0.1.5."""

    directory: Path
    created: float
    record: RunRecord | None


def earlier_runs(files: RunFiles, run_name: str) -> list[EarlierRun]:
    """Return the other runs of the app that were created before `run_name`, the newest first.

    The runs are those in the same directory and below `resume_dirs`; there, a run of the same name is another run. The
    time of creation comes from `run.json`; a copy comes after its original. For a run of trieye 0.1.5, it comes
    from the date in its name, or else from the modification time of its directory.

    Raises:
        ConfigurationError: A directory of `resume_dirs` does not exist.
    """
    own_directory = files.runs_root_dir / run_name
    own_record = RunRecord.read(own_directory / RUN_RECORD)
    created_before = time.time() if own_record is None else own_record.created
    runs = [run for run in _other_runs(files, own_directory) if run.created <= created_before]

    def recency(run: EarlierRun) -> tuple[float, bool, str]:
        return run.created, run.record is None or run.record.copy_of(run.directory) is None, run.directory.name

    return sorted(runs, key=recency, reverse=True)


def _other_runs(files: RunFiles, own_directory: Path) -> Iterator[EarlierRun]:
    for root in files.run_roots():
        for path in root.iterdir() if root.is_dir() else ():
            if path.is_symlink() and not path.resolve().is_relative_to(root.resolve()):
                logger.warning("%s is ignored: it is a link to a directory outside %s", path, root)
            elif path != own_directory and path.name[0] != "." and path.is_dir():
                try:
                    record = RunRecord.read(path / RUN_RECORD)
                except SerializationError as error:
                    logger.warning("run %r is not considered for resuming: %s", path.name, error)
                else:
                    yield EarlierRun(path, _creation_time(path) if record is None else record.created, record)


def _creation_time(directory: Path) -> float:
    for text in _DATE_IN_NAME.findall(directory.name):
        try:
            return datetime.strptime(text, "%Y%m%d_%H%M%S").astimezone().timestamp()
        except ValueError:
            continue
    return directory.stat().st_mtime
