"""PersistenceConfig: directories of a run, saving and retention of checkpoints, resuming, mirror, MLflow store."""

import os
import re
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PrivateAttr, ValidationInfo, computed_field, field_validator, model_validator

from trieye.config.base import Marker
from trieye.config.locations import check_mirror_url, check_tracking_uri, expanded, is_reference
from trieye.config.names import Name, check_name
from trieye.config.redaction import is_redacted, redacted, stands_for
from trieye.config.spellings import ModelOf015

_OWN_STORE = re.compile(r"sqlite:///.*/mlflow\.db", re.DOTALL)
_FILES_OF_A_RUN = re.compile(
    r"(run|hub)\.lock.*|journal\W.*|events\.out\..*|(run|configs|bench)\.json|config\.yaml"
    r"|artifacts|export|history|mirror|provenance|replay_server|weights"
)
_DIRECTORIES_IN_A_RUN = (
    "checkpoint_save_dir_name", "buffer_save_dir_name", "log_dir_name", "tensorboard_dir_name", "profile_dir_name",
)  # fmt: skip


def default_run_name() -> str:
    """Return `run_<date>_<time>` in local time."""
    return datetime.now().astimezone().strftime("run_%Y%m%d_%H%M%S")


def _with_environment_secrets(data: dict[Any, Any]) -> dict[Any, Any]:
    """Restore the password of a recorded tracking URI from the environment; redact the password of an invalid URL."""
    now = os.environ.get("MLFLOW_TRACKING_URI", "")
    checks = {"mlflow_tracking_uri": check_tracking_uri, "mirror": check_mirror_url}
    values = {
        key: now if str(key).lower() == "mlflow_tracking_uri" and is_redacted(uri) and stands_for(uri, now) else uri
        for key, uri in data.items()
    }
    for key in (key for key in checks.keys() & values.keys() if values[key] is not None):
        try:
            checks[key](str(values[key]))
        except ValueError:
            values[key] = redacted(values[key])
    return values


class PersistenceConfig(ModelOf015):
    """Directories of a run, saving and resuming.

    A relative `root_data_dir` refers to the working directory of the process that created this object, also in
    processes that it is sent to; the environment's `MLFLOW_TRACKING_URI` is read in the creating process, too. The
    password of a tracking URI that was recorded without it is restored from this variable. `$NAME` in `root_data_dir`
    is an environment variable.
    """

    spellings = (
        "ROOT_DATA_DIR", "APP_NAME", "RUN_NAME", "RUNS_DIR_NAME", "MLFLOW_DIR_NAME", "CHECKPOINT_SAVE_DIR_NAME",
        "BUFFER_SAVE_DIR_NAME", "LOG_DIR_NAME", "TENSORBOARD_DIR_NAME", "PROFILE_DIR_NAME",
        "LATEST_CHECKPOINT_FILENAME", "BEST_CHECKPOINT_FILENAME", "BUFFER_FILENAME", "CONFIG_FILENAME", "SAVE_BUFFER",
        "BUFFER_SAVE_FREQ_STEPS", "CHECKPOINT_SAVE_FREQ_STEPS", "AUTO_RESUME_LATEST", "LOAD_CHECKPOINT_PATH",
        "LOAD_BUFFER_PATH", "MLFLOW_TRACKING_URI",
    )  # fmt: skip

    root_data_dir: str = Field(
        default=".trieye_data",
        min_length=1,
        description="Directory of all apps and runs; `$NAME` inserts an environment variable.",
    )
    app_name: Annotated[Name, Marker(set_by="app_name")] = Field(
        default="default_app", description="Set by the key app_name of the whole config."
    )
    run_name: Annotated[Name, Marker(set_by="run_name")] = Field(
        default_factory=default_run_name, description="Set by the key run_name of the whole config."
    )
    runs_dir_name: Name = Field(default="runs", description="Directory of the runs, in the app directory.")
    mlflow_dir_name: Name = Field(default="mlruns", description="Directory of the MLflow store, in the app directory.")
    checkpoint_save_dir_name: Name = Field(default="checkpoints", description="Directory of checkpoints in a run.")
    buffer_save_dir_name: Name = Field(default="buffers", description="Directory of saved replay buffers in a run.")
    log_dir_name: Name = Field(default="logs", description="Directory of log files in a run.")
    tensorboard_dir_name: Name | Literal["."] = Field(
        default="tensorboard",
        description="Directory of event files in a run; `.` = the run directory itself, the default of "
        "trieye.Run and YAML, so that TensorBoard shows the run under its own name. A run that already has "
        "`tensorboard` continues to use it.",
    )
    profile_dir_name: Name = Field(default="profile_data", description="Directory of profiles in a run.")
    latest_checkpoint_filename: Name = Field(default="latest.pkl", description="Link to the latest checkpoint.")
    best_checkpoint_filename: Name = Field(default="best.pkl", description="Link to the best checkpoint.")
    buffer_filename: Name = Field(default="buffer.pkl", description="Link to the latest saved replay buffer.")
    config_filename: Name = Field(
        default="configs.json",
        description="File of the composed config in a run; another name adds a copy of configs.json.",
    )
    log_output: bool = Field(
        default=True, description="Copy the program's stdout and stderr to logs/output.log while the run is open."
    )
    save_buffer: bool = Field(
        default=True,
        description="Save and restore the replay buffer; without it, a resumed run collects "
        "agent.learning_starts environment steps into an empty buffer before its next update.",
    )
    buffer_save_freq_steps: int = Field(
        default=1000, ge=0, description="Steps (unit: loop.axis) between saves of the buffer; 0 = never."
    )
    checkpoint_save_freq_steps: int = Field(
        default=1000, ge=0, description="Steps (unit: loop.axis) between checkpoints; 0 = only at the end."
    )
    keep_last: int = Field(default=0, ge=0, description="Number of latest checkpoints to retain; 0 = all.")
    keep_best: int = Field(
        default=1,
        ge=0,
        description="Number of best checkpoints by loop.objective to retain in addition to keep_last and "
        "keep_every_steps.",
    )
    keep_every_steps: int = Field(
        default=0, ge=0, description="Retain every checkpoint at a multiple of this step; 0 = none."
    )
    save_policy: Literal["queue", "coalesce"] = Field(
        default="queue",
        description="What to do with a save while two are in progress: queue = wait for the older one; "
        "coalesce = replace the one that has not started.",
    )
    checksum: Literal["crc32", "sha256"] = Field(
        default="crc32",
        description="Checksum that detects damaged checkpoints: crc32 = CRC-32; sha256 = CRC-32 and SHA-256, at half "
        "the speed.",
    )
    durability: Literal["process", "interval", "always"] = Field(
        default="process",
        description="What accepted events survive: process = crashes of any process (a power failure costs logged "
        "values of about 30 s); interval = also a power failure, which costs about 0.3 s; always = the same with "
        "about 0.2 s, but logging waits for the disk.",
    )
    damaged_replay: Literal["partial", "refuse"] = Field(
        default="partial",
        description="Resume from a checkpoint with a damaged replay buffer: partial = restore the intact rows "
        "and report the lost ones; refuse = fail.",
    )
    auto_resume_latest: bool = Field(
        default=True, description="Start a new run from the latest checkpoint of the app's newest compatible run."
    )
    load_checkpoint_path: str | None = Field(
        default=None,
        description="Checkpoint to start from: a path, or `first_try:best`, `first_try:latest` or "
        "`first_try:step:1200` (`first_try:crash-1200`: its state at an error) of another run of the app; null = none. "
        "`best`, `latest` or `step:1200` alone move the run back to its own checkpoint, once: later starts with the "
        "same value resume from the newest one.",
    )
    load_buffer_path: str | None = Field(
        default=None,
        description="Saved replay buffer to start from, for programs written for trieye 0.1.5, which save it "
        "separately; null = none.",
    )
    resume_dirs: list[str] = Field(
        default_factory=list,
        description="Additional data directories to search for earlier runs of the app; they are only read.",
    )
    private: bool = Field(default=False, description="Restrict the run directory to its owner (mode 700).")
    log_checkpoints: Literal["none", "best", "all"] = Field(
        default="none",
        description="Checkpoints to upload to MLflow and other trackers as artifacts: none = no checkpoint; best = "
        "each checkpoint that is the best so far; all = each checkpoint.",
    )
    log_replay: bool = Field(default=False, description="Include replay buffers in the checkpoints of log_checkpoints.")
    mirror: str | None = Field(
        default=None,
        description="Copy checkpoints, journal and history to s3://bucket/prefix, gs://bucket/prefix or "
        "file:///directory, from which a machine without the run directory restores the run; null = no copy.",
    )
    mirror_interval_s: float = Field(
        default=60.0, ge=1, le=86_400, description="Seconds between two uploads of the journal to the mirror."
    )
    mirror_close_timeout_s: float = Field(
        default=10.0,
        ge=0,
        le=86_400,
        description="Seconds without progress that the end of a run waits for its mirror; after a signal, in total.",
    )
    mlflow_tracking_uri: str | None = Field(
        default=None,
        description="MLflow store or server; null = the environment's MLFLOW_TRACKING_URI, else SQLite in the "
        "app directory.",
    )
    _made_in: Path = PrivateAttr(default_factory=Path.cwd)
    _uri_when_made: str | None = PrivateAttr(default_factory=lambda: os.environ.get("MLFLOW_TRACKING_URI"))

    @field_validator(*_DIRECTORIES_IN_A_RUN, "config_filename")
    @classmethod
    def _name_is_free(cls, name: str, info: ValidationInfo) -> str:
        is_file = info.field_name == "config_filename"
        if _FILES_OF_A_RUN.fullmatch(name) and not (is_file and name == "configs.json"):
            raise ValueError("each run has a file or directory of this name; choose another name")
        directories = [key for key in _DIRECTORIES_IN_A_RUN if info.data.get(key) == name]
        if is_file and directories:  # directories may share a name
            raise ValueError(f"{directories[0]} has the same value; choose another name")
        return name

    @field_validator("mirror")
    @classmethod
    def _mirror_is_valid(cls, url: str | None) -> str | None:
        return check_mirror_url(url) if url else None

    @field_validator("mlflow_tracking_uri")
    @classmethod
    def _uri_has_a_scheme(cls, uri: str | None) -> str | None:
        return check_tracking_uri(uri) if uri else uri

    @model_validator(mode="before")
    @classmethod
    def _drop_computed_uri(cls, data: Any) -> Any:
        """Drop the computed URI of a dumped config: it is computed again, for the directory of the new config."""
        data = _with_environment_secrets(data) if isinstance(data, dict) else data
        if not isinstance(data, dict) or data.get("MLFLOW_TRACKING_URI") is None:
            return data
        uri = str(data["MLFLOW_TRACKING_URI"])
        fields = {key: value for key, value in data.items() if key != "MLFLOW_TRACKING_URI"}
        configured_uri = fields.get("mlflow_tracking_uri")
        is_dump = "mlflow_tracking_uri" in fields and configured_uri is None
        if is_dump and (uri == os.environ.get("MLFLOW_TRACKING_URI") or _OWN_STORE.fullmatch(uri)):
            return fields
        return {**fields, "mlflow_tracking_uri": configured_uri or uri} if "mlflow_tracking_uri" in fields else data

    @computed_field(description="The MLflow store in use, as `mlflow ui --backend-store-uri` takes it.")  # type: ignore[prop-decorator]
    @property
    def MLFLOW_TRACKING_URI(self) -> str:  # noqa: N802 - the name in trieye 0.1.5
        """The MLflow store in use, as `mlflow ui --backend-store-uri` takes it."""
        # the value at construction takes precedence: an actor on another machine has another environment
        uri = self.mlflow_tracking_uri or self._uri_when_made or os.environ.get("MLFLOW_TRACKING_URI")
        return uri or f"sqlite:///{self.get_mlflow_abs_path() / 'mlflow.db'}"

    def get_app_root_dir(self) -> Path:
        """Return the absolute directory of the app; nothing is created."""
        return self._get_absolute_root() / check_name("app_name", self.app_name)

    def get_runs_root_dir(self) -> Path:
        """Return the absolute directory of the app's runs; nothing is created."""
        return self.get_app_root_dir() / check_name("runs_dir_name", self.runs_dir_name)

    def get_run_base_dir(self) -> Path:
        """Return the absolute directory of the run; nothing is created."""
        return self.get_runs_root_dir() / check_name("run_name", self.run_name)

    def get_mlflow_abs_path(self) -> Path:
        """Return the absolute directory of the app's MLflow store; nothing is created."""
        return self.get_app_root_dir() / check_name("mlflow_dir_name", self.mlflow_dir_name)

    def get_resume_roots(self) -> dict[str, Path]:
        """Return the absolute directories of `resume_dirs`, by the configured path; nothing is created."""
        return {path: self._absolute("persistence.resume_dirs", path) for path in self.resume_dirs}

    def anchored(self, working_dir: Path) -> Self:
        """Return a copy whose relative paths refer to `working_dir` in every process."""
        paths = {
            name: str(working_dir / os.path.expanduser(path))  # noqa: PTH111 - Path raises for an unknown user
            for name in ("load_checkpoint_path", "load_buffer_path")
            if (path := getattr(self, name)) is not None and not is_reference(name, path)
        }
        copy = self.model_copy(update=paths)
        copy._made_in = working_dir  # noqa: SLF001 - its own class
        return copy

    def roots_above(self) -> list[Path]:
        """Return the directories that a relative `root_data_dir` denotes below each parent of the working directory."""
        root = Path(expanded("persistence.root_data_dir", self.root_data_dir)).expanduser()
        return [] if root.is_absolute() else [parent / root for parent in Path(self._made_in).parents]

    def _get_absolute_root(self) -> Path:
        return self._absolute("persistence.root_data_dir", self.root_data_dir)

    def _absolute(self, key: str, directory: str) -> Path:
        path = Path(expanded(key, directory)).expanduser()
        return Path(os.path.abspath(self._made_in / path))  # noqa: PTH100 - links are not resolved
