"""`trieye rebuild`: write the sinks of a run anew."""

import argparse

from trieye.cli.close import WHEN_INTERRUPTED, add_timeout, deliver
from trieye.cli.run_argument import add_run_argument, find_run

_EPILOG = """\
TensorBoard's event files are removed and written anew. MLflow gets everything again and drops what it has already; if
its store was deleted, it is filled again. Weights & Biases would show everything twice, so it is left out unless --sink
names it. Nobody may be writing to the run; one that was killed is recorded as KILLED, as with `trieye close`.

examples:
  trieye rebuild first                                 all sinks of the run
  trieye rebuild my_agent/first --sink tensorboard     one of them
"""
SHOW_ALL_TWICE = ("wandb",)
"""Sinks that cannot tell what they have already."""


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `rebuild` to the commands of the parser."""
    parser = commands.add_parser(
        "rebuild",
        help="write the sinks of a run anew, from its history",
        description="Write the sinks of a run anew, from its history and its journal.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_run_argument(parser)
    parser.add_argument(
        "--sink", action="append", dest="sinks", metavar="NAME", help="only this one; may be given several times"
    )
    add_timeout(parser)
    parser.set_defaults(run=run, when_interrupted=WHEN_INTERRUPTED)


def run(options: argparse.Namespace) -> int:
    """Let the sinks begin anew, and wait until they have everything.

    Raises:
        ConfigurationError: There is no such run or sink.
        RunLockedError: The run is alive.
    """
    from trieye.cli.offline_hub import OfflineHub

    hub = OfflineHub(find_run(options.run_name, options.root))
    hub.forget(options.sinks or [name for name in hub.sinks() if name not in SHOW_ALL_TWICE])
    return deliver(hub, options.timeout)
