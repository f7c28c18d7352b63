"""TrainingChoice: the checkpoint and the buffer that a program of trieye 0.1.5 loads."""

import logging
from pathlib import Path

from trieye.checkpoints.choose import Choice, ResumeCandidate, ResumePoint
from trieye.files.run_files import BUFFER_PREFIX, RunFiles
from trieye.files.run_record import earlier_runs

logger = logging.getLogger(__name__)


class TrainingChoice(Choice):
    """Like `Choice`, with buffers; `load_checkpoint_path` comes first, and a path that does not exist is a warning."""

    def point(self) -> ResumePoint | None:
        """Return the state from which the run resumes; see `trieye.checkpoints.choose.choose`.

        Raises:
            CheckpointError: The chosen run has checkpoints, and none of them is whole.
        """
        point = self.typed() or self.own()
        return self.earlier(None, None) if point is None and self._config.auto_resume_latest else point

    def buffer_for(self, checkpoint: ResumeCandidate) -> ResumeCandidate | None:
        """Return the buffer named in the config, else the newest one that is not newer than the checkpoint."""
        if not self._config.save_buffer:
            return None
        return self.given_buffer() or self.newest_buffer(self._files.at(checkpoint.path.parents[1]), checkpoint.step)

    def buffer_alone(self, run_name: str | None, max_step: int | None) -> ResumeCandidate | None:
        """Return the buffer named in the config, that of a run, or without a run that of an earlier one.

        Args:
            run_name: The run whose checkpoint was loaded.
            max_step: The step of that checkpoint; a newer buffer does not fit it.
        """
        if (given := self.given_buffer()) is not None:
            return given
        earlier = earlier_runs(self._files, self._config.run_name) if self._config.auto_resume_latest else []
        directories = self._files.directories_of(run_name) if run_name else [run.directory for run in earlier]
        found = (self.newest_buffer(self._files.at(directory), max_step) for directory in directories)
        return next((buffer for buffer in found if buffer is not None), None)

    def newest_buffer(self, files: RunFiles, max_step: int | None = None) -> ResumeCandidate | None:
        """Return the newest whole buffer of a run that is not newer than `max_step`."""
        return self._newest_in(files, files.buffer_dir, BUFFER_PREFIX, files.default_buffer_path, max_step)

    def given_buffer(self) -> ResumeCandidate | None:
        """Return what `load_buffer_path` stands for; None if that is null, or does not exist."""
        if not (value := self._config.load_buffer_path):
            return None
        path = self._absolute(value)
        return self._at(path, BUFFER_PREFIX, self.newest_buffer) or self._missing("load_buffer_path", value, path)

    def _missing(self, key: str, value: str, path: Path) -> ResumeCandidate | None:
        logger.warning("%s=%r does not exist (looked for %s) and is ignored", key, value, path)
        return None
