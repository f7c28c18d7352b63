"""PathManager of trieye 0.1.5: the file names of a run, and the checkpoint and the buffer that it loads."""

import logging
from pathlib import Path

from trieye.checkpoints.choose import Choice, ResumeCandidate, ResumePoint
from trieye.files.run_files import BUFFER_PREFIX, RunFiles
from trieye.files.run_record import earlier_runs

logger = logging.getLogger(__name__)


class TrainingChoice(Choice):
    """Like `Choice`, with buffers; `load_checkpoint_path` comes first, and a path that does not exist is a warning."""

    def point(self) -> ResumePoint | None:
        """Choose the checkpoint to resume; see `trieye.checkpoints.choose.choose`.

        Raises:
            CheckpointError: The chosen run has checkpoints, and none of them is whole.
        """
        point = self.typed() or self.own()
        return self.earlier(None, None) if point is None and self._config.auto_resume_latest else point

    def buffer_for(self, checkpoint: ResumeCandidate) -> ResumeCandidate | None:
        """Return the buffer named in the config, else the newest one up to the step of the checkpoint."""
        if not self._config.save_buffer:
            return None
        return self.given_buffer() or self.newest_buffer(self._files.at(checkpoint.path.parents[1]), checkpoint.step)

    def buffer_alone(self, run_name: str | None, max_step: int | None) -> ResumeCandidate | None:
        """Return the buffer named in the config, else the newest one of a run, or of an earlier run if none is given.

        Args:
            run_name: The run whose checkpoint was loaded.
            max_step: The step of that checkpoint; a newer buffer does not fit it.
        """
        if (given_buffer := self.given_buffer()) is not None:
            return given_buffer
        runs = earlier_runs(self._files, self._config.run_name) if self._config.auto_resume_latest else []
        directories = self._files.directories_of(run_name) if run_name else [run.directory for run in runs]
        buffers = (self.newest_buffer(self._files.at(directory), max_step) for directory in directories)
        return next((buffer for buffer in buffers if buffer is not None), None)

    def newest_buffer(self, files: RunFiles, max_step: int | None = None) -> ResumeCandidate | None:
        """Return the newest whole buffer of a run that is not newer than `max_step`."""
        return self._newest_in(files, files.buffer_dir, BUFFER_PREFIX, files.default_buffer_path, max_step)

    def given_buffer(self) -> ResumeCandidate | None:
        """Return the buffer at `load_buffer_path`; None if that is null, or does not exist."""
        return self._given("load_buffer_path", BUFFER_PREFIX, self.newest_buffer)

    def _missing(self, key: str, value: str, path: Path) -> ResumeCandidate | None:
        logger.warning("%s=%r does not exist (looked for %s) and is ignored", key, value, path)
        return None


class PathManager(RunFiles):
    """Every file name of a run, and the states to resume; see `TrainingChoice`."""

    def get_config_path(self) -> Path:
        """Return the file of the composed config, under the name that `config_filename` gives it."""
        return self.config_copy_path

    def get_profile_path(self, worker_id: int, episode_seed: int) -> Path:
        """Return the file for the profile of a worker's episode."""
        return self.profile_dir / f"worker_{worker_id}_ep_{episode_seed}.prof"

    def find_latest_run_dir(self, current_run_name: str) -> str | None:
        """Return the name of the newest run of the app that started before `current_run_name`."""
        runs = earlier_runs(self, current_run_name)
        return next((run.directory.name for run in runs if run.directory.parent == self.runs_root_dir), None)

    def determine_checkpoint_to_load(self, load_path_config: str | None, auto_resume: bool) -> Path | None:
        """Return the checkpoint to resume.

        Raises:
            CheckpointError: There are some, and none is whole.
        """
        changes = {"load_checkpoint_path": load_path_config, "auto_resume_latest": auto_resume}
        point = TrainingChoice(self, self.persist_config.model_copy(update=changes)).point()
        if point is None:
            return None
        logger.info("%s", point.reason)
        return point.checkpoint.path

    def determine_buffer_to_load(
        self,
        load_path_config: str | None,
        auto_resume: bool,
        checkpoint_run_name: str | None,
        checkpoint_step: int | None = None,
    ) -> Path | None:
        """Return the buffer to load, or None.

        Args:
            load_path_config: Its path, if the user names one.
            auto_resume: Look through the earlier runs if no checkpoint was loaded.
            checkpoint_run_name: The run whose checkpoint was loaded.
            checkpoint_step: The step of that checkpoint; a newer buffer does not fit it.
        """
        changes = {"load_buffer_path": load_path_config, "auto_resume_latest": auto_resume}
        choice = TrainingChoice(self, self.persist_config.model_copy(update=changes), changes_nothing=True)
        candidate = choice.buffer_alone(checkpoint_run_name, checkpoint_step)
        return None if candidate is None else candidate.path
