"""mode=explore writes rows of a checkpoint's policy to a file for mode=train, and leaves the run unchanged."""

import fcntl
import os
import re
import shutil
import signal
import threading
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

import trieye
from tests.training.algorithms import QPolicy, TrainConfig, small_config
from tests.training.worlds import Troubled
from tests.waiting import wait_until
from trieye.checkpoints.store import CheckpointStore
from trieye.exceptions import CheckpointError, ConfigurationError, RunInterrupted
from trieye.replay.exchange.files import EPISODE
from trieye.training.exploring import gathering
from trieye.training.exploring.transports import CheckpointTransport

CONSTANT = {"engine": f"{__name__}:ConstantEngine"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A function that returns the root directory of a run of 20 steps with an agent; each agent trains once."""

    @cache
    def train(engine):
        root = tmp_path_factory.mktemp("root")
        trieye.train(small_config(root, agent={"engine": engine}, loop={"steps": 20}))
        return root

    return train


@pytest.fixture
def trained(finished, tmp_path):
    """The directory of a run of 20 steps of DQN."""
    shutil.copytree(finished("tests.training.algorithms:DQN"), tmp_path, dirs_exist_ok=True)
    return tmp_path / "default_app/runs/run"


@pytest.fixture
def constant(finished, tmp_path):
    """The directory of a run of 20 steps of `ConstantEngine`."""
    shutil.copytree(finished(CONSTANT["engine"]), tmp_path, dirs_exist_ok=True)
    return tmp_path / "default_app/runs/run"


def modification_times(run_dir):
    return {path.relative_to(run_dir): path.stat().st_mtime_ns for path in run_dir.rglob("*") if path.is_file()}


def rows_in(path):
    with np.load(path) as archive:
        return {name: archive[name] for name in archive.files}


def check_episodes(rows, *, at_least):
    """Check that the rows of each episode are contiguous, and that there are so many episodes."""
    episodes = [np.flatnonzero(rows[EPISODE] == number) for number in np.unique(rows[EPISODE])]
    assert len(episodes) >= at_least
    for ids in episodes:
        assert (rows["next_obs"][ids[:-1]] == rows["obs"][ids[1:]]).all()
        assert not (rows["terminated"] | rows["truncated"])[ids[:-1]].any()


def test_an_unknown_run_is_rejected_with_a_suggestion(train_config, trained):
    for mode in ("explore", "bench"):
        config = train_config(mode=mode, run_name=f"{trained.name}s", loop={"env_steps": 500})
        with pytest.raises(ConfigurationError, match=rf"run_name=runs: mode={mode}.*did you mean 'run'"):
            config.check()
    assert [path.name for path in trained.parent.iterdir()] == [trained.name]


@pytest.mark.parametrize(
    "overrides", [{}, {"explorer": {"num": 2, "fragment_steps": 10}, "env": {"num": 2}}], ids=["here", "explorers"]
)
def test_collecting_leaves_the_run_unchanged_and_its_rows_train_offline(train_config, trained, overrides):
    before = modification_times(trained)
    assert trieye.train(train_config(mode="explore", loop={"env_steps": 100}, **overrides)) is None
    after = modification_times(trained)
    (path,) = after.keys() - before.keys()
    assert {name: after[name] for name in before} == before
    rows = rows_in(trained / path)
    assert str(path) == "explored_1.npz"
    assert 100 <= len(rows["reward"]) <= 160
    check_episodes(rows, at_least=2)
    loop = {"axis": "updates", "steps": 10}
    offline = train_config(mode="train", data=str(trained / path), run_name="offline", loop=loop)
    trieye.train(offline)
    loop_state = trieye.load_checkpoint(offline.persistence.get_run_base_dir(), "latest").objects["loop"]
    assert (loop_state["updates"], loop_state["env_steps"]) == (10, 0)


@pytest.mark.long
def test_explorers_in_ray_write_rows_too(train_config, trained, ray_cluster):
    explorer = {"num": 1, "fragment_steps": 20}
    trieye.train(train_config(mode="explore", loop={"env_steps": 100}, explorer=explorer, runtime={"kind": "ray"}))
    assert len(rows_in(trained / "explored_1.npz")["reward"]) >= 100


class ConstantPolicy(QPolicy):
    """Acts as its buffer `choice` says, and creates a file named after it; rows have the argument of schedules."""

    def __init__(self, config, spaces):
        super().__init__(config, spaces)
        self.register_buffer("choice", torch.zeros((), dtype=torch.int64))

    def act(self, obs, state, ctx):
        if acted := os.environ.get("ACTED"):
            Path(f"{acted}_{int(self.choice)}").touch()
        return trieye.Act((self.choice % 2).expand(len(obs)).clone(), {"at": torch.full((len(obs),), ctx.env_steps)})


class ConstantEngine(trieye.TrainEngine[TrainConfig], policy=ConstantPolicy):
    def step(self):
        self.replay.extend(self.collect())
        self.policy.choice.fill_(self.env_steps >= 60)
        return {}


def test_the_checkpoint_of_the_policy_is_configurable(train_config):
    saves = {"checkpoint_save_freq_steps": 30, "keep_last": 0}
    config = train_config(agent=CONSTANT, loop={"steps": 100}, persistence=saves)
    trieye.train(config)
    run_dir = config.persistence.get_run_base_dir()
    first = CheckpointStore(run_dir / "checkpoints", read_only=True).entries()[0].step
    for number, (which, action) in enumerate((("latest", 1), (f"step:{first}", 0)), 1):
        trieye.train(train_config(mode="explore", loop={"steps": 30}, explore={"checkpoint": which}))
        assert set(rows_in(run_dir / f"explored_{number}.npz")["action"]) == {action}


@pytest.mark.parametrize("explorers", [0, 2])
def test_schedules_stay_at_the_step_of_the_checkpoint(train_config, constant, explorers):
    explorer = {"num": explorers, "fragment_steps": 8}
    trieye.train(train_config(mode="explore", loop={"steps": 200}, explorer=explorer))
    rows = rows_in(constant / "explored_1.npz")
    assert set(rows["at"]) == set(range(20, 28))  # within a fragment they continue


@pytest.mark.parametrize("explorers", [pytest.param(0, marks=pytest.mark.long), 2])
def test_a_collection_follows_weights_that_another_process_publishes(
    train_config, constant, explorers, tmp_path, monkeypatch
):
    weights = trieye.load_policy(constant).state_dict()
    assert weights["choice"] == 0
    monkeypatch.setenv("ACTED", str(tmp_path / "acted"))

    def publish():
        transport = CheckpointTransport(constant / "weights")
        for choice, version in ((1, 7), (2, 5), (3, 5)):  # the training resumes from earlier checkpoints
            wait_until((tmp_path / f"acted_{choice - 1}").exists)
            transport.publish(version, {**weights, "choice": torch.tensor(choice)})

    thread = threading.Thread(target=publish)
    thread.start()
    chosen = {"sync": {"transport": "checkpoint"}, "explorer": {"num": explorers, "fragment_steps": 8}}
    slow = {"id": "tests.training.worlds:Slow-v0"}  # the collection takes at least 4 s
    trieye.train(train_config(mode="explore", loop={"steps": 800}, env=slow, **chosen))
    thread.join()
    actions = rows_in(constant / "explored_1.npz")["action"]
    assert (actions[0], actions[-1]) == (0, 1)
    assert {path.name for path in tmp_path.glob("acted_*")} == {f"acted_{choice}" for choice in range(4)}


def test_an_existing_file_is_never_overwritten_and_the_next_has_other_rows(train_config, trained, tmp_path):
    explore = lambda **overrides: trieye.train(train_config(mode="explore", loop={"steps": 10}, **overrides))  # noqa: E731
    explore()
    explore()
    assert {path.name for path in trained.glob("*.npz")} == {"explored_1.npz", "explored_2.npz"}
    first, second = (rows_in(trained / f"explored_{number}.npz")["obs"] for number in (1, 2))
    assert not np.isin(first, second).all()
    name = tmp_path / "mine.parquet"
    explore(explore={"output": str(name)})
    before = name.read_bytes()
    with pytest.raises(ConfigurationError, match=r"explore.output=\S+mine.parquet already exists"):
        explore(explore={"output": str(name)})
    assert name.read_bytes() == before


def test_a_missing_directory_of_the_output_is_rejected_before_collecting(train_config, trained, tmp_path, capfd):
    output = {"output": str(tmp_path / "nowhere/a.npz")}
    with pytest.raises(ConfigurationError, match=r"explore.output=\S+: \S+nowhere is not a directory; create it first"):
        trieye.train(train_config(mode="explore", loop={"steps": 10}, explore=output))
    assert "collecting" not in capfd.readouterr().err


def test_a_collection_that_exceeds_the_memory_is_told_to_collect_fewer_rows(train_config, trained):
    expected = r"loop.env_steps=100000000000: .* GiB.*; collect fewer rows at a time; .* explored_<N>.npz$"
    with pytest.raises(ConfigurationError, match=expected):
        trieye.train(train_config(mode="explore", loop={"steps": 10**11}))
    assert not list(trained.glob("explored_*"))


def raise_error():
    raise ZeroDivisionError("broken")


def receive_sigterm():
    assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    signal.raise_signal(signal.SIGTERM)


class BreakingPolicy(ConstantPolicy):
    calls = 0
    fault = staticmethod(raise_error)

    def act(self, obs, state, ctx):
        BreakingPolicy.calls += ctx.explore
        if BreakingPolicy.calls > 300:
            self.fault()
        return super().act(obs, state, ctx)


class BreakingEngine(ConstantEngine, policy=BreakingPolicy):
    pass


@pytest.mark.parametrize(
    ("fault", "error", "explorers"), [(receive_sigterm, RunInterrupted, 0), (raise_error, ZeroDivisionError, 1)]
)
def test_rows_collected_before_an_error_or_a_signal_are_written(train_config, fault, error, explorers, monkeypatch):
    def add_late(*args, add=gathering._CollectedRows.add, **options):
        wait_until(lambda: not explorers or BreakingPolicy.calls > 300)  # many fragments have been delivered
        add(*args, **options)

    monkeypatch.setattr(gathering._CollectedRows, "add", add_late)
    monkeypatch.setattr(BreakingPolicy, "fault", staticmethod(fault))
    config = train_config(agent={"engine": f"{__name__}:BreakingEngine"}, loop={"steps": 20})
    monkeypatch.setattr(BreakingPolicy, "calls", 0)
    trieye.train(config)
    BreakingPolicy.calls = 0
    explorer = {"num": explorers, "fragment_steps": 10, "max_restarts": 0}
    collection = train_config(mode="explore", loop={"steps": 1000}, explorer=explorer)
    with pytest.raises(error):
        trieye.train(collection)
    run_dir = config.persistence.get_run_base_dir()
    rows = rows_in(run_dir / "explored_1.npz")
    assert np.count_nonzero(rows["at"] == 20) == 30  # fragments
    with pytest.raises(error):
        trieye.train(collection)
    assert not (run_dir / "explored_2.npz").exists()  # no rows were collected


SPOILED = {"id": "tests.training.worlds:Spoiled-v0", "kwargs": {"target": "reward", "at": 30, "every": 30}}


@pytest.mark.parametrize("env", [SPOILED, {"frame_stack": 3}], ids=["spoiled", "stacked"])
def test_one_explorer_writes_the_same_rows_as_this_process_and_omitted_ones_are_counted(
    train_config, env, tmp_path, capfd
):
    parts = {"agent": CONSTANT, "env": env | {"num": 2, "eval_episodes": 1}}
    trieye.train(train_config(**parts, loop={"steps": 10}))
    for num in (0, 1):
        capfd.readouterr()
        chosen = {"explorer": {"num": num, "fragment_steps": 20}, "explore": {"output": str(tmp_path / f"{num}.npz")}}
        trieye.train(train_config(**parts, mode="explore", **chosen, loop={"steps": 300, "on_nonfinite": "skip"}))
        stderr = capfd.readouterr().err
        if env is SPOILED:
            assert stderr.count("the reward nan of environment") == 1
            assert re.search(r"\.npz: 3\d\d rows, \d+ omitted non-finite rows, ", stderr)
    here, there = (rows_in(tmp_path / f"{num}.npz") for num in (0, 1))
    assert 300 <= len(here["reward"]) <= len(there["reward"])
    for name in here.keys() - {"at"}:  # the last fragment of this process is shorter
        assert np.array_equal(here[name], there[name][: len(here[name])]), name


def test_rows_of_rebuilt_environments_never_join_an_earlier_episode(train_config, monkeypatch, tmp_path):
    parts = {"env": {"id": "tests.training.worlds:FailsOnce-v0", "eval_episodes": 1}}
    monkeypatch.setattr(Troubled, "num_steps", 50)
    trieye.train(train_config(**parts, loop={"steps": 10}))
    Troubled.num_steps = 0
    chosen = {"explorer": {"num": 1, "fragment_steps": 4}, "explore": {"output": str(tmp_path / "rows.npz")}}
    trieye.train(train_config(**parts, mode="explore", **chosen, loop={"steps": 100}))
    assert Troubled.num_steps > 100
    check_episodes(rows_in(tmp_path / "rows.npz"), at_least=3)


def test_an_empty_file_is_used_unless_another_process_is_collecting_into_it(train_config, trained):
    explored = train_config(mode="explore", loop={"steps": 10}, explore={"output": str(trained / "rows.npz")})
    with (trained / "rows.npz").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(ConfigurationError, match=r"explore.output=\S+rows.npz already exists"):
            trieye.train(explored)
    trieye.train(explored)
    assert len(rows_in(trained / "rows.npz")["reward"]) == 10


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"loop": {}}, "mode=explore would never stop; set loop.env_steps"),
        ({"loop": {"axis": "updates", "steps": 5}}, "set loop.axis=env_steps, not updates"),
        ({"loop": {"steps": 5}, "sync": {"style": "fully_async"}}, "mode=explore has no learner"),
        ({"loop": {"steps": 5}, "data": "a.npz"}, "is not used"),
        ({"loop": {"steps": 5}, "explore": {"output": "a.csv"}}, "explore.output"),
    ],
)
def test_settings_that_explore_cannot_honor_are_rejected(train_config, overrides, message):
    with pytest.raises(ValueError, match=message):
        train_config(mode="explore", **overrides)


def test_a_run_without_a_checkpoint_is_named(train_config, tmp_path):
    with pytest.raises(CheckpointError, match=r"no directory .*/nobody"):
        trieye.train(train_config(mode="explore", run_name="nobody", loop={"steps": 5}))
    assert not list(tmp_path.rglob("explored*"))
