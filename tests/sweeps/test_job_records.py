"""Records of jobs: whether their processes live, and the effect of a power loss."""

import json
import shutil
import time

import pytest

import trieye
from tests.json_schemas import validated
from trieye.cli import main
from trieye.exceptions import ConfigurationError, SerializationError
from trieye.process.identity import ProcessIdentity
from trieye.sweeps.jobs import RUN, STATUS, Done, JobRecord, RunningJob, records_in
from trieye.sweeps.record import SweepRecord


@pytest.fixture
def status(tmp_path, capsys):
    """Return a function that returns the state that `trieye sweep status` prints for the only job of a sweep."""

    def of_the_job(directory=tmp_path):
        SweepRecord(spec=["a=1"], size=1).write(directory)
        main(["sweep", "status", str(directory), "--json"])
        (job,) = json.loads(capsys.readouterr().out)["jobs"]
        return job["state"]

    return of_the_job


def edit(directory, **fields):
    """Change fields of the record of a job."""
    record = json.loads((directory / STATUS).read_text())
    (directory / STATUS).write_text(json.dumps(record | fields))


@pytest.mark.parametrize(("state", "name"), [("completed", "checkpoints"), ("failed", "saved")])
def test_a_job_has_an_intact_checkpoint_in_any_directory(state, name, tmp_path, make_config, capsys):
    SweepRecord(spec=["a=1"], size=1).write(tmp_path)
    JobRecord(index=0, overrides=["a=1"], state=state).write(tmp_path / "0")

    def has_checkpoint():
        main(["sweep", "status", str(tmp_path), "--json"])
        return validated(capsys.readouterr().out)["jobs"][0]["has_checkpoint"]

    assert not has_checkpoint()
    persistence = {"root_data_dir": str(tmp_path / "root"), "checkpoint_save_dir_name": name}
    with trieye.Run(make_config(persistence=persistence)) as run:
        (tmp_path / "0" / RUN).symlink_to(run.dir)
        assert not has_checkpoint()
        run.step = 5
        run.save(weights=[1.0]).wait()
    assert has_checkpoint()
    (checkpoint,) = (run.dir / name).glob("checkpoint_step_*")
    checkpoint.rename(checkpoint.with_name(f"{checkpoint.name}.damaged"))
    assert not has_checkpoint()


def test_a_job_runs_while_its_process_lives_despite_clock_changes_and_its_copy_does_not(tmp_path, status, monkeypatch):
    from psutil import _pslinux

    boot_time = _pslinux.boot_time()
    with RunningJob(tmp_path / "0", 0, ["a=1"]).running():
        assert status() == "running"
        monkeypatch.setattr(_pslinux, "boot_time", lambda: boot_time + 1.5)  # the clock was set
        assert status() == "running"
        (tmp_path / "copy").mkdir()
        shutil.copytree(tmp_path / "0", tmp_path / "copy/0")
        assert status(tmp_path / "copy") == "incomplete"
    edit(tmp_path / "0", state="running")
    assert status() == "incomplete"


def test_an_error_with_an_undecodable_file_name_is_recorded(tmp_path):
    with pytest.raises(OSError, match="no such file"), RunningJob(tmp_path / "0", 0, ["a=1"]).running():
        raise OSError("no such file: \udcff.csv")
    record = JobRecord.read(tmp_path / "0")
    assert (record.state, record.error) == ("failed", r"OSError: no such file: \udcff.csv")


def test_a_job_whose_pid_belongs_to_a_later_process_or_to_none_is_incomplete(tmp_path, status):
    process = ProcessIdentity.current()
    JobRecord(index=0, overrides=["a=1"], **process.as_mapping()).write(tmp_path / "0")
    assert status() == "running"
    edit(tmp_path / "0", start=process.start - 100)
    assert status() == "incomplete"
    edit(tmp_path / "0", pid=1 << 22)  # above the highest id
    assert status() == "incomplete"


def test_a_job_on_a_host_with_a_slow_clock_counts_as_running(tmp_path, status):
    with RunningJob(tmp_path / "0", 0, ["a=1"]).running():
        edit(tmp_path / "0", host="elsewhere", boot="another", heartbeat=time.time() - 40.0)
        assert status() == "running"  # because its lock is taken
    edit(tmp_path / "0", host="elsewhere", boot="another", heartbeat=time.time() - 40.0, state="running")
    assert status() == "unknown"


def test_an_empty_record_is_ignored_and_a_damaged_one_explained(tmp_path):
    (tmp_path / STATUS).touch()
    assert JobRecord.read(tmp_path) is None
    (tmp_path / STATUS).write_text('{"index": ')
    with pytest.raises(SerializationError, match="delete it to run the job again"):
        JobRecord.read(tmp_path)


def test_the_record_of_a_job_on_another_machine_is_copied_back_and_adds_up_the_attempts(tmp_path):
    JobRecord(index=0, overrides=[], state="lost", host="one", attempt=2, deaths=2).write(tmp_path)
    run_dir = tmp_path / "runs/first"  # only on the other machine
    other = JobRecord(index=0, overrides=[], state="completed", host="other", objective=3.0)
    Done(0, 3.0, record=other, run_dir=run_dir).bring_to(tmp_path)
    record = JobRecord.read(tmp_path)
    assert (record.host, record.state, record.objective) == ("other", "completed", 3.0)
    assert (record.attempt, record.deaths) == (3, 2)
    assert (tmp_path / RUN).is_symlink()
    assert (tmp_path / RUN).resolve() == run_dir
    Done(0, record=record).bring_to(tmp_path)  # the same process again, as on a shared disk
    assert JobRecord.read(tmp_path).attempt == 3


def test_a_signal_after_the_end_of_a_job_keeps_it_completed(tmp_path):
    job = RunningJob(tmp_path, 0, ["seed=1"])
    with pytest.raises(KeyboardInterrupt), job.running():
        job.end("completed", done=Done(0, 1.0))
        raise KeyboardInterrupt
    record = JobRecord.read(tmp_path)
    assert (record.state, record.objective) == ("completed", 1.0)


def test_the_program_of_a_sweep_may_move_to_another_path_and_not_be_replaced_by_another(tmp_path):
    def check(before, now):
        SweepRecord(spec=[], program=now).check_program(SweepRecord(spec=[], program=before), tmp_path)

    check(["python", "/a/fit.py"], ["python", "/b/fit.py", "--config-name", "other"])
    check(["python", "/a/fit.py"], ["python", "-m", "my_agent.fit"])
    check([], ["python", "fit.py"])
    with pytest.raises(ConfigurationError, match=r"its jobs are of the program 'slow', not 'fit'; for another sweep"):
        check(["python", "/a/slow.py"], ["python", "/a/fit.py"])


def test_a_renamed_copy_of_a_job_directory_is_no_job(tmp_path):
    for name in ("0", "1_old", "2_cut", "3"):
        JobRecord(index=int(name[0]), overrides=[]).write(tmp_path / name)
    (tmp_path / "2_cut" / "status.json").write_bytes(b"{")
    (tmp_path / "3").rename(tmp_path / "4")
    assert [record.index for record in records_in(tmp_path)] == [0]
