"""The program in docs/training.md trains."""

import re
import sys
import types
from pathlib import Path

import pytest

import trieye

PAGE = Path(__file__).parents[2] / "docs/training.md"


@pytest.mark.long
def test_the_documented_algorithm_trains_loads_and_meets_the_contracts(tmp_path, monkeypatch):
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL))
    module = types.ModuleType("my_agent.a2c")
    monkeypatch.setitem(sys.modules, "my_agent", types.ModuleType("my_agent"))
    monkeypatch.setitem(sys.modules, "my_agent.a2c", module)
    exec(compile(code, str(PAGE), "exec"), vars(module))  # noqa: S102 - that is the point
    config = module.TrainConfig(
        env={"id": "CartPole-v1", "num": 2, "eval_episodes": 2},
        run_name="page",
        runtime={"kind": "local"},
        sinks={},
        persistence={"root_data_dir": str(tmp_path)},
        loop={"axis": "env_steps", "steps": 200},
    )
    assert trieye.train(config) > 5
    run_dir = config.persistence.get_runs_root_dir() / "page"
    assert isinstance(trieye.load_policy(run_dir), module.ActorCritic)
    assert module.play(run_dir, 9) == trieye.evaluate(run_dir, episodes=1, first_seed=9)["returns"][0]
    module.TestActorCritic().test_each_row_has_a_valid_action_and_extras()
    module.TestA2C().test_a_stopped_training_resumes_bit_exactly(tmp_path)


def test_the_documented_keys_and_names_exist():
    page = re.sub(r"```python\n.*?```", "", PAGE.read_text(), flags=re.DOTALL)
    for group, key in re.findall(
        r"(?<![.\w])(agent|bench|env|explore|explorer|loop|replay|sample|sync)\.([a-z_]+)\b", page
    ):
        models = {"env": trieye.EnvConfig, "agent": trieye.ReplayAgentConfig}
        model = models.get(group) or trieye.TrainingConfig.model_fields[group].annotation
        assert key in model.model_fields or key == "lr", f"{group}.{key}"
    for name in re.findall(r"trieye\.([A-Za-z_]+)", page):
        assert hasattr(trieye, name) or name in {"replay", "testing"}, name
