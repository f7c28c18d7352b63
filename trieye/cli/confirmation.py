"""Ask the user to confirm a command line read from a file, unless the user's own key has signed it."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from trieye.exceptions import ConfigurationError


def confirm(command: Sequence[str], directory: Path | str, origin: str, *, is_confirmed: bool) -> None:
    """Show a stored command that this user's key has not signed, and ask whether to run it.

    Args:
        command: The words of the command.
        directory: The directory it would run in.
        origin: The run or sweep that stores the command.
        is_confirmed: Whether the user passed --yes.

    Raises:
        ConfigurationError: The user declines, or standard input is not a terminal.
    """
    if is_confirmed:
        return
    from trieye.snapshot.signing import key_source

    line = f"cd {shlex.quote(str(directory))} && {shlex.join(command)}"
    text = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in line)  # escape codes could hide parts
    print(
        f"{origin} stores this command, which your key ({key_source()}) has not signed for this directory:",
        file=sys.stderr,
    )
    print(f"  {text}", file=sys.stderr, flush=True)
    if not sys.stdin.isatty():
        raise ConfigurationError(f"{origin}: nothing was started; check the command above and add --yes to run it")
    if input("run it? [y/N] ").strip().lower() not in {"y", "yes"}:
        raise ConfigurationError(f"{origin}: nothing was started")
