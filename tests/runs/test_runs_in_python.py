"""`trieye.runs`: Python calls list, verify, compare, close and remove stored runs."""

import os
import shutil
import signal
import time
from pathlib import Path

import pytest

import trieye
from tests.forked import lines_until_killed
from tests.waiting import wait_until
from trieye import runs
from trieye.exceptions import ConfigurationError


@pytest.fixture
def root(tmp_path, monkeypatch):
    """Directory of all apps of the project around the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".trieye_data").mkdir()
    return tmp_path / ".trieye_data"


@pytest.fixture
def make_run(make_config, root):
    """Return a function that makes a run, which has logged one return and saved one checkpoint."""

    def make(name, best=1.0, *, app="agents", age_s=0.0, **settings):
        config = make_config(app_name=app, run_name=name, persistence={"root_data_dir": str(root)}, **settings)
        with trieye.Run(config) as run:
            run.log({"eval/return": best}, step=5)
            run.step = 5
            run.save(weights=[best])
        record = runs.get(run.dir).record
        record.created, record.ended = time.time() - age_s, time.time() - age_s
        record.save(run.dir / "run.json")
        return run.dir

    return make


@pytest.fixture
def killed(make_config, root):
    """Return a function that kills an attempt of a run at step 19 with TensorBoard behind; returns its directory."""
    config = make_config(
        app_name="agents",
        run_name="killed",
        persistence={"root_data_dir": str(root)},
        sinks={"tensorboard": {"enabled": True}},
        stats={"processing_interval_seconds": 0.01},
    )

    def log(report):
        with trieye.Run(config) as run:
            for step in range(20):
                run.step = step
                run.log({"loss": 1.0 / (step + 1)})
            run.flush()
            wait_until(lambda: runs.get(run.dir).step == 19)
            report(run.dir)
            signal.pause()

    return lambda: Path(lines_until_killed(log, 1)[0])


def test_get_resolves_a_run_name_anywhere_in_the_project(make_run, root, monkeypatch):
    run_dir = make_run("first", 3.0)
    (root.parent / "src").mkdir()
    monkeypatch.chdir(root.parent / "src")
    for reference in ("first", "agents/first", run_dir, runs.StoredRun.read(run_dir)):
        run = runs.get(reference)
        assert (run.run_dir, str(run), run.status) == (run_dir, "agents/first", "FINISHED")
    assert (run.step, run.metric, run.best, run.is_alive) == (5, "eval/return", 3.0, False)
    assert run.config["run_name"] == run.record.run_name == "first"
    assert run.provenance.command
    assert run.size_bytes == sum(
        {(path.stat().st_ino): path.stat().st_size for path in run_dir.rglob("*") if path.is_file()}.values()
    )
    with pytest.raises(ConfigurationError, match="did you mean 'first'"):
        runs.get("frist")


def test_a_killed_run_is_lost_until_it_is_closed(killed):
    run_dir = killed()
    assert runs.get("killed").status == "LOST"
    progress = []
    delivery = runs.close("killed", progress=lambda done, total: progress.append((done, total)))
    assert (delivery.run_dir, delivery.status, delivery.sinks) == (run_dir, "KILLED", ["tensorboard"])
    assert delivery.missing == {}
    assert progress[-1] == (delivery.num_items, delivery.num_items)
    assert runs.get("killed").status == "KILLED"
    assert runs.close("killed").took_s == 0.0  # nothing was left


def test_a_killed_attempt_of_a_closed_run_is_shown_up_to_its_last_point(killed, make_config, root):
    config = make_config(app_name="agents", run_name="killed", persistence={"root_data_dir": str(root)})
    with trieye.Run(config) as run:
        run.log({"loss": 1.0}, step=3)
    assert runs.get("killed").step == 3
    killed()
    assert runs.get("killed").step == 19
    assert runs.get("killed").metrics["loss"]["last"] == pytest.approx(0.05)


def test_a_stored_run_is_removed_but_not_through_a_link(make_run, tmp_path, monkeypatch):
    run_dir = make_run("first")
    run_dir.with_name("link").symlink_to(make_run("elsewhere").rename(tmp_path / "elsewhere"))
    linked = next(run for run in runs.find("agents").runs if run.name != "first")
    with pytest.raises(ConfigurationError, match="elsewhere is neither below"):
        runs.remove(linked)
    plan = runs.remove("first", dry_run=True)
    assert (plan.run_dir, plan.name, list(plan.notes())) == (run_dir, "agents/first", [])
    assert run_dir.exists()
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    runs.remove(runs.get("first"))
    assert not run_dir.exists()


def test_prune_removes_old_runs_except_the_best_and_the_newest(make_run):
    for number, best in enumerate((5.0, 1.0, 2.0, 3.0)):
        make_run(f"run{number}", best, age_s=3600.0 * (10 - number))
    make_run("unrated", float("nan"), age_s=3600.0 * 20)
    plan = runs.prune("agents", older_than_s=60.0, keep_best=1, keep_newest=1, dry_run=True)
    assert [removal.run_dir.name for removal in plan.removals] == ["run1", "run2"]
    reasons = {run_dir.name: reason for run_dir, reason in plan.retained.items()}
    assert reasons == {"unrated": "objective unknown", "run3": "the newest", "run0": "the best"}
    pruned = runs.prune("agents", older_than_s=60.0, keep_best=1, keep_newest=1)
    assert [removal.run_dir.name for removal in pruned.removals] == ["run1", "run2"]
    assert sorted(run.name for run in runs.find().runs) == ["run0", "run3", "unrated"]
    assert runs.prune("agents", older_than_s=60.0, keep_newest=9).removals == []  # more than exist


def test_reading_a_killed_run_does_not_reset_its_age(killed):
    run_dir = killed()
    for path in (run_dir, *run_dir.iterdir()):
        os.utime(path, (1e9, 1e9))
    for _ in range(2):
        runs.points(run_dir)
        runs.diagnose(run_dir)
        plan = runs.prune("agents", older_than_s=60.0, dry_run=True)
        assert [removal.run_dir for removal in plan.removals] == [run_dir]


def test_a_moved_run_can_be_claimed_but_a_copy_cannot(make_run, root):
    run_dir = make_run("first")
    shutil.copytree(run_dir, run_dir.with_name("copy"))
    with pytest.raises(ConfigurationError, match="is a copy"):
        runs.claim("copy")
    assert runs.claim("first") == run_dir


def test_two_runs_are_compared(make_run):
    make_run("first", 1.0)
    make_run("second", 2.0, seed=7)
    diff = runs.diff("first", "second")
    assert dict(diff.divergence.config) == {"seed": (0, 7)}
    assert diff.metrics["eval/return"] == diff.metrics["best eval/return"] == (1.0, 2.0)
    assert runs.diff("first", "first").divergence.parts() == {"config": {}, "commit": {}, "packages": {}}


def test_listing_a_thousand_runs_takes_less_than_a_second(make_run):
    source = make_run("r0")
    for number in range(1, 1000):
        run_dir = source.with_name(f"r{number}")
        run_dir.mkdir()
        for file in ("run.json", "configs.json"):
            os.link(source / file, run_dir / file)
    began = time.process_time()
    assert len(runs.find("agents").runs) == 1000
    assert time.process_time() - began < 1
