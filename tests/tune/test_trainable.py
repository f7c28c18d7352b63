import shutil
import signal
from pathlib import Path

import pytest
import ray
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from pyarrow.fs import FSSpecHandler, PyFileSystem
from ray import tune
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.utils.util import validate_save_restore
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

import trieye
from tests.training.algorithms import DQN, TrainConfig
from tests.tune.walks import Agreeing, FallsOver, Stumbles, Unlucky, Walk, curve_in
from trieye.exceptions import CheckpointError, ConfigurationError
from trieye.files.run_record import RunRecord
from trieye.sweeps.jobs import OUTPUT, JobRecord
from trieye.sweeps.record import SweepRecord
from trieye.sweeps.status import status_of
from trieye.tune.study import StudyError
from trieye.tune.trainable import StudyPlace, as_trainable

POPULATION = {"enabled": True, "scheduler": "pbt", "space": {"walk.pace": "1,2,3"}, "num_trials": 3}

pytestmark = [pytest.mark.usefixtures("ray_cluster"), pytest.mark.filterwarnings("ignore")]


class Pausing(FIFOScheduler):
    """Pauses a trial after each of its results, so that each iteration may run in another process or after others."""

    def on_trial_result(self, tune_controller, trial, result):
        return TrialScheduler.PAUSE


@pytest.fixture
def study_place(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_AIR_NEW_OUTPUT", "0")
    monkeypatch.setenv("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGUSR1)}
    yield StudyPlace(tmp_path / "study", tmp_path)
    for number, handler in before.items():  # Tune does not restore them
        signal.signal(number, handler)


def fit(trainable, study_place, paces, *, storage=None, **options):
    """Run a trial for each pace, and return their results in order."""
    run_config = tune.RunConfig(
        name="tune",
        verbose=0,
        checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=1, num_to_keep=2),
        **(storage or {"storage_path": str(study_place.directory)}),
    )
    tune_config = tune.TuneConfig(metric="eval/return", mode="max", **options)
    space = {"walk.pace": tune.grid_search(paces)}
    return tune.Tuner(trainable, param_space=space, tune_config=tune_config, run_config=run_config).fit()


def run_dir_of(config, index):
    return config.persistence.get_run_base_dir().with_name(f"{config.run_name}_{index}")


@pytest.mark.long
def test_a_trainable_and_an_engine_pass_tunes_own_check_of_save_and_restore(walks_config, dqn_config):
    assert validate_save_restore(as_trainable(Walk, walks_config("walk", steps=100)))
    assert validate_save_restore(as_trainable(DQN, dqn_config))


def test_a_trainable_implements_the_interface_of_tune(walks_config, tmp_path):
    trainable = as_trainable("tests.tune.walks:Walk", walks_config("walk"))
    assert issubclass(trainable, tune.Trainable)
    assert trainable.__name__ == "WalkTrainable"
    instance = trainable({"walk": {"pace": 2.0}, "walk.legs": 1})
    assert (instance.train()["eval/return"], instance.train()["training_iteration"]) == (10.0, 2)
    saved = instance.save(str(tmp_path / "saved"))
    assert saved.metrics["step"] == 10
    state = instance.get_state()
    assert (state["iteration"], state["last_result"]["step"]) == (2, 10)
    instance.train()
    instance.restore(saved.checkpoint)  # a bare checkpoint, without results: the counters are in it
    assert instance.training_iteration == 2
    assert instance.train()["step"] == 15
    assert instance.train_buffered(60.0, 10)[-1]["done"]
    assert instance.export_model("txt", str(tmp_path)) == {"position.txt": str(tmp_path / "position.txt")}
    assert (tmp_path / "position.txt").read_text() == "40.0"
    instance.stop()


def test_an_unreadable_state_leaves_the_counters_unchanged(walks_config, tmp_path):
    trainable = as_trainable(Walk, walks_config("walk"))({})
    trainable.train()
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="contains no checkpoint"):
        trainable.restore(str(tmp_path / "empty"))
    assert trainable.training_iteration == 1
    assert trainable.train()["step"] == 10
    trainable.reset({"walk.pace": 5.0})
    assert (trainable.training_iteration, trainable.get_state()["last_result"]) == (0, None)
    trainable.stop()


def test_invalid_configs_and_a_missing_study_directory_are_named(walks_config, tmp_path):
    with pytest.raises(ConfigurationError, match="would never stop"):
        as_trainable(Walk, walks_config(steps=None))
    with pytest.raises(ConfigurationError, match="no key 'pac' in walk; did you mean 'pace'"):
        as_trainable(Walk, walks_config())({"walk.pac": 1})
    elsewhere = StudyPlace(tmp_path / "study", tmp_path / "elsewhere")
    with pytest.raises(ConfigurationError, match="elsewhere, which does not exist on this machine"):
        as_trainable(Walk, walks_config("away"), elsewhere)({})
    assert trieye.as_trainable is as_trainable


@pytest.mark.long
@pytest.mark.parametrize("kind", [Walk, Agreeing])
def test_trials_that_alternate_in_one_process_do_not_mix(kind, walks_config, study_place):
    config = walks_config("turns")
    results = fit(
        as_trainable(kind, config, study_place), study_place, [1.0, 2.0, 3.0],
        scheduler=Pausing(), reuse_actors=True, max_concurrent_trials=1,
    )  # fmt: skip
    assert [result.metrics["eval/return"] for result in results] == [40.0, 80.0, 120.0]
    pids = set()
    for index, pace in enumerate([1.0, 2.0, 3.0]):
        run_dir = run_dir_of(config, index)
        assert curve_in(run_dir) == [(step, 2 * pace * step) for step in range(1, 21)]
        record = RunRecord.read(run_dir / "run.json")
        assert (record.attempt, record.status, record.group) == (4, "FINISHED", str(study_place.directory))
        pids |= {value for _, value in curve_in(run_dir, "pid")}
        printed = (study_place.directory / str(index) / OUTPUT).read_text()
        assert f"turns_{index}" in printed
        assert not any(f"turns_{other}" in printed for other in range(3) if other != index)
    assert len(pids) == 1
    if kind is Agreeing:
        reused = [value for index in range(3) for _, value in curve_in(run_dir_of(config, index), "reused")]
        assert set(reused) == {0.0, 1.0}


@pytest.mark.long
def test_trials_run_in_the_directory_of_the_study_and_continue_in_other_processes_by_a_remote_storage(
    walks_config, study_place, tmp_path
):
    class Where(Walk):
        def evaluate(self):
            return {"eval/return": self.position * (Path.cwd() == study_place.working_dir)}

    bucket = DirFileSystem(path=str(tmp_path / "bucket"), fs=LocalFileSystem(auto_mkdir=True))
    storage = {"storage_path": "studies", "storage_filesystem": PyFileSystem(FSSpecHandler(bucket))}
    config = walks_config("stored")
    results = fit(
        as_trainable(Where, config, study_place), study_place, [1.0, 2.0], storage=storage, scheduler=Pausing(),
        reuse_actors=False,
    )  # fmt: skip
    assert [result.metrics["eval/return"] for result in results] == [40.0, 80.0]
    assert len(list((tmp_path / "bucket/studies").rglob("checkpoint_step_*/MANIFEST.json"))) == 4
    for index, pace in enumerate([1.0, 2.0]):
        assert curve_in(run_dir_of(config, index)) == [(step, 2 * pace * step) for step in range(1, 21)]
        assert len({pid for _, pid in curve_in(run_dir_of(config, index), "pid")}) == 4


@pytest.mark.long
def test_trials_recover_from_errors_deaths_and_damaged_checkpoints(walks_config, study_place, monkeypatch, capsys):
    monkeypatch.chdir(study_place.working_dir)
    config = walks_config("unlucky", tune={"enabled": True, "search": "grid", "space": {"walk.pace": "1,2,3,4"}})
    config = config.model_copy(update={"tune": config.tune.model_copy(update={"num_trials": 1})})
    assert trieye.run_experiment(Unlucky, config).objective == 160.0
    study = study_place.working_dir / "multirun/unlucky"
    jobs = {job.index: job for job in status_of(study)}
    assert [jobs[index].how for index in range(4)] == ["completed"] * 4
    assert [jobs[index].record.deaths for index in range(4)] == [0, 1, 1, 2]
    for index, pace in enumerate([1.0, 2.0, 3.0, 4.0]):
        assert curve_in(run_dir_of(config, index)) == [(step, 2 * pace * step) for step in range(1, 21)]
        evaluated = [(step, 2 * pace * step) for step in (5, 10, 15, 20)]
        assert curve_in(run_dir_of(config, index), "eval/return") == evaluated
    printed = capsys.readouterr().err
    for reason in ("trial 1 pace=2: RuntimeError: bad luck", "trial 2 pace=3: its process died", "checkpoint_step_10"):
        assert reason in printed


@pytest.mark.long
def test_a_sampler_proposes_trials_that_a_scheduler_compares(walks_config, study_place, monkeypatch):
    monkeypatch.chdir(study_place.working_dir)
    tune_options = {"enabled": True, "search": "optuna", "scheduler": "asha", "reduction_factor": 2, "num_trials": 4}
    config = walks_config("asked", tune=tune_options | {"space": {"walk.pace": "interval(1,10)"}})
    result = trieye.run_experiment(Walk, config)
    jobs = status_of(study_place.working_dir / "multirun/asked")
    assert {job.how for job in jobs} <= {"completed", "pruned"}
    assert result.objective == max(job.record.objective for job in jobs)


def test_ended_trials_missing_in_the_state_of_tune_are_not_retrained(walks_config, study_place, monkeypatch):
    monkeypatch.chdir(study_place.working_dir)
    study, config = study_place.working_dir / "multirun/forgotten", walks_config("forgotten")

    def run_study(num_trials):
        options = {"enabled": True, "search": "random", "space": {"walk.pace": "1,2,3,4,5"}, "num_trials": num_trials}
        return trieye.run_experiment(Walk, walks_config("forgotten", tune=options))

    run_study(3)
    pruned = JobRecord.read(study / "1")
    pruned.state = "pruned"
    pruned.write(study / "1")
    shutil.rmtree(run_dir_of(config, 2) / "checkpoints")  # nothing is left of the end of this trial
    ended_records = [(study / f"{index}/status.json").read_bytes() for index in (0, 1)]
    shutil.rmtree(study / "tune")
    result = run_study(4)
    assert [(study / f"{index}/status.json").read_bytes() for index in (0, 1)] == ended_records
    assert [job.how for job in status_of(study)] == ["completed", "pruned", "completed", "completed"]
    runs = [RunRecord.read(run_dir_of(config, index) / "run.json") for index in range(4)]
    assert [run.attempt for run in runs] == [1, 1, 2, 1]
    assert result.objective == max(JobRecord.read(study / str(index)).objective for index in (0, 2, 3))


@pytest.mark.canary
@pytest.mark.long
def test_a_population_continues_without_a_failed_trial(walks_config, study_place, monkeypatch):
    monkeypatch.chdir(study_place.working_dir)
    config = walks_config("herd", tune={**POPULATION, "max_failures": 0})
    with pytest.raises(StudyError, match="the last one fell over"):
        trieye.run_experiment(FallsOver, config)
    jobs = status_of(study_place.working_dir / "multirun/herd")
    assert [job.how for job in jobs] == ["completed", "failed", "completed"]


@pytest.mark.long
def test_a_trial_whose_process_dies_while_copying_another_is_retried(walks_config, study_place, monkeypatch):
    monkeypatch.chdir(study_place.working_dir)
    config = walks_config("stumbles", tune={**POPULATION, "num_cpus": 2})
    trieye.run_experiment(Stumbles, config)
    jobs = status_of(study_place.working_dir / "multirun/stumbles")
    assert [job.how for job in jobs] == ["completed"] * 3
    assert sum(job.record.deaths > 0 for job in jobs) == 1
    for index in range(3):
        assert [step for step, _ in curve_in(run_dir_of(config, index))] == list(range(1, 21))


@ray.remote(max_retries=0)
def train_in_group(config):
    trieye.run_experiment(DQN, config)


@pytest.mark.long
def test_explorers_of_a_trial_run_inside_its_placement_group(tmp_path):
    config = TrainConfig(
        agent={"kind": "dqn", "rollout_steps": 8, "batch_size": 8, "learning_starts": 16},
        env={"id": "CartPole-v1", "eval_episodes": 1},
        explorer={"num": 1, "num_cpus": 1},
        run_name="trial",
        sinks={},
        persistence={"root_data_dir": str(tmp_path)},
        loop={"axis": "env_steps", "env_steps": 64},
    )
    bundles = as_trainable(DQN, config).default_resource_request({}).bundles
    assert bundles == [{"CPU": 1}, {"CPU": 1}]  # all that this Ray has
    group = ray.util.placement_group(bundles)
    try:
        strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0)
        trained = train_in_group.options(num_cpus=1, scheduling_strategy=strategy).remote(config)
        done, _ = ray.wait([trained], timeout=90)
        assert done, "its explorer was not scheduled"
        ray.get(trained)
    finally:
        ray.util.remove_placement_group(group)


@pytest.mark.long
def test_a_study_ends_when_a_trial_reaches_its_target_and_is_not_continued(
    walks_config, study_place, monkeypatch, capsys
):
    monkeypatch.chdir(study_place.working_dir)
    options = {"enabled": True, "search": "grid", "num_trials": 1, "space": {"walk.pace": "1,50,2"}, "target": 1e6}
    config = walks_config("goal", tune=options, steps=10**7, evaluate_every_steps=1000)
    first = trieye.run_experiment(Walk, config)
    assert (first.objective, first.step, first.run_dir) == (1e6, 10_000, run_dir_of(config, 1))
    assert RunRecord.read(first.run_dir / "run.json").status == "FINISHED"
    jobs = status_of(study_place.working_dir / "multirun/goal")
    pruned = ("pruned", "tune.target reached")
    assert [(job.how, job.reason) for job in jobs] == [pruned, ("completed", None), pruned]
    assert jobs[2].record is None  # it never started
    summary = SweepRecord.of(study_place.working_dir / "multirun/goal").summary
    assert (summary["completed"], summary["pruned"]) == (1, 2)
    capsys.readouterr()
    assert trieye.run_experiment(Walk, config).run_dir == first.run_dir
    assert "'goal' has ended: tune.target reached" in capsys.readouterr().err
    assert status_of(study_place.working_dir / "multirun/goal") == jobs


def test_a_study_whose_trials_cannot_be_scheduled_is_rejected(walks_config, study_place, monkeypatch):
    monkeypatch.chdir(study_place.working_dir)
    tune_options = {"enabled": True, "scheduler": "none", "space": {"walk.pace": "1,2"}, "num_cpus": 3, "time_s": 20}
    with pytest.raises(ConfigurationError, match=r"needs more than Ray has \(CPU 3 of 2\); lower tune.num_cpus"):
        trieye.run_experiment(Walk, walks_config("large", tune=tune_options))
