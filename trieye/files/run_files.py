"""RunFiles: the names of a run's files and directories, such as `checkpoint_step_<N>` and `journal.db`."""

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
"""Default directories of checkpoints and buffers in a run."""

CHECKPOINT_PREFIX, BUFFER_PREFIX, CRASH_PREFIX = "checkpoint_step_", "buffer_step_", "crash-"
"""Prefixes of checkpoint and buffer names; the step follows."""

RUN_RECORD, CONFIGS, JOURNAL, HISTORY = "run.json", "configs.json", "journal.db", "history"
PRIVATE_MODE = 0o700


def step_in(name: str) -> int | None:
    """Return the step in the name of a checkpoint or buffer, including files of trieye 0.1.5; None without a step."""
    match = re.search(r"_step_(\d+)", name)
    return int(match[1]) if match else None


class RunFiles:
    """The absolute paths of all files of a run; an instance creates no files.

    Args:
        persist_config: The config with the directories of the run.

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
        profile_dir: Profiles of `loop.profile_steps` and of user code.
        weights_dir: The latest weights if `sync.transport` is `checkpoint`.
        config_path: The composed config as JSON.
        config_copy_path: Copy of it under `persistence.config_filename`; by default the same path.
        composed_config_path: The composed config as YAML.
        latest_checkpoint_path: Link to the newest checkpoint, for users; loading never relies on it.
        best_checkpoint_path: Link to the best checkpoint, for users as well.
        default_buffer_path: Link to the newest buffer, for users as well.
        run_record_path: Identity of the run.
        lock_path: Lock of the process that writes to the run.
        hub_lock_path: Lock of the hub that writes to the journal.
        journal_path: The journal: accepted events, and the cursor of each sink.
        history_dir: Points and operations of the run, as Parquet.

    Raises:
        ConfigurationError: A name is not safe as a directory name.
    """

    def __init__(self, persist_config: "PersistenceConfig") -> None:
        self.persist_config = persist_config
        self.root_data_dir = persist_config._get_absolute_root()  # noqa: SLF001 - named by the drop-in API
        self.app_root_dir = persist_config.get_app_root_dir()
        self.runs_root_dir = persist_config.get_runs_root_dir()
        self.mlflow_dir = persist_config.get_mlflow_abs_path()
        self._name_parts(persist_config.get_run_base_dir())

    def at(self, run_dir: Path) -> Self:
        """Return the file names of another run with the directory `run_dir`."""
        files = copy.copy(self)
        files._name_parts(run_dir)  # noqa: SLF001 - its own class
        return files

    def check_not_above(self) -> None:
        """Refuse to start a new run whose name exists below a parent directory: the command likely belongs there.

        Raises:
            ConfigurationError: The run exists below a parent directory.
        """
        record, root_setting = self.run_record_path.relative_to(self.root_data_dir), self.persist_config.root_data_dir
        parent_roots = [] if self.run_record_path.is_file() else self.persist_config.roots_above()
        if (path := next((root / record for root in parent_roots if (root / record).is_file()), None)) is not None:
            raise ConfigurationError(
                f"run_name={self.run_base_dir.name}: this run exists in {path.parent}, but "
                f"persistence.root_data_dir={root_setting} is relative to the working directory: start the command in "
                "the original directory, set persistence.root_data_dir to an absolute path, or choose another run_name"
            )

    def run_roots(self) -> list[Path]:
        """Return the directories with runs of the app: `runs_root_dir`, then those below `resume_dirs`.

        Raises:
            ConfigurationError: A directory of `resume_dirs` does not exist.
        """
        roots = [self.runs_root_dir]
        for setting, root in self.persist_config.get_resume_roots().items():
            if not root.is_dir():
                raise ConfigurationError(
                    f"persistence.resume_dirs={setting}: there is no directory {root}; create it, or remove the entry"
                )
            roots.append(root / self.app_root_dir.name / self.runs_root_dir.name)
        return list(dict.fromkeys(roots))

    def directories_of(self, run_name: str) -> list[Path]:
        """Return the directory of a run, existing or not, in each of the `run_roots`.

        Raises:
            ConfigurationError: The name, which may come from a checkpoint file, is not safe.
        """
        return [root / _safe("run_name", run_name) for root in self.run_roots()]

    def _name_parts(self, run_dir: Path) -> None:
        config, self.run_base_dir = self.persist_config, run_dir
        self.checkpoint_dir = self._inside("checkpoint_save_dir_name", config.checkpoint_save_dir_name)
        self.buffer_dir = self._inside("buffer_save_dir_name", config.buffer_save_dir_name)
        self.log_dir = self._inside("log_dir_name", config.log_dir_name)
        is_run_dir = config.tensorboard_dir_name == "."
        self.tb_log_dir = run_dir if is_run_dir else self._inside("tensorboard_dir_name", config.tensorboard_dir_name)
        self.profile_dir = self._inside("profile_dir_name", config.profile_dir_name)
        self.weights_dir = run_dir / "weights"
        self.config_path = run_dir / CONFIGS
        self.config_copy_path = self._inside("config_filename", config.config_filename)
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
        """Create the directories of the run; the buffer directory only if buffers are saved.

        With `persistence.private` other users cannot access the run directory.

        Raises:
            ConfigurationError: `root_data_dir` is a file or not writable, or a symbolic link leads out of it.
        """
        directories = [self.mlflow_dir, self.checkpoint_dir, self.log_dir, self.tb_log_dir, self.profile_dir]
        if self.persist_config.save_buffer:
            directories.append(self.buffer_dir)
        try:
            self.runs_root_dir.mkdir(parents=True, exist_ok=True)
            self.run_base_dir.mkdir(exist_ok=True, mode=PRIVATE_MODE if self.persist_config.private else 0o777)
            if self.persist_config.private:  # an existing directory may be open to other users
                self.run_base_dir.chmod(PRIVATE_MODE)
            self._check_links()
            for directory in directories:
                directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._unusable(Path(error.filename or self.run_base_dir), error.strerror or str(error)) from error
        for directory in (self.run_base_dir, *directories):
            if not os.access(directory, os.W_OK | os.X_OK):
                raise self._unusable(directory, "Permission denied")

    def _check_links(self) -> None:
        directories = (self.checkpoint_dir, self.buffer_dir, self.log_dir, self.tb_log_dir, self.profile_dir)
        files = (self.journal_path, self.run_record_path, self.config_path, self.lock_path, self.hub_lock_path)
        root = self.root_data_dir.resolve()
        parts = (*directories, self.history_dir, *files)
        links = (path for path in parts if path.is_symlink())  # to resolve each part would take a tenth of the start
        for path in (self.run_base_dir, *links, *self._links_among(files)):
            if not path.resolve().is_relative_to(root):
                raise ConfigurationError(
                    f"{path} is a link to {path.resolve()}, which is outside root_data_dir={root}, so nothing was "
                    "written: remove the link, or choose a root_data_dir with enough space for the whole run"
                )

    def _links_among(self, files: Sequence[Path]) -> Iterator[Path]:
        """Yield symbolic links at paths that trieye writes: event files, logs, history, and companions of `files`."""
        names = tuple(path.name for path in files)
        for directory in (self.run_base_dir, self.log_dir, self.tb_log_dir, self.history_dir):
            for path in directory.iterdir() if directory.is_dir() else ():
                if path.is_symlink() and (directory != self.run_base_dir or path.name.startswith(names)):
                    yield path

    def get_checkpoint_path(self, step: int | None = None, is_latest: bool = False, is_best: bool = False) -> Path:
        """Return the directory of a step's checkpoint, or the link to the newest (the default) or best one."""
        if is_best and not is_latest:
            return self.best_checkpoint_path
        is_link = is_latest or step is None
        return self.latest_checkpoint_path if is_link else self.checkpoint_dir / f"{CHECKPOINT_PREFIX}{step}"

    def get_buffer_path(self, step: int | None = None) -> Path:
        """Return the directory of a step's buffer, or the link to the newest one."""
        return self.default_buffer_path if step is None else self.buffer_dir / f"{BUFFER_PREFIX}{step}"

    def get_log_file_path(self) -> Path:
        """Return the run's log file."""
        return self.log_dir / f"{self.persist_config.run_name}_trieye.log"

    def get_output_log_path(self) -> Path:
        """Return the file with the printed output of the program."""
        return self.log_dir / "output.log"

    def update_checkpoint_links(self, step_checkpoint_path: Path, is_best: bool) -> None:
        """Point the link `latest`, and with `is_best` also the link `best`, at a checkpoint."""
        self._link(self.latest_checkpoint_path, step_checkpoint_path)
        if is_best:
            self.update_best_link(step_checkpoint_path)

    def update_best_link(self, step_checkpoint_path: Path) -> None:
        """Point the link `best` at a checkpoint."""
        self._link(self.best_checkpoint_path, step_checkpoint_path)

    def update_buffer_link(self, step_buffer_path: Path) -> None:
        """Point the link to the newest buffer at a buffer."""
        self._link(self.default_buffer_path, step_buffer_path)

    def _link(self, link: Path, target: Path) -> None:
        if not target.exists():
            logger.warning("the link %s was not updated: %s does not exist", link, target)
            return
        try:
            relink(link, target)
        except OSError as error:  # a file system without links, which are for users only
            logger.warning("the link %s to %s could not be created: %s", link, target.name, error.strerror or error)

    def _unusable(self, path: Path, reason: str) -> ConfigurationError:
        root = self.persist_config.root_data_dir
        return ConfigurationError(
            f"root_data_dir={root!r}: {path} cannot be written: {reason}; choose a directory that you can write to"
        )


def _safe(kind: str, name: str) -> str:
    from trieye.config.names import check_name  # imported late: the CLI uses the constants above without pydantic

    return check_name(kind, name)
