"""Explorers as Ray actors, on a real Ray cluster, with killed processes."""

import os
import subprocess
import sys
import time

import psutil
import pytest

from tests.training.algorithms import DQN, PPO
from tests.training.exploring.test_explorers import DQN_PARTS, PPO_PARTS, same, trained
from tests.waiting import wait_until

IN_RAY = {"runtime": {"kind": "ray"}}


def processes(actor_class):
    """Return the processes of an actor class."""
    children = psutil.Process().children(recursive=True)
    return [process for process in children if is_of(process, actor_class)]


def is_of(process, actor_class):
    try:
        return f"ray::{actor_class}" in "".join(process.cmdline()[:1])
    except psutil.Error:
        return False


def test_local_equals_ray_fixed(ray_cluster, train_config):
    parts = DQN_PARTS | {"env": {"num": 2}, "loop": {"axis": "step", "steps": 8}}
    alone = trained(train_config, DQN, **parts, run_name="alone")
    helped = trained(train_config, DQN, **parts, run_name="helped", explorer={"num": 1}, **IN_RAY)
    assert same(alone, helped)
    wait_until(lambda: not processes("ExplorerActor"))


@pytest.fixture
def started(ray_cluster, train_config):
    """Return a function that creates an engine whose explorers have collected; closes the engine afterwards."""
    engines = []

    def start(engine, **parts):
        config = train_config(**{**IN_RAY, **parts})
        engines.append(engine(config))
        engines[-1].advance()
        return engines[-1]

    yield start
    for engine in engines:
        engine.cleanup()


@pytest.mark.long
def test_the_death_of_the_replay_process_is_reported(started, capsys):
    engine = started(DQN, **DQN_PARTS, explorer={"num": 1, "fragment_steps": 16})
    while not engine.updates:
        engine.advance()
    processes("ReplayActor")[0].kill()
    stderr, ends = "", time.monotonic() + 120
    while "died; Ray restarted it, and it continues from its last snapshot" not in stderr:
        assert time.monotonic() < ends, stderr
        engine.advance()
        stderr += capsys.readouterr().err


ON_GPUS = """
import json, sys
import ray, torch
from tests.training.algorithms import ActorCritic, TrainConfig
from trieye.training.environments import spaces_of_config
from trieye.training.exploring.making import make_explorers

class OnGPU(ActorCritic):
    device = torch.device(sys.argv[2])

ray.init(address="local", num_cpus=2, num_gpus=int(sys.argv[1]), include_dashboard=False, log_to_driver=False)
config = TrainConfig.model_validate({
    "agent": {"kind": "ppo", "engine": "tests.training.algorithms:PPO"}, "env": {"id": "CartPole-v1"},
    "explorer": {"num": 1, "num_gpus": 1}, "runtime": {"kind": "ray"}, "sinks": {}, "run_name": "run",
})
try:
    explorers, _ = make_explorers(config, OnGPU(config, spaces_of_config(config.env)), None)
except Exception as error:
    print(type(error).__name__, error)
else:
    gpu = ray.remote(num_gpus=1)(lambda: ray.get_gpu_ids())
    print([str(gpu_id) for gpu_id in ray.get(gpu.remote(), timeout=60)])
    explorers.close()
ray.shutdown()
"""


NO_OTHER_GPU = "ConfigurationError explorer.num_gpus=1: Ray has no GPUs for an explorer besides the learner's"


@pytest.mark.long
@pytest.mark.parametrize(
    ("num_gpus", "learner", "expected"), [(2, "cuda:0", "['1']"), (2, "cuda:1", "['0']"), (1, "cuda:0", NO_OTHER_GPU)]
)
def test_explorers_with_whole_gpus_get_other_gpus_than_the_learner(num_gpus, learner, expected):
    """Ray is configured with GPUs that the machine lacks; it assigns their ids nevertheless."""
    arguments = [sys.executable, "-c", ON_GPUS, str(num_gpus), learner]
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    completed = subprocess.run(arguments, capture_output=True, text=True, check=False, env=environment)
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.strip().startswith(expected)


@pytest.mark.parametrize("runtime", ["local", "ray"])
def test_long_fragments_continue_with_newer_weights(started, runtime):
    parts = PPO_PARTS | {"explorer": {"num": 1}, "runtime": {"kind": runtime}}
    sync = {"style": "fully_async", "max_staleness": 5}
    engine = started(PPO, **parts, sync=sync, env={"id": "tests.training.worlds:Slow-v0"})
    reports = []
    wait_until(lambda: advanced(engine, reports) and any(one.version_max > one.version_min for one in reports))
    assert all(one.version_max <= engine._row_source.version for one in reports)


def advanced(engine, reports):
    """Make a learner step, and record its fragment results."""
    engine.collect()
    reports += engine._row_source._learned
    engine._row_source.learned()
    return True
