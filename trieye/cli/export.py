"""`trieye export`: the policy of a run, for use elsewhere.

Write the policy of a run for programs that know nothing of trieye: its weights, and a program that acts.

policy.pt holds the weights, for torch.load(weights_only=True). policy.pt2 holds a program of torch.export, which takes
observations [n, ...] and gives the actions [n, ...] that the policy takes without exploring; there is none of a policy
that torch.export cannot take, such as a recurrent one, and a sentence says why. The program sees observations as the
policy does: after the wrappers of the environment, pictures as bytes and other numbers as float32.
`best` is the newest checkpoint where none was rated. The files of an earlier export are replaced; nothing else is.
The run may be alive.

Examples:
  trieye export first
  trieye export my_agent/first --which step:1200 -o robot/policy
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from trieye.cli.arguments import add_run, add_which, add_working_directory

if TYPE_CHECKING:
    from trieye.checkpoints.store import LoadedCheckpoint
    from trieye.training.spaces import Spaces


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    add_run(parser)
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help="where to write (default: RUN/export)")
    add_which(parser)


def run(options: argparse.Namespace) -> int:
    """Export the policy, and say what was written and how it is loaded."""
    from trieye.checkpoints.choose import reference_of
    from trieye.checkpoints.store import load_checkpoint
    from trieye.process.terminal import Terminal
    from trieye.runs import run_directory

    run_dir = run_directory(options.run_name, root=options.root)
    which = reference_of(options.which, asked="--which").which
    add_working_directory()
    with Terminal(stderr=True).status(f"loading {run_dir.name}"):
        from trieye.training.exporting import export_policy
        from trieye.training.loading import policy_of

        checkpoint = load_checkpoint(run_dir, which)
        policy = policy_of(run_dir, checkpoint)
    origin = {"run": run_dir.name, "step": checkpoint.step, "objective": checkpoint.objective}
    with Terminal(stderr=True).status(f"exporting {run_dir.name}"):
        output = (options.output or run_dir / "export").absolute()
        files = export_policy(policy, output, env_steps=policy.schedule_step, origin=origin)
    _show(checkpoint, policy.spaces, files, is_best=which == "best" and checkpoint.objective is not None)
    return 0


def _show(checkpoint: "LoadedCheckpoint", spaces: "Spaces", files: list[Path], *, is_best: bool) -> None:
    """Say which checkpoint was exported to which files, and how the program is called."""
    from rich.filesize import decimal

    from trieye.training.exporting import PROGRAM, example

    rated = "no objective" if checkpoint.objective is None else f"objective {checkpoint.objective:.6g}"
    print(f"{checkpoint.path}{', the best one' if is_best else ''} ({rated}), is exported to")
    for file in files:
        print(f"  {file}  {decimal(file.stat().st_size)}")
    for file in files:
        if file.name == PROGRAM:
            print("which Python runs with torch alone:")
            print(f"  import torch; act = torch.export.load({str(file)!r}).module()")
            print(f"  actions = act({example(spaces)})")
