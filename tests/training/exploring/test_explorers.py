"""Training with explorers in threads; classes and rules are the same as in processes."""

import pickle
import threading

import pytest
import torch

import trieye
from tests.training.algorithms import DQN, PPO, Noisy, resumed
from tests.training.elsewhere import Elsewhere
from trieye.snapshot.decode import decode
from trieye.snapshot.encode import encode
from trieye.training.exploring.explorer import Assignment, Explorer, Published, Task
from trieye.training.exploring.transports import LocalTransport
from trieye.training.policy import Moments

DQN_PARTS = {"agent": {"rollout_steps": 8, "batch_size": 16, "learning_starts": 32}}
PPO_PARTS = {"agent": {"kind": "ppo", "engine": "tests.training.algorithms:PPO", "rollout_steps": 32}}


def trained(train_config, engine, **parts):
    """Return the weights at the end of a training."""
    run_dir = trieye.run_experiment(engine, train_config(**parts)).run_dir
    return trieye.load_policy(run_dir, which="latest").state_dict()


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(("engine", "parts"), [(Noisy, DQN_PARTS), (PPO, PPO_PARTS)])
def test_one_explorer_in_step_trains_exactly_as_the_engine_alone(train_config, engine, parts):
    env = {"num": 2, "normalize_observations": True, "normalize_rewards": True}
    loop = {"axis": "step", "steps": 4}  # a limit of environment steps shortens only the engine's last rollout
    alone = trained(train_config, engine, **parts, env=env, loop=loop, run_name="alone")
    helped = trained(train_config, engine, **parts, env=env, loop=loop, run_name="helped", explorer={"num": 1})
    assert same(alone, helped)


@pytest.mark.parametrize(("style", "staleness"), [("trainer_driven", 2), ("explorer_driven", 2), ("fully_async", 0)])
def test_staleness_never_exceeded_and_pacing_no_drops(train_config, style, staleness):
    sync, explorer = {"style": style, "max_staleness": staleness}, {"num": 3, "fragment_steps": 4}
    engine = PPO(train_config(**PPO_PARTS, loop={"steps": 10}, explorer=explorer, sync=sync))
    versions = []
    for _ in range(10):
        rows = engine.collect()
        learned_fragments = engine._row_source._learned  # its private list
        assert len(learned_fragments) == 3
        assert all(0 <= engine._row_source.version - report.version_min <= staleness for report in learned_fragments)
        assert rows.valid.shape == (4, 3)
        versions.append(engine._row_source.version)
        engine._row_source.learned()
    metrics = engine._row_source.metrics()
    engine.cleanup()
    assert versions == sorted(versions)
    assert versions[-1] >= (9 if style != "explorer_driven" else 1)
    assert not any(value for name, value in metrics.items() if name.startswith("replay/dropped"))
    assert metrics["replay/staleness_max"] <= staleness
    assert metrics["explorer/lost_fragments"] == 0
    assert metrics["explorer/alive"] == 3


def test_results_and_state_of_a_gpu_explorer_unpickle_without_a_gpu(train_config):
    """Simulates observation moments and recurrent state on a GPU."""
    config = train_config(**PPO_PARTS, env={"normalize_observations": True})
    policy, transport = PPO(config).policy, LocalTransport()
    explorer = Explorer(Task(config, type(policy), policy.spaces, transport), 0, 0)
    on_gpu = Elsewhere(torch.ones(4))
    explorer._collector._moments.append(Moments(3, on_gpu, on_gpu))
    report = explorer.rollout(Assignment(0, 4, 0, Published(0, transport.publish(0, policy.state_dict()))))
    explorer._collector._state = {"hidden": on_gpu}
    state = explorer.state_dict()
    explorer.close()
    arrived, state = pickle.loads(pickle.dumps((report, state)))
    assert torch.equal(arrived.moments[0].mean, torch.ones(4))
    assert torch.equal(state["policy_state"]["hidden"], torch.ones(4))


def test_version_not_bumped_on_failed_publish(train_config):
    engine = PPO(train_config(**PPO_PARTS, explorer={"num": 1}))
    engine.collect()
    engine._row_source.learned()
    transport, version = engine._row_source._task.transport, engine._row_source.version

    def failing_publish(version, weights):
        raise OSError("no way")

    transport.publish = failing_publish
    engine.collect()
    with pytest.raises(OSError, match="no way"):
        engine._row_source.learned()
    assert engine._row_source.version == version
    assert engine._row_source._published.version == version
    del transport.publish
    engine._row_source.learned()
    assert engine._row_source._published.version == version + 1
    engine.cleanup()


def test_all_explorers_dead_raises(train_config):
    env = {"id": "tests.training.worlds:FailsLater-v0"}
    explorer = {"num": 2, "max_restarts": 1, "restart_backoff_s": 0.01}
    engine = PPO(train_config(**PPO_PARTS, env=env, explorer=explorer))
    with pytest.raises(ZeroDivisionError, match="the world ended") as caught:
        for _ in range(50):
            engine.collect()
            engine._row_source.learned()
    assert "in explorer" in caught.value.__notes__[0]
    engine.cleanup()


def test_an_error_in_the_policy_ends_the_training_at_once(train_config, monkeypatch):
    def failing_act(self, obs, state, ctx):
        raise TypeError("wrong shape")

    engine = PPO(train_config(**PPO_PARTS, explorer={"num": 2}))
    monkeypatch.setattr(type(engine.policy), "act", failing_act)
    with pytest.raises(TypeError, match="wrong shape"):
        engine.collect()
    engine.cleanup()


@pytest.mark.long
def test_a_hanging_explorer_is_restarted_while_the_others_continue(train_config):
    env = {"id": "tests.training.worlds:Hangs-v0"}
    explorer = {"num": 2, "fragment_steps": 8, "fragment_timeout_s": 0.5}
    engine = PPO(train_config(**PPO_PARTS, env=env, explorer=explorer, sync={"style": "fully_async"}))
    for _ in range(6):
        engine.collect()
        engine._row_source.learned()
    metrics = engine._row_source.metrics()
    engine.cleanup()
    assert metrics["explorer/restarts"] >= 1
    assert metrics["explorer/lost_fragments"] >= 1


@pytest.mark.parametrize(
    "style", ["trainer_driven", pytest.param("explorer_driven", marks=pytest.mark.long), "fully_async"]
)
def test_resume_continues_version_and_step(train_config, style):
    versions = []
    for env_steps in (50, 100):
        config = train_config(**DQN_PARTS, explorer={"num": 2}, sync={"style": style}, loop={"env_steps": env_steps})
        result = trieye.run_experiment(DQN, config)
        assert result.env_steps >= env_steps
        state = trieye.load_checkpoint(result.run_dir, "latest").objects["experiment"]["state"]
        versions.append(state["collector"]["version"])
    assert 0 < versions[0] < versions[1]


def test_a_resumed_run_with_one_explorer_in_step_equals_an_uninterrupted_one(train_config):
    settings = PPO_PARTS | {"explorer": {"num": 1}, "env": {"num": 2, "normalize_observations": True}}
    whole = trained(train_config, PPO, **settings, loop={"env_steps": 130}, run_name="whole")
    trained(train_config, PPO, **settings, loop={"env_steps": 60}, run_name="halves")
    halves = trained(train_config, PPO, **settings, loop={"env_steps": 130}, run_name="halves")
    assert same(whole, halves)


def test_a_save_keeps_the_restored_states_of_explorers_that_are_still_starting(train_config, monkeypatch):
    config = train_config(**PPO_PARTS, explorer={"num": 1})
    first = PPO(config)
    first.advance()
    engine, is_saved = resumed(first, config), threading.Event()
    monkeypatch.setattr(Explorer, "writer_name", lambda _: is_saved.wait(10) and None)  # the first answer
    restored = engine._row_source._group.slots[0].state
    engine._row_source.begin()
    (entry,) = engine._row_source.state_dict()["explorers"]
    is_saved.set()
    engine.cleanup()
    assert restored is not None
    assert entry["state"] is restored


@pytest.mark.parametrize("num_deaths", [1, 3])
def test_the_state_of_an_explorer_that_dies_while_it_starts_is_loaded_again_once(train_config, monkeypatch, num_deaths):
    config = train_config(**PPO_PARTS, explorer={"num": 1})
    first = PPO(config)
    first.advance()
    engine, loads, load = resumed(first, config), [], Explorer.load_state_dict

    def load_state_dict(self, state):
        loads.append(state)
        if len(loads) <= num_deaths:
            raise ConnectionError("the process died")
        return load(self, state)

    monkeypatch.setattr(Explorer, "load_state_dict", load_state_dict)
    engine.advance()
    engine.cleanup()
    assert loads == [loads[0]] * 2


def test_a_resume_between_two_versions_publishes_the_weights_of_the_older_one(train_config):
    config = train_config(**PPO_PARTS, explorer={"num": 1}, sync={"interval": 3})
    first = PPO(config)
    first.advance()
    published, learned = first._row_source._published.handle, first.policy.state_dict()
    engine = resumed(first, config)
    engine.collect()
    republished = engine._row_source._published.handle
    engine.cleanup()
    assert same(republished, published)
    assert not same(republished, learned)


@pytest.mark.parametrize(
    ("engine", "parts", "reason"),
    [
        (PPO, {}, None),
        (DQN, {}, None),
        (PPO, {"sync": {"offset": 2}}, "sync.offset + sync.interval = 3 exceeds"),
        (DQN, {"explorer": {"num": 2}}, "the order of the rows of several explorers"),
        (DQN, {"replay": {"n_step": 3}}, "the returns of replay.n_step=3 steps"),
    ],
)
def test_a_resume_that_is_not_exact_says_why(train_config, capsys, engine, parts, reason):
    config = train_config(**{"explorer": {"num": 1}} | (DQN_PARTS if engine is DQN else PPO_PARTS) | parts)
    resumed(engine(config), config).cleanup()
    notices = [line for line in capsys.readouterr().err.splitlines() if "the resume is not exact" in line]
    assert [reason in notice for notice in notices] == ([] if reason is None else [True])


@pytest.mark.parametrize(
    ("replay", "steps", "envs", "is_early"),
    [({}, 4, 1, False), ({"replay": {"kind": "fragment"}}, 8, 3, False), ({}, 8, 3, True)],
    ids=["steps", "fragment", "early"],
)
def test_a_resume_with_other_fragments_drops_the_waiting_ones_and_says_so(
    train_config, capsys, replay, steps, envs, is_early
):
    parts = PPO_PARTS | {"sync": {"offset": 1}} | replay
    first = PPO(train_config(**parts, explorer={"num": 1, "fragment_steps": 8}))
    first.advance()
    state = decode(encode(first.save_checkpoint(None)))
    first.cleanup()
    if is_early:  # of a trieye that did not save the number of environments
        del state["collector"]["num_envs"]
    engine = PPO(train_config(**parts, explorer={"num": 2, "fragment_steps": steps}, env={"num": envs}))
    engine.load_checkpoint(state)
    assert engine.collect().valid.shape == (steps, 2 * envs)
    assert engine._row_source.metrics()["explorer/lost_fragments"] == len(state["collector"]["inbox"]["reports"]) > 0
    stderr = capsys.readouterr().err
    assert f"of 8 steps of 1 environment: explorers now collect {steps} (explorer.fragment_steps" in stderr
    assert f"of {envs} (env.num)" in stderr
    engine.cleanup()


class Twice(PPO):
    """Collects twice in a step."""

    def step(self):
        return super().step() | super().step()


@pytest.mark.parametrize("sync", [{}, {"style": "fully_async", "max_staleness": 0}], ids=["fixed", "fully_async"])
def test_a_learner_may_collect_several_times_in_one_step(train_config, sync):
    engine = Twice(train_config(**PPO_PARTS, explorer={"num": 2}, sync=sync))
    for _ in range(3):
        engine.advance()
    assert engine.env_steps > 3 * 2 * 2 * 24
    engine.cleanup()


@pytest.mark.long
def test_a_replay_bounded_by_staleness_samples_no_row_of_older_weights(train_config):
    bounded = {"replay": {"max_staleness": 3}, "explorer": {"num": 2}, "sync": {"style": "fully_async"}}
    engine = DQN(train_config(**DQN_PARTS | bounded))
    while engine.updates < 250:
        engine.advance()
    drawn = engine.replay.minibatch(64, engine.device)
    added = engine.replay.metrics()["replay/size"]
    engine.cleanup()
    assert added > 250
    assert drawn.ids.min() > added - 6 * 2 * 16  # fragments of two explorers and four versions, and those in flight


@pytest.mark.long
def test_explorers_share_one_reward_scale_that_survives_rebuilds_and_resumes(train_config):
    env = {"id": "tests.training.worlds:FailsLater-v0", "normalize_rewards": True}
    config = train_config(**PPO_PARTS, env=env, explorer={"num": 2, "fragment_steps": 4}, loop={"steps": 1000})

    def state_and_least_count(engine):
        state = engine.save_checkpoint(None)["collector"].state_dict()
        return state, min(explorer_state["state"]["scale"]["_count"] for explorer_state in state["explorers"])

    engine = PPO(config)
    for _ in range(40):  # an environment fails after 50 steps
        engine.advance()
    state, count = state_and_least_count(engine)
    assert state["interrupted"] > 2
    assert count > 0.9 * engine.env_steps
    other = resumed(engine, config)
    other.advance()
    assert state_and_least_count(other)[1] > 0.9 * other.env_steps
    other.cleanup()
