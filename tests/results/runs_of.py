"""Runs for the tests of results: small ones, made as users make them."""

from typing import Literal

import trieye


class Agent(trieye.StrictModel):
    """What varies."""

    algo: Literal["ppo", "dqn"] = "ppo"
    lr: float = 1e-3


class Ppo(trieye.StrictModel):
    """What only one algorithm has."""

    clip: float = 0.2


class Config(trieye.TrieyeConfig):
    """The config of a project."""

    agent: Agent = Agent()
    ppo: Ppo | None = None


def config(root, name, *, app="app", **settings):
    """Return the config of a run below a root, in this process, without sinks."""
    sinks = {sink: {"enabled": False} for sink in ("mlflow", "tensorboard", "console")} | settings.pop("sinks", {})
    settings = {"runtime": {"kind": "local"}, "sinks": sinks, **settings}
    persistence = {"root_data_dir": str(root), "auto_resume_latest": False}
    return Config(app_name=app, run_name=name, persistence=persistence, **settings)


def make_run(root, name, returns, *, every=1, **settings):
    """Make a run that logs a return at every so many steps, and a loss that is half of it; return its directory."""
    with trieye.Run(config(root, name, **settings)) as run:
        for number, value in enumerate(returns):
            run.log({"eval/return": float(value), "loss": value / 2}, step=number * every)
    return run.dir
