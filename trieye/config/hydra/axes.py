"""Values and search dimensions that an override sweeps over, in Hydra's grammar and order."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, Quote, QuotedString, RangeSweep
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from trieye.config.redaction import redacted_text
from trieye.exceptions import ConfigurationError

_PLAIN = re.compile(r"[A-Za-z][\w./-]*", re.ASCII)
_SPECIAL = {"true", "false", "null", "nan", "inf"}
"""Words that Hydra's grammar reads as values other than text."""
_SPECIAL_IN_KEYS = re.compile(r"[\\()\[\]{}:=, \t]")


def axes_of(overrides: Sequence[str], config_loader: ConfigLoader | None = None) -> list[tuple[str, tuple[str, ...]]]:
    """Return each key as typed, with its values; a key that does not vary has one value.

    If a key occurs twice, its last values are used, at its first position.

    Args:
        overrides: Overrides as typed.
        config_loader: Lists the options of a group for `glob(*)`.

    Raises:
        ConfigurationError: An override cannot be parsed, has no values, or is an interval.
    """
    axes: dict[str, tuple[str, ...]] = {}
    items = {override.get_key_element(): override for override in parsed(overrides, config_loader)}
    for key, override in items.items():
        if not override.is_sweep_override():
            axes[key] = (str(override.get_value_element_as_str()),)
        elif override.is_discrete_sweep():
            try:
                axes[key] = tuple(override.sweep_string_iterator())
            except HydraException as error:
                raise ConfigurationError(
                    f"{override.input_line}: only the program knows the options of a group; run it with -m, or "
                    "list them"
                ) from error
            except OmegaConfBaseException as error:
                raise ConfigurationError(
                    f"{override.input_line}: a range cannot be combined with other values"
                ) from error
            except ValueError as error:  # from a range
                raise ConfigurationError(f"{override.input_line}: {error}") from error
            if not axes[key]:
                raise ConfigurationError(f"{override.input_line}: {key} has no values, so the sweep has no jobs")
        else:
            raise ConfigurationError(
                f"{override.input_line}: a grid cannot sweep over an interval; list the values, as in {key}=1,2,3 or "
                f"{key}=range(1,4), or choose a search with hydra.sweeper.kind=random"
            )
    return list(axes.items())


def parsed(overrides: Sequence[str], config_loader: ConfigLoader | None = None) -> list[Override]:
    """Parse overrides one by one.

    Args:
        overrides: Overrides in Hydra's grammar.
        config_loader: See `axes_of`.

    Raises:
        ConfigurationError: Overrides cannot be parsed; the message has a line for each.
    """
    parser, items, complaints = OverridesParser.create(config_loader=config_loader), list[Override](), []
    for override_text in overrides:
        try:
            items += parser.parse_overrides([override_text])
        except (HydraException, ValueError) as error:
            complaints.append(_not_parsed(override_text, str(error.__cause__ or error.__context__ or error)))
    if complaints:
        raise ConfigurationError("\n".join(complaints))
    return items


def _not_parsed(override_text: str, reason: str) -> str:
    text = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in override_text)
    public_text = redacted_text(text)
    detail = f" ({' '.join(reason.split())})" if public_text == text else ""  # the reason quotes the value
    key = text.partition("=")[0].strip() or "key"
    advice = f"without spaces around =, and quote special characters, as in '{key}=\"...\"'"
    return f"{public_text}: not a valid key=value override{detail}; type it {advice}"


def quoted(text: str) -> str:
    """Return a text, quoted as a value in Hydra's grammar."""
    return QuotedString(text, Quote.single).with_quotes()


def typed(value: Any) -> str:
    """Return a value as it is typed in an override: a number, a text, null, a list or a dict of these."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, list):
        return f"[{','.join(map(typed, value))}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{_typed_key(key)}:{typed(item)}" for key, item in value.items()) + "}"
    if not isinstance(value, str):
        return repr(value)
    return value if _is_plain(value) else quoted(value)


def words_of(params: Mapping[str, Any]) -> list[str]:
    """Return the overrides of `hydra.sweeper.params`, whose texts are in Hydra's grammar: `1,2` or `choice(a,b)`."""
    return [f"{key}={value if isinstance(value, str) else typed(value)}" for key, value in params.items()]


def _typed_key(key: Any) -> str:
    """Return a key of a dict, which Hydra's grammar escapes instead of quoting."""
    return _SPECIAL_IN_KEYS.sub(r"\\\g<0>", key) if isinstance(key, str) else typed(key)


def _is_plain(text: str) -> bool:
    """Return whether a text needs no quotes as a value."""
    return bool(_PLAIN.fullmatch(text)) and text.lower() not in _SPECIAL


def normalized(text: str) -> str:
    """Return a value in Hydra's grammar as `typed` writes it; a text that is no value is quoted."""
    try:
        return text if _is_plain(text) else typed(value_of(text))
    except ConfigurationError:
        return quoted(text)


def value_of(text: str, key: str = "value") -> Any:
    """Parse a value in Hydra's grammar to a Python value: a number, a string, a list.

    Args:
        text: The value as typed.
        key: Its key, for messages.

    Raises:
        ConfigurationError: The text is not a valid value, or contains several.
    """
    (override,) = parsed([f"{key}={text}"])
    if override.is_sweep_override():
        raise ConfigurationError(f"{key}={text}: more than one value")
    return override.value()


@dataclass(frozen=True, slots=True)
class Dimension:
    """Search space of one key: choices or an interval.

    Attributes:
        key: The key as typed.
        choices: Values as typed; empty for an interval.
        low: Lower end of an interval.
        high: Upper end of an interval, inclusive.
        is_int: Whether only integers are chosen.
        is_log: Whether values are chosen on a logarithmic scale.
    """

    key: str
    choices: tuple[str, ...] = ()
    low: float = 0.0
    high: float = 0.0
    is_int: bool = False
    is_log: bool = False

    def extends(self, before: "Dimension") -> bool:
        """Return whether an earlier space of the key is part of this one: a narrower interval, or the first choices."""
        if self.choices or before.choices:
            return bool(before.choices) and self.choices[: len(before.choices)] == before.choices
        same_scale = (self.is_int, self.is_log) == (before.is_int, before.is_log)
        return same_scale and self.low <= before.low and self.high >= before.high


def dimensions_of(overrides: Sequence[str], config_loader: ConfigLoader | None = None) -> list[Dimension]:
    """Return the search space of each key: `interval(a,b)`, a range of integers, or single values.

    `tag(log, interval(1e-5,1e-2))` has a logarithmic scale, `tag(int, interval(1,8))` or `int(interval(1,8))` contains
    integers only.

    Args:
        overrides: Overrides as typed.
        config_loader: See `axes_of`.

    Raises:
        ConfigurationError: An override cannot be parsed, or an interval is invalid.
    """
    dimensions = []
    for override_text in overrides:
        (override,) = parsed([override_text], config_loader)
        sweep = override.value() if override.is_sweep_override() else None
        if isinstance(sweep, IntervalSweep):
            dimensions.append(_numeric(override, sweep, float(sweep.start or 0.0), float(sweep.end or 0.0)))
        elif isinstance(sweep, RangeSweep) and isinstance(sweep.start, int) and sweep.step == 1 and not sweep.shuffle:
            numbers = sweep.range()
            if not numbers:
                raise ConfigurationError(f"{override_text}: the range is empty")
            dimensions.append(_numeric(override, sweep, min(numbers), max(numbers)))
        else:
            ((key, values),) = axes_of([override_text], config_loader)
            dimensions.append(Dimension(key, values))
    return list({dimension.key: dimension for dimension in dimensions}.values())


def _numeric(override: Override, sweep: IntervalSweep | RangeSweep, low: float, high: float) -> Dimension:
    name, tags = "range" if isinstance(sweep, RangeSweep) else "interval", sweep.tags
    is_int, is_log = "int" in tags or isinstance(sweep.start, int), "log" in tags
    if unknown := sorted(tags - {"int", "log"}):
        raise ConfigurationError(f"{override.input_line}: unknown tag {unknown[0]!r} (tags: int, log)")
    if not (low < high or name == "range") or (is_log and low <= 0) or high - low == math.inf:
        condition = f"{'0 < ' if is_log else ''}a < b, and finite ends"
        raise ConfigurationError(f"{override.input_line}: {name}(a,b) needs {condition}")
    if is_int and not (float(low).is_integer() and float(high).is_integer()):
        raise ConfigurationError(f"{override.input_line}: an interval of integers needs integers as its ends")
    return Dimension(override.get_key_element(), low=low, high=high, is_int=is_int, is_log=is_log)
