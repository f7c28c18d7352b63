"""Records of jobs: who lives, and what a loss of power leaves."""

import psutil
import pytest

from tests.sweeps.programs import started
from trieye.exceptions import SerializationError
from trieye.sweeps.jobs import RUN, STATUS, Done, JobRecord


def test_a_job_is_known_to_be_dead_by_its_process(tmp_path):
    program = "import psutil; print(psutil.Process().create_time(), psutil.Process().pid)"
    began, pid = started(tmp_path, program).stdout.split()
    record = JobRecord(index=0, overrides=["a=1"], pid=int(pid), process_began=float(began))
    record.write(tmp_path / "0")
    assert JobRecord.read(tmp_path / "0").state_now == "lost"
    record.pid, record.process_began = psutil.Process().pid, psutil.Process().create_time()
    assert record.state_now == "running"
    record.process_began -= 100  # another process had the number
    assert record.state_now == "lost"
    record.host, record.heartbeat = "elsewhere", record.started
    assert record.state_now == "running"
    record.heartbeat -= 1000
    assert record.state_now == "lost"


def test_a_record_that_is_empty_after_a_loss_of_power_is_none_and_a_damaged_one_says_what_to_do(tmp_path):
    (tmp_path / STATUS).touch()
    assert JobRecord.read(tmp_path) is None
    (tmp_path / STATUS).write_text('{"index": ')
    with pytest.raises(SerializationError, match="delete it to run the job again"):
        JobRecord.read(tmp_path)


def test_what_a_job_wrote_on_the_disk_of_another_machine_comes_to_the_one_that_started_it(tmp_path):
    record = JobRecord(index=0, overrides=[], state="completed", host="elsewhere", objective=3.0)
    run_dir = tmp_path / "runs" / "first"  # there, not here
    done = Done(0, 3.0, record=record, run_dir=run_dir)
    done.bring_to(tmp_path / "0")
    assert JobRecord.read(tmp_path / "0").objective == 3.0
    assert (tmp_path / "0" / RUN).is_symlink()
    assert (tmp_path / "0" / RUN).resolve() == run_dir


def test_attempts_on_the_disks_of_several_machines_are_counted_together(tmp_path):
    JobRecord(index=0, overrides=[], state="lost", host="one", attempt=2, deaths=2).write(tmp_path)
    Done(0, record=JobRecord(index=0, overrides=[], state="completed", host="other")).bring_to(tmp_path)
    record = JobRecord.read(tmp_path)
    assert (record.host, record.state, record.attempt, record.deaths) == ("other", "completed", 3, 2)
    Done(0, record=record).bring_to(tmp_path)  # of the same process: a disk that both see
    assert JobRecord.read(tmp_path).attempt == 3
