import contextlib
import shutil
from itertools import count

import pytest

import trieye
from tests.cli.conftest import change_config
from tests.damage import contents, cut, flip
from tests.forked import forked
from tests.json_schemas import validated
from tests.moved import moved
from tests.permissions import restricted_access
from trieye.cli import main
from trieye.history.history import History
from trieye.journal.journal import Journal, Snapshot
from trieye.runs import verify


def flip_often(path):
    """Flip bits throughout a file, since a single flip may hit an unused page."""
    for position in range(4096, path.stat().st_size, 997):
        flip(path, position)


@pytest.fixture(scope="module")
def _closed(_killed, tmp_path_factory):
    root = shutil.copytree(_killed("saves"), tmp_path_factory.mktemp("closed") / "root")
    run = moved(root / "agents/runs/first")
    assert main(["close", str(run)]) == 0
    with contextlib.closing(Journal(run / "journal.db")) as journal:
        History(journal, run / "history").roll(force=True)
    return root


@pytest.fixture
def damaged_run(_closed, tmp_path):
    """A closed run with a history, a journal and a checkpoint, for a test to damage."""
    return moved(shutil.copytree(_closed, tmp_path / "root") / "agents/runs/first")


def test_a_killed_run_is_intact_and_its_sinks_are_behind(killed_run, command):
    run = killed_run("saves")
    change_config(run, "sinks", mlflow={"enabled": True})
    before = contents(run)
    shown = command.output("verify", run)
    assert contents(run) == before
    assert "RUNNING, no process is writing to it" in shown
    assert "everything is intact" in shown
    assert "highest step is 200" in shown
    sinks = {sink.name: sink for sink in verify(run).sinks}
    assert (sinks["mlflow"].index, sinks["mlflow"].behind > 200, sinks["tensorboard"].index > 200) == (0, True, True)
    assert shown.count("`trieye close`") == 2


@pytest.mark.long
def test_an_active_run_is_intact_at_any_moment(make_config):
    config = make_config(sinks={"tensorboard": {"enabled": True}}, stats={"processing_interval_seconds": 0.01})

    def log(report):
        with trieye.Run(config) as run:
            for step in count():
                run.log("loss", 1.0, step=step)
                if step == 100:
                    run.flush()
                    report("logging")

    with forked(log) as output:
        assert output.readline() == "logging\n"
        for _ in range(10):
            check = verify(config.persistence.get_run_base_dir())
            assert (check.damage, check.is_alive, check.status) == ([], True, "RUNNING")


@pytest.mark.parametrize(
    ("pattern", "damage_file", "damage", "advice"),
    [
        ("run.json", cut, "cannot be read", "restore it from a backup"),
        ("configs.json", cut, "cannot be read", "restore it from a backup"),
        ("journal.db", flip_often, "the journal is damaged", "`trieye close` it: that repairs the journal"),
        ("history/points-*.parquet", flip, "is damaged", "no action is needed"),  # some bytes hold no value
        ("history/points-*.parquet", cut, "is damaged: 3", "from a backup; otherwise no action is needed"),
        ("history/points-*.parquet", lambda path: path.unlink(), "is missing: 3", "from a backup"),
        ("checkpoints/checkpoint_step_200/*.safetensors", flip, "its checksum does not match", "restore one from a"),
        ("checkpoints/checkpoint_step_200/hub.bin", flip, "hub.bin is damaged", "restore one from a"),
        ("checkpoints/checkpoint_step_200/MANIFEST.json", cut, "MANIFEST.json is damaged", "choose another run_name"),
    ],
)
def test_damage_is_detected_and_explained_without_changing_the_run(
    damaged_run, capfd, pattern, damage_file, damage, advice
):
    (path, *_) = sorted(damaged_run.glob(pattern))
    damage_file(path)
    before = contents(damaged_run)
    assert main(["verify", str(damaged_run)]) == 1
    assert contents(damaged_run) == before
    shown = " ".join(capfd.readouterr().out.split())
    assert path.name.removesuffix(".db") in shown
    assert damage in shown
    assert advice in shown
    assert "everything is intact" not in shown


def test_the_checkpoint_used_instead_of_a_damaged_one_is_named(damaged_run):
    directory = damaged_run / "checkpoints"
    (directory / "checkpoint_step_300").mkdir()
    (damage,) = verify(damaged_run).damage
    assert "checkpoint_step_300/MANIFEST.json is missing" in damage.what
    assert "of step 200, is used instead" in damage.advice


def test_a_journal_of_another_user_is_damage_and_no_traceback(killed_run):
    run = killed_run()
    (run / "journal.db-wal").chmod(0)
    with restricted_access():
        (damage,) = verify(run).damage
    assert damage.what == f"{run / 'journal.db'} cannot be read: Permission denied"


def test_a_gap_in_the_history_of_the_journal_is_detected(tmp_path):
    (tmp_path / "run.json").write_text('{"app_name": "agents", "run_name": "first"}')
    journal = Journal(tmp_path / "journal.db")
    journal.commit(Snapshot(0, 10, 0.0, b""), chunks=[(4, 10, b"")], keep_after=0)
    journal.close()
    (damage,) = verify(tmp_path).damage
    assert "journal.db " in damage.what
    assert "4 items are lost (0 to 3)" in damage.what


def test_quarantined_files_are_mentioned_and_are_not_damage(damaged_run, capfd):
    (damaged_run / "journal.db.damaged-1").write_bytes(b"old")
    before = contents(damaged_run)
    assert main(["verify", str(damaged_run)]) == 0
    assert contents(damaged_run) == before
    shown = capfd.readouterr().out
    assert "complete" in shown
    assert "note: journal.db.damaged-1 was found damaged and set aside" in shown


def test_verify_prints_json_for_scripts(damaged_run, command):
    flip(next(damaged_run.glob("history/*.parquet")))
    code, out, _ = command("verify", damaged_run, "--json")
    document = validated(out)
    assert (code, document["is_whole"], document["run_dir"]) == (1, False, str(damaged_run))
    assert [part["name"] for part in document["parts"] if part["damage"]] == ["history"]
    assert [(sink["name"], sink["behind"]) for sink in document["sinks"]] == [("tensorboard", 0)]


def test_a_run_that_has_just_started_is_intact(tmp_path, command):
    (tmp_path / "run.json").write_text('{"app_name": "agents", "run_name": "first"}')
    assert "not made yet" in command.output("verify", tmp_path)


def test_a_run_with_only_quarantined_checkpoints_is_damaged(damaged_run):
    checkpoint = damaged_run / "checkpoints" / "checkpoint_step_200"
    checkpoint.rename(checkpoint.with_name("checkpoint_step_200.damaged"))
    (damage,) = verify(damaged_run).damage
    assert "none of the checkpoints is whole: 1 " in damage.what
    assert "next start is an error" in damage.meaning
