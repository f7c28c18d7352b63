"""`trieye convert`: checkpoints of trieye 0.1.5 as checkpoints of this version.

Make checkpoints of the pickles of trieye 0.1.5: those of a run, RUN, or one file.

trieye 0.1.5 saved pickles, and reading a pickle runs whatever code it holds, so --allow-pickle says that you trust
where they come from. Classes in them must be importable: run it as `PYTHONPATH=. trieye convert ...` beside your code.
The old files stay as they are. The new ones lie beside them, or below --output.

Examples:
  trieye convert my_agent/run_20250102_030405 --allow-pickle
  trieye convert downloads/checkpoint_step_9.pkl --allow-pickle
"""

import argparse
import sys
from pathlib import Path

from trieye.cli.arguments import add_run

EXIT_FAILED = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    add_run(parser)
    parser.add_argument("--allow-pickle", action="store_true", help="read the pickles, which runs the code in them")
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help="directory for the new ones")


def run(options: argparse.Namespace) -> int:
    """Convert a file or what a run has, say what came of it, and return whether something was left out."""
    from trieye.cli.output import print_json
    from trieye.compat.convert import convert
    from trieye.files.run_files import RUN_RECORD
    from trieye.runs.checkpoint_rows import SAVED_DIRECTORIES
    from trieye.runs.finding import run_directory

    path = Path(options.run_name)
    if not path.is_file():
        path = run_directory(options.run_name, root=options.root, marks=(RUN_RECORD, *SAVED_DIRECTORIES))
    converted, left_out = [], []
    for file in convert(path, allow_pickle=options.allow_pickle or None, output=options.output):
        if file.target is None:
            left_out.append(file)
        else:
            converted.append(file)
            if not options.json:
                print(f"{file.path} -> {file.target}")
    if options.json:
        done = [{"path": file.path, "checkpoint": file.target} for file in converted]
        failed = [{"path": file.path, "reason": file.reason} for file in left_out]
        print_json("convert", {"converted": done, "left_out": failed})
        return EXIT_FAILED if left_out else 0
    for file in left_out:
        print(f"left out: {file.path}: {file.reason}", file=sys.stderr)
    return EXIT_FAILED if left_out else 0
