"""Records of jobs: who lives, and what a loss of power leaves."""

import psutil
import pytest

from tests.sweeps.programs import started
from trieye.exceptions import SerializationError
from trieye.sweeps.jobs import STATUS, JobRecord


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
