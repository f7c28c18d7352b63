"""The config of a stored run, for commands that act on its directory."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trieye.config import PersistenceConfig, TrieyeConfig
from trieye.exceptions import ConfigurationError
from trieye.files.run_files import CONFIGS
from trieye.runs.stored_run import config_in
from trieye.sinks.fan_out import make_sinks


def recorded_config(run_dir: Path) -> TrieyeConfig:
    """Return the config of a run as its configs.json has it.

    Raises:
        ConfigurationError: configs.json is missing or damaged.
    """
    return _config_of(run_dir, is_here=False)


def persistence_of(run_dir: Path) -> PersistenceConfig:
    """Return the recorded `persistence` of a run; the defaults if its config is damaged, or of trieye 0.1.5."""
    try:
        return recorded_config(run_dir).persistence
    except ConfigurationError:
        return PersistenceConfig()


def config_of(run_dir: Path) -> TrieyeConfig:
    """Return the config of a run with its current directory, without console and system metrics.

    Raises:
        ConfigurationError: configs.json is missing or damaged, or the directory is not where runs are.
    """
    return _config_of(run_dir, is_here=True)


def sinks_of(config: TrieyeConfig) -> list[str]:
    """Return the names of the sinks that receive the whole history of a run, not only new points.

    Raises:
        ConfigurationError: The library of a sink is not installed.
    """
    return [sink.name for sink in make_sinks(config.sinks) if not getattr(sink, "live_only", False)]


def _config_of(run_dir: Path, *, is_here: bool) -> TrieyeConfig:
    path = run_dir / CONFIGS
    try:
        # a project has groups that trieye does not know
        fields = {name: value for name, value in config_in(run_dir).items() if name in TrieyeConfig.model_fields}
        if not is_here:
            return TrieyeConfig.model_validate(fields)
        config = TrieyeConfig.model_validate(_moved(fields, run_dir))
        # a path in `root_data_dir` would have its $ expanded
        return config.model_copy(update={"persistence": config.persistence.anchored(run_dir.parents[2])})
    except ConfigurationError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else error
        raise ConfigurationError(f"{path}, the config of the run, cannot be read: {reason}") from error


def _moved(fields: Mapping[str, Any], run_dir: Path) -> dict[str, Any]:
    """Return the fields of a config with the current directory of the run, without sinks that only training needs."""
    sinks = dict(fields["sinks"])
    for name, key in (("console", "enabled"), ("mlflow", "system_metrics"), ("wandb", "system_metrics")):
        sinks[name] = {**sinks.get(name, {}), key: False}
    names = {"app_name": run_dir.parents[1].name, "run_name": run_dir.name}
    return {**fields, **names, "persistence": _persistence(fields["persistence"], run_dir), "sinks": sinks}


def _persistence(recorded: Mapping[str, Any], run_dir: Path) -> dict[str, Any]:
    runs, app_dir = recorded["runs_dir_name"], run_dir.parents[1]
    if run_dir.parent.name != runs or app_dir == app_dir.parent:
        raise ConfigurationError(
            f"{run_dir} is not where its sinks expect a run: move it to <root>/<app>/{runs}/{run_dir.name} or any free "
            "name there"
        )
    settings = {key: value for key, value in recorded.items() if key != "MLFLOW_TRACKING_URI"}
    return {**settings, "root_data_dir": ".", "mlflow_tracking_uri": tracking_uri_of(recorded, run_dir)}


def tracking_uri_of(persistence: Mapping[str, Any], run_dir: Path) -> str:
    """Return the MLflow store that a run used, regardless of this environment; a store in its app moves with it.

    Args:
        persistence: The `persistence` of its configs.json.
        run_dir: Its directory.
    """
    if persistence["mlflow_tracking_uri"] is not None:
        return str(persistence["mlflow_tracking_uri"])
    recorded_uri, own_store = str(persistence["MLFLOW_TRACKING_URI"]), f"{persistence['mlflow_dir_name']}/mlflow.db"
    is_own = recorded_uri.startswith("sqlite:///") and recorded_uri.endswith(f"/{own_store}")
    return f"sqlite:///{run_dir.parents[1] / own_store}" if is_own else recorded_uri
