"""Overrides work with each algorithm of a new project, or are rejected before the start."""

import importlib
import itertools
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError

import trieye
from trieye.cli.new import answers_of, bake
from trieye.config.hydra import registration
from trieye.replay.exchange import export_npz
from trieye.snapshot.decode import decode
from trieye.snapshot.encode import encode

AGENTS = {
    "dqn": {"env": {"id": "CartPole-v1"}, "agent": {"learning_starts": 20, "rollout_steps": 2}},
    "ppo": {"env": {"id": "CartPole-v1"}, "agent": {"rollout_steps": 20}},
    "recurrent_ppo": {"env": {"id": "CartPole-v1", "num": 2}, "agent": {"rollout_steps": 20}},
    "sac": {"env": {"id": "Pendulum-v1"}, "agent": {"learning_starts": 20}},
    "td3": {"env": {"id": "Pendulum-v1"}, "agent": {"learning_starts": 20}},
}
SMALL = ["debug=limit", "env.max_episode_steps=20", "agent.hidden_sizes=[8]", "agent.batch_size=16"]
"""Overrides of a minimal command line."""
DOUBLES = {"id": "tests.training.worlds:Doubles-v0"}
TRAIN = {
    "replay=uniform": {"kind": "uniform"},
    "replay=prioritized": {"kind": "prioritized"},
    "replay.n_step=3": {"n_step": 3},
    "replay.gamma=0.99": {"gamma": 0.99},
    "replay.max_staleness=0": {"max_staleness": 0},
    "replay.max_staleness=2": {"max_staleness": 2},
    "replay.max_reuse=64": {"max_reuse": 64},
    "replay.storage=ram": {"storage": "ram"},
    "replay.storage=shm": {"storage": "shm"},
    "replay.storage=mmap replay.storage_dir=.": {"storage": "mmap", "storage_dir": "."},
    "replay.dedup_next=true": {"dedup_next": True},
    "replay.capacity=2": {"capacity": 2},
}
REFUSED = {
    "replay=sequence": ({"kind": "sequence"}, "does not support agent={}; choose uniform or prioritized"),
    "replay=fragment": ({"kind": "fragment"}, "replay.kind=fragment does not support agent={}"),
    "replay.gamma=0.5": ({"gamma": 0.5}, "differs from agent.gamma=0.99"),
    "replay.frame_stack={obs:2}": ({"frame_stack": {"obs": 2}}, "set env.frame_stack instead"),
    "replay.max_reuse=8": ({"max_reuse": 8}, "rows would run out, because each is drawn"),
    "replay.limiter.samples_per_insert=2": ({"limiter": {"samples_per_insert": 2.0}}, "set agent.updates_per_env_step"),
    "replay.storage=mmap": ({"storage": "mmap"}, "storage_dir is required by storage=mmap"),
    "replay.storage=mmap replay.storage_dir=nowhere": (
        {"storage": "mmap", "storage_dir": "nowhere"},
        "replay.storage_dir=nowhere is not a directory",
    ),
    "replay.capacity=1 env.num=2": ({"capacity": 1}, "replay.capacity=1 is smaller than one rollout"),
}
OVERRIDES = {**TRAIN, **{name: replay for name, (replay, _) in REFUSED.items()}}
DEFAULTS = {"replay=uniform", "replay.gamma=0.99", "replay.storage=ram"}
NO_REPLAY = "agent=ppo learns from each rollout and has no replay; leave out replay"
OF_ANY_REPLAY = ["storage_dir is required by storage=mmap", "not to kind=sequence"]
"""Messages about contradictory settings; these checks run first."""


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """Generate an importable project."""
    project_dir = bake(answers_of({"project_name": "Replay overrides"}), tmp_path_factory.mktemp("project"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registration, "current", registration.current)  # the project registers its config
        patch.syspath_prepend(project_dir)
        yield project_dir
        for name in [name for name in sys.modules if name.partition(".")[0] == project_dir.name]:
            del sys.modules[name]


@pytest.fixture
def config_type(project, tmp_path, monkeypatch):
    """Return the config class of the project, in an empty working directory."""
    monkeypatch.chdir(tmp_path)
    return importlib.import_module(f"{project.name}.config").TrainConfig


@pytest.fixture
def make_config(config_type, tmp_path):
    """Return a function that creates and checks a small config of an agent; a composition would take 0.2 s."""

    def make(kind, **overrides):
        parts = {
            "agent": {"kind": kind, "hidden_sizes": [8], "batch_size": 16, **AGENTS[kind]["agent"]},
            "env": {"max_episode_steps": 20, "eval_episodes": 1, **AGENTS[kind]["env"]},
            "persistence": {"root_data_dir": str(tmp_path)},
            "runtime": {"kind": "local"},
            "sinks": {},
        }
        merged = {
            key: parts.get(key, {}) | value if isinstance(value, dict) else value for key, value in overrides.items()
        }
        config = config_type.model_validate(parts | merged)
        config.check()
        return config

    return make


@pytest.fixture
def compose(project, config_type, tmp_path):
    """Return a function that composes and checks a minimal command line of the project."""

    def composed(*overrides):
        command_line = [*SMALL, f"persistence.root_data_dir={tmp_path}", *overrides]
        config = trieye.compose(command_line, config_path=project / "conf", config_type=config_type)
        config.check()
        return config

    return composed


def refusals(agent, *names):
    """Return the acceptable messages; empty if the override must train."""
    if agent == "ppo":
        return [] if DEFAULTS.issuperset(names) else [NO_REPLAY, *OF_ANY_REPLAY]
    messages = [REFUSED[name][1].format(agent) for name in names if name in REFUSED]
    return messages and [*messages, *OF_ANY_REPLAY]


def make_engine(config):
    """Return the engine of a config."""
    module, _, name = config.agent.engine.partition(":")
    return getattr(importlib.import_module(module), name)(config)


def one_line_message(error):
    """Return the message of the error if it is a single line, else an empty string."""
    (mistake,) = error.errors() if hasattr(error, "errors") else [{"msg": str(error)}]
    return mistake["msg"] if "\n" not in mistake["msg"] else ""


def test_an_override_of_the_command_line_is_rejected_in_one_line_before_the_start(compose, tmp_path: Path):
    override = "replay.frame_stack={obs:2}"
    with pytest.raises(trieye.ConfigurationError) as caught:
        compose("agent=dqn", "env=cartpole", override)
    assert REFUSED[override][1] in one_line_message(caught.value)
    assert list(tmp_path.iterdir()) == []


def pairs_of_overrides():
    """Yield each override twice, and each pair that can be combined and is not a default."""
    for one, other in itertools.combinations_with_replacement(OVERRIDES, 2):
        is_combinable = not (DEFAULTS & {one, other} or OVERRIDES[one].keys() & OVERRIDES[other].keys())
        if one == other or is_combinable:
            yield one, other


@pytest.mark.parametrize("agent", ["dqn", *(pytest.param(name, marks=pytest.mark.long) for name in ("ppo", "sac"))])
def test_combinations_train_unless_one_of_their_overrides_is_rejected(make_config, agent):
    plain, num_trained = make_config(agent), 0
    values = plain.model_dump(exclude={"replay"})
    for one, other in pairs_of_overrides():
        values["env"]["num"] = 2 if "replay.capacity=1 env.num=2" in (one, other) else 1
        messages = refusals(agent, one, other)
        settings = {**values, "replay": OVERRIDES[one] | OVERRIDES[other]}
        if messages:
            with pytest.raises((ValidationError, trieye.ConfigurationError)) as caught:
                type(plain).model_validate(settings).check()
            message, is_clear = one_line_message(caught.value), one == other and agent != "ppo"
            assert any(sentence in message for sentence in messages[: 1 if is_clear else None]), (one, other, message)
            continue
        config = type(plain).model_validate(settings)
        config.check()
        engine = make_engine(config)
        while engine.env_steps < 24:  # beyond the end of an episode
            engine.advance()
        assert engine.updates > 0, (one, other)
        engine.cleanup()
        num_trained += 1
    assert num_trained == (3 if agent == "ppo" else 46)


def test_schedules_follow_the_updates_in_offline_training(make_config, tmp_path):
    buffer, ends = trieye.ReplayBuffer(100), {"terminated": np.zeros(50, bool), "truncated": np.zeros(50, bool)}
    obs = np.zeros((50, 4), np.float32)
    buffer.extend({"obs": obs, "action": np.zeros(50, int), "reward": np.ones(50), "next_obs": obs, **ends})
    export_npz(buffer, tmp_path / "rows.npz")
    falling = {"lr": {"start": 1.0, "end": 0.0, "steps": 40}}
    options = {"mode": "train", "data": f"{tmp_path}/rows.npz", "loop": {"axis": "updates"}}
    engine = make_engine(make_config("dqn", agent=falling, **options))
    while engine.updates < 20:
        engine.advance()
    (group,) = engine.optimizer.param_groups
    assert 0.4 <= group["lr"] <= 0.6
    engine.cleanup()


@pytest.mark.long
@pytest.mark.parametrize("agent", [{"rollout_steps": 1}, {"rollout_steps": 8, "batch_size": 1}])
def test_ppo_learns_from_single_rows(make_config, agent):
    engine = make_engine(make_config("ppo", agent=agent))
    while engine.updates < 20:
        engine.advance()
    assert all(weights.isfinite().all() for weights in engine.policy.parameters())
    engine.cleanup()


@pytest.mark.parametrize(
    "agent", ["dqn", "recurrent_ppo", "sac", *(pytest.param(e, marks=pytest.mark.long) for e in ("ppo", "td3"))]
)
def test_an_algorithm_trains_in_bfloat16_with_float32_weights(make_config, agent):
    engine = make_engine(make_config(agent, agent={"precision": "bfloat16"}))
    before = [weights.clone() for weights in engine.policy.parameters()]
    while engine.updates < 2:
        engine.advance()
    after = list(engine.policy.parameters())
    assert all(weights.dtype == torch.float32 and weights.isfinite().all() for weights in after)
    assert not all(map(torch.equal, before, after))
    engine.cleanup()


def test_float16_is_rejected_because_gradients_would_vanish_unscaled(train_config):
    with pytest.raises(ValueError, match=r"precision\n  Input should be 'float32' or 'bfloat16'"):
        train_config(agent={"precision": "float16"})


@pytest.mark.parametrize(
    ("agent", "overrides"),
    [
        ("sac", ["replay=prioritized", "agent.learning_starts=20"]),
        pytest.param("ppo", ["agent.rollout_steps=20"], marks=pytest.mark.long),
    ],
)
def test_an_agent_trains_and_evaluates_with_overrides_and_float64_actions(compose, agent, overrides):
    config = compose(f"agent={agent}", f"env.id={DOUBLES['id']}", *overrides)
    trieye.train(config)
    run_dir = config.persistence.get_run_base_dir()
    assert trieye.load_checkpoint(run_dir, "latest").objects["loop"]["updates"] >= 1
    assert trieye.load_policy(run_dir, "latest").spaces.action.dtype == "float32"


@pytest.mark.long
@pytest.mark.parametrize("agent", ["ppo", "sac", "td3"])
def test_an_agent_trains_with_scalar_actions(make_config, agent):
    engine = make_engine(make_config(agent, env={"id": "tests.training.worlds:Scalar-v0"}))
    while engine.updates < 2:
        engine.advance()
    engine.cleanup()


@pytest.mark.parametrize("agent", ["ppo", "sac", "td3"])
def test_a_fork_uses_the_action_bounds_of_its_environment(make_config, agent):
    engine = make_engine(make_config(agent, env=DOUBLES))
    fork = make_engine(make_config(agent, env=DOUBLES | {"kwargs": {"scale": 10.0}}))
    saved = decode(encode(engine.save_checkpoint(None)))
    assert not {"low", "high"} & saved["policy"].keys()
    fork.load_checkpoint(saved)
    for _ in range(3):
        fork.advance()
    for bounds in (fork.policy.high, fork.policy.spaces.action.high):
        assert np.allclose(bounds, [3, 7])
    for each in (engine, fork):
        each.cleanup()


@pytest.mark.long
@pytest.mark.parametrize(("before", "after"), [(0.2, 0.01), (None, None)])
def test_a_resumed_sac_has_a_learned_temperature_or_the_one_of_the_config(make_config, before, after):
    engine, other = (make_engine(make_config("sac", agent={"ent_coef": value})) for value in (before, after))
    while engine.updates < 3:
        engine.advance()
    other.load_checkpoint(decode(encode(engine.save_checkpoint(None))))
    first, second = (each.train_step(each.replay.minibatch(4, each.device))["ent_coef"] for each in (engine, other))
    assert torch.equal(first, second) if after is None else second == pytest.approx(0.01)
    assert first < 1
    for each in (engine, other):
        each.cleanup()
