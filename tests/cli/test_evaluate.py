"""`trieye evaluate` plays the policy of a run, by default of the newest one."""

import json
import shutil

import numpy as np
import pytest

import trieye
from tests.json_schemas import validated
from tests.training.algorithms import DQN, TrainConfig
from trieye.cli import main


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """The directory of run `first`, its copy `second`, and a run without checkpoint; observations are flat."""
    root = tmp_path_factory.mktemp("root")
    config = TrainConfig(
        app_name="agents",
        run_name="first",
        agent={"kind": "dqn", "rollout_steps": 20, "batch_size": 4, "learning_starts": 5},
        env={"id": "trieye.training.catch:Catch-v0", "eval_episodes": 1}
        | {"wrappers": {"flat": {"name": "FlattenObservation"}}},
        runtime={"kind": "local"},
        sinks={},
        persistence={"root_data_dir": str(root)},
        loop={"axis": "env_steps", "steps": 40, "evaluate_every_steps": 20},
    )
    run_dir = trieye.run_experiment(DQN, config).run_dir
    shutil.copytree(run_dir, run_dir.with_name("second"))
    (run_dir.parent / "starting" / "checkpoints").mkdir(parents=True)
    return root


def evaluate(root, *arguments):
    return main(["evaluate", *arguments, "--root", str(root)])


@pytest.mark.long
def test_a_run_is_selected_by_name_by_directory_or_by_the_newest_checkpoint(root, capsys):
    runs = root / "agents" / "runs"
    for arguments in ("first", "agents/first", str(runs / "first"), ""):
        assert evaluate(root, *filter(None, [arguments]), "--episodes", "2", "--json") == 0
        report, name = validated(capsys.readouterr().out), "first" if arguments else "second"
        assert report == {"schema": "trieye.evaluate/1", **trieye.evaluate(runs / name, episodes=2)}
        assert (report["run"], report["is_best"], len(report["returns"])) == (name, True, 2)


@pytest.mark.long
def test_the_checkpoint_is_selectable_and_shown_in_a_table(root, capsys):
    assert evaluate(root, "first", "--checkpoint", "latest", "--episodes", "1") == 0
    shown = capsys.readouterr().out
    assert "first: checkpoint, 1 episode\n" in shown
    assert "checkpoint_step_40, after 40 steps" in shown
    assert "(standard deviation 0)" in shown


def two_figures(*_arguments, **_options):
    """An `evaluator` that omits most figures."""
    return {"return_mean": np.float32(2.5), "wins": 3, "opponent": "random"}


class OwnConfig(trieye.TrieyeConfig):
    evaluator: str = f"{__name__}:two_figures"


def test_an_evaluator_of_a_program_may_omit_figures(tmp_path, capsys):
    parts = {"persistence": {"root_data_dir": str(tmp_path)}, "runtime": {"kind": "local"}, "sinks": {}}
    with trieye.Run(OwnConfig(run_name="own", **parts)) as run:
        run.save(weights=[1.0])
    assert evaluate(tmp_path, "own", "--episodes", "3") == 0
    assert "own: checkpoint, 3 episodes" in (shown := capsys.readouterr().out)
    assert [line.split() for line in shown.splitlines()[-2:]] == [["return,", "mean", "2.5"], ["wins,", "mean", "3"]]
    assert evaluate(tmp_path, "own", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert {"return_mean": 2.5, "wins": 3, "opponent": "random"}.items() <= report.items()


def test_a_video_shows_the_first_episode(root, tmp_path):
    video = tmp_path / "a.gif"
    assert evaluate(root, "first", "--episodes", "1", "--video", str(video)) == 0
    assert video.read_bytes().startswith(b"GIF")


def test_invalid_evaluations_print_one_message(root, command, tmp_path, monkeypatch):
    (tmp_path / "dir.gif").mkdir()
    monkeypatch.chdir(tmp_path)
    for arguments, message, expected_code in (
        (["--episodes", "0"], "argument --episodes: invalid value '0'; expected an integer >= 1", 2),
        (["firts"], "did you mean 'first'", 2),
        (["first", "--checkpoint", "newest"], "--checkpoint: 'newest' is not a checkpoint", 2),
        (["first", "--checkpoint", "step:7"], "has no checkpoint 7 (steps: 36, 40)", 1),
        (["first", "--video", "x.mp4"], "argument --video: invalid path 'x.mp4'; expected FILE.gif", 2),
        (["first", "--video", "dir.gif"], "argument --video: invalid path 'dir.gif'; expected FILE.gif", 2),
        (["first", "--device", "tpu:1"], "device=tpu:1", 2),
    ):
        code, out, err = command("evaluate", *arguments, "--root", root)
        assert (code, out) == (expected_code, ""), arguments
        assert message in err
        assert "Traceback" not in err


def test_a_root_without_runs_prints_one_message(tmp_path, capsys):
    assert evaluate(tmp_path) == 2
    assert "has a checkpoint; pass a run" in capsys.readouterr().err


def test_a_policy_predicts_in_the_environment_of_its_run(root):
    run_dir = root / "agents" / "runs" / "first"
    policy, env = trieye.load_policy(run_dir), trieye.make_env(run_dir)
    (obs, _), total, done = env.reset(seed=2_000_000), 0.0, False
    assert obs.shape == (100,)
    while not done:
        obs, reward, terminated, truncated, _ = env.step(policy.predict(obs))
        total, done = total + reward, terminated or truncated
    env.close()
    assert total == trieye.evaluate(run_dir, episodes=1, first_seed=2_000_000)["returns"][0]
    batch = np.random.default_rng(0).normal(size=(7, 100))
    assert policy.predict(batch).tolist() == [policy.predict(row) for row in batch]
    assert len({*policy.predict(np.repeat(batch[:1], 200, 0), deterministic=False)}) > 1
