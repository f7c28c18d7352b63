"""Secrets are kept out of everything that a run writes down, and taken from the environment again."""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from trieye.exceptions import ConfigurationError

HIDDEN = "***"
"""What stands for a secret in files, parameters, tags and messages; also the key under which configs.json holds the
environment variables that the secrets came from, by the keys of their values."""

_PYDANTIC = "**********"  # what a SecretStr shows
_WORDS = (
    r"(?:pass(?:word|wd|phrase)s?|pwd|secrets?|credentials?|authorization"
    r"|(?:api|access|private|secret|account|auth|encryption|signing|ssh|trieye)[-_]?keys?(?:_id)?)"
)
# the tokens of a language are none
_BEARER = r"(?<!bos_)(?<!eos_)(?<!pad_)(?<!unk_)(?<!sep_)(?<!cls_)(?<!mask_)(?<!stop_)(?<!start_)(?<!end_)token"
_NAME = re.compile(rf"(?:^|[^a-z0-9])(?:{_WORDS}(?=$|\.)|{_BEARER}(?=$|\.\d))", re.IGNORECASE)
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_ASSIGNED = re.compile(
    rf"(?P<before>(?<![A-Za-z0-9])(?:{_WORDS}|{_BEARER}|sig|signature|(?:account|shared_?access|api|access)key)"
    r"(?:=|['\"]:\s*(?=['\"])))"
    r"(?P<secret>'[^']*'|\"[^\"]*\"|(?:[^\s:;,&#'\"\])}]|:(?!\s|$)|,(?!\s|$|[\w.@/+~-]*=))+)",
    re.IGNORECASE,
)
_IN_ASSIGNED = ("pass", "pwd", "secret", "credential", "authorization", "key", "token", "sig")
"""One of these is in whatever `_ASSIGNED` finds."""
# an address: what stands between the user and the host, also where the password has a / or an @ of its own
_PASSWORD = re.compile(r"(?P<before>\w://[^\s/:@?#]*:)(?P<secret>[^\s/?#]+|(?!\d*[/?#])[^\s@]+)(?=@)")
# a token in the place of the user; the container of an Azure address stands there, too
_USER = re.compile(r"(?P<before>(?<!abfs)(?<!abfss)(?<!wasb)(?<!wasbs)(?<!az)://)(?P<secret>[^\s/:@?#]{20,})(?=@)")
_INTERPOLATION = re.compile(r"\$\{.*\}", re.DOTALL)
_OVERRIDE = re.compile(r"(?P<name>[\w.@/+~-]+)=(?P<value>.+)", re.DOTALL)
_SHORTEST, _SHORTEST_PART = 4, 6
"""Characters of a variable's value that is found as a whole, and inside of a text."""


@lru_cache(maxsize=4096)
def looks_secret(name: str) -> bool:
    """Tell whether a key, or an environment variable, holds a secret, by its last words: `db.password`, `GH_TOKEN`.

    What is below `credentials` and the like is secret, too.
    """
    return _NAME.search(_HUMP.sub("_", name)) is not None


def redacted(values: Any, key: str = "") -> Any:
    """Return plain values with `***` in the place of secrets; interpolations such as `${oc.env:X}` stay.

    A secret is the text of a key that looks like one, the password in an address, the value of a query parameter that
    looks like one, and the value of an environment variable that looks like one.
    """
    known = _known()
    return _changed(values, key, lambda name, value: _hidden(name, value, known))


def redacted_text(text: str) -> str:
    """Return a message, a log line or a traceback with `***` in the place of secrets."""
    return _without_parts(text, _known())


def redactor() -> Callable[[str], str]:
    """Return a `redacted_text` for many texts: it knows the secrets that are in the environment now."""
    known = _known()
    return lambda text: _without_parts(text, known)


def recorded(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a config as they may be written down, with the variables that their secrets came from."""
    variables: dict[str, str] = dict(values.get(HIDDEN, {}))
    known = _known()

    def hidden(key: str, value: Any) -> Any:
        shown = _hidden(key, value, known)
        if shown != value:
            text = str(value)
            variables[key] = variable_of(text) or next((known[part] for part in _parts(text, known)), own_variable(key))
        return shown

    held: dict[str, Any] = _changed({key: item for key, item in values.items() if key != HIDDEN}, "", hidden)
    return {**held, HIDDEN: variables} if variables else held


def with_secrets(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a configs.json with its secrets, which are taken from the environment.

    Tags stay as they are; so does what belongs to trieye itself, which looks for its secret when it needs it.

    Raises:
        ConfigurationError: The variable of a secret is not set.
    """
    variables = values.get(HIDDEN, {})

    def found(key: str, value: Any) -> Any:
        if not is_redacted(value) or key.partition(".")[0] in {"tags", "persistence"}:
            return value
        variable = variables.get(key) or own_variable(key)
        secret = os.environ.get(variable, "")
        is_whole = stands_for(value, secret)
        if not secret or not (is_whole or value.count(HIDDEN) == 1):
            raise ConfigurationError(
                f"{key} is a secret, which is written down nowhere; set the environment variable {variable} to it"
            )
        return secret if is_whole else value.replace(HIDDEN, secret)

    held: dict[str, Any] = _changed({key: item for key, item in values.items() if key != HIDDEN}, "", found)
    return held


def is_redacted(value: Any) -> bool:
    """Tell whether a secret is missing in a value."""
    return isinstance(value, str) and HIDDEN in value


def stands_for(shown: str, text: str) -> bool:
    """Tell whether a value in which a secret is missing may be that of a text."""
    pattern = ".+".join(re.escape(part) for part in shown.replace(_PYDANTIC, HIDDEN).split(HIDDEN))
    return HIDDEN not in text and re.fullmatch(pattern, text, re.DOTALL) is not None


def own_variable(key: str) -> str:
    """Return the environment variable of a secret that came from none."""
    return "TRIEYE_SECRET_" + re.sub(r"\W", "_", key).upper()


def variable_of(text: str) -> str | None:
    """Return the environment variable that holds a text."""
    return next((name for name, value in os.environ.items() if value == text and len(text) >= _SHORTEST), None)


def _known() -> dict[str, str]:
    """Return the secrets in the environment, and the variables that hold them; a path, as of a key file, is none."""
    return {
        value: name
        for name, value in os.environ.items()
        if len(value) >= _SHORTEST and looks_secret(name) and not os.path.exists(value)  # noqa: PTH110 - for any text
    }


def _changed(value: Any, key: str, change: Callable[[str, Any], Any]) -> Any:
    """Return nested dicts and lists with their leaves changed; an item of a list has its number as the key."""
    if isinstance(value, Mapping):
        return {name: _changed(item, f"{key}.{name}" if key else str(name), change) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_changed(item, f"{key}.{number}", change) for number, item in enumerate(value)]
    return change(key, value)


def _hidden(key: str, value: Any, known: Mapping[str, str]) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and looks_secret(key) and not key.lower().endswith("token"):
        return HIDDEN
    if not isinstance(value, str) or not value or _INTERPOLATION.fullmatch(value):
        return value
    if looks_secret(key) or value in known or value == _PYDANTIC:
        return HIDDEN
    override = _OVERRIDE.fullmatch(value)  # the value of an axis of a sweep has commas
    if override and looks_secret(override["name"]) and not _INTERPOLATION.fullmatch(override["value"]):
        return f"{override['name']}={HIDDEN}"
    return _without_parts(value, known)


def _without_parts(text: str, known: Mapping[str, str]) -> str:
    # most texts have none of these: a line that a program prints is looked through in 2 instead of 30 microseconds
    if "://" in text:
        text = _USER.sub(_covered, _PASSWORD.sub(_covered, text))
    folded = text.casefold()
    if any(part in folded for part in _IN_ASSIGNED):
        text = _ASSIGNED.sub(_covered, text)
    for secret in _parts(text, known):
        text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(secret)}(?![A-Za-z0-9])", HIDDEN, text)
    return text


def _parts(text: str, known: Mapping[str, str]) -> Iterator[str]:
    return (secret for secret in known if len(secret) >= _SHORTEST_PART and secret in text)


def _covered(match: re.Match[str]) -> str:
    before, secret = match.groupdict().get("before", ""), match["secret"]
    return match[0] if secret.strip("'\"").startswith("${") else f"{before}{HIDDEN}"
