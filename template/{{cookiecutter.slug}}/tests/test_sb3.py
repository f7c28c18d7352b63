"""Test that algorithms of stable-baselines3 train, resume and evaluate, and that errors name the invalid key."""

from pathlib import Path

import pytest
import trieye

from {{ cookiecutter.slug }} import sb3

pytest.importorskip("stable_baselines3")

CONF = Path(__file__).parent.parent / "conf"
SMALL = {
    "PPO": ["hyperparameters.n_steps=32", "hyperparameters.batch_size=32", "env.normalize_observations=true"],
    "DQN": ["hyperparameters.learning_starts=40", "hyperparameters.buffer_size=500"],
}


def compose(root: Path, *overrides: str) -> sb3.Config:
    small = ["sinks=[]", "env=cartpole", "env.num=2", "env.eval_episodes=2", f"persistence.root_data_dir={root}"]
    return trieye.compose([*small, *overrides], config_path=CONF, config_name="sb3", config_type=sb3.Config)


@pytest.mark.parametrize("algorithm", SMALL)
def test_a_run_resumes_and_is_evaluated(tmp_path: Path, capsys: pytest.CaptureFixture[str], algorithm: str):
    for steps in (128, 256):
        overrides = [f"algorithm={algorithm}", *SMALL[algorithm], "run_name=one", f"loop.steps={steps}"]
        sb3.train(compose(tmp_path, *overrides, "loop.evaluate_every_steps=64"))
    assert "continues at step 128" in capsys.readouterr().err
    report = trieye.evaluate(tmp_path / "{{ cookiecutter.slug }}" / "runs" / "one", episodes=3)
    assert (report["is_best"], len(report["returns"])) == (True, 3)
    assert report["step"] >= 64


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["algorithm=PPOO"], "did you mean 'PPO'"),
        (["hyperparameters.learning_rat=1"], "did you mean 'learning_rate'"),
        (["hyperparameters.learning_rate=-1"], "Invalid learning rate"),
        (["algorithm=DQN", "env=pendulum"], "Discrete"),
        (["env.id=CartPol-v1"], "did you mean 'CartPole-v1'"),
        (["loop.target=475"], "loop.target"),
    ],
)
def test_check_names_the_invalid_key_before_a_run_is_created(tmp_path: Path, overrides: list[str], message: str):
    with pytest.raises(trieye.ConfigurationError, match=message):
        compose(tmp_path, *overrides).check()
    assert list(tmp_path.iterdir()) == []


def test_devices_and_lists_of_hyperparameters_reach_stable_baselines3(tmp_path: Path):
    hyperparameters = "hyperparameters={train_freq: [4, step], policy_kwargs: {net_arch: [8, 8]}, device: 'cpu:0' }"
    compose(tmp_path, "algorithm=TD3", "env=pendulum", hyperparameters).check()
