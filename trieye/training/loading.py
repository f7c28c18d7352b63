"""load_policy: the policy of a run, without its replay, optimizer or environment."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from trieye.checkpoints.store import LoadedCheckpoint, Which, load_checkpoint
from trieye.exceptions import CheckpointError, ConfigurationError
from trieye.experiment.experiment import imported
from trieye.training.config import TrainingConfig
from trieye.training.engine import TrainEngine
from trieye.training.policy import Policy
from trieye.training.spaces import from_data


def load_policy(run_dir: str | Path, which: Which = "best") -> Policy:
    """Return the policy of a run as it was saved, on the CPU, ready to act.

    Args:
        run_dir: Directory of the run.
        which: The best checkpoint (the newest one if none was rated), the newest one, or that of a step.

    Raises:
        CheckpointError: There is no such checkpoint, or it is not that of an engine.
        ConfigurationError: The engine of the run is not there, or its config does not fit.
    """
    return loaded_policy(Path(run_dir), which).policy


class LoadedPolicy(NamedTuple):
    """A policy, and where it comes from.

    Attributes:
        policy: On the CPU, ready to act.
        config: Of its run.
        checkpoint: What it was read from.
        schedule_step: What schedules are called with; see `TrainEngine.schedule_step`.
    """

    policy: Policy
    config: TrainingConfig
    checkpoint: LoadedCheckpoint
    schedule_step: int


def loaded_policy(run_dir: Path, which: Which) -> LoadedPolicy:
    """Return the policy of a run with its config; see `load_policy`."""
    saved = load_checkpoint(run_dir, which)
    try:
        state, loop = saved.objects["experiment"]["state"], saved.objects["loop"]
        weights, spaces = state["policy"], from_data(state["spaces"])
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"{saved.path} is not that of a TrainEngine: it has no {error}") from error
    engine = _engine_of(run_dir, saved.config)
    config = engine.config_class.of_run(run_dir, saved.config)
    policy = engine.policy_class(config, spaces)
    try:
        policy.load_state_dict(weights)
    except RuntimeError as error:  # torch's message has a line for each parameter
        reason = " ".join(str(error).split())
        raise CheckpointError(
            f"{saved.path} does not fit the policy of {run_dir / 'configs.json'}: {reason}"
        ) from error
    return LoadedPolicy(policy.eval(), config, saved, loop[config.schedule_axis])


def _engine_of(run_dir: Path, config: Mapping[str, Any] | None) -> type[TrainEngine[Any]]:
    """Return the class that trained a run, by the config in its checkpoint, or else in its configs.json.

    Raises:
        ConfigurationError: The config names none, or one that is not there.
    """
    path = run_dir / "configs.json"
    try:
        name = (json.loads(path.read_text("utf-8")) if config is None else config)["agent"]["engine"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"{path} names no agent.engine: {error}") from error
    found: type[TrainEngine[Any]] = imported(name)
    return found
