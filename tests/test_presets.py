"""Presets of a new project have the networks and the details of the publications that they name."""

import importlib
import sys

import gymnasium as gym
import numpy as np
import pytest
import torch

import trieye
from trieye.cli.new import answers_of, bake
from trieye.config.hydra import registration

ATARI = trieye.Spaces(gym.spaces.Box(0, 255, (4, 84, 84), np.uint8), gym.spaces.Discrete(6))
MINATAR = trieye.Spaces(gym.spaces.Box(0, 1, (10, 10, 4), bool), gym.spaces.Discrete(6))
HALFCHEETAH = trieye.Spaces(gym.spaces.Box(-np.inf, np.inf, (17,), np.float64), gym.spaces.Box(-1.0, 1.0, (6,)))
NATURE = (8 * 8 * 4 + 1) * 32 + (4 * 4 * 32 + 1) * 64 + (3 * 3 * 64 + 1) * 64 + (7 * 7 * 64 + 1) * 512
YOUNG_AND_TIAN = (3 * 3 * 4 + 1) * 16 + (8 * 8 * 16 + 1) * 128
PAPERS = {
    "dqn_atari": (ATARI, NATURE + 513 * 6),
    "ppo_atari": (ATARI, NATURE + 513 * (6 + 1)),
    "dqn_minatar": (MINATAR, YOUNG_AND_TIAN + 129 * 6),
    "ppo_minatar": (MINATAR, YOUNG_AND_TIAN + 129 * (6 + 1)),
    "ppo_mujoco": (HALFCHEETAH, 2 * (18 * 64 + 65 * 64) + 65 * (6 + 1) + 6),
    "sac_mujoco": (HALFCHEETAH, 18 * 256 + 257 * 256 + 257 * 12),
    "td3_mujoco": (HALFCHEETAH, 18 * 256 + 257 * 256 + 257 * 6),
}
"""Spaces of the environment, and number of weights of the policy."""


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """Return a generated project, which can be imported."""
    directory = bake(answers_of({"project_name": "Preset project"}), tmp_path_factory.mktemp("presets"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registration, "current", registration.current)
        patch.syspath_prepend(directory)
        yield directory
        for name in [name for name in sys.modules if name.partition(".")[0] == directory.name]:
            del sys.modules[name]


@pytest.fixture(scope="module")
def make_config(project):
    """Return a function that makes configs of the project without its config files: composing takes 0.2 s."""
    config_type = importlib.import_module(f"{project.name}.config").TrainConfig
    common = {"runtime": {"kind": "local"}, "sinks": {}, "persistence": {"root_data_dir": str(project)}}
    return lambda env_id, **agent: config_type(agent=agent, env={"id": env_id}, **common)


@pytest.fixture(scope="module")
def compose(project):
    """Return a function that composes configs of the project."""
    config_type = importlib.import_module(f"{project.name}.config").TrainConfig
    common = [f"persistence.root_data_dir={project}", "runtime=local", "metrics=[]", "sinks=[]"]
    return lambda *words: trieye.compose([*words, *common], config_path=project / "conf", config_type=config_type)


def engine_class(config):
    module, _, name = config.agent.engine.partition(":")
    return getattr(importlib.import_module(module), name)


def policy_of(config, spaces):
    return engine_class(config).policy_class(config, spaces)


@pytest.mark.parametrize("preset", PAPERS)
def test_a_preset_has_the_network_of_its_publication(compose, preset):
    spaces, num_weights = PAPERS[preset]
    policy = policy_of(compose(f"experiment={preset}"), spaces)
    assert sum(weights.numel() for weights in policy.parameters()) == num_weights


def test_dqn_evaluations_select_random_actions_with_eval_epsilon(make_config):
    actions = {}
    obs = torch.zeros(1000, 10, 10, 4)
    for epsilon in (0.0, 0.5):
        torch.manual_seed(0)
        policy = policy_of(make_config("MinAtar/Breakout-v1", kind="dqn", eval_epsilon=epsilon), MINATAR)
        generator = torch.Generator().manual_seed(0)
        before = generator.get_state()
        actions[epsilon] = policy.act(obs, None, trieye.Context(explore=False, env_steps=0, generator=generator)).action
        assert torch.equal(before, generator.get_state()) is (epsilon == 0.0)
    greedy = actions[0.0][0]
    assert (actions[0.0] == greedy).all()
    assert 0.5 < (actions[0.5] == greedy).float().mean() < 0.66  # 1 - epsilon + epsilon / 6


@pytest.mark.parametrize("agent", ["sac", "td3"])
def test_actions_at_a_bound_are_in_the_action_space(make_config, agent):
    space = gym.spaces.Box(np.float32([-0.6, -2.9, 0.5]), np.float32([2.7, 0.4, 0.5]))
    policy = policy_of(make_config("Pendulum-v1", kind=agent), trieye.Spaces(gym.spaces.Box(-1, 1, (3,)), space))
    for bound in (-1.0, 1.0):
        torch.nn.init.constant_(policy.head[-1].bias, 100 * bound)
        action = policy.predict(np.zeros(3, np.float32))
        assert space.contains(action)
        unscaled = policy.unscaled(torch.from_numpy(action)[None])[0]
        assert torch.allclose(unscaled, torch.tensor([1.0, 1.0, 0.0]) * bound)


@pytest.mark.parametrize("agent", ["ppo", "recurrent_ppo"])
def test_ppo_explores_within_bounds_that_exclude_zero(make_config, agent):
    low, high = torch.tensor([10.0, -20.0, -1.0, 0.0]), torch.tensor([20.0, -10.0, 1.0, 3e38])
    spaces = trieye.Spaces(gym.spaces.Box(-1, 1, (3,)), gym.spaces.Box(low.numpy(), high.numpy()))
    policy = policy_of(make_config("Pendulum-v1", kind=agent), spaces)
    obs, state, generator = torch.zeros(500, 3), policy.initial_state(500), torch.Generator().manual_seed(0)
    with torch.no_grad():
        acts = (policy.act(obs, state, trieye.Context(explores, 0, generator)) for explores in (True, False))
        explored, greedy = (act.action for act in acts)
    assert ((explored > low) & (explored < high)).float().mean(0).min() > 0.4  # of a Gaussian, half or one deviation
    assert torch.allclose(greedy, torch.tensor([10.0, -10.0, 0.0, 0.0]), atol=0.1)


@pytest.mark.parametrize("clips", [False, True])
def test_the_value_loss_of_ppo_is_clipped_if_configured(make_config, clips):
    config = make_config("CartPole-v1", kind="ppo", rollout_steps=32, clip_value=clips)
    engine = engine_class(config)(config)
    rows = engine.collect()
    with torch.no_grad():
        value = engine.policy.value(rows["obs"])
    returns = value + 1.0
    rows.extras["value"] = old_value = value - 3.0
    batch = next(engine.minibatches(rows, advantages=torch.zeros_like(value), returns=returns))
    loss = engine.train_step(batch)["loss/value"]
    clipped = old_value + 0.2  # by clip_range
    expected = (returns - clipped).square().mean() if clips else torch.tensor(1.0)
    assert torch.isclose(loss, expected, rtol=1e-4)
    engine.cleanup()


@pytest.mark.parametrize("preset", ["dqn_minatar", "ppo_minatar"])
def test_the_minatar_presets_pass_their_check(compose, preset):
    pytest.importorskip("minatar", reason="env=minatar needs the extra minatar of a project")
    compose(f"experiment={preset}").check()


def test_recurrent_ppo_reproduces_the_collected_values_when_unrolled(compose):
    words = ["agent=recurrent_ppo", "env=cartpole_positions", "env.num=3", "env.max_episode_steps=9"]
    config = compose(*words, "agent.rollout_steps=24")
    engine = engine_class(config)(config)
    for _ in range(2):
        rows = engine.collect()
        (batch,) = rows.sequences().minibatches(3)
        with torch.no_grad():
            states = engine.policy.unroll(batch["obs"], batch["state"], batch["valid"])
            values = engine.policy.critic(states)[..., 0]
        assert torch.allclose(values[batch["valid"]], batch["value"][batch["valid"]], atol=1e-5)
        assert not batch["valid"].all()
    before = engine.policy.memory.weight_hh.clone()
    metrics = engine.advance()
    assert metrics["policy/clipped"] < 0.2  # the first update has ratios of 1
    assert not torch.equal(before, engine.policy.memory.weight_hh)
    engine.cleanup()


def test_updates_of_dqn_equal_those_of_stable_baselines3(make_config):
    sb3 = pytest.importorskip("stable_baselines3")
    options = {"double": False, "lr": 1e-3, "hidden_sizes": [16], "gamma": 0.9, "target_update_interval": 20}
    config = make_config("CartPole-v1", kind="dqn", **options)
    ours = engine_class(config)(config)
    theirs = sb3.DQN(
        "MlpPolicy", "CartPole-v1", learning_rate=1e-3, gamma=0.9, learning_starts=0, policy_kwargs={"net_arch": [16]}
    )
    rng = np.random.default_rng(0)
    for _ in range(500):
        obs, next_obs = rng.normal(size=(2, 1, 4))
        theirs.replay_buffer.add(obs, next_obs, rng.integers(2, size=1), rng.normal(size=1), rng.random(1) < 0.1, [{}])
    theirs._setup_learn(1000)
    weights = list(zip(ours.policy.parameters(), theirs.q_net.parameters(), strict=True))
    for own, other in weights:
        other.data.copy_(own)
    theirs.q_net_target.load_state_dict(theirs.q_net.state_dict())
    for ours.updates in range(1, 61):
        drawn = theirs.replay_buffer.sample(32)
        theirs.replay_buffer.sample = lambda *_, drawn=drawn, **__: drawn
        theirs.train(1, 32)
        del theirs.replay_buffer.sample
        done = drawn.dones[:, 0].bool()
        columns = {"obs": drawn.observations, "action": drawn.actions[:, 0], "reward": drawn.rewards[:, 0]}
        columns |= {"next_obs": drawn.next_observations, "terminated": done, "truncated": torch.zeros_like(done)}
        ours.train_step(trieye.Minibatch(columns | {"discount": 0.9 * ~done}, np.arange(32), torch.ones(32)))
        if ours.updates % config.agent.target_update_interval == 0:
            theirs.q_net_target.load_state_dict(theirs.q_net.state_dict())
    assert max((own - other).abs().max().item() for own, other in weights) < 1e-5
    ours.cleanup()
