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

from trieye.cli.arguments import add_run_argument, add_timeout
from trieye.exceptions import ConfigurationError

SHOW_ALL_TWICE = ("wandb",)
"""Sinks that cannot tell what they have already."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    add_run_argument(parser)
    parser.add_argument(
        "--sink", action="append", dest="sinks", metavar="NAME", help="only this one; may be given several times"
    )
    add_timeout(parser)


def run(options: argparse.Namespace) -> int:
    """Let the sinks begin anew, and wait until they have everything."""
    from trieye.cli.delivery import deliver, idle_run
    from trieye.cli.given_run import find_run, sinks_of
    from trieye.config.base import did_you_mean
    from trieye.sinks.fan_out import OUR_NAMES

    record, config = idle_run(find_run(options.run_name, options.root))
    known = sinks_of(config)
    chosen = options.sinks or [name for name in known if name not in SHOW_ALL_TWICE]
    for name in chosen:
        if name not in known:
            has = f"it has: {', '.join(known)}" if known else "it has none"
            raise ConfigurationError(f"--sink {name}: the run has no such sink{did_you_mean(name, known)} ({has})")
    if record.status != "RUNNING":  # else all sinks are to be told how the run ended
        sinks = config.sinks
        held = {kind: getattr(sinks, kind).model_copy(update={"enabled": kind in chosen}) for kind in OUR_NAMES}
        config = config.model_copy(update={"sinks": sinks.model_copy(update=held)})
    return deliver(config, options.timeout, anew=chosen)
