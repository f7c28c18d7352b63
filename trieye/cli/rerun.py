"""`trieye rerun`: repeat a run.

Repeat a run: start its program in the same working directory with the same overrides.

The program composes its config from the current code, and the differences are shown before it starts: config values,
commit, packages. A stored command without your signature, such as in a run of another user, is shown first and runs
only after you confirm it (--yes in scripts). Overrides after RUN replace stored overrides of the same keys. The new run
is named RUN_rerun unless you pass run_name. It starts at step 0, or, if RUN started from a checkpoint of another run,
from that checkpoint.

Examples:
  trieye rerun first
  trieye rerun my_agent/first seed=7 run_name=first_seed7
  trieye rerun first --dry-run                       show the differences and the command
  trieye rerun first --without persistence.old_key   drop an override that the program no longer accepts
"""

import argparse

from trieye.cli.arguments import add_again


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    add_again(parser)


def run(options: argparse.Namespace) -> int:
    """Show the differences and start the run."""
    from trieye.cli.restarting import confirmed, restart
    from trieye.runs import plan_rerun

    plan = plan_rerun(
        options.run_name, options.overrides, without=options.without, root=options.root, confirm=confirmed(options)
    )
    return restart(plan, options, "rerun")
