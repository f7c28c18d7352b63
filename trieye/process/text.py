"""Text for terminals: control characters made visible, commands quoted, counts and durations formatted."""

import re
import shlex
from pathlib import Path

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def visible(text: str, *, keep: str = "\n\t") -> str:
    """Replace control characters with symbols such as `␛`, so that a terminal displays rather than executes them.

    Args:
        text: Any text.
        keep: Control characters to leave unchanged.
    """
    return _CONTROL.sub(lambda match: match[0] if match[0] in keep else _picture(ord(match[0])), text)


def _picture(code: int) -> str:
    return chr(0x2400 + code) if code < ord(" ") else "\N{REPLACEMENT CHARACTER}"


def command_text(*words: str | Path) -> str:
    """Return a command of trieye as a shell reads it: words quoted, and paths not mistaken for options."""
    paths = (f"./{word}" if isinstance(word, Path) and str(word).startswith("-") else str(word) for word in words)
    return shlex.join(["trieye", *paths])


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, such as `1 job` or `2 jobs`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def duration(seconds: float) -> str:
    """Format a duration in its two largest units, such as `2 h 05 min`."""
    minutes, rest_s = divmod(round(max(seconds, 0.0)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest_s:02} s" if minutes else f"{rest_s} s"
