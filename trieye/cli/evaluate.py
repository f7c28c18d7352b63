"""`trieye evaluate`: play the policy of a run.

Play whole episodes with the policy of a run, without exploring, and print the returns.

Without RUN, the run of the newest checkpoint below --root is evaluated. The environment has the wrappers of
the run; the seeds of the episodes differ from the seeds of the training and of the run's own evaluations. `best` is the
newest checkpoint where none was rated. Nothing of the run changes, and it may be alive.
The Python call is trieye.evaluate(run, ...); docs/json.md describes the output of --json.

Examples:
  trieye evaluate first
  trieye evaluate my_agent/first --episodes 100 --video first.gif
  trieye evaluate --checkpoint latest --device cuda --json
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trieye.cli.arguments import add_checkpoint, add_json, add_root, add_working_directory


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    parser.add_argument(
        "run_name",
        nargs="?",
        metavar="RUN",
        help="directory of a run, or its name: run or app/run; default: the newest",
    )
    add_root(parser)
    add_checkpoint(parser)
    parser.add_argument("--episodes", type=_positive, default=20, metavar="N", help="episodes (default: 20)")
    parser.add_argument("--video", type=_gif, metavar="FILE.gif", help="write a GIF of the first episode")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, mps or auto (default: cpu)")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Play the episodes, and print a table or one line of JSON."""
    from trieye.checkpoints.choose import reference_of
    from trieye.cli.output import print_json
    from trieye.process.terminal import Terminal
    from trieye.runs.finding import roots_of, run_directory

    roots = roots_of(options.root)
    run_dir = run_directory(options.run_name, root=options.root) if options.run_name else _newest(roots)
    which = reference_of(options.checkpoint, asked="--checkpoint").which
    add_working_directory()
    with Terminal(stderr=True).status(f"evaluating {run_dir.name}"):
        from trieye.training.launch import evaluate

        report = evaluate(run_dir, which, episodes=options.episodes, video=options.video, device=options.device)
    if options.json:
        print_json("evaluate", report)
    else:
        _show(report)
    return 0


def _newest(roots: Sequence[Path]) -> Path:
    """Return the run of the newest checkpoint below directories of apps."""
    from trieye.exceptions import ConfigurationError
    from trieye.files.run_files import CHECKPOINTS

    directories = [path for root in roots for path in root.glob(f"*/*/*/{CHECKPOINTS}")]
    if not directories:
        shown = ", ".join(map(str, roots)) or "this project"
        raise ConfigurationError(
            f"no run in {shown} has a checkpoint; name a run, or the directory of all apps by --root"
        )
    return max(directories, key=lambda path: path.stat().st_mtime).parent.resolve()


def _show(report: Mapping[str, Any]) -> None:
    from trieye.process.terminal import Table, Terminal

    kind = "best checkpoint" if report["is_best"] else "checkpoint"
    table = Table(title=f"{report['run']}: {kind}, {report['episodes']} episodes", is_ruled=False)
    table.add_row("checkpoint", f"{Path(report['checkpoint']).name}, after {report['step']:_} steps")
    table.add_row("return, mean", f"{report['return_mean']:.1f} (standard deviation {report['return_std']:.1f})")
    table.add_row("return, range", f"{report['return_min']:.1f} to {report['return_max']:.1f}")
    table.add_row("length, mean", f"{report['length_mean']:.1f} steps")
    Terminal().print(table)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number >= 1")
    return int(text)


def _gif(text: str) -> Path:
    path = Path(text)
    if path.suffix.lower() != ".gif" or not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is no file FILE.gif in a folder that exists")
    return path
