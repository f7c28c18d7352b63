"""PathManager of trieye 0.1.5: the file names of a run, and the states that it loads."""

import logging
from pathlib import Path

from trieye.compat.choose import TrainingChoice
from trieye.files.run_files import RunFiles
from trieye.files.run_record import earlier_runs

logger = logging.getLogger(__name__)


class PathManager(RunFiles):
    """Every file name of a run, and what to resume from; see `TrainingChoice`."""

    def find_latest_run_dir(self, current_run_name: str) -> str | None:
        """Return the name of the newest run of the app that was begun before `current_run_name`."""
        runs = earlier_runs(self, current_run_name)
        return next((run.directory.name for run in runs if run.directory.parent == self.runs_root_dir), None)

    def determine_checkpoint_to_load(self, load_path_config: str | None, auto_resume: bool) -> Path | None:
        """Return the checkpoint from which the run resumes.

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
            load_path_config: Where it is, if the user says so.
            auto_resume: Look through the earlier runs if no checkpoint was loaded.
            checkpoint_run_name: The run whose checkpoint was loaded.
            checkpoint_step: The step of that checkpoint; a newer buffer does not fit it.
        """
        changes = {"load_buffer_path": load_path_config, "auto_resume_latest": auto_resume}
        choice = TrainingChoice(self, self.persist_config.model_copy(update=changes), changes_nothing=True)
        found = choice.buffer_alone(checkpoint_run_name, checkpoint_step)
        return None if found is None else found.path
