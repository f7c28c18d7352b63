"""Selection, curves and scores of results of small runs with known values."""

import json
import shutil
import sys

import numpy as np
import pytest
from runs_of import config, make_run

import trieye
from trieye.cli.run_selection import select_runs
from trieye.exceptions import ConfigurationError
from trieye.results import RunGroups, ScoreDefinition, load
from trieye.results.selection import resolve
from trieye.sweeps.jobs import JobRecord
from trieye.sweeps.record import SweepRecord


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Return a root with ppo at two rates and dqn at one; ppo at the higher rate has seeds 0 and 2."""
    root = tmp_path_factory.mktemp("root")
    for name, algo, lr, seed, level in (
        ("ppo-a0", "ppo", 1e-4, 0, 0.0),
        ("ppo-a1", "ppo", 1e-4, 1, 1.0),
        ("ppo-b0", "ppo", 1e-3, 0, 10.0),
        ("ppo-b2", "ppo", 1e-3, 2, 14.0),
        ("dqn-0", "dqn", 1e-3, 0, 5.0),
    ):
        ppo = {"ppo": {"clip": 0.1}} if algo == "ppo" else {}
        length = 6 if name == "ppo-b2" else 11
        make_run(root, name, level + np.arange(length), every=10, seed=seed, agent={"algo": algo, "lr": lr}, **ppo)
    return root


@pytest.fixture
def results(root):
    return load(root)


def names(results):
    return sorted(run.name for run in results)


@pytest.mark.long
def test_conditions_compare_parameters_seed_name_and_status(results):
    assert names(results.where(algo="ppo", lr__ge=1e-3)) == ["ppo-b0", "ppo-b2"]
    assert names(results.where({"agent.lr__lt": 1e-3})) == ["ppo-a0", "ppo-a1"]
    assert names(results.where(lr__in=[1e-3], seed__ne=0)) == ["ppo-b2"]
    assert names(results.where(lr__le=1e-3, seed__gt=1)) == ["ppo-b2"]
    assert names(results.where(name="dqn-0", status="FINISHED")) == ["dqn-0"]


@pytest.mark.long
def test_tags_are_compared_as_texts_and_as_numbers(tmp_path):
    for name, width in (("narrow", "64"), ("wide", "128")):
        make_run(tmp_path, name, [1.0], tags={"width": width})
    results = load(tmp_path)
    assert names(results.where(width=64)) == names(results.where(width="64")) == ["narrow"]
    assert names(results.where(width__ge=100)) == names(results.where(width__ne=64)) == ["wide"]
    assert names(results.where(width__in=[64, 128])) == ["narrow", "wide"]
    assert names(results.where(width__in=["64"])) == ["narrow"]
    assert names(results.where(width=True)) == []


def test_a_run_without_the_parameter_matches_unless_strict(results):
    assert names(results.where(clip=0.1)) == ["dqn-0", "ppo-a0", "ppo-a1", "ppo-b0", "ppo-b2"]
    assert names(results.where(clip__ge=0.2)) == ["dqn-0"]
    assert names(results.where(clip=0.1, strict=True)) == ["ppo-a0", "ppo-a1", "ppo-b0", "ppo-b2"]
    assert len(results.where(clip__ge=0.2, strict=True)) == 0
    assert len(results.where(algo__ge=3)) == 0, "an incomparable value does not match"


def test_an_unknown_key_or_operator_or_a_scalar_for_in_is_an_error(results):
    with pytest.raises(ConfigurationError, match=r"alg: no run has.*did you mean 'algo'.*agent\.algo"):
        results.where(alg="ppo")
    with pytest.raises(ConfigurationError, match=r"unknown operator 'gte'.*ge"):
        results.where(lr__gte=1)
    with pytest.raises(ConfigurationError, match=r"lr__in=0\.001: expected a list"):
        results.where(lr__in=1e-3)


def test_a_group_without_a_value_of_its_own_is_its_kind(tmp_path):
    class Variant(trieye.TrieyeConfig):
        agent: dict[str, str]

    plain = config(tmp_path, "run").model_dump(exclude={"agent", "ppo", "run_name"})
    for kind in ("dqn", "ppo"):
        with trieye.Run(Variant.model_validate({**plain, "run_name": kind, "agent": {"kind": kind}})) as run:
            run.log("loss", 1.0, step=1)
    results = load(tmp_path)
    assert resolve("agent", results.runs) == "agent.kind"
    assert [run.name for run in results.where(agent="ppo")] == ["ppo"]


def test_an_ambiguous_key_is_an_error_naming_its_candidates(tmp_path):
    class Twice(trieye.TrieyeConfig):
        actor: dict[str, float] = {"rate": 1.0}
        critic: dict[str, float] = {"rate": 2.0}

    plain = config(tmp_path, "run").model_dump(exclude={"agent", "ppo"})
    with trieye.Run(Twice.model_validate(plain)) as run:
        run.log("loss", 1.0, step=1)
    with pytest.raises(ConfigurationError, match=r"rate: ambiguous, could be actor\.rate or critic\.rate"):
        load(tmp_path).where(rate=1)
    assert len(load(tmp_path).where({"critic.rate": 2})) == 1


def test_values_have_a_row_per_config_and_a_column_per_seed(results):
    assert results.seeds == [0, 1, 2]
    configs = [(values["agent.algo"], values["agent.lr"]) for values in results.configs]
    assert configs == [("dqn", 1e-3), ("ppo", 1e-4), ("ppo", 1e-3)]
    expected = [[15, np.nan, np.nan], [10, 11, np.nan], [20, np.nan, 19]]
    np.testing.assert_array_equal(results.values("eval/return", steps=1), expected)
    assert [[run and run.name for run in row] for row in results.table][1] == ["ppo-a0", "ppo-a1", None]


def test_values_reduce_the_last_fraction_of_the_points_or_the_last_steps(results):
    selection = results.where(name="ppo-a0")
    assert selection.values("eval/return").item() == 9.5  # a tenth of 11 points is rounded up to 2
    assert selection.values("eval/return", last=1.0).item() == 5
    assert selection.values("eval/return", last=0.01).item() == 10
    assert selection.values("eval/return", steps=20).item() == 9.5
    assert selection.values("eval/return", last=0.5, reduce=np.min).item() == 5
    for invalid in ({"last": 0}, {"last": 1.5}, {"steps": 0}):
        with pytest.raises(ConfigurationError, match="|".join(invalid)):
            selection.values("eval/return", **invalid)


def test_curves_share_a_grid_and_are_missing_after_a_run_ends(results):
    x, y, mask = results.where(algo="ppo", lr=1e-3).curve("eval/return", grid=5)
    np.testing.assert_array_equal(x, [0, 25, 50, 75, 100])
    np.testing.assert_array_equal(y[0, 0], [10, 12.5, 15, 17.5, 20])
    np.testing.assert_array_equal(y[0, 1], [14, 16.5, 19, np.nan, np.nan])
    np.testing.assert_array_equal(mask[0, 1], [True, True, True, False, False])
    curve = results.curve("eval/return", grid=np.array([-5.0, 100.0]))
    assert curve.y.shape == (3, 3, 2)
    assert np.isnan(curve.y[..., 0]).all()


def test_wall_time_is_relative_to_the_start_of_a_run(results):
    curve = results.curve("eval/return", x="wall_time", grid=50)
    assert 0 <= curve.x[0] < curve.x[-1] < 300
    assert curve.mask.any()


def test_an_unknown_axis_is_an_error_with_the_closest_match(results):
    with pytest.raises(
        ConfigurationError, match=r"x='walltime': unknown axis; did you mean 'wall_time'\? \(choose from: s"
    ):
        results.curve("eval/return", x="walltime")


def test_runs_with_another_axis_are_converted_by_their_logged_progress_or_reported(tmp_path):
    with trieye.Run(config(tmp_path, "updates", loop={"axis": "updates"})) as run:
        for update in range(1, 6):
            run.log({"loss": float(update), "progress/env_steps": update * 100}, step=update)
    with trieye.Run(config(tmp_path, "env", loop={"axis": "env_steps"}, agent={"algo": "dqn"})) as run:
        for step in range(100, 600, 100):
            run.log("loss", step / 100, step=step)
    with trieye.Run(config(tmp_path, "mute", loop={"axis": "updates"}, agent={"lr": 1.0})) as run:
        run.log("loss", 1.0, step=1)
    results = load(tmp_path)
    curve = results.where(name__in=["updates", "env"]).curve("loss", x="env_steps", grid=3)
    np.testing.assert_array_equal(curve.x, [100, 300, 500])
    np.testing.assert_array_equal(curve.y[:, 0], [[1, 3, 5]] * 2)
    assert results.problems == []
    results.curve("loss", x="env_steps")
    assert "mute: not on the axis env_steps" in results.problems[0]
    results.curve("loss")
    assert "x=step: the runs count env_steps, updates" in results.problems[1]


def test_the_last_of_several_points_at_a_step_counts(tmp_path):
    with trieye.Run(config(tmp_path, "run", stats={"processing_interval_seconds": 0.01})) as run:
        for value in (1.0, 2.0, 3.0):
            run.log("eval/return", value, step=5)
            run.flush()
    results = load(tmp_path)
    series = results.series("eval/return")[0]
    assert results.values("eval/return").item() == series.values[-1]
    assert results.curve("eval/return").y.item() == series.values[-1]


def test_the_best_config_has_the_best_mean_over_its_seeds(results):
    assert names(results.best("eval/return", steps=1)) == ["ppo-b0", "ppo-b2"]
    assert names(results.best("eval/return", "min", steps=1)) == ["ppo-a0", "ppo-a1"]
    assert names(results.best("eval/return", lambda one, other: abs(one - 15) < abs(other - 15), steps=1)) == ["dqn-0"]
    with pytest.raises(ConfigurationError, match="mode='most'"):
        results.best("eval/return", "most")


def test_split_groups_runs_by_the_value_of_a_parameter(results):
    assert {key: names(part) for key, part in results.split("lr").items()} == {
        1e-3: ["dqn-0", "ppo-b0", "ppo-b2"],
        1e-4: ["ppo-a0", "ppo-a1"],
    }
    assert list(results.split("clip")) == [None, 0.1]
    assert len(results.split("seed")) == 3


def test_split_loses_no_run_if_distinct_values_are_equal_keys(tmp_path):
    params = [{"kl": None, "flag": True}, {"flag": 1}, {"kl": 0.1, "flag": 2}]
    for number, values in enumerate(params):
        with trieye.Run(config(tmp_path, f"r{number}", seed=0)) as run:
            run.log_params(values)
    results = load(tmp_path)
    assert {key: names(part) for key, part in results.split("kl").items()} == {None: ["r0", "r1"], 0.1: ["r2"]}
    assert {key: names(part) for key, part in results.split("flag").items()} == {1: ["r0", "r1"], 2: ["r2"]}


def test_a_slice_varies_one_parameter_around_a_run(results):
    at = next(run for run in results if run.name == "ppo-a1")
    assert {key: names(part) for key, part in results.slice("lr", at=at).items()} == {
        1e-4: ["ppo-a0", "ppo-a1"],
        1e-3: ["ppo-b0", "ppo-b2"],
    }


def test_find_compares_all_parameters_that_are_not_ignored(results):
    by_name = {run.name: run for run in results}
    others = results.where(lr=1e-3)
    assert others.find(by_name["ppo-a0"], ignore=["lr"]).name == "ppo-b0"
    assert others.find(by_name["ppo-a1"], ignore=["lr"]) is None
    assert others.find(by_name["ppo-a1"], ignore=["lr", "seed"]).name == "ppo-b0"
    assert results.find(by_name["dqn-0"]) is by_name["dqn-0"]


def test_the_newer_of_two_runs_of_a_config_and_seed_counts_and_the_older_is_reported(tmp_path):
    for name, value in (("first", 1.0), ("second", 2.0)):
        make_run(tmp_path, name, [value])
    results = load(tmp_path)
    assert results.values("eval/return").tolist() == [[2.0]]
    (problem,) = results.problems
    assert "first: not counted" in problem
    assert "second" in problem


def test_an_unlogged_metric_is_an_error_with_the_closest_match(results):
    with pytest.raises(ConfigurationError, match=r"eval/retrun: no run logged it.*did you mean 'eval/return'"):
        results.values("eval/retrun")


def test_an_empty_selection_gives_empty_arrays(results):
    empty = results.where(name="nobody")
    assert empty.curve("eval/return").y.shape == (0, 0, 0)
    assert empty.values("eval/return").shape == (0, 0)
    assert empty.to_arrow().num_rows == 0
    assert "0 configs, 0 runs" in repr(empty)


# other packages


def test_tables_have_a_row_per_point_and_a_column_per_varying_parameter(results):
    table = results.to_arrow(["loss"])
    assert table.num_rows == 4 * 11 + 6
    assert table.column_names[:5] == ["run", "metric", "seed", "agent.algo", "agent.lr"]
    assert table.column_names[-3:] == ["step", "value", "wall_time"]
    frame = results.to_pandas()
    assert len(frame) == 2 * table.num_rows
    points = frame[(frame["run"] == "ppo-b2") & (frame["metric"] == "eval/return")]
    assert points["value"].tolist() == [14, 15, 16, 17, 18, 19]
    assert set(points["agent.lr"]) == {1e-3}
    arrays = results.to_numpy(["loss"])
    assert arrays["value"].dtype == np.float64
    assert set(arrays["run"]) == set(names(results))


def test_runs_of_the_same_name_have_distinct_labels_in_tables(tmp_path):
    for root, app in (("a", "first"), ("a", "second"), ("b", "second")):
        make_run(tmp_path / root, "one", [1.0], app=app)
    make_run(tmp_path / "a", "two", [1.0])
    results = load([tmp_path / "a", tmp_path / "b"])
    labels = ["a/second/runs/one", "b/second/runs/one", "first/one", "two"]
    assert sorted(results.to_pandas(["loss"])["run"]) == labels
    results.export(tmp_path / "points.parquet", ["loss"])
    assert load(tmp_path / "points.parquet").to_pandas()["run"].nunique() == 4


def test_rliable_scores_have_a_row_per_run_and_a_column_per_task(results):
    scores = results.where(lr=1e-3).to_rliable("eval/return", "algo", steps=1)
    assert {name: array.tolist() for name, array in scores.items()} == {"dqn": [[15.0]], "ppo": [[20.0], [19.0]]}
    with pytest.raises(ConfigurationError, match=r"algo=ppo: its 2 configs differ in agent\.lr"):
        results.to_rliable("eval/return", "algo")
    by_task = results.where(algo="ppo").to_rliable("eval/return", "algo", task="lr", steps=1)
    assert by_task["ppo"].tolist() == [[10.0, 20.0]]
    assert any("seed 1 is skipped" in text for text in results.problems)


@pytest.mark.parametrize(("name", "call"), [("polars", "to_polars"), ("xarray", "to_xarray"), ("pandas", "to_pandas")])
def test_a_missing_package_is_an_error_with_the_install_command(results, monkeypatch, name, call):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigurationError, match=rf"{call}\(\) needs {name}, .*: pip install {name}"):
        getattr(results, call)(*(["loss"] if name == "xarray" else []))


def test_to_polars_has_the_same_values_as_to_pandas(results):
    polars = pytest.importorskip("polars")
    frame = results.to_polars(["loss"])
    assert isinstance(frame, polars.DataFrame)
    assert frame["value"].sum() == results.to_pandas(["loss"])["value"].sum()


def test_to_xarray_labels_dimensions_and_configs(results):
    pytest.importorskip("xarray")
    array = results.to_xarray("eval/return", grid=5)
    assert array.dims == ("config", "seed", "step")
    np.testing.assert_array_equal(array.values, results.curve("eval/return", grid=5).y)
    assert list(array["agent.algo"].values) == ["dqn", "ppo", "ppo"]


# duplicate runs of one config and seed


def edit(run_dir, **changes):
    """Change fields of a run's record."""
    path = run_dir / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return run_dir


@pytest.mark.long
@pytest.mark.parametrize("status", ["FAILED", "KILLED", "RUNNING"])
def test_a_newer_unfinished_run_does_not_replace_a_finished_one(status, tmp_path):
    edit(make_run(tmp_path, "finished", [1.0]), created=1.0)
    edit(make_run(tmp_path, "newer", [2.0]), created=2.0, status=status)
    results = load(tmp_path)
    assert results.values("eval/return").tolist() == [[1.0]]
    (problem,) = results.problems
    assert "newer: not counted" in problem
    assert "finished is a finished run of the same app, config and seed" in problem


def test_apps_are_separate_configs_even_if_a_parameter_is_named_app(tmp_path):
    for app, value in (("strong", 96.6), ("weak", 29.7)):
        with trieye.Run(config(tmp_path, "run", app=app)) as run:
            run.log_params({"app": "same"})
            run.log("loss", value, step=0)
    results = load(tmp_path)
    assert results.values("loss").tolist() == [[96.6], [29.7]]
    assert results.problems == []
    estimates = RunGroups.of(results).aggregate(ScoreDefinition("loss"))
    assert {label: estimate.value for label, estimate in estimates.items()} == {"strong": 96.6, "weak": 29.7}


@pytest.mark.long
def test_sweeps_that_repeat_a_seed_are_separate_configs_and_disjoint_sweeps_are_one(tmp_path):
    for sweep, seed in (("first", 0), ("first", 1), ("second", 2), ("second", 3)):
        edit(make_run(tmp_path, f"{sweep}{seed}", [float(seed)], seed=seed), group=f"/sweeps/{sweep}")
    assert load(tmp_path).values("eval/return").tolist() == [[0.0, 1.0, 2.0, 3.0]]
    edit(make_run(tmp_path, "again", [9.0], seed=1), group="/sweeps/second")
    results = load(tmp_path)
    nan = np.nan
    expected = [[nan, 9, 2, 3], [0, 1, nan, nan]]
    np.testing.assert_array_equal(results.values("eval/return"), expected)
    assert RunGroups.of(results).labels == ["/sweeps/second", "/sweeps/first"]
    assert results.problems == []


def test_trials_of_a_study_with_equal_parameters_are_separate_configs(tmp_path):
    study, record = tmp_path / "study", SweepRecord(spec=[], varying=["agent.lr"])
    record.write(study)
    for index, rate in enumerate((0.1, 0.2, 0.2)):
        run_dir = make_run(tmp_path, f"pbt_{index}", [float(index)], agent={"lr": rate})
        JobRecord(index=index, overrides=[f"agent.lr={rate}"], state="completed").write(study / str(index))
        (study / str(index) / "run").symlink_to(edit(run_dir, group=str(study)))
    for directory in (study, tmp_path / "app"):
        results = load(directory)
        estimates = RunGroups.of(results).aggregate(ScoreDefinition("eval/return"))
        assert sorted(estimate.value for estimate in estimates.values()) == [0.0, 1.0, 2.0]
        assert {"lr=0.2 name=pbt_1", "lr=0.2 name=pbt_2"} < estimates.keys()
        assert results.problems == []


def test_explicitly_loaded_runs_are_never_dropped(tmp_path):
    original = edit(make_run(tmp_path, "original", [1.0]), created=1.0)
    fork = edit(make_run(tmp_path, "fork", [2.0]), created=2.0)
    failed = edit(make_run(tmp_path, "failed", [3.0]), created=3.0, status="FAILED")
    other_seed = make_run(tmp_path, "other", [4.0], seed=1)
    assert RunGroups.of(load([original, fork])).labels == ["fork", "original"]
    groups = RunGroups.of(load([original, fork, failed, other_seed]))
    assert groups.labels == ["other runs", "original", "failed"]
    assert groups.scores(ScoreDefinition("eval/return", include_unfinished=True))[0].ravel().tolist() == [2.0, 4.0]
    with_original = load([tmp_path / "app", original])
    assert RunGroups.of(with_original).labels == ["other runs", "original"]
    assert [text.partition(": ")[0] for text in with_original.problems] == [str(failed)]
    copy = shutil.copytree(original, tmp_path / "backup/app/runs/original")
    edit(copy, run_id="copy")
    assert RunGroups.of(load([original, copy])).labels == [str(copy), str(original)]


def test_explicitly_loaded_numbered_logs_are_seeds_of_one_config(tmp_path):
    from tensorboardX import SummaryWriter

    for number in (1, 2):
        with SummaryWriter(str(tmp_path / f"logs/PPO_{number}")) as writer:
            writer.add_scalar("loss", float(number), 1)
    results = load([tmp_path / "logs/PPO_1", tmp_path / "logs/PPO_2"])
    assert results.values("loss").tolist() == [[1.0, 2.0]]


def test_lists_are_selected_as_they_are_shown(tmp_path):
    for seed, arch in enumerate(("[64, 64]", "[32]", "[a, b]")):
        run_dir = make_run(tmp_path, f"run{seed}", [1.0], seed=seed)
        edit(run_dir, params={"arch": arch})
    results = load(tmp_path / "app")
    for condition, selected in (
        ("arch=[64, 64]", [0]),
        ("arch=[64,64],[32]", [0, 1]),
        ("arch!=[32]", [0, 2]),
        ("arch=[a, b]", [2]),
    ):
        assert [run.seed for run in select_runs(results, [condition], strict=False)] == selected
    with pytest.raises(ConfigurationError, match=r"none of 3 runs match \(arch is \[64, 64\], \[32\]"):
        select_runs(results, ["arch={}"], strict=False)
