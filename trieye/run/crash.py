"""Crash checkpoints: the state at an error, saved separately from the checkpoints that a run resumes from."""

from pathlib import Path
from typing import Any

from trieye.hub.logic import HubLogic
from trieye.run.run import Run
from trieye.snapshot.encode import encode
from trieye.snapshot.generators import capture_all


def save_crash(run: Run, **objects: Any) -> Path:
    """Save objects as `crash-<step>` in the checkpoint directory, and wait until they are on disk.

    The run never resumes from a crash checkpoint, and the previous one is deleted. Another run can start from it with
    `persistence.load_checkpoint_path`.

    Args:
        run: The open run.
        **objects: As for `Run.save`.

    Raises:
        CheckpointError: The checkpoint could not be saved.
    """
    attempt, step = run._begun_attempt(), run.step  # noqa: SLF001 - its own package
    content = {"objects": objects, "rng": capture_all(), "step": step, "config": attempt.recorded_config}
    state = encode(content, known_parts=attempt.saves.known_parts)
    hub_state = attempt.hub.ask(HubLogic.packed_state, step)
    metadata = {"is_crash": True, "config_hash": attempt.config_hash, "seed": run.config.seed}
    save_future = attempt.hub.begin(HubLogic.save_checkpoint, step, state, metadata, hub_state)
    return Path(save_future.result().path)
