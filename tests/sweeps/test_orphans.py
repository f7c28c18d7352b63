"""Orphans: jobs that other processes may run, seen from a machine that cannot see those processes."""

from dataclasses import replace
from itertools import count

import pytest

from trieye.process.identity import ProcessIdentity
from trieye.sweeps import orphans
from trieye.sweeps.jobs import Job, JobRecord, RunningJob
from trieye.sweeps.orphans import Orphans

JOB = Job(0, ("a=1",))


@pytest.fixture
def record(tmp_path):
    """Return the record of a job that runs on another machine."""
    process = replace(ProcessIdentity.current(), host="elsewhere", boot="another")
    written = JobRecord(index=0, overrides=["a=1"], **process.as_mapping())
    written.write(tmp_path / "0")
    return written


def test_a_silent_remote_job_restarts_only_after_a_long_observation(tmp_path, record, monkeypatch):
    jobs = Orphans(tmp_path)
    assert jobs.add(JOB, record)
    assert jobs.ended() == []
    monkeypatch.setattr(orphans, "SILENT_AFTER_S", 0.0)
    assert jobs.ended() == [JOB]
    assert not jobs


def test_heartbeats_are_compared_only_within_the_same_machine(tmp_path, record, monkeypatch):
    monkeypatch.setattr(orphans, "ORPHAN_WAIT_S", 0.0)
    jobs, beats = Orphans(tmp_path), count(-1000.0)  # a clock that was never set
    jobs.add(JOB, JobRecord.read(tmp_path / "0"))
    jobs.wait()
    assert jobs.timed_out() == []
    for record.heartbeat in (next(beats), next(beats)):
        record.write(tmp_path / "0")
        assert jobs.ended() == []
    ((job, error),) = jobs.timed_out()
    assert job == JOB
    assert f"process {record.pid} on elsewhere is still running job 0" in str(error)


def test_a_local_job_restarts_as_soon_as_its_process_has_ended(tmp_path):
    jobs = Orphans(tmp_path)
    with RunningJob(tmp_path / "0", 0, JOB.overrides).running():
        assert jobs.add(JOB, JobRecord.read(tmp_path / "0"))
        assert jobs.ended() == []
    assert jobs.ended() == [JOB]
    assert not jobs.add(JOB, JobRecord.read(tmp_path / "0"))
