import shutil

import pytest
import torch

from tests.training.algorithms import DQN, TrainConfig
from trieye.checkpoints.store import CheckpointStore
from trieye.cli import main
from trieye.experiment.loop import run_alone


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run of an engine, whose best checkpoint is its newest one."""
    config = TrainConfig(
        app_name="agents",
        run_name="first",
        agent={"kind": "dqn", "rollout_steps": 4, "batch_size": 8, "learning_starts": 8},
        env={"id": "CartPole-v1", "eval_episodes": 1},
        runtime={"kind": "local"},
        sinks={},
        persistence={"root_data_dir": str(tmp_path_factory.mktemp("root")), "checkpoint_save_freq_steps": 40},
        loop={"axis": "env_steps", "steps": 80},
    )
    return run_alone(DQN, config)


def steps_of(result):
    return [entry.step for entry in CheckpointStore(result.run_dir / "checkpoints", read_only=True).entries()]


def test_the_policy_of_a_run_is_written_and_it_is_said_how_to_load_it(trained, capsys):
    root = trained.run_dir.parents[2]
    assert main(["export", "first", "--root", str(root)]) == 0
    printed = capsys.readouterr().out
    directory = trained.run_dir / "export"
    assert f"the policy of first at step {trained.step}, objective {trained.objective:g}:" in printed
    assert f"torch.export.load('{directory / 'policy.pt2'}').module()" in printed
    actions = torch.export.load(directory / "policy.pt2").module()(torch.zeros(3, 4))
    assert actions.shape == (3,)
    shutil.rmtree(directory)


def test_a_checkpoint_and_a_place_can_be_chosen(trained, tmp_path, capsys):
    first = steps_of(trained)[0]
    assert main(["export", str(trained.run_dir), "--which", f"step:{first}", "-o", str(tmp_path / "out")]) == 0
    assert f"at step {first}:" in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["policy.pt", "policy.pt2"]
    assert not (trained.run_dir / "export").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--which", "bst"], "did you mean 'best'"),
        (["--which", "step:1"], "has no checkpoint of step 1; the nearest is step:"),
    ],
)
def test_mistakes_are_named(trained, capsys, words, message):
    assert main(["export", str(trained.run_dir), *words]) == 2
    assert message in capsys.readouterr().err
