"""Runs continue without their MLflow server."""

import logging
import socket
import time

import pytest

from tests.sinks.mlflow.conftest import free_port
from tests.waiting import wait_until
from trieye.sinks.fan_out import FanOut
from trieye.sinks.mlflow.sink import MlflowSink
from trieye.sinks.thread import SinkThread
from trieye.stats.operations import LogParams
from trieye.stats.point import Point
from trieye.testing import MemoryHistory, MemorySink, make_run_info

pytestmark = pytest.mark.usefixtures("patient")


def points(first, num):
    return [Point("loss", float(step), step, 1.7e9 + step) for step in range(first, first + num)]


@pytest.fixture
def port():
    return free_port()


@pytest.fixture
def run(tmp_path, port):
    return make_run_info(tmp_path, tracking_uri=f"http://127.0.0.1:{port}")


def test_an_unreachable_server_blocks_nothing_and_loses_no_points(run, port, caplog):
    other = MemorySink()
    sink = MlflowSink()
    source = MemoryHistory()
    fan_out = FanOut([sink, other], run, source)
    start = time.monotonic()
    source.append([*points(0, 10), LogParams({"lr": "0.1"})])
    fan_out.wake()
    assert time.monotonic() - start < 0.5
    wait_until(lambda: len(other.points) == 10 and fan_out.health()[0].error)
    assert not fan_out.flush(0.2)
    assert fan_out.mlflow_run_id(0) is None

    start = time.monotonic()
    assert not fan_out.close("FINISHED", 20)
    assert time.monotonic() - start < 10
    health = fan_out.health()[0]
    assert health.backlog == 11
    assert f"127.0.0.1:{port}" in health.error
    assert source.cursor("mlflow") is None
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 2
    for part in ("does not work", f"127.0.0.1:{port}", "continues", "buffered", "check that the server runs"):
        assert part in warnings[0]
    assert "delivered when the run is restarted" in warnings[1]


def test_a_server_that_never_answers_does_not_delay_the_end(tmp_path):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        run = make_run_info(tmp_path, tracking_uri=f"http://127.0.0.1:{silent.getsockname()[1]}")
        thread = SinkThread(MlflowSink(), run, MemoryHistory(points(0, 10)))
        connection, _ = silent.accept()
        with connection:
            start = time.monotonic()
            assert not thread.close("FINISHED", 1)
            assert time.monotonic() - start < 3
    assert thread.backlog == 10


def test_passwords_stay_out_of_the_log(tmp_path, port, caplog):
    run = make_run_info(tmp_path, tracking_uri=f"http://ann:s3cret@127.0.0.1:{port}")
    thread = SinkThread(MlflowSink(), run, MemoryHistory())
    wait_until(lambda: thread.error)
    thread.close("FINISHED", 5)
    assert "ann:***@127.0.0.1" in caplog.text
    assert "s3cret" not in caplog.text
    assert "s3cret" not in str(thread.error)
