"""`trieye evaluate`: run episodes with the policy of a run.

Run full episodes with the policy of a run, without exploration, and print the returns.

Without RUN, the run with the newest checkpoint below --root is evaluated. The environment uses the run's wrappers; the
episode seeds differ from the seeds of training and of the run's own evaluations. If no checkpoint has an objective,
`best` selects the newest one. The command changes nothing in the run, which may be alive.
The Python call is trieye.evaluate(run, ...); docs/json.md describes the output of --json.

Examples:
  trieye evaluate first
  trieye evaluate my_agent/first --episodes 100 --video first.gif
  trieye evaluate --checkpoint latest --device cuda --json
"""

import argparse
from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trieye.cli.arguments import add_checkpoint, add_json, add_root, add_working_directory, positive
from trieye.cli.output import show

if TYPE_CHECKING:
    from trieye.process.terminal import TextTable

_KEYS = {"run", "checkpoint", "is_best", "step", "episodes", "returns", "length_mean"} | {
    f"return_{figure}" for figure in ("mean", "std", "min", "max")
}
"""Keys of the report besides the metrics of `Policy.on_episode`."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    parser.add_argument(
        "run_name",
        nargs="?",
        metavar="RUN",
        help="run directory or run name: run or app/run (default: the run with the newest checkpoint)",
    )
    add_root(parser)
    add_checkpoint(parser)
    parser.add_argument("--episodes", type=positive, default=20, metavar="N", help="number of episodes (default: 20)")
    parser.add_argument("--video", type=_gif, metavar="FILE.gif", help="write a GIF of the first episode")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, mps or auto (default: cpu)")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Run the episodes, and print a table or one line of JSON."""
    from trieye.checkpoints.choose import reference_of
    from trieye.process.terminal import Terminal
    from trieye.runs.finding import roots_of, run_directory

    roots = roots_of(options.root)
    run_dir = run_directory(options.run_name, root=options.root) if options.run_name else _newest(roots)
    checkpoint = reference_of(options.checkpoint, option="--checkpoint").which
    add_working_directory()
    with Terminal(stderr=True).status(f"evaluating {run_dir.name}"):
        from trieye.training.launch import evaluate

        report = evaluate(run_dir, checkpoint, episodes=options.episodes, video=options.video, device=options.device)
    show(options, "evaluate", report, map(_table, [report]))
    return 0


def _newest(roots: Sequence[Path]) -> Path:
    """Return the directory of the run with the newest checkpoint below the root directories."""
    from trieye.checkpoints.manifest import MANIFEST_NAME
    from trieye.exceptions import ConfigurationError
    from trieye.files.run_files import CHECKPOINT_PREFIX, CHECKPOINTS

    checkpoint = f"{CHECKPOINTS}/{CHECKPOINT_PREFIX}*[0-9]"  # not those that end in .damaged
    manifests = [path for root in roots for path in root.glob(f"*/*/*/{checkpoint}/{MANIFEST_NAME}")]
    if not manifests:
        searched_roots = ", ".join(map(str, roots)) or "this project"
        raise ConfigurationError(
            f"no run in {searched_roots} has a checkpoint; pass a run, or the directory of all apps as --root"
        )
    return max(manifests, key=lambda path: path.stat().st_mtime).parents[2].resolve()


def _table(report: Mapping[str, Any]) -> "TextTable":
    from trieye.process.terminal import TextTable
    from trieye.process.text import counted
    from trieye.results.tables import number

    kind = "best checkpoint" if report["is_best"] else "checkpoint"
    table = TextTable(title=f"{report['run']}: {kind}, {counted(report['episodes'], 'episode')}", is_ruled=False)
    table.add_row("checkpoint", f"{Path(report['checkpoint']).name}, after {report['step']:,} steps")
    figures = {name: number(float(value)) for name, value in report.items() if isinstance(value, Real)}
    if "return_mean" in figures:
        deviation = f" (standard deviation {figures['return_std']})" if "return_std" in figures else ""
        table.add_row("return, mean", f"{figures['return_mean']}{deviation}")
    if {"return_min", "return_max"} <= figures.keys():
        table.add_row("return, range", f"{figures['return_min']} to {figures['return_max']}")
    if "length_mean" in figures:
        table.add_row("length, mean", f"{figures['length_mean']} steps")
    for name in (name for name in figures if name not in _KEYS):
        table.add_row(f"{name}, mean", figures[name])
    return table


def _gif(text: str) -> Path:
    path = Path(text)
    if path.suffix.lower() != ".gif" or path.is_dir() or not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"invalid path {text!r}; expected FILE.gif in an existing directory")
    return path
