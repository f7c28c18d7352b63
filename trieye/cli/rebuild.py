"""`trieye rebuild`: write the sinks of a run anew.

Write the sinks of a run anew, from its history and its journal.

TensorBoard's event files are removed and written anew. MLflow gets everything again and drops what it has already; if
its store was deleted, it is filled again. Weights & Biases would show everything twice, so it is left out unless --sink
names it. Nobody may be writing to the run; one that was killed is recorded as KILLED, as with `trieye close`.

Examples:
  trieye rebuild first                                 all sinks of the run
  trieye rebuild my_agent/first --sink tensorboard     one of them
"""

import argparse

from trieye.cli.arguments import add_run, add_timeout


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    add_run(parser)
    parser.add_argument(
        "--sink", action="append", dest="sinks", metavar="NAME", help="only this one; may be given several times"
    )
    add_timeout(parser)


def run(options: argparse.Namespace) -> int:
    """Rewrite the sinks, and wait until they have everything."""
    from trieye.cli.delivering import show_delivery
    from trieye.runs import rebuild

    return show_delivery(options, "rebuild", rebuild, options.sinks or ())
