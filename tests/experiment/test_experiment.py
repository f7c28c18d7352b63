import json
import random
import shutil
import signal
import sys
import time
from concurrent.futures import Future
from contextlib import closing

import numpy as np
import pytest
import torch

import trieye
from tests.curves import mlflow_runs
from trieye.checkpoints.store import CheckpointStore
from trieye.config.names import check_inside
from trieye.config.sinks import SinksConfig
from trieye.exceptions import CheckpointError, ConfigurationError, RunClosedError
from trieye.files.run_record import RunRecord
from trieye.history.history import History
from trieye.history.table import read_history
from trieye.journal.journal import Journal
from trieye.stats.operations import LogImage, LogTable


class Walk(trieye.Experiment):
    """A random walk; the objective declines after step 30, so that the best state is not the last."""

    instances = []

    def setup(self, config):
        self.position = np.zeros(2)
        self.steps_done = 0
        self.evaluations = 0
        self.cleaned = False
        Walk.instances.append(self)

    def step(self):
        self.position += np.random.rand(2) + random.random()  # noqa: NPY002 - the generators that the loop saves
        self.steps_done += 1
        return {"env_steps": 4, "position": self.position[0], "sometimes": None}

    def evaluate(self):
        self.evaluations += 1
        return {"eval/return": -abs(self.steps_done - 30.0)}

    def save_checkpoint(self, checkpoint_dir):
        return {"position": self.position, "steps_done": self.steps_done}

    def load_checkpoint(self, checkpoint):
        self.position, self.steps_done = checkpoint["position"], checkpoint["steps_done"]

    def cleanup(self):
        self.cleaned = True


class Showing(Walk):
    """A walk that logs images and texts to its run."""

    def setup(self, config):
        super().setup(config)
        self.notes = None if self._run is None else self.run.dir / "notes.txt"

    def step(self):
        self.run.log_image("path", np.zeros((4, 4), np.uint8))
        return super().step()

    def evaluate(self):
        self.notes.write_text(f"evaluated at {self.run.step}")
        self.run.log_artifact(self.notes)
        self.run.log_table("visits", {"x": [1, 2]})
        return super().evaluate()


class InFiles(Walk):
    """A walk that writes its state to files."""

    def save_checkpoint(self, checkpoint_dir):
        (checkpoint_dir / "sub").mkdir()
        np.save(checkpoint_dir / "sub" / "position.npy", self.position)
        (checkpoint_dir / "steps.txt").write_text(str(self.steps_done))

    def load_checkpoint(self, checkpoint):
        self.position = np.load(checkpoint / "sub" / "position.npy")
        self.steps_done = int((checkpoint / "steps.txt").read_text())


def power_cut():
    raise RuntimeError("power cut")


def disturbed(at, disturb, experiment=Walk):
    """Return a subclass that is disturbed once it has done a number of steps."""

    class Disturbed(experiment):
        def step(self):
            if self.steps_done == at:
                disturb()
            return super().step()

    return Disturbed


@pytest.fixture
def loop_config(make_config):
    def make(every=10, **loop):
        return make_config(loop=loop, persistence={"checkpoint_save_freq_steps": every}, run_name=make.name)

    make.name = "run"
    return make


def test_an_experiment_trains_to_its_last_step_and_returns_its_best_checkpoint(loop_config):
    result = trieye.run_experiment(Walk, loop_config(steps=50, evaluate_every_steps=10))
    assert (result.step, result.env_steps, result.objective) == (50, 200, 0.0)
    assert result.stop_reason == "loop.steps=50 done"
    assert Walk.instances[-1].evaluations == 5
    assert Walk.instances[-1].cleaned
    assert result.best_checkpoint.name == "checkpoint_step_30"
    best = trieye.load_checkpoint(result.run_dir)
    assert (best.path, best.step, best.objective) == (result.best_checkpoint, 30, 0.0)
    assert best.objects["experiment"]["state"]["steps_done"] == 30
    assert trieye.load_checkpoint(result.run_dir, "latest").step == 50
    assert trieye.load_checkpoint(result.run_dir, 40).objective == -10.0
    with pytest.raises(CheckpointError, match=r"no checkpoint 7 \(steps: 10, 20, 30, 40, 50\)"):
        trieye.load_checkpoint(result.run_dir, 7)


def test_an_experiment_logs_to_its_run_and_raises_without_one(loop_config):
    result = trieye.run_experiment(Showing, loop_config(steps=4, evaluate_every_steps=2))
    with closing(Journal(result.run_dir / "journal.db")) as journal:
        items, _ = History(journal, result.run_dir / "history").read(0, 10_000)
    shown = [item for item in items if isinstance(item, LogImage | LogTable)]
    assert [(type(item), item.name, item.step) for item in shown] == [
        (LogImage, "path", 1), (LogImage, "path", 2), (LogTable, "visits", 2),
        (LogImage, "path", 3), (LogImage, "path", 4), (LogTable, "visits", 4),
    ]  # fmt: skip
    with pytest.raises(RunClosedError, match="was created without a run; start it with run_experiment"):
        Showing(loop_config(steps=4)).step()


@pytest.mark.parametrize(
    ("loop", "step", "reason"),
    [
        ({"env_steps": 90}, 23, "loop.env_steps=90"),
        ({"time_s": 1e-9}, 1, "loop.time_s"),
        ({"target": -5.0, "evaluate_every_steps": 5, "steps": 100}, 25, "loop.target"),
        ({"target": -31.0, "mode": "min", "evaluate_every_steps": 5, "steps": 12}, 12, "loop.steps"),
    ],
)
def test_the_first_limit_stops_the_experiment(loop_config, loop, step, reason):
    result = trieye.run_experiment(Walk, loop_config(**loop))
    assert result.step == step
    assert reason in result.stop_reason


@pytest.mark.long
@pytest.mark.parametrize("experiment", [Walk, InFiles])
def test_a_restart_after_an_error_ends_bit_identically(loop_config, experiment):
    loop_config.name = "whole"
    trieye.run_experiment(experiment, loop_config(steps=40, evaluate_every_steps=10))
    uninterrupted = Walk.instances[-1].position

    loop_config.name = "cut"
    with pytest.raises(RuntimeError, match="power cut"):
        trieye.run_experiment(disturbed(17, power_cut, experiment), loop_config(steps=40, evaluate_every_steps=10))
    result = trieye.run_experiment(experiment, loop_config(steps=40, evaluate_every_steps=10))
    assert result.step == 40
    assert np.array_equal(Walk.instances[-1].position, uninterrupted)


def attempts(result):
    return RunRecord.read(result.run_dir / "run.json").attempt


@pytest.mark.long
@pytest.mark.parametrize(
    "limit", [{"steps": 20}, {"env_steps": 80}, {"time_s": 1e-9}, {"target": -25.0, "steps": 999}], ids=str
)
def test_a_finished_experiment_restarts_only_with_a_larger_budget(loop_config, capfd, limit):
    config = loop_config(**limit, evaluate_every_steps=5)
    first = trieye.run_experiment(Walk, config)
    again = trieye.run_experiment("no.such:module", config)
    assert again == first
    assert attempts(again) == 1
    assert "run 'run' is finished: loop." in capfd.readouterr().err
    more = trieye.run_experiment(Walk, loop_config(steps=first.step + 10, evaluate_every_steps=5))
    assert (more.step, attempts(more)) == (first.step + 10, 2)


@pytest.mark.long
def test_a_finished_experiment_restarts_for_new_sinks_or_checkpoints(loop_config, make_config):
    def run_again(**changes):
        persistence = {"checkpoint_save_freq_steps": 10, **changes.pop("persistence", {})}
        return trieye.run_experiment(Walk, make_config(loop={"steps": 20}, persistence=persistence, **changes))

    assert attempts(run_again()) == 1
    assert attempts(run_again(sinks={"tensorboard": {"enabled": True}})) == 2  # the run has no checkpoint yet
    assert attempts(run_again(sinks={"tensorboard": {"enabled": True}})) == 2
    assert attempts(run_again(persistence={"load_checkpoint_path": "step:10"})) == 3
    shutil.rmtree(run_again().run_dir / "checkpoints")
    assert attempts(run_again()) == 4


def test_a_finished_experiment_reports_config_changes_and_keeps_its_objective(loop_config, make_config, capfd):
    trieye.run_experiment(Walk, loop_config(steps=5))
    trieye.run_experiment(Walk, make_config(loop={"steps": 5}, seed=7))
    assert "seed: 0 -> 7" in capfd.readouterr().err
    for steps in (5, 9):  # finished, and with a larger budget
        with pytest.raises(ConfigurationError, match=r"loop\.mode=min: the run was rated with loop\.mode=max so far"):
            trieye.run_experiment(Walk, loop_config(steps=steps, mode="min"))


def test_a_run_that_starts_at_its_limit_is_evaluated(loop_config):
    with pytest.raises(RuntimeError, match="power cut"):
        trieye.run_experiment(disturbed(8, power_cut), loop_config(5, steps=10, evaluate_every_steps=100))
    result = trieye.run_experiment(Walk, loop_config(5, steps=5, evaluate_every_steps=100))
    assert (result.step, result.objective, Walk.instances[-1].evaluations) == (5, -25.0, 1)


def test_an_experiment_may_be_named_instead_of_imported(loop_config):
    assert trieye.run_experiment("tests.experiment.test_experiment:Walk", loop_config(steps=5)).step == 5
    for name in ("tests.Walk", ".tests:Walk", ":Walk"):
        with pytest.raises(ConfigurationError, match=rf"'{name}'.*such as 'my_agent\.dqn:DQN'"):
            trieye.run_experiment(name, loop_config(steps=6))


def test_a_missing_package_is_reported_before_a_run_is_created(loop_config, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    config = loop_config(steps=5).model_copy(update={"sinks": SinksConfig(wandb={"enabled": True})})
    with pytest.raises(ConfigurationError, match="wandb, which is not installed"):
        trieye.run_experiment(Walk, config)
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize(
    ("loop", "message"),
    [
        ({}, r"loop\.steps"),
        ({"steps": 5, "background_evaluation": True}, r"loop.background_evaluation: Walk has no evaluate_saved\(\)"),
    ],
)
def test_a_loop_that_cannot_run_is_rejected_before_a_run_is_created(loop_config, tmp_path, loop, message):
    with pytest.raises(ConfigurationError, match=message):
        trieye.run_experiment(Walk, loop_config(**loop))
    assert not (tmp_path / "root").exists()


class SlowSave(Walk):
    """A walk whose time limit passes while it saves a checkpoint for a background evaluation."""

    def evaluate_saved(self, checkpoint):
        evaluation = Future()
        evaluation.set_result({"eval/return": -1000.0})
        return evaluation

    def save_checkpoint(self, checkpoint_dir):
        time.sleep(0.3)
        return super().save_checkpoint(checkpoint_dir)


def test_the_last_state_is_evaluated_if_the_time_is_over_while_a_background_evaluation_starts(loop_config):
    loop = loop_config(time_s=0.2, evaluate_every_steps=1, background_evaluation=True)
    result = trieye.run_experiment(SlowSave, loop)
    walk = Walk.instances[-1]
    assert (walk.evaluations, result.objective) == (1, -abs(walk.steps_done - 30.0))


def test_a_saved_checkpoint_can_be_rated_later(make_config):
    with trieye.Run(make_config(persistence={"keep_last": 1})) as run:
        run.save(step=1, objective="later", x=1)
        run.save(step=2, objective=1.0, x=2)
        run.save(step=3, x=3)
        run.rate(1, 5.0).result()
        with pytest.raises(CheckpointError, match="checkpoint_step_2"):
            run.rate(2, 5.0).result()  # deleted: neither the newest nor the best checkpoint
    best = trieye.load_checkpoint(run.dir, "best")
    assert (best.step, best.objective) == (1, 5.0)


def test_the_seed_determines_the_training(make_config):
    ends = []
    for run_name, seed in (("a", 1), ("b", 1), ("c", 2)):
        trieye.run_experiment(Walk, make_config(run_name=run_name, seed=seed, loop={"steps": 5}))
        ends.append(Walk.instances[-1].position.tolist())
    assert ends[0] == ends[1] != ends[2]


def test_a_missing_step_method_is_named(make_config):
    class Nothing(trieye.Experiment):
        pass

    with pytest.raises(NotImplementedError, match=r"Nothing has no step"):
        trieye.run_experiment(Nothing, make_config(loop={"steps": 1}))


def test_nonfinite_objectives_are_ignored(loop_config, capfd):
    class Diverging(Walk):
        def evaluate(self):
            return {"eval/return": np.float32("nan") if self.steps_done < 20 else np.float32(self.steps_done)}

    result = trieye.run_experiment(Diverging, loop_config(steps=40, evaluate_every_steps=10, target=100.0))
    assert (result.step, result.objective) == (40, 40.0)
    assert "is ignored" in capfd.readouterr().err


def test_an_unknown_objective_is_rejected_with_a_suggestion(loop_config):
    with pytest.raises(ConfigurationError, match=r"loop\.objective=eval/retrn.*did you mean 'eval/return'"):
        trieye.run_experiment(Walk, loop_config(steps=20, evaluate_every_steps=10, objective="eval/retrn"))


def test_a_load_error_names_the_incompatible_experiment(loop_config):
    trieye.run_experiment(Walk, loop_config(steps=10))

    class Other(Walk):
        def load_checkpoint(self, checkpoint):
            raise RuntimeError("size mismatch for weight")

    with pytest.raises(CheckpointError, match="does not fit Other"):
        trieye.run_experiment(Other, loop_config(steps=20))


def test_files_of_save_checkpoint_are_never_dropped(loop_config):
    class Files(Walk):
        returned = staticmethod(lambda directory: directory)

        def save_checkpoint(self, checkpoint_dir):
            (checkpoint_dir / "steps.txt").write_text(str(self.steps_done))
            return self.returned(checkpoint_dir)

        def load_checkpoint(self, checkpoint):
            self.position, self.steps_done = np.zeros(2), int((checkpoint / "steps.txt").read_text())

    trieye.run_experiment(Files, loop_config(steps=10))  # as Ray's Trainable may return the directory
    trieye.run_experiment(Files, loop_config(steps=15))
    assert Files.instances[-1].steps_done == 15
    Files.returned = staticmethod(lambda _directory: {})
    with pytest.raises(
        CheckpointError, match=r"Files.save_checkpoint wrote steps.txt and returned a state; return None"
    ):
        trieye.run_experiment(Files, loop_config(steps=20))


@pytest.mark.parametrize(
    ("method", "value", "message"),
    [
        ("save_checkpoint", None, "return"),
        ("step", None, r"Bad.step\(\) returned None; expected a dict of values; is a `return` missing\?"),
        ("evaluate", 3.0, r"Bad.evaluate\(\) returned 3.0; expected a dict of values\n"),
        ("evaluate", {"eval": {"retrn": 1.0}}, r"returned no value of that name; did you mean 'eval/retrn'"),
        ("step", {"env_steps": 0.5}, r"step\(\) returned env_steps=0.5; expected a whole number >= 0"),
        ("step", {"env_steps": [1, 2]}, r"step\(\) returned env_steps=\[1, 2\]; expected a whole number"),
        ("step", {"updates": -1}, r"step\(\) returned updates=-1; expected a whole number"),
    ],
)
def test_an_unusual_return_value_is_an_error_that_names_the_method(loop_config, method, value, message):
    bad = type("Bad", (Walk,), {method: lambda *_: value})
    with pytest.raises((ConfigurationError, CheckpointError), match=message):
        trieye.run_experiment(bad, loop_config(steps=2, evaluate_every_steps=1))


@pytest.mark.parametrize("loop", [{"axis": "updates", "steps": 10}, {"env_steps": 10}], ids=str)
def test_a_limit_that_nothing_counts_is_an_error(loop_config, loop):
    class Uncounted(Walk):
        def step(self):
            return super().step() | {"env_steps": None}

    name = loop.get("axis", "env_steps")
    with pytest.raises(ConfigurationError, match=rf"loop\..*: Uncounted.step\(\) returned no '{name}'"):
        trieye.run_experiment(Uncounted, loop_config(**loop))


def test_a_nested_evaluation_has_an_objective(loop_config):
    nested = type("Nested", (Walk,), {"evaluate": lambda _self: {"eval": {"return": np.float32(2.5)}, "skipped": None}})
    assert trieye.run_experiment(nested, loop_config(steps=2)).objective == 2.5


def test_a_signal_in_the_last_step_finishes_the_run_and_raises_run_interrupted(loop_config):
    interrupted = disturbed(9, lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(trieye.RunInterrupted, match="was already finished"):
        trieye.run_experiment(interrupted, loop_config(steps=10))
    assert trieye.run_experiment(Walk, loop_config(steps=10)).step == 10


class Episodes(Walk):
    """A walk in episodes of 14 steps; only the ends of episodes resume bit-exactly."""

    length = 14

    @property
    def can_save(self):
        return self.steps_done % self.length == 0


def saved_steps(result):
    checkpoints = (result.run_dir / "checkpoints").glob("checkpoint_step_*")
    return sorted(int(path.name.rpartition("_")[2]) for path in checkpoints)


def evaluated_steps(result):
    table = read_history(result.run_dir)
    names = zip(table["metric"].to_pylist(), table["step"].to_pylist(), strict=True)
    return [step for metric, step in names if metric == "eval/return"]


def test_due_saves_and_evaluations_wait_until_the_experiment_can_be_saved(loop_config):
    config = loop_config(steps=60, evaluate_every_steps=20)
    result = trieye.run_experiment(Episodes, config)
    assert saved_steps(result) == [14, 28, 42, 56, 60]
    assert evaluated_steps(result) == [28, 42, 60]


@pytest.mark.long
def test_overdue_saves_and_evaluations_stop_waiting(loop_config):
    class Endless(Episodes):
        length = 10_000

    config = loop_config(steps=230, every=50, evaluate_every_steps=200)
    result = trieye.run_experiment(Endless, config)
    assert saved_steps(result) == [150, 230]  # due at 50, 100 steps of patience
    assert evaluated_steps(result) == [230]
    loop_config.name = "rare"
    rare = trieye.run_experiment(Endless, loop_config(steps=1000, every=0, evaluate_every_steps=300))
    assert evaluated_steps(rare) == [450, 750, 1000]  # none is skipped


def test_a_signal_saves_at_once_and_the_restart_makes_the_pending_evaluation(loop_config):
    stopped = disturbed(23, lambda: signal.raise_signal(signal.SIGTERM), Episodes)
    config = loop_config(steps=40, evaluate_every_steps=20)
    with pytest.raises(trieye.RunInterrupted, match="its state at step 24 is saved"):
        trieye.run_experiment(stopped, config)
    assert evaluated_steps(trieye.run_experiment(Episodes, config)) == [28, 40]


def test_the_best_objective_of_a_fork_excludes_its_parent(loop_config, make_config):
    trieye.run_experiment(Walk, loop_config(steps=30, evaluate_every_steps=10))
    config = make_config(
        run_name="second",
        loop={"steps": 40, "evaluate_every_steps": 5},
        persistence={"load_checkpoint_path": "run:best", "checkpoint_save_freq_steps": 0},
    )
    result = trieye.run_experiment(Walk, config)
    assert (result.objective, result.best_checkpoint.name) == (-5.0, "checkpoint_step_35")


@pytest.fixture
def forked(loop_config, make_config):
    """Return a function that forks a run at step 10 from a run of twenty steps, and returns its result."""
    trieye.run_experiment(Walk, loop_config(steps=20, evaluate_every_steps=10))

    def make(name, **settings):
        persistence = {"load_checkpoint_path": "run:step:10", "checkpoint_save_freq_steps": 10}
        config = make_config(run_name=name, loop={"steps": 20}, persistence=persistence, **settings)
        return trieye.run_experiment(Walk, config)

    return make


def position_at(run_dir, step):
    return trieye.load_checkpoint(run_dir, step).objects["experiment"]["state"]["position"]


def test_a_fork_begins_with_a_checkpoint_of_its_parent_and_is_none_if_restarted_from_scratch(forked, make_config):
    result = forked("second")
    assert saved_steps(result) == [10, 20]
    assert trieye.load_checkpoint(result.run_dir, 10).objective is None  # excludes the parent's objective
    assert np.array_equal(position_at(result.run_dir, 10), position_at(result.run_dir.with_name("run"), 10))
    shutil.rmtree(result.run_dir / "checkpoints")
    trieye.run_experiment(Walk, make_config(run_name="second", loop={"steps": 3}))
    assert RunRecord.read(result.run_dir / "run.json").forked_from is None


@pytest.mark.long
def test_a_fork_repeats_its_parent_unless_the_seed_differs(forked):
    same, other = forked("same"), forked("other", seed=7)
    parent = same.run_dir.with_name("run")
    for result in (same, other):
        assert np.array_equal(position_at(result.run_dir, 10), position_at(parent, 10))
    assert np.array_equal(position_at(same.run_dir, 20), position_at(parent, 20))
    assert not np.array_equal(position_at(other.run_dir, 20), position_at(parent, 20))


@pytest.mark.long
def test_mlflow_and_the_run_record_name_the_parent_of_a_fork_across_attempts(forked):
    enabled = {"mlflow": {"enabled": True}}
    result = forked("second", sinks=enabled)
    parent = RunRecord.read(result.run_dir.with_name("run") / "run.json")
    (shown,) = mlflow_runs(result.run_dir)[1]
    assert shown.data.tags["trieye.forked_from"] == "app/run@10"
    assert shown.data.tags["trieye.forked_from_run_id"] == parent.run_id
    shutil.rmtree(result.run_dir.with_name("run"))
    shutil.rmtree(result.run_dir / "checkpoints" / "checkpoint_step_20")
    again = forked("second", sinks=enabled)  # the same config resumes from the first checkpoint of the fork
    record = RunRecord.read(again.run_dir / "run.json")
    assert (record.attempt, record.forked_from.run_id) == (2, parent.run_id)
    assert record.resumed_from == str(again.run_dir / "checkpoints" / "checkpoint_step_10")


@pytest.mark.parametrize(
    ("every", "advice"), [(0, "has no checkpoint to resume from"), (2, "resumes from the checkpoint")]
)
def test_the_note_about_a_crash_says_whether_the_run_can_resume(loop_config, every, advice):
    with pytest.raises(RuntimeError, match="power cut") as failure:
        trieye.run_experiment(disturbed(3, power_cut), loop_config(every=every, steps=5))
    assert f"run_name=run {advice}" in "".join(failure.value.__notes__)


def test_a_failing_cleanup_raises_without_hiding_an_earlier_error(loop_config):
    class Untidy(Walk):
        def cleanup(self):
            raise OSError("the window is gone")

    with pytest.raises(RuntimeError, match="power cut") as failure:
        trieye.run_experiment(disturbed(3, power_cut, Untidy), loop_config(steps=5))
    assert any("the window is gone" in note for note in failure.value.__notes__)
    loop_config.name = "good"
    with pytest.raises(OSError, match="the window is gone"):
        trieye.run_experiment(Untidy, loop_config(steps=5))


def test_a_malicious_checkpoint_writes_no_file_outside_its_directory(loop_config, tmp_path, monkeypatch):
    for name in ("", "..", "/planted", "sub/../../planted", "planted\0"):
        with pytest.raises(ValueError, match="is not a file name inside the directory"):
            check_inside(name)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    config = loop_config(steps=5)
    with trieye.Run(config) as run:
        loop = {"env_steps": 4, "best": None, "time_s": 0.0, "evaluated_step": -1}
        run.save(step=1, experiment={"files": {"../planted": np.zeros(3, np.uint8)}}, loop=loop)
    with pytest.raises(CheckpointError, match="is not a file name inside the directory"):
        trieye.run_experiment(InFiles, config)
    assert not list(tmp_path.rglob("planted*"))


class Counting(Walk):
    """A walk with updates from its third step on."""

    def step(self):
        values = super().step()
        return {**values, "updates": 3 if self.steps_done > 2 else 0}


@pytest.mark.long
@pytest.mark.parametrize(
    ("axis", "saved", "evaluated", "total"),
    [
        ("env_steps", [20, 40, 60], [32, 60], 60),
        ("updates", [21, 42, 60], [30, 60], 60),
        ("step", [20, 40], [30, 40], 40),
    ],
)
def test_limits_saves_evaluations_and_points_are_counted_in_the_axis(loop_config, axis, saved, evaluated, total):
    config = loop_config(every=20, axis=axis, steps=total, evaluate_every_steps=30)
    result = trieye.run_experiment(Counting, config)
    assert result.step == total
    assert result.stop_reason == f"loop.steps={total} done"
    store = CheckpointStore(result.run_dir / "checkpoints", read_only=True)
    steps = [entry.step for entry in store.entries()]
    assert set(saved) <= set(steps)
    assert evaluated_steps(result) == evaluated
    if axis != "step":
        counted = read_history(result.run_dir, [f"progress/{axis}"]).to_pylist()
        assert counted
        assert all(row["step"] == row["value"] for row in counted)
    loop = trieye.load_checkpoint(result.run_dir, "latest").objects["loop"]
    done = loop["iterations"]
    assert (loop["env_steps"], loop["updates"]) == (4 * done, 3 * (done - 2))
    assert RunRecord.read(result.run_dir / "run.json").axis == axis


@pytest.mark.long
def test_a_resumed_run_keeps_its_axis(loop_config):
    trieye.run_experiment(Counting, loop_config(axis="env_steps", steps=40))
    with pytest.raises(
        ConfigurationError, match=r"loop.axis=updates: run 'run' has counted its steps in env_steps since"
    ):
        trieye.run_experiment(Counting, loop_config(axis="updates", steps=400))
    result = trieye.run_experiment(Counting, loop_config(axis="env_steps", steps=80))
    assert (result.step, result.env_steps, Walk.instances[-1].steps_done) == (80, 80, 20)


def test_a_fork_is_counted_and_evaluated_on_its_own_axis(loop_config, make_config):
    trieye.run_experiment(Counting, loop_config(axis="env_steps", steps=40, evaluate_every_steps=20))
    limits = {"axis": "updates", "steps": 60, "evaluate_every_steps": 9}
    other = make_config(run_name="other", loop=limits, persistence={"load_checkpoint_path": "run:latest"})
    result = trieye.run_experiment(Counting, other)
    assert (result.step, result.env_steps, Walk.instances[-1].steps_done) == (60, 88, 22)
    assert evaluated_steps(result) == [27, 36, 45, 54, 60]


class Late(Walk):
    """It makes its first update in its fourth step."""

    def step(self):
        torch.ones(10).sum()
        return {**super().step(), "updates": int(self.steps_done >= 4)}


@pytest.mark.parametrize(("steps", "recorded"), [(50, 3), (5, 1)])
def test_profiling_starts_after_the_first_update(loop_config, capfd, steps, recorded):
    result = trieye.run_experiment(Late, loop_config(steps=steps, profile_steps=3))
    profiles = result.run_dir / "profile_data"
    assert f"the profile of {recorded} steps is in {profiles}" in capfd.readouterr().err
    assert json.loads((profiles / "trace.json").read_text())["traceEvents"]
    assert "Self CPU" in (profiles / "table.txt").read_text()
