"""The demo: make a project, train Double DQN on CartPole-v1, evaluate the best checkpoint, show where to look.

Interrupted and started again, it goes on where it was; started again when finished, it evaluates again.
"""  # noqa: INP001 - a script

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from trieye.cli import main as trieye
from trieye.cli.new import answers_of, bake

SLUG = "demo_agent"
SOLVED_RETURN = 195.0
EPISODES = 20


def main(argv: list[str] | None = None) -> int:
    """Run the demo and return its exit code: 0 if CartPole is solved, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="seed of the run (default: 0)")
    parser.add_argument("--folder", type=Path, default=Path("demo_run"), help="where to keep it (default: demo_run)")
    options = parser.parse_args(argv)
    project = make_project(options.folder.absolute())
    run_dir = project / ".trieye_data" / SLUG / "runs" / f"demo_seed{options.seed}"
    began = time.monotonic()
    if (status := read_record(run_dir).get("status")) == "FINISHED":
        say(f"Run {run_dir.name} is finished already; its best checkpoint is evaluated again.")
    elif code := train(project, run_dir, options.seed, status):
        return code
    report = evaluate(project, run_dir)
    show(report, project, run_dir, time.monotonic() - began)
    return 0 if report["return_mean"] >= SOLVED_RETURN else 1


def make_project(folder: Path) -> Path:
    """Return the project of the demo; made on the first call."""
    project = folder / SLUG
    if (project / "pyproject.toml").exists():
        say(f"The project is in {project}.")
        return project
    answers = answers_of(
        {"project_name": "Demo Agent", "slug": SLUG, "description": "The demo of trieye", "ci": "none"}
    )
    bake(answers, folder, overwrite=True)
    say(f"Made a project in {project}, as `trieye new` does.")
    return project


def train(project: Path, run_dir: Path, seed: int, status: str | None) -> int:
    """Train until the run is finished and return the exit code; the child gets Ctrl-C from the terminal, too."""
    if status is None:
        say("Training Double DQN on CartPole-v1, a minute or so. Ctrl-C saves; the same command goes on.")
    else:
        say(f"Run {run_dir.name} was interrupted ({status}); it goes on from its last checkpoint.")
    command = [sys.executable, "-m", f"{SLUG}.train", f"run_name={run_dir.name}", f"seed={seed}"]
    child = subprocess.Popen(command, cwd=project)
    while True:
        try:
            return child.wait()
        except KeyboardInterrupt:
            say("Stopping: the step under way is finished and saved. Ctrl-C again stops at once.")


def evaluate(project: Path, run_dir: Path) -> dict[str, Any]:
    """Play the best checkpoint and return the report of `trieye evaluate`."""
    command = [sys.executable, "-m", "trieye.cli", "evaluate", str(run_dir), "--episodes", str(EPISODES), "--json"]
    done = subprocess.run(command, cwd=project, check=True, stdout=subprocess.PIPE, text=True)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def read_record(run_dir: Path) -> dict[str, Any]:
    """Return what run.json says; empty if there is no run yet."""
    path = run_dir / "run.json"
    record: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return record


def show(report: dict[str, Any], project: Path, run_dir: Path, seconds: float) -> None:
    """Print the result and where to look next."""
    from rich.console import Console
    from rich.table import Table

    record = read_record(run_dir)
    table = Table(title="Double DQN on CartPole-v1", show_header=False, title_justify="left")
    table.add_row("return", f"{report['return_mean']:.1f} (solved: {SOLVED_RETURN:g}, at most 500)")
    table.add_row("range", f"{report['return_min']:g} to {report['return_max']:g} in {report['episodes']} episodes")
    table.add_row("best checkpoint", f"after {report['step']:_} environment steps")
    table.add_row("run", f"{record['run_name']}, attempt {record['attempt']}, {record['status']}")
    table.add_row("MLflow run", str(record.get("mlflow_run_id")))
    table.add_row("this took", f"{seconds:.0f} s")
    console = Console(soft_wrap=True)
    console.print(table)
    bin_dir = Path(sys.executable).parent
    picture = project / "curve.png"
    trieye(["results", "curve", str(run_dir), "-o", str(picture)])
    trieye(["results", "curve", str(run_dir)])
    say(
        "Where to look next:\n"
        f"  {picture}  (the curve above; with more seeds, `trieye results` adds intervals and comparisons)\n"
        f"  {bin_dir}/trieye ui {run_dir}  (MLflow and TensorBoard)\n"
        f"  {project / SLUG / 'dqn.py'}  (the algorithm, yours to change)"
    )


def say(text: str) -> None:
    """Print to the terminal at once, in order with what the children print."""
    print(text, flush=True)  # noqa: T201 - the terminal is the place for it


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
