"""Runs of other programs: an MLflow database, and event files of several writers."""

import shutil
import sqlite3

import numpy as np
import pytest
from mlflow import MlflowClient
from mlflow.entities import Metric, Param
from runs_of import make_run
from tensorboardX import SummaryWriter

from trieye.exceptions import ConfigurationError
from trieye.results import load, mlflow_store


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Return a database with two algorithms and two seeds, a run with NaN and infinite values, and a deleted run."""
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    client = MlflowClient(tracking_uri=f"sqlite:///{path}")
    experiment = client.create_experiment("cartpole", artifact_location=path.parent.as_uri())
    for algo, level in (("ppo", 0), ("sac", 50)):
        for seed in range(2):
            run_id = client.create_run(experiment, run_name=f"{algo}{seed}").info.run_id
            params = [Param("algo", algo), Param("seed", str(seed)), Param("lr", "3e-4"), Param("flag", "True")]
            points = [Metric("eval/return", level + seed + step, 1000 + step, step * 10) for step in range(11)]
            client.log_batch(run_id, points, params)
            client.set_tag(run_id, "variant", f"v{seed}")
            client.set_terminated(run_id)
    diverged_id = client.create_run(experiment, run_name="odd").info.run_id
    values = [float("nan"), float("inf"), -float("inf"), 1.0]
    client.log_batch(
        diverged_id, [Metric("loss", value, 1000, step) for step, value in enumerate(values)], [Param("algo", "odd")]
    )
    ends = [float("nan"), 1.0, float("nan"), float("inf")]
    client.log_batch(diverged_id, [Metric("gone", value, 1000, step) for step, value in enumerate(ends)])
    client.delete_run(client.create_run(experiment, run_name="deleted").info.run_id)
    return path


def test_an_mlflow_store_is_read_by_uri_or_path_without_a_client(store, tmp_path, monkeypatch):
    monkeypatch.setattr("mlflow.MlflowClient", None)
    results = load(f"sqlite:///{store}")
    assert [run.name for run in results.runs] == ["ppo0", "ppo1", "sac0", "sac1", "odd"]
    run = results.runs[1]
    assert (run.app, run.status, run.seed, run.step) == ("cartpole", "FINISHED", 1, 100)
    assert dict(run.params) == {"algo": "ppo", "flag": True, "lr": 3e-4, "seed": 1}
    assert results.metrics() == ["eval/return", "gone", "loss"]
    assert [run.name for run in results.where({"tags.variant": "v1"}, strict=True)] == ["ppo1", "sac1"]
    selection = results.where(algo__in=["ppo", "sac"])
    np.testing.assert_array_equal(selection.values("eval/return", steps=1), [[10, 11], [60, 61]])
    curve = load(store).where(algo="ppo").curve("eval/return", grid=3)
    np.testing.assert_array_equal(curve.y, [[[0, 5, 10], [1, 6, 11]]])


def test_infinite_and_nan_values_of_mlflow_are_restored(store):
    results = load(store).where(algo="odd")
    np.testing.assert_array_equal(results.series("loss")[0].values, [np.nan, np.inf, -np.inf, 1.0])
    assert results.series("loss")[0].times[0] == 1.0


def test_an_mlflow_metric_that_ends_diverged_has_no_value_and_a_recovered_one_has(store):
    results = load(store).where(algo="odd", strict=True)
    assert results.values("loss", last=1.0, include_unfinished=True).tolist() == [[1.0]]
    assert np.isnan(results.values("gone", include_unfinished=True)).all()
    assert any("#" in text and "gone is NaN or infinite from step 2 on" in text for text in results.problems)
    assert list(results.diverged("gone").values()) == [2]
    assert results.values("gone", last=1.0, include_unfinished=True, include_diverged=True).tolist() == [[1.0]]


def test_indexed_lookups_and_full_scans_of_a_store_agree(store, monkeypatch):
    indexed = load(store).series("eval/return")
    monkeypatch.setattr(mlflow_store, "_FEW_RUNS", 0)
    monkeypatch.setattr(mlflow_store, "_AT_ONCE", 7)
    for by_index, by_scan in zip(indexed, load(store).series("eval/return"), strict=True):
        assert [array.tolist() for array in by_index] == [array.tolist() for array in by_scan]


def test_reading_a_store_neither_modifies_it_nor_creates_files(store, tmp_path):
    copy = tmp_path / "mlflow.db"
    with sqlite3.connect(store) as source, sqlite3.connect(copy) as target:
        source.backup(target)
    source.close()
    target.close()
    content = copy.read_bytes()
    copy.chmod(0o400)
    load(copy).values("eval/return")
    assert [path.name for path in tmp_path.iterdir()] == ["mlflow.db"]
    assert copy.read_bytes() == content


def test_a_foreign_or_truncated_database_is_rejected(tmp_path):
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE runs (a)")
    connection.close()
    with pytest.raises(ConfigurationError, match=r"other\.db is not an MLflow database: it lacks the tables exp"):
        load(path)
    path.write_bytes(path.read_bytes()[:30])
    with pytest.raises(ConfigurationError, match=r"other\.db cannot be read as an MLflow database"):
        load(path)


def test_a_run_in_mlflow_and_in_its_directory_counts_once_by_its_directory(tmp_path):
    run_dir = make_run(tmp_path, "run", [1.0, 2.0], sinks={"mlflow": {"enabled": True}}, seed=4, agent={"lr": 0.5})
    (database,) = tmp_path.rglob("mlflow.db")
    from_store = load(database)
    (run,) = from_store.runs
    assert (run.name, run.seed, run.params["agent.lr"]) == ("run", 4, 0.5)
    assert from_store.values("eval/return", steps=1).tolist() == [[2.0]]
    (run,) = load([database, run_dir]).runs
    assert run.path == str(run_dir.resolve())


# event files


def write_events(directory, values, *, tag="rollout/ep_rew_mean", every=100, **options):
    """Write an event file without trieye, and return its open writer."""
    writer = SummaryWriter(str(directory), **options)
    for number, value in enumerate(values):
        writer.add_scalar(tag, value, number * every, walltime=1e9 + number)
    return writer


@pytest.fixture
def logs(tmp_path):
    """Return a log directory of stable-baselines3: two algorithms, two runs each."""
    for algo, level in (("PPO", 0), ("DQN", 10)):
        for number in (1, 2):
            write_events(tmp_path / f"logs/{algo}_{number}", level + number + np.arange(11)).close()
    return tmp_path / "logs"


def test_numbered_runs_are_seeds_of_their_name_prefix(logs):
    results = load(logs)
    assert results.configs == [{"tb_log_name": "DQN"}, {"tb_log_name": "PPO"}]
    assert results.seeds == [1, 2]
    assert results.metrics() == ["rollout/ep_rew_mean"]
    curve = results.curve("rollout/ep_rew_mean", x="env_steps", grid=3)
    np.testing.assert_array_equal(curve.x, [0, 500, 1000])
    np.testing.assert_array_equal(curve.y, [[[11, 16, 21], [12, 17, 22]], [[1, 6, 11], [2, 7, 12]]])
    assert results.curve("rollout/ep_rew_mean", x="wall_time").x[-1] == pytest.approx(10)


def test_own_and_foreign_runs_load_together_and_share_the_axis(logs, tmp_path):
    make_run(tmp_path, "mine", np.arange(11.0), every=100, seed=1, loop={"axis": "env_steps"})
    results = load([tmp_path / "app", logs])
    assert len(results) == 5
    trieye_curve = results.where(app="app").curve("eval/return", x="env_steps", grid=np.array([500.0]))
    foreign_curve = results.where(name="PPO_1").curve("rollout/ep_rew_mean", x="env_steps", grid=np.array([500.0]))
    assert (trieye_curve.y.item(), foreign_curve.y.item()) == (5, 6)


def test_parameters_are_read_from_cleanrl_tables_and_from_hparams(tmp_path):
    cleanrl = write_events(tmp_path / "runs/CartPole-v1__ppo__3__1700000000", [1.0], tag="charts/episodic_return")
    rows = "\n".join(f"|{key}|{value}|" for key, value in {"seed": 3, "learning_rate": 2.5e-4, "track": False}.items())
    cleanrl.add_text("hyperparameters", f"|param|value|\n|-|-|\n{rows}")
    cleanrl.close()
    hparams = write_events(tmp_path / "runs/other", [1.0, 2.0])
    hparams.add_hparams({"lr": 0.5, "seed": 7}, {"final": 2.0, "rollout/ep_rew_mean": 9.0}, name="1700000000.123")
    hparams.close()
    cleanrl_run, hparams_run = load(tmp_path / "runs").runs
    assert dict(cleanrl_run.params) == {"seed": 3, "learning_rate": 2.5e-4, "track": False}
    assert cleanrl_run.seed == 3
    assert (hparams_run.name, dict(hparams_run.params), hparams_run.seed) == ("other", {"lr": 0.5, "seed": 7}, 7)
    final, curve = (load(tmp_path / "runs/other").series(name)[0] for name in ("final", "rollout/ep_rew_mean"))
    assert final.values.tolist() == [2.0]
    assert curve.values.tolist() == [1.0, 2.0], "the logged curve counts, not the metric of the same name"


def test_a_resumed_writer_replaces_its_purged_steps(tmp_path):
    write_events(tmp_path / "run", [0.0] * 10, every=1, filename_suffix=".1").close()
    resumed = SummaryWriter(str(tmp_path / "run"), purge_step=5, filename_suffix=".2")
    for step in (5, 6):
        resumed.add_scalar("rollout/ep_rew_mean", 1.0, step)
    resumed.close()
    first, second = sorted((tmp_path / "run").iterdir())
    first.rename(first.with_name("events.out.tfevents.0000000001.a"))
    second.rename(second.with_name("events.out.tfevents.0000000002.b"))
    (series,) = load(tmp_path / "run").series("rollout/ep_rew_mean")
    assert series.steps.tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert series.values.tolist() == [0.0] * 5 + [1.0] * 2


def test_event_files_of_a_trieye_run_contain_its_parameters_and_points(tmp_path):
    run_dir = make_run(tmp_path, "run", [1.0, 2.0, 4.0], sinks={"tensorboard": {"enabled": True}}, agent={"lr": 0.25})
    event_dir = tmp_path / "shown"
    event_dir.mkdir()
    for path in run_dir.rglob("*tfevents*"):
        shutil.copy(path, event_dir)
    results = load(event_dir)
    assert results.runs[0].params["agent.lr"] == 0.25
    assert results.series("eval/return")[0].values.tolist() == [1.0, 2.0, 4.0]


def test_truncated_and_damaged_event_files_yield_no_wrong_values_and_damage_is_reported(tmp_path):
    write_events(tmp_path / "run", np.arange(20.0)).close()
    (path,) = (tmp_path / "run").iterdir()
    content = path.read_bytes()
    expected = np.arange(20.0).tolist()
    for size in range(len(content) - 1, 60, -37):
        path.write_bytes(content[:size])
        results = load(tmp_path / "run")
        values = results.to_numpy()["value"].tolist()
        assert values == expected[: len(values)]
        path.write_bytes(content[:size] + bytes([content[size] ^ 1]) + content[size + 1 :])
        results = load(tmp_path / "run")
        values = results.to_numpy()["value"].tolist()
        assert values == expected[: len(values)]
        assert any("byte" in text and path.name in text for text in results.problems)


def test_empty_and_invalid_event_files_are_runs_without_points(tmp_path):
    write_events(tmp_path / "logs/good", [1.0, 2.0]).close()
    for name, content in (("empty", b""), ("text", b"this is no event file at all")):
        (tmp_path / "logs" / name).mkdir()
        (tmp_path / "logs" / name / "events.out.tfevents.1.x").write_bytes(content)
    results = load(tmp_path / "logs")
    assert len(results) == 3
    np.testing.assert_array_equal(results.values("rollout/ep_rew_mean", steps=1).ravel(), [np.nan, 2.0, np.nan])
    assert ["text" in text for text in results.problems] == [True]


def test_texts_images_and_histograms_are_not_metrics(tmp_path):
    writer = write_events(tmp_path / "run", [1.0])
    writer.add_text("note", "hello", 1)
    writer.add_image("picture", np.zeros((3, 2, 2)), 1)
    writer.add_histogram("weights", np.arange(5.0), 1)
    writer.close()
    assert load(tmp_path).metrics() == ["rollout/ep_rew_mean"]
