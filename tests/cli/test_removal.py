import os
import re
import shutil
import time
from collections import Counter

import pytest

import trieye
import trieye.runs
from tests.cli.conftest import Command
from tests.curves import mlflow_runs
from tests.damage import contents
from tests.forked import killed_at_each
from tests.full_disk import full_disk
from trieye.exceptions import TrieyeError
from trieye.files.run_record import RunRecord
from trieye.mirror.store import MirrorStore
from trieye.process.lock import RunLock


@pytest.fixture
def make_run(make_config):
    """Return a function that makes a run with a checkpoint, which has logged one loss, and returns its directory."""

    def make(name, loss=1.0, *, age_s=0.0, **settings):
        with trieye.Run(make_config(app_name="agents", run_name=name, **settings)) as run:
            run.log("loss", loss)
            run.save(weights=[loss])
        update_record(run.dir, ended=time.time() - age_s)
        return run.dir

    return make


class RootCommand(Command):
    """Commands below the root of the runs; both streams are one text."""

    def __call__(self, *arguments):
        code, out, err = super().__call__(*arguments)
        return code, out + err, out + err


@pytest.fixture
def trieye_command(tmp_path, capfd):
    return RootCommand(capfd, options=("--root", tmp_path / "root"))


@pytest.fixture
def prune(trieye_command):
    """Return a function that prunes the app `agents` without asking, and returns the output."""

    def run(*options, older_than="0s"):
        return trieye_command.output("prune", "agents", "--older-than", older_than, "--yes", *options)

    return run


BEST = ("--keep", "best:1", "--metric", "loss", "--mode", "min")


def update_record(run_dir, **values):
    record = RunRecord.read(run_dir / "run.json")
    record.model_copy(update=values).save(run_dir / "run.json")


def remaining_runs(tmp_path):
    return {path.name for path in (tmp_path / "root" / "agents" / "runs").iterdir()}


def test_a_run_whose_mlflow_run_is_in_the_trash_can_be_deleted(make_run, tmp_path, trieye_command):
    run_dir = make_run("first", sinks={"mlflow": {"enabled": True}})
    client, (run,) = mlflow_runs(run_dir)
    client.delete_run(run.info.run_id)
    trieye_command.output("rm", "first", "--yes")
    assert remaining_runs(tmp_path) == set()


def test_a_full_disk_is_named_if_the_mlflow_run_cannot_be_deleted(make_run, tmp_path):
    run_dir = make_run("first", sinks={"mlflow": {"enabled": True}})
    message = r"mlflow.db cannot be .* if the disk is full, free some space first"
    with full_disk(), pytest.raises(TrieyeError, match=message):
        trieye.runs.remove(run_dir)
    trieye.runs.remove(run_dir)
    assert remaining_runs(tmp_path) == set()


def test_nothing_is_deleted_without_confirmation(make_run, trieye_command, monkeypatch):
    run_dir = make_run("first")
    before = contents(run_dir)
    assert trieye_command("rm", "first", "--dry-run")[0] == 0
    assert "--yes" in trieye_command.error("rm", "first")  # tests have no terminal for a confirmation
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    questions = []
    monkeypatch.setattr("builtins.input", lambda question: questions.append(question) or "n")
    assert trieye_command("rm", "first")[0] == 1
    assert questions == ["delete this run? [y/N] "]
    assert contents(run_dir) == before


def test_names_of_runs_to_delete_are_never_truncated(make_run, prune):
    make_run("2026112_first", sinks={"mlflow": {"enabled": True}})
    make_run("2026112_second_that_has_quite_a_long_name")
    output = prune("--dry-run")  # 80 columns wide
    beginnings = "".join(line.split(" ")[0] for line in output.splitlines())  # also of names folded to two lines
    assert "agents/2026112_first" in beginnings
    assert "agents/2026112_second_that_has_quite_a_long_name" in beginnings


def test_an_active_run_is_never_deleted(make_run, trieye_command, prune, tmp_path):
    idle, alive = make_run("idle"), make_run("alive", age_s=1e6)
    with RunLock(alive / "run.lock"):
        assert "alive" in trieye_command.error("rm", "idle", "alive", "--yes", code=3)
        assert idle.exists()  # all selected runs, or none
        prune(older_than="1d")
    assert remaining_runs(tmp_path) == {"idle", "alive"}


def test_reading_a_killed_run_does_not_make_it_newer(make_run, prune, tmp_path):
    killed = make_run("killed")
    update_record(killed, ended=None, status="RUNNING")
    for path in killed.iterdir():
        os.utime(path, (0, 0), follow_symlinks=False)
    for name in ("run.lock", "hub.lock", "journal.db-shm"):  # what SQLite and filelock 3.30 change
        (killed / name).write_bytes(b"")
    prune(older_than="1d")
    assert remaining_runs(tmp_path) == set()


def test_a_copy_of_an_active_run_is_deleted_and_the_moved_run_itself_is_not(make_run, trieye_command, prune, tmp_path):
    active = make_run("active", age_s=1e6)
    with RunLock(active / "run.lock"):
        shutil.copytree(active, active.with_name("copy"))
        active.rename(active.with_name("moved"))
        assert "still running" in trieye_command.error("rm", "moved", "--yes", code=3)
        trieye_command.output("rm", "copy", "--yes")
        prune(older_than="1d")
        assert remaining_runs(tmp_path) == {"moved"}
        active.with_name("moved").rename(active)  # where the lock is released


def test_a_run_is_kept_if_its_mirror_cannot_be_deleted(make_run, tmp_path, trieye_command):
    run_dir = make_run("first", persistence={"mirror": f"file://{tmp_path}/mirror"})
    (tmp_path / "mirror").rename(tmp_path / "away")
    (tmp_path / "mirror" / "agents").mkdir(parents=True)
    (tmp_path / "mirror" / "agents" / "first").write_text("no directory")
    before = contents(run_dir)
    assert f"file://{tmp_path}/mirror" in trieye_command.error("rm", "first", "--yes", code=1)
    assert contents(run_dir) == before


def test_a_retry_deletes_the_rest_of_a_mirror_whose_deletion_failed(make_run, tmp_path, trieye_command, monkeypatch):
    run_dir = make_run("first", persistence={"mirror": f"file://{tmp_path}/mirror"})
    num_objects = len(contents(tmp_path / "mirror"))
    for num_deleted in range(1, num_objects):
        with monkeypatch.context() as patch:
            keys, delete = [], MirrorStore.delete

            def disconnected(store, key, keys=keys, delete=delete):
                if keys:
                    raise ConnectionError("the mirror does not answer")
                keys.append(key)
                delete(store, key)

            patch.setattr(MirrorStore, "delete", disconnected)
            assert "retry when it answers" in trieye_command.error("rm", "first", "--yes", code=1)
        assert (run_dir.exists(), len(contents(tmp_path / "mirror"))) == (True, num_objects - num_deleted)
    assert "not deleted" not in trieye_command.output("rm", "first", "--yes")
    assert (run_dir.exists(), contents(tmp_path / "mirror")) == (False, {})


@pytest.mark.long
def test_a_deletion_killed_at_any_file_operation_is_completed_by_a_retry_and_deletes_nothing_else(make_run, tmp_path):
    root, mirror = tmp_path / "root", tmp_path / "mirror"
    mirrored = {"persistence": {"mirror": f"file://{mirror}"}}
    make_run("first_2", **mirrored)
    run_dir = make_run("first", **mirrored)
    shutil.copytree(run_dir, run_dir.with_name("copy"))
    trieye.runs.remove(run_dir)
    others = contents(tmp_path)

    def prepare(_number):
        make_run("first", **mirrored)
        return tmp_path

    stages = Counter()
    operations = {"os.rename", "os.remove", "os.rmdir"}
    for number, _, is_done in killed_at_each(operations, prepare, lambda _: trieye.runs.remove(run_dir)):
        names = {path.name for path in run_dir.parent.iterdir()} - {"copy", "first_2"}
        stages["complete" if "first" in names else "half" if names else "deleted"] += 1
        if run_dir.exists():
            assert trieye.load_checkpoint(run_dir, "latest").objects["weights"] == [1.0], number
        assert not (is_done and names)
        if names:
            trieye.runs.remove("agents/first", root=root)
        assert contents(tmp_path) == others, number
    assert min(stages["complete"], stages["half"]) > 10, stages


@pytest.fixture
def half_deleted(make_run, monkeypatch):
    """Return the rest of a run whose deletion was interrupted."""
    run_dir = make_run("first")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", interrupt)
        with pytest.raises(KeyboardInterrupt):
            trieye.runs.remove(run_dir)
    (rest,) = run_dir.parent.iterdir()
    return rest


def interrupt(*_, **__):
    raise KeyboardInterrupt


def test_a_retry_completes_an_interrupted_deletion(half_deleted, trieye_command):
    assert half_deleted.name in trieye_command.output("rm", "first", "--dry-run")
    assert half_deleted.exists()
    trieye_command.output("rm", "agents/first", "--yes")
    assert not half_deleted.exists()
    assert "no such run" in trieye_command.error("rm", "first", "--yes")


def test_a_name_of_several_runs_is_refused_even_if_one_more_is_half_deleted(
    half_deleted, make_run, make_config, trieye_command
):
    make_run("first")
    with trieye.Run(make_config(app_name="others", run_name="first")) as run:
        run.log("loss", 1.0)
    assert "several runs have this name" in trieye_command.error("rm", "first", "--yes")
    assert half_deleted.exists()


def test_prune_completes_the_deletion_of_the_only_run(half_deleted, prune):
    prune(older_than="1d")
    assert not half_deleted.exists()


def test_prune_completes_interrupted_deletions_but_follows_no_link(half_deleted, make_run, tmp_path, prune):
    second = make_run("second")
    (tmp_path / "precious" / "file").mkdir(parents=True)
    link = second.with_name(half_deleted.name.replace("first", "link"))
    link.symlink_to(tmp_path / "precious")
    prune(older_than="1d")
    assert sorted(second.parent.iterdir()) == [link, second]
    assert (tmp_path / "precious" / "file").exists()


def test_no_run_starts_from_a_half_deleted_one(half_deleted, make_config):
    with trieye.Run(make_config(app_name="agents", run_name="second", persistence={"auto_resume_latest": True})) as run:
        assert not run.restore()
    assert half_deleted.exists()


def test_prune_deletes_old_runs_except_the_best_and_lists_why_it_keeps_others(make_run, prune, tmp_path):
    for days, (name, loss) in enumerate([("fresh", 2.0), ("third", 3.25), ("second", 1.5), ("first", 4.5)]):
        run_dir = make_run(name, loss, age_s=days * 86_400 + 60)
    with RunLock(run_dir / "run.lock"):
        output = prune(*BEST, "--dry-run", older_than="1d")
    (line,) = (line.split() for line in output.splitlines() if line.startswith("agents/third"))
    assert line[2] == "3.25"
    for kept in ("agents/fresh (2): used recently", "agents/second (1.5): the best", "agents/first (4.5): running"):
        assert f"keeping {kept}" in output
    assert remaining_runs(tmp_path) == {"fresh", "third", "second", "first"}
    prune(*BEST, older_than="1d")
    assert remaining_runs(tmp_path) == {"fresh", "second"}


def test_an_invalid_argument_lists_the_valid_ones_and_deletes_nothing(make_run, trieye_command):
    run_dir = make_run("first", age_s=1e6)
    old, best = ("--older-than", "1d"), ("--keep", "best:1")
    for arguments, message in (
        (("prune", "agent", *old), "agents"),
        (("prune", "first", *old), "it is a run, and only the runs of an app are pruned"),
        (("prune", "agents", "--older-than", "soon"), "30d"),
        (("prune", "agents", *old, "--keep", "best"), "best:5"),
        (("prune", "agents", *old, *best, "--metric", "los"), "loss"),
        (("prune", "agents", *old, *best, "--metric", "loss"), "--mode min"),
        (("rm", "firts"), "first"),
    ):
        code, output, _ = trieye_command(*arguments)
        assert (code in {1, 2}, message in output) == (True, True), arguments
        assert run_dir.exists()


def test_a_run_is_deleted_with_its_mlflow_run_and_mirror_and_a_copy_without_those_of_the_original(
    make_run, tmp_path, trieye_command
):
    everywhere = {"sinks": {"mlflow": {"enabled": True}}, "persistence": {"mirror": f"file://{tmp_path}/mirror"}}
    original, second = make_run("first", **everywhere), make_run("second", **everywhere)
    sibling = shutil.copytree(original, original.with_name("first_backup"))
    same_name = shutil.copytree(original, tmp_path / "other" / "agents" / "runs" / "first")
    shutil.copytree(original.parents[1] / "mlruns", same_name.parents[1] / "mlruns")
    no_layout = shutil.copytree(original, tmp_path / "backup")
    before = contents(original), contents(second), contents(tmp_path / "mirror")
    for copy in (sibling, same_name, no_layout):
        output = trieye_command.output("rm", copy, "--yes")
        assert not copy.exists()
        assert (contents(original), contents(second), contents(tmp_path / "mirror")) == before
        assert {run.info.run_name for run in mlflow_runs(original)[1]} == {"first", "second"}
        if copy == sibling:
            assert "agents/first_backup" in output
    assert {run.info.run_name for run in mlflow_runs(same_name)[1]} == {"first", "second"}
    assert "mlflow runs restore" in trieye_command.output("rm", "first", "--yes")
    assert (remaining_runs(tmp_path), contents(second)) == ({"second"}, before[1])
    assert [run.info.run_name for run in mlflow_runs(second)[1]] == ["second"]
    assert {name.split("/")[1] for name in contents(tmp_path / "mirror")} == {"second"}


def test_a_renamed_run_is_deleted_with_its_mlflow_run_and_mirrors(make_run, tmp_path, trieye_command):
    everywhere = {"sinks": {"mlflow": {"enabled": True}}, "persistence": {"mirror": f"file://{tmp_path}/mirror"}}
    original = make_run("first", **everywhere)
    second = original.rename(original.with_name("second"))
    trieye_command.output("rebuild", "second")  # mirrors it under this name, too
    renamed = second.rename(original.with_name("renamed"))
    copy = shutil.copytree(renamed, original.with_name("copy"))
    before = contents(tmp_path / "mirror")
    assert {name.split("/")[1] for name in before} == {"first", "second"}
    trieye_command.output("rm", "copy", "--yes")
    assert (copy.exists(), contents(tmp_path / "mirror")) == (False, before)
    assert len(mlflow_runs(original)[1]) == 1
    trieye_command.output("rm", "renamed", "--yes")
    assert (renamed.exists(), contents(tmp_path / "mirror")) == (False, {})
    assert mlflow_runs(original)[1] == []


def test_the_mirrors_of_all_names_of_a_run_are_deleted_but_none_of_another_run(make_run, tmp_path, trieye_command):
    mirrored = {"persistence": {"mirror": f"file://{tmp_path}/mirror"}}
    make_run("first", **mirrored).rename(tmp_path / "root" / "agents" / "runs" / "second")
    make_run("second", **mirrored).rename(tmp_path / "root" / "agents" / "runs" / "third")
    run_dir = make_run("third", **mirrored)
    shutil.rmtree(tmp_path / "mirror" / "agents" / "second")
    make_run("second", **mirrored)  # the name is free for another run
    untouched = contents(tmp_path / "mirror" / "agents" / "second")
    code, output, _ = trieye_command("rm", "third", "--yes")
    assert (code, run_dir.exists(), f"{tmp_path}/mirror/agents/second is not deleted" in output) == (0, False, True)
    assert contents(tmp_path / "mirror") == {f"agents/second/{name}": data for name, data in untouched.items()}
    assert RunRecord.read(make_run("first", **mirrored) / "run.json").attempt == 1  # nothing was left to restore


def test_files_that_trieye_did_not_write_stay_in_the_mirror(make_run, tmp_path, trieye_command):
    mirrored = {"persistence": {"mirror": f"file://{tmp_path}/mirror", "keep_last": 1}}
    foreign = (
        "thesis.txt",
        "checkpoints/notes.txt",
        "checkpoints/mine/weights",
        "parts/mine.txt",
        "states/mine/COMMIT",
    )
    for name in foreign:
        path = tmp_path / "mirror" / "agents" / "first" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    for _ in range(2):  # the second checkpoint replaces the first one
        run_dir = make_run("first", **mirrored)
    output = trieye_command.output("rm", "first", "--yes")
    assert "5 files below" in output
    assert not run_dir.exists()
    assert set(contents(tmp_path / "mirror")) == {f"agents/first/{name}" for name in foreign}


def test_an_mlflow_run_of_another_directory_is_not_deleted(make_run, trieye_command):
    mlflow = {"sinks": {"mlflow": {"enabled": True}}}
    first, second = make_run("first", **mlflow), make_run("second", **mlflow)
    mlflow_run_id = RunRecord.read(second / "run.json").mlflow_run_id
    update_record(first, mlflow_run_id=mlflow_run_id)
    code, output, _ = trieye_command("rm", "first", "--yes")
    assert (code, first.exists()) == (0, False), output
    assert sorted(run.info.run_name for run in mlflow_runs(second)[1]) == ["first", "second"]
    assert f"MLflow run {mlflow_run_id} is not deleted" in output


def test_deleting_a_symbolic_link_does_not_delete_its_run(make_run, tmp_path, trieye_command):
    run_dir = make_run("first")
    (run_dir.parent / "link").symlink_to(run_dir)
    (tmp_path / "outside").symlink_to(run_dir)
    for name in ("link", "agents/link", str(tmp_path / "outside")):
        assert str(run_dir) in trieye_command.error("rm", name, "--yes")
    assert remaining_runs(tmp_path) == {"first", "link"}


def test_a_copy_never_writes_to_the_mlflow_run_of_the_original(make_run, trieye_command):
    original = make_run("first", sinks={"tensorboard": {"enabled": True}})
    copy = shutil.copytree(original, original.with_name("copy"))
    before = contents(copy)
    for command in ("close", "rebuild"):
        output = trieye_command.error(command, "copy")
        assert str(original) in output
        assert "trieye fork" in output
        assert contents(copy) == before


def test_a_run_from_another_machine_must_be_claimed_before_it_is_closed(make_run, trieye_command):
    run_dir = make_run("first", sinks={"mlflow": {"enabled": True}})
    owner = RunRecord.read(run_dir / "run.json").owner
    away = {"host": "elsewhere", "path": "/elsewhere/agents/runs/first", "inode": owner.inode + 1}
    update_record(run_dir, owner=owner.model_copy(update=away))
    assert f"trieye claim {run_dir}" in trieye_command.error("rebuild", "first")
    assert trieye_command("claim", "first")[0] == 0
    assert trieye_command("rebuild", "first")[0] == 0
    assert trieye_command("rm", "first", "--yes")[0] == 0
    assert mlflow_runs(run_dir)[1] == []


def test_prune_keeps_the_best_run_even_if_it_was_killed(make_run, killed_run, tmp_path, prune):
    killed_run()
    for name in ("second", "third"):
        make_run(name, loss=1.0, age_s=1e6)
    assert re.search(r"agents/first +LOST ", prune("--dry-run"))
    prune(*BEST)
    assert remaining_runs(tmp_path) == {"first"}


def test_prune_accepts_the_directory_of_an_app_outside_the_root(make_run, tmp_path, command):
    make_run("old", age_s=1e6)
    make_run("new")
    arguments = ["prune", str(tmp_path / "root/agents"), "--root", str(tmp_path / "other"), "--older-than", "1d"]
    command.output(*arguments, "--yes")
    assert remaining_runs(tmp_path) == {"new"}


def test_a_run_that_was_used_since_it_was_listed_is_kept(make_run, make_config, tmp_path):
    run_dir = make_run("old", age_s=1e6)
    (removal,) = trieye.runs.prune("agents", older_than_s=1e5, root=tmp_path / "root", dry_run=True).removals
    with trieye.Run(make_config(app_name="agents", run_name="old")):
        pass
    with pytest.raises(TrieyeError, match="run 'agents/old' was used since it was listed, and is kept"):
        removal.delete()
    assert run_dir.is_dir()


def test_a_run_that_another_process_deleted_since_it_was_listed_leaves_no_directory(make_run, tmp_path):
    run_dir = make_run("first")
    first, second = (trieye.runs.remove("first", root=tmp_path / "root", dry_run=True) for _ in range(2))
    first.delete()
    second.delete()
    assert list(run_dir.parent.iterdir()) == []


def test_prune_keeps_the_last_used_of_equally_good_runs(make_run, tmp_path, prune):
    for days, name in enumerate(("newest", "middle", "oldest")):
        make_run(name, 1.0, age_s=days * 86_400 + 60)
    output = prune("--keep", "best:2", "--metric", "loss", "--mode", "min")
    assert remaining_runs(tmp_path) == {"newest", "middle"}
    assert "agents/newest (1)" in output
    assert ": among the 2 best\n" in output


def test_prune_lists_all_kept_runs_and_the_sweeps_of_deleted_jobs(make_run, prune, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for number, sweep in enumerate(("lr", "lr", "seeds", None)):
        run_dir = make_run(f"old{number}", age_s=1e6)
        update_record(run_dir, group=None if sweep is None else f"{tmp_path}/multirun/{sweep}")
    for number in range(12):
        shutil.copytree(run_dir, run_dir.with_name(f"copy{number}"))
    output = prune("--keep", "newest:13", "--dry-run")
    assert "2 of these runs are jobs of the sweep multirun/lr\n" in output
    assert "1 of these runs is a job of the sweep multirun/seeds\n" in output
    (line,) = (line for line in output.splitlines() if line.startswith("keeping "))
    assert (line.count("agents/copy"), line.endswith(": among the 13 newest")) == (12, True)


def test_prune_keeps_runs_with_an_unknown_objective_and_prefers_finite_to_diverged_ones(
    make_run, make_config, tmp_path, trieye_command, prune
):
    make_run("best", 1.0, age_s=1e6)
    make_run("unrated", float("nan"), age_s=1e6)
    (make_run("damaged", age_s=1e6) / "run.json").write_text("{")
    for name, losses in (("diverged", (0.1, float("nan"), float("nan"))), ("empty", ())):
        with trieye.Run(make_config(app_name="agents", run_name=name)) as run:
            for step, loss in enumerate(losses):
                run.log("loss", loss, step=step)
    assert "0.1 (diverged)" in trieye_command.output("runs", "agents", "--metric", "loss", "--mode", "min")
    output = prune(*BEST)
    assert remaining_runs(tmp_path) == {"best", "unrated", "damaged", "empty"}
    assert "agents/empty" in output
    assert "keeping agents/damaged" in output


def test_prune_skips_symbolic_links_and_reports_them(make_run, tmp_path, prune):
    make_run("first", age_s=1e6)
    away = make_run("away", age_s=1e6).rename(tmp_path / "away")
    runs = tmp_path / "root" / "agents" / "runs"
    (runs / "link").symlink_to(away)
    (runs.parent / "archive").symlink_to(shutil.copytree(runs, tmp_path / "elsewhere", symlinks=True))
    before = contents(tmp_path / "away"), contents(tmp_path / "elsewhere")
    output = prune()
    assert remaining_runs(tmp_path) == {"link"}
    assert (contents(tmp_path / "away"), contents(tmp_path / "elsewhere")) == before
    assert output.count("symbolic link") == 3
    assert str(away) in output


def test_a_directory_without_run_json_is_deleted_only_inside_a_runs_directory(make_run, tmp_path, trieye_command):
    run_dir = make_run("first")
    for name in ("interrupted", "busy"):
        (run_dir.parent / name / "logs").mkdir(parents=True)
    artifacts = tmp_path / "root" / "agents" / "mlruns" / "artifacts"
    artifacts.mkdir(parents=True)
    outside = tmp_path / "elsewhere" / "agents" / "runs" / "interrupted"
    outside.mkdir(parents=True)
    (run_dir.parent / "link").symlink_to(outside)
    with RunLock(run_dir.parent / "busy" / "run.lock"):
        assert trieye_command("rm", "busy", "--yes")[0] == 3
    for name in ("artifacts", "agents/artifacts", str(artifacts), str(outside), str(run_dir.parent / "link"), "agents"):
        assert trieye_command("rm", name, "--yes")[0] == 2, name
    code, output, _ = trieye_command("rm", "agents/interrupted", "--yes")
    assert (code, remaining_runs(tmp_path)) == (0, {"first", "busy", "link"}), output
    assert artifacts.exists()
    assert outside.exists()
