"""The `trieye` command: one module for each subcommand, imported when that one is typed.

The module has `add_arguments(parser)` and `run(options)`, which returns the exit code or raises a TrieyeError; what
`run` needs is imported in it, so that `--help` is there at once.
Its docstring is its help: after its first line, the description, and what stands below the options.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from trieye.cli.arguments import AnyOrder
from trieye.exceptions import TrieyeError

COMMANDS = {
    "new": "make a new project",
    "runs": "list runs, with status, step, best objective, time and size",
    "rerun": "begin a run like another one, and see what has changed since",
    "fork": "begin a run from a checkpoint of another one",
    "diff": "compare two runs: config, commit, packages, metrics",
    "watch": "live view of a run: metrics, rates, sinks, checkpoints",
    "ui": "MLflow, TensorBoard and a report in the browser, for a run, an app or a sweep",
    "sweep": "plan a sweep, see what became of its jobs, run those that are missing",
    "cluster": "ask every node of a Ray cluster whether a training can run there",
    "results": "tables, curves, comparisons and reports of many runs",
    "checkpoints": "list what a run has saved",
    "attempts": "list the attempts of a run, and show superseded points again",
    "evaluate": "play the policy of a run, and print the returns",
    "export": "write the policy of a run for use elsewhere",
    "verify": "check that everything of a run is whole",
    "close": "deliver what a killed run left, and record it as KILLED",
    "rebuild": "write the sinks of a run anew, from its history",
    "claim": "record where a run was moved to",
    "rm": "delete runs: directory, MLflow run and mirror together",
    "prune": "delete the old runs of an app, but for the best",
    "import": "make runs of what TensorBoard, MLflow or wandb hold",
    "convert": "make checkpoints of those of trieye 0.1.5",
}
EXIT_INTERRUPTED, EXIT_BROKEN_PIPE = 130, 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        argv: Arguments without the name of the program; those of the process if None.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    name = arguments[0] if arguments and not arguments[0].startswith("-") else None
    parser = _parser(name)
    if name is not None and name not in COMMANDS:
        from trieye.config.base import did_you_mean

        hint = did_you_mean(name, COMMANDS)
        parser.error(f"unknown command {name!r}{hint} (known: {', '.join(COMMANDS)})")
    options = parser.parse_args(arguments, argparse.Namespace(typed=arguments))
    if options.version:
        from importlib.metadata import version

        print(f"trieye {version('trieye')}")
        return 0
    if options.run is None:
        parser.print_help()
        return 0
    try:
        code: int = options.run(options)
        sys.stdout.flush()
    except TrieyeError as error:
        from trieye.config.redaction import redacted_text

        print(f"error: {redacted_text(str(error))}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(options.when_interrupted, file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # `| head` has what it wants; what is left in the buffer must not be told to it at the exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    return code


def _parser(chosen: str | None) -> argparse.ArgumentParser:
    """Return a parser that knows the name of every command, and the arguments of the chosen one."""
    parser = argparse.ArgumentParser(
        prog="trieye", description="Experiment framework for reinforcement learning.", allow_abbrev=False
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    parser.set_defaults(run=None, when_interrupted="interrupted")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=AnyOrder)
    for name, text in COMMANDS.items():
        command = commands.add_parser(
            name, help=text, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
        )
        if name == chosen:
            module = import_module(f"trieye.cli.{name}")
            _, command.description, command.epilog = (module.__doc__ or "\n\n\n\n").split("\n\n", 2)
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    return parser
