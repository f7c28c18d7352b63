"""A mirror in an S3 object store: moto's server in a separate process, behind a connection that can be cut."""

import contextlib
import random
import signal
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
from trieye.history.history import read_history
from trieye.mirror.restore import has_run, restore_run
from trieye.mirror.store import MirrorStore

pytestmark = pytest.mark.usefixtures("warm_programs")

STEPS = 30

# saves 4 MB at each step; the state depends on every step
TRAINING = """
import sys
import time
import numpy as np
import trieye

root, mirror, steps, pause_s = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
config = trieye.TrieyeConfig(
    app_name="app", run_name="run", runtime={"kind": "local"}, sinks={},
    persistence={"root_data_dir": root, "mirror": mirror, "mirror_interval_s": 1, "keep_last": 2},
    stats={"metrics": [{"name": "total", "log_frequency_steps": 1}], "hub_metrics_interval_s": 0},
)
with trieye.Run(config) as run:
    state = {"total": np.zeros(500_000), "noise": np.random.default_rng(0)}
    if run.restore():
        state = dict(run.restored)
        print("resumed", run.step, run.attempt, flush=True)
    for step in run.steps(steps):
        state["total"] = state["total"] * 0.5 + state["noise"].normal(size=500_000)
        run.log("total", float(state["total"].sum()))
        run.save(**state)
        print(step, flush=True)
        time.sleep(pause_s)
"""

PROXY = """
import asyncio, sys

async def forward(reader, writer):
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()

async def connect(reader, writer):
    far_reader, far_writer = await asyncio.open_connection("127.0.0.1", int(sys.argv[2]))
    await asyncio.gather(forward(reader, far_writer), forward(far_reader, writer))

async def main():
    server = await asyncio.start_server(connect, "127.0.0.1", int(sys.argv[1]))
    await server.serve_forever()

asyncio.run(main())
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Proxy:
    """A TCP proxy in a separate process to a local port, until it is cut."""

    def __init__(self, port):
        self.port, self._target = free_port(), port
        self.mend()

    def mend(self):
        command = [sys.executable, "-c", PROXY, str(self.port), str(self._target)]
        self._process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        wait_until(self._accepts_connections)

    def _accepts_connections(self):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
        return False

    def cut(self):
        self._process.kill()
        self._process.wait()


@pytest.fixture(scope="module")
def s3():
    """Start the store, configure it through the variables that users set, and return the proxy to it."""
    port = free_port()
    proxy = Proxy(port)
    command = [Path(sys.executable).with_name("moto_server"), "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with pytest.MonkeyPatch.context() as environment:
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.port}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "secret-of-the-test",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_MAX_ATTEMPTS": "1",
        }.items():
            environment.setenv(name, value)
        try:
            wait_until(lambda: _answers(proxy.port))
            yield proxy
        finally:
            server.kill()
            server.wait()
            proxy.cut()


def _answers(port):
    with contextlib.suppress(OSError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=2).close()
        return True
    return False


@pytest.fixture
def url(s3, request):
    bucket = request.node.name.replace("_", "-")[:40].strip("-")
    request_to_create = urllib.request.Request(f"http://127.0.0.1:{s3.port}/{bucket}", method="PUT")
    urllib.request.urlopen(request_to_create, timeout=10).close()  # noqa: S310 - the server of this test
    return f"s3://{bucket}/my prefix"


def start(root, url, steps=STEPS, pause_s=0.0):
    command = [sys.executable, "-c", TRAINING, str(root), url, str(steps), str(pause_s)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def state_of(root):
    loaded = trieye.load_checkpoint(root / "app" / "runs" / "run", "latest")
    return loaded.step, loaded.objects["total"], loaded.objects["noise"].bit_generator.state


def curve_of(root):
    points = read_history(root / "app" / "runs" / "run")
    return dict(zip(points["step"].to_pylist(), points["value"].to_pylist(), strict=True))


def uninterrupted():
    """Return curve, state and generator state of an uninterrupted training."""
    noise, total, curve = np.random.default_rng(0), np.zeros(500_000), {}
    for step in range(1, STEPS + 1):
        total = total * 0.5 + noise.normal(size=500_000)
        curve[step] = float(total.sum())
    return curve, total, noise.bit_generator.state


@pytest.mark.long
def test_a_run_killed_during_uploads_resumes_exactly_on_another_machine(url, tmp_path):
    moments = random.Random(4)
    store = MirrorStore(url, "app", "run")
    for machine in range(2):
        process = start(tmp_path / str(machine), url, pause_s=0.0 if machine else 0.15)  # 5 s until it is killed
        if machine == 0:
            _wait_for_an_upload(store, process)
            time.sleep(moments.uniform(0, 0.3))
            assert process.poll() is None, process.communicate()[1]
            process.send_signal(signal.SIGKILL)
        out, errors = process.communicate()
        if machine:
            assert "is restored from the mirror" in errors
            assert f" {machine + 1}\n" in out.partition("resumed")[2]
    assert process.returncode == 0, errors
    curve, total, noise = uninterrupted()
    step, restored_total, restored_noise = state_of(tmp_path / "1")
    assert (step, restored_noise) == (STEPS, noise)
    assert (restored_total == total).all()
    assert curve_of(tmp_path / "1") == curve
    _, marked = _checkpoints(store)
    newest = {f"checkpoint_step_{step}" for step in (STEPS - 1, STEPS)}
    assert newest <= {name.split("-")[0] for name in marked}


def _wait_for_an_upload(store, process):
    """Wait until the process has uploaded a checkpoint and started with the next one."""
    before = _checkpoints(store)[1]

    def has_uploaded():
        begun, marked = _checkpoints(store)
        return (marked - before and begun - marked) or process.poll() is not None

    wait_until(has_uploaded)


def _checkpoints(store):
    keys = [key for key in store.list() if key.startswith("checkpoints/")]
    return {key.split("/")[1] for key in keys}, {key.split("/")[1] for key in keys if key.endswith("/MANIFEST.json")}


@pytest.mark.long
def test_a_store_outage_blocks_nothing_and_pending_saves_follow_it(s3, url, make_config, tmp_path):
    config = make_config(persistence={"root_data_dir": str(tmp_path / "first"), "mirror": url, "mirror_interval_s": 1})
    with trieye.Run(config) as run:
        run.step = 1
        run.save(a=np.ones(1000))
        wait_until(lambda: run.health()["mirror"]["committed"] == "checkpoint_step_1")
        s3.cut()
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
            s3.mend()
        wait_until(lambda: run.health()["mirror"]["committed"] == "checkpoint_step_2")
        wait_until(lambda: run.health()["mirror"]["error"] is None)


def test_a_missing_bucket_stops_a_new_run_before_its_start(s3, tmp_path):
    run = MirroredRun(tmp_path / "first", "s3://no-such-bucket/x", begin=False)
    with pytest.raises(ConfigurationError, match=r"s3://no-such-bucket/x: .*bucket does not exist"):
        restore_run(run.paths, run.url)
    with pytest.raises(ConfigurationError, match=r"s3://no-such-bucket/x: .*bucket does not exist"):
        has_run(run.url, APP, RUN)


@pytest.mark.long
def test_an_unreachable_store_stops_a_new_run_before_its_start(s3, url, tmp_path):
    run = MirroredRun(tmp_path / "first", url, begin=False)
    s3.cut()
    try:
        with pytest.raises(ConfigurationError, match=r"cannot be restored from the mirror: .*Could not connect"):
            restore_run(run.paths, url)
    finally:
        s3.mend()
