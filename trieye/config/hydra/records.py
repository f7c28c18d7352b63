"""Records: a config as Hydra writes it into files, without secrets."""

import functools
import os
from collections.abc import Callable
from pathlib import Path
from secrets import token_hex
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from trieye.config.hydra.launch import Launch, launch_info
from trieye.config.hydra.loader import Loader, parsed, quoted
from trieye.config.redaction import own_variable, redacted, variable_of

_FILES = ("config.yaml", "hydra.yaml", "overrides.yaml")


def sheltered(override: str, loader: Loader) -> str:
    """Return an override, quoted for Hydra, with an environment variable in the place of a secret.

    Hydra writes overrides to several files, and launchers pickle them; the variable gives the job the value back. What
    stands inside of a list or dict, or is an axis of a sweep, is left to `redact_records`.
    """
    (item,) = parsed([override], loader.config_type)
    value = None if item.is_sweep_override() or item.is_delete() or loader.is_choice(item) else item.value()
    if not isinstance(value, str | int | float) or redacted(value, _key(item)) == value:
        return quoted(override, loader.config_type)
    variable = variable_of(str(value)) or own_variable(_key(item))
    os.environ[variable] = str(value)
    return f"{item.get_key_element()}=${{oc.env:{variable}}}"


class RedactingTask:
    """A task that removes secrets from the records that Hydra has just written of its job, and then runs.

    Args:
        task: The task function of the program.
    """

    def __init__(self, task: Callable[[DictConfig], Any]) -> None:
        functools.update_wrapper(self, task)
        self._task = task

    @classmethod
    def of(cls, task: Callable[[DictConfig], Any]) -> "RedactingTask":
        """Return the task, wrapped unless it redacts already."""
        return task if isinstance(task, cls) else cls(task)

    def __call__(self, composed: DictConfig) -> Any:
        """Redact the records and run the task."""
        if (launch := launch_info()) is not None:
            redact_records(composed, launch)
        return self._task(composed)


def redact_records(composed: DictConfig, launch: Launch) -> None:
    """Remove secrets from the YAML files that Hydra has just written of a job.

    Raises:
        OSError: A file cannot be written.
    """
    hydra = HydraConfig.get()
    if not any(_differs(_plain(config)) for config in (composed, hydra)):
        return
    paths = [launch.output_dir / str(hydra.output_subdir) / name for name in _FILES]
    if launch.sweep_dir is not None:
        paths.append(launch.sweep_dir / "multirun.yaml")
    for path in paths:
        if path.is_file() and _differs(_plain(stored := OmegaConf.load(path))):
            write_redacted(stored, path)


def write_redacted(config: Any, path: Path) -> None:
    """Replace a YAML file atomically by a config without secrets.

    Raises:
        OSError: The file cannot be written.
    """
    scratch = path.with_name(f".{path.name}-{token_hex(4)}")
    with scratch.open("x", encoding="utf-8") as file:
        file.write(OmegaConf.to_yaml(OmegaConf.create(redacted(_plain(config)))))
    scratch.replace(path)


def _plain(config: Any) -> Any:
    return OmegaConf.to_container(config, resolve=False, enum_to_str=True)


def _differs(held: Any) -> bool:
    return bool(redacted(held) != held)


def _key(item: Override) -> str:
    return str(item.key_or_group)
