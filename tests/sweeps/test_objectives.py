"""Objectives of a sweep: from return values or points, one or several, and jobs that provide none."""

import math
from functools import partial

import pytest
from omegaconf import OmegaConf

import trieye
from trieye.config.hydra.axes import dimensions_of
from trieye.config.sweeper import SweeperConfig
from trieye.exceptions import ConfigurationError
from trieye.results import load
from trieye.sweeps.jobs import RUN, Done, JobRecord
from trieye.sweeps.objectives import ObjectiveNames, Objectives, pareto_optimal
from trieye.sweeps.record import LOCK, SWEEP, SweepRecord
from trieye.sweeps.search import OptunaSearch, SearchQueue
from trieye.sweeps.space import SearchSpace
from trieye.sweeps.status import status_of
from trieye.sweeps.sweeper import SweepError


@pytest.fixture
def logging_task(tmp_path):
    """A task that logs the points 1, 5, 2 and 3 of the objective to a run, and returns 7."""

    def task(cfg, **options):
        del cfg
        config = trieye.TrieyeConfig(
            app_name="app", run_name="run", **options, runtime={"kind": "local"},
            persistence={"root_data_dir": str(tmp_path / "data")},
            sinks={"mlflow": {"enabled": False}, "tensorboard": {"enabled": False}, "console": {"enabled": False}},
        )  # fmt: skip
        with trieye.Run(config) as run:
            for step, value in enumerate([1.0, 5.0, 2.0, 3.0]):
                run.log({"eval/return": value}, step=step)
        return 7.0

    return task


@pytest.mark.parametrize("launcher", ["trieye", "basic"])
def test_the_objective_is_the_return_value_or_derived_from_points(sweep, logging_task, launcher):
    words = ["+x=1", "hydra.mode=MULTIRUN", f"hydra/launcher={launcher}"]
    sweep.search(logging_task, *words, "hydra.sweeper.objective=last")
    assert sweep.record(0).objective == 3.0
    run_dir = sweep.directory / "0" / RUN
    scopes = {"return": 7.0, "last": 3.0, "best": 5.0, "mean:2": 2.5, "mean:100": 2.75}
    values = {
        scope: Objectives(SweeperConfig(objective=scope)).applied(Done(0, 7.0), run_dir).value for scope in scopes
    }
    assert values == scopes
    assert Objectives(SweeperConfig(objective="best", mode="min"), "min").applied(Done(0, 7.0), run_dir).value == 1.0


def test_a_search_that_would_maximize_the_loss_of_its_runs_ends_at_the_first_job(sweep, logging_task):
    options = ["hydra.sweeper.objective=last", "hydra.sweeper.kind=optuna", "hydra.sweeper.num_trials=1"]
    words = ["+x=1,2", "hydra.mode=MULTIRUN", *options]
    task = partial(logging_task, loop={"mode": "min"})
    with pytest.raises(ConfigurationError, match=r"mode=min, but the sweep has the mode max; set hydra\.sweeper\.mode"):
        sweep.search(task, *words)
    sweep.search(task, *words, "hydra.sweeper.mode=min")
    assert (SweepRecord.of(sweep.directory).mode, sweep.record(0).objective) == ("min", 3.0)


def test_objectives_from_points_require_jobs_with_a_run(sweep):
    with pytest.raises(ConfigurationError, match=r"=last reads the points .* set hydra\.sweeper\.objective=return"):
        sweep.search(lambda cfg: cfg.x, "+x=1,2,3", "hydra.sweeper.kind=random", "hydra.sweeper.objective=last")
    assert sweep.states(3) == ["failed", None, None]


def test_a_directory_with_jobs_of_another_launcher_is_rejected_and_unchanged(sweep):
    (sweep.directory / "7/.hydra").mkdir(parents=True)
    with pytest.raises(ConfigurationError, match="contains jobs of another launcher, such as 7; for another sweep,"):
        sweep.search(lambda cfg: cfg.x, "+x=1,2,3")
    assert sorted(path.name for path in sweep.directory.iterdir() if path.name != LOCK) == ["7"]
    (sweep.directory / "7").rename(sweep.directory / "seven")
    sweep.launch(lambda _: 1, ["+x=1"], "hydra.launcher.isolate=none")  # of a sweeper that records no sweep
    sweep.search(lambda cfg: cfg.x, "+x=1,2,3")
    assert sweep.states(3) == ["completed"] * 3


@pytest.mark.parametrize("options", [[], ["hydra.sweeper.kind=random", "hydra.sweeper.num_trials=2"]])
def test_a_rejected_command_does_not_replace_a_lost_record_of_a_sweep(sweep, options):
    sweep.search(lambda cfg: cfg.x, "+x=1,2", "+y=1", *options)
    (sweep.directory / SWEEP).write_bytes(b"")  # as after a power failure
    with pytest.raises(ConfigurationError, match=r"job \d was '\+x=\d \+y=1' and would be '\+x=\d \+y=2'"):
        sweep.search(lambda cfg: cfg.x, "+x=1,2", "+y=2", *options)
    assert SweepRecord.read(sweep.directory) is None
    sweep.search(lambda cfg: cfg.x, "+x=1,2", "+y=1", *options)
    assert [job.how for job in status_of(sweep.directory)] == ["completed"] * 2


def test_a_rejected_sweep_deletes_no_files(sweep):
    sweep.directory.mkdir()
    (sweep.directory / "notes.txt").write_text("mine")
    with pytest.raises(ConfigurationError, match=r"has no loop\.objective"):
        sweep.search(lambda cfg: cfg.x, "+x=1,2", "hydra.sweeper.kind=optuna", "hydra.sweeper.pruner=median")
    assert (sweep.directory / "notes.txt").read_text() == "mine"


def test_numbers_without_a_float_and_missing_values_fail_no_job(sweep):
    jobs = sweep.launch(lambda cfg: RETURNED[cfg.x], ["+x=0", "+x=1", "+x=2"], "hydra.launcher.isolate=none")
    assert [job.status.name for job in jobs] == ["COMPLETED"] * 3
    objectives = [sweep.record(index).objectives for index in range(3)]
    assert objectives == [{"objective": math.inf}, {"loss": -math.inf}, {"loss": 2.0}]
    assert sweep.record(2).objective == 2.0
    assert sweep.states(3) == ["completed"] * 3


def test_a_changed_config_is_reported_when_a_sweep_grows(sweep, capfd):
    sweep.search(lambda cfg: cfg.cpus, "+x=1", "hydra.sweeper.num_trials=3")
    err = capfd.readouterr().err
    assert "hydra.sweeper.num_trials=3 has no effect without hydra.sweeper.kind=random" in err
    assert "the config changed" not in err
    sweep.search(lambda cfg: cfg.cpus, "+x=1,2")
    assert "the config changed" not in capfd.readouterr().err
    sweep.values = "what: nothing\ncpus: 2\n"
    sweep.search(lambda cfg: cfg.cpus, "+x=1,2,3")
    assert "the config changed since its last start (cpus: 1 -> 2); completed jobs keep" in capfd.readouterr().err


RETURNED = [10**400, {"loss": -(10**400)}, OmegaConf.create({"loss": 2, "gap": "???"})]


@pytest.mark.long
def test_a_search_with_several_objectives_resumes_with_its_proposals(sweep):
    words = ["hydra.sweeper.kind=optuna", "hydra.sweeper.mode=[min,max]"]
    task = lambda cfg: (cfg.x**2, -((cfg.x - 1) ** 2))  # noqa: E731
    first = sweep.search(task, "+x=interval(-2,2)", *words, "hydra.sweeper.num_trials=2")
    extended = sweep.search(task, "+x=interval(-2,2)", *words, "hydra.sweeper.num_trials=4")
    assert extended[:2] == first
    space = SearchSpace.of(dimensions_of(["+x=interval(-2,2)"]))
    at_once = OptunaSearch(space, SweeperConfig(kind="optuna"), "min", "max")
    for index, overrides in enumerate(extended):
        assert at_once.ask(index) == overrides
        at_once.tell(index, overrides, list(sweep.record(index).objectives.values()), is_pruned=False)


def test_a_wrong_number_of_objectives_fails_at_the_first_job(sweep):
    with pytest.raises(ConfigurationError, match=r"mode=\[max,min\] expects 2 numbers, but the job returned a value"):
        sweep.search(lambda cfg: cfg.x, "+x=1,2", "hydra.sweeper.mode=[max,min]")
    assert sweep.states(2) == ["failed", None]


@pytest.mark.parametrize("words", [[], ["hydra/launcher=basic"], ["hydra.sweeper.kind=optuna"]])
def test_several_objectives_are_compared_by_name_and_the_pareto_optimal_jobs_shown(sweep, words, capfd):
    outcomes = iter([{"acc": 1, "time": 9}, {"time": 2, "acc": 3}, {"acc": 2, "loss": 1}])
    words = [*words, "hydra.sweeper.mode=[max,min]", "hydra.sweeper.num_trials=3"]
    with pytest.raises(SweepError, match=r"returned acc, loss, but hydra\.sweeper\.mode belongs to acc, time of the"):
        sweep.search(lambda _: next(outcomes), "+x=0,1,2", *words)
    assert sweep.states(3) == ["completed", "completed", "failed"]
    assert list(sweep.record(1).objectives.items()) == [("acc", 3.0), ("time", 2.0)]
    assert SweepRecord.of(sweep.directory).summary["pareto_optimal"] == [1]
    assert "1 Pareto-optimal of 3 jobs (acc max, time min)" in capfd.readouterr().out


def completed(directory, index, objectives):
    """Write and return the record of a completed job."""
    record = JobRecord(index=index, overrides=[f"x={index}"], state="completed")
    record.rate(Done(index, objectives))
    record.write(directory / str(index))
    return record


def test_a_search_resumes_with_the_objectives_of_earlier_jobs_in_one_order(tmp_path):
    class Recorder(OptunaSearch):
        def tell(self, index, overrides, values, *, is_pruned):
            told.append((index, values))
            super().tell(index, overrides, values, is_pruned=is_pruned)

    told, objectives = [], [{"acc": 1.0, "time": 2.0}, {"time": 20.0, "acc": 10.0}]
    records = {index: completed(tmp_path, index, objectives[index]) for index in (0, 1)}
    options = SweeperConfig(kind="optuna", mode=["max", "min"])
    search = Recorder(SearchSpace.of(dimensions_of(["x=0,1"])), options, "max", "min")
    SearchQueue(search, 2, records, tmp_path, None, num_objectives=2)
    assert told == [(0, [1.0, 2.0]), (1, [10.0, 20.0])]


def test_objectives_of_an_earlier_start_with_other_names_are_reported_and_stay_recorded(tmp_path):
    for index, objectives in enumerate([{"acc": 1.0, "time": 2.0}, {"acc": 1.0, "loss": 3.0}]):
        completed(tmp_path, index, objectives)
    done = ObjectiveNames(tmp_path, 2).applied(Done(1))
    assert "belongs to acc, time of the first job" in str(done.error)
    record = JobRecord.read(tmp_path / "1")
    assert (record.state, list(record.objectives)) == ("completed", ["acc", "loss"])


def test_jobs_without_a_finite_objective_are_ranked_last_and_those_without_any_have_none(sweep, capfd):
    words = ["+x=1,nan,3,9,inf,5", "hydra.sweeper.exclude=[{x: 5}]"]
    sweep.search(lambda cfg: None if cfg.x == 9 else float(cfg.x), *words)
    output = capfd.readouterr().out
    assert "best of 5 jobs (max)" in output
    rows = [row.split()[1:] for row in output.splitlines() if row.strip()[:1].isdigit()]
    assert rows == [["3", "3"], ["1", "1"], ["nan", "nan"], ["9", "-"], ["inf", "inf"]]
    assert SweepRecord.of(sweep.directory).summary["best"] == 2
    jobs = status_of(sweep.directory)
    shown = [(1.0, "1"), (None, "nan"), (3.0, "3"), (None, ""), (None, "inf")]
    assert [(job.objective, job.objective_text) for job in jobs] == shown
    results = load(sweep.directory)
    assert "1 completed job (3) returned no number and wrote no metrics" in str(results.problems)
    assert results.diverged("objective")[str(sweep.directory / "1")] == 0


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "number"),
    [
        (["hydra.sweeper.kind=optuna", "hydra.sweeper.num_trials=6", "hydra.sweeper.sampler=random"], float),
        (["hydra.sweeper.mode=[max,min]"], lambda x: [x, 1]),
    ],
)
def test_a_job_without_a_number_fails_alone_unless_no_job_has_one(sweep, words, number):
    def task(cfg):
        return None if cfg.x == 2 and sweep.states(1) == ["completed"] else number(cfg.x)

    with pytest.raises(ConfigurationError, match=r"job 0: .* but the job returned None"):
        sweep.search(lambda _: None, "+x=1,2,3", *words)
    assert sweep.states(2) == ["failed", None]
    for _ in range(2):
        with pytest.raises(SweepError, match=r"of \d jobs failed; .* but the job returned None"):
            sweep.search(task, "+x=1,2,3", *words)
        jobs = status_of(sweep.directory)
        assert {job.how for job in jobs} == {"completed", "failed"}
        assert {value for job in jobs if job.how == "failed" for value in job.values.values()} == {"2"}


def test_dominated_values_and_nan_are_not_pareto_optimal():
    values = {0: (1.0, 1.0), 1: (2.0, 0.0), 2: (0.0, 0.0), 3: (2.0, 0.0), 4: (float("nan"), 9.0), 5: (3.0,)}
    assert pareto_optimal(values, ["max", "max"]) == [0, 1, 3]
    assert pareto_optimal(values, ["min", "min"]) == [2]
    assert pareto_optimal({}, ["min", "min"]) == []


def test_the_numbers_of_a_return_value_have_names():
    assert Done(0, {"a": 1, "b": True, "c": "x", "d": 2.5}).numbers == {"a": 1.0, "d": 2.5}
    assert Done(0, (1, 2.0)).numbers == {"objective_0": 1.0, "objective_1": 2.0}
    assert Done(0, 3.0).numbers == {}


@pytest.mark.parametrize(
    ("mode", "returned", "message"),
    [
        ("max", {"a": 1.0, "b": 2.0}, "compares jobs by one number, but the job returned 2 numbers: a, b"),
        ("max", None, "but the job returned None; return a number"),
        ("max", "3.5", "but the job returned a value of type str; return a number"),
        (["max", "min"], [1, None, 3], "but the job returned 2 numbers: objective_0, objective_2 in a list of 3;"),
        (
            ["max", "min"],
            1,
            "mode=[max,min] expects 2 numbers, but the job returned a value of type int;",
        ),
    ],
)
def test_the_error_of_a_search_shows_what_a_job_returned(mode, returned, message, tmp_path):
    error = Objectives(SweeperConfig(kind="optuna"), mode).applied(Done(0, returned), tmp_path).error
    assert message in str(error)


def test_a_search_accepts_a_dict_with_one_number(tmp_path):
    done = Done(0, {"loss": 1.0})
    assert Objectives(SweeperConfig(kind="optuna")).applied(done, tmp_path) == done
