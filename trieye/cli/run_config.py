"""The config with which a run was made, read back from its configs.json."""

import contextlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from trieye.config import TrieyeConfig
from trieye.config.fingerprint import json_of
from trieye.config.sinks import SinksConfig
from trieye.exceptions import ConfigurationError
from trieye.sinks.registry import make_sinks

CONFIGS = "configs.json"


def recorded_config(run_dir: Path) -> TrieyeConfig:
    """Return the config of a run as it was.

    Raises:
        ConfigurationError: configs.json is missing or damaged.
    """
    with _explained(run_dir / CONFIGS):
        return TrieyeConfig.model_validate(_fields(json_of(run_dir / CONFIGS)))


def config_of(run_dir: Path) -> TrieyeConfig:
    """Return the config of a run for the directory in which it is now, without what belongs to training only.

    Raises:
        ConfigurationError: configs.json is missing or damaged, or the directory is not where runs are.
    """
    with _explained(run_dir / CONFIGS):
        fields = _fields(json_of(run_dir / CONFIGS))
        names = {"app_name": run_dir.parents[1].name, "run_name": run_dir.name}
        places = {"persistence": _persistence(fields["persistence"], run_dir), "sinks": _sinks(fields["sinks"])}
        return TrieyeConfig.model_validate({**fields, **places, **names})


def sinks_of(config: TrieyeConfig) -> list[str]:
    """Return the names of the sinks that get the history of a run, not only what is new.

    Raises:
        ConfigurationError: The library of one is not installed.
    """
    return [sink.name for sink in make_sinks(config.sinks) if not getattr(sink, "live_only", False)]


def only(config: SinksConfig, names: Collection[str]) -> SinksConfig:
    """Return a config in which no other of trieye's own sinks is enabled."""
    kinds = SinksConfig.model_fields
    return config.model_copy(
        update={kind: getattr(config, kind).model_copy(update={"enabled": kind in names}) for kind in kinds}
    )


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except ConfigurationError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else error
        raise ConfigurationError(f"{path}, the config of the run, cannot be read: {reason}") from error


def _fields(held: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part that trieye knows: a project has groups of its own."""
    return {name: value for name, value in held.items() if name in TrieyeConfig.model_fields}


def _persistence(held: Mapping[str, Any], run_dir: Path) -> dict[str, Any]:
    runs, app_dir = held["runs_dir_name"], run_dir.parents[1]
    if run_dir.parent.name != runs or app_dir == app_dir.parent:
        raise ConfigurationError(
            f"{run_dir} is not where a run belongs, and what its sinks write lies beside it: "
            f"move it to <root>/<app>/{runs}/{run_dir.name}"
        )
    uri, own = held["mlflow_tracking_uri"], f"{held['mlflow_dir_name']}/mlflow.db"
    if uri is None:  # what the run used counts, not the environment of this command; a store of its own moves with it
        used = str(held["MLFLOW_TRACKING_URI"])
        is_own = used.startswith("sqlite:///") and used.endswith(f"/{own}")
        uri = f"sqlite:///{app_dir / own}" if is_own else used
    kept = {key: value for key, value in held.items() if key != "MLFLOW_TRACKING_URI"}
    return {**kept, "root_data_dir": str(app_dir.parent), "mlflow_tracking_uri": uri}


def _sinks(held: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sinks without what only makes sense while something is trained."""
    without = {"console": {"enabled": False}, "mlflow": {"system_metrics": False}, "wandb": {"system_metrics": False}}
    return {**held, **{name: {**held.get(name, {}), **changes} for name, changes in without.items()}}
