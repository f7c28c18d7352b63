"""The training contracts pass for built-in and user-defined classes, and fail for broken ones."""

import copy
import inspect

import numpy as np
import pytest
import torch

import trieye
from tests.training.algorithms import DQN, PPO, ActorCritic, DQNConfig, PPOConfig, QPolicy, TrainConfig
from trieye.exceptions import ConfigurationError
from trieye.testing import PolicyContract, SamplingContract, TrainEngineContract, TransportContract
from trieye.training.batches import Minibatch
from trieye.training.exploring.collective import CollectiveTransport
from trieye.training.exploring.transports import CheckpointTransport, LocalTransport
from trieye.training.sampling import BufferSampling

ENV = {"id": "CartPole-v1", "num": 2, "eval_episodes": 2, "max_episode_steps": 20}


def dqn_config(**options):
    agent = DQNConfig(rollout_steps=4, batch_size=8, learning_starts=8, device="cpu")
    return TrainConfig(**{"agent": agent, "env": ENV, "loop": {"axis": "env_steps", "steps": 40}} | options)


class TestQPolicy(PolicyContract):
    policy_class = QPolicy

    def make_config(self):
        return dqn_config()


class TestNormalizedActorCritic(PolicyContract):
    policy_class = ActorCritic

    def make_config(self):
        return dqn_config(agent=PPOConfig(engine="tests.training.algorithms:PPO"), env=ENV | {"max_episode_steps": 10})


class Remembering(trieye.Policy):
    """A user-defined recurrent policy with additional metrics."""

    def __init__(self, config, spaces):
        super().__init__(config, spaces)
        self.cell = torch.nn.GRUCell(spaces.observation.shape[0], 8)
        self.head = torch.nn.Linear(8, spaces.action.n)

    def initial_state(self, n):
        return {"hidden": torch.zeros(n, 8)}

    def act(self, obs, state, ctx):
        hidden = self.cell(obs, state["hidden"])
        logits = self.head(hidden)
        if not ctx.explore:
            return trieye.Act(logits.argmax(1), state={"hidden": hidden})
        action = torch.multinomial(logits.softmax(1), 1, generator=ctx.generator)[:, 0]
        return trieye.Act(action, {"logits": logits}, {"hidden": hidden})

    def on_episode(self, info):
        return {"infos": float(len(info))}


class TestRemembering(PolicyContract):
    policy_class = Remembering

    def make_config(self):
        return dqn_config()


class TestDQN(TrainEngineContract):
    NUM_STEPS = 40

    def make_config(self):
        return dqn_config()


class TestPPO(TrainEngineContract):
    NUM_STEPS = 48

    def make_config(self):
        agent = PPOConfig(engine="tests.training.algorithms:PPO", rollout_steps=8, batch_size=8, device="cpu")
        return dqn_config(agent=agent)


class TestLocalTransport(TransportContract):
    def make_transport(self, directory):
        return LocalTransport()


class TestCheckpointTransport(TransportContract):
    def make_transport(self, directory):
        return CheckpointTransport(directory)


class TestObjectStoreTransport(TransportContract):
    @pytest.fixture(autouse=True)
    def _in_ray(self, ray_cluster):
        """Begin Ray."""

    def make_transport(self, directory):
        from trieye.training.exploring.in_ray import ObjectStoreTransport

        return ObjectStoreTransport()


class TestCollectiveTransport(TransportContract):
    @pytest.fixture(autouse=True)
    def _closed(self):
        self.made = []
        yield
        for way in self.made:
            way.close()

    def make_transport(self, directory):
        self.made.append(CollectiveTransport("127.0.0.1"))
        return self.made[-1]


class PlainFiles:
    """A transport as a user writes it: called with the config of the run."""

    def __init__(self, config):
        self.directory = config.persistence.get_run_base_dir() / "plain"

    def publish(self, version, weights):
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / f"{version}.pt"
        torch.save(dict(weights), path)
        return str(path)

    def fetch(self, handle):
        return torch.load(handle)


class TestPlainFiles(TransportContract):
    def make_transport(self, directory):
        return PlainFiles(dqn_config(persistence={"root_data_dir": str(directory)}))


class TestSamplingWithoutData(SamplingContract):
    def make_sampling(self):
        return BufferSampling()


class TestSamplingWithData(SamplingContract):
    def make_sampling(self):
        return BufferSampling(self.make_replay(), 0.25)


class Newest:
    """A strategy as a user writes it: the newest of twice as many rows, and now and then one of `data`."""

    def __init__(self, config, data):
        self.data, self.rng = data, np.random.default_rng(config.seed)
        self.num = 0

    def minibatch(self, replay, n, device, *, updates):
        drawn = replay.minibatch(2 * n, device)
        order = np.argsort(drawn.ids)[-n:]
        order = self.rng.permutation(order)
        self.num += 1
        data = {name: item[order.copy()] for name, item in drawn.data.items()}
        return Minibatch(data, drawn.ids[order], drawn.weights[order.copy()])

    def state_dict(self):
        return {"rng": self.rng, "num": self.num}

    def load_state_dict(self, state):
        self.rng, self.num = state["rng"], state["num"]


class TestNewest(SamplingContract):
    def make_sampling(self):
        return Newest(dqn_config(), None)


class GlobalDraws(QPolicy):
    def act(self, obs, state, ctx):
        return trieye.Act(torch.randint(self.spaces.action.n, (len(obs),)))


class FloatActions(QPolicy):
    def act(self, obs, state, ctx):
        return trieye.Act(super().act(obs, state, ctx).action.float())


class Hidden(QPolicy):
    def __init__(self, config, spaces):
        super().__init__(config, spaces)
        self.bias = torch.randn(2) * 100

    def act(self, obs, state, ctx):
        return trieye.Act((self.q(obs) + self.bias).argmax(1), {"value": self.q(obs)[:, 0] + self.bias[0]})


class Counting(QPolicy):
    def __init__(self, config, spaces):
        super().__init__(config, spaces)
        self.register_buffer("calls", torch.zeros(()))

    def act(self, obs, state, ctx):
        self.calls += 1
        return super().act(obs, state, ctx)


class Forgetful(DQN):
    """Has state that is not saved."""

    def setup(self, config):
        super().setup(config)
        self._scale = 1.0

    def train_step(self, batch):
        self._scale *= 0.9
        batch.data["reward"] = batch["reward"] * self._scale
        return super().train_step(batch)


class Disturbing(DQN):
    def evaluate(self):
        self.policy.q[0].bias.data += 0.1
        return super().evaluate()


class Sharing(LocalTransport):
    def publish(self, version, weights):
        return weights


class Forgets(Newest):
    def state_dict(self):
        return {"rng": copy.deepcopy(np.random.default_rng(5)), "num": 0}


def config_of(engine):
    agent = dqn_config().agent.model_copy(update={"engine": f"{__name__}:{engine.__name__}"})
    return dqn_config(agent=agent)


@pytest.mark.parametrize(
    ("contract", "name", "broken", "test"),
    [
        (TestQPolicy, "policy_class", GlobalDraws, "test_the_same_generator_gives_the_same_actions"),
        (TestQPolicy, "policy_class", FloatActions, "test_each_row_has_a_valid_action_and_extras"),
        (TestQPolicy, "policy_class", Hidden, "test_actions_depend_only_on_the_loaded_weights"),
        (TestQPolicy, "policy_class", Counting, "test_acting_changes_no_weights"),
        (TestDQN, "make_config", lambda: config_of(Forgetful), "test_a_stopped_training_resumes_bit_exactly"),
        (TestDQN, "make_config", lambda: config_of(Disturbing), "test_evaluations_do_not_affect_the_training"),
        (TestLocalTransport, "make_transport", lambda _: Sharing(), "test_published_weights_do_not_change"),
        (
            TestNewest, "make_sampling", lambda: Forgets(dqn_config(), None),
            "test_a_restored_sampling_continues_with_the_same_batches",
        ),
    ],
)  # fmt: skip
def test_a_contract_detects_a_broken_class(contract, name, broken, test, tmp_path):
    contract_of_broken_class = contract()
    setattr(contract_of_broken_class, name, broken)
    run = getattr(contract_of_broken_class, test)
    with pytest.raises((AssertionError, ConfigurationError, RuntimeError, TypeError)):
        run(*[tmp_path] * ("tmp_path" in inspect.signature(run).parameters))


def test_the_contract_configs_name_the_tested_engines():
    assert [TestDQN().make_config().agent.engine, TestPPO().make_config().agent.engine] == [
        f"{engine.__module__}:{engine.__name__}" for engine in (DQN, PPO)
    ]
