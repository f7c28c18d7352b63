"""The command that plays the best checkpoint of a run, or the newest one if no objective was recorded."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import trieye

from {{ cookiecutter.slug }}.config import TrainConfig

FIRST_SEED = 2_000_000  # other starts than those that chose the best checkpoint


def main(argv: list[str] | None = None) -> int:
    """Play some episodes and print a table, or a line of JSON."""
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__)
    parser.add_argument("run", nargs="*", help="name or directory of a run, also as run=...; default: the newest")
    parser.add_argument("--episodes", type=positive, default=20, help="episodes to play (default: 20)")
    parser.add_argument("--json", action="store_true", help="print one line of JSON instead of a table")
    options = parser.parse_args(argv)
    try:
        report = evaluate(find_run((options.run or "").removeprefix("run=")), episodes=options.episodes)
    except trieye.TrieyeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(report)) if options.json else print_table(report)
    return 0


def find_run(name: str) -> Path:
    """Return the directory of a run.

    Args:
        name: Its name, or a path of its directory; the newest run if empty.

    Raises:
        trieye.ConfigurationError: There is no such run.
    """
    if name and (Path(name) / "checkpoints").is_dir():
        return Path(name).resolve()
    runs = trieye.compose(config_path="../conf", config_type=TrainConfig).persistence.get_runs_root_dir()
    found = sorted(path.parent for path in runs.glob("*/checkpoints"))
    chosen = [path for path in found if path.name == name or not name]
    if not chosen:
        names = ", ".join(path.name for path in found) or "none yet"
        raise trieye.ConfigurationError(f"run {name!r} is not in {runs}; runs there: {names}")
    return max(chosen, key=lambda path: path.stat().st_mtime)


def evaluate(run_dir: Path, *, episodes: int) -> dict[str, Any]:
    """Load the best checkpoint of a run and play it greedily.

    Raises:
        trieye.CheckpointError: The run has no whole checkpoint.
    """
    from {{ cookiecutter.slug }}.dqn import DQN

    best = trieye.load_checkpoint(run_dir)
    agent = DQN(read_config(run_dir))
    agent.load_checkpoint(best.objects["experiment"]["state"])
    returns = agent.play(episodes, FIRST_SEED)
    agent.cleanup()
    mean = sum(returns) / len(returns)
    return {
        "run": run_dir.name,
        "checkpoint": str(best.path),
        "step": best.step,
        "env_steps": agent.env_steps,
        "episodes": episodes,
        "return_mean": mean,
        "return_std": (sum((value - mean) ** 2 for value in returns) / len(returns)) ** 0.5,
        "return_min": min(returns),
        "return_max": max(returns),
    }


def read_config(run_dir: Path) -> TrainConfig:
    """Return the config that the run was trained with."""
    path = run_dir / "configs.json"
    try:
        return TrainConfig.model_validate_json(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise trieye.ConfigurationError(f"{path} does not hold the config of this project: {error}") from error


def print_table(report: dict[str, Any]) -> None:
    """Print the result for people."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{report['run']}: best checkpoint, {report['episodes']} episodes", show_header=False)
    table.add_row("checkpoint", f"step {report['step']}, after {report['env_steps']:_} environment steps")
    table.add_row("return, mean", f"{report['return_mean']:.1f} (standard deviation {report['return_std']:.1f})")
    table.add_row("return, range", f"{report['return_min']:.1f} to {report['return_max']:.1f}")
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
