"""Removes secrets from the config files that Hydra writes for each job."""

import functools
from collections.abc import Callable
from pathlib import Path
from secrets import token_hex
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from trieye.config.hydra.axes import typed
from trieye.config.hydra.launch import Launch, launch_info
from trieye.config.hydra.loader import Loader
from trieye.config.redaction import in_environment, redacted, with_references

_CONFIG = "config.yaml"
_FILES = (_CONFIG, "hydra.yaml", "overrides.yaml")


def reference_of(item: Override, loader: Loader) -> str | None:
    """Return an override with references to environment variables, which are set, for its secrets; None without any.

    Hydra writes overrides to several files and launchers pickle them; the job reads the values from the variables.
    Secrets in axes of a sweep are removed by `redact_records`.
    """
    value, key = None if item.is_sweep_override() or item.is_delete() else item.value(), str(item.key_or_group)
    if redacted(value, key) == value or loader.is_choice(item):
        return None
    reference = in_environment(value, key)
    return f"{item.get_key_element()}={reference if isinstance(reference, str) else typed(reference)}"


class RedactingTask:
    """A task that removes secrets from Hydra's records of its job before it runs.

    Args:
        task: The task function of the program.
    """

    def __init__(self, task: Callable[[DictConfig], Any]) -> None:
        functools.update_wrapper(self, task)
        self._task = task

    @classmethod
    def of(cls, task: Callable[[DictConfig], Any]) -> "RedactingTask":
        """Return the task, wrapped unless it already is a `RedactingTask`."""
        return task if isinstance(task, cls) else cls(task)

    def __call__(self, composed: DictConfig) -> Any:
        """Redact the records and run the task."""
        if (launch := launch_info()) is not None:
            redact_records(composed, launch)
        return self._task(composed)


def redact_records(composed: DictConfig, launch: Launch) -> None:
    """Remove secrets from the YAML files that Hydra has written for a job.

    Raises:
        OSError: A file cannot be written.
    """
    hydra = HydraConfig.get()
    if not _has_secrets([_plain(config) for config in (composed, hydra)]):
        return
    paths = [launch.output_dir / str(hydra.output_subdir) / name for name in _FILES]
    if launch.sweep_dir is not None:
        paths.append(launch.sweep_dir / "multirun.yaml")
    for path in paths:
        if path.is_file() and _has_secrets(_plain(stored_config := OmegaConf.load(path))):
            write_redacted(stored_config, path)


def set_references(composed: DictConfig, key: str) -> None:
    """Replace the secrets at a key of a composed config by references to environment variables."""
    value = OmegaConf.select(composed, key)
    OmegaConf.update(composed, key, in_environment(_plain(value) if OmegaConf.is_config(value) else value, key))


def write_redacted(config: Any, path: Path) -> None:
    """Atomically replace a YAML file by a config without secrets.

    A program can start from `config.yaml`, which refers to an environment variable for each secret.

    Raises:
        OSError: The file cannot be written.
    """
    scratch, values = path.with_name(f".{path.name}-{token_hex(4)}"), _plain(config)
    with scratch.open("x", encoding="utf-8") as file:
        public_values = with_references(values) if path.name == _CONFIG else redacted(values)
        file.write(as_yaml(public_values))
    scratch.replace(path)


def as_yaml(values: dict[str, Any]) -> str:
    """Return plain values as YAML; unlike PyYAML, quote texts that Hydra reads as numbers, such as 1e3."""
    return OmegaConf.to_yaml(OmegaConf.create(values))


def _plain(config: Any) -> Any:
    return OmegaConf.to_container(config, resolve=False, enum_to_str=True)


def _has_secrets(values: Any) -> bool:
    return bool(redacted(values) != values)
