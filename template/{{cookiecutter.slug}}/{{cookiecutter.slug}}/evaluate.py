"""The command that plays the policy of a run: its best checkpoint, or the newest one if no evaluation rated any.

Which run: its name or directory, also as `run=NAME`; `persistence.root_data_dir=DIR` and `app_name=NAME` say where to
look for it. Everything else is as the run was trained. Replay buffer and optimizer are not read.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import trieye

from {{ cookiecutter.slug }} import sb3
from {{ cookiecutter.slug }}.config import TrainConfig


def main(argv: list[str] | None = None) -> int:
    """Play some episodes and print a table, or a line of JSON."""
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__, allow_abbrev=False)
    parser.add_argument("where", nargs="*", metavar="RUN|KEY=VALUE", help="which run; default: the newest")
    parser.add_argument("--which", type=checkpoint, default="best", help="best, latest or a step (default: best)")
    parser.add_argument("--episodes", type=positive, default=20, help="episodes to play (default: 20)")
    parser.add_argument("--video", type=gif, metavar="FILE.gif", help="write the first episode there")
    parser.add_argument("--json", action="store_true", help="print one line of JSON instead of a table")
    options = parser.parse_intermixed_args(argv)
    try:
        run, overrides = split(options.where)
        run_dir = find_run(run, overrides)
        play = sb3.evaluate if sb3.has_trained(run_dir) else trieye.evaluate
        report = play(run_dir, options.which, episodes=options.episodes, video=options.video)
    except trieye.TrieyeError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(json.dumps(report)) if options.json else print_table(report)
    return 0


def positive(text: str) -> int:
    """Return a number of the command line that must be at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number >= 1")
    return int(text)


def checkpoint(text: str) -> str | int:
    """Return which checkpoint is meant."""
    if text not in {"best", "latest"} and not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is neither best nor latest nor a step")
    return int(text) if text.isdecimal() else text


def gif(text: str) -> Path:
    """Return the path of a video, which is a GIF."""
    path = Path(text)
    if path.suffix.lower() != ".gif" or not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is no file FILE.gif in a folder that exists")
    return path


def split(where: list[str]) -> tuple[str, list[str]]:
    """Return the run, empty if none is named, and the overrides that say where to look for it.

    Raises:
        trieye.ConfigurationError: Two runs are named, or a key that does not say where a run is.
    """
    overrides = [word for word in where if "=" in word and not word.startswith("run=") and not Path(word).is_dir()]
    runs = [word.removeprefix("run=") for word in where if word not in overrides]
    if len(runs) > 1:
        raise trieye.ConfigurationError(f"one run is evaluated at a time, not {', '.join(runs)}")
    for key in (word.split("=")[0] for word in overrides):
        if key != "app_name" and not key.startswith("persistence."):
            hint = trieye.did_you_mean(key, ["run", "app_name", "persistence.root_data_dir"])
            raise trieye.ConfigurationError(
                f"{key}= does not say which run{hint}; "
                "give run=, app_name= or persistence.KEY=, the rest is as the run was trained"
            )
    return "".join(runs), overrides


def find_run(name: str, overrides: Sequence[str] = ()) -> Path:
    """Return the directory of a run.

    Args:
        name: Its name, or a path of its directory; the newest run if empty.
        overrides: Where to look for a name, as `["persistence.root_data_dir=elsewhere"]`.

    Raises:
        trieye.ConfigurationError: There is no such run.
    """
    if name and (Path(name) / "checkpoints").is_dir():
        return Path(name).resolve()
    runs = trieye.compose(overrides, config_path="../conf", config_type=TrainConfig).persistence.get_runs_root_dir()
    found = sorted(path.parent for path in runs.glob("*/checkpoints"))
    chosen = [path for path in found if path.name == name or not name]
    if not chosen:
        names = [path.name for path in found]
        hint = trieye.did_you_mean(name, names)
        raise trieye.ConfigurationError(
            f"run {name!r} is not in {runs}{hint} (runs there: {', '.join(names) or 'none yet'})"
        )
    return max(chosen, key=lambda path: path.stat().st_mtime)


def print_table(report: dict[str, Any]) -> None:
    """Print the result for people."""
    from rich.console import Console
    from rich.table import Table

    kind = "best checkpoint" if report["is_best"] else "checkpoint"
    table = Table(title=f"{report['run']}: {kind}, {report['episodes']} episodes", show_header=False)
    table.add_row("checkpoint", f"{Path(report['checkpoint']).name}, after {report['step']:_} steps")
    table.add_row("return, mean", f"{report['return_mean']:.1f} (standard deviation {report['return_std']:.1f})")
    table.add_row("return, range", f"{report['return_min']:.1f} to {report['return_max']:.1f}")
    table.add_row("length, mean", f"{report['length_mean']:.1f} steps")
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
