"""What may be logged: names, numbers, steps and contexts, with errors that name the event."""

import operator
from collections.abc import Mapping
from typing import Any

_PLAIN = (str, int, float, bool, type(None))


def name_of(name: Any) -> str:
    """Return an event's name.

    Raises:
        TypeError: It is no string.
        ValueError: It is empty.
    """
    if not isinstance(name, str):
        raise TypeError(f"log({name!r}, ...): the name of an event is a string, and this is a {type(name).__name__}")
    if not name:
        raise ValueError("log('', ...): the name of an event is empty")
    return name


def number_of(name: str, value: Any) -> float:
    """Return a value as a float.

    Raises:
        TypeError: It is no number, NumPy scalar or tensor with one element.
        ValueError: It is a text that is no number, or an integer beyond the range of a float.
    """
    try:
        return float(value)
    except OverflowError as error:
        raise ValueError(f"log({name!r}, ...): the value is beyond the range of a float") from error
    except (TypeError, RuntimeError) as error:
        raise TypeError(f"log({name!r}, {_shown(value)}): a value is one number: {error}") from error
    except ValueError as error:
        raise ValueError(f"log({name!r}, {_shown(value)}): a value is one number: {error}") from error


def step_of(name: str, step: Any) -> int:
    """Return a global step as an int.

    Raises:
        TypeError: It is no integer.
    """
    try:
        return operator.index(step)
    except TypeError as error:
        raise TypeError(f"log({name!r}, ..., step={_shown(step)}): a step is an integer") from error


def context_of(name: str, context: Any) -> dict[str, Any] | None:
    """Return a copy of a context with plain values, which can be sent to another process.

    Raises:
        TypeError: It is no mapping, or a value is neither a number, a text, a boolean nor None.
    """
    if context is None:
        return None
    if not isinstance(context, Mapping):
        raise TypeError(f"log({name!r}, ..., context={_shown(context)}): a context is a dict")
    return {str(key): _plain(name, key, value) for key, value in context.items()}


def _plain(name: str, key: Any, value: Any) -> Any:
    if isinstance(value, _PLAIN):
        return value
    if callable(getattr(value, "item", None)):  # NumPy scalars and tensors
        return _plain(name, key, value.item())
    raise TypeError(f"log({name!r}, ...): context[{key!r}] is a {type(value).__name__}; only plain values can be kept")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."  # noqa: PLR2004 - a line of a terminal
