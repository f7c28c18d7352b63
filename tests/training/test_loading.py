"""load_policy needs only the weights and the config of a run."""

import shutil
from contextlib import closing

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

import trieye
from tests.training.algorithms import DQN, TrainConfig, small_config
from tests.training.worlds import Remembers
from trieye.exceptions import CheckpointError, ConfigurationError
from trieye.experiment.loop import run_alone as run_experiment


class CountingDQN(DQN):
    """A DQN that counts its instances."""

    num_instances = 0

    def setup(self, config):
        CountingDQN.num_instances += 1
        super().setup(config)

    def evaluate(self):
        return {"eval/return": float(self.env_steps == 60)}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run whose best checkpoint is step 60, and whose environment is no longer registered."""
    gym.register("Gone-v0", CartPoleEnv, max_episode_steps=30)
    config = small_config(
        tmp_path_factory.mktemp("root"),
        agent={"rollout_steps": 3, "learning_starts": 20, "engine": "tests.training.test_loading:CountingDQN"},
        env={"id": "Gone-v0", "normalize_observations": True},
        persistence={"checkpoint_save_freq_steps": 30},
        loop={"steps": 90, "evaluate_every_steps": 30},
    )
    result = run_experiment(CountingDQN, config)
    del gym.registry["Gone-v0"]
    return result


def test_a_policy_loads_without_its_environment_replay_or_optimizer(trained):
    num_before = CountingDQN.num_instances
    policy = trieye.load_policy(trained.run_dir)
    assert CountingDQN.num_instances == num_before == 1
    assert not policy.training
    saved = trieye.load_checkpoint(trained.run_dir, 60).objects["experiment"]["state"]["policy"]
    assert saved.keys() == policy.state_dict().keys()
    assert all(torch.equal(value, saved[name]) for name, value in policy.state_dict().items())
    assert policy.normalizer.count > 50
    ctx = trieye.Context(explore=False, env_steps=0, generator=torch.Generator())
    assert policy.act(torch.zeros(3, 4), None, ctx).action.shape == (3,)


def test_the_best_the_latest_and_any_step_are_selectable(trained):
    policies = {which: trieye.load_policy(trained.run_dir, which) for which in ("best", "latest", 32, 60, 90)}
    weights = {which: policy.q[0].weight for which, policy in policies.items()}
    assert torch.equal(weights["best"], weights[60])
    assert torch.equal(weights["latest"], weights[90])
    assert not torch.equal(weights["best"], weights["latest"])
    assert not torch.equal(weights[32], weights[60])
    with pytest.raises(CheckpointError, match=r"has no checkpoint 31 \(steps: 32, 60, 90\)"):
        trieye.load_policy(trained.run_dir, 31)


@pytest.mark.parametrize(
    ("engine", "sentence"),
    [
        ("tests.training.gone:DQN", "'tests.training.gone:DQN': no module named 'tests.training.gone'"),
        (
            "tests.training.test_loading:CountingDQM",
            r"no CountingDQM in .*; did you mean 'CountingDQN'",
        ),
    ],
)
def test_a_missing_engine_class_is_reported_in_one_line(trained, tmp_path, engine, sentence):
    saved = trieye.load_checkpoint(trained.run_dir)
    config = TrainConfig.of_run(trained.run_dir)
    agent = config.agent.model_copy(update={"engine": engine})
    persistence = config.persistence.model_copy(update={"root_data_dir": str(tmp_path)})
    with trieye.Run(config.model_copy(update={"agent": agent, "persistence": persistence})) as run:
        run.save(step=1, **saved.objects)
    with pytest.raises(ConfigurationError, match=sentence) as refused:
        trieye.load_policy(run.dir)
    assert "\n" not in str(refused.value)


def test_a_directory_that_is_no_run_is_named(tmp_path):
    with pytest.raises(ConfigurationError, match="no such directory, and "):
        trieye.load_policy(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="has no checkpoint 'best'"):
        trieye.load_policy(tmp_path / "empty")


def test_a_policy_loads_even_if_the_rows_of_its_replay_are_lost(trained, tmp_path):
    run_dir = tmp_path / "run"
    shutil.copytree(trained.run_dir, run_dir)
    parts = [path for path in run_dir.rglob("parts/*") if path.is_file()]
    assert parts
    for path in parts:
        path.unlink()
    assert isinstance(trieye.load_policy(run_dir), torch.nn.Module)
    assert trieye.load_policy(run_dir).normalizer.mean.isfinite().all()


@pytest.mark.parametrize(
    ("obs", "message"),
    [
        (np.zeros(3), r"the observation has shape \[3\]; expected \[4\] or \[n, 4\]"),
        (np.zeros((1, 2, 4)), r"has shape \[1, 2, 4\]"),
        ({"a": np.zeros(4)}, r"has shape \[\]; expected \[4\]"),
    ],
)
def test_an_observation_of_the_wrong_shape_is_rejected(trained, obs, message):
    with pytest.raises(ConfigurationError, match=message):
        trieye.load_policy(trained.run_dir).predict(obs)


class MaskPolicy(trieye.Policy):
    """Chooses the action that the mask allows."""

    def act(self, obs, state, ctx):
        assert obs["place"].dtype == torch.float32
        return trieye.Act(obs["mask"].argmax(1) + 10 * int(obs["place"].ndim == 2))


def test_dict_observations_are_predicted_and_their_keys_and_sizes_checked(train_config):
    box = gym.spaces.Box(-np.inf, np.inf, (2,))
    space = gym.spaces.Dict(mask=gym.spaces.MultiBinary(3), place=box)
    policy = MaskPolicy(train_config(), trieye.Spaces(space, gym.spaces.Discrete(3)))
    one = {"mask": np.array([0, 0, 1], np.int8), "place": np.zeros(2)}
    assert policy.predict(one) == 12
    assert policy.predict({key: np.stack([item] * 4) for key, item in one.items()}).tolist() == [12] * 4
    with pytest.raises(ConfigurationError, match=r"has keys \['mask'\]; expected mask, place"):
        policy.predict({"mask": one["mask"]})
    with pytest.raises(ConfigurationError, match="different numbers of rows"):
        policy.predict({"mask": one["mask"], "place": np.zeros((1, 2))})


def test_predict_rejects_a_recurrent_policy(train_config):
    policy = Remembers(train_config(), trieye.Spaces(gym.spaces.Box(-1, 1, (2,)), gym.spaces.Discrete(3)))
    with pytest.raises(ConfigurationError, match=r"Remembers is recurrent, and predict\(\) does not carry its state"):
        policy.predict(np.zeros(2))


def test_the_environment_of_a_run_without_a_config_is_unavailable(tmp_path):
    with pytest.raises(ConfigurationError, match=r"configs.json: cannot read the config of the run"):
        trieye.make_env(tmp_path)
    (tmp_path / "configs.json").write_text("{}")
    with pytest.raises(ConfigurationError, match=r"has no key env; use the code of its program instead"):
        trieye.make_env(tmp_path)


def test_the_environment_of_a_config_has_its_wrappers_for_training():
    clip = {"name": "TransformReward", "kwargs": {"func": np.sign}, "training_only": True}
    config = trieye.EnvConfig(id="Pendulum-v1", wrappers={"clip": clip})
    with closing(trieye.make_env(config, seed=0)) as env:
        env.reset(seed=0)
        assert env.step(env.action_space.sample())[1] == -1.0
