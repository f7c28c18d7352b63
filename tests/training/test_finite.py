"""NaN and infinity are detected at their source, named, and never saved in checkpoints."""

import json
import math

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import trieye
from tests.training.algorithms import DQN, PPO
from tests.training.worlds import Coin, collector_of
from trieye.experiment.loop import run_alone
from trieye.files.run_files import RunFiles
from trieye.history.table import read_history
from trieye.replay.exchange import export_npz
from trieye.replay.remote import LocalChannel, ReplayServer
from trieye.training.batches import Experience
from trieye.training.exploring.experience import RemoteExperience
from trieye.training.finite import OnNonfinite, _Plan

DQN_OF_FEW_STEPS = {
    "kind": "dqn",
    "rollout_steps": 4,
    "batch_size": 8,
    "learning_starts": 8,
    "updates_per_env_step": 0.5,
}
PPO_OF_FEW_STEPS = {"kind": "ppo", "rollout_steps": 16, "batch_size": 8}
VALUES = (math.nan, math.inf, -math.inf)


@pytest.fixture
def spoiled(train_config):
    def make(agent=DQN_OF_FEW_STEPS, *, loop=None, env=None, num=2, steps=120, **overrides):
        kwargs = {"target": "reward", "at": 10**9} | (env or {})
        return train_config(
            agent=agent,
            env={"id": "tests.training.worlds:Spoiled-v0", "kwargs": kwargs, "num": num, "eval_episodes": 1},
            loop={"steps": steps} | (loop or {}),
            persistence={"checkpoint_save_freq_steps": 20},
            **overrides,
        )

    return make


class SpoiledUpdates:
    """Spoils an update: the reward of its batch, or a gradient of the first layer with a finite loss."""

    spoil, value, at = "loss", math.nan, frozenset({20})

    def train_step(self, batch):
        handle = None
        if self.updates in self.at:
            if self.spoil == "loss":
                name = "returns" if "returns" in batch.data else "reward"
                batch.data[name] = batch.data[name] * self.value
            else:
                weight = next(self.policy.parameters())
                handle = weight.register_hook(lambda grad: torch.full_like(grad, self.value))
        try:
            return super().train_step(batch)
        finally:
            if handle is not None:
                handle.remove()


class SpoiledDQN(SpoiledUpdates, DQN, policy=DQN.policy_class):
    pass


class SpoiledPPO(SpoiledUpdates, PPO, policy=PPO.policy_class):
    pass


def of_kind(base, **values):
    return type(base.__name__, (base,), values, policy=base.policy_class)


def numbers_on_disk(config):
    """Return the number of floats in the checkpoints of a run, after checking that all are finite."""
    count = 0
    for path in RunFiles(config.persistence).run_base_dir.rglob("*.safetensors"):
        for name, array in load_file(path).items():
            if array.dtype.kind == "f":
                assert np.isfinite(array).all(), (path, name)
                count += array.size
    return count


def newest_points(config):
    table = read_history(RunFiles(config.persistence).run_base_dir).to_pydict()
    return dict(zip(table["metric"], table["value"], strict=True))


def status_of(config):
    return json.loads((RunFiles(config.persistence).run_base_dir / "run.json").read_text())["status"]


@pytest.mark.parametrize(
    ("engine", "target", "value"),
    [(DQN, "reward", math.nan), (PPO, "observation", math.inf), (DQN, "reset", -math.inf)],
)
def test_a_run_stops_at_a_nonfinite_value_of_an_environment_and_names_it(spoiled, engine, target, value):
    agent = DQN_OF_FEW_STEPS if engine is DQN else PPO_OF_FEW_STEPS
    config = spoiled(agent, env={"target": target, "value": value, "at": 12 if target == "reset" else 20}, steps=300)
    column = "reward" if target == "reward" else "observation"
    message = f"the {column}.*{value:g}.*environment [01] at environment step"
    with pytest.raises(trieye.TrieyeError, match=message):
        run_alone(engine, config)
    assert status_of(config) == "FAILED"
    assert numbers_on_disk(config) > 0


@pytest.mark.parametrize(("engine", "spoil"), [(SpoiledDQN, "loss"), (SpoiledPPO, "gradient")])
def test_a_run_stops_before_a_nonfinite_update_and_names_its_gradient(spoiled, engine, spoil):
    agent = DQN_OF_FEW_STEPS if engine is SpoiledDQN else PPO_OF_FEW_STEPS
    config = spoiled(agent)
    with pytest.raises(
        trieye.TrieyeError, match=r"gradient of policy\.\w+\.\d\.\w+ is nan .*in update 20 at environment"
    ):
        run_alone(of_kind(engine, spoil=spoil), config)
    assert status_of(config) == "FAILED"
    assert numbers_on_disk(config) > 0


def test_skip_mode_omits_and_counts_nonfinite_rows_and_updates(spoiled, capsys):
    config = spoiled(loop={"on_nonfinite": "skip"}, env={"target": "observation", "every": 15, "at": 20})
    engine = of_kind(SpoiledDQN, at=frozenset({7, 8, 30}))
    result = run_alone(engine, config)
    assert (result.step >= 120, status_of(config)) == (True, "FINISHED")
    points = newest_points(config)
    assert points["nonfinite/updates"] == 3
    assert points["nonfinite/rows"] == points["episode/interrupted"] > 4
    stderr = capsys.readouterr().err
    assert stderr.count("the row is omitted, its episode cut, and the environment reset") == 1
    assert stderr.count("the update was not made") == 1
    assert numbers_on_disk(config) > 0


def test_a_skipped_update_leaves_the_training_unchanged(spoiled):
    class Once(DQN, policy=DQN.policy_class):
        is_spoiled = False

        def train_step(self, batch):
            if not self.is_spoiled and self.updates == 4:
                self.is_spoiled = True
                original = {name: tensor.clone() for name, tensor in batch.data.items()}
                batch.data["reward"] = batch.data["reward"] * math.nan
                super().train_step(batch)
                batch.data = original
            return super().train_step(batch)

    states = []
    for engine_class in (DQN, Once):
        torch.manual_seed(0)
        engine = engine_class(spoiled(loop={"on_nonfinite": "skip"}))
        for _ in range(12):
            engine.advance()
        states.append(
            [*engine.policy.state_dict().values(), *engine.optimizer.state[next(engine.policy.parameters())].values()]
        )
        engine.cleanup()
    assert all(torch.equal(one, other) for one, other in zip(*states, strict=True))


def test_fused_torch_optimizers_read_the_nonfinite_flag_themselves():
    weight = torch.nn.Parameter(torch.ones(2))
    assert _Plan(torch.optim.Adam([weight], fused=True), in_flags=True).is_deferred
    assert not _Plan(torch.optim.Adam([weight], fused=False), in_flags=True).is_deferred


@pytest.mark.parametrize("make", [
    lambda weights: torch.optim.Adam(weights, fused=True),
    torch.optim.Adam,
    lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9, weight_decay=0.1),
    torch.optim.RMSprop,
], ids=["fused", "adam", "sgd", "rmsprop"])  # fmt: skip
@pytest.mark.parametrize("in_flags", [False, True])
def test_no_optimizer_applies_a_nonfinite_gradient_even_if_hidden_in_a_list(spoiled, make, in_flags):
    class Hidden(DQN, policy=DQN.policy_class):
        def setup(self, config):
            super().setup(config)
            self._hidden_optimizers = [make(list(self.policy.parameters()))]
            self.gradient = 1.0

        def step(self):
            for gradient in (self.gradient, self.gradient):  # two updates in a step, as PPO makes many
                for parameter in self.policy.parameters():
                    parameter.grad = torch.full_like(parameter, gradient)
                self._hidden_optimizers[0].step()
            return {}

    engine = Hidden(spoiled(loop={"on_nonfinite": "skip"}))
    engine._guard._in_flags = in_flags
    engine.advance()
    before = [tensor.clone() for tensor in engine.policy.state_dict().values()]
    for engine.gradient in VALUES:
        engine.advance()
        now = engine.policy.state_dict().values()
        assert all(torch.equal(one, other) for one, other in zip(before, now, strict=True))
    engine.gradient = 1.0
    engine.advance()
    assert not torch.equal(before[0], next(iter(engine.policy.state_dict().values())))
    assert engine._on_nonfinite.counts["updates"] == 6
    engine.cleanup()


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("user_flushes", [False, True])
def test_subnormal_moments_are_flushed_in_optimizer_steps_only(spoiled, fused, user_flushes):
    class Dead(DQN, policy=DQN.policy_class):
        def setup(self, config):
            super().setup(config)
            self.weight = torch.nn.Parameter(torch.ones(64))
            self.weight_optimizer = torch.optim.Adam([self.weight], fused=fused)
            self.gradient, self.fails = 1e-36, False

        def step(self):
            self.weight.grad, self.gradient = torch.full_like(self.weight, self.gradient), 0.0
            if self.fails:
                self.weight_optimizer.register_step_pre_hook(lambda *_: 1 / 0)
            self.weight_optimizer.step()
            assert flushes() == user_flushes
            return {}

    def flushes():
        return 2.0 ** float(-1000) * 2.0 ** float(-50) == 0

    engine = Dead(spoiled())
    torch.set_flush_denormal(user_flushes)
    try:
        for _ in range(40):
            engine.advance()
        (moments,) = engine.weight_optimizer.state.values()
        assert float(moments["exp_avg"].abs().max()) == 0.0  # 0.1 * 0.9^39 * 1e-36 is subnormal in float32
        engine.fails = True
        with pytest.raises(ZeroDivisionError):
            engine.advance()
        assert flushes() == user_flushes
    finally:
        torch.set_flush_denormal(False)
        engine.cleanup()


def test_a_training_ends_when_every_update_or_row_is_skipped(spoiled):
    often = DQN_OF_FEW_STEPS | {"updates_per_env_step": 2.0}
    config = spoiled(often, loop={"on_nonfinite": "skip"}, steps=100_000)
    with pytest.raises(trieye.TrieyeError, match="the last of 100 consecutive refused updates"):
        run_alone(of_kind(SpoiledDQN, at=range(10, 10_000)), config)
    always = spoiled(loop={"on_nonfinite": "skip"}, env={"at": 40, "every": 1}, run_name="always")
    with pytest.raises(trieye.TrieyeError, match=r"the reward nan of environment 0 .*100 times in a row"):
        run_alone(DQN, always)


def test_the_overflow_of_a_gradient_scaler_is_not_a_failure(spoiled):
    class Scaled(DQN, policy=DQN.policy_class):
        def setup(self, config):
            super().setup(config)
            self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)

        def train_step(self, batch):
            loss = 1000.0 * self.policy.q(batch["obs"]).square().mean()
            self.optimizer.zero_grad()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            return {"loss/td": loss}

    engine = Scaled(spoiled())
    for _ in range(20):
        engine.advance()
    assert engine.scaler.get_scale() < 2.0**127
    assert not engine._on_nonfinite.counts
    engine.cleanup()


def test_nonfinite_weights_of_any_origin_are_never_saved(spoiled):
    class Careless(DQN, policy=DQN.policy_class):
        def step(self):
            values = super().step()
            if self.env_steps >= 48:
                with torch.no_grad():
                    next(self.target.parameters())[0, 0] = math.inf
            return values

    config = spoiled(loop={"on_nonfinite": "skip"})
    with pytest.raises(trieye.TrieyeError, match=r"target\.q\.0\.weight is inf at environment step"):
        run_alone(Careless, config)
    assert numbers_on_disk(config) > 0


def test_the_weight_behind_infinite_priorities_is_named(spoiled):
    class Careless(DQN, policy=DQN.policy_class):
        def train_step(self, batch):
            metrics = super().train_step(batch)
            with torch.no_grad():
                self.target.get_parameter("q.2.bias").fill_(math.inf)
            errors = batch["reward"] - self.target.q(batch["next_obs"]).amax(1)
            self.replay.update_priorities(batch.ids, errors.abs().detach().numpy())
            return metrics

    with pytest.raises(trieye.TrieyeError, match=r"target\.q\.2\.bias is inf at environment step"):
        run_alone(Careless, spoiled(replay={"kind": "prioritized"}))


@pytest.mark.parametrize("explorers", [0, 1])
def test_the_weight_behind_a_nan_of_the_policy_is_named(spoiled, explorers):
    class Careless(PPO, policy=PPO.policy_class):
        def step(self):
            values = super().step()
            with torch.no_grad():
                self.policy.v[0].weight[0, 0] = math.nan
            return values

    with pytest.raises(trieye.TrieyeError, match=r"policy\.v\.0\.weight is nan at environment step"):
        run_alone(Careless, spoiled(PPO_OF_FEW_STEPS | {"rollout_steps": 4}, explorer={"num": explorers}))


def test_a_buffer_that_was_infinite_from_the_start_is_accepted(spoiled):
    class Masks(DQN.policy_class):
        def __init__(self, config, spaces):
            super().__init__(config, spaces)
            self.register_buffer("mask", torch.tensor([0.0, -math.inf, 0.0]))

    class Masked(DQN, policy=Masks):
        pass

    assert run_alone(Masked, spoiled(steps=40)).step >= 40


def test_a_nonfinite_loss_with_a_finite_gradient_stops_the_run(spoiled):
    class Odd(DQN, policy=DQN.policy_class):
        def step(self):
            return super().step() | {"loss/odd": math.inf if self.updates > 5 else 0.0}

    with pytest.raises(trieye.TrieyeError, match="metric loss/odd is inf at environment step"):
        run_alone(Odd, spoiled())


@pytest.mark.long
def test_nonfinite_priorities_are_reported_as_a_training_failure(spoiled):
    class Spoils(DQN, policy=DQN.policy_class):
        def train_step(self, batch):
            metrics = super().train_step(batch)
            self.replay.update_priorities(batch.ids, np.full(len(batch), math.nan))
            return metrics

    with pytest.raises(trieye.TrieyeError, match=r"8 of 8 priorities are not finite, the first nan, .*step") as raised:
        run_alone(Spoils, spoiled(replay={"kind": "prioritized"}))
    assert raised.value.exit_code == 1
    skipping = spoiled(replay={"kind": "prioritized"}, loop={"on_nonfinite": "skip"}, run_name="skipping")
    assert run_alone(Spoils, skipping).step >= 120


@pytest.mark.long
def test_nonfinite_rows_made_by_the_algorithm_never_reach_its_replay(spoiled):
    class Relabels(DQN, policy=DQN.policy_class):
        def step(self):
            rows = self.collect()
            if self.env_steps > 40:
                rows.arrays["reward"][1, 0] = math.inf
            self.replay.extend(rows)
            return trieye.mean(self.train_step(batch) for batch in self.due_batches())

    with pytest.raises(trieye.TrieyeError, match="rows for the replay have inf in 'reward', the first from env"):
        run_alone(Relabels, spoiled(replay={"n_step": 3}))
    skipping = spoiled(loop={"on_nonfinite": "skip"}, replay={"n_step": 3}, run_name="skipping")
    assert run_alone(Relabels, skipping).step >= 120
    assert numbers_on_disk(skipping) > 0


def replays(**options):
    channel = LocalChannel(ReplayServer({"capacity": 100, **options}))
    both = [Experience(100, **options), RemoteExperience(channel, is_synchronous=True)]
    for replay in both:
        replay.on_nonfinite = OnNonfinite("skip")
    return both


def rows_with_nan(first, end, at=()):
    count, numbers = end - first, np.arange(first, end, dtype=np.float32)
    reward = np.where(np.isin(numbers, at), np.nan, np.float32(1))
    return {"obs": numbers, "action": np.zeros(count), "reward": reward, "terminated": np.zeros(count, bool)}


def drawn_from(replay, key):
    batch = replay.minibatch(600, torch.device("cpu"))
    obs = batch["obs"].reshape(len(batch), -1)[:, -1]
    return dict(sorted(zip(obs.tolist(), batch[key].tolist(), strict=True)))


@pytest.mark.parametrize("bad", [[4], [0], [3, 4]])
def test_rows_after_an_omitted_row_are_drawn_with_complete_frame_stacks_only(bad):
    for replay in replays(frame_stack={"obs": 3}):
        replay.extend(rows_with_nan(0, 12, at=bad))
        whole, resumes = range(bad[0]), bad[-1] + 3
        stacks = {t: [max(t - 2, 0), max(t - 1, 0), t] for t in (*whole, *range(resumes, 12))}
        assert drawn_from(replay, "obs") == stacks
        replay.close()


def test_an_omitted_row_does_not_interrupt_the_episode_at_the_end_of_its_batch():
    for replay in replays(n_step=3):
        replay.extend(rows_with_nan(0, 6, at=[2]))
        replay.extend(rows_with_nan(6, 10))
        assert drawn_from(replay, "n") == {0: 2, 1: 1, 3: 3, 4: 3, 5: 3, 6: 3, 7: 3, 8: 2, 9: 1}
        replay.close()


def skipping_collector(target, *, at, every, **options):
    """Return a collector that omits the rows with NaN."""
    kwargs = {"target": target, "at": at, "every": every}
    collector = collector_of(Coin, id="tests.training.worlds:Spoiled-v0", kwargs=kwargs, **options)
    collector._on_nonfinite.leaves_out = True
    return collector


@pytest.mark.parametrize("target", ["observation", "reward"])
@pytest.mark.parametrize("vector", ["sync", pytest.param("async", marks=pytest.mark.long)])
def test_no_row_joins_the_episodes_around_a_cut_and_none_is_lost(target, vector):
    collector = skipping_collector(target, at=7, every=5, num=2, vector=vector)
    replay, fragments = Experience(5000, n_step=3, gamma=1.0), []
    for steps in (1, 2, 1, 1, 9, 30, 1, 5):
        rows = collector.collect(steps)
        replay.extend(rows)
        assert np.isfinite(rows.arrays["obs"]).all()
        assert np.isfinite(rows.arrays["reward"]).all()
        fragments.append(rows)
    collector.close()
    valid = np.concatenate([rows.valid for rows in fragments])
    assert len(replay) == np.count_nonzero(valid) == collector.env_steps
    assert collector.interrupted == collector._on_nonfinite.counts["rows"] > 8
    # each row's observation and the one n steps later belong to the same uninterrupted episode
    stretch = np.cumsum(~valid, axis=0) * 2 + np.arange(2)
    obs = np.concatenate([rows.arrays["obs"] for rows in fragments])
    after = np.concatenate((obs[1:], fragments[-1].last_obs["obs"][None]))
    of = {obs[t, n].tobytes(): stretch[t, n] for t, n in np.argwhere(valid)}
    at_end = {after[t, n].tobytes(): stretch[t, n] for t, n in np.argwhere(valid)}
    batch = replay.minibatch(3000, torch.device("cpu"))
    for before, later in zip(batch["obs"].numpy(), batch["next_obs"].numpy(), strict=True):
        assert of[before.tobytes()] == at_end[later.tobytes()]


def test_a_cut_episode_reports_no_return_and_ends_the_discounted_return_that_scales_rewards():
    collector, returns = skipping_collector("reward", at=2, every=2, normalize_rewards=True), []
    for _ in range(40):
        collector.collect(1)
        returns.append(float(collector.scale.state_dict()["_returns"][0]))
    assert sum(returns[::2]) > 0
    assert sum(returns[1::2]) == 0  # every second step is cut
    metrics = collector.metrics()
    assert "episode/return" not in metrics
    assert metrics["episode/interrupted"] == [20.0]


def test_an_explorer_names_itself_and_its_environment(spoiled, capsys):
    options = {"env": {"at": 20, "every": 20}, "explorer": {"num": 2}, "steps": 200}
    with pytest.raises(trieye.TrieyeError, match=r"the reward nan of environment [01] of explorer [01] at environment"):
        run_alone(PPO, spoiled(PPO_OF_FEW_STEPS, **options))
    skipping = spoiled(loop={"on_nonfinite": "skip"}, run_name="skipping", **options)
    run_alone(DQN, skipping)
    assert capsys.readouterr().err.count("the row is omitted") == 1
    points = newest_points(skipping)
    assert points["nonfinite/rows"] == points["episode/interrupted"] >= 4
    assert points["explorer/restarts"] == 0
    assert numbers_on_disk(skipping) > 0


def test_infinite_values_in_external_data_are_rejected_before_the_start_or_omitted(spoiled, tmp_path, capsys):
    replay, obs, no_ends = trieye.ReplayBuffer(100), np.zeros((60, 3), np.float32), np.zeros(60, bool)
    reward = np.where(np.arange(60) == 17, np.float32(math.inf), np.float32(0.5))
    ends = {"terminated": no_ends, "truncated": no_ends}
    replay.extend({"obs": obs, "action": np.ones(60, int), "reward": reward, "next_obs": obs, **ends})
    export_npz(replay, tmp_path / "rows.npz")
    settings = {"mode": "train", "data": str(tmp_path / "rows.npz")}
    with pytest.raises(trieye.ConfigurationError, match=r"rows\.npz: 1 of 60 rows .* inf in 'reward'"):
        DQN(spoiled(**settings, loop={"axis": "updates"}))
    engine = DQN(spoiled(**settings, loop={"axis": "updates", "on_nonfinite": "skip"}))
    assert len(engine.replay) == 59
    engine.cleanup()
    assert "these rows are omitted" in capsys.readouterr().err
