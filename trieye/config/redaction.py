"""Redaction of secrets in everything that a run writes, and their restoration from the environment."""

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from trieye.exceptions import ConfigurationError

HIDDEN = "***"
"""Placeholder of a secret in files, parameters, tags and messages; also the key in configs.json below which the
environment variable of each secret is stored, by the key of its value."""

_PYDANTIC = "**********"  # the placeholder of a SecretStr
_WORDS = (
    r"(?:pass(?:word|wd|phrase)s?|pwd|secrets?|credentials?|authorization"
    r"|(?:api|access|private|secret|account|auth|encryption|signing|ssh|trieye)[-_]?keys?(?:_id)?)"
)
# special tokens of language models are not secrets
_BEARER = r"(?<!bos_)(?<!eos_)(?<!pad_)(?<!unk_)(?<!sep_)(?<!cls_)(?<!mask_)(?<!stop_)(?<!start_)(?<!end_)token"
_NAME = re.compile(rf"(?:^|[^a-z0-9])(?:{_WORDS}(?=$|\.)|{_BEARER}(?=$|\.\d))", re.IGNORECASE)
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_BEGINNING = r"(?:(?<![A-Za-z0-9])|(?-i:(?<=[a-z0-9])(?=[A-Z])))"
_NUMBER = r"(?:[+-]?(?:[0-9][0-9_]*(?:\.[0-9]*)?|\.[0-9]+)(?:e[+-]?[0-9]+)?|true|false|null)"
_NUMBERS = (  # also choices, ranges and intervals of Hydra's grammar
    r"(?:(?:choice|float|int|interval|range|shuffle|sort|tag)\(\s*(?:(?:int|log)\s*,\s*)*)*"
    rf"{_NUMBER}(?:\s*,\s*{_NUMBER})*(?:\s*\))*"
)
_ASSIGNED = re.compile(
    rf"(?P<before>(?:[?&;][\w.-]*?{_BEGINNING}(?:sig|signature|{_BEARER})"  # of a URL
    rf"|{_BEGINNING}(?:{_WORDS}|{_BEARER}(?!={_NUMBERS}(?:[\s;&#'\"\])}}]|:?(?:\s|$)|,(?:\s|$|[\w.@/+~-]*=)))"
    r"|(?:sig|signature)(?=(?:=|['\"]:\s*)b?['\"]?[^\s,;&'\"()]{28})|(?:account|shared_?access|api|access)key|shared_?access_?signature))"
    r"(?:=|['\"]:\s*(?=b?['\"])))"
    r"(?P<secret>b?'[^']*'|b?\"[^\"]*\"|(?:[^\s:;,&#'\"\])}]|:(?!\s|$)|,(?!\s|$|[\w.@/+~-]*=))+)",
    re.IGNORECASE,
)
_END = r"(?=[ \t]*(?:[,}\]]|$)|[ \t]+#)"
_KEY = (  # of an item in a dict, or of a line of YAML
    rf"{_BEGINNING}(?:{_WORDS}|{_BEARER}(?![ \t]*:[ \t]*-?[\d.]+(?:e[+-]?\d+)?{_END}))['\"]?[ \t]*:"
    rf"(?![ \t]*(?:null|none|true|false|yes|no|read|write|~|''|\"\"){_END})"
)
_QUOTED = r"'(?:\\.|[^'\\\n])*'|\"(?:\\.|[^\"\\\n])*\""
_NESTED = r"\{(?:[^{}\n]|\{[^{}\n]*\})*\}|\[(?:[^\[\]\n]|\[[^\[\]\n]*\])*\]"
_LETTER = r"(?:\\.|\$\{[^{}\n]*\}|[^\s\\,{}])"
_ITEM = re.compile(
    rf"(?P<before>[{{,][ \t]*['\"]?(?:\\.|[^\s,{{}}:'\"\\])*?{_KEY}[ \t]*)"
    rf"(?P<secret>(?:{_QUOTED}|{_NESTED}){_END}|{_LETTER}+(?:[ \t]+{_LETTER}+)*)",
    re.IGNORECASE | re.MULTILINE,
)
# a line of YAML, or of its diff
_LINE = re.compile(
    rf"(?P<before>^[ @,\d#+-]*['\"]?(?:[^\W\d][\w.-]*?)?{_KEY}[ \t]+)"
    rf"(?P<secret>(?:{_QUOTED}|{_NESTED}){_END}|\S+(?:[ \t]+[^\s#]\S*)*)",
    re.IGNORECASE | re.MULTILINE,
)
# a key whose value may continue in the next lines, which are indented further
_BLOCK = re.compile(
    rf"[ @,\d#+-]*['\"]?(?:[^\W\d][\w.-]*?)?{_BEGINNING}"
    rf"(?:{_WORDS}['\"]?[ \t]*:(?:[ \t].*)?|{_BEARER}['\"]?[ \t]*:[ \t]+[^\s#].*)\r?",
    re.IGNORECASE,
)
# the first column is the sign of a diff; YAML is indented by at least two columns
_INDENTED = re.compile(r"(?P<before>(?P<sign>[ +-]?)(?P<indent>[ \t]*))(?P<secret>.*?)(?P<end>\r?)")
_IN_ASSIGNED = ("pass", "pwd", "secret", "credential", "authorization", "key", "token", "sig")
"""Every match of `_ASSIGNED`, `_ITEM` and `_LINE` contains one of these."""
# the password in a URL, between user and host, which may contain / and @
_PASSWORD = re.compile(r"(?P<before>\w://[^\s/:@?#]*:)(?P<secret>[^\s/?#]+|(?!\d*[/?#])[^\s@]+)(?=@)")
# a token as user name, except in Azure URLs, where it is the container
_USER = re.compile(r"(?P<before>(?<!abfs)(?<!abfss)(?<!wasb)(?<!wasbs)(?<!az)://)(?P<secret>[^\s/:@?#]{20,})(?=@)")
_INTERPOLATION = re.compile(r"\$\{.*\}", re.DOTALL)
_OVERRIDE = re.compile(r"(?P<name>[\w.@/+~-]+)=(?P<value>.+)", re.DOTALL)
_NUMBER_OVERRIDE = re.compile(rf"[\w.@/+~-]*token={_NUMBERS}", re.IGNORECASE)
_MIN_LENGTH, _MIN_PART_LENGTH = 4, 6
"""Minimum length of a variable's value that is redacted as a whole value, and inside a text."""


@lru_cache(maxsize=4096)
def looks_secret(name: str) -> bool:
    """Return True if the name of a key or environment variable ends like a secret: `db.password`, `GH_TOKEN`.

    Keys below `credentials` and the like are secret, too.
    """
    return _NAME.search(_HUMP.sub("_", name)) is not None


def redacted(values: Any, key: str = "") -> Any:
    """Return plain values with secrets replaced by `***`; interpolations such as `${oc.env:X}` remain.

    Secrets are the values of keys, query parameters and environment variables with secret names, and passwords in URLs.
    """
    secrets = _environment_secrets()
    return _mapped(values, key, lambda name, value: _hidden(name, value, secrets))


def redacted_text(text: str) -> str:
    """Return a message, a log line or a traceback with secrets replaced by `***`."""
    return _without_parts(text, _environment_secrets())


def redacted_override(word: str) -> str:
    """Return an override without secrets; unlike `redacted_text`, also without those below a key: `password.main=x`."""
    return str(redacted(word))


def redacted_values(key: str, values: Sequence[str]) -> list[str]:
    """Return the values of a key of overrides, as typed, without secrets; here, unlike in configs, numbers are texts.

    Numbers of tokens are not secret: `model.max_token=8,16`.
    """
    word = f"{key}={','.join(values)}"
    is_public = _NUMBER_OVERRIDE.fullmatch(word) and redacted_text(word) == word
    return list(values) if is_public else redacted(list(values), key)


def redacted_yaml(text: str) -> str:
    """Return YAML, or a diff of it, with secrets replaced by `***`, which contain no line break."""
    return redacted_text(redacted_items(_LINE.sub(_covered, _without_blocks(text))))


def redacted_items(text: str) -> str:
    """Return dicts in Hydra's grammar or in YAML with `***` as the values of secret keys."""
    return _ITEM.sub(_covered, text)


def without_secret_variables(text: str) -> str:
    """Return a text of the user with the values of secret environment variables replaced by `***`."""
    return _without_variables(text, _environment_secrets())


def redactor() -> Callable[[str], str]:
    """Return a faster `redacted_text` for many texts, with the secrets that are in the environment now."""
    secrets = _environment_secrets()
    return lambda text: _without_parts(text, secrets)


def recorded(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a config without secrets, and with the environment variable of each secret below `***`."""
    variables: dict[str, str] = dict(values.get(HIDDEN, {}))
    secrets = _environment_secrets()

    def hidden(key: str, value: Any) -> Any:
        redacted_value = _hidden(key, value, secrets)
        if redacted_value != value:
            variables[key] = _variable(key, str(value), secrets)
        return redacted_value

    redacted_values: dict[str, Any] = _mapped({key: item for key, item in values.items() if key != HIDDEN}, "", hidden)
    return {**redacted_values, HIDDEN: variables} if variables else redacted_values


def with_references(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a config for a YAML file, with `${oc.env:VARIABLE}` instead of each secret."""
    secrets = _environment_secrets()

    def reference(key: str, value: Any) -> Any:
        redacted_value = _hidden(key, value, secrets)
        if redacted_value == value:
            return value
        text = f"${{oc.env:{_variable(key, str(value), secrets)}}}"
        is_part = redacted_value.count(HIDDEN) == 1 and variable_of(str(value)) is None
        return redacted_value.replace(HIDDEN, text) if is_part else text

    complete: dict[str, Any] = _mapped(values, "", reference)
    return complete


def in_environment(value: Any, key: str) -> Any:
    """Return a value with `${oc.env:VARIABLE}` instead of each secret, and set these environment variables."""

    def referring(name: str, leaf: Any) -> Any:
        if redacted(leaf, name) == leaf:
            return leaf
        text, variable = str(leaf), variable_of(str(leaf)) or own_variable(name)
        while os.environ.get(variable, text) != text:  # `a.b` and `a_b` have the same variable
            variable = variable.replace("SECRET_", "SECRET__", 1)
        os.environ[variable] = text
        reference = f"${{oc.env:{variable}}}"
        return reference if isinstance(leaf, str) else f"${{oc.decode:{reference}}}"

    return _mapped(value, key, referring)


def with_secrets(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a configs.json with secrets restored from the environment.

    Tags stay redacted, and so does `persistence`, which restores its own secret.

    Raises:
        ConfigurationError: The environment variable of a secret is not set.
    """
    variables = values.get(HIDDEN, {})

    def restored(key: str, value: Any) -> Any:
        if not is_redacted(value) or key.partition(".")[0] in {"tags", "persistence"}:
            return value
        variable = variables.get(key) or own_variable(key)
        secret = os.environ.get(variable, "")
        is_whole = stands_for(value, secret)
        if not secret or not (is_whole or value.count(HIDDEN) == 1):
            raise ConfigurationError(
                f"{key} is a secret and was not recorded; set the environment variable {variable} to its value"
            )
        return secret if is_whole else value.replace(HIDDEN, secret)

    complete: dict[str, Any] = _mapped({key: item for key, item in values.items() if key != HIDDEN}, "", restored)
    return complete


def is_redacted(value: Any) -> bool:
    """Return True if a value contains the placeholder of a secret."""
    return isinstance(value, str) and HIDDEN in value


def stands_for(redacted_value: str, text: str) -> bool:
    """Return True if a redacted value may come from a text."""
    pattern = ".+".join(re.escape(part) for part in redacted_value.replace(_PYDANTIC, HIDDEN).split(HIDDEN))
    return HIDDEN not in text and re.fullmatch(pattern, text, re.DOTALL) is not None


def own_variable(key: str) -> str:
    """Return the environment variable for a secret that does not come from one."""
    return "TRIEYE_SECRET_" + re.sub(r"\W", "_", key).upper()


def variable_of(text: str) -> str | None:
    """Return the environment variable whose value is a text."""
    return next((name for name in os.environ if os.environ.get(name) == text and len(text) >= _MIN_LENGTH), None)


def _variable(key: str, text: str, secrets: Mapping[str, str]) -> str:
    """Return the environment variable of a secret, or of the secret in a text."""
    return variable_of(text) or next((secrets[part] for part in _parts(text, secrets)), own_variable(key))


def _environment_secrets() -> dict[str, str]:
    """Return the names of environment variables by their secret values; paths, as of key files, are not secrets."""
    return {
        value: name
        for name in filter(looks_secret, os.environ)  # not `items()`: other threads may delete variables meanwhile
        if len(value := os.environ.get(name, "")) >= _MIN_LENGTH and not os.path.exists(value)  # noqa: PTH110 - any text
    }


def _mapped(value: Any, key: str, function: Callable[[str, Any], Any]) -> Any:
    """Apply `function(key, leaf)` to the leaves of nested dicts and lists; items of a list have their index as key."""
    if isinstance(value, Mapping):
        return {name: _mapped(item, f"{key}.{name}" if key else str(name), function) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(item, f"{key}.{number}", function) for number, item in enumerate(value)]
    return function(key, value)


def _hidden(key: str, value: Any, secrets: Mapping[str, str]) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and looks_secret(key) and not key.lower().endswith("token"):
        return HIDDEN
    if not isinstance(value, str) or not value or _INTERPOLATION.fullmatch(value):
        return value
    if looks_secret(key) or value in secrets or value == _PYDANTIC:
        return HIDDEN
    override = _OVERRIDE.fullmatch(value)  # the value of a sweep axis may contain commas
    is_secret = override and looks_secret(override["name"]) and not _NUMBER_OVERRIDE.fullmatch(value)
    if override and is_secret and not _INTERPOLATION.fullmatch(override["value"]):
        return f"{override['name']}={HIDDEN}"
    return _without_parts(redacted_items(value) if ".sweeper.params." in f".{key}" else value, secrets)


def _without_parts(text: str, secrets: Mapping[str, str]) -> str:
    # most texts contain none of these substrings: 2 instead of 30 microseconds for a printed line
    if "://" in text:
        text = _USER.sub(_covered, _PASSWORD.sub(_covered, text))
    folded_text = text.casefold()
    if any(part in folded_text for part in _IN_ASSIGNED):
        if (override := _OVERRIDE.fullmatch(text)) and "{" in override["value"]:
            text = f"{override['name']}={redacted_items(override['value'])}"
        text = _ASSIGNED.sub(_covered, text)
    return _without_variables(text, secrets)


def _without_blocks(text: str) -> str:
    """Return YAML, or a diff of it, with `***` instead of each line below a secret key."""
    lines = []
    key_columns = {"-": math.inf, "+": math.inf}  # of the innermost secret key, before and after the change
    for line in text.split("\n"):
        match = _INDENTED.fullmatch(line)
        assert match is not None  # noqa: S101 - the pattern matches every line
        is_item, column = match["secret"].startswith("- "), len(match["indent"])
        sides = match["sign"].strip() or "-+"
        if not match["secret"] or (
            match["secret"].startswith("#") and all(column <= key_columns[side] for side in sides)
        ):
            lines.append(line)  # neither ends a block
            continue
        is_hidden = False
        for side in sides:
            if column + is_item > key_columns[side]:  # the items of a list may begin in the column of its key
                is_hidden = True
            else:
                key_columns[side] = column + 2 * is_item if _BLOCK.fullmatch(line) else math.inf
        lines.append(f"{match['before']}{HIDDEN}{match['end']}" if is_hidden else line)
    return "\n".join(lines)


def _without_variables(text: str, secrets: Mapping[str, str]) -> str:
    for secret in _parts(text, secrets):
        text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(secret)}(?![A-Za-z0-9])", HIDDEN, text)
    return text


def _parts(text: str, secrets: Mapping[str, str]) -> Iterator[str]:
    return (secret for secret in secrets if len(secret) >= _MIN_PART_LENGTH and secret in text)


def _covered(match: re.Match[str]) -> str:
    prefix, secret = match.groupdict().get("before", ""), match["secret"]
    return match[0] if secret.strip("'\"").startswith("${") else f"{prefix}{HIDDEN}"
