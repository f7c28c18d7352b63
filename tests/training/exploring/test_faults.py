"""Errors anywhere in a training with explorers reach the caller, and no checkpoint is lost."""

import os
import time
from concurrent.futures import Future
from functools import partial

import pytest
import torch

import trieye
from tests.training.algorithms import DQN, QPolicy
from tests.training.exploring.test_in_ray import processes
from tests.training.worlds import Numbered
from tests.waiting import wait_until
from trieye.files.run_record import RunRecord
from trieye.replay.remote import Writer
from trieye.training.exploring import gathering, group
from trieye.training.exploring.explorer import Assignment, Explorer, Published, Task
from trieye.training.exploring.places import ThreadExplorerPool
from trieye.training.exploring.transports import LocalTransport

LATE = 60
"""Environment steps of the whole run after which the fault occurs."""


class FailingPolicy(QPolicy):
    """Fails as the tags of its run select."""

    def __init__(self, config, spaces):
        super().__init__(config, spaces)
        self.where = config.tags.get("where")

    def act(self, obs, state, ctx):
        act = super().act(obs, state, ctx)
        if ctx.explore and ctx.env_steps >= LATE:
            if self.where == "policy":
                raise ZeroDivisionError("in policy")
            if self.where == "explorer":
                os._exit(1)
            if self.where == "replay":
                return trieye.Act(act.action, {"new": torch.zeros(len(obs))})
        return act


def failing(transport):
    """Return a transport class that fails for later versions."""

    class Failing(type(transport)):
        def publish(self, version, weights):
            if version >= LATE // 8:
                raise ZeroDivisionError("in transport")
            return super().publish(version, weights)

    return Failing


class Failing(DQN, policy=FailingPolicy):
    def setup(self, config):
        super().setup(config)
        self.where = config.tags["where"]
        if self.where == "transport":
            transport = self._row_source._task.transport
            transport.__class__ = failing(transport)

    def step(self):
        if self.where == "engine" and self.env_steps >= LATE:
            raise ZeroDivisionError("in engine")
        return super().step()


@pytest.fixture
def faulty(train_config):
    """Return a function that creates a config of a training with one explorer and a fault."""

    def make(where, *, explorer=None, **overrides):
        return train_config(
            agent={"rollout_steps": 8, "batch_size": 16, "learning_starts": 16},
            explorer={"num": 1, **(explorer or {})},
            tags={"where": where},
            **{"persistence": {"checkpoint_save_freq_steps": 20}, "loop": {"env_steps": 100_000}} | overrides,
        )

    return make


ERRORS = {
    "policy": (ZeroDivisionError, "in policy"),
    "environment": (ZeroDivisionError, "the world ended"),
    "explorer": (ConnectionError, "its process died"),
    "transport": (ZeroDivisionError, "in transport"),
    "replay": (trieye.ConfigurationError, "new"),
}


@pytest.mark.parametrize(
    ("where", "runtime"),
    [
        *((where, "local") for where in ERRORS if where != "explorer"),
        pytest.param("environment", "ray", marks=pytest.mark.long),
        pytest.param("explorer", "ray", marks=pytest.mark.long),
    ],
)
def test_error_propagates_and_latest_untouched_with_explorers(ray_cluster, faulty, where, runtime):
    kind, message = ERRORS[where]
    env = {"id": "tests.training.worlds:FailsLater-v0"} if where == "environment" else {}
    config = faulty(where, env=env, runtime={"kind": runtime}, explorer={"max_restarts": 0})
    with pytest.raises(kind, match=message) as caught:
        trieye.run_experiment(Failing, config)
    if runtime == "ray" and where == "environment":  # the line in the other process
        assert "in act" in str(caught.value) or "in step" in str(caught.value)
    run_dir = config.persistence.get_run_base_dir()
    assert RunRecord.read(run_dir / "run.json").status == "FAILED"
    assert 20 <= trieye.load_checkpoint(run_dir, "latest").step < LATE + 20
    wait_until(lambda: not [process for kind in ("Explorer", "Replay") for process in processes(f"{kind}Actor")])


class FullPool(ThreadExplorerPool):
    """Cannot schedule restarted explorers, as a cluster that lost a node."""

    def start(self, task, index, incarnation):
        worker = super().start(task, index, incarnation)
        if incarnation:
            worker.begin = worker.find = lambda *_: Future()
        return worker


def test_training_and_saving_continue_while_an_explorer_waits_for_a_node(train_config, tmp_path):
    engine = DQN(
        train_config(explorer={"num": 2, "fragment_steps": 8}, sync={"style": "fully_async", "max_staleness": 2})
    )
    explorers = engine._row_source._group
    explorers._pool = FullPool()
    for _ in range(5):
        engine.advance()
    with explorers.lock:
        explorers._fail(explorers.slots[1], ConnectionError("its node is gone"))
    explorers.poke()
    before = engine.env_steps
    for _ in range(8):
        engine.advance()
    assert engine.env_steps >= before + 60
    assert engine._row_source.metrics()["explorer/alive"] == 1
    began = time.monotonic()
    state = engine._row_source.state_dict()
    assert time.monotonic() - began < 60, "explorer.fragment_timeout_s is 300 s"
    assert [explorer_state["state"] is None for explorer_state in state["explorers"]] == [False, True]
    engine.cleanup()


class LimitedPool(ThreadExplorerPool):
    """Two machines with resources for one explorer each, and a third that joins later."""

    def __init__(self):
        self.third = Future()

    def start(self, task, index, incarnation):
        worker = super().start(task, index, incarnation)
        machine, begin = self.third if index == 2 else Future(), worker.begin
        if index < 2:
            machine.set_result(f"machine{index}")
        worker.find = lambda: machine
        worker.begin = lambda *values: begin(*values) if machine.done() else Future()
        return worker


@pytest.mark.long
def test_the_nodes_of_explorers_are_logged_and_waiting_for_one_never_times_out(train_config, monkeypatch, capsys):
    monkeypatch.setattr(group, "PATIENCE_S", 0.5)
    parts = {"num": 3, "fragment_steps": 8, "fragment_timeout_s": 2.0, "max_restarts": 0, "num_cpus": 4}
    engine = DQN(train_config(explorer=parts, sync={"style": "fully_async", "max_staleness": 2}))
    pool = engine._row_source._group._pool = LimitedPool()
    stderr, ends = "", time.monotonic() + 3.0
    while time.monotonic() < ends or "waiting for a node" not in stderr:  # longer than explorer.fragment_timeout_s
        engine.advance()
        stderr += capsys.readouterr().err
    machines = "explorers: 1 on machine0, 1 on machine1"
    assert f"{machines}, 1 waiting for a node with free resources (explorer.num_cpus=4.0)" in stderr
    assert "it did not start" not in stderr
    pool.third.set_result("machine0")
    wait_until(lambda: "explorers: 2 on machine0, 1 on machine1" in capsys.readouterr().err, within_s=20)
    engine.cleanup()


def test_a_collection_does_not_wait_for_an_explorer_without_a_node(train_config, monkeypatch, capsys):
    trieye.train(train_config(loop={"steps": 10}))
    monkeypatch.setattr(group, "PATIENCE_S", 0.0)
    monkeypatch.setattr(gathering, "pool_and_transport", lambda _: (LimitedPool(), LocalTransport()))
    explorer = {"num": 3, "fragment_steps": 8, "fragment_timeout_s": 2.0, "max_restarts": 0}
    trieye.train(train_config(mode="explore", explorer=explorer, loop={"steps": 200}))
    stderr = capsys.readouterr().err
    assert "explored_1.npz: 20" in stderr
    assert "explorers: 1 on machine0, 1 on machine1, 1 still starting\n" in stderr
    assert "explorer 2" not in stderr


NUMBERED = {"replay": {"n_step": 3}, "explorer": {"num": 1, "fragment_steps": 4}}


def numbered(*fails_at):
    """Return the config of an environment that raises at some steps."""
    Numbered.begin()
    return {"id": "tests.training.worlds:Numbered-v0", "kwargs": {"fails_at": fails_at}}


def test_rows_of_rebuilt_environments_never_join_an_earlier_episode(train_config):
    engine = DQN(train_config(**NUMBERED, env=numbered(58, 110, 163)))
    for _ in range(60):
        engine.collect()
        engine._row_source.learned()
    batch = engine.replay.minibatch(2000, engine.device)
    metrics = engine._row_source.metrics()
    engine.cleanup()
    assert Numbered.num_joined(batch["obs"].numpy(), batch["next_obs"].numpy(), 3) == 0
    assert engine._row_source.interrupted == metrics["explorer/lost_fragments"] == 3
    assert metrics["explorer/restarts"] == 0


def test_a_failed_explorer_abandons_its_earlier_assignments(train_config):
    learner = DQN(train_config(**NUMBERED, env=numbered(6)))
    transport = LocalTransport()
    published = Published(0, handle=transport.publish(0, learner.policy.state_dict()))
    make_writer = partial(Writer, learner.replay.channel)
    explorer = Explorer(Task(learner.config, DQN.policy_class, learner.policy.spaces, transport, make_writer), 0, 0)
    explorer.rollout(Assignment(number=0, steps=4, env_steps=0, published=published))
    with pytest.raises(ZeroDivisionError):
        explorer.rollout(Assignment(number=1, steps=4, env_steps=4, published=published))
    with pytest.raises(Exception, match="abandoned"):
        explorer.rollout(Assignment(number=2, steps=4, env_steps=8, published=published))
    assert learner.replay.metrics()["replay/size"] == 4
    explorer.close()
    learner.cleanup()


class FailsToPublish(DQN):
    """Its transport fails as the tags of its run select."""

    def setup(self, config):
        super().setup(config)
        self._row_source._task.transport.__class__ = flaky(config.tags["where"])


def flaky(where):
    class Flaky(LocalTransport):
        published = fetched = 0

        def publish(self, version, weights):
            Flaky.published += 1
            if where == "publish" and Flaky.published == 5:
                raise OSError("the disk of the weights is busy")
            if where == "dtype":
                raise trieye.ConfigurationError("no file has this dtype")
            return super().publish(version, weights)

        def fetch(self, handle):
            Flaky.fetched += 1
            if where == "fetch" and Flaky.fetched >= 5:
                raise ZeroDivisionError("no weights today")
            return super().fetch(handle)

    return Flaky


@pytest.mark.long
def test_publishing_weights_is_retried(faulty, capsys):
    result = trieye.run_experiment(FailsToPublish, faulty("publish", loop={"env_steps": 100}))
    assert result.env_steps >= 100
    assert "publishing version 4 of the weights failed, retrying in " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("where", "kind", "message", "not_tried"),
    [
        ("dtype", trieye.ConfigurationError, "no file has this dtype", "retrying"),
        (
            "fetch",
            trieye.TrieyeError,
            r"Flaky cannot fetch version \d+ .*: ZeroDivisionError: no weights",
            "rebuilds its environments",
        ),
    ],
)
def test_a_transport_that_rejects_weights_ends_the_training(faulty, capsys, where, kind, message, not_tried):
    with pytest.raises(kind, match=message):
        trieye.run_experiment(FailsToPublish, faulty(where, explorer={"max_restarts": 0}))
    assert not_tried not in capsys.readouterr().err


@pytest.mark.long
def test_a_learner_error_leaves_a_crash_checkpoint_that_never_becomes_the_latest(faulty):
    config = faulty("engine", persistence={"checkpoint_save_freq_steps": 50})
    with pytest.raises(ZeroDivisionError, match="in engine") as caught:
        trieye.run_experiment(Failing, config)
    checkpoints = config.persistence.get_run_base_dir() / "checkpoints"
    (crash,) = checkpoints.glob("crash-*")
    assert str(crash) in "".join(caught.value.__notes__)
    step = int(crash.name.removeprefix("crash-"))
    assert trieye.load_checkpoint(checkpoints.parent, "latest").step < step
    assert (checkpoints / "latest.pkl").resolve().name.startswith("checkpoint_step_")
    persistence = {"load_checkpoint_path": str(crash)}
    onward = faulty("nowhere", run_name="onward", persistence=persistence, loop={"env_steps": step + 40})
    assert step + 40 <= trieye.run_experiment(DQN, onward).env_steps < step + 80
