"""A mirror in an S3 object store: moto's server in a separate process, which loses all objects when it is killed."""

import contextlib
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest

import trieye
from tests.mirror.mirrored_run import APP, RUN, MirroredRun
from tests.waiting import wait_until
from trieye.exceptions import ConfigurationError
from trieye.mirror.restore import has_run, restore_run


class Server:
    """An object store at a fixed address."""

    def __init__(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.start()

    def start(self):
        command = [Path(sys.executable).with_name("moto_server"), "-H", "127.0.0.1", "-p", str(self.port)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(self._answers)

    def _answers(self):
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{self.port}", timeout=2).close()
            return True
        return False

    def kill(self):
        self._process.kill()
        self._process.wait()

    def create_bucket(self, name):
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/{name}", method="PUT")
        urllib.request.urlopen(request, timeout=10).close()  # noqa: S310 - the server of this test


@pytest.fixture(scope="module")
def s3():
    """Start the store, and configure it through the variables that users set."""
    server = Server()
    with pytest.MonkeyPatch.context() as environment:
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.port}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "secret-of-the-test",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_MAX_ATTEMPTS": "1",
        }.items():
            environment.setenv(name, value)
        yield server
    server.kill()


@pytest.fixture
def bucket(s3, request):
    name = request.node.name.replace("_", "-")[:40].strip("-")
    s3.create_bucket(name)
    return name


@pytest.fixture
def url(bucket):
    return f"s3://{bucket}/my prefix"


def test_a_run_is_uploaded_and_restored(url, tmp_path):
    run = MirroredRun(tmp_path / "first", url)
    for step in (1, 2, 3):
        run.save(step, buffer=True)
        run.prune(2)
        run.upload()
    run.journal.close()
    uploaded_saves = {key.split("-")[0] for key in run.store().list() if key.endswith("/MANIFEST.json")}
    assert uploaded_saves == {f"{kind}s/{kind}_step_{step}" for kind in ("checkpoint", "buffer") for step in (2, 3)}
    other = MirroredRun(tmp_path / "second", url, begin=False)
    assert "checkpoint_step_3" in restore_run(other.paths, url)
    assert (other.run_id(), other.num_records()) == (run.record.run_id, 3)
    assert other.checkpoints.load(other.checkpoints.latest().path)["a"].tolist() == [3] * 100


@pytest.mark.long
def test_a_store_outage_blocks_nothing_and_pending_saves_follow_it(s3, bucket, url, make_config):
    with trieye.Run(make_config(persistence={"mirror": url, "mirror_interval_s": 1})) as run:
        run.step = 1
        run.save(a=np.ones(1000))
        wait_until(lambda: run.health()["mirror"]["committed"] == "checkpoint_step_1")
        s3.kill()
        try:
            began = time.monotonic()
            run.step = 2
            run.log("loss", 1.0)
            run.save(a=np.full(1000, 2.0))
            run.flush()
            run.wait_for_saves()
            assert time.monotonic() - began < 2.0
            wait_until(lambda: run.health()["mirror"]["error"])
            assert "EndpointConnectionError" in run.health()["mirror"]["error"]
            assert "secret-of-the-test" not in str(run.health())
        finally:
            s3.start()
            s3.create_bucket(bucket)
        wait_until(lambda: run.health()["mirror"]["committed"] == "checkpoint_step_2")
        wait_until(lambda: run.health()["mirror"]["error"] is None)


def test_a_missing_bucket_stops_a_new_run_before_its_start(s3, tmp_path):
    run = MirroredRun(tmp_path / "first", "s3://no-such-bucket/x", begin=False)
    for read in (lambda: restore_run(run.paths, run.url), lambda: has_run(run.url, APP, RUN)):
        with pytest.raises(ConfigurationError, match=r"s3://no-such-bucket/x: .*bucket does not exist"):
            read()
