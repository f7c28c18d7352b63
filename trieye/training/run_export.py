"""export_run: write the policy of a stored run as files for programs that do not use trieye."""

from pathlib import Path
from typing import NamedTuple

from trieye.checkpoints.choose import reference_of
from trieye.checkpoints.store import LoadedCheckpoint, load_checkpoint
from trieye.runs.finding import RunReference, run_directory
from trieye.training.exporting import export_policy
from trieye.training.loading import policy_of
from trieye.training.policy import Policy


class Export(NamedTuple):
    """The exported policy of a run.

    Attributes:
        policy: The policy.
        checkpoint: Its checkpoint.
        is_best: True for the checkpoint with the best objective, False for the latest one.
        files: The files, `policy.pt` first.
    """

    policy: Policy
    checkpoint: LoadedCheckpoint
    is_best: bool
    files: list[Path]


def export_run(
    run: RunReference, export_dir: Path | None = None, *, checkpoint: str = "best", root: Path | None = None
) -> Export:
    """Export the policy of a stored run, which may still be training; see `export_policy`.

    Args:
        run: The run, its directory or its name.
        export_dir: Target directory; None: `export` in the directory of the run.
        checkpoint: The checkpoint: `best` (the latest one if none was rated), `latest` or `step:<N>`.
        root: Directory of all apps; None: the directories of the project around the working directory.

    Raises:
        ConfigurationError: The run does not exist, its engine cannot be imported, or the directory is not writable.
        CheckpointError: The checkpoint does not exist, or no engine saved it.
    """
    run_dir, which = run_directory(run, root=root), reference_of(checkpoint, option="--checkpoint").which
    loaded = load_checkpoint(run_dir, which)
    policy = policy_of(run_dir, loaded)
    origin = {"run": run_dir.name, "step": loaded.step, "objective": loaded.objective}
    target = (export_dir or run_dir / "export").absolute()
    files = export_policy(policy, target, env_steps=policy.schedule_step, origin=origin)
    return Export(policy, loaded, which == "best" and loaded.objective is not None, files)
