"""`trieye rerun`: a run once more.

Begin a run like another one: its program is started where it was started then, with the same overrides.

The program composes its config as it is today, and what has changed since is shown before it starts: values of the
config, the commit, packages. A command that your key does not sign, such as that of a run from somebody else, is shown
first and runs only when you confirm it (in scripts: --yes). Overrides after RUN replace those of the same keys. The new
run is called RUN_rerun, unless you give a run_name; it begins at step 0, or from the checkpoint of another run from
which RUN began.

Examples:
  trieye rerun first
  trieye rerun my_agent/first seed=7 run_name=first_seed7
  trieye rerun first --dry-run                       what has changed, and the command
  trieye rerun first --without persistence.old_key   an override that the program knows no more
"""

import argparse

from trieye.cli.arguments import add_again


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    add_again(parser)


def run(options: argparse.Namespace) -> int:
    """Show what has changed, and start the run."""
    from trieye.cli.restarting import confirmed, restart
    from trieye.runs import plan_rerun

    plan = plan_rerun(
        options.run_name, options.overrides, without=options.without, root=options.root, confirm=confirmed(options)
    )
    return restart(plan, options, "rerun")
