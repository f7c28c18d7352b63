"""Groups of runs for tables and plots: labels, replicates, and missing scores."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from runs_of import make_run, make_sweep

import trieye
from trieye.exceptions import ConfigurationError
from trieye.results import load
from trieye.results.groups import RunGroups, ScoreDefinition
from trieye.results.results import Results
from trieye.results.run_directories import RunDirectories
from trieye.results.runs import LoadedRun, Problems
from trieye.sinks.tensorboard.reading import params_of
from trieye.sweeps.grid import Axis, Grid
from trieye.sweeps.record import SweepRecord

RETURN = ScoreDefinition("eval/return", steps=1)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Return a root with ppo at two rates with two seeds each, and dqn with one; returns start at a level per run."""
    root = tmp_path_factory.mktemp("root")
    for algo, lr, seed, level in (
        ("ppo", 1e-4, 0, 0.0),
        ("ppo", 1e-4, 1, 1.0),
        ("ppo", 1e-3, 0, 10.0),
        ("ppo", 1e-3, 1, 14.0),
        ("dqn", 1e-3, 0, 5.0),
    ):
        make_run(root, f"{algo}{lr:g}-{seed}", level + np.arange(5.0), seed=seed, agent={"algo": algo, "lr": lr})
    return root


@pytest.fixture
def results(root):
    return load(root)


def scores_by_label(groups, scoring=RETURN):
    return {label: table[:, 0].tolist() for label, table in zip(groups.labels, groups.scores(scoring), strict=True)}


def results_of(params):
    """Return results of one run without a directory for each dict of parameters."""
    reader = RunDirectories(Path(), problems := Problems())
    runs = [LoadedRun(str(n), "r", "app", one, 0, "FINISHED", 4, reader) for n, one in enumerate(params)]
    return Results.of(runs, problems=problems, sweeps={})


@pytest.mark.long
def test_groups_compare_all_differing_parameters_by_default(results):
    groups = RunGroups.of(results)
    assert groups.labels == ["algo=dqn lr=0.001", "algo=ppo lr=0.0001", "algo=ppo lr=0.001"]
    (dqn, *ppo_groups) = scores_by_label(groups).values()
    assert ppo_groups == [[4.0, 5.0], [14.0, 18.0]]
    np.testing.assert_array_equal(dqn, [9.0, np.nan])  # seed 1 of the other groups is missing here


def test_labels_omit_keys_determined_by_other_keys(tmp_path):
    for algo, lr, capacity in (("dqn", 1e-3, 100), ("ppo", 1e-4, 100), ("ppo", 1e-4, 200)):
        settings = {"agent": {"algo": algo, "lr": lr}, "replay": {"capacity": capacity}}
        make_run(tmp_path, f"{algo}-{capacity}", np.arange(5.0), seed=0, **settings)
    labels = RunGroups.of(load(tmp_path)).labels  # the algorithm determines the rate
    expected = [("dqn", 100), ("ppo", 100), ("ppo", 200)]
    assert {frozenset(label.split()) for label in labels} == {
        frozenset([f"algo={algo}", f"capacity={capacity}"]) for algo, capacity in expected
    }


def test_null_is_a_value_and_differs_from_a_missing_parameter():
    params = [{"clip": None, "lr": 0.1}, {"clip": 0.2, "lr": 0.1}, {"lr": 0.2}]
    groups = RunGroups.of(results_of(params), ["clip", "lr"])
    assert groups.labels == ["clip=null lr=0.1", "clip=0.2 lr=0.1", "lr=0.2"]
    assert groups.values == params


def test_a_group_of_several_configs_is_an_error_naming_the_differing_keys(results):
    with pytest.raises(
        ConfigurationError,
        match=r"^ppo is 2 configs, .* agent\.lr; .*--by agent\.algo,agent\.lr, .*--where agent\.lr=0\.0001, .*--best",
    ):
        RunGroups.of(results, ["algo"]).scores(RETURN)
    assert scores_by_label(RunGroups.of(results.where(lr=1e-3), ["algo"])).keys() == {"dqn", "ppo"}


@pytest.mark.parametrize(("mode", "best"), [("max", [14.0, 18.0]), ("min", [4.0, 5.0])])
def test_best_selects_one_config_per_group(results, mode, best):
    groups = RunGroups.of(results, ["algo"]).best(RETURN, mode)
    assert scores_by_label(groups)["ppo"] == best


@pytest.mark.long
def test_best_prefers_a_config_with_a_diverged_run_to_one_without_a_score(tmp_path):
    for lr, seed, values in ((0.1, 0, [1.0, 2.0]), (0.1, 1, [1.0, np.nan]), (0.2, 0, []), (0.2, 1, [])):
        make_run(tmp_path, f"{lr}-{seed}", values, seed=seed, agent={"lr": lr})
    (runs,) = RunGroups.of(load(tmp_path), ["algo"]).best(RETURN, "max").runs
    assert {run.params["agent.lr"] for run in runs} == {0.1}


def test_tasks_are_columns_and_can_be_normalized_by_ranges(results):
    groups = RunGroups.of(results, ["algo"], task="lr")
    scoring = ScoreDefinition("eval/return", steps=1, ranges={"0.0001": (0.0, 10.0), "0.001": (4.0, 14.0)})
    assert groups.tasks == ["0.001", "0.0001"]
    dqn, ppo = groups.scores(scoring)
    np.testing.assert_allclose(ppo, [[1.0, 0.4], [1.4, 0.5]])
    np.testing.assert_allclose(dqn, [[0.5, np.nan], [np.nan, np.nan]])
    for ranges, message in (({"0.01": (0, 1)}, r"0\.01: unknown task"), ({"0.001": (1, 1)}, "1 is not below 1")):
        with pytest.raises(ConfigurationError, match=message):
            groups.scores(ScoreDefinition("eval/return", ranges=ranges))


def test_an_axis_that_no_run_logs_is_an_error_with_the_reasons(results):
    for number in range(20):
        results.note(f"run {number}", "not counted")
    with pytest.raises(ConfigurationError, match="no run has points on the axis updates; ") as caught:
        RunGroups.of(results).curves(RETURN, x="updates")
    assert "not on the axis updates: it counts step, and logs no updates" in str(caught.value)


@pytest.fixture
def unfinished(tmp_path):
    """Return a root with a finished, a failed and a killed run, which return 2, 3 and 4 at their last step."""
    for seed, status in enumerate(("FINISHED", "FAILED", "KILLED")):
        path = make_run(tmp_path, f"r{seed}", [1.0, 2.0 + seed], seed=seed) / "run.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "status": status}))
    return tmp_path


@pytest.mark.long
def test_unfinished_runs_have_no_score_unless_included(unfinished):
    results = load(unfinished)
    np.testing.assert_array_equal(scores_by_label(RunGroups.of(results))["all runs"], [2, np.nan, np.nan])
    assert [text.split(": ")[1] for text in results.problems] == [
        f"{status}, last eval/return at step 1" for status in ("FAILED", "KILLED")
    ]
    including_unfinished = ScoreDefinition("eval/return", steps=1, include_unfinished=True)
    assert scores_by_label(RunGroups.of(load(unfinished)), including_unfinished)["all runs"] == [2, 3, 4]
    assert results.values("eval/return", include_unfinished=True).shape == (1, 3)


@pytest.mark.long
def test_unfinished_runs_have_curves_if_included_or_if_no_run_has_finished(unfinished):
    counts = "(1 FAILED, 1 KILLED)"

    def ends(results, *, include_unfinished=False):
        scoring = ScoreDefinition("eval/return", include_unfinished=include_unfinished)
        (curves,) = RunGroups.of(results).curves(scoring, grid=2)[1]
        return curves[:, 0, -1].tolist(), results.problems

    values, problems = ends(load(unfinished))
    np.testing.assert_array_equal(values, [2, np.nan, np.nan])
    assert problems == [f"unfinished runs: not in the curves without --include-unfinished {counts}"]
    assert ends(load(unfinished), include_unfinished=True) == ([2, 3, 4], [])
    note = f"no run has finished: the curves show the points so far of unfinished runs {counts}"
    assert ends(load(unfinished).where(seed__ge=1)) == ([3, 4], [note])


def test_a_diverged_run_is_reported_and_its_infinite_values_are_missing(tmp_path):
    from torch.utils.tensorboard import SummaryWriter

    for number, end in ((1, 2.0), (2, np.inf)):
        with SummaryWriter(tmp_path / f"SAC_{number}") as writer:
            for step, value in enumerate((1.0, end, end)):
                writer.add_scalar("eval/return", value, step)
    results = load(tmp_path)
    (scores,) = RunGroups.of(results).scores(RETURN)
    np.testing.assert_array_equal(scores, [[2], [np.nan]])
    _, (curves,) = RunGroups.of(results).curves(RETURN, grid=3)
    np.testing.assert_array_equal(curves[:, 0], [[1, 2, 2], [1, np.nan, np.nan]])
    diverged, infinite = results.problems
    assert "SAC_2: diverged: eval/return is NaN or infinite from step 1 on" in diverged
    assert "SAC_2: infinite values count as missing" in infinite


def test_seeds_are_expected_only_of_runs_in_the_same_location(tmp_path):
    for folder, lr, seeds in (("before", 1e-3, (0, 1, 2)), ("after", 1e-4, (3, 4)), ("after", 1e-3, (3,))):
        for seed in seeds:
            make_run(tmp_path / folder, f"{lr:g}-{seed}", [1.0], seed=seed, agent={"lr": lr})
    groups = RunGroups.of(load([tmp_path / "before", tmp_path / "after"]), ["place", "lr"])
    assert [sum(str(tmp_path / folder) in label for label in groups.labels) for folder in ("before", "after")] == [1, 2]
    estimates = groups.aggregate(ScoreDefinition("eval/return"), "mean").values()
    assert sorted((one.n, one.n_missing) for one in estimates) == [(1, 1), (2, 0), (3, 0)]


def test_no_seed_is_expected_of_runs_that_were_named_themselves(root, tmp_path):
    load(names := sorted((root / "app/runs").iterdir())).export(tmp_path / "points.parquet")
    for places in (names, tmp_path / "points.parquet"):
        estimates = RunGroups.of(load(places)).aggregate(RETURN, "mean").values()
        assert [(one.n, one.n_missing) for one in estimates] == [(1, 0), (2, 0), (2, 0)]


def test_a_list_of_metrics_matches_the_name_that_was_logged(results):
    matches = results.series(["eval/mean_reward", "eval/return"])
    assert [series.values.tolist() for series in matches] == [
        series.values.tolist() for series in results.series("eval/return")
    ]
    assert results.problems == []
    results.series(["eval/return", "loss"])
    assert results.problems == [
        "loss: not used for runs that also log eval/return; a list of metrics names alternatives"
    ]
    with pytest.raises(ConfigurationError, match=r"^los or return: no run logged it; did you mean 'loss'"):
        results.series(["los", "return"])


# sweeps


@pytest.fixture
def sweep(root, tmp_path):
    """Return a sweep of two algorithms, a and b, and three seeds; jobs 2 and 5 never started."""
    runs = {0: "ppo0.0001-0", 1: "ppo0.0001-1", 3: "ppo0.001-0", 4: "ppo0.001-1"}
    run_dirs = {index: root / "app/runs" / name for index, name in runs.items()}
    return make_sweep(tmp_path, {"choice": "ab", "seed": "012"}, run_dirs)


def test_a_sweep_is_grouped_by_its_varied_keys_and_unstarted_jobs_count_as_missing(sweep, monkeypatch):
    monkeypatch.chdir(sweep.parent)
    groups = RunGroups.of(load(sweep.name))
    assert groups.labels == ["a", "b"]
    np.testing.assert_array_equal(list(scores_by_label(groups).values()), [[4, 5, np.nan], [14, 18, np.nan]])
    assert [(one.n, one.n_missing) for one in groups.aggregate(RETURN).values()] == [(2, 1)] * 2
    assert groups.differences()["choice"] == ["a", "b"]
    assert groups.differences()["agent.lr"] == [1e-4, 1e-3]


def test_unselected_seeds_of_a_sweep_are_not_missing(sweep):
    scores = scores_by_label(RunGroups.of(load(sweep).where(seed__le=0)))
    np.testing.assert_array_equal(list(scores.values()), [[4, np.nan], [14, np.nan]])  # seed 2 never started
    scores = scores_by_label(RunGroups.of(load(sweep).where(choice="a")))
    np.testing.assert_array_equal(list(scores.values()), [[4, 5, np.nan]])


CHOICES, SEEDS = Axis(("choice",), (("a",), ("b",))), Axis(("seed",), (("0",), ("1",), ("2",)))
ZIPPED = Axis(("choice", "seed"), (("a", "0"), ("a", "1"), ("b", "0"), ("b", "1"), ("b", "2")))


@pytest.mark.parametrize(
    ("grid", "missing"),
    [
        (Grid((CHOICES, SEEDS), ({"choice": "b", "seed": "2"},)), {"a": 1, "b": 0}),
        (Grid((ZIPPED,)), {"a": 0, "b": 1}),
    ],
    ids=["excluded", "zipped"],
)
def test_seeds_that_a_sweep_does_not_combine_with_a_value_are_not_missing(sweep, grid, missing, tmp_path):
    record = SweepRecord.of(sweep)
    record.set_grid(grid)
    record.write(sweep)
    jobs = {("a", "0"): 0, ("a", "1"): 1, ("b", "0"): 3, ("b", "1"): 4}  # of the original grid
    for index in range(grid.size):
        values = grid.values(index)
        shutil.rmtree(sweep / "new" / str(index), ignore_errors=True)
        before = jobs.get((values["choice"], values["seed"]))
        if before is not None:
            shutil.copytree(sweep / str(before), sweep / "new" / str(index), symlinks=True)
    record.write(sweep / "new")
    results = load(sweep / "new")
    results.export(tmp_path / "data.parquet")
    for source in (results, load(tmp_path / "data.parquet")):
        seeds = {run.varied["choice"]: source.seeds_near(run) for run in source}
        assert {choice: len(planned) - 2 for choice, planned in seeds.items()} == missing


def test_a_sweep_without_a_grid_is_grouped_by_the_overrides_of_its_jobs(sweep):
    record = json.loads((sweep / "sweep.json").read_text())
    (sweep / "sweep.json").write_text(json.dumps({**record, "grid": None}))
    assert RunGroups.of(load(sweep), ["choice"]).labels == ["a", "b"]


def test_runs_of_another_program_form_a_named_group_without_missing_seeds(sweep, tmp_path_factory):
    from torch.utils.tensorboard import SummaryWriter

    logs = tmp_path_factory.mktemp("place") / "logs"
    for number in (1, 2):
        with SummaryWriter(logs / f"PPO_{number}") as writer:
            writer.add_scalar("eval/mean_reward", 7.0 + number, 4)
    groups = RunGroups.of(load([sweep, logs]), ["choice"])
    scores = scores_by_label(groups, ScoreDefinition(["eval/return", "eval/mean_reward"], steps=1))
    assert list(scores) == ["a", "b", "logs PPO"]
    assert scores["logs PPO"] == [8, 9]
    assert len(scores["a"]) == 3


class Supervised(trieye.TrieyeConfig):
    """The config of a loop without replay or agent."""

    lr: float = 0.1
    layers: dict[str, int] = {}


def fit(root, name, *, app="fit", **settings):
    settings = {"runtime": {"kind": "local"}, "sinks": {}, "persistence": {"root_data_dir": str(root)}, **settings}
    with trieye.Run(Supervised(app_name=app, run_name=name, **settings)) as run:
        run.log({"eval/return": 1.0}, step=4)
    return run.dir


@pytest.mark.long
def test_params_and_labels_omit_unused_config_sections(tmp_path):
    tensorboard_sinks = {"tensorboard": {"enabled": True}}
    runs = [fit(tmp_path, "slow", lr=0.1, sinks=tensorboard_sinks), fit(tmp_path, "fast", lr=0.2, seed=1)]
    foreign = fit(tmp_path, "script", app="script", sinks={"log_config": False})
    groups = RunGroups.of(load([*runs, foreign]))
    assert groups.labels == ["lr=0.1", "lr=0.2", "script"]
    assert list(groups.differences()) == ["lr"]
    slow, *_ = groups.results.runs
    assert dict(slow.params) == {"seed": 0, "lr": 0.1, "loop.objective": "eval/return", "loop.mode": "max"}
    (file,) = runs[0].glob("*.hparams")
    assert params_of([file])[0].keys() == slow.params.keys()


def test_a_changed_section_is_compared_with_the_defaults_of_other_runs(tmp_path):
    runs = [fit(tmp_path, "default"), fit(tmp_path, "small", replay={"capacity": 10})]
    results = load(runs)
    assert RunGroups.of(results).labels == ["capacity=100000", "capacity=10"]
    assert [len(results.where({"replay.capacity": capacity})) for capacity in (10, 100_000)] == [1, 1]
    assert [run.params.get("replay.capacity") for run in results] == [None, 10]
    assert set(results.slice("replay.capacity", at=results.runs[0])) == {10, 100_000}


def test_groups_that_differ_only_in_a_late_key_have_distinct_labels(tmp_path):
    layers = {f"layer{number}": number for number in range(8)}
    runs = [fit(tmp_path, str(width), layers={**layers, "layer7": width}) for width in (5, 6)]
    other_dir = fit(tmp_path, "other", layers={key: value + 1 for key, value in layers.items()})
    labels = RunGroups.of(load([*runs, other_dir])).labels
    assert len(set(labels)) == 3
    assert [label.rpartition(" ")[2] for label in labels[:2]] == ["layer7=5", "layer7=6"]


@pytest.mark.parametrize(
    ("params", "labels"),
    [
        ([{"ppo.lr": 0.1}, {"ppo.lr": 0.2}, {"dqn.lr": 0.1}], ["ppo.lr=0.1", "ppo.lr=0.2", "dqn.lr=0.1"]),
        ([{"a.lr": 0.1, "b.lr": 0.2}, {"a.lr": 0.2, "b.lr": 0.1}], ["a.lr=0.1 b.lr=0.2", "a.lr=0.2 b.lr=0.1"]),
        ([{"a.lr": 0.12345671}, {"a.lr": 0.12345672}, {"a.lr": 1e-4}], ["lr=0.12345671", "lr=0.12345672", "lr=0.0001"]),
        ([{"a.lr": 0.12345671}, {"a.lr": 0.5}], ["lr=0.123457", "lr=0.5"]),
    ],
)
def test_labels_contain_the_full_key_and_all_digits_only_where_needed(params, labels):
    assert RunGroups.of(results_of(params), sorted({key for values in params for key in values})).labels == labels


@pytest.mark.parametrize("values", [(1, 2), (0.12345671, 0.12345672)])
def test_groups_of_configs_with_similar_labels_stay_separate(values):
    constants = {f"k{number}": 0 for number in range(6)}
    results = results_of([{**constants, "group": group, "lr": lr} for group in values for lr in (0.1, 0.2)])
    by_label = RunGroups.by_config(results, [*constants, "group"])
    assert [groups.labels for groups in by_label.values()] == [["lr=0.1", "lr=0.2"]] * 2
