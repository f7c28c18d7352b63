"""Third-party launchers and callbacks, which pickle configs and tasks for other processes."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.config.conftest import Project

PROGRAM = """
import json
from pathlib import Path
import trieye
from pydantic import Field
from trieye.config.base import StrictModel

class AgentConfig(StrictModel):
    lr: float = Field(default=1e-3, gt=0)

class TrainConfig(trieye.TrieyeConfig):
    agent: AgentConfig = AgentConfig(lr=0.5)

@trieye.main()
def train(config: TrainConfig) -> float:
    done = {"seed": config.seed, "lr": config.agent.lr, "metrics": len(config.stats.metrics)}
    (trieye.config.hydra.launch.launch_info().working_dir / f"{config.run_name}.json").write_text(json.dumps(done))
    return config.agent.lr

if __name__ == "__main__":
    train()
"""


@pytest.fixture
def program(project):
    (project.directory / "train.py").write_text(PROGRAM)
    return project


def results(project: Project) -> list[dict]:
    return [json.loads(path.read_text()) for path in sorted(project.directory.glob("*.json"))]


@pytest.mark.parametrize("launcher", ["joblib", pytest.param("submitit_local", marks=pytest.mark.long)])
def test_a_sweep_runs_on_a_launcher_that_pickles(program, launcher):
    if find_spec(f"hydra_plugins.hydra_{launcher.partition('_')[0]}_launcher") is None:
        pytest.skip(f"hydra-{launcher.partition('_')[0]}-launcher is not installed")
    program.ran("-m", f"hydra/launcher={launcher}", "seed=0,1", "agent.lr=0.25", "metrics=[core]")
    jobs = results(program)
    assert [(job["seed"], job["lr"]) for job in jobs] == [(0, 0.25), (1, 0.25)]
    assert jobs[0]["metrics"] > 0


def test_a_job_pickled_by_a_callback_can_be_rerun(program):
    callbacks = pytest.importorskip("hydra.experimental.callbacks")
    if not hasattr(callbacks, "PickleJobInfoCallback"):
        pytest.skip("this Hydra reruns from the overrides, and pickles nothing")
    callback = "+hydra.callbacks.save._target_=hydra.experimental.callbacks.PickleJobInfoCallback"
    assert program.run("run_name=first", "seed=7", callback).code == 0  # prints the path of the pickle
    assert results(program) == [{"seed": 7, "lr": 0.5, "metrics": results(program)[0]["metrics"]}]
    (pickled,) = Path(program.directory).rglob("config.pickle")
    before = results(program)
    (program.directory / "first.json").unlink()
    assert program.run("--experimental-rerun", str(pickled)).code == 0
    assert results(program) == before
