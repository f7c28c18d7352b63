"""Demo: create a project, train PPO on CartPole-v1, kill the training once and resume it, evaluate, and plot the curve.

Ctrl-C saves and stops; the same command resumes. After the training it evaluates the best checkpoint again.
"""  # noqa: INP001 - a script

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from trieye import runs
from trieye.cli import main as trieye
from trieye.cli.new import answers_of, bake

SLUG = "demo_agent"
OVERRIDES = ("experiment=ppo_cartpole", "runtime=local", "sinks=[mlflow,tensorboard]")
SOLVED_RETURN = 475.0
EPISODES = 20
KILL_AFTER_STEP = 40_000
"""The training is killed one second after its first checkpoint at this environment step or later."""

KILL_DELAY_S = 1.0
POLL_S = 0.1


def main(argv: list[str] | None = None) -> int:
    """Run the demo; return 0 if the policy solves CartPole, 1 if it does not, or the exit code of a failed training."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="seed of the run (default: 0)")
    parser.add_argument("--folder", type=Path, default=Path("demo_run"), help="output directory (default: demo_run)")
    parser.add_argument("--no-kill", action="store_true", help="do not kill the training")
    options = parser.parse_args(argv)
    began = time.monotonic()
    project = make_project(options.folder.absolute())
    run_dir = project / ".trieye_data" / SLUG / "runs" / f"demo_seed{options.seed}"
    kill_record = project / f"{run_dir.name}_killed.json"
    if (status := read_json(run_dir / "run.json").get("status")) == "FINISHED":
        say(f"Run {run_dir.name} is finished; evaluating its best checkpoint again.")
    elif code := train(project, run_dir, options.seed, status, kill_record, no_kill=options.no_kill):
        return code
    report = evaluate(project, run_dir)
    show(report, project, run_dir, read_json(kill_record), time.monotonic() - began)
    return 0 if report["return_mean"] >= SOLVED_RETURN else 1


def make_project(folder: Path) -> Path:
    """Return the directory of the demo project; the first call creates it."""
    project = folder / SLUG
    if (project / "pyproject.toml").exists():
        say(f"Using the project in {project}.")
        return project
    answers = answers_of({"project_name": "Demo Agent", "slug": SLUG, "description": "trieye demo", "ci": "none"})
    bake(answers, folder, overwrite=True)
    say(f"Created a project in {project}, as `trieye new` does.")
    return project


def train(project: Path, run_dir: Path, seed: int, status: str | None, kill_record: Path, *, no_kill: bool) -> int:
    """Train until the run is finished and return the exit code; kill the process once in between."""
    command = [sys.executable, "-m", f"{SLUG}.train", *OVERRIDES, f"run_name={run_dir.name}", f"seed={seed}"]
    if status is None:
        say("\nTraining PPO on CartPole-v1, about a minute. Ctrl-C saves and stops; the same command resumes.")
    else:
        say(f"\nResuming run {run_dir.name}, which was interrupted.")
    child = subprocess.Popen(command, cwd=project)
    if not no_kill and not kill_record.exists() and kill_in_the_middle(child, run_dir):
        killed_at, resumed_from = runs.get(run_dir).step or 0, newest_checkpoint(run_dir)
        kill_record.write_text(json.dumps({"killed_at": killed_at, "resumed_from": resumed_from}))
        say(
            f"\nKilled the training at step {killed_at:_} (SIGKILL), as a crash or a full node would.\n"
            f"The same command resumes it from its checkpoint at step {resumed_from:_}; no logged point is lost:\n"
            f"  python -m {SLUG}.train {' '.join(command[3:])}\n"
        )
        child = subprocess.Popen(command, cwd=project)
    return wait_for(child)


def kill_in_the_middle(child: "subprocess.Popen[bytes]", run_dir: Path) -> bool:
    """Kill a training after its checkpoint at `KILL_AFTER_STEP`; return False if it ended before."""
    try:
        while child.poll() is None:
            if newest_checkpoint(run_dir) >= KILL_AFTER_STEP:
                time.sleep(KILL_DELAY_S)
                child.kill()
                return child.wait() < 0
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        say("Stopping: saving after the current step. Press Ctrl-C again to stop at once.")
    return False


def wait_for(child: "subprocess.Popen[bytes]") -> int:
    """Return the exit code of a training, which receives Ctrl-C from the terminal too."""
    while True:
        try:
            return child.wait()
        except KeyboardInterrupt:
            say("Stopping: saving after the current step. Press Ctrl-C again to stop at once.")


def newest_checkpoint(run_dir: Path) -> int:
    """Return the step of the newest complete checkpoint; 0 if there is none."""
    checkpoints = (run_dir / "checkpoints").glob("checkpoint_step_*")
    return max((int(step) for path in checkpoints if (step := path.name.rpartition("_")[2]).isdecimal()), default=0)


def evaluate(project: Path, run_dir: Path) -> dict[str, Any]:
    """Evaluate the best checkpoint and return the report of `trieye evaluate`."""
    command = [sys.executable, "-m", "trieye.cli", "evaluate", str(run_dir), "--episodes", str(EPISODES), "--json"]
    done = subprocess.run(command, cwd=project, check=True, stdout=subprocess.PIPE, text=True)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def read_json(path: Path) -> dict[str, Any]:
    """Return the content of a JSON file; empty if it does not exist."""
    content: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return content


def show(report: dict[str, Any], project: Path, run_dir: Path, kill: dict[str, int], seconds: float) -> None:
    """Print the result and the next steps, and plot the learning curve."""
    from rich.console import Console
    from rich.table import Table

    record = read_json(run_dir / "run.json")
    killed = f"killed at step {kill['killed_at']:,}, resumed from {kill['resumed_from']:,}" if kill else ""
    table = Table(title="PPO on CartPole-v1", show_header=False, title_justify="left")
    table.add_row("mean return", f"{report['return_mean']:.1f} of 500 in {report['episodes']} episodes")
    table.add_row("lowest, highest", f"{report['return_min']:g}, {report['return_max']:g}")
    table.add_row("best checkpoint", f"after {report['step']:,} environment steps")
    table.add_row("run", f"{record['run_name']}, {record['status']}, {record['attempt']} attempts")
    if killed:
        table.add_row("", killed)
    table.add_row("MLflow run", str(record.get("mlflow_run_id")))
    table.add_row("time", f"{seconds:.0f} s")
    Console(soft_wrap=True).print(table)
    picture = project / "curve.png"
    trieye(["results", "curve", str(run_dir)])
    marks = ["--mark", f"{kill['killed_at']}:{killed}"] if kill else []
    trieye(["results", "curve", str(run_dir), "-o", str(picture), *marks])
    say(
        "\nNext steps:\n"
        f"  {picture}  (this learning curve; with several seeds, `trieye results` adds intervals)\n"
        f"  {Path(sys.executable).parent}/trieye ui {run_dir}  (MLflow, TensorBoard and a report in the browser)\n"
        f"  {project / SLUG / 'ppo.py'}  (the algorithm, yours to change)"
    )


def say(text: str) -> None:
    """Print at once, in order with the output of child processes."""
    print(text, flush=True)  # noqa: T201 - addressed to the terminal


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
