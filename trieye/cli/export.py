"""`trieye export`: export the policy of a run for use without trieye.

Export the policy of a run for programs without trieye: its weights, and a torch.export program.

policy.pt contains the weights, for torch.load(weights_only=True). policy.pt2 is a torch.export program that maps
observations [n, ...] to the actions [n, ...] of the policy without exploration. It is not written if torch.export does
not support the policy (for example a recurrent one); a message gives the reason. The program expects observations as
the policy receives them: after the environment wrappers, images as uint8 and other numbers as float32.
If no checkpoint has an objective, `best` selects the newest one. Only files of an earlier export are overwritten.
The run may be alive.

Examples:
  trieye export first
  trieye export my_agent/first --checkpoint step:1200 -o robot/policy
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from trieye.cli.arguments import add_checkpoint, add_output, add_run, add_working_directory
from trieye.cli.output import Parts, show

if TYPE_CHECKING:
    from trieye.training.run_export import Export


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    add_run(parser)
    add_output(parser, "DIR", "output directory (default: RUN/export)")
    add_checkpoint(parser)


def run(options: argparse.Namespace) -> int:
    """Export the policy, and print the files and how to load them."""
    from trieye.process.terminal import Terminal

    add_working_directory()
    with Terminal(stderr=True).status(f"exporting {Path(options.run_name).name}"):
        from trieye.training.run_export import export_run

        export = export_run(options.run_name, options.output, checkpoint=options.checkpoint, root=options.root)
    checkpoint = export.checkpoint
    document = {"checkpoint": checkpoint.path, "step": checkpoint.step, "objective": checkpoint.objective}
    files = [{"path": file, "size_bytes": file.stat().st_size} for file in export.files]
    show(options, "export", {**document, "is_best": export.is_best, "files": files}, _lines(export))
    return 0


def _lines(export: "Export") -> Parts:
    from rich.filesize import decimal

    from trieye.training.exporting import PROGRAM, example

    checkpoint = export.checkpoint
    objective = "no objective" if checkpoint.objective is None else f"objective {checkpoint.objective:.6g}"
    yield f"exported {checkpoint.path} ({'best checkpoint, ' if export.is_best else ''}{objective}) to"
    for file in export.files:
        yield f"  {file}  {decimal(file.stat().st_size)}"
    for file in export.files:
        if file.name == PROGRAM:
            yield "load it in Python (requires only torch):"
            yield f"  import torch; act = torch.export.load({str(file)!r}).module()"
            yield f"  actions = act({example(export.policy.spaces)})"
