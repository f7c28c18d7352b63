"""Keys and values of overrides as typed; imports no Hydra."""

from collections.abc import Iterable


def bare(key: str) -> str:
    """Return a key without Hydra's prefixes `+` and `~`."""
    return key.lstrip("+~")


def values_of(overrides: Iterable[str]) -> dict[str, str]:
    """Return the values of overrides, as typed, by key without prefixes."""
    return {bare(key): value for key, _, value in (word.partition("=") for word in overrides)}
