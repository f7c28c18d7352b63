"""`trieye convert`: checkpoints of trieye 0.1.5 as checkpoints of this version."""

import argparse
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from trieye.cli.run_argument import add_run_argument, find_run
from trieye.files.run_files import BUFFERS, CHECKPOINTS, RUN_RECORD

if TYPE_CHECKING:
    from trieye.cli.conversion import Conversion

_EPILOG = """\
trieye 0.1.5 saved pickles, and reading a pickle runs whatever code it holds, so --allow-pickle says that you trust
where they come from. Classes in them must be importable: run it as `PYTHONPATH=. trieye convert ...` beside your code.
The old files stay as they are. The new ones lie beside them, or below --output.

examples:
  trieye convert my_agent/run_20250102_030405 --allow-pickle
  trieye convert downloads/checkpoint_step_9.pkl --allow-pickle
"""
EXIT_FAILED = 1


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `convert` to the commands of the parser."""
    parser = commands.add_parser(
        "convert",
        help="make checkpoints of those of trieye 0.1.5",
        description="Make checkpoints of the pickles of trieye 0.1.5: those of a run, RUN, or one file.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_run_argument(parser)
    parser.add_argument("--allow-pickle", action="store_true", help="read the pickles, which runs the code in them")
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help="directory for the new ones")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Convert a file or what a run has, say what came of it, and return whether something was left out.

    Raises:
        ConfigurationError: There is no such file or run, or nothing in it that could be converted.
        RunLockedError: The run is alive.
        UntrustedPickleError: Pickles were not allowed.
    """
    from trieye.cli.conversion import Conversion

    given = Path(options.run_name)
    conversion = Conversion(allow_pickle=options.allow_pickle or None, output=options.output)
    if given.is_file():
        with _locked(given.absolute().parent.parent, options.output):
            conversion.file(given.absolute())
    else:
        run_dir = find_run(options.run_name, options.root, marks=(RUN_RECORD, CHECKPOINTS, BUFFERS))
        with _locked(run_dir, options.output):
            conversion.run(run_dir)
    _tell(conversion)
    return EXIT_FAILED if conversion.left_out else 0


@contextlib.contextmanager
def _locked(run_dir: Path, output: Path | None) -> Iterator[None]:
    from trieye.process.lock import RunLock

    if output is not None or not (run_dir / RUN_RECORD).is_file():
        yield
        return
    lock = RunLock(run_dir / "run.lock").acquire()
    try:
        yield
    finally:
        lock.release()


def _tell(conversion: "Conversion") -> None:
    for old, new in conversion.made.items():
        print(f"{old} -> {new}")
    for old, reason in conversion.left_out.items():
        print(f"left out: {old}: {reason}", file=sys.stderr)
