"""A real MLflow server on this machine, in aspects that differ from a local database."""

import dataclasses
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from mlflow import MlflowClient

from tests.sinks.mlflow.conftest import free_port
from tests.waiting import LONG_S
from trieye.run import media
from trieye.sinks.mlflow.sink import MlflowSink
from trieye.sinks.mlflow.store import prepare_database
from trieye.sinks.thread import SinkThread
from trieye.stats.point import Point
from trieye.testing import MemoryHistory, make_run_info

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("patient")]
NUM_MEMBERS = 4


@pytest.fixture(scope="module")
def port():
    return free_port()


@pytest.fixture(scope="module")
def server(tmp_path_factory, port, warm_programs):
    """Start a server with all its data in a directory, at the first use."""
    root = tmp_path_factory.mktemp("server")
    prepare_database(root / "server.db")
    command = [sys.executable, str(Path(__file__).parents[1] / "mlflow_server.py"), str(root), str(port)]
    process = subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout.readline() == f"{port}\n", "the server did not start"
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def run(tmp_path, server, request):
    return make_run_info(tmp_path, tracking_uri=server, app_name=request.node.name, run_id=request.node.name)


@pytest.fixture
def client(server):
    return MlflowClient(tracking_uri=server)


def points(num):
    return [Point("loss", step * 0.25, step, 1.7e9 + step * 0.01) for step in range(num)]


def opened(run, **options):
    sink = MlflowSink(**options)
    sink.open(run)
    return sink


@pytest.mark.long
def test_points_arrive_when_the_server_comes_up(tmp_path, port, request):
    # the first test, before another starts the server
    run, source = make_run_info(tmp_path, tracking_uri=f"http://127.0.0.1:{port}"), MemoryHistory(points(1200))
    assert not SinkThread(MlflowSink(), run, source).close("KILLED", 2)  # an attempt without the server
    sink = MlflowSink()
    source.append(points(1500)[1200:])
    second = SinkThread(sink, run, source)
    assert not second.flush(2)

    client = MlflowClient(tracking_uri=request.getfixturevalue("server"))
    assert second.flush(LONG_S)
    (tmp_path / "one.txt").write_text("1")
    sink.log_artifact(tmp_path / "one.txt", "sub")
    assert second.close("FINISHED", 20)
    history = client.get_metric_history(sink.run_id, "loss")
    assert sorted(metric.step for metric in history) == list(range(1500))
    assert client.get_run(sink.run_id).info.status == "FINISHED"
    assert [file.path for file in client.list_artifacts(sink.run_id, "sub")] == ["sub/one.txt"]
    assert source.cursor("mlflow").index == 1500


def test_members_that_start_concurrently_share_a_parent(run, client):
    members = [dataclasses.replace(run, run_id=str(number), group="/it's/a sweep") for number in range(NUM_MEMBERS)]
    with ThreadPoolExecutor(NUM_MEMBERS) as pool:
        sinks = list(pool.map(opened, members))
    parents = {client.get_run(sink.run_id).data.tags["mlflow.parentRunId"] for sink in sinks}
    parent = client.get_run(min(parents))
    assert (parent.info.run_name, parent.info.status) == ("it's/a sweep", "RUNNING")
    for sink in sinks:
        sink.close("FINISHED")
    (parent_id,) = {client.get_run(sink.run_id).data.tags["mlflow.parentRunId"] for sink in sinks}
    all_runs = client.search_runs([parent.info.experiment_id])
    assert {run.info.run_id for run in all_runs} == {parent_id, *(sink.run_id for sink in sinks)}
    assert client.get_run(parent_id).info.status == "FINISHED"


def test_images_and_texts_are_stored(run, client, tmp_path):
    sink = opened(run)
    for _ in range(2):
        sink.log_media(media.image("a b:c/é@1", [[0.0, 1.0]], step=3, time=1.7e9))
        sink.log_media(media.text("%2e%2e/note", "# Größe", step=3, time=1.7e9))
    paths = [file.path for file in client.list_artifacts(sink.run_id, "images/a b:c/é_x40_1")]
    assert paths == ["images/a b:c/é_x40_1/step_3.png"]
    (text,) = client.list_artifacts(sink.run_id, "texts/_x25_2e_x25_2e/note")
    downloaded = client.download_artifacts(sink.run_id, text.path, str(tmp_path))
    assert Path(downloaded).read_text(encoding="utf-8") == "# Größe"
