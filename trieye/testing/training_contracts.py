"""Training contracts: tests that every policy, engine, weight transport and sampling must pass."""

# ruff: noqa: S101 - these are tests

import pickle
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, nullcontext, suppress
from pathlib import Path
from typing import Any, ClassVar
from unittest import SkipTest

import numpy as np
import torch
from torch import nn

from trieye.checkpoints.store import load_checkpoint
from trieye.exceptions import RunInterrupted
from trieye.experiment.experiment import imported
from trieye.experiment.loop import run_alone as run_experiment
from trieye.files.run_files import RunFiles
from trieye.snapshot.encode import decode, encode
from trieye.testing.experiment_contract import config_below
from trieye.training.batches import Experience
from trieye.training.config import TrainingConfig
from trieye.training.environments import make_env, spaces_of_config
from trieye.training.evaluation import Evaluation
from trieye.training.exploring.transports import SupersededError, Transport, as_arrays, load_weights, weights_of
from trieye.training.loading import load_policy
from trieye.training.policy import Context, Obs, Policy
from trieye.training.rows import named_tensors
from trieye.training.sampling import Sampling
from trieye.training.spaces import as_batch, columns_of, nested

_CPU = torch.device("cpu")


class PolicyContract:
    """Inherited tests of a policy: subclass it in a class that pytest collects, and set the class and the config."""

    policy_class: ClassVar[type[Policy]]
    """The policy class."""

    MAX_EPISODE_STEPS = 100
    """Step limit of played episodes."""

    def make_config(self) -> TrainingConfig:
        """Return a config of the policy with a small network."""
        raise NotImplementedError

    def make_policy(self, seed: int = 0) -> Policy:
        """Return a policy with seeded initial weights."""
        config = self.make_config()
        torch.manual_seed(seed)
        return self.policy_class(config, spaces_of_config(config.env)).eval()

    def observations(self, n: int) -> Obs:
        """Return `n` initial observations."""
        with closing(make_env(self.make_config().env)) as env:
            space = env.observation_space
            columns = [columns_of(as_batch(env.reset(seed=seed)[0], space)[0]) for seed in range(n)]
        stacked_columns = {name: np.concatenate([column[name] for column in columns]) for name in columns[0]}
        return nested({name: torch.from_numpy(array) for name, array in stacked_columns.items()})

    def act(self, policy: Policy, n: int, *, explore: bool = True, seed: int = 0) -> Any:
        """Return the policy's output for `n` initial observations."""
        ctx = Context(explore=explore, env_steps=0, generator=torch.Generator().manual_seed(seed))
        with torch.inference_mode():
            return policy.act(self.observations(n), policy.initial_state(n), ctx)

    def test_config_and_spaces_suffice_to_create_it(self) -> None:
        """Explorers, evaluations and `load_policy` construct it, each time with the same weight names and shapes."""
        one, other = self.make_policy(0).state_dict(), self.make_policy(1).state_dict()
        assert {name: item.shape for name, item in one.items()} == {name: item.shape for name, item in other.items()}

    def test_its_class_and_config_can_be_pickled(self) -> None:
        """An explorer in another process receives both by pickle."""
        assert pickle.loads(pickle.dumps(self.policy_class)) is self.policy_class  # noqa: S301 - our own bytes
        config = pickle.loads(pickle.dumps(self.make_config()))  # noqa: S301 - our own bytes
        policy = self.policy_class(config, spaces_of_config(config.env))
        assert policy.state_dict().keys() == self.make_policy().state_dict().keys()

    def test_each_row_has_a_valid_action_and_extras(self) -> None:
        """For any number of rows, with and without exploration."""
        policy = self.make_policy()
        for n in (1, 5):
            for explore in (True, False):
                act = self.act(policy, n, explore=explore)
                actions = act.action.cpu().numpy()
                assert len(actions) == n, f"{len(actions)} actions for {n} observations"
                for action in actions:
                    space = policy.spaces.action
                    assert space.contains(action.astype(space.dtype)), f"{action!r} ({action.dtype}) is not in {space}"
                    assert action.dtype.kind == space.dtype.kind, f"action has {action.dtype}, expected {space.dtype}"
                for name, extra in act.extras.items():
                    assert len(extra) == n, f"extras[{name!r}] has {len(extra)} rows of {n}"

    def test_its_state_keeps_the_shapes_of_the_initial_state(self) -> None:
        """For recurrent policies: initial states replace the states of ended episodes."""
        policy = self.make_policy()
        initial, returned = (named_tensors("", state) for state in (policy.initial_state(4), self.act(policy, 4).state))
        assert {name: (item.shape, item.dtype) for name, item in initial.items()} == {
            name: (item.shape, item.dtype) for name, item in returned.items()
        }

    def test_the_same_generator_gives_the_same_actions(self) -> None:
        """All random numbers come from `ctx.generator`, which is saved."""
        policy, n = self.make_policy(), 32
        torch.manual_seed(1)
        one = self.act(policy, n, seed=7)
        torch.manual_seed(2)
        other_step = self.act(policy, n, seed=7)
        assert torch.equal(one.action, other_step.action), "the policy draws from a generator other than ctx.generator"
        assert all(torch.equal(one.extras[name], other_step.extras[name]) for name in one.extras)

    def test_acting_changes_no_weights(self) -> None:
        """Many processes act with the same weights, which only learning changes."""
        policy = self.make_policy()
        old_weights = {name: item.clone() for name, item in policy.state_dict().items()}
        self.act(policy, 3)
        assert [name for name, item in policy.state_dict().items() if not torch.equal(item, old_weights[name])] == []

    def test_actions_depend_only_on_the_loaded_weights(self) -> None:
        """Explorers receive only parameters and buffers, in place."""
        source_policy, target_policy = self.make_policy(0), self.make_policy(1)
        pointers = [item.data_ptr() for item in target_policy.parameters()]
        load_weights(target_policy, as_arrays(weights_of(source_policy)))
        assert [item.data_ptr() for item in target_policy.parameters()] == pointers
        one, other = (self.act(policy, 8, seed=3) for policy in (source_policy, target_policy))
        assert torch.equal(one.action, other.action), "actions depend on state that is neither parameter nor buffer"
        assert all(torch.equal(one.extras[name], other.extras[name]) for name in one.extras)

    def test_episode_metrics_are_numbers(self) -> None:
        """Complete episodes are played, and `on_episode` receives the last info of each."""
        env = self.make_config().env
        longest = min(env.max_episode_steps or self.MAX_EPISODE_STEPS, self.MAX_EPISODE_STEPS)
        with closing(Evaluation(env.model_copy(update={"max_episode_steps": longest}))) as evaluation:
            episodes = evaluation.play(self.make_policy(), 2)
        assert [len(episodes), min(episode.length for episode in episodes) > 0] == [2, True]
        assert all(isinstance(value, float) for episode in episodes for value in episode.metrics.values())


class TrainEngineContract:
    """Inherited tests of an engine: subclass it in a class that pytest collects, and set the config.

    The tested class is `agent.engine` of the config. Each test runs up to two trainings of `NUM_STEPS`.
    """

    NUM_STEPS: ClassVar[int]
    """Length of a training on `loop.axis`; each half needs at least a few updates."""

    def make_config(self) -> TrainingConfig:
        """Return the config of a small CPU training; the tests set its directory, length and sinks."""
        raise NotImplementedError

    def train(self, root: Path, run_name: str, *, interrupt_at: int | None = None, **loop: Any) -> Path:
        """Train a run below `root`, to its end or to an interruption, and return its directory.

        Args:
            root: Parent of the data directory.
            run_name: A run of this name resumes.
            interrupt_at: Number of calls of `step` before a stop request, as by a signal.
            loop: Changed keys of the config group `loop`.
        """
        config = self.make_config()
        limits = {"steps": self.NUM_STEPS, "env_steps": None, "time_s": None, "target": None} | loop
        config = config.model_copy(update={"loop": config.loop.model_copy(update=limits)})
        config = config_below(config, root, run_name)
        engine = imported(config.agent.engine)
        self.calls: list[int] = []
        with nullcontext() if interrupt_at is None else suppress(RunInterrupted):
            run_experiment(_interrupted(engine, self.calls, interrupt_at), config)
        return RunFiles(config.persistence).run_base_dir

    def test_it_updates_and_its_saved_policy_loads(self, tmp_path: Path) -> None:
        """`load_policy` requires no replay, optimizer or environment."""
        run_dir = self.train(tmp_path, "run")
        objects = load_checkpoint(run_dir, "latest").objects
        assert objects["loop"]["updates"] > 0, "no update was made: raise NUM_STEPS, or lower agent.learning_starts"
        weights = load_policy(run_dir, "latest").state_dict()
        assert list(_differences(dict(weights), dict(objects["experiment"]["state"]["policy"]))) == []

    def test_a_stopped_training_resumes_bit_exactly(self, tmp_path: Path) -> None:
        """A checkpoint contains all state of the training: weights, moments, generators, counters, episodes."""
        reference_dir = self.train(tmp_path, "whole")
        self.train(tmp_path, "parts", interrupt_at=max(len(self.calls) // 2, 1))
        self._compare(reference_dir, self.train(tmp_path, "parts"))

    def test_evaluations_do_not_affect_the_training(self, tmp_path: Path) -> None:
        """An evaluation changes neither generators, environments nor policy."""
        reference_dir = self.train(tmp_path, "without", evaluate_every_steps=0)
        every_steps = max(self.NUM_STEPS // 4, 1)
        self._compare(reference_dir, self.train(tmp_path, "with", evaluate_every_steps=every_steps))

    @staticmethod
    def _compare(one: Path, other: Path) -> None:
        states = [load_checkpoint(run_dir, "latest").objects["experiment"]["state"] for run_dir in (one, other)]
        for state in states:
            state.pop("replay", None)  # incremental parts, which differ by construction
            state["collector"].pop("envs", None)  # contains generators of spaces, which are neither seeded nor used
        if any(state["collector"].get("interrupted") for state in states):
            raise SkipTest("the environments cannot be saved in the middle of an episode")
        assert list(_differences(*states)) == []


def _interrupted(engine: type[Any], calls: list[int], stop_call: int | None) -> type[Any]:
    """Return an engine that records its calls of `step`, and requests a stop after call number `stop_call`."""

    class Interrupted(engine):  # type: ignore[misc]  # any engine
        def step(self) -> Any:
            values = super().step()
            calls.append(self.env_steps)
            if len(calls) == stop_call:
                self.run.stop_requested, self.run.stop_requested_at = True, time.monotonic()
            return values

    return Interrupted


class TransportContract:
    """Inherited tests of a weight transport: subclass it in a class that pytest collects, and implement the method."""

    def make_transport(self, directory: Path) -> Transport:
        """Return a new transport; `directory` is empty."""
        raise NotImplementedError

    def weights(self, value: float) -> dict[str, torch.Tensor]:
        """Return weights of all dtypes that policies use, filled with one value."""
        kinds = {"float32": (5, 3), "bfloat16": (4,), "float16": (2, 2), "float64": (), "int64": (3,), "bool": (2,)}
        return {
            f"part.as_{name}": torch.full(shape, value, dtype=getattr(torch, name)) for name, shape in kinds.items()
        }

    def fetched(self, transport: Transport, handle: Any) -> dict[str, torch.Tensor]:
        """Fetch a handle, load the weights into a module in place, and return its tensors."""
        module = _module(self.weights(0.0))
        pointers = {name: item.data_ptr() for name, item in module.state_dict().items()}
        try:
            weights = transport.fetch(handle)
        except SupersededError as newer:
            weights = newer.weights
        load_weights(module, weights)
        assert {name: item.data_ptr() for name, item in module.state_dict().items()} == pointers
        return dict(module.state_dict())

    def test_weights_round_trip(self, tmp_path: Path) -> None:
        """Dtypes, shapes and bits are equal, in the existing memory of a module."""
        transport, weights = self.make_transport(tmp_path), self.weights(1.5)
        fetched_weights = self.fetched(transport, transport.publish(0, weights))
        assert list(_differences(fetched_weights, weights)) == []

    def test_published_weights_do_not_change(self, tmp_path: Path) -> None:
        """Published weights do not change when the learner updates its weights."""
        transport, weights = self.make_transport(tmp_path), self.weights(1.0)
        handle = transport.publish(0, weights)
        for item in weights.values():
            item.zero_()
        assert list(_differences(self.fetched(transport, handle), self.weights(1.0))) == []

    def test_an_old_handle_returns_complete_weights_that_are_not_older(self, tmp_path: Path) -> None:
        """A handle yields the weights of its version or of a newer one, never a mixture."""
        transport = self.make_transport(tmp_path)
        handles = [transport.publish(version, self.weights(float(version))) for version in range(6)]
        for version, handle in enumerate(handles):
            fetched_weights = self.fetched(transport, handle)
            value = fetched_weights["part.as_float64"].item()
            assert value >= version, f"handle {version} yields version {value:g}"
            assert list(_differences(fetched_weights, self.weights(value))) == []

    def test_it_can_be_pickled(self, tmp_path: Path) -> None:
        """Explorers fetch through a pickled copy of the transport."""
        transport = self.make_transport(tmp_path)
        handle = transport.publish(0, self.weights(2.0))
        copy = pickle.loads(pickle.dumps(transport))  # noqa: S301 - our own bytes
        assert list(_differences(self.fetched(copy, handle), self.weights(2.0))) == []


class SamplingContract:
    """Inherited tests of a sampling: subclass it in a class that pytest collects, and implement the method."""

    def make_sampling(self) -> Sampling:
        """Return a new sampling in its initial state, equal in each call."""
        raise NotImplementedError

    def make_replay(self) -> Experience:
        """Return a replay buffer with rows, equal in each call."""
        replay, generator = Experience(256, seed=1), np.random.default_rng(0)
        ends = np.arange(200) % 20 == 19  # noqa: PLR2004 - the last of 20
        obs = generator.normal(size=(201, 4)).astype(np.float32)
        rows: dict[str, Any] = {"obs": obs[:-1], "next_obs": obs[1:], "action": generator.integers(0, 2, 200)}
        rows["reward"] = np.ones(200, np.float32)
        replay.extend({**rows, "terminated": ends, "truncated": np.zeros(200, bool)}, np.zeros(200, np.int64))
        return replay

    def test_a_batch_has_the_requested_number_of_rows(self) -> None:
        """All columns, ids and weights have this length; ids are ids of the replay, or -1."""
        sampling, replay = self.make_sampling(), self.make_replay()
        for updates, n in enumerate((1, 7, 64)):
            batch = sampling.minibatch(replay, n, _CPU, updates=updates)
            lengths = {name: len(item) for name, item in batch.data.items()}
            assert {len(batch.ids), len(batch.weights), *lengths.values()} == {n}, lengths
            assert {"obs", "action", "reward", "next_obs", "discount"} <= lengths.keys(), lengths
            replay.update_priorities(batch.ids, np.ones(n))

    def test_a_restored_sampling_continues_with_the_same_batches(self) -> None:
        """A resumed run restores only its state and the state of the replay."""
        sampling, replay = self.make_sampling(), self.make_replay()
        for updates in range(3):
            sampling.minibatch(replay, 16, _CPU, updates=updates)
        saved_states = decode(encode({"sampling": sampling, "replay": replay}))
        restored_pair = self.make_sampling(), self.make_replay()
        restored_pair[0].load_state_dict(saved_states["sampling"])
        restored_pair[1].load_state_dict(saved_states["replay"])
        for updates in range(3, 6):
            batch = sampling.minibatch(replay, 16, _CPU, updates=updates)
            other_batch = restored_pair[0].minibatch(restored_pair[1], 16, _CPU, updates=updates)
            assert list(_differences(batch.data, other_batch.data)) == []


def _module(weights: Mapping[str, torch.Tensor]) -> nn.Module:
    module, part = nn.Module(), nn.Module()
    for name, item in weights.items():
        part.register_buffer(name.partition(".")[2], torch.zeros_like(item))
    module.part = part
    return module


def _differences(one: Any, other: Any, path: str = "") -> Iterator[str]:
    """Yield the paths at which two states are not bit-identical."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        yield from (f"{path}/{key}, which one state lacks" for key in one.keys() ^ other.keys())
        for key in one.keys() & other.keys():
            yield from _differences(one[key], other[key], f"{path}/{key}")
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        for index, pair in enumerate(zip(one, other, strict=True)):
            yield from _differences(*pair, f"{path}/{index}")
    elif not _are_same(one, other):
        yield path


def _are_same(one: Any, other: Any) -> bool:
    states = [encode(value, copy=False) for value in (one, other)]
    first, second = ((each.tree, {name: array.tobytes() for name, array in each.arrays.items()}) for each in states)
    return first == second
