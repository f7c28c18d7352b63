"""`trieye fork`: start a new run from a checkpoint of another run.

Start a new run from a checkpoint of RUN, with the program and overrides of RUN and the overrides you pass.

The new run restores from the checkpoint: weights, optimizer, normalizers, step counters, the replay buffer if it was
saved, and the random generators unless you pass another seed. It has its own history, best value and MLflow run. Its
config refers to the checkpoint (persistence.load_checkpoint_path), so the same command also resumes it; its run.json
and its MLflow tags record the origin. Once started, it has its own copy of the checkpoint, and RUN may be deleted.
A stored command without your signature is shown and runs only after you confirm it (--yes in scripts).
Before the run is created, the differences from RUN are shown, and a dry run of the program checks that the checkpoint
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
    """Show the differences, check that the checkpoint fits, and start the run."""
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
