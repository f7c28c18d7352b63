"""Hubs that outlive their drivers, and drivers that are killed, on one cluster."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

import trieye
from trieye.compat.actor import get_or_create
from trieye.files.run_files import RunFiles
from trieye.process.lock import RunLock

pytestmark = pytest.mark.usefixtures("ray_cluster")

DRIVER = """
import json, sys, ray, trieye
config = trieye.TrieyeConfig.model_validate(json.loads(sys.argv[1]))
if sys.argv[2] == "detached":
    ray.init(address=config.runtime.address, namespace="elsewhere", logging_level="ERROR")
    actor = trieye.TrieyeActor.options(name="my_hub", lifetime="detached").remote(config=config)
    event = trieye.RawMetricEvent(name="a", value=1.0, global_step=1)
    ray.get(actor.log_batch_events.remote([event] * 10))
else:
    run = trieye.Run(config).open()
    run.log("a", 1.0, step=1)
    run.flush()
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def config(make_config):
    import ray

    address = ray.get_runtime_context().gcs_address
    return make_config(
        runtime={"kind": "cluster", "address": address}, stats={"metrics": [{"name": "a", "aggregation": "count"}]}
    )


@pytest.fixture
def start_driver(config):
    started = []

    def start(kind):
        command = [sys.executable, "-c", DRIVER, config.model_dump_json(), kind]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def kill(process):
    process.kill()
    process.wait()


def record_of(config):
    return json.loads(RunFiles(config.persistence).run_record_path.read_text())


def test_a_new_driver_finds_an_orphaned_hub_in_any_namespace(config, start_driver):
    import ray

    kill(start_driver("detached"))
    lock = RunLock(RunFiles(config.persistence).lock_path)
    hub = get_or_create(config)
    assert ray.get(hub.health.remote())["pid"] == lock.holder()["pid"]
    assert lock.holder()["actor"] == "my_hub"
    with pytest.raises(trieye.RunLockedError, match=f"process {os.getpid()} on .* through a detached hub"):
        trieye.Run(config).open()
    ray.kill(hub)


def test_a_run_takes_over_a_detached_hub_only_after_its_driver_died(config, start_driver, capfd):
    driver = start_driver("detached")
    with pytest.raises(trieye.RunLockedError, match=f"process {driver.pid} on .* through a detached hub"):
        trieye.Run(config).open()
    kill(driver)
    with trieye.Run(config) as run:
        assert run.attempt == 2
        run.log("a", 1.0, step=2)
    assert "no living driver" in capfd.readouterr().err
    assert record_of(config)["status"] == "FINISHED"
    assert record_of(config)["summary"]["a"] == {"last": 1.0, "min": 1.0, "max": 10.0, "step": 2}


@pytest.mark.long
def test_a_run_on_a_cluster_reopens_right_after_its_driver_was_killed(config, start_driver):
    driver = start_driver("run")
    with pytest.raises(trieye.RunLockedError, match=f"process {driver.pid} on"):
        trieye.Run(config).open()
    kill(driver)
    with trieye.Run(config) as run:
        assert run.attempt == 2
        run.log("a", 1.0, step=2)
    assert [record_of(config)["summary"]["a"][key] for key in ("last", "step")] == [1.0, 2]


@pytest.mark.long
def test_a_restarted_hub_keeps_the_lock_of_its_driver(config):
    import ray

    with trieye.Run(config) as run:
        actor = run._attempt.hub._actor
        first = ray.get(actor.health.remote())["pid"]
        run.log("a", 1.0, step=1)
        run.flush()
        os.kill(first, signal.SIGKILL)
        deadline = time.monotonic() + 60
        while True:  # a second driver must not get the lock in between
            with pytest.raises(trieye.RunLockedError, match=str(os.getpid())):
                RunLock(RunFiles(config.persistence).lock_path).acquire()
            try:
                second = ray.get(actor.health.remote(), timeout=0.2)["pid"]
            except (ray.exceptions.RayError, TimeoutError):
                assert time.monotonic() < deadline
            else:
                break
        assert second != first
        run.log("a", 1.0, step=1)
    assert record_of(config)["summary"]["a"]["last"] == 2.0
    assert record_of(config)["attempt"] == 1
