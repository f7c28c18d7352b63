"""Contracts of training: the tests that every policy, engine, weight transport and sampling has to pass."""

# ruff: noqa: S101 - these are tests

import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar
from unittest import SkipTest

import numpy as np
import torch
from torch import nn

from trieye.checkpoints.store import load_checkpoint
from trieye.exceptions import SerializationError
from trieye.experiment.loop import run_alone as run_experiment
from trieye.files.run_files import RunFiles
from trieye.snapshot.encode import decode, encode
from trieye.training.batches import Experience
from trieye.training.config import TrainingConfig
from trieye.training.environments import make_env, spaces_of_config
from trieye.training.evaluation import Evaluation
from trieye.training.exploring.transports import SupersededError, Transport, as_arrays, load_weights
from trieye.training.loading import load_policy
from trieye.training.policy import Context, Obs, Policy
from trieye.training.sampling import Sampling
from trieye.training.spaces import columns_of, nested

_CPU = torch.device("cpu")


class PolicyContract:
    """Tests that a policy inherits: subclass it, in a class that pytest collects, and name it and its config."""

    policy_class: ClassVar[type[Policy]]
    """The policy."""

    MAX_EPISODE_STEPS = 100
    """Episodes that are played are cut here."""

    def make_config(self) -> TrainingConfig:
        """Return a config that the policy fits, with a small network."""
        raise NotImplementedError

    def make_policy(self, seed: int = 0) -> Policy:
        """Return a policy, with the weights that a seed gives."""
        config = self.make_config()
        torch.manual_seed(seed)
        return self.policy_class(config, spaces_of_config(config.env)).eval()

    def observations(self, n: int) -> Obs:
        """Return `n` observations with which episodes begin."""
        env = make_env(self.make_config().env)
        try:
            columns = [columns_of(_alone(env.reset(seed=seed)[0])) for seed in range(n)]
        finally:
            env.close()
        stacked = {name: np.concatenate([column[name] for column in columns]) for name in columns[0]}
        found: Obs = nested({name: torch.from_numpy(array) for name, array in stacked.items()})
        return found

    def act(self, policy: Policy, n: int, *, explore: bool = True, seed: int = 0) -> Any:
        """Return what a policy does at the beginning of `n` episodes."""
        ctx = Context(explore=explore, env_steps=0, generator=torch.Generator().manual_seed(seed))
        with torch.inference_mode():
            return policy.act(self.observations(n), policy.initial_state(n), ctx)

    def test_it_is_made_from_its_config_and_the_spaces_alone(self) -> None:
        """Explorers, evaluations and `load_policy` make it so: each time with weights of the same names and shapes."""
        one, other = self.make_policy(0).state_dict(), self.make_policy(1).state_dict()
        assert {name: item.shape for name, item in one.items()} == {name: item.shape for name, item in other.items()}

    def test_it_can_be_sent_to_another_process_as_its_class_and_config(self) -> None:
        """An explorer in a process of its own gets both by pickle."""
        assert pickle.loads(pickle.dumps(self.policy_class)) is self.policy_class  # noqa: S301 - our own bytes
        config = pickle.loads(pickle.dumps(self.make_config()))  # noqa: S301 - our own bytes
        made = self.policy_class(config, spaces_of_config(config.env))
        assert made.state_dict().keys() == self.make_policy().state_dict().keys()

    def test_each_row_has_an_action_of_the_space_and_its_extras(self) -> None:
        """Whatever the number of rows, exploring or not."""
        policy = self.make_policy()
        for n in (1, 5):
            for explore in (True, False):
                act = self.act(policy, n, explore=explore)
                actions = act.action.cpu().numpy()
                assert len(actions) == n, f"{len(actions)} actions for {n} observations"
                for action in actions:
                    space = policy.spaces.action
                    assert space.contains(action.astype(space.dtype)), f"{action!r} ({action.dtype}) is not in {space}"
                    assert action.dtype.kind == space.dtype.kind, f"{action.dtype} where {space.dtype} is wanted"
                for name, extra in act.extras.items():
                    assert len(extra) == n, f"extras[{name!r}] has {len(extra)} rows of {n}"

    def test_its_state_has_the_form_of_the_initial_one(self) -> None:
        """Of a recurrent policy: state of episodes that begin takes the place of that of others."""
        policy = self.make_policy()
        given, returned = (_tensors(state) for state in (policy.initial_state(4), self.act(policy, 4).state))
        assert {name: (item.shape, item.dtype) for name, item in given.items()} == {
            name: (item.shape, item.dtype) for name, item in returned.items()
        }

    def test_the_same_generator_gives_the_same_actions(self) -> None:
        """All that is random is drawn from `ctx.generator`, which is saved."""
        policy, n = self.make_policy(), 32
        torch.manual_seed(1)
        one = self.act(policy, n, seed=7)
        torch.manual_seed(2)
        other = self.act(policy, n, seed=7)
        assert torch.equal(one.action, other.action), "it draws from another generator than ctx.generator"
        assert all(torch.equal(one.extras[name], other.extras[name]) for name in one.extras)

    def test_acting_changes_no_weights(self) -> None:
        """Many act with the same weights, which only learning changes."""
        policy = self.make_policy()
        before = {name: item.clone() for name, item in policy.state_dict().items()}
        self.act(policy, 3)
        assert [name for name, item in policy.state_dict().items() if not torch.equal(item, before[name])] == []

    def test_it_acts_by_the_weights_that_it_is_given(self) -> None:
        """Parameters and buffers are all that an explorer gets, in place."""
        ours, theirs = self.make_policy(0), self.make_policy(1)
        places = [item.data_ptr() for item in theirs.parameters()]
        load_weights(theirs, as_arrays(ours.state_dict()))
        assert [item.data_ptr() for item in theirs.parameters()] == places
        one, other = (self.act(policy, 8, seed=3) for policy in (ours, theirs))
        assert torch.equal(one.action, other.action), "it acts by something that is neither parameter nor buffer"
        assert all(torch.equal(one.extras[name], other.extras[name]) for name in one.extras)

    def test_what_it_says_of_episodes_are_numbers(self) -> None:
        """Whole episodes are played, and `on_episode` gets the last info of each."""
        env = self.make_config().env
        longest = min(env.max_episode_steps or self.MAX_EPISODE_STEPS, self.MAX_EPISODE_STEPS)
        evaluation = Evaluation(env.model_copy(update={"max_episode_steps": longest}))
        try:
            played = evaluation.play(self.make_policy(), 2)
        finally:
            evaluation.close()
        assert [len(played), min(episode.length for episode in played) > 0] == [2, True]
        assert all(isinstance(value, float) for episode in played for value in episode.metrics.values())


class TrainEngineContract:
    """Tests that an engine inherits: subclass it, in a class that pytest collects, and give its config.

    The class is the one that `agent.engine` of the config names. Two trainings of `NUM_STEPS` are made by each test.
    """

    NUM_STEPS: ClassVar[int]
    """Length of a training, as `loop.axis` counts: a few updates at least, after its half, too."""

    def make_config(self) -> TrainingConfig:
        """Return the config of a small training on the CPU; its place, its length and its sinks are set here."""
        raise NotImplementedError

    def train(self, root: Path, run_name: str, num_steps: int, **loop: Any) -> Path:
        """Train a run below `root` up to a step, and return its directory."""
        config = self.make_config()
        place = {"root_data_dir": str(root), "run_name": run_name, "app_name": "contract"}
        changed = {
            "app_name": "contract",
            "run_name": run_name,
            "runtime": config.runtime.model_copy(update={"kind": "local", "address": None}),
            "sinks": type(config.sinks)(),
            "persistence": config.persistence.model_copy(update=place),
            "loop": config.loop.model_copy(
                update={"steps": num_steps, "env_steps": None, "time_s": None, "target": None} | loop
            ),
        }
        config = config.model_copy(update=changed)
        run_experiment(config.agent.engine, config)
        return RunFiles(config.persistence).run_base_dir

    def test_it_makes_updates_and_its_policy_is_loaded(self, tmp_path: Path) -> None:
        """`load_policy` needs neither replay, optimizer nor environment."""
        run_dir = self.train(tmp_path, "run", self.NUM_STEPS)
        held = load_checkpoint(run_dir, "latest").objects
        assert held["loop"]["updates"] > 0, "it made no update: raise NUM_STEPS, or lower agent.learning_starts"
        weights = load_policy(run_dir, "latest").state_dict()
        assert list(_differences(dict(weights), dict(held["experiment"]["state"]["policy"]))) == []

    def test_a_training_that_was_stopped_goes_on_bit_for_bit(self, tmp_path: Path) -> None:
        """Nothing that training depends on is lost: weights, moments, generators, counters, episodes."""
        whole = self.train(tmp_path, "whole", self.NUM_STEPS)
        self.train(tmp_path, "parts", self.NUM_STEPS // 2)
        self._compare(whole, self.train(tmp_path, "parts", self.NUM_STEPS))

    def test_evaluations_change_nothing_in_the_training(self, tmp_path: Path) -> None:
        """Neither its generators, nor its environments, nor its policy."""
        without = self.train(tmp_path, "without", self.NUM_STEPS, evaluate_every_steps=0)
        often = max(self.NUM_STEPS // 4, 1)
        self._compare(without, self.train(tmp_path, "with", self.NUM_STEPS, evaluate_every_steps=often))

    @staticmethod
    def _compare(one: Path, other: Path) -> None:
        states = [load_checkpoint(run_dir, "latest").objects["experiment"]["state"] for run_dir in (one, other)]
        for state in states:
            state.pop("replay", None)  # in parts, of which the newest holds what is new
            state["collector"].pop("envs", None)  # it has generators of spaces, which nobody seeds or uses
        if any(state["collector"].get("interrupted") for state in states):
            raise SkipTest("its environments cannot be saved in the middle of an episode")
        assert list(_differences(*states)) == []


class TransportContract:
    """Tests that a weight transport inherits: subclass it, in a class that pytest collects, and give the method."""

    def make_transport(self, directory: Path) -> Transport:
        """Return a transport of its own; `directory` is empty."""
        raise NotImplementedError

    def weights(self, value: float) -> dict[str, torch.Tensor]:
        """Return weights of every type that policies have, all of which hold one value."""
        kinds = {"float32": (5, 3), "bfloat16": (4,), "float16": (2, 2), "float64": (), "int64": (3,), "bool": (2,)}
        return {
            f"part.as_{name}": torch.full(shape, value, dtype=getattr(torch, name)) for name, shape in kinds.items()
        }

    def fetched(self, transport: Transport, handle: Any) -> dict[str, torch.Tensor]:
        """Return what a handle leads to, as tensors of a module that takes it in place."""
        module = _module(self.weights(0.0))
        places = {name: item.data_ptr() for name, item in module.state_dict().items()}
        try:
            weights = transport.fetch(handle)
        except SupersededError as newer:
            weights = newer.weights
        load_weights(module, weights)
        assert {name: item.data_ptr() for name, item in module.state_dict().items()} == places
        return dict(module.state_dict())

    def test_weights_come_back_as_they_were(self, tmp_path: Path) -> None:
        """Types, shapes and bits; into the memory that a module has already."""
        transport, given = self.make_transport(tmp_path), self.weights(1.5)
        found = self.fetched(transport, transport.publish(0, given))
        assert list(_differences(found, given)) == []

    def test_what_was_published_stays_as_it_was(self, tmp_path: Path) -> None:
        """The learner goes on to change its weights."""
        transport, given = self.make_transport(tmp_path), self.weights(1.0)
        handle = transport.publish(0, given)
        for item in given.values():
            item.zero_()
        assert list(_differences(self.fetched(transport, handle), self.weights(1.0))) == []

    def test_an_old_handle_leads_to_whole_weights_that_are_no_older(self, tmp_path: Path) -> None:
        """To those of its version, or to newer ones, never to a mixture."""
        transport = self.make_transport(tmp_path)
        handles = [transport.publish(version, self.weights(float(version))) for version in range(6)]
        for version, handle in enumerate(handles):
            found = self.fetched(transport, handle)
            value = found["part.as_float64"].item()
            assert value >= version, f"handle {version} leads to version {value:g}"
            assert list(_differences(found, self.weights(value))) == []

    def test_it_can_be_sent_to_another_process(self, tmp_path: Path) -> None:
        """Explorers get a copy of it, and fetch with that."""
        transport = self.make_transport(tmp_path)
        handle = transport.publish(0, self.weights(2.0))
        copied = pickle.loads(pickle.dumps(transport))  # noqa: S301 - our own bytes
        assert list(_differences(self.fetched(copied, handle), self.weights(2.0))) == []


class SamplingContract:
    """Tests that a sampling inherits: subclass it, in a class that pytest collects, and give the method."""

    def make_sampling(self) -> Sampling:
        """Return a new one, as it is at the beginning of a run; each time the same."""
        raise NotImplementedError

    def make_replay(self) -> Experience:
        """Return a replay buffer with rows; each time the same."""
        replay, generator = Experience(256, seed=1), np.random.default_rng(0)
        ends = np.arange(200) % 20 == 19  # noqa: PLR2004 - the last of 20
        obs = generator.normal(size=(201, 4)).astype(np.float32)
        rows: dict[str, Any] = {"obs": obs[:-1], "next_obs": obs[1:], "action": generator.integers(0, 2, 200)}
        rows["reward"] = np.ones(200, np.float32)
        replay.extend({**rows, "terminated": ends, "truncated": np.zeros(200, bool)}, np.zeros(200, np.int64))
        return replay

    def test_a_batch_has_as_many_rows_as_were_asked_for(self) -> None:
        """In each column, with an id and a weight for each; ids are of the replay, or -1."""
        sampling, replay = self.make_sampling(), self.make_replay()
        for updates, n in enumerate((1, 7, 64)):
            batch = sampling.minibatch(replay, n, _CPU, updates=updates)
            lengths = {name: len(item) for name, item in batch.data.items()}
            assert {len(batch.ids), len(batch.weights), *lengths.values()} == {n}, lengths
            assert {"obs", "action", "reward", "next_obs", "discount"} <= lengths.keys(), lengths
            replay.update_priorities(batch.ids, np.ones(n))

    def test_it_goes_on_with_the_batches_that_would_have_come(self) -> None:
        """Its state and that of the replay are all that a resumed run has."""
        sampling, replay = self.make_sampling(), self.make_replay()
        for updates in range(3):
            sampling.minibatch(replay, 16, _CPU, updates=updates)
        saved = decode(encode({"sampling": sampling, "replay": replay}))
        others = self.make_sampling(), self.make_replay()
        others[0].load_state_dict(saved["sampling"])
        others[1].load_state_dict(saved["replay"])
        for updates in range(3, 6):
            one = sampling.minibatch(replay, 16, _CPU, updates=updates)
            other = others[0].minibatch(others[1], 16, _CPU, updates=updates)
            assert list(_differences(one.data, other.data)) == []


def _alone(obs: Any) -> Any:
    """Return an observation as the only one of a batch."""
    return {key: np.asarray(item)[None] for key, item in obs.items()} if isinstance(obs, Mapping) else obs[None]


def _tensors(state: Any) -> dict[str, torch.Tensor]:
    return state if isinstance(state, dict) else {} if state is None else {"": state}


def _module(weights: Mapping[str, torch.Tensor]) -> nn.Module:
    module, part = nn.Module(), nn.Module()
    for name, item in weights.items():
        part.register_buffer(name.partition(".")[2], torch.zeros_like(item))
    module.part = part
    return module


def _differences(one: Any, other: Any, place: str = "") -> Iterator[str]:
    """Yield the keys under which two states differ, by a single bit at least."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        yield from (f"{place}/{key}, which one of them lacks" for key in one.keys() ^ other.keys())
        for key in one.keys() & other.keys():
            yield from _differences(one[key], other[key], f"{place}/{key}")
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        for number, pair in enumerate(zip(one, other, strict=True)):
            yield from _differences(*pair, f"{place}/{number}")
    elif not _are_same(one, other):
        yield place


def _are_same(one: Any, other: Any) -> bool:
    try:
        encoded = [encode(value, copy=False) for value in (one, other)]
    except SerializationError:
        return False
    contents = [{name: array.tobytes() for name, array in each.arrays.items()} for each in encoded]
    return encoded[0].tree == encoded[1].tree and contents[0] == contents[1]
