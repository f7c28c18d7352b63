"""The run that a command is given: its directory and its config."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trieye.cli.found_runs import CONFIGS
from trieye.config import TrieyeConfig
from trieye.config.base import did_you_mean
from trieye.config.fingerprint import json_of
from trieye.exceptions import ConfigurationError
from trieye.files.run_files import BUFFERS, CHECKPOINTS, RUN_RECORD
from trieye.sinks.fan_out import make_sinks

SAVED_DIRECTORIES = (CHECKPOINTS, BUFFERS)
MAX_SHOWN = 10


def find_run(given: str, root: Path, *, marks: Sequence[str] = (RUN_RECORD,)) -> Path:
    """Return the absolute directory of a run; symbolic links are resolved, see `find_entry`."""
    return find_entry(given, root, marks=marks).resolve()


def find_entry(given: str, root: Path, *, marks: Sequence[str] = (RUN_RECORD,)) -> Path:
    """Return the directory of a run, or the symbolic link to it that the user named.

    Args:
        given: Its directory, or its name below `root`.
        root: Directory of all apps.
        marks: Files that identify the directory of a run: a run has at least one.

    Raises:
        ConfigurationError: There is no such run, or there are several; the message lists the runs below `root`.
    """
    path = Path(given)
    if any((path / mark).exists() for mark in marks):
        return path
    runs = sorted({found.parent for mark in marks for found in root.glob(f"*/*/*/{mark}")})
    found = [run for run in runs if given in {_full_name(run), run.name}]
    if len(found) == 1:
        return found[0]
    if found:
        names = [_full_name(run) for run in found]
        shown = names if len(set(names)) == len(names) else [str(run) for run in found]
        raise ConfigurationError(f"run {given!r}: there are several of that name; say which: {', '.join(shown)}")
    if path.is_dir():
        raise ConfigurationError(f"run {given!r}: that directory is no run, it has no {' and no '.join(marks)}")
    raise ConfigurationError(f"run {given!r}: {_nothing_found(given, root, runs)}")


def _full_name(run_dir: Path) -> str:
    return f"{run_dir.parents[1].name}/{run_dir.name}"


def _nothing_found(given: str, root: Path, runs: list[Path]) -> str:
    advice = "give its directory, or with --root the directory of all apps"
    if not root.is_dir():
        missing = f"there is neither such a directory nor {root.resolve()} with runs in it"
        return f"{missing}; go where the run was started, or {advice}"
    names = sorted(_full_name(run) for run in runs)
    hint = did_you_mean(given, {*names, *(run.name for run in runs)})
    shown = ", ".join(names[:MAX_SHOWN]) + (f" and {len(names) - MAX_SHOWN} more" if names[MAX_SHOWN:] else "")
    return f"there is none in {root.resolve()}{hint} (runs there: {shown or 'none'}); {advice}"


def add_working_directory() -> None:
    """Let Python import a project that is not installed from the directory where its run was started."""
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)


def recorded_config(run_dir: Path) -> TrieyeConfig:
    """Return the config of a run as its configs.json has it.

    Raises:
        ConfigurationError: configs.json is missing or damaged.
    """
    return _config_of(run_dir, is_here=False)


def config_of(run_dir: Path) -> TrieyeConfig:
    """Return the config of a run for the directory in which the run is now, without what belongs to training only.

    Raises:
        ConfigurationError: configs.json is missing or damaged, or the directory is not where runs are.
    """
    return _config_of(run_dir, is_here=True)


def sinks_of(config: TrieyeConfig) -> list[str]:
    """Return the names of the sinks that get the history of a run, not only what is new.

    Raises:
        ConfigurationError: The library of a sink is not installed.
    """
    return [sink.name for sink in make_sinks(config.sinks) if not getattr(sink, "live_only", False)]


def _config_of(run_dir: Path, *, is_here: bool) -> TrieyeConfig:
    path = run_dir / CONFIGS
    try:
        # a project has groups of its own, which trieye does not know
        fields = {name: value for name, value in json_of(path).items() if name in TrieyeConfig.model_fields}
        return TrieyeConfig.model_validate(_moved(fields, run_dir) if is_here else fields)
    except ConfigurationError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else error
        raise ConfigurationError(f"{path}, the config of the run, cannot be read: {reason}") from error


def _moved(fields: Mapping[str, Any], run_dir: Path) -> dict[str, Any]:
    """Return the fields of a config for the directory of the run, and without the sinks that only training needs."""
    sinks = dict(fields["sinks"])
    for name, key in (("console", "enabled"), ("mlflow", "system_metrics"), ("wandb", "system_metrics")):
        sinks[name] = {**sinks.get(name, {}), key: False}
    names = {"app_name": run_dir.parents[1].name, "run_name": run_dir.name}
    return {**fields, **names, "persistence": _persistence(fields["persistence"], run_dir), "sinks": sinks}


def _persistence(held: Mapping[str, Any], run_dir: Path) -> dict[str, Any]:
    runs, app_dir = held["runs_dir_name"], run_dir.parents[1]
    if run_dir.parent.name != runs or app_dir == app_dir.parent:
        raise ConfigurationError(
            f"{run_dir} is not where a run belongs, and what its sinks write lies beside it: "
            f"move it to <root>/<app>/{runs}/{run_dir.name}"
        )
    kept = {key: value for key, value in held.items() if key != "MLFLOW_TRACKING_URI"}
    return {**kept, "root_data_dir": str(app_dir.parent), "mlflow_tracking_uri": tracking_uri_of(held, run_dir)}


def tracking_uri_of(held: Mapping[str, Any], run_dir: Path) -> str:
    """Return the MLflow store that a run used, not that of this command's environment; its own one moves with it.

    Args:
        held: The `persistence` of its configs.json.
        run_dir: Its directory.
    """
    if held["mlflow_tracking_uri"] is not None:
        return str(held["mlflow_tracking_uri"])
    used, own = str(held["MLFLOW_TRACKING_URI"]), f"{held['mlflow_dir_name']}/mlflow.db"
    is_own = used.startswith("sqlite:///") and used.endswith(f"/{own}")
    return f"sqlite:///{run_dir.parents[1] / own}" if is_own else used
