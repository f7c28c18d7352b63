"""What goes wrong in an engine, a policy or an environment reaches the caller, and the ratio of updates is kept."""

import json
import traceback
from types import SimpleNamespace

import pytest
import torch

import trieye
from tests.training.algorithms import DQN, PPO, PPOConfig, QPolicy, TrainConfig
from tests.training.worlds import Count, Remembers
from trieye.config.env import EnvConfig
from trieye.experiment.experiment import run_experiment
from trieye.files.run_files import RunFiles
from trieye.snapshot.decode import decode
from trieye.snapshot.encode import encode
from trieye.training.environments import make_env, spaces_of
from trieye.training.evaluation import Evaluation, summary


@pytest.fixture
def config(tmp_path):
    def make(*, agent=None, steps=200, **env):
        return TrainConfig(
            agent={"kind": "dqn", "rollout_steps": 3, "batch_size": 8, "learning_starts": 20} | (agent or {}),
            env={"id": "CartPole-v1", "max_episode_steps": 30, "eval_episodes": 1} | env,
            run_name="run",
            runtime={"kind": "local"},
            sinks={"mlflow": {"enabled": False}, "tensorboard": {"enabled": False}},
            persistence={"root_data_dir": str(tmp_path), "checkpoint_save_freq_steps": 30},
            loop={"axis": "env_steps", "steps": steps, "evaluate_every_steps": 1000},
        )

    return make


class FailingStep(DQN):
    def train_step(self, batch):
        if self.updates == 40:
            raise ZeroDivisionError("the loss has a hole")
        return super().train_step(batch)


class FailingPolicy(QPolicy):
    def act(self, obs, state, ctx):
        if ctx.env_steps >= 50:
            raise ZeroDivisionError("the policy has a hole")
        return super().act(obs, state, ctx)


class WithFailingPolicy(DQN, policy=FailingPolicy):
    pass


HOLE = {"id": "tests.training.worlds:Count-v0", "kwargs": {"fails_at": 5}, "max_episode_steps": None}


@pytest.mark.filterwarnings("ignore::UserWarning")  # by which Gymnasium shows the traceback of the other process
@pytest.mark.parametrize(
    ("kind", "env", "where"),
    [
        (FailingStep, {}, "train_step"),
        (WithFailingPolicy, {}, "act"),
        (DQN, {**HOLE, "kwargs": {"fails_at": 8}}, "worlds.py"),
        (DQN, {**HOLE, "kwargs": {"fails_at": 8}, "num": 2, "vector": "async"}, None),
    ],
    ids=["engine", "policy", "environment", "environment_in_a_process"],
)
def test_an_error_reaches_the_caller_with_its_traceback_and_leaves_the_last_checkpoint_alone(config, kind, env, where):
    made = config(steps=2000, **env)
    with pytest.raises(ZeroDivisionError, match="has a hole") as raised:
        run_experiment(kind, made)
    if where is not None:
        assert where in "".join(traceback.format_exception(raised.value))
    files = RunFiles(made.persistence)
    assert json.loads((files.run_base_dir / "run.json").read_text())["status"] == "FAILED"
    latest = trieye.load_checkpoint(files.run_base_dir, "latest")
    assert latest.step % 30 < 6
    steps = latest.objects["experiment"]["state"]["collector"]["env_steps"]
    assert steps == latest.step > 0


@pytest.mark.parametrize("ratio", [0.1, 0.3, 1.0, 2.5])
@pytest.mark.parametrize("num", [1, 3])
def test_the_ratio_of_updates_to_environment_steps_is_exact_over_time_and_after_a_resume(config, ratio, num):
    made = config(agent={"updates_per_env_step": ratio}, num=num)
    engine = DQN(made)
    for number in range(60):
        if number == 30:
            state = engine.save_checkpoint(None)
            other = DQN(made)
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


def test_an_engine_without_a_replay_has_no_due_batches(config):
    engine = PPO(config().model_copy(update={"agent": PPOConfig(rollout_steps=5)}))
    with pytest.raises(trieye.ConfigurationError, match="PPOConfig is no ReplayAgentConfig"):
        next(engine.due_batches())
    engine.cleanup()


def test_an_engine_that_names_no_policy_is_told_how_to(config):
    class Nameless(trieye.TrainEngine[TrainConfig]):
        pass

    with pytest.raises(trieye.ConfigurationError, match=r"class Nameless\(TrainEngine\[...\], policy=MyPolicy\)"):
        Nameless(config())


def test_the_mean_of_updates_is_a_number_for_each_metric_and_that_of_none_is_none():
    rows = [{"loss": torch.tensor([2.0], requires_grad=True), "n": 1}, {"loss": torch.tensor(4.0), "n": 2.0}]
    assert trieye.mean(rows) == {"loss": 3.0, "n": 1.5}
    assert trieye.mean([]) == {}


def test_an_evaluation_is_a_function_of_the_policy_alone_also_where_episodes_end_at_different_times():
    env = EnvConfig(id="tests.training.worlds:Count-v0", num=3, clip_rewards=True, kwargs={"worth": 2.0})
    policy = Remembers(SimpleNamespace(env=env), spaces_of(make_env(env))).train()
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
    found = summary(played)
    even = sum(length % 2 == 0 for length in lengths) / 40
    assert (found["eval/success"], found["eval/last"]) == pytest.approx((even, found["eval/length"]))
    evaluation.close()


def test_a_mean_is_over_the_updates_that_have_the_metric():
    rows = [{"critic": 1.0}, {"critic": torch.tensor(3.0, requires_grad=True), "actor": 5.0}]
    assert trieye.mean(rows) == {"critic": 2.0, "actor": 5.0}
    assert trieye.mean(iter(())) == {}
