"""Typing: from a composed config to plain values, and from those to the model."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf, flag_override
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from trieye.config.base import STRICT
from trieye.config.hydra.complaints import complaints
from trieye.config.hydra.kinds import complete
from trieye.config.root import TrieyeConfig
from trieye.exceptions import ConfigurationError

Config = TypeVar("Config", bound=TrieyeConfig)


def plain(node: Any, key: str) -> Any:
    """Return what a node holds at a key, resolved, as plain Python values."""
    found = OmegaConf.select(node, key)
    return OmegaConf.to_container(found, resolve=True) if OmegaConf.is_config(found) else found


def without_hydra(config: DictConfig) -> DictConfig:
    """Return the config without the node `hydra`, which can still be interpolated from."""
    copy = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
    OmegaConf.set_struct(copy, value=True)
    return copy


@contextmanager
def as_in_a_job(config: DictConfig) -> Iterator[None]:
    """Let `${hydra:...}` resolve as it will in the job; what only the job knows gets a stand-in."""
    instance = HydraConfig.instance()
    before = instance.cfg
    with flag_override(config, ["struct", "readonly"], [False, False]):
        for key, value in {"runtime.output_dir": str(Path.cwd() / "outputs"), "job.id": "0", "job.num": 0}.items():
            if OmegaConf.is_missing(config.hydra[key.split(".")[0]], key.split(".")[1]):
                OmegaConf.update(config.hydra, key, value)
    instance.set_config(config)
    try:
        yield
    finally:
        instance.cfg = before


def resolved(config: DictConfig, config_type: type[TrieyeConfig]) -> dict[str, Any]:
    """Return a composed config without the node `hydra` as plain values, with its variants complete.

    Raises:
        ConfigurationError: A value is missing, or an interpolation leads nowhere.
    """
    try:
        complete(config, config_type, plain(HydraConfig.get(), "runtime.choices"))
        missing = sorted(OmegaConf.missing_keys(config))
        values: Any = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigurationError(f"{error.full_key or 'the config'}: {str(error).splitlines()[0]}") from error
    if missing:
        raise ConfigurationError(
            "\n".join(f"{key} has no value; give it one with {key}=<value>, or in the config files" for key in missing)
        )
    return {str(key): value for key, value in values.items()}


def typed(values: dict[str, Any], config_type: type[Config], *, overrides: Sequence[str], working_dir: Path) -> Config:
    """Return the typed config of plain values.

    Args:
        values: A resolved config.
        config_type: The model.
        overrides: What was typed, for the messages.
        working_dir: What relative paths are relative to.

    Raises:
        ConfigurationError: A value is not allowed; the message has a line for each mistake.
    """
    try:
        made = config_type.model_validate(values, context=STRICT)
    except ValidationError as error:
        raise ConfigurationError("\n".join(complaints(error, config_type, values, overrides))) from error
    made.persistence = made.persistence.anchored(working_dir)
    return made
