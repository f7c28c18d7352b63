"""A resumed training equals an uninterrupted one, or learning accounts for the difference."""

import shutil

import numpy as np
import pytest
import torch

import trieye
from tests.training.algorithms import DQN, PPO, interrupted, resumed
from trieye.checkpoints.directory import load_state, read_hub_state, save_state
from trieye.checkpoints.manifest import read_manifest
from trieye.experiment.loop import run_alone
from trieye.snapshot import generators
from trieye.snapshot.nodes import KIND

AGENTS = {
    "dqn": (
        DQN,
        {"kind": "dqn", "rollout_steps": 3, "batch_size": 8, "learning_starts": 20, "updates_per_env_step": 0.5},
    ),
    "ppo": (PPO, {"kind": "ppo", "rollout_steps": 7, "batch_size": 8}),
}


@pytest.fixture
def config(train_config):
    def make(name, steps, *, run_name="run", **env):
        return train_config(
            agent=AGENTS[name][1],
            env={"max_episode_steps": 30} | env,
            run_name=run_name,
            persistence={"checkpoint_save_freq_steps": 30},
            loop={"steps": steps, "evaluate_every_steps": 40},
        )

    return make


def state_of(result):
    return trieye.load_checkpoint(result.run_dir, "latest").objects["experiment"]["state"]


def assert_same(one, other):
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for first, second in zip(one, other, strict=True):
            assert_same(first, second)
    elif isinstance(one, torch.Generator):
        assert torch.equal(one.get_state(), other.get_state())
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    else:
        assert np.array_equal(one, other)


@pytest.mark.parametrize(
    ("name", "env"), [("dqn", {"num": 3}), ("ppo", {"normalize_observations": True})], ids=["dqn", "ppo"]
)
def test_weights_moments_generators_and_environments_resume_bit_exactly(config, name, env):
    kind, _ = AGENTS[name]
    whole = run_alone(kind, config(name, 80, run_name="whole", **env))
    with pytest.raises(trieye.RunInterrupted):  # a lower limit would shorten the last rollout
        run_alone(interrupted(kind, 50), config(name, 80, run_name="parts", **env))
    parts = run_alone(kind, config(name, 80, run_name="parts", **env))
    one, other = state_of(whole), state_of(parts)
    for state in (one, other):
        state.pop("replay", None)  # stored in parts; the newest contains only new rows
    assert_same(one, other)
    assert one["collector"]["env_steps"] >= 80


def learn_until(engine, env_steps):
    """Make steps of an engine; return [(environment steps, updates of the step)]."""
    progress = []
    while engine.env_steps < env_steps:
        before = engine.updates
        engine.advance()
        progress.append((engine.env_steps, engine.updates - before))
    return progress


def test_without_a_saved_replay_learning_restarts_after_learning_starts_steps(train_config, capfd):
    config = train_config(
        agent={"rollout_steps": 4, "learning_starts": 40, "updates_per_env_step": 0.5},
        persistence={"save_buffer": False},
    )
    engine = DQN(config)
    learn_until(engine, 100)
    env_steps, updates = engine.env_steps, engine.updates
    for _ in range(2):
        engine = resumed(engine, config)
        assert len(engine.replay) == 0
        assert "learning starts after another agent.learning_starts=40 environment steps" in capfd.readouterr().err
    for env_steps_now, num_updates in learn_until(engine, env_steps + 80):
        assert num_updates == 0 or env_steps_now > env_steps + 40
        assert engine.replay.metrics()["replay/size"] > 0
    assert engine.updates == updates + int((engine.env_steps - env_steps - 40) * 0.5)
    engine.cleanup()


def test_a_new_update_ratio_counts_from_the_resume(train_config):
    engine = DQN(train_config(agent={"updates_per_env_step": 1.0}))
    learn_until(engine, 40)
    for ratio in (2.0, 0.25):
        env_steps, updates = engine.env_steps, engine.updates
        engine = resumed(engine, train_config(agent={"updates_per_env_step": ratio}))
        learn_until(engine, env_steps + 4)
        assert engine.updates == updates + int((engine.env_steps - env_steps) * ratio)
    engine.cleanup()


def test_learning_that_has_not_started_waits_for_the_new_learning_starts(train_config):
    agent = {"updates_per_env_step": 1.0}
    engine = DQN(train_config(agent=agent | {"learning_starts": 100}))
    learn_until(engine, 20)
    engine = resumed(engine, train_config(agent=agent | {"learning_starts": 30}))
    learn_until(engine, 50)
    assert engine.updates == engine.env_steps - 30
    engine.cleanup()


def generators_in(node):
    """Yield the states of torch generators in the tree of a checkpoint."""
    if isinstance(node, dict) and node.get(KIND) == "generator" and node["state"]["generator"] == "torch.Generator":
        yield node["state"]
    elif isinstance(node, dict | list):
        for item in node.values() if isinstance(node, dict) else node:
            yield from generators_in(item)


@pytest.mark.long
def test_a_gpu_checkpoint_resumes_on_the_cpu_with_a_bit_exactness_warning(config, capfd, caplog):
    """Simulates a GPU: generators have states of 16 bytes (seed, number of draws), and its device has another one."""
    run_dir = run_alone(PPO, config("ppo", 60, normalize_observations=True)).run_dir
    path = trieye.load_checkpoint(run_dir, "latest").path
    encoded, manifest, hub_state = load_state(path), read_manifest(path), read_hub_state(path)
    for state in generators_in(encoded.tree):
        state["device"] = "cuda:0"
        encoded.arrays[state["state"]["array"]] = np.array([42, 1024], "<u8").view(np.uint8)
    encoded.arrays["rng/torch_cuda/0"] = np.array([0, 4096], "<u8").view(np.uint8)
    encoded.tree["rng"]["torch_cuda"] = [{KIND: "ndarray", "array": "rng/torch_cuda/0"}]
    shutil.rmtree(path)
    settings = {"step": manifest.step, "sequence": manifest.sequence, "metadata": manifest.metadata}
    save_state(path, encoded, **settings, hub_state=hub_state)
    generators._warn_of_other_device.cache_clear()  # it warns once per process
    assert run_alone(PPO, config("ppo", 120, normalize_observations=True)).env_steps >= 120
    assert f"continues at step {manifest.step}" in capfd.readouterr().err
    assert caplog.text.count("saved on cuda and continue on cpu") == 1
    assert "the resume is not bit-exact" in caplog.text


@pytest.mark.long
@pytest.mark.parametrize(("before", "after", "explorers"), [(1, 1, 0), (1, 3, 1), (3, 2, 0)])
def test_the_replay_survives_a_change_of_discount_or_n_step(train_config, before, after, explorers):
    """Population-based training changes these hyperparameters."""

    def config(gamma, n_step):
        return train_config(agent={"gamma": gamma}, replay={"n_step": n_step}, explorer={"num": explorers})

    engine = DQN(config(0.99, before))
    learn_until(engine, 40)
    engine = resumed(engine, config(0.9, after))
    batch = engine.replay.minibatch(64, torch.device("cpu"))
    n = batch.data.get("n", torch.ones(64))
    assert n.max() <= after
    assert torch.allclose(batch["discount"], (~batch["terminated"]) * 0.9 ** n.float())
    learn_until(engine, 80)
    assert all(weights.isfinite().all() for weights in engine.policy.parameters())
    engine.cleanup()


def test_explorers_that_are_removed_and_added_again_start_with_other_episodes(train_config):
    def config(explorers):
        return train_config(agent=AGENTS["ppo"][1], explorer={"num": explorers})

    engine, starts = PPO(config(0)), []
    for explorers in (2, 0, 2, 0, 2):
        engine = resumed(engine, config(explorers))
        if explorers:
            starts += [tuple(obs) for obs in engine.collect()["obs"][0].tolist()]
    engine.cleanup()
    assert len({*starts}) == len(starts) == 6


@pytest.mark.parametrize(("name", "before", "after"), [("dqn", 0, 2), ("ppo", 2, 0)])
def test_a_resume_starts_new_episodes_when_explorers_are_added_or_removed(train_config, name, before, after, capfd):
    kind, agent = AGENTS[name]

    def config(explorers):
        env = {"num": 2, "normalize_rewards": True}
        replay = {"max_staleness": 100} if name == "dqn" else {}
        return train_config(agent=agent, env=env, replay=replay, explorer={"num": explorers})

    engine = kind(config(before))
    learn_until(engine, 40)
    env_steps, num_rows = engine.env_steps, 0 if engine.replay is None else engine.replay.metrics()["replay/size"]
    engine = resumed(engine, config(after))
    assert f"explorer.num was {before} and is {after}" in capfd.readouterr().err
    assert engine.env_steps == env_steps
    assert engine.replay is None or engine.replay.metrics()["replay/size"] >= num_rows
    assert np.max(engine.advance()["episode/interrupted"]) >= 1
    learn_until(engine, env_steps + 40)
    engine.cleanup()
