"""The collector returns the same rows as a slow loop over single environments."""

import copy
import itertools
import random
import re

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

import trieye
from tests.training.worlds import Coin, Masked, Mixed, Remembers, Scripted, collected, collector_of, generator
from trieye.config.env import EnvConfig
from trieye.snapshot.decode import decode
from trieye.snapshot.encode import encode
from trieye.training.batches import Experience
from trieye.training.environments import make_env
from trieye.training.evaluation import Evaluation
from trieye.training.policy import Act, Normalizer
from trieye.training.reward_scale import RewardScale
from trieye.training.seeds import training_seed

FRAGMENTS = (7, 1, 1, 20, 3, 9)
CARTPOLE = {"id": "CartPole-v1", "max_episode_steps": 13}
PICKLED = {"wrappers": {"pickled": {"name": "tests.training.worlds:Pickled"}}}


class Slow:
    """Step single environments; return the rows `[t, n]`, and the episodes that ended at each `t`."""

    def __init__(self, actions, seed, **env):
        config, num = EnvConfig(**env), actions.shape[1]
        envs = [make_env(config) for _ in range(num)]
        obs = [env_.reset(seed=seed + n)[0] for n, env_ in enumerate(envs)]
        self.rows = {name: [] for name in ("obs", "reward", "terminated", "truncated", "valid", "next_obs")}
        self.episodes, done, totals = [], [False] * num, [[] for _ in range(num)]
        for t in range(len(actions)):
            transitions = []
            for n, env_ in enumerate(envs):
                before, is_valid = obs[n], not done[n]
                if is_valid:
                    obs[n], reward, terminated, truncated, _ = env_.step(actions[t, n])
                    totals[n].append(reward)
                else:
                    obs[n], reward, terminated, truncated = env_.reset()[0], 0.0, False, False
                transitions.append((before, reward, terminated, truncated, is_valid, obs[n]))
                done[n] = terminated or truncated
            self.episodes.append([(sum(total), len(total)) for n, total in enumerate(totals) if done[n]])
            totals = [[] if done[n] else total for n, total in enumerate(totals)]
            for name, values in zip(self.rows, zip(*transitions, strict=True), strict=True):
                self.rows[name].append(np.stack(values))
        self.rows = {name: np.stack(values) for name, values in self.rows.items()}


def joined(fragments, name):
    return np.concatenate([rows.arrays[name] for rows in fragments])


def valid_of(fragments):
    return np.concatenate([rows.valid for rows in fragments])


@pytest.fixture
def closing():
    collectors = []
    yield lambda collector: collectors.append(collector) or collector
    for collector in collectors:
        collector.envs.close()


def means(collector):
    """Return the mean of each metric of a collector since its last call."""
    return {name: float(np.mean(values)) for name, values in collector.metrics().items()}


@pytest.mark.parametrize("env", [{}, {"num": 4}, {"num": 3, "vector": "async"}], ids=["one", "four", "async"])
def test_rows_equal_those_of_single_environments_across_fragments(env, closing):
    num = env.get("num", 1)
    actions = np.random.default_rng(1).integers(2, size=(sum(FRAGMENTS), num))
    slow = Slow(actions, seed=5, **CARTPOLE)
    collector = closing(collector_of(Scripted, seed=5, **CARTPOLE, **env))
    collector._policy.script(actions)
    fragments, replay, first = [], Experience(1000), 0
    for steps in FRAGMENTS:
        rows = collector.collect(steps)
        fragments.append(rows)
        replay.extend(rows)
        ended = [episode for at in slow.episodes[first : first + steps] for episode in at]
        metrics = collector.metrics()
        assert len(metrics) == (2 if ended else 0)
        assert sorted(zip(*metrics.values(), strict=True)) == sorted(ended)
        first += steps
        assert np.array_equal(rows.last_obs["obs"], slow.rows["next_obs"][first - 1])
    valid = slow.rows["valid"]
    assert np.count_nonzero(~valid) > 0
    assert slow.rows["terminated"].any()
    assert slow.rows["truncated"].any()
    assert np.array_equal(valid_of(fragments), valid)
    for name in ("obs", "reward", "terminated", "truncated"):
        assert np.array_equal(joined(fragments, name), slow.rows[name]), name
    assert np.array_equal(np.concatenate([rows["row"] for rows in fragments]), np.indices(valid.shape)[0])
    assert collector.env_steps == np.count_nonzero(valid) == len(replay)
    stored, _ = next(replay.iter_rows(1000))
    for name in ("obs", "next_obs", "reward", "terminated", "truncated"):
        assert np.array_equal(stored[name], slow.rows[name][valid].astype(stored[name].dtype)), name
    assert np.array_equal(stored["action"], actions[valid])


def test_a_custom_vector_environment_makes_the_steps_of_a_single_one(closing):
    collector = closing(collector_of(Coin, num=3, vector="own", **CARTPOLE))
    fragments = [collected(collector, steps, seed=steps) for steps in FRAGMENTS]
    valid, obs = valid_of(fragments), joined(fragments, "obs")
    after = np.concatenate((obs[1:], fragments[-1].last_obs["obs"][None]))
    done = joined(fragments, "terminated") | joined(fragments, "truncated")
    single = gym.make("CartPole-v1").unwrapped
    single.reset()
    for t, n in np.argwhere(valid):
        single.state, single.steps_beyond_terminated = tuple(obs[t, n].astype(np.float64)), None
        expected, _, terminated, _, _ = single.step(joined(fragments, "action")[t, n])
        assert after[t, n] == pytest.approx(expected, abs=1e-4)
        assert terminated == joined(fragments, "terminated")[t, n]
    assert np.array_equal(valid[1:], ~done[:-1])
    assert (np.abs(after[~valid]) <= 0.05).all()
    assert joined(fragments, "truncated").any()
    lengths = np.array([valid[:, n][: np.flatnonzero(done[:, n])[-1]].sum() + 1 for n in range(3)])
    assert means(collector)["episode/length"] == lengths.sum() / done.sum()
    assert collector.env_steps == valid.sum()


def test_a_recurrent_policy_resets_with_each_episode_and_its_last_metrics_are_reported():
    collector = collector_of(Remembers, num=3)
    fragments = [collector.collect(steps) for steps in FRAGMENTS]
    valid, rewards = valid_of(fragments), joined(fragments, "reward")
    assert (rewards[valid] == 1.0).all()
    assert (rewards[~valid] == 0.0).all()
    assert (~valid).sum() > 3
    done = joined(fragments, "terminated") | joined(fragments, "truncated")
    metrics = means(collector)
    assert metrics["episode/success"] == joined(fragments, "terminated").sum() / done.sum()
    assert 0 < metrics["episode/last"] == metrics["episode/length"] == metrics["episode/return"]
    assert means(collector) == {}
    for rows in fragments:
        assert torch.equal(rows.state["age"][:, 0][rows.valid[0]], rows["age"][0][rows.valid[0]])
    for rows, following in itertools.pairwise(fragments):
        assert torch.equal(rows.last_state["age"], following.state["age"])


@pytest.mark.parametrize(("vector", "num"), [("sync", 3), ("async", 1)])
def test_on_episode_gets_the_info_that_the_member_returned(vector, num, closing):
    infos = []

    class Recording(Coin):
        def on_episode(self, info):
            infos.append(info)
            return {"fraction": info["fraction"]}

    wrappers = {"mixed": {"name": "tests.training.worlds:Mixed"}}
    collector = closing(collector_of(Recording, num=num, vector=vector, wrappers=wrappers))
    collector.collect(40)
    metrics = collector.metrics()
    lengths = [info["length"] for info in infos]
    assert repr(infos) == repr([Mixed.info_of(length) for length in lengths])
    assert metrics["episode/fraction"] == [0.75 if length % 2 else 1 for length in lengths]
    assert {length % 2 for length in lengths} == {0, 1}


def test_rows_carry_the_recurrent_states_at_both_ends_for_gradients():
    collector = collector_of(Remembers, num=2)
    collector.collect(1)
    rows = collector.collect(4)
    policy = collector._policy
    (policy.weight * rows.state["age"] + policy.weight * rows.last_state["age"]).sum().backward()
    assert policy.weight.grad == rows.state["age"].sum() + rows.last_state["age"].sum() > 0
    assert not rows.last_state["age"].requires_grad


def test_dict_observations_are_columns_by_key_including_the_action_mask():
    collector = collector_of(Masked, num=2, kwargs={"form": "mask"})
    rows = collector.collect(25)
    assert (rows.arrays["reward"][rows.valid] == 1.0).all()
    assert rows["obs"]["mask"].shape == (25, 2, 3)
    assert rows.after["place"].shape == (2, 1)
    replay = Experience(100)
    replay.extend(rows)
    batch = replay.minibatch(64, torch.device("cpu"))
    assert batch["obs"].keys() == batch["next_obs"].keys() == {"mask", "place"}
    assert torch.equal(batch["next_obs"]["place"], batch["obs"]["place"] + 1)
    batch = next(rows.minibatches(10))
    assert batch["obs"]["mask"].shape == (len(batch["action"]), 3)


@pytest.mark.parametrize(("form", "dtype"), [("picture", np.uint8), ("memory", np.float32), ("hidden", np.float32)])
def test_images_stay_bytes_and_other_numbers_become_float32(form, dtype):
    rows = collector_of(Coin, num=2, kwargs={"form": form}).collect(3)
    assert rows.arrays["obs"].dtype == dtype
    flat, _ = rows.transitions()
    assert flat["next_obs"].dtype == dtype


def test_clipped_rewards_are_learned_from_and_unclipped_ones_are_reported():
    collector = collector_of(Remembers, num=2, kwargs={"worth": 2.5}, clip_rewards=True)
    rows = collector.collect(20)
    assert set(np.unique(rows.arrays["reward"])) == {0.0, 1.0}
    metrics = means(collector)
    assert metrics["episode/return"] == pytest.approx(2.5 * metrics["episode/length"])


def test_rewards_are_divided_by_the_deviation_of_all_returns_so_far():
    collector = collector_of(Remembers, num=3, gamma=0.9, kwargs={"worth": 3.0}, normalize_rewards=True)
    plain = collector_of(Remembers, num=3, kwargs={"worth": 3.0})
    returns, discounted = np.zeros(3), []
    for steps in FRAGMENTS:
        rows, raw = collector.collect(steps), plain.collect(steps)
        for t in range(steps):
            for n in np.flatnonzero(raw.valid[t]):
                returns[n] = returns[n] * 0.9 + raw.arrays["reward"][t, n]
                discounted.append(returns[n])
                if raw.arrays["terminated"][t, n] or raw.arrays["truncated"][t, n]:
                    returns[n] = 0.0
        expected = np.clip(raw.arrays["reward"] / np.sqrt(np.var(discounted) + 1e-8), -10, 10)
        assert rows.arrays["reward"] == pytest.approx(expected, rel=2e-3)
        assert means(collector) == means(plain)


def test_a_fragment_of_resets_alone_does_not_change_the_reward_scale():
    scale = RewardScale(1, 0.9)
    scale.scaled(np.array([[1.0], [3.0]]), np.ones((2, 1), bool), np.array([[False], [True]]))
    before = scale.state_dict()
    assert scale.scaled(np.zeros((1, 1)), np.zeros((1, 1), bool), np.zeros((1, 1), bool)) == 0.0
    assert scale.state_dict() == before


def test_the_reward_scale_uses_the_discount_of_the_current_config():
    scale = RewardScale(1, 0.5)
    scale.load_state_dict(RewardScale(1, 0.9).state_dict())
    rewards, valid, done = np.array([[1.0], [1.0], [1.0]]), np.ones((3, 1), bool), np.zeros((3, 1), bool)
    assert np.array_equal(scale.scaled(rewards, valid, done), RewardScale(1, 0.5).scaled(rewards, valid, done))


def test_observations_are_normalized_by_moments_that_are_part_of_the_policy():
    collector = collector_of(Coin, num=3, normalize_observations=True, **CARTPOLE)
    batches = []
    for steps in FRAGMENTS:
        before = collector._policy.normalizer.mean.clone()
        rows = collector.collect(steps)
        assert torch.equal(collector._policy.normalizer.mean, before)  # learning uses the same moments as acting
        collector.learned()
        batches.append(rows.arrays["obs"][rows.valid])
    normalizer, data = collector._policy.normalizer, np.concatenate(batches)
    assert normalizer.mean.numpy() == pytest.approx(data.mean(0), abs=1e-4)
    assert normalizer.variance.numpy() == pytest.approx(data.var(0), rel=1e-3)
    assert copy.deepcopy(collector._policy).normalizer is normalizer  # a target network shares the moments
    other = Normalizer((4,))
    other.load_state_dict(decode(encode(normalizer.state_dict())))
    obs = torch.from_numpy(data[:50])
    assert torch.equal(other(obs), normalizer(obs))
    assert normalizer(obs).numpy() == pytest.approx(
        np.clip((data[:50] - data.mean(0)) / data.std(0), -10, 10), abs=1e-2
    )


def test_observation_moments_use_only_dtypes_that_every_device_supports():
    normalizer = Normalizer((3,))
    assert all(buffer.dtype != torch.float64 for buffer in normalizer.buffers())  # mps has no float64
    data = np.random.default_rng(0).normal(100.0, 3.0, (20_000, 3)).astype(np.float32)
    for part in np.split(data, 400):
        normalizer.update(torch.from_numpy(part))
    assert normalizer.mean.numpy() == pytest.approx(data.mean(0, np.float64), rel=1e-5)
    assert normalizer.variance.numpy() == pytest.approx(data.var(0, dtype=np.float64), rel=1e-4)
    normalizer.load_state_dict({**normalizer.state_dict(), "count": torch.tensor(5.0001, dtype=torch.float64)})
    assert normalizer.count == 5  # as in checkpoints of an earlier version


class Moody(trieye.Policy):
    """Has layers that differ between training and evaluation mode, one frozen; returns their outputs."""

    def __init__(self, config, spaces):
        super().__init__(config, spaces)
        self.norm, self.dropout = nn.BatchNorm1d(4), nn.Dropout(0.5)
        self.frozen = nn.Dropout(0.5).eval()
        self.scripted = torch.jit.script(nn.Dropout(0.5))

    def act(self, obs, state, ctx):
        seen = self.scripted(self.frozen(self.dropout(self.norm(obs))))
        return trieye.Act(torch.zeros(len(obs), dtype=torch.int64), {"seen": seen})


@pytest.mark.filterwarnings("ignore:`torch.jit.script`")
def test_a_policy_acts_in_evaluation_mode_and_each_module_regains_its_mode():
    collector = collector_of(Moody, num=3, **CARTPOLE)
    policy = collector._policy.train()
    policy.frozen.eval()
    policy.norm.running_mean += 1.0
    modes = {name: module.training for name, module in policy.named_modules()}
    rows = collector.collect(5)
    assert torch.allclose(rows["seen"], rows["obs"] - 1.0, atol=1e-4)
    assert torch.equal(policy.norm.running_mean, torch.ones(4))
    Evaluation(EnvConfig(**CARTPOLE)).play(policy, 1)
    assert {name: module.training for name, module in policy.named_modules()} == modes
    assert (modes["norm"], modes["scripted"], modes["frozen"]) == (True, True, False)


class Bare(trieye.Policy):
    """Returns a tensor instead of an `Act`, or an `Act` without a tensor."""

    returned = staticmethod(lambda actions: actions)

    def act(self, obs, state, ctx):
        return self.returned(torch.zeros(len(obs), dtype=torch.int64))


class OfNumPy(Bare):
    returned = staticmethod(lambda actions: trieye.Act(actions.numpy()))


@pytest.mark.parametrize(
    ("policy", "message"), [(Bare, "Bare.act.. returned a torch.Tensor"), (OfNumPy, "returned an Act .* numpy.ndarray")]
)
def test_an_act_without_a_tensor_is_rejected_and_names_the_policy(policy, message):
    collector = collector_of(policy, **CARTPOLE)
    for act in (lambda: collector.collect(1), lambda: Evaluation(EnvConfig(**CARTPOLE)).play(collector._policy, 1)):
        with pytest.raises(trieye.ConfigurationError, match=f"{message}; return trieye.Act"):
            act()


def test_exploration_draws_from_the_generator_of_the_context_alone():
    def global_states():
        return random.getstate(), np.random.mtrand._rand.get_state()[1].tolist(), torch.get_rng_state().tolist()

    before = global_states()
    one, other = (collector_of(Coin, num=2, **CARTPOLE) for _ in range(2))
    first, second = collected(one, 20, seed=3), collected(other, 20, seed=3)
    assert np.array_equal(first.arrays["obs"], second.arrays["obs"])
    assert not np.array_equal(first.arrays["action"], collected(one, 20, seed=4).arrays["action"])
    assert global_states() == before


def resumed(policy, saved, closing, **env):
    """Return a collector resumed from a saved one, and whether its episodes continue."""
    other = closing(collector_of(policy, **env))
    return other, other.load_state_dict(decode(encode(saved.state_dict())))


class Still(Coin):
    def act(self, obs, state, ctx):
        return Act(torch.zeros(len(obs), 1))


@pytest.mark.parametrize(
    ("policy", "steps", "env"),
    [
        (Coin, 11, {"num": 4, **CARTPOLE, "normalize_rewards": True}),
        (Coin, 11, {"num": 3, **CARTPOLE, "vector": "own"}),
        (Masked, 8, {"num": 2, "kwargs": {"form": "mask"}}),
        (Still, 8, {"id": "Pendulum-v1", "num": 2, "max_episode_steps": 8}),
    ],
    ids=["normalized", "own", "dict", "all_end_at_once"],
)
def test_a_saved_collector_resumes_with_the_same_rows(policy, steps, env, closing):
    whole = closing(collector_of(policy, **env))
    whole.collect(steps)
    other, is_whole = resumed(policy, whole, closing, **env)
    assert is_whole
    for number in range(3):
        one, same = collected(whole, 7, seed=number), collected(other, 7, seed=number)
        for name, array in one.arrays.items():
            assert np.array_equal(array, same.arrays[name]), name
        assert np.array_equal(one.valid, same.valid)
        assert means(whole) == means(other) or number == 0
    assert (other.env_steps, other.interrupted) == (whole.env_steps, 0)


def test_an_unsavable_environment_is_saved_between_episodes_and_resumes_exactly(closing):
    env = {**CARTPOLE, **PICKLED}
    whole = closing(collector_of(Coin, **env))
    rows = whole.collect(1)
    assert not whole.can_save
    while not rows.arrays["truncated"][-1] | rows.arrays["terminated"][-1]:
        rows = collected(whole, 1, seed=7)
    assert whole.can_save
    other, is_whole = resumed(Coin, whole, closing, **env)
    assert is_whole
    one, same = whole.collect(30), other.collect(30)
    assert not one.valid[0]
    assert np.array_equal(one.arrays["obs"], same.arrays["obs"])
    assert other.interrupted == 0


def test_episodes_of_several_unsavable_environments_are_cut_counted_and_reported(closing, capsys):
    env = {"num": 3, "kwargs": {"longest": 12}, "normalize_rewards": True, **PICKLED}
    whole = closing(collector_of(Remembers, **env))
    rows = whole.collect(6)
    num_unfinished = 3 - int((rows.arrays["terminated"] | rows.arrays["truncated"])[-1].sum())
    assert whole.can_save
    other, is_whole = resumed(Remembers, whole, closing, **env)
    assert not is_whole
    assert (other.interrupted, other.env_steps) == (num_unfinished, whole.env_steps)
    assert f"{num_unfinished} unfinished ones were cut: these environments cannot be saved" in capsys.readouterr().err
    after = other.collect(14)
    assert after.valid[0].all()
    assert (after["age"][0] == 0).all()
    assert (after.arrays["reward"][after.valid] > 0).all()
    metrics = means(other)
    assert metrics["episode/length"] <= 12
    assert metrics["episode/interrupted"] == num_unfinished > 0
    other.collect(14)
    assert "episode/interrupted" not in means(other)
    again, _ = resumed(Remembers, other, closing, **env)
    assert means(again) == {"episode/interrupted": again.interrupted}
    assert again.interrupted > num_unfinished


@pytest.mark.long
def test_async_members_are_cut_unless_all_of_them_have_just_ended(closing, capsys):
    env = {"id": "Pendulum-v1", "num": 2, "max_episode_steps": 5, "vector": "async"}
    whole = closing(collector_of(Still, **env))
    whole.collect(3)
    other, is_whole = resumed(Still, whole, closing, **env)
    assert (is_whole, other.interrupted, other.env_steps) == (False, 2, 6)
    assert "2 unfinished ones were cut: these environments cannot be saved" in capsys.readouterr().err
    whole.collect(2)
    assert not other.load_state_dict(decode(encode(whole.state_dict())))
    assert (other.interrupted, other.env_steps) == (0, 10)
    after = other.collect(6)
    assert after.valid[:5].all()
    assert after.arrays["truncated"][4].all()
    assert means(other)["episode/length"] == 5


def test_another_number_of_environments_starts_new_episodes(closing, capsys):
    whole = closing(collector_of(Coin, num=2, normalize_rewards=True, **CARTPOLE))
    whole.collect(4)
    other, is_whole = resumed(Coin, whole, closing, num=3, normalize_rewards=True, **CARTPOLE)
    assert (is_whole, other.interrupted, other.env_steps) == (False, 2, 8)
    assert "env.num was 2 and is 3" in capsys.readouterr().err
    assert other.collect(5).valid.shape == (5, 3)


def clipping(bound):
    return {"wrappers": {"clip": {"name": "ClipReward", "kwargs": {"max_reward": bound}}}}


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ({"max_episode_steps": 20}, {"max_episode_steps": 3}, "env.max_episode_steps was 20 and is 3"),
        ({}, {"kwargs": {"longest": 4}}, "env.kwargs was {} and is {'longest': 4}"),
        (clipping(0.9), clipping(0.5), "env.wrappers was .*0.9.* and is .*0.5"),
        ({"vector": "own", **CARTPOLE}, CARTPOLE, "env.vector was own and is sync"),
    ],
)
def test_a_changed_environment_starts_new_episodes_by_the_new_config(closing, capsys, before, after, message):
    whole = closing(collector_of(Coin, num=2, **before))
    whole.collect(2)
    other, is_whole = resumed(Coin, whole, closing, num=2, **after)
    assert (is_whole, other.interrupted, other.env_steps) == (False, 2, 4)
    assert re.search(f"2 unfinished ones were cut: {message}", capsys.readouterr().err)
    fresh = closing(collector_of(Coin, seed=training_seed(0, 4), num=2, **after))
    other.generator, fresh.generator = generator(), generator()
    resumed_rows, fresh_rows = other.collect(12), fresh.collect(12)
    for name, array in fresh_rows.arrays.items():
        assert np.array_equal(array, resumed_rows.arrays[name]), name


def test_a_state_without_the_config_of_its_environments_is_restored(closing):
    whole = closing(collector_of(Coin, num=2))
    state = decode(encode(whole.state_dict()))
    del state["env_config"]
    assert closing(collector_of(Coin, num=2)).load_state_dict(state)


def test_a_killed_environment_process_is_named_with_its_signal():
    collector = collector_of(Coin, id="CartPole-v1", num=2, vector="async")
    collector.collect(2)
    collector.envs.processes[1].kill()
    with pytest.raises(trieye.TrieyeError, match=r"CartPole-v1: an environment process died .*: 1 .signal 9."):
        collector.collect(20)
    collector.close()
