"""Arguments that several commands have; importing them loads nothing, so that `--help` is there at once."""

import argparse
import re
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from trieye.renames import COMMANDS, OPTIONS

DEFAULT_ROOT = ".trieye_data"
DEFAULT_TIMEOUT_S = 300.0
_RUN = "directory of a run, or its name: run or app/run"
_ROOT = f"directory of all apps (default: {DEFAULT_ROOT} of the project)"
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class AnyOrder(argparse.ArgumentParser):
    """Takes words before, between and after options, as one types them."""

    _is_at_it = _has_actions = _knows_renames = False

    def add_subparsers(self, **options: Any) -> Any:
        """Add the actions of a command, each of which takes its own words."""
        self._has_actions = True
        return super().add_subparsers(**options)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Return what was typed, and what nobody knows."""
        if self._has_actions and args and (rename := COMMANDS.get(f"{self.prog} {args[0]}")):
            self.error(str(rename))
        if self._is_at_it or self._has_actions:
            return super().parse_known_args(args, namespace)
        self._add_renamed()
        self._is_at_it = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_at_it = False

    def _add_renamed(self) -> None:
        """Add the former names of options, which are errors that state the new names."""
        renames, self._knows_renames = () if self._knows_renames else OPTIONS.values(), True
        for rename in renames:
            command, _, option = rename.old.rpartition(" ")
            if f"{self.prog} ".startswith(f"{command} "):
                self.add_argument(option, action=_Renamed, nargs="?", const=rename, help=argparse.SUPPRESS)


class _Renamed(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        parser.error(str(self.const))


def add_run(parser: argparse.ArgumentParser, *, count: int | str | None = None) -> None:
    """Add RUN, --root and --json to a command.

    Args:
        parser: Of the command.
        count: How many runs it takes, as `nargs`; None: one, as `run_name` instead of `run_names`.
    """
    if count is None:
        parser.add_argument("run_name", metavar="RUN", help=_RUN)
    else:
        parser.add_argument("run_names", metavar="RUN", nargs=count, help=_RUN)
    add_root(parser)
    add_json(parser)


def add_root(parser: argparse.ArgumentParser, default: Path | None = None) -> None:
    """Add --root to a command.

    Args:
        parser: Of the command.
        default: None: the directories of the project around the working directory.
    """
    shown = _ROOT if default is None else f"directory of all apps (default: {default})"
    parser.add_argument("--root", type=Path, default=default, metavar="DIR", help=shown)


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add --json to a command."""
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")


def add_checkpoint(parser: argparse.ArgumentParser, default: str = "best") -> None:
    """Add --checkpoint to a command that reads a checkpoint."""
    parser.add_argument(
        "--checkpoint", default=default, metavar="CKPT", help=f"best, latest or step:N (default: {default})"
    )


def add_timeout(parser: argparse.ArgumentParser) -> None:
    """Add --timeout to a command that delivers, and its message when it is interrupted."""
    parser.add_argument(
        "--timeout",
        type=float,
        default=DEFAULT_TIMEOUT_S,
        metavar="S",
        help=f"stop after this many seconds without progress of any sink (default: {DEFAULT_TIMEOUT_S:.0f})",
    )
    parser.set_defaults(when_interrupted="interrupted; nothing is lost: `trieye close` delivers the rest")


def add_removal(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of commands that delete."""
    add_root(parser, Path(DEFAULT_ROOT))
    add_json(parser)
    parser.add_argument("--dry-run", action="store_true", help="show the plan, and delete nothing")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
    parser.set_defaults(when_interrupted="interrupted; runs that are not reported as deleted still exist")


def age(text: str) -> float:
    """Return the seconds of an age such as `30d`.

    Raises:
        argparse.ArgumentTypeError: It is none.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw])", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no age; give a number with s, m, h, d or w, such as 30d")
    return timedelta(**{_UNITS[match[2]]: float(match[1])}).total_seconds()


def pair(text: str, option: str = "") -> tuple[str, str]:
    """Return key and value of KEY=VALUE.

    Raises:
        ConfigurationError: It is none; the message names the option.
    """
    from trieye.exceptions import ConfigurationError

    key, equals, value = text.partition("=")
    if not equals:
        raise ConfigurationError(f"{option}{text}: this is not KEY=VALUE")
    return key, value


def add_confirmed(parser: argparse.ArgumentParser) -> None:
    """Add --yes to a command that starts a program named by a file."""
    parser.add_argument("-y", "--yes", action="store_true", help="run a stored command that your key does not sign")


def add_again(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of commands that start a run like another one."""
    add_run(parser)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="overrides of the new run")
    parser.add_argument(
        "--without", action="append", default=[], metavar="KEY", help="leave out the override that RUN had of KEY"
    )
    parser.add_argument("--dry-run", action="store_true", help="show what differs and the command, and start nothing")
    add_confirmed(parser)


def add_working_directory() -> None:
    """Let Python import a project that is not installed from the directory where its run was started."""
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)


def sweep_directory(named: Path | None) -> Path:
    """Return the directory of a sweep: the named one, the working directory, or the newest below multirun/.

    Raises:
        ConfigurationError: None was named, and there is none here.
    """
    from trieye.exceptions import ConfigurationError
    from trieye.sweeps.record import SWEEP

    if named is not None:
        return named
    if Path(SWEEP).is_file():
        return Path()
    newest = max(Path("multirun").rglob(SWEEP), key=lambda path: path.stat().st_mtime, default=None)
    if newest is None:
        raise ConfigurationError("no sweep here, and none below multirun/; name its directory")
    print(f"sweep in {newest.parent}", file=sys.stderr)
    return newest.parent
