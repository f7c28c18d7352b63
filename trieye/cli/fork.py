"""`trieye fork`: a new run from a checkpoint of another.

Begin a new run from a checkpoint of another one, by the program of that one, with its overrides and yours.

The new run takes over what the checkpoint holds: weights, optimizer, normalizers, counters of steps, the replay if it
was saved, and the random generators unless you give another seed. It has a history, a best value and an MLflow run of
its own. Its config names the checkpoint (persistence.load_checkpoint_path), so that the same command goes on with it;
its run.json and its MLflow tags say from where it began. As soon as it has begun it has a checkpoint of its own, and
RUN may be deleted.
A command that your key does not sign is shown and runs only when you confirm it (--yes in scripts).
Before anything is made, what differs from RUN is shown, and the program is started once to see that the checkpoint
fits.

Examples:
  trieye fork first --checkpoint best agent.lr=1e-5
  trieye fork my_agent/first --checkpoint step:1200 run_name=second seed=7
  trieye fork first loop.steps=20000                 from the latest checkpoint
"""

import argparse

from trieye.cli.arguments import add_again, add_checkpoint


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    add_again(parser)
    add_checkpoint(parser, "latest")


def run(options: argparse.Namespace) -> int:
    """Show what differs, check that the checkpoint fits, and start the run."""
    from trieye.cli.restarting import confirmed, restart
    from trieye.runs import plan_fork

    plan = plan_fork(
        options.run_name,
        options.overrides,
        checkpoint=options.checkpoint,
        without=options.without,
        root=options.root,
        confirm=confirmed(options),
    )
    return restart(plan, options, "fork")
