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
  trieye fork first --at best agent.lr=1e-5
  trieye fork my_agent/first --at step:1200 run_name=second seed=7
  trieye fork first loop.steps=20000                 from the last checkpoint
"""

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trieye.cli.arguments import add_again

if TYPE_CHECKING:
    from trieye.checkpoints.store import CheckpointEntry


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    add_again(parser)
    parser.add_argument(
        "--at", default="last", metavar="WHICH", help="the checkpoint: best, last or step:N (default: last)"
    )


def run(options: argparse.Namespace) -> int:
    """Show what differs, see whether the checkpoint fits, and start the run."""
    from trieye.checkpoints.choose import named_checkpoint
    from trieye.cli.again import (
        LOAD,
        RUN_NAME,
        Made,
        Program,
        begins_from,
        check_free,
        new_name,
        place_of,
        show_drift,
    )
    from trieye.cli.given_run import config_of, find_run
    from trieye.exceptions import ConfigurationError
    from trieye.files.run_files import RunFiles

    made = Made.of(find_run(options.run_name, options.root))
    asked = f"fork of {made.name} --at {options.at}"
    if any(word.lstrip("+~").startswith(LOAD) for word in options.overrides):
        raise ConfigurationError(f"{LOAD}: a fork begins from the checkpoint that --at says")
    entry = named_checkpoint(RunFiles(config_of(made.run_dir).persistence), options.at, asked=asked)
    program = Program.of(made)
    fixed = {RUN_NAME: new_name(made, options.overrides, "fork"), LOAD: str(entry.path)}
    overrides = program.with_overrides(made.run_dir.name, options.overrides, options.without, fixed)
    program.confirm(overrides, origin=f"run {made.name}", is_confirmed=options.yes)
    found = program.rehearse(overrides, "config", asked=asked)
    run_dir = place_of(found, program)
    check_free(run_dir)
    _check_unfinished(found.config, entry, asked)
    show_drift(made, found, options.overrides)
    program.rehearse(overrides, "restore", asked=asked)
    if run_dir.parent.resolve() == made.run_dir.parent:  # what it is called stays true wherever both are moved
        overrides[-1] = begins_from(f"{made.run_dir.name}:step:{entry.step}")
    quality = "" if entry.objective is None else f", objective {entry.objective:g}"
    print(f"run {run_dir.name!r} begins from {made.name} at step {entry.step}{quality}; the command, also to go on:")
    print(program.line(overrides), flush=True)
    return 0 if options.dry_run else program.start(overrides)


def _check_unfinished(config: "Mapping[str, Any]", entry: "CheckpointEntry", asked: str) -> None:
    """Refuse a fork that would be over at once."""
    from trieye.checkpoints.directory import peek
    from trieye.config.loop import LoopConfig
    from trieye.exceptions import ConfigurationError, SerializationError
    from trieye.experiment.finished import Progress

    try:
        held = peek(entry.path, "objects", "loop")
        progress = Progress(**{**held, "best": None})
    except (SerializationError, TypeError):  # a loop of one's own
        return
    limits = LoopConfig.model_validate(config["loop"])
    reason = progress.reason_to_stop(limits, progress.counted()[limits.axis] or entry.step)
    if reason is not None:
        raise ConfigurationError(
            f"{asked}: it would be over at once, since its checkpoint has {reason}; raise that limit"
        )
