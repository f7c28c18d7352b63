"""What an override sweeps over, by Hydra's own grammar and in the order of Hydra's own sweeper."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, Quote, QuotedString, RangeSweep
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from trieye.config.redaction import redacted_text
from trieye.exceptions import ConfigurationError


def axes_of(overrides: Sequence[str], config_loader: ConfigLoader | None = None) -> list[tuple[str, tuple[str, ...]]]:
    """Return each key as it is typed, with all its values; one for a key that does not vary.

    A key that is typed twice has the values of the last time in the place of the first.

    Args:
        overrides: As typed.
        config_loader: Knows the options of groups, over which `glob(*)` sweeps.

    Raises:
        ConfigurationError: Something is no override, has no values, or is a range of numbers that has no steps.
    """
    found: dict[str, tuple[str, ...]] = {}
    for item in _parsed(overrides, config_loader):
        key = item.get_key_element()
        if not item.is_sweep_override():
            found[key] = (str(item.get_value_element_as_str()),)
        elif item.is_discrete_sweep():
            try:
                found[key] = tuple(item.sweep_string_iterator())
            except HydraException as error:
                raise ConfigurationError(
                    f"{item.input_line}: which options there are is known to the program only; start that with -m, "
                    "or type them"
                ) from error
            except OmegaConfBaseException as error:
                raise ConfigurationError(f"{item.input_line}: a range cannot stand beside other values") from error
            except ValueError as error:  # of a range
                raise ConfigurationError(f"{item.input_line}: {error}") from error
            if not found[key]:
                raise ConfigurationError(f"{item.input_line}: {key} would have no values, so there would be no jobs")
        else:
            raise ConfigurationError(
                f"{item.input_line}: an interval has no steps, so a grid cannot have it; type values, as in "
                f"{key}=1,2,3 or {key}=range(1,4), or let a search draw them, with hydra.sweeper.kind=random"
            )
    return list(found.items())


def _parsed(overrides: Sequence[str], config_loader: ConfigLoader | None) -> list[Override]:
    parser, items = OverridesParser.create(config_loader=config_loader), []
    for word in overrides:
        try:
            items += parser.parse_overrides([word])
        except HydraException as error:
            shown = redacted_text(word)  # of one with a secret the parser would say that
            said = " ".join(str(error).partition("\nSee https:")[0].split()) if shown == word else "see its brackets"
            raise ConfigurationError(f"{shown}: this is no override: {said}") from error
    return items


def quoted(text: str) -> str:
    """Return a text as a value of Hydra's grammar."""
    return QuotedString(text, Quote.single).with_quotes()


def value_of(text: str) -> Any:
    """Return a value that is typed in Hydra's grammar as Python has it: a number, a text, a list.

    Raises:
        ConfigurationError: It is none, or several.
    """
    (item,) = _parsed([f"value={text}"], None)
    if item.is_sweep_override():
        raise ConfigurationError(f"{text}: this is more than one value")
    return item.value()


@dataclass(frozen=True, slots=True)
class Dimension:
    """What a search may choose for a key.

    Attributes:
        key: As it is typed.
        choices: The values, as typed; empty if it is an interval.
        low: Lower end of an interval.
        high: Upper end of an interval, which belongs to it.
        is_int: Whether whole numbers only.
        is_log: Whether it is searched by orders of magnitude.
    """

    key: str
    choices: tuple[str, ...] = ()
    low: float = 0.0
    high: float = 0.0
    is_int: bool = False
    is_log: bool = False


def dimensions_of(overrides: Sequence[str], config_loader: ConfigLoader | None = None) -> list[Dimension]:
    """Return what a search may choose for each key: `interval(a,b)`, a range of whole numbers, or single values.

    `tag(log, interval(1e-5,1e-2))` is searched by orders of magnitude, `tag(int, interval(1,8))` has whole numbers.

    Args:
        overrides: As typed.
        config_loader: As for `axes_of`.

    Raises:
        ConfigurationError: Something is no override, or an interval is none.
    """
    found = []
    for word in overrides:
        (item,) = _parsed([word], config_loader)
        swept = item.value() if item.is_sweep_override() else None
        if isinstance(swept, IntervalSweep):
            found.append(_interval(item, swept))
        elif isinstance(swept, RangeSweep) and isinstance(swept.start, int) and swept.step == 1 and not swept.shuffle:
            numbers = swept.range()
            key = item.get_key_element()
            found.append(Dimension(key, low=min(numbers), high=max(numbers), is_int=True, is_log="log" in swept.tags))
        else:
            ((key, values),) = axes_of([word], config_loader)
            found.append(Dimension(key, values))
    return list({dimension.key: dimension for dimension in found}.values())


def _interval(item: Override, interval: IntervalSweep) -> Dimension:
    low, high, tags = float(interval.start or 0.0), float(interval.end or 0.0), interval.tags
    is_int, is_log = "int" in tags, "log" in tags
    if unknown := sorted(tags - {"int", "log"}):
        raise ConfigurationError(f"{item.input_line}: unknown tag {unknown[0]!r} (tags: int, log)")
    if not low < high or (is_log and low <= 0):
        wanted = "0 < a < b" if is_log else "a < b"
        raise ConfigurationError(f"{item.input_line}: interval(a,b) needs {wanted}")
    if is_int and not (low.is_integer() and high.is_integer()):
        raise ConfigurationError(f"{item.input_line}: an interval of whole numbers needs whole numbers as its ends")
    return Dimension(item.get_key_element(), low=low, high=high, is_int=is_int, is_log=is_log)
