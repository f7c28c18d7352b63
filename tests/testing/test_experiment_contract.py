import pytest

from tests.training.algorithms import DQN, TrainConfig
from tests.tune.walks import Agreeing, Walk, WalksConfig
from trieye.testing import ExperimentContract


class TestWalk(ExperimentContract):
    experiment_class = Walk
    OTHER = {"walk.pace": 3.0, "walk.legs": 1}

    def make_config(self):
        return WalksConfig(loop={"steps": 20, "evaluate_every_steps": 5})


@pytest.mark.long
class TestAgreeing(TestWalk):
    experiment_class = Agreeing


class TestEngine(ExperimentContract):
    experiment_class = DQN
    OTHER = {"agent.lr": 1e-2, "agent.batch_size": 16}

    def make_config(self):
        return TrainConfig(
            agent={"kind": "dqn", "rollout_steps": 4, "batch_size": 8, "learning_starts": 8},
            env={"id": "CartPole-v1", "eval_episodes": 1, "max_episode_steps": 20},
            loop={"axis": "env_steps", "steps": 36, "evaluate_every_steps": 12},
        )


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.filterwarnings("ignore")
class TestAgreeingUnderTune(TestWalk):
    experiment_class = Agreeing
    UNDER_TUNE = True


@pytest.mark.long
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.filterwarnings("ignore")
class TestEngineUnderTune(TestEngine):
    UNDER_TUNE = True


@pytest.mark.long
def test_the_experiment_contract_detects_incomplete_states_and_resets(tmp_path):
    class Forgetful(Walk):
        def save_checkpoint(self, checkpoint_dir):
            return {"position": self.position, "path": []}

        def evaluate(self):
            return {"eval/return": self.position + len(self.path)}

    class Lazy(Walk):
        def reset_config(self, new_config):
            return True

        def load_checkpoint(self, checkpoint):
            self.position += float(checkpoint["position"])

    contract = TestWalk()
    contract.experiment_class = Forgetful
    with pytest.raises(AssertionError, match="the saved state is incomplete"):
        contract.test_saving_changes_nothing_and_a_restored_copy_continues_bit_exactly(tmp_path / "one")
    contract.experiment_class = Lazy
    with pytest.raises(AssertionError):
        contract.test_reset_keeps_no_state_of_the_previous_trial(tmp_path / "two")


def test_the_experiment_contract_neither_writes_to_a_mirror_nor_starts_from_other_runs(tmp_path):
    class Stored(TestWalk):
        def make_config(self):
            persistence = {"mirror": f"file://{tmp_path}/mirror", "load_checkpoint_path": "missing:best"}
            return WalksConfig(loop={"steps": 20, "evaluate_every_steps": 5}, persistence=persistence)

    Stored().test_restoring_a_missing_state_changes_nothing(tmp_path / "root")
    assert not (tmp_path / "mirror").exists()
