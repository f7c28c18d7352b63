"""Overrides: from what was typed to what Hydra's grammar understands."""

import re
from collections.abc import Iterator, Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from pydantic import BaseModel

from trieye.config.hydra.complaints import holds_text
from trieye.config.redaction import redacted_text
from trieye.exceptions import ConfigurationError

_PLAIN = re.compile(r"~?[\w./+@%$-]*")
_SCALAR = re.compile(r"[+-]?(?:[\d_]+\.?[\d_]*|\.[\d_]+)(?:e[+-]?[\d_]+)?|[+-]?(?:inf|nan)|true|false", re.IGNORECASE)
_PARSER_WORDS = re.compile(r"[A-Z]\w*(?:Exception|Error)\b")


def quoted(override: str, config_type: type[BaseModel]) -> str:
    """Quote what Hydra's grammar lacks, such as letters beyond ASCII and `~/x`, and numbers where text belongs.

    Args:
        override: As typed; the values of a simple sweep, `a,b`, are quoted one by one.
        config_type: Says what is text: `run_name=1e3` is no 1000.0.
    """
    key, _, typed = override.partition("=")
    values = typed.split(",")
    if not all(value and _PLAIN.fullmatch(value) for value in values):
        return override
    is_text = holds_text(config_type, key.lstrip("+").split("."))
    return f"{key}={','.join(_quoted_value(value, is_text=is_text) for value in values)}"


def _quoted_value(value: str, *, is_text: bool) -> str:
    is_strange = not value.isascii() or value.startswith("~") or (is_text and _SCALAR.fullmatch(value))
    return f"'{value}'" if is_strange else value


def check_spaces(overrides: Sequence[str]) -> None:
    """Refuse `key = value`, which a shell hands over in up to three pieces.

    Raises:
        ConfigurationError: There are spaces around a `=`; the message has a line for each.
    """
    mistakes = [f"no spaces around =: type {key}={value or '<value>'}" for key, value in _torn_apart(overrides)]
    if mistakes:
        raise ConfigurationError("\n".join(mistakes))


def _torn_apart(overrides: Sequence[str]) -> Iterator[tuple[str, str]]:
    rest = list(overrides)
    while rest:
        key, equals, value = rest.pop(0).partition("=")
        is_torn = bool(equals) and (key != key.rstrip() or value != value.lstrip())
        if not equals and rest and rest[0].startswith("="):
            is_torn, value = True, rest.pop(0)[1:]
        # `key=` alone is an empty text, and then a key or a deletion follows
        if (equals or is_torn) and not value and rest and "=" not in rest[0] and not rest[0].startswith("~"):
            is_torn, value = True, rest.pop(0)
        if is_torn:
            yield key.strip(), value.strip()


def parsed(overrides: Sequence[str], config_type: type[BaseModel]) -> list[Override]:
    """Parse overrides one by one, quoted for Hydra's grammar.

    Raises:
        ConfigurationError: Some cannot be parsed; the message has a line for each.
    """
    check_spaces(overrides)
    good, bad = [], []
    for override in overrides:
        try:
            good += OverridesParser.create().parse_overrides([quoted(override, config_type)])
        except (HydraException, ValueError) as error:
            bad.append(_not_parsed(override, str(error).splitlines()))
    if bad:
        raise ConfigurationError("\n".join(bad))
    return good


def _not_parsed(override: str, words: Sequence[str]) -> str:
    reason = next(iter(words), "").removeprefix(f"Error parsing override {override!r}").strip()
    shown = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in override)
    is_told = reason and not _PARSER_WORDS.search(reason) and redacted_text(shown) == shown  # it quotes the value
    detail = f" ({reason})" if is_told else ""
    key = shown.partition("=")[0]
    return f"{shown}: this is not key=value; quote values with special characters, as in '{key}=\"...\"'{detail}"


def without_parser_words(text: str) -> str:
    """Return a message of Hydra without the names of exceptions and of OmegaConf's own types."""
    lines = (line for line in text.splitlines() if not re.match(r"\s*(?:full_key|object_type|reference_type)\b", line))
    return re.sub(r"\b\w+(?:Error|Exception)\b(?: raised while composing config)?:\s*", "", "\n".join(lines)).strip()
