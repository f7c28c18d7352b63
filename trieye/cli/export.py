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
  trieye export my_agent/first --checkpoint step:1200 -o robot/policy
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from trieye.cli.arguments import add_checkpoint, add_run, add_working_directory

if TYPE_CHECKING:
    from trieye.training.run_export import Export


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    add_run(parser)
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help="where to write (default: RUN/export)")
    add_checkpoint(parser)


def run(options: argparse.Namespace) -> int:
    """Export the policy, and print the files and how they are loaded."""
    from trieye.cli.output import print_json
    from trieye.process.terminal import Terminal

    add_working_directory()
    with Terminal(stderr=True).status(f"exporting {Path(options.run_name).name}"):
        from trieye.training.run_export import export_run

        export = export_run(options.run_name, options.output, checkpoint=options.checkpoint, root=options.root)
    if options.json:
        checkpoint, sizes = export.checkpoint, {file: file.stat().st_size for file in export.files}
        document = {"checkpoint": checkpoint.path, "step": checkpoint.step, "objective": checkpoint.objective}
        files = [{"path": file, "size_bytes": size} for file, size in sizes.items()]
        print_json("export", {**document, "is_best": export.is_best, "files": files})
    else:
        _show(export)
    return 0


def _show(export: "Export") -> None:
    from rich.filesize import decimal

    from trieye.training.exporting import PROGRAM, example

    checkpoint = export.checkpoint
    rated = "no objective" if checkpoint.objective is None else f"objective {checkpoint.objective:.6g}"
    print(f"{checkpoint.path}{', the best one' if export.is_best else ''} ({rated}), is exported to")
    for file in export.files:
        print(f"  {file}  {decimal(file.stat().st_size)}")
    for file in export.files:
        if file.name == PROGRAM:
            print("which Python runs with torch alone:")
            print(f"  import torch; act = torch.export.load({str(file)!r}).module()")
            print(f"  actions = act({example(export.policy.spaces)})")
