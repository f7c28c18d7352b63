"""`trieye convert`: convert trieye 0.1.5 checkpoints to the current format.

Convert trieye 0.1.5 checkpoints to the current format: all checkpoints of RUN, or one file.

trieye 0.1.5 saved pickles, and loading a pickle executes the code in it, so pass --allow-pickle only if you trust the
files. Their classes must be importable: run `PYTHONPATH=. trieye convert ...` in the directory of your code.
The old files stay unchanged. The new checkpoints are written to the same directory, or below --output.

Examples:
  trieye convert my_agent/run_20250102_030405 --allow-pickle
  trieye convert downloads/checkpoint_step_9.pkl --allow-pickle
"""

import argparse
import sys
from pathlib import Path

from trieye.cli.arguments import add_output, add_run

EXIT_FAILED = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    add_run(parser)
    parser.add_argument("--allow-pickle", action="store_true", help="load the pickles, which executes the code in them")
    add_output(parser, "DIR", "directory for the new checkpoints (default: next to the old)")


def run(options: argparse.Namespace) -> int:
    """Convert a file or all checkpoints of a run, report each one, and return 1 if any was skipped."""
    from trieye.cli.output import print_json
    from trieye.compat.convert import convert
    from trieye.files.run_files import RUN_RECORD
    from trieye.runs.checkpoint_rows import SAVED_DIRECTORIES
    from trieye.runs.finding import run_directory

    path = Path(options.run_name)
    if not path.is_file():
        path = run_directory(options.run_name, root=options.root, marks=(RUN_RECORD, *SAVED_DIRECTORIES))
    converted_files, skipped_files = [], []
    for file in convert(path, allow_pickle=options.allow_pickle or None, output=options.output):
        if file.target is None:
            skipped_files.append({"path": file.path, "reason": file.reason})
            print(f"skipped: {file.path}: {file.reason}", file=sys.stderr)
        else:
            converted_files.append({"path": file.path, "checkpoint": file.target})
            print(f"{file.path} -> {file.target}", file=sys.stderr if options.json else sys.stdout)
    if options.json:
        print_json("convert", {"converted": converted_files, "left_out": skipped_files})
    return EXIT_FAILED if skipped_files else 0
