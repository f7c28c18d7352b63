"""The `trieye` command line: a parser that imports the module of a subcommand when the user runs it.

A command module defines `add_arguments(parser)` and `run(options)`, which returns the exit code or raises TrieyeError.
`run` imports its dependencies itself, so `--help` stays fast. The second paragraph of the module docstring is the
description in `--help`, and the following ones are the epilog.
"""

import argparse
import errno
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from trieye.cli.arguments import AnyOrder
from trieye.exceptions import TrieyeError
from trieye.version import VERSION

COMMANDS = {
    "new": "create a project from the template",
    "runs": "list runs with status, step, best objective, time and size",
    "rerun": "repeat a run and show the changes since then",
    "fork": "start a new run from a checkpoint of another run",
    "diff": "compare two runs: config, commit, packages, metrics",
    "watch": "show metrics, rates, sinks and checkpoints of a run, live",
    "metrics": "print the metrics of a run, or the points of one as a table, CSV or JSON",
    "why": "explain why a run ended or makes no progress, and what to do next",
    "ui": "open MLflow, TensorBoard and a report in the browser for a run, an app or a sweep",
    "sweep": "plan a sweep, show the status of its jobs and run unfinished jobs",
    "cluster": "check whether a training can run on every node of a Ray cluster",
    "results": "create tables, curves, comparisons and reports from many runs",
    "checkpoints": "list the checkpoints of a run",
    "attempts": "list the attempts of a run and restore superseded points",
    "evaluate": "run episodes with the policy of a run and print the returns",
    "export": "export the policy of a run as weights and a torch.export program",
    "verify": "check the files of a run for damage",
    "close": "deliver pending events of a killed run and record the run as KILLED",
    "rebuild": "rewrite the sinks of a run from its history",
    "claim": "record the new directory of a moved run",
    "rm": "delete runs with their MLflow runs and mirrors",
    "prune": "delete old runs of an app except the best or newest runs",
    "import": "import runs from TensorBoard, MLflow or wandb files",
    "convert": "convert trieye 0.1.5 checkpoints to the current format",
}
EXIT_INTERRUPTED, EXIT_NO_OUTPUT = 130, 1
_OUTPUT_ERRORS = {errno.EPIPE, errno.ENOSPC, errno.EIO}
"""`| head` closed the pipe, the disk is full, or the terminal is gone."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        argv: Arguments without the program name; None: `sys.argv[1:]`.
    """
    _prepare_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    name = arguments[0] if arguments and not arguments[0].startswith("-") else None
    parser = _parser(name)
    if name is not None and name not in COMMANDS:
        from trieye.config.base import did_you_mean

        hint = did_you_mean(name, COMMANDS)
        parser.error(f"unknown command {name!r}{hint} (choose from: {', '.join(COMMANDS)})")
    options = parser.parse_args(arguments, argparse.Namespace(typed=arguments))
    if options.run is None:
        parser.print_help()
        return 0
    try:
        code = _run(options, f"trieye {name}")
        sys.stdout.flush()
    except TrieyeError as error:
        from trieye.config.redaction import redacted_text

        print(f"error: {redacted_text(str(error))}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(options.when_interrupted, file=sys.stderr)
        return EXIT_INTERRUPTED
    except OSError as error:
        return _report(error)
    return code


def _prepare_streams() -> None:
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":  # names may not be in its encoding
        sys.stdout.reconfigure(errors="backslashreplace")
    if sys.stderr is None:  # it was closed; `print` would write messages to stdout
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - until the process ends


def _report(error: OSError) -> int:
    """Print an expected error and return the exit code; raise any other error."""
    if error.errno == errno.ENOENT and error.filename is None:  # from `os.getcwd`
        print("error: the working directory was deleted; change to another one, as with `cd ~`", file=sys.stderr)
        return TrieyeError.exit_code
    if error.errno not in _OUTPUT_ERRORS:
        raise error
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes the buffer again at exit
    if error.errno != errno.EPIPE:
        path = error.filename2 or error.filename or "the output"  # `copyfile` names the source first
        print(f"error: cannot write {path}: {error.strerror}", file=sys.stderr)
    return EXIT_NO_OUTPUT


def _run(options: argparse.Namespace, command: str) -> int:
    """Run a command; for a package that is not installed, the error has the pip command."""
    try:
        code: int = options.run(options)
    except ModuleNotFoundError:
        from trieye.config.packages import explaining  # imports pydantic

        with explaining(command):
            raise
    return code


def _parser(chosen: str | None) -> argparse.ArgumentParser:
    """Return a parser with the names of all commands and the arguments of the chosen command."""
    parser = argparse.ArgumentParser(
        prog="trieye",
        description="Experiment framework for reinforcement learning, other training, and sweeps of Hydra programs.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"trieye {VERSION}", help="print the version")
    parser.set_defaults(run=None, when_interrupted="interrupted")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=AnyOrder)
    for name, text in COMMANDS.items():
        is_chosen = name == chosen
        command = commands.add_parser(  # options of the others would take a fifth of the time
            name,
            help=text,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            add_help=is_chosen,
        )
        if is_chosen:
            module = import_module(f"trieye.cli.{name}")
            _, command.description, command.epilog = (module.__doc__ or "\n\n\n\n").split("\n\n", 2)
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    return parser
