"""load_policy: the policy of a run, without its replay, optimizer or environment."""

import json
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
        env_steps: Environment steps that it was trained for.
    """

    policy: Policy
    config: TrainingConfig
    checkpoint: LoadedCheckpoint
    env_steps: int


def loaded_policy(run_dir: Path, which: Which) -> LoadedPolicy:
    """Return the policy of a run with its config; see `load_policy`."""
    saved = load_checkpoint(run_dir, which)
    try:
        state, loop = saved.objects["experiment"]["state"], saved.objects["loop"]
        weights, spaces = state["policy"], from_data(state["spaces"])
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"{saved.path} is not that of a TrainEngine: it has no {error}") from error
    engine = engine_of(run_dir)
    config = engine.config_class.of_run(run_dir)
    policy = engine.policy_class(config, spaces)
    policy.load_state_dict(weights)
    return LoadedPolicy(policy.eval(), config, saved, loop["env_steps"])


def engine_of(run_dir: Path) -> type[TrainEngine[Any]]:
    """Return the class that trained a run.

    Raises:
        ConfigurationError: The config of the run names none, or one that is not there.
    """
    path = run_dir / "configs.json"
    try:
        name = json.loads(path.read_text("utf-8"))["agent"]["engine"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"{path} names no agent.engine: {error}") from error
    found: type[TrainEngine[Any]] = imported(name)
    return found
