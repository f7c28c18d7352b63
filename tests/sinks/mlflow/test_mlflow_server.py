"""A real MLflow server on this machine, in aspects that differ from a local database."""

import dataclasses
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from mlflow import MlflowClient

from trieye.run import media
from trieye.sinks.mlflow.sink import MlflowSink
from trieye.sinks.mlflow.store import prepare_database
from trieye.testing import make_run_info

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("patient")]
NUM_MEMBERS = 4


@pytest.fixture(scope="module")
def server(tmp_path_factory, warm_programs):
    """Start a server with all its data in a directory, at the first use."""
    root = tmp_path_factory.mktemp("server")
    prepare_database(root / "server.db")
    command = [sys.executable, str(Path(__file__).parents[1] / "mlflow_server.py"), str(root), "0"]
    process = subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def run(tmp_path, server, request):
    return make_run_info(tmp_path, tracking_uri=server, app_name=request.node.name, run_id=request.node.name)


@pytest.fixture
def client(server):
    return MlflowClient(tracking_uri=server)


def opened(run):
    sink = MlflowSink()
    sink.open(run)
    return sink


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
