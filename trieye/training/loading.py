"""load_policy and make_env: the policy of a run, and the environment of its evaluations."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trieye.checkpoints.store import LoadedCheckpoint, Which, load_checkpoint
from trieye.config.env import EnvConfig
from trieye.config.redaction import with_secrets
from trieye.exceptions import CheckpointError, ConfigurationError
from trieye.experiment.experiment import imported
from trieye.renames import current_config
from trieye.runs.finding import RunReference, run_directory
from trieye.training import environments
from trieye.training.engine import TrainEngine, device_of
from trieye.training.policy import Policy
from trieye.training.spaces import from_data


def load_policy(run: RunReference, which: Which = "best", *, device: str = "cpu") -> Policy:
    """Return the policy of a run as it was saved, ready to act; `policy.predict(obs)` takes and returns NumPy arrays.

    Args:
        run: A stored run, its directory, or its name: `run` or `app/run`.
        which: The best checkpoint (the newest one if none was rated), the newest one, or that of a step.
        device: `cpu`, `cuda`, `cuda:1`, `mps`, or `auto`.

    Raises:
        CheckpointError: There is no such checkpoint, or it is not that of an engine.
        ConfigurationError: The engine of the run or the device does not exist, or the config does not fit.
    """
    run_dir = directory_of(run)
    return policy_of(run_dir, load_checkpoint(run_dir, which), device)


def make_env(run: RunReference, *, render_mode: str | None = None, seed: int | None = None) -> Any:
    """Make an environment as the evaluations of a run step it: with its wrappers, and with the rewards unchanged.

    Its observations are those that `Policy.predict` takes.

    Args:
        run: A stored run, its directory, or its name: `run` or `app/run`.
        render_mode: `rgb_array`, `human` or another mode of the environment; None renders nothing.
        seed: Seed of its spaces, for environments that sample them.

    Returns:
        A `gymnasium.Env`, which the caller closes.

    Raises:
        ConfigurationError: The run has no config of an environment, or it cannot be made.
    """
    run_dir = directory_of(run)
    values = with_secrets(recorded_config(run_dir))
    if "env" not in values:
        raise ConfigurationError(f"{run_dir / 'configs.json'} has no key env: the program makes its own environments")
    if evaluator_of(values) is None:
        _engine_of(run_dir, values)  # a project may register environments
    config = EnvConfig.model_validate_json(json.dumps(values["env"]))
    return environments.make_env(config, render_mode=render_mode, seed=seed)


def directory_of(run: RunReference) -> Path:
    """Return the directory of a run, which need not have a run.json.

    Raises:
        ConfigurationError: There is no such run.
    """
    return Path(run) if isinstance(run, str | Path) and Path(run).is_dir() else run_directory(run)


def policy_of(run_dir: Path, saved: LoadedCheckpoint, device: str = "cpu") -> Policy:
    """Return the policy in a checkpoint of a run; see `load_policy`."""
    try:
        state, loop = saved.objects["experiment"]["state"], saved.objects["loop"]
        weights, spaces = state["policy"], from_data(state["spaces"])
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"{saved.path} is not that of a TrainEngine: it has no {error}") from error
    engine = _engine_of(run_dir, recorded_config(run_dir, saved))
    config = engine.config_class.of_run(run_dir, saved.config)
    policy = engine.policy_class(config, spaces).to(device_of(device, "device"))
    try:
        policy.load_state_dict(weights)
    except RuntimeError as error:  # torch's message has a line for each parameter
        reason = " ".join(str(error).split())
        raise CheckpointError(
            f"{saved.path} does not fit the policy of {run_dir / 'configs.json'}: {reason}"
        ) from error
    policy.schedule_step = loop[config.schedule_axis]
    return policy.eval()


def recorded_config(run_dir: Path, saved: LoadedCheckpoint | None = None) -> Mapping[str, Any]:
    """Return the config that a checkpoint of a run recorded, or else the one in configs.json.

    Raises:
        ConfigurationError: It cannot be read.
    """
    if saved is not None and saved.config is not None:
        return current_config(saved.config)
    path = run_dir / "configs.json"
    try:
        values: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path}, the config of the run, cannot be read: {error}") from error
    return current_config(values)


def evaluator_of(values: Mapping[str, Any]) -> Callable[..., dict[str, Any]] | None:
    """Return the function that the key `evaluator` of a recorded config names, or None.

    Raises:
        ConfigurationError: There is no such function.
    """
    name = values.get("evaluator")
    function: Callable[..., dict[str, Any]] | None = None if name is None else imported(name, ("__call__",))
    return function


def _engine_of(run_dir: Path, values: Mapping[str, Any]) -> type[TrainEngine]:
    """Return the class that trained a run.

    Raises:
        ConfigurationError: The config names none, or one that does not exist.
    """
    try:
        name = values["agent"]["engine"]
    except (KeyError, TypeError) as error:
        raise ConfigurationError(f"{run_dir / 'configs.json'} names no agent.engine: {error}") from error
    found: type[TrainEngine] = imported(name)
    return found
