"""What an override sweeps over, by Hydra's own grammar and in the order of Hydra's own sweeper."""

from collections.abc import Sequence
from pathlib import Path

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException

from trieye.config.redaction import redacted_text
from trieye.exceptions import ConfigurationError


def axes_of(overrides: Sequence[str], config_loader: ConfigLoader | None = None) -> list[tuple[str, tuple[str, ...]]]:
    """Return each key as it is typed, with all its values; one for a key that does not vary.

    A key that is typed twice has the values of the last time in the place of the first.

    Args:
        overrides: As typed.
        config_loader: Knows the options of groups, over which `glob(*)` sweeps.

    Raises:
        ConfigurationError: Something is no override, or is a range of numbers that has no steps.
    """
    try:
        items = OverridesParser.create(config_loader=config_loader).parse_overrides(list(overrides))
    except HydraException as error:
        raise ConfigurationError(redacted_text(str(error))) from error
    found: dict[str, tuple[str, ...]] = {}
    for item in items:
        key = item.get_key_element()
        if not item.is_sweep_override():
            found[key] = (str(item.get_value_element_as_str()),)
        elif item.is_discrete_sweep():
            try:
                found[key] = tuple(item.sweep_string_iterator())
            except HydraException as error:
                raise ConfigurationError(
                    f"{item.input_line}: {error}; which options there are is known to the program only, so start "
                    "that with -m"
                ) from error
        else:
            raise ConfigurationError(
                f"{item.input_line}: an interval has no steps, so a grid cannot have it; type values, as in "
                f"{key}=1,2,3 or {key}=range(1,4), or let a search draw them, with hydra.sweeper.kind=random"
            )
    return list(found.items())


def quoted_path(path: Path) -> str:
    """Return a path as a value of Hydra's grammar."""
    return QuotedString(str(path), Quote.single).with_quotes()
