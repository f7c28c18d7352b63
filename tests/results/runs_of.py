"""Small runs for the tests of results, created through the public API."""

from typing import Literal

import trieye
from trieye.sweeps.grid import Axis, Grid
from trieye.sweeps.jobs import JobRecord
from trieye.sweeps.record import SweepRecord


class Agent(trieye.StrictModel):
    """The varying parameters."""

    algo: Literal["ppo", "dqn"] = "ppo"
    lr: float = 1e-3


class Ppo(trieye.StrictModel):
    """Parameters of a single algorithm."""

    clip: float = 0.2


class Config(trieye.TrieyeConfig):
    """The config of a project."""

    agent: Agent = Agent()
    ppo: Ppo | None = None


def config(root, name, *, app="app", **settings):
    """Return the config of a run in `root` with a local runtime and without sinks."""
    sinks = {sink: {"enabled": False} for sink in ("mlflow", "tensorboard", "console")} | settings.pop("sinks", {})
    settings = {"runtime": {"kind": "local"}, "sinks": sinks, **settings}
    persistence = {"root_data_dir": str(root), "auto_resume_latest": False}
    return Config(app_name=app, run_name=name, persistence=persistence, **settings)


def make_run(root, name, returns, *, every=1, **settings):
    """Create a run that logs a return every `every` steps, and half of it as the loss; return its directory."""
    with trieye.Run(config(root, name, **settings)) as run:
        for number, value in enumerate(returns):
            run.log({"eval/return": float(value), "loss": value / 2}, step=number * every)
    return run.dir


def make_sweep(directory, axes, run_dirs, *, errors=None):
    """Record a sweep over {key: values}, and its started jobs by index: their runs, and the errors of failed ones."""
    grid = Grid(tuple(Axis((key,), tuple((value,) for value in values)) for key, values in axes.items()))
    record = SweepRecord(spec=[f"{key}={','.join(values)}" for key, values in axes.items()], varying=list(axes))
    record.set_grid(grid)
    record.write(directory)
    for index, run_dir in run_dirs.items():
        error = (errors or {}).get(index)
        job = JobRecord(index=index, overrides=list(grid[index]), state="failed" if error else "completed", error=error)
        job.write(directory / str(index))
        (directory / str(index) / "run").symlink_to(run_dir)
    return directory
