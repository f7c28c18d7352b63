"""Crash: the state that an error left behind, saved beside the checkpoints, which it never joins."""

from pathlib import Path
from typing import Any

from trieye.hub.logic import ActorLogic
from trieye.run.run import Run
from trieye.snapshot.encode import encode
from trieye.snapshot.generators import capture_all


def save_crash(run: Run, **objects: Any) -> Path:
    """Save objects as `crash-<step>` in the directory of the checkpoints, and return when it is safe on disk.

    No start resumes from it by itself, and the one before is deleted. It can be given as `load_checkpoint_path` to
    another run, and to `trieye.load_checkpoint`.

    Args:
        run: The run, which is open.
        **objects: As for `Run.save`.

    Raises:
        CheckpointError: It could not be saved.
    """
    attempt, step = run._opened(), run.step  # noqa: SLF001 - its own package
    held = {"objects": objects, "rng": capture_all(), "step": step, "config": attempt.recorded_config}
    state = encode(held, known=attempt.saves.known_parts)
    hub_state = attempt.hub.ask(ActorLogic.packed_state, step)
    metadata = {"is_crash": True, "config_hash": attempt.config_hash, "seed": run.config.seed}
    saved = attempt.hub.begin(ActorLogic.save_checkpoint, step, state, metadata, hub_state)
    return Path(saved.result().path)
