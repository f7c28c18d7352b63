"""Small runs for the tests of results, created through the public API."""

from typing import Literal

import trieye


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
