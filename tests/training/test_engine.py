"""Errors of engine, policy and environment reach the caller, and the update ratio is exact."""

import copy
import json
import time
from types import SimpleNamespace

import gymnasium as gym
import pytest
import torch

import trieye
from tests.experiment.test_experiment import Walk
from tests.training.algorithms import DQN, PPO, DQNConfig, PPOConfig, QPolicy, TrainConfig
from tests.training.elsewhere import AsTensor, Elsewhere
from tests.training.worlds import Count, Remembers
from trieye.config.env import EnvConfig
from trieye.exceptions import ConfigurationError
from trieye.experiment.loop import run_alone
from trieye.files.run_files import RunFiles
from trieye.snapshot.decode import decode
from trieye.snapshot.encode import encode
from trieye.training.environments import make_env, spaces_of
from trieye.training.evaluation import Evaluation, summary
from trieye.training.launch import FRESH_SEED

PPO_AGENT = {"kind": "ppo", "engine": "tests.training.algorithms:PPO", "rollout_steps": 32, "batch_size": 8}


@pytest.fixture
def config(train_config):
    def make(*, agent=None, steps=200, **env):
        return train_config(
            agent={"rollout_steps": 3, "learning_starts": 20} | (agent or {}),
            env={"max_episode_steps": 30, "eval_episodes": 1} | env,
            persistence={"checkpoint_save_freq_steps": 30},
            loop={"steps": steps, "evaluate_every_steps": 1000},
        )

    return make


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::UserWarning")  # through which Gymnasium shows the traceback of the other process
def test_an_error_in_an_environment_process_spares_the_last_checkpoint(config):
    hole = {"id": "tests.training.worlds:Count-v0", "kwargs": {"fails_at": 8}, "max_episode_steps": None}
    train_config = config(steps=2000, **hole, num=2, vector="async")
    with pytest.raises(ZeroDivisionError, match="has a hole"):
        run_alone(DQN, train_config)
    files = RunFiles(train_config.persistence)
    assert json.loads((files.run_base_dir / "run.json").read_text())["status"] == "FAILED"
    latest = trieye.load_checkpoint(files.run_base_dir, "latest")
    assert latest.objects["experiment"]["state"]["collector"]["env_steps"] == latest.step > 0


@pytest.mark.long
@pytest.mark.parametrize(("ratio", "num"), [(0.3, 1), (2.5, 3)])
def test_the_update_ratio_is_exact_over_time_and_after_a_resume(config, ratio, num):
    train_config = config(agent={"updates_per_env_step": ratio}, num=num)
    engine = DQN(train_config)
    for number in range(60):
        if number == 30:
            state = engine.save_checkpoint(None)
            other = DQN(train_config)
            other.load_checkpoint(decode(encode(state)))
            assert (other.updates, other.env_steps) == (engine.updates, engine.env_steps)
            engine.cleanup()
            engine = other
        engine.replay.extend(engine.collect())
        for batch in engine.due_batches():
            assert len(batch) == 8
        assert engine.updates == max(0, int((engine.env_steps - 20) * ratio))
    assert engine.updates > 0
    engine.cleanup()


@pytest.mark.parametrize("vector", ["sync", pytest.param("async", marks=pytest.mark.long)])
def test_environments_that_sample_their_spaces_are_reproducible_by_seed(train_config, vector):
    rewards, evaluations, agent = [], [], {"kind": "dqn", "epsilon": 0.0}
    for seed in (3, 3, 4):
        env = {"id": "tests.training.worlds:Sampling-v0", "num": 3, "vector": vector}
        engine = DQN(train_config(seed=seed, agent=agent, env=env))
        rewards.append(engine.collect(30).arrays["reward"].tolist())
        evaluations += [engine.evaluate(), engine.evaluate()]
        engine.cleanup()
    assert rewards[0] == rewards[1] != rewards[2]
    members = list(zip(*rewards[0], strict=True))
    assert members[0] != members[1] != members[2]
    assert all(evaluation == evaluations[0] for evaluation in evaluations)


class Seeds(gym.Wrapper):
    """Records the seeds of environment resets."""

    seen: list = []

    def reset(self, *, seed=None, options=None):
        Seeds.seen.append(seed)
        return super().reset(seed=seed, options=options)


def seeds_of(train_config, seed, *, resumed_at=None):
    """Return the reset seeds of a training and of its evaluation."""
    wrappers = {"seeds": {"name": f"{__name__}:Seeds"}, "pickled": {"name": "tests.training.worlds:Pickled"}}
    engine = DQN(train_config(seed=seed, env={"num": 2, "wrappers": wrappers, "eval_episodes": 5}))
    if resumed_at is not None:
        engine.collect(3)
        engine._row_source.env_steps = resumed_at
        state = decode(encode(engine.save_checkpoint(None)))
        Seeds.seen.clear()
        engine.load_checkpoint(state)
    training = {seed for seed in Seeds.seen if seed is not None}
    Seeds.seen.clear()
    engine.evaluate()
    evaluation = {seed for seed in Seeds.seen if seed is not None}
    Seeds.seen.clear()
    engine.cleanup()
    return training, evaluation


@pytest.mark.parametrize(("seed", "resumed_at"), [(0, None), (7, 999_995), (1_000_000, None), (2_000_000, None)])
def test_no_training_episode_starts_from_an_evaluation_seed(train_config, seed, resumed_at):
    training, evaluation = seeds_of(train_config, seed, resumed_at=resumed_at)
    assert len(training) == 2
    assert len(evaluation) == 5
    assert training.isdisjoint(evaluation | set(range(FRESH_SEED, FRESH_SEED + 100)))


def test_each_resume_that_cuts_episodes_starts_different_ones(train_config):
    starts = [seeds_of(train_config, seed, resumed_at=steps)[0] for seed, steps in ((0, 6), (0, 7), (1, 6))]
    assert len(set.union(*starts)) == 6


def test_an_engine_without_a_replay_has_no_due_batches(config):
    engine = PPO(config().model_copy(update={"agent": PPOConfig(rollout_steps=5)}))
    with pytest.raises(trieye.ConfigurationError, match="needs a ReplayAgentConfig, not PPOConfig"):
        next(engine.due_batches())
    engine.cleanup()


class TwoRates(PPO):
    """An actor-critic with an optimizer per network, and a separate parameter group for the encoder."""

    def setup(self, config):
        super().setup(config)
        groups = [{"params": self.policy.pi.parameters()}, {"params": self.policy.v.parameters(), "lr": 0.5}]
        self.critic_optimizer = torch.optim.SGD(groups, lr=0.25)


def test_the_learning_rate_of_each_optimizer_is_a_metric(train_config):
    agent = {"kind": "ppo", "rollout_steps": 8, "lr": {"start": 1.0, "end": 0.0, "steps": 32}}
    engine = TwoRates(train_config(agent=agent))
    values = engine.advance()
    assert values["train/lr"] == pytest.approx(1 - engine.env_steps / 32)
    assert (values["train/lr_critic/0"], values["train/lr_critic/1"]) == (0.25, 0.5)
    assert engine.advance()["train/lr"] < values["train/lr"]
    engine.cleanup()


def test_an_engine_without_a_policy_class_is_rejected_with_an_example(config):
    class Nameless(trieye.TrainEngine[TrainConfig]):
        pass

    with pytest.raises(trieye.ConfigurationError, match=r"class Nameless\(TrainEngine\[Config, Agent, Policy\]\)"):
        Nameless(config())


def test_an_engine_rejects_the_config_of_another_agent(train_config):
    with pytest.raises(trieye.ConfigurationError, match=r"agent.engine: DQN trains a DQNConfig, not a PPOConfig"):
        DQN(train_config(agent={"kind": "ppo", "engine": "tests.training.algorithms:DQN"}))


def test_a_subclass_inherits_policy_config_and_agent_classes():
    class Policy(DQN.policy_class):
        pass

    class Other(DQN, policy=Policy):
        pass

    class Same(Other):
        pass

    assert (Same.policy_class, Same.config_class, Same.agent_class) == (Policy, TrainConfig, DQNConfig)
    assert DQN.policy_class is QPolicy


class Declared(trieye.Minibatch):
    advantages: torch.Tensor


def test_batch_columns_are_attributes_and_an_unknown_one_is_named():
    obs, advantages = torch.zeros(3, 2), torch.arange(3.0)
    batch = Declared({"obs/a": obs, "action": torch.zeros(3), "advantages": advantages})
    assert batch.advantages is batch["advantages"] is advantages
    assert batch.obs == {"a": obs}
    assert len(copy.deepcopy(batch)) == 3
    with pytest.raises(AttributeError, match=r"Declared has no column 'advantage'; did you mean 'advantages'"):
        batch.advantage  # noqa: B018
    with pytest.raises(AttributeError, match=r"no column 'ids' \(columns: obs/a, action, advantages\)"):
        batch.ids  # noqa: B018


def test_the_update_counter_includes_the_current_batch(config):
    class Counts(DQN):
        counts = ()

        def train_step(self, batch):
            self.counts = (*self.counts, self.updates)
            return super().train_step(batch)

    engine = Counts(config(agent={"kind": "dqn", "learning_starts": 8, "updates_per_env_step": 1.0}))
    while engine.updates < 10:
        engine.advance()
    assert engine.counts == tuple(range(1, engine.updates + 1))
    engine.cleanup()


def test_a_mean_averages_each_metric_over_the_updates_that_report_it():
    rows = [{"loss": torch.tensor([2.0], requires_grad=True), "n": 1}, {"loss": torch.tensor(4.0), "n": 2.0, "late": 5}]
    assert trieye.mean(rows) == {"loss": 3.0, "n": 1.5, "late": 5.0}
    assert trieye.mean([]) == {}


def test_metrics_of_one_update_may_live_on_different_devices():
    rows = [{"loss": Elsewhere(torch.tensor(2.0)), "n": 1}, {"loss": 4.0, "n": torch.tensor(2.0)}]
    with AsTensor():
        assert trieye.mean(rows) == {"loss": 3.0, "n": 1.5}


def test_an_evaluation_depends_on_the_policy_alone_even_if_episodes_differ_in_length():
    env = EnvConfig(id="tests.training.worlds:Count-v0", num=3, clip_rewards=True, kwargs={"worth": 2.0})
    policy = Remembers(SimpleNamespace(env=env, agent=None), spaces_of(make_env(env))).train()
    evaluation = Evaluation(env)
    before = torch.get_rng_state()
    played = evaluation.play(policy, 40, first_seed=7)
    assert policy.training
    assert torch.equal(torch.get_rng_state(), before)
    lengths = []
    for seed in range(7, 47):
        world = Count()
        world.reset(seed=seed)
        lengths.append(world.length)
    assert [episode.seed for episode in played] == list(range(7, 47))
    assert [episode.length for episode in played] == lengths
    assert [episode.total for episode in played] == [2.0 * length for length in lengths]
    again = evaluation.play(policy, 40, first_seed=7)
    assert [(one.total, one.metrics) for one in again] == [(one.total, one.metrics) for one in played]
    metrics = summary(played)
    even = sum(length % 2 == 0 for length in lengths) / 40
    assert (metrics["eval/success"], metrics["eval/last"]) == pytest.approx((even, metrics["eval/length"]))
    evaluation.close()


@pytest.mark.parametrize("value", ["much", [1.0, 2.0], torch.ones(3)])
def test_a_metric_that_is_not_one_number_is_named_at_every_source(config, value):
    with pytest.raises(TypeError, match=r"metric 'loss/odd' .*one number"):
        trieye.mean([{"loss/td": 1.0, "loss/odd": value}])

    class Chatty(DQN.policy_class):
        def on_episode(self, info):
            return {"odd": value}

    class Engine(DQN, policy=Chatty):
        pass

    engine = Engine(config())
    with pytest.raises((TypeError, ValueError), match=r"'episode/odd'.*the value must be one number"):
        for _ in range(30):
            engine.advance()
    with pytest.raises((TypeError, ValueError), match=r"'eval/odd'.*the value must be one number"):
        engine.evaluate()
    engine.cleanup()


@pytest.mark.parametrize(
    ("metrics", "message"),
    [(None, r"returned None; .* a dict of numbers; is a `return` missing"), (1.0, "returned 1.0")],
)
def test_a_result_of_on_episode_that_is_no_dict_is_an_error_of_one_line(config, metrics, message):
    class Forgetful(DQN.policy_class):
        def on_episode(self, info):
            return metrics

    class Engine(DQN, policy=Forgetful):
        pass

    engine = Engine(config())
    with pytest.raises(ConfigurationError, match=rf"Forgetful\.on_episode\(\) {message}"):
        for _ in range(30):
            engine.advance()
    engine.cleanup()


def test_a_metric_of_the_policy_never_replaces_one_of_trieye(config):
    class Shadowing(DQN.policy_class):
        def on_episode(self, info):
            return {"success": 1.0, shadowed_name: -7.0}

    class Engine(DQN, policy=Shadowing):
        pass

    engine = Engine(config())
    for shadowed_name in ("return", "return_std", "length", "interrupted", "return_max", "episodes"):
        with pytest.raises(
            ConfigurationError, match=rf"Shadowing\.on_episode\(\) returns reserved names: {shadowed_name};"
        ):
            for _ in range(30):
                engine.advance()
        with pytest.raises(ConfigurationError, match=shadowed_name):
            engine.evaluate()
    engine.cleanup()


@pytest.mark.parametrize(
    ("engine", "agent"), [(DQN, {"rollout_steps": 32, "learning_starts": 32}), (PPO, PPO_AGENT)], ids=["dqn", "ppo"]
)
def test_an_update_budget_stops_updates_that_are_still_due(train_config, engine, agent):
    result = run_alone(engine, train_config(agent=agent, loop={"axis": "updates", "steps": 7}))
    assert (result.step, result.stop_reason) == (7, "loop.steps=7 done")


@pytest.mark.parametrize("limit", ["steps", "env_steps"])
def test_a_step_budget_shortens_the_last_rollout_and_the_run_reports_the_steps_beyond(train_config, limit, capsys):
    result = run_alone(PPO, train_config(agent=PPO_AGENT, env={"eval_episodes": 1, "num": 3}, loop={limit: 40}))
    assert (result.step, result.stop_reason) == (42, f"loop.{limit}=40 done, 2 beyond the limit")
    stderr = capsys.readouterr().err
    assert result.stop_reason in stderr
    assert ("42/40 (100 %)" in stderr) == (limit == "steps")  # the total of the progress line


def test_the_loop_makes_each_step_at_once(make_config):
    began = time.monotonic()
    run_alone(Walk, make_config(loop={"steps": 2000}))
    assert time.monotonic() - began < 60  # a loop that polls every 0.1 s takes 200 s


def test_a_missing_device_is_rejected_before_the_run_starts(train_config):
    config = train_config(agent={"device": "mps"}, loop={"env_steps": 8})
    if torch.backends.mps.is_available():
        pytest.skip("this machine has it")
    with pytest.raises(trieye.ConfigurationError, match=r"agent.device=mps: torch finds no such device here"):
        trieye.run_experiment(DQN, config)
    assert not config.persistence.get_run_base_dir().exists()


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("step", r"Bad.step\(\) returned None; expected a dict of values; is a `return` missing\?"),
        ("train_step", r"train_step\(\) returned None; expected a dict of numbers; is a `return` missing\?"),
    ],
)
def test_a_missing_return_is_named(config, method, message):
    engine = type("Bad", (DQN,), {method: lambda _self, *_: None})(config())
    with pytest.raises((trieye.ConfigurationError, TypeError), match=message):
        for _ in range(20):
            engine.advance()
    engine.cleanup()


def test_an_extra_with_the_name_of_a_column_is_refused(config):
    class Shadowing(DQN.policy_class):
        def act(self, obs, state, ctx):
            return trieye.Act(super().act(obs, state, ctx).action, extras={"reward": torch.zeros(len(obs))})

    engine = type("Bad", (DQN,), {}, policy=Shadowing)(config())
    with pytest.raises(trieye.ConfigurationError, match=r"Shadowing.act\(\): the extra 'reward' has"):
        engine.advance()
    engine.cleanup()
