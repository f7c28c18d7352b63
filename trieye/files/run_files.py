"""RunFiles: the names of a run's files and directories, `checkpoint_step_`, `journal.db` and the like."""

import copy
import logging
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

from trieye.exceptions import ConfigurationError
from trieye.files.atomic import relink

if TYPE_CHECKING:
    from trieye.config import PersistenceConfig

logger = logging.getLogger(__name__)

CHECKPOINTS, BUFFERS = "checkpoints", "buffers"
"""Directories of the saved states in a run, where its config gives no others."""

CHECKPOINT_PREFIX, BUFFER_PREFIX, CRASH_PREFIX = "checkpoint_step_", "buffer_step_", "crash-"
"""What the name of a saved state begins with; its step follows."""

RUN_RECORD, CONFIGS, JOURNAL, HISTORY = "run.json", "configs.json", "journal.db", "history"
PRIVATE_MODE = 0o700


def step_in(name: str) -> int | None:
    """Return the step in the name of a saved state, also of a file of trieye 0.1.5, or None."""
    match = re.search(r"_step_(\d+)", name)
    return int(match[1]) if match else None


class RunFiles:
    """Every file name of a run, all absolute; making one creates nothing.

    Args:
        persist_config: Where the run lives.

    Attributes:
        root_data_dir: Directory of all apps.
        app_root_dir: Directory of the app.
        runs_root_dir: Directory of the app's runs.
        run_base_dir: Directory of the run.
        mlflow_dir: MLflow store of the app.
        checkpoint_dir: Checkpoints, one directory `checkpoint_step_<N>` each.
        buffer_dir: Buffers of the drop-in API, one directory `buffer_step_<N>` each.
        log_dir: Log files.
        tb_log_dir: TensorBoard event files.
        profile_dir: Profiles that user code writes.
        weights_dir: The newest weights, where `sync.transport` is `checkpoint`.
        config_path: The composed config as JSON.
        composed_config_path: The composed config as YAML.
        latest_checkpoint_path: Link to the newest checkpoint; for people, loading never trusts it.
        best_checkpoint_path: Link to the best checkpoint, likewise.
        default_buffer_path: Link to the newest buffer, likewise.
        run_record_path: Identity of the run.
        lock_path: Held while something writes to the run.
        hub_lock_path: Held by the hub while it writes to the journal.
        journal_path: The journal: what was accepted, and how far each sink is.
        history_dir: Points and operations of the run, as Parquet.

    Raises:
        ConfigurationError: A name is not safe as the name of a directory.
    """

    def __init__(self, persist_config: "PersistenceConfig") -> None:
        self.persist_config = persist_config
        try:
            self.root_data_dir = persist_config._get_absolute_root()  # noqa: SLF001 - named by the drop-in API
            self.app_root_dir = persist_config.get_app_root_dir()
            self.runs_root_dir = persist_config.get_runs_root_dir()
            self.mlflow_dir = persist_config.get_mlflow_abs_path()
            self._name_parts(persist_config.get_run_base_dir())
        except ConfigurationError:
            raise
        except ValueError as error:  # a name that was assigned after validation
            raise ConfigurationError(str(error)) from error

    def at(self, run_dir: Path) -> Self:
        """Return the names of the files of another run, whose directory is `run_dir`."""
        other = copy.copy(self)
        other._name_parts(run_dir)  # noqa: SLF001 - its own class
        return other

    def check_not_above(self) -> None:
        """Refuse to begin a run that exists below a parent directory: the command was likely given in a subdirectory.

        Raises:
            ConfigurationError: It exists there.
        """
        record, given = self.run_record_path.relative_to(self.root_data_dir), self.persist_config.root_data_dir
        above = [] if self.run_record_path.is_file() else self.persist_config.roots_above()
        if (found := next((root / record for root in above if (root / record).is_file()), None)) is not None:
            raise ConfigurationError(
                f"run_name={self.run_base_dir.name}: this run exists in {found.parent}, and "
                f"persistence.root_data_dir={given} belongs to the working directory: start it where it was started, "
                "set persistence.root_data_dir to an absolute path, or choose another run_name"
            )

    def run_roots(self) -> list[Path]:
        """Return the directories in which the app's runs lie: that of this run first, then those below `resume_dirs`.

        Raises:
            ConfigurationError: One of `resume_dirs` does not exist.
        """
        roots = [self.runs_root_dir]
        for given, root in self.persist_config.get_resume_roots().items():
            if not root.is_dir():
                raise ConfigurationError(
                    f"persistence.resume_dirs={given}: there is no directory {root} in which to look for earlier runs"
                )
            roots.append(root / self.app_root_dir.name / self.runs_root_dir.name)
        return list(dict.fromkeys(roots))

    def directories_of(self, run_name: str) -> list[Path]:
        """Return where the run of that name lies, or would lie, in each of the `run_roots`.

        Raises:
            ConfigurationError: The name, which may come from inside a checkpoint, is not safe.
        """
        try:
            name = _safe("run_name", run_name)
        except ValueError as error:
            raise ConfigurationError(str(error)) from error
        return [root / name for root in self.run_roots()]

    def _name_parts(self, run_dir: Path) -> None:
        config, self.run_base_dir = self.persist_config, run_dir
        self.checkpoint_dir = self._inside("checkpoint_save_dir_name", config.checkpoint_save_dir_name)
        self.buffer_dir = self._inside("buffer_save_dir_name", config.buffer_save_dir_name)
        self.log_dir = self._inside("log_dir_name", config.log_dir_name)
        own = config.tensorboard_dir_name == "."
        self.tb_log_dir = run_dir if own else self._inside("tensorboard_dir_name", config.tensorboard_dir_name)
        self.profile_dir = self._inside("profile_dir_name", config.profile_dir_name)
        self.weights_dir = run_dir / "weights"
        self.config_path = self._inside("config_filename", config.config_filename)
        self.composed_config_path = run_dir / "config.yaml"
        self.latest_checkpoint_path = self.checkpoint_dir / config.latest_checkpoint_filename
        self.best_checkpoint_path = self.checkpoint_dir / config.best_checkpoint_filename
        self.default_buffer_path = self.buffer_dir / config.buffer_filename
        self.run_record_path = run_dir / RUN_RECORD
        self.lock_path = run_dir / "run.lock"
        self.hub_lock_path = run_dir / "hub.lock"
        self.journal_path = run_dir / JOURNAL
        self.history_dir = run_dir / HISTORY

    def _inside(self, key: str, name: str) -> Path:
        return self.run_base_dir / _safe(key, name)

    def create_run_directories(self) -> None:
        """Make the directories of the run; that of buffers only if buffers are saved.

        With `private` nobody else may enter that of the run.

        Raises:
            ConfigurationError: `root_data_dir` is a file, nothing can be written there, or a link leads out of it.
        """
        wanted = [self.mlflow_dir, self.checkpoint_dir, self.log_dir, self.tb_log_dir, self.profile_dir]
        self._make_run_base_dir()
        if self.persist_config.save_buffer:
            wanted.append(self.buffer_dir)
        for directory in wanted:
            try:
                directory.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise self._unusable(directory, error.strerror or str(error)) from error
        for directory in (self.run_base_dir, *wanted):
            if not os.access(directory, os.W_OK | os.X_OK):
                raise self._unusable(directory, "Permission denied")

    def _make_run_base_dir(self) -> None:
        try:
            self.runs_root_dir.mkdir(parents=True, exist_ok=True)
            self.run_base_dir.mkdir(exist_ok=True, mode=PRIVATE_MODE if self.persist_config.private else 0o777)
            if self.persist_config.private:  # it was there already, and open to others
                self.run_base_dir.chmod(PRIVATE_MODE)
        except OSError as error:
            raise self._unusable(self.run_base_dir, error.strerror or str(error)) from error
        self._check_links()

    def _check_links(self) -> None:
        directories = (self.checkpoint_dir, self.buffer_dir, self.log_dir, self.tb_log_dir, self.profile_dir)
        files = (self.journal_path, self.run_record_path, self.config_path, self.lock_path, self.hub_lock_path)
        root = self.root_data_dir.resolve()
        for path in (self.run_base_dir, *directories, self.history_dir, *files, *self._links_among(files)):
            if not path.resolve().is_relative_to(root):
                raise ConfigurationError(
                    f"{path} is a link to {path.resolve()}, which is outside of root_data_dir, {root}; "
                    "nothing is written there: remove the link, or let root_data_dir have room for all of the run"
                )

    def _links_among(self, files: Sequence[Path]) -> Iterator[Path]:
        """Yield the links in the place of what is written by name: event files, logs, what lies beside the journal."""
        names = tuple(path.name for path in files)
        for directory in (self.run_base_dir, self.log_dir, self.tb_log_dir, self.history_dir):
            for path in directory.iterdir() if directory.is_dir() else ():
                if path.is_symlink() and (directory != self.run_base_dir or path.name.startswith(names)):
                    yield path

    def get_checkpoint_path(self, step: int | None = None, is_latest: bool = False, is_best: bool = False) -> Path:
        """Return the directory of a step's checkpoint, or the link to the newest (the default) or best one."""
        if is_latest:
            return self.latest_checkpoint_path
        if is_best:
            return self.best_checkpoint_path
        return self.latest_checkpoint_path if step is None else self.checkpoint_dir / f"{CHECKPOINT_PREFIX}{step}"

    def get_buffer_path(self, step: int | None = None) -> Path:
        """Return the directory of a step's buffer, or the link to the newest one."""
        return self.default_buffer_path if step is None else self.buffer_dir / f"{BUFFER_PREFIX}{step}"

    def get_log_file_path(self) -> Path:
        """Return the run's log file."""
        return self.log_dir / f"{self.persist_config.run_name}_trieye.log"

    def get_output_log_path(self) -> Path:
        """Return the file of what the run's program printed."""
        return self.log_dir / "output.log"

    def update_checkpoint_links(self, step_checkpoint_path: Path, is_best: bool) -> None:
        """Point `latest`, and `best` if it is that, at a checkpoint."""
        self._link(self.latest_checkpoint_path, step_checkpoint_path)
        if is_best:
            self.update_best_link(step_checkpoint_path)

    def update_best_link(self, step_checkpoint_path: Path) -> None:
        """Point `best` at a checkpoint."""
        self._link(self.best_checkpoint_path, step_checkpoint_path)

    def update_buffer_link(self, step_buffer_path: Path) -> None:
        """Point the link to the newest buffer at a buffer."""
        self._link(self.default_buffer_path, step_buffer_path)

    def _link(self, link: Path, target: Path) -> None:
        if not target.exists():
            logger.warning("%s is not linked to: it does not exist", target)
            return
        try:
            relink(link, target)
        except OSError as error:  # a file system without links; nothing depends on them
            logger.warning("%s could not be linked to %s: %s", link, target.name, error.strerror or error)

    def _unusable(self, path: Path, reason: str) -> ConfigurationError:
        root = self.persist_config.root_data_dir
        return ConfigurationError(
            f"root_data_dir={root!r}: {path} cannot be written: {reason}; give a directory that this user may write to"
        )


def _safe(kind: str, name: str) -> str:
    from trieye.config.names import check_name  # here, for the command line takes names from above without pydantic

    return check_name(kind, name)
