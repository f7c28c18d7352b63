"""`trieye export` writes the policy of a run to a directory and prints how to load it."""

import json
import subprocess
import sys

import pytest
import torch

import trieye
from tests.json_schemas import validated
from tests.training.algorithms import DQN, TrainConfig
from trieye.cli import main
from trieye.experiment.experiment import Experiment
from trieye.experiment.loop import run_alone as run_experiment
from trieye.training.run_export import export_run


class RatedDQN(DQN):
    """A DQN whose second evaluation is the best."""

    def evaluate(self):
        return {"eval/return": float(self.run.step == 2)}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run, with checkpoints at steps 1, 2 and 3; step 2 is the best."""
    config = TrainConfig(
        app_name="agents",
        run_name="first",
        agent={"kind": "dqn", "rollout_steps": 5, "batch_size": 4, "learning_starts": 5}
        | {"engine": "tests.cli.test_export:RatedDQN"},
        env={"id": "CartPole-v1", "eval_episodes": 1},
        runtime={"kind": "local"},
        sinks={},
        persistence={"root_data_dir": str(tmp_path_factory.mktemp("root")), "checkpoint_save_freq_steps": 1},
        loop={"steps": 3, "evaluate_every_steps": 1},
    )
    return run_experiment(RatedDQN, config).run_dir


def has_exported(directory, run_dir, which):
    weights = torch.load(directory / "policy.pt", weights_only=True)
    saved = trieye.load_policy(run_dir, which).state_dict()
    return weights.keys() == saved.keys() and all(torch.equal(weights[name], value) for name, value in saved.items())


@pytest.mark.long
def test_the_best_policy_is_exported_with_an_example_that_runs(trained, command):
    shown = command.output("export", "first", "--root", str(trained.parents[2]))
    assert has_exported(trained / "export", trained, 2)
    assert "checkpoint_step_2 (best checkpoint, objective 1) to" in shown
    for file in ("policy.pt", "policy.pt2", "export.json"):
        assert f"  {trained / 'export' / file}  " in shown
    note = json.loads((trained / "export" / "export.json").read_text())
    assert (note["run"], note["step"], note["objective"]) == ("first", 2, 1.0)
    names = {}
    exec("\n".join(line.strip() for line in shown.splitlines()[-2:]), names)  # noqa: S102 - that is the point
    assert names["actions"].shape == (1,)


@pytest.mark.long
@pytest.mark.slow
def test_an_exported_program_runs_without_trieye(trained, tmp_path):
    assert main(["export", str(trained), "-o", str(tmp_path)]) == 0
    act = "torch.export.load(sys.argv[1]).module()"
    code = f"import sys, torch; sys.modules['trieye'] = None; print({act}(torch.zeros(2, 4)).shape)"
    command = [sys.executable, "-c", code, str(tmp_path / "policy.pt2")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout == "torch.Size([2])\n"


@pytest.mark.long
@pytest.mark.parametrize(("which", "step"), [("latest", 3), ("step:1", 1)])
def test_the_checkpoint_option_selects_the_weights(trained, tmp_path, monkeypatch, command, capfd, which, step):
    monkeypatch.setattr("trieye.training.exporting._program", lambda *_: b"seconds that another test spends")
    assert main(["export", str(trained), "--checkpoint", which, "-o", str(tmp_path / "here")]) == 0
    assert has_exported(tmp_path / "here", trained, step)
    assert f"checkpoint_step_{step} (" in capfd.readouterr().out
    document = validated(command.output("export", trained, "--checkpoint", which, "-o", tmp_path / "here", "--json"))
    export = export_run(trained, tmp_path / "here", checkpoint=which)
    assert (document["step"], document["is_best"]) == (export.checkpoint.step, export.is_best) == (step, False)
    assert [file["path"] for file in document["files"]] == [str(file) for file in export.files]


class WithoutEngine(Experiment[trieye.TrieyeConfig]):
    """No engine."""

    def step(self):
        return {}

    def save_checkpoint(self, checkpoint_dir):
        return {"weights": [1.0]}

    def load_checkpoint(self, checkpoint):
        pass


def test_a_run_without_a_policy_prints_one_line(make_config, command):
    result = run_experiment(WithoutEngine, make_config(loop={"steps": 1}))
    assert "was not saved by a TrainEngine ('policy' is missing)" in command.error("export", result.run_dir, code=1)
    assert not (result.run_dir / "export").exists()


def test_a_missing_run_or_checkpoint_prints_one_line(trained, command):
    for arguments, sentence, code in (
        (["second"], "run 'second': no such directory, and no such run in ", 2),
        (
            ["first", "--checkpoint", "bets"],
            "--checkpoint: 'bets' is not a checkpoint; did you mean 'best'? (choose from: best, latest",
            2,
        ),
        (["first", "--checkpoint", "second:best"], "--checkpoint: 'second:best' is not a checkpoint", 2),
        (["first", "--checkpoint", "step:7"], "has no checkpoint 7 (steps: 1, 2, 3)", 1),
    ):
        err = command.error("export", *arguments, "--root", trained.parents[2], code=code)
        assert sentence in err
        assert err.count("\n") == 1, err


def test_a_file_of_the_user_is_not_overwritten(trained, tmp_path, command):
    (tmp_path / "policy.pt").write_text("mine")
    assert "policy.pt exists, and no export wrote it" in command.error("export", trained, "-o", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["policy.pt"]
    assert (tmp_path / "policy.pt").read_text() == "mine"
