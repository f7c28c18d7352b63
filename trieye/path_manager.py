"""PathManager: every file name of a run."""

import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trieye.exceptions import ConfigurationError

if TYPE_CHECKING:
    from trieye.config import PersistenceConfig

logger = logging.getLogger(__name__)

PRIVATE_MODE = 0o700


class PathManager:
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
            self.run_base_dir = persist_config.get_run_base_dir()
            self.mlflow_dir = persist_config.get_mlflow_abs_path()
            self._name_parts(persist_config)
        except ConfigurationError:
            raise
        except ValueError as error:  # a name that was assigned after validation
            raise ConfigurationError(str(error)) from error

    def _name_parts(self, config: "PersistenceConfig") -> None:
        self.checkpoint_dir = self._inside("checkpoint_save_dir_name", config.checkpoint_save_dir_name)
        self.buffer_dir = self._inside("buffer_save_dir_name", config.buffer_save_dir_name)
        self.log_dir = self._inside("log_dir_name", config.log_dir_name)
        self.tb_log_dir = self._inside("tensorboard_dir_name", config.tensorboard_dir_name)
        self.profile_dir = self._inside("profile_dir_name", config.profile_dir_name)
        self.config_path = self._inside("config_filename", config.config_filename)
        self.composed_config_path = self.run_base_dir / "config.yaml"
        self.latest_checkpoint_path = self.checkpoint_dir / config.latest_checkpoint_filename
        self.best_checkpoint_path = self.checkpoint_dir / config.best_checkpoint_filename
        self.default_buffer_path = self.buffer_dir / config.buffer_filename
        self.run_record_path = self.run_base_dir / "run.json"
        self.lock_path = self.run_base_dir / "run.lock"
        self.hub_lock_path = self.run_base_dir / "hub.lock"
        self.journal_path = self.run_base_dir / "journal.db"
        self.history_dir = self.run_base_dir / "history"

    def _inside(self, key: str, name: str) -> Path:
        from trieye.config.names import check_name

        return self.run_base_dir / check_name(key, name)

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
        return self.latest_checkpoint_path if step is None else self.checkpoint_dir / f"checkpoint_step_{step}"

    def get_buffer_path(self, step: int | None = None) -> Path:
        """Return the directory of a step's buffer, or the link to the newest one."""
        return self.default_buffer_path if step is None else self.buffer_dir / f"buffer_step_{step}"

    def get_config_path(self) -> Path:
        """Return the file of the composed config."""
        return self.config_path

    def get_profile_path(self, worker_id: int, episode_seed: int) -> Path:
        """Return the file for the profile of a worker's episode."""
        return self.profile_dir / f"worker_{worker_id}_ep_{episode_seed}.prof"

    def get_log_file_path(self) -> Path:
        """Return the run's log file."""
        return self.log_dir / f"{self.persist_config.run_name}_trieye.log"

    def update_checkpoint_links(self, step_checkpoint_path: Path, is_best: bool) -> None:
        """Point `latest`, and `best` if it is that, at a checkpoint."""
        self._link(self.latest_checkpoint_path, step_checkpoint_path)
        if is_best:
            self._link(self.best_checkpoint_path, step_checkpoint_path)

    def update_buffer_link(self, step_buffer_path: Path) -> None:
        """Point the link to the newest buffer at a buffer."""
        self._link(self.default_buffer_path, step_buffer_path)

    def find_latest_run_dir(self, current_run_name: str) -> str | None:
        """Return the name of the newest run of the app that was begun before `current_run_name`."""
        from trieye.persistence.earlier_runs import earlier_runs

        runs = earlier_runs(self, current_run_name)
        return next((run.name for run in runs if run.directory.parent == self.runs_root_dir), None)

    def determine_checkpoint_to_load(self, load_path_config: str | None, auto_resume: bool) -> Path | None:
        """Return the checkpoint from which the run goes on; see `trieye.persistence.resume.find_resume`.

        Raises:
            CheckpointError: There are some, and none is whole.
        """
        from trieye.persistence.resume import find_resume

        changes = {"load_checkpoint_path": load_path_config, "auto_resume_latest": auto_resume, "save_buffer": False}
        config = self.persist_config.model_copy(update=changes)
        point = find_resume(self, config, own_first=False, strict=False)
        if point is not None:
            logger.info("%s", point.reason)
        return None if point is None else point.path

    def determine_buffer_to_load(
        self,
        load_path_config: str | None,
        auto_resume: bool,
        checkpoint_run_name: str | None,
        checkpoint_step: int | None = None,
    ) -> Path | None:
        """Return the buffer to load, or None.

        Args:
            load_path_config: Where it is, if the user says so.
            auto_resume: Look through the earlier runs if no checkpoint was loaded.
            checkpoint_run_name: The run whose checkpoint was loaded.
            checkpoint_step: The step of that checkpoint; a newer buffer does not fit it.
        """
        from trieye.persistence.resume import choose_buffer

        return choose_buffer(self, load_path_config, checkpoint_run_name, checkpoint_step, auto_resume=auto_resume)

    def _link(self, link: Path, target: Path) -> None:
        from trieye.persistence.atomic import relink

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
