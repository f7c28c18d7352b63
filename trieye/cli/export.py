"""`trieye export`: the policy of a run for use elsewhere.

Write the policy of a run as files that need no trieye: its weights, and how it acts as a program of torch.

policy.pt has the weights, for torch.load(..., weights_only=True). policy.pt2 has what acts without exploring, from
observations [n, ...] to actions [n, ...], for torch.export.load(...); where torch cannot export a policy, such as a
recurrent one, that file is left out and a sentence says why. The run stays as it is.

Examples:
  trieye export first
  trieye export my_agent/first --which step:20000 -o exported
"""

import argparse
from pathlib import Path

from trieye.cli.arguments import add_run_argument


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    add_run_argument(parser)
    parser.add_argument("-o", "--out", type=Path, metavar="DIR", help="where the files go (export/ in the run)")
    parser.add_argument(
        "--which",
        default="best",
        metavar="CHECKPOINT",
        help="best, latest or step:N (best, or else the newest)",
    )


def run(options: argparse.Namespace) -> int:
    """Write the files, and say where they are."""
    from trieye.checkpoints.choose import named_checkpoint
    from trieye.cli.given_run import config_of, find_run
    from trieye.files.run_files import RunFiles
    from trieye.training.exporting import PROGRAM, export_policy
    from trieye.training.loading import loaded_policy

    run_dir = find_run(options.run_name, options.root)
    which: str | int = options.which
    if which not in {"best", "latest"}:
        asked = f"export {run_dir.name} --which {which}"
        which = named_checkpoint(RunFiles(config_of(run_dir).persistence), options.which, asked=asked).step
    loaded = loaded_policy(run_dir, which)  # type: ignore[arg-type]  # one of the two words, or a step
    paths = export_policy(loaded.policy, options.out or run_dir / "export")
    rated = "" if loaded.checkpoint.objective is None else f", objective {loaded.checkpoint.objective:g}"
    print(f"the policy of {run_dir.name} at step {loaded.checkpoint.step}{rated}:")
    for path in paths:
        print(f"  {path} ({path.stat().st_size / 1024:.1f} KiB)")
    if paths[-1].name == PROGRAM:
        print("load and use it:")
        print(f"  policy = torch.export.load({str(paths[-1])!r}).module()")
        print("  actions = policy(observations)  # [n, ...]")
    return 0
