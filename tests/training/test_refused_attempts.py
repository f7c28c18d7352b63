"""A rejected attempt leaves the files of the run unchanged."""

import hashlib
import importlib.util
import json
import random
from typing import Literal

import numpy as np
import pytest

import trieye
from tests.training.algorithms import DQN, DQNConfig, QPolicy, TrainConfig, mlp
from trieye.exceptions import CheckpointError, ConfigurationError, RunLockedError
from trieye.experiment.loop import run_alone
from trieye.process.lock import RunLock


class SmallConfig(DQNConfig):
    kind: Literal["small"] = "small"
    engine: str = "tests.training.test_refused_attempts:Small"
    hidden: int = 8


class SmallPolicy(QPolicy):
    def __init__(self, config, spaces):
        super().__init__(config, spaces)
        self.q = mlp([spaces.observation.shape[0], config.agent.hidden, spaces.action.n])


class SmallTrainConfig(TrainConfig):
    agent: SmallConfig = SmallConfig()


class Small(DQN, trieye.TrainEngine[SmallTrainConfig], policy=SmallPolicy):
    pass


class Interrupted(Small):
    """An engine whose restore is interrupted."""

    def load_checkpoint(self, checkpoint):
        super().load_checkpoint(checkpoint)
        raise KeyboardInterrupt


def make_config(root, **changes):
    agent = {"rollout_steps": 4, "batch_size": 8, "learning_starts": 8} | changes.pop("agent", {})
    return SmallTrainConfig.model_validate(
        {
            "app_name": "app",
            "run_name": "run",
            "agent": agent,
            "env": {"id": "CartPole-v1", "eval_episodes": 1, "max_episode_steps": 20},
            "runtime": {"kind": "local"},
            "sinks": {"mlflow": {"enabled": False}, "console": {"enabled": False}},
            "persistence": {"root_data_dir": str(root)},
            "loop": {"axis": "env_steps", "steps": 40, "evaluate_every_steps": 20},
        }
        | changes
    )


@pytest.fixture
def root(tmp_path):
    run_alone(Small, make_config(tmp_path))
    return tmp_path


def run_dir_of(root):
    return root / "app" / "runs" / "run"


def files_of(directory):
    """Return {name: hash} of every file that a rejected attempt must not change."""
    names = {path: str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}
    return {
        name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path, name in names.items()
        if not name.startswith(("run.lock", "logs/"))
    }


def more(**changes):
    return {"loop": {"axis": "env_steps", "steps": 80, "evaluate_every_steps": 20}} | changes


def another_size(root):
    with pytest.raises(CheckpointError, match=r"agent\.hidden: 8 -> 16") as error:
        run_alone(Small, make_config(root, **more(agent={"hidden": 16})))
    assert "\n" not in str(error.value)


def another_env(root):
    with pytest.raises(CheckpointError, match=r"env\.id: CartPole-v1 -> Acrobot-v1") as error:
        run_alone(Small, make_config(root, **more(env={"id": "Acrobot-v1", "eval_episodes": 1})))
    assert "\n" not in str(error.value)


def another_agent(root):
    class Other(Small):
        def load_checkpoint(self, checkpoint):
            self.critic.load_state_dict(checkpoint["critic"])

    with pytest.raises(CheckpointError, match="critic"):
        run_alone(Other, make_config(root, **more()))


def another_axis(root):
    with pytest.raises(ConfigurationError, match=r"loop\.axis=step"):
        run_alone(Small, make_config(root, loop={"axis": "step", "steps": 80}))


def array_of_another_shape(root):
    with trieye.Run(make_config(root)) as run, pytest.raises(CheckpointError, match="'w'"):
        run.restore(w=np.zeros(3))


def an_unknown_key(root):
    with pytest.raises(ValueError, match="nope"):
        run_alone(Small, make_config(root, **more(agent={"nope": 1})))


def locked(root):
    with RunLock(run_dir_of(root) / "run.lock"), pytest.raises(RunLockedError):
        run_alone(Small, make_config(root, **more()))


def missing_engine(root):
    with pytest.raises(ConfigurationError, match="no_such_module"):
        trieye.train(make_config(root, **more(agent={"engine": "no_such_module:Engine"})))


def missing_library(root):
    with pytest.raises(ConfigurationError, match="wandb"):
        run_alone(Small, make_config(root, **more(sinks={"wandb": {"enabled": True}})))


def missing_checkpoint(root):
    back = {"root_data_dir": str(root), "load_checkpoint_path": "step:7"}
    with pytest.raises(ConfigurationError, match=r"has no checkpoint step:7 \(choose from: "):
        run_alone(Small, make_config(root, **more(persistence=back)))


def ctrl_c_while_restoring(root):
    with pytest.raises(KeyboardInterrupt):
        run_alone(Interrupted, make_config(root, **more()))


def failing_program(root):
    with pytest.raises(ZeroDivisionError), trieye.Run(make_config(root, agent={"hidden": 16})):
        raise ZeroDivisionError


REFUSALS = [
    another_size,
    another_env,
    another_agent,
    another_axis,
    array_of_another_shape,
    an_unknown_key,
    locked,
    missing_engine,
    missing_library,
    missing_checkpoint,
    ctrl_c_while_restoring,
    failing_program,
]


def test_rejected_attempts_leave_the_run_unchanged(root, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", without_wandb())
    run_dir = run_dir_of(root)
    files, seed = files_of(run_dir), random.randrange(1 << 30)
    for refusal in random.Random(seed).sample(REFUSALS, len(REFUSALS)):
        refusal(root)
        assert files_of(run_dir) == files, f"{refusal.__name__}, seed {seed}"
    result = run_alone(Small, make_config(root, **more()))  # it resumes
    assert result.step >= 80
    assert json.loads((run_dir / "run.json").read_text())["attempt"] == 2


def without_wandb():
    find = importlib.util.find_spec
    return lambda name, *args: None if name == "wandb" else find(name, *args)


def test_damaged_checkpoints_stay_in_their_directories_when_none_is_intact(root):
    for path in run_dir_of(root).glob("checkpoints/*/state.safetensors"):
        path.write_bytes(b"damaged")
    files = files_of(run_dir_of(root))
    with pytest.raises(CheckpointError, match="none is intact"):
        run_alone(Small, make_config(root, **more()))
    assert files_of(run_dir_of(root)) == files


@pytest.mark.long
def test_a_damaged_checkpoint_is_renamed_once_an_older_one_is_restored(root):
    checkpoints = run_dir_of(root) / "checkpoints"
    newest = max(checkpoints.glob("checkpoint_step_*"), key=lambda path: int(path.name.rpartition("_")[2]))
    (newest / "state.safetensors").write_bytes(b"damaged")
    files = files_of(run_dir_of(root))
    another_size(root)
    assert files_of(run_dir_of(root)) == files
    run_alone(Small, make_config(root, **more()))
    assert (checkpoints / f"{newest.name}.damaged").is_dir()


def test_a_policy_is_built_with_the_config_of_its_checkpoint(root):
    """Also if a later attempt has replaced the config of the run."""
    path = run_dir_of(root) / "configs.json"
    report = trieye.evaluate(run_dir_of(root), episodes=2)
    config = json.loads(path.read_text())
    config["agent"]["hidden"] = 16
    path.write_text(json.dumps(config))
    assert trieye.evaluate(run_dir_of(root), episodes=2) == report
