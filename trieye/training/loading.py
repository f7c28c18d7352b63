"""load_policy and make_env: the policy of a stored run, and the environment of its evaluations."""

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
    """Load the policy of a run in evaluation mode; `policy.predict(obs)` takes and returns NumPy arrays.

    Args:
        run: A stored run, its directory, or its name: `run` or `app/run`.
        which: `best` (the latest checkpoint if none was rated), `latest`, or a step.
        device: `cpu`, `cuda`, `cuda:1`, `mps`, or `auto`.

    Raises:
        CheckpointError: The checkpoint does not exist, or no engine saved it.
        ConfigurationError: The engine of the run or the device does not exist, or the config does not match.
    """
    run_dir = directory_of(run)
    return policy_of(run_dir, load_checkpoint(run_dir, which), device)


def make_env(source: RunReference | EnvConfig, *, render_mode: str | None = None, seed: int | None = None) -> Any:
    """Create the evaluation environment of a run, or the training environment that a config describes.

    Evaluation environments have the original rewards and no wrappers for training only; their observations are valid
    input of `Policy.predict`.

    Args:
        source: A stored run, its directory, its name (`run` or `app/run`), or the config of an environment.
        render_mode: `rgb_array`, `human` or another mode of the environment; None renders nothing.
        seed: Seed of its spaces, for environments that sample from them.

    Returns:
        A `gymnasium.Env`; the caller closes it.

    Raises:
        ConfigurationError: The run has no environment config, or the environment cannot be created.
    """
    if isinstance(source, EnvConfig):
        return environments.make_env(source, render_mode=render_mode, seed=seed)
    run_dir = directory_of(source)
    values = with_secrets(recorded_config(run_dir))
    if "env" not in values:
        raise ConfigurationError(f"{run_dir / 'configs.json'} has no key env; use the code of its program instead")
    if evaluator_of(values) is None:
        _engine_of(run_dir, values)  # importing it may register the project's environments
    config = EnvConfig.model_validate_json(json.dumps(values["env"])).for_evaluation()
    return environments.make_env(config, render_mode=render_mode, seed=seed)


def directory_of(run: RunReference) -> Path:
    """Return the directory of a run; run.json is not required.

    Raises:
        ConfigurationError: The run does not exist.
    """
    return Path(run) if isinstance(run, str | Path) and Path(run).is_dir() else run_directory(run)


def policy_of(run_dir: Path, saved: LoadedCheckpoint, device: str = "cpu") -> Policy:
    """Return the policy of a checkpoint; see `load_policy`."""
    try:
        state, loop = saved.objects["experiment"]["state"], saved.objects["loop"]
        weights, spaces = state["policy"], from_data(state["spaces"])
    except (KeyError, TypeError) as error:
        advice = "if your program has its own loop, let the key `evaluator` name a function for `trieye evaluate`"
        raise CheckpointError(f"{saved.path} was not saved by a TrainEngine ({error} is missing); {advice}") from error
    engine = _engine_of(run_dir, recorded_config(run_dir, saved))
    config = engine.config_class.of_run(run_dir, saved.config)
    policy = engine.policy_class(config, spaces).to(device_of(device, "device"))
    try:
        policy.load_state_dict(weights)
    except RuntimeError as error:  # torch's message has one line per parameter
        reason = " ".join(str(error).split())
        raise CheckpointError(
            f"{saved.path} does not match the policy in {run_dir / 'configs.json'}: {reason}"
        ) from error
    policy.schedule_step = loop[config.schedule_axis]
    return policy.eval()


def recorded_config(run_dir: Path, checkpoint: LoadedCheckpoint | None = None) -> Mapping[str, Any]:
    """Return the config that a checkpoint recorded, else the one in configs.json.

    Raises:
        ConfigurationError: configs.json cannot be read.
    """
    if checkpoint is not None and checkpoint.config is not None:
        return current_config(checkpoint.config)
    path = run_dir / "configs.json"
    try:
        values: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path}: cannot read the config of the run: {error}") from error
    return current_config(values)


def evaluator_of(values: Mapping[str, Any]) -> Callable[..., dict[str, Any]] | None:
    """Return the function named by the key `evaluator` of a recorded config, or None.

    Raises:
        ConfigurationError: The function does not exist.
    """
    name = values.get("evaluator")
    function: Callable[..., dict[str, Any]] | None = None if name is None else imported(name, ("__call__",))
    return function


def _engine_of(run_dir: Path, values: Mapping[str, Any]) -> type[TrainEngine]:
    """Return the engine class that trained a run.

    Raises:
        ConfigurationError: The config does not name a class, or the class does not exist.
    """
    try:
        name = values["agent"]["engine"]
    except (KeyError, TypeError) as error:
        raise ConfigurationError(f"{run_dir / 'configs.json'} has no agent.engine: {error}") from error
    engine: type[TrainEngine] = imported(name)
    return engine
