"""The `trieye` command: one module for each subcommand."""

import argparse
import sys
from collections.abc import Sequence

from trieye.exceptions import TrieyeError

COMMANDS = ("new", "watch", "checkpoints", "verify", "close", "rebuild", "convert")
EXIT_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        argv: Arguments without the name of the program; those of the process if None.
    """
    parser = _parser()
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments and not arguments[0].startswith("-") and arguments[0] not in COMMANDS:
        from trieye.config.base import did_you_mean

        hint = did_you_mean(arguments[0], COMMANDS)
        parser.error(f"unknown command {arguments[0]!r}{hint} (known: {', '.join(COMMANDS)})")
    options = parser.parse_args(arguments)
    if options.run is None:
        parser.print_help()
        return 0
    try:
        code: int = options.run(options)
    except TrieyeError as error:
        _tell(error)
        return error.exit_code
    except KeyboardInterrupt:
        print(options.when_interrupted, file=sys.stderr)
        return EXIT_INTERRUPTED
    return code


def _tell(error: TrieyeError) -> None:
    from trieye.config.redaction import redacted_text

    print(f"error: {redacted_text(str(error))}", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    from trieye.cli import checkpoints, close, convert, new, rebuild, verify, watch

    parser = argparse.ArgumentParser(
        prog="trieye", description="Experiment framework for reinforcement learning.", allow_abbrev=False
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version")
    parser.set_defaults(run=None, when_interrupted="interrupted")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for command in (new, watch, checkpoints, verify, close, rebuild, convert):
        command.add_command(commands)
    return parser


class _Version(argparse.Action):
    """Reads the version only when asked: looking for it costs more than the rest of `--help`."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"trieye {version('trieye')}")
        parser.exit()
