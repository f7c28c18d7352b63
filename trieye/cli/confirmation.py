"""Confirmation of a command that was read from a file, unless the user's own key signs it."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from trieye.exceptions import ConfigurationError


def confirm(command: Sequence[str], directory: Path | str, *, origin: str, is_signed: bool, is_confirmed: bool) -> None:
    """Show a stored command and ask whether to run it; a signed one needs no confirmation.

    Args:
        command: Its words.
        directory: Where it would run.
        origin: The run or sweep that it was read from.
        is_signed: Whether this user's key signs it.
        is_confirmed: Whether the user has confirmed it on the command line.

    Raises:
        ConfigurationError: The user does not confirm it, or there is no terminal to ask.
    """
    if is_signed or is_confirmed:
        return
    from trieye.snapshot.signing import key_source

    line = f"cd {shlex.quote(str(directory))} && {shlex.join(command)}"
    shown = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in line)  # no escape hides a part of it
    print(f"{origin} stores this command, which is not signed with your key ({key_source()}):", file=sys.stderr)
    print(f"  {shown}", file=sys.stderr, flush=True)
    if not sys.stdin.isatty():
        raise ConfigurationError(f"{origin}: nothing was started; check the command above and add --yes to run it")
    if input("run it? [y/N] ").strip().lower() not in {"y", "yes"}:
        raise ConfigurationError(f"{origin}: nothing was started")
