"""Argparse arguments that several commands share; imports nothing heavy, so `--help` stays fast."""

import argparse
import re
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from trieye.exceptions import ConfigurationError
from trieye.renames import COMMANDS, OPTIONS

DEFAULT_ROOT = ".trieye_data"
DEFAULT_TIMEOUT_S = 300.0
_RUN = "run directory or run name: run or app/run"
_ROOT = f"directory that contains all apps (default: {DEFAULT_ROOT} of the project, and TRIEYE_ROOT)"
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_MAX_S = 1e9
"""A sleep of 1e10 seconds raises OverflowError."""


class AnyOrder(argparse.ArgumentParser):
    """Parser that accepts positional arguments before, between and after options."""

    _is_intermixing = _has_actions = False

    def add_subparsers(self, **options: Any) -> Any:
        """Add the actions of a command; each action parses its own positional arguments."""
        self._has_actions = True
        return super().add_subparsers(**options)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Return the parsed namespace and the unrecognized arguments, which exit with the closest option."""
        if self._has_actions and args and (rename := COMMANDS.get(f"{self.prog} {args[0]}")):
            self.error(str(rename))
        if self._is_intermixing or self._has_actions:
            return super().parse_known_args(args, namespace)
        self._check_renamed(args)
        self._is_intermixing = True
        try:
            options, unrecognized = self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_intermixing = False
        if unrecognized:
            from trieye.config.base import did_you_mean

            hint = did_you_mean(unrecognized[0].partition("=")[0], re.findall(r"--[a-z-]+", self.format_help()))
            self.error(f"unrecognized arguments: {' '.join(unrecognized)}{hint}")
        return options, unrecognized

    def error(self, message: str) -> NoReturn:
        """Exit with a message; for an invalid choice, it names the closest one."""
        if match := re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message):
            from trieye.config.base import did_you_mean

            message += did_you_mean(match[1], re.findall(r"[\w-]+", match[2]))
        super().error(message)

    def _check_renamed(self, args: Sequence[str]) -> None:
        """Exit with the new name of an option if its former name was typed."""
        for rename in OPTIONS.values():
            command, _, option = rename.old.rpartition(" ")  # the command may lack the typed action
            is_own = f"{self.prog} ".startswith(f"{command} ")
            if is_own and any(word.partition("=")[0] == option for word in args):
                new = rename.new.removeprefix(f"{command} ")
                self.error(f"{self.prog} {option} was renamed to {self.prog} {new}")


def add_actions(parser: argparse.ArgumentParser) -> Any:
    """Let a command have actions, which `add_action` adds to the returned object."""
    return parser.add_subparsers(title="actions", metavar="ACTION", dest="action", required=True, parser_class=AnyOrder)


def add_action(actions: Any, name: str, text: str, **options: Any) -> argparse.ArgumentParser:
    """Add an action to a command; `text` is its line in the list of actions and the description in its own help."""
    description = f"{text[0].upper()}{text[1:]}."
    parser: argparse.ArgumentParser = actions.add_parser(name, help=text, description=description, **options)
    return parser


def add_repeatable(parser: Any, option: str, metavar: str, text: str, **options: Any) -> None:
    """Add an option whose values form a list to a command or a group of its arguments."""
    parser.add_argument(option, action="append", default=[], metavar=metavar, help=text, **options)


def add_run(parser: argparse.ArgumentParser, *, count: int | str | None = None) -> None:
    """Add RUN, --root and --json to a command.

    Args:
        parser: Parser of the command.
        count: `nargs` of `run_names`; None: exactly one run, stored as `run_name`.
    """
    parser.add_argument("run_name" if count is None else "run_names", metavar="RUN", nargs=count, help=_RUN)
    add_root(parser)
    add_json(parser)


def add_root(parser: argparse.ArgumentParser, default: Path | None = None) -> None:
    """Add --root to a command.

    Args:
        parser: Parser of the command.
        default: Default directory; None: the root directories of the project that contains the working directory.
    """
    text = _ROOT if default is None else f"directory that contains all apps (default: {default})"
    parser.add_argument("--root", type=Path, default=default, metavar="DIR", help=text)


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add --json to a command."""
    parser.add_argument("--json", action="store_true", help="print one JSON document for scripts")


def add_output(parser: Any, metavar: str, text: str, default: Path | None = None, **options: Any) -> None:
    """Add -o to a command or an action that writes files."""
    parser.add_argument("-o", "--output", type=Path, default=default, metavar=metavar, help=text, **options)


def add_rating(parser: argparse.ArgumentParser, metric: str, mode: str) -> None:
    """Add --metric and --mode, with these help texts, to a command that compares runs by a metric."""
    parser.add_argument("--metric", metavar="NAME", help=metric)
    parser.add_argument("--mode", choices=("max", "min"), help=mode)


def add_checkpoint(parser: argparse.ArgumentParser, default: str = "best") -> None:
    """Add --checkpoint to a command that reads a checkpoint."""
    parser.add_argument(
        "--checkpoint", default=default, metavar="CKPT", help=f"best, latest or step:N (default: {default})"
    )


def add_timeout(parser: argparse.ArgumentParser) -> None:
    """Add --timeout and the interruption message to a command that delivers events to sinks."""
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=DEFAULT_TIMEOUT_S,
        metavar="S",
        help=f"give up after S seconds without progress of any sink (default: {DEFAULT_TIMEOUT_S:.0f})",
    )
    parser.set_defaults(when_interrupted="interrupted; nothing is lost: `trieye close` delivers the rest")


def add_removal(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of commands that delete."""
    add_root(parser, Path(DEFAULT_ROOT))
    add_json(parser)
    parser.add_argument("--dry-run", action="store_true", help="list the runs without deleting them")
    parser.add_argument("-y", "--yes", action="store_true", help="delete without asking for confirmation")
    parser.set_defaults(when_interrupted="interrupted; runs not reported as deleted still exist")


def age(text: str) -> float:
    """Convert an age such as `30d` to seconds.

    Raises:
        argparse.ArgumentTypeError: The text is not a number followed by s, m, h, d or w.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw])", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"invalid age {text!r}; expected a number with s, m, h, d or w, such as 30d")
    return float(match[1]) * _UNITS_S[match[2]]


def seconds(text: str) -> float:
    """Convert a duration in seconds.

    Raises:
        argparse.ArgumentTypeError: The text is not a number from 0 to 1e9.
    """
    with suppress(ValueError):
        if 0 <= (duration_s := float(text)) <= _MAX_S:
            return duration_s
    raise argparse.ArgumentTypeError(f"invalid value {text!r}; expected a number of seconds from 0 to {_MAX_S:,.0f}")


def positive(text: str) -> int:
    """Convert a number of things, at least 1.

    Raises:
        argparse.ArgumentTypeError: The text is not a positive integer.
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"invalid value {text!r}; expected an integer >= 1")
    return int(text)


def listed(text: str, choices: Collection[str], option: str, noun: str) -> list[str]:
    """Split names separated by commas.

    Args:
        text: The names.
        choices: Valid names.
        option: The option, for messages.
        noun: What a name denotes, for messages.

    Raises:
        ConfigurationError: A name is unknown.
    """
    from trieye.config.base import did_you_mean

    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in choices:
            hint = f"{did_you_mean(name, choices)} (choose from: {', '.join(choices)})"
            raise ConfigurationError(f"{option} {name}: unknown {noun}{hint}")
    return names


def pair(text: str, option: str = "") -> tuple[str, str]:
    """Split KEY=VALUE into key and value.

    Raises:
        ConfigurationError: The text has no `=`; the message begins with the option.
    """
    key, equals, value = text.partition("=")
    if not equals:
        raise ConfigurationError(f"{option}{text}: expected KEY=VALUE")
    return key, value


def add_confirmed(parser: argparse.ArgumentParser) -> None:
    """Add --yes to a command that runs a command line stored in a file."""
    parser.add_argument(
        "-y",
        "--yes",
        action="store_true",
        help="run the stored command without confirmation, even without your signature",
    )


def add_again(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of commands that start a new run from a stored run."""
    add_run(parser)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="Hydra overrides of the new run")
    add_repeatable(parser, "--without", "KEY", "drop RUN's override of KEY; repeatable")
    parser.add_argument(
        "--dry-run", action="store_true", help="show the differences from RUN and the command without starting the run"
    )
    add_confirmed(parser)


def add_working_directory() -> None:
    """Append the working directory to `sys.path`, so that Python can import a project that is not installed."""
    if (working_dir := str(Path.cwd())) not in sys.path:
        sys.path.append(working_dir)


def sweep_directory(directory: Path | None) -> Path:
    """Return the sweep directory: `directory`, else the working directory, else the newest sweep below multirun/.

    Raises:
        ConfigurationError: `directory` is None, and neither the working directory nor multirun/ contains a sweep.
    """
    from trieye.sweeps.record import SWEEP

    if directory is not None:
        return directory
    if Path(SWEEP).is_file():
        return Path()
    newest = max(Path("multirun").rglob(SWEEP), key=lambda path: path.stat().st_mtime, default=None)
    if newest is None:
        raise ConfigurationError("no sweep in the working directory or below multirun/; pass the sweep directory")
    print(f"using the newest sweep, {newest.parent}", file=sys.stderr)
    return newest.parent


def exclusion(text: str) -> dict[str, Any]:
    """Return the values of an excluded combination by key, such as `agent=ppo,agent.lr=1e-4`.

    Raises:
        ConfigurationError: The text has another form.
    """
    from trieye.config.hydra.axes import value_of
    from trieye.config.hydra.override_text import bare

    with _option_named("--exclude"):
        return {bare(key): value_of(value, bare(key)) for key, value in map(pair, _parts(text, ","))}


def condition(text: str) -> tuple[str, dict[str, list[Any]]]:
    """Split a conditional key from the allowed values of other keys, such as `agent.clip_range:agent=ppo|a2c`.

    Raises:
        ConfigurationError: The text has another form.
    """
    from trieye.config.hydra.axes import value_of
    from trieye.config.hydra.override_text import bare

    key, _, values = text.partition(":")
    with _option_named("--when"):
        if not (key and values):
            raise ConfigurationError(f"{text}: expected KEY:KEY=VALUE, such as agent.clip_range:agent=ppo")
        terms = [(bare(other), _parts(value, "|")) for other, value in map(pair, _parts(values, ","))]
        return bare(key), {other: [value_of(value, other) for value in allowed] for other, allowed in terms}


@contextmanager
def _option_named(option: str) -> Iterator[None]:
    """Let messages of errors begin with an option."""
    try:
        yield
    except ConfigurationError as error:
        raise ConfigurationError(f"{option} {error}") from error


def _parts(text: str, separator: str) -> list[str]:
    """Split a text at a separator outside of quotes and brackets."""
    parts, depth = [""], 0
    for piece in re.findall(r"""\\.|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|.""", text, re.DOTALL):
        depth += (piece in "([{") - (piece in ")]}")
        if piece == separator and not depth:
            parts.append("")
        else:
            parts[-1] += piece
    return parts
