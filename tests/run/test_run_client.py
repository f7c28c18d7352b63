"""RunClient in threads of this process, and in Ray tasks and actors."""

import itertools
import json
import os
import pickle
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import trieye
from tests.waiting import wait_until
from trieye.exceptions import ConfigurationError, ProcessingError, RunClosedError
from trieye.history.table import read_history
from trieye.hub.ledger import Ledger
from trieye.hub.logic import HubLogic
from trieye.stats.batch import EventBatch
from trieye.stats.operations import LogText

COUNTED = {"metrics": [{"name": name, "aggregation": "count"} for name in ("a", "b", "c")]}


def counts(run):
    run.step = max(run.step, 1)
    run.flush()
    return {name: summary["last"] for name, summary in run._attempt.hub.ask(HubLogic.summary).items()}


def test_threads_log_concurrently_through_clients_and_the_run(make_config):
    def log(logger):
        for _ in range(2000):
            logger.log("a", 1.0, step=1)

    with trieye.Run(make_config(stats=COUNTED)) as run:
        with ThreadPoolExecutor(4) as pool:
            others = [pool.submit(log, logger) for logger in (run, run, run.client(), run.client())]
            log(run)
        assert [other.result() for other in others] == [None] * 4
        assert counts(run) == {"a": 10_000.0}


def test_a_client_has_a_separate_step(make_config):
    with trieye.Run(make_config()) as run:
        run.step = 100
        client = run.client()
        assert client.step == 0
        client.step = 7
        client.log({"a": 1.0, "b": None})
        client.log_text("note", "hello")
        client.flush()
        items, _ = run._attempt.hub._logic.files.history.read(0, 10)
        assert [item.step for item in items if isinstance(item, LogText)] == [7]
        run.flush()
        assert run._attempt.hub.ask(HubLogic.summary)["a"]["step"] == 7


def test_a_closed_client_rejects_calls_and_the_run_continues(make_config):
    with trieye.Run(make_config(stats=COUNTED)) as run:
        client, other = run.client(), run.client()
        with client:
            client.log("a", 1.0, step=1)
        client.close()
        for call in (lambda: client.log("a", 1.0), client.flush, lambda: client.log_text("note", "hello")):
            with pytest.raises(RunClosedError, match="this client of run 'run' is closed"):
                call()
        run.log("a", 1.0, step=1)
        other.log("a", 1.0, step=1)
        assert counts(run) == {"a": 3.0}
    with pytest.raises(RunClosedError):
        other.log("a", 1.0)


def test_a_delivery_failure_is_raised_or_noted_on_the_error_of_the_user(make_config):
    def raise_unreachable(request, *content, **number):
        raise ConnectionError("the hub is gone")

    def use(error):
        with run.client() as client:
            client.log("a", 1.0)
            if error is not None:
                raise error

    run = trieye.Run(make_config(runtime={"kind": "local", "ack_timeout_s": 0.05})).open()
    run._attempt.hub.send = raise_unreachable
    with pytest.raises(ProcessingError, match="the hub is gone"):
        use(None)
    with pytest.raises(RuntimeError) as caught:
        use(RuntimeError("of the user"))
    assert "the hub is gone" in caught.value.__notes__[0]
    with pytest.raises(ProcessingError):
        run.close()


def test_pickling_a_local_run_is_an_error_with_the_alternatives(make_config):
    with trieye.Run(make_config()) as run:
        for target in (run, run.client()):
            with pytest.raises(ConfigurationError, match=r"use threads, or set runtime=ray .* Ray tasks"):
                pickle.dumps(target)
    with pytest.raises(RunClosedError):
        pickle.dumps(run)


class Handle:
    """Like the handle of an actor, it cannot be loaded without Ray."""

    def __reduce__(self):
        return int, ("not a number",)


def test_loading_a_client_in_a_process_without_ray_is_an_error_with_the_alternative(monkeypatch):
    from trieye.hub import in_ray

    monkeypatch.setattr(in_ray.ray, "is_initialized", lambda: False)
    pickled = pickle.dumps(in_ray.RayEventChannel(Handle(), "first", "key"))
    with pytest.raises(ConfigurationError, match=r"'first' .* not connected.*Ray tasks and actors"):
        pickle.loads(pickled)


@pytest.fixture
def ray(ray_cluster):
    import ray

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # no worker can import a test
    yield ray
    ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


@pytest.fixture
def open_run(make_config, ray):
    """Return a function that opens a run whose hub is an actor."""
    runs = []

    def make(**settings):
        runtime = {"kind": "ray", **settings}
        runs.append(trieye.Run(make_config(stats=COUNTED, runtime=runtime)).open())
        return runs[-1]

    yield make
    for run in runs:
        run.close()


class Worker:
    """An actor that logs values and counts them."""

    def __init__(self, client, *copies):
        self.client, self.copies, self.num_logged, self.is_stopped = client, copies, 0, False

    def log(self, name, number):
        for _ in range(number):
            self.client.log(name, 1.0, step=1)
        self.num_logged += number

    def log_until_stopped(self, name):
        while not self.is_stopped:
            if self.num_logged % 100 == 0:
                self.client.flush()
            self.log(name, 1)
        self.client.close()
        return self.num_logged

    def stop(self):
        self.is_stopped = True

    def kinds(self):
        for each in (self.client, *self.copies):
            each.log("c", 1.0, step=1)
        flushers = {id(each._flusher) for each in (self.client, *self.copies)}
        return [type(each).__name__ for each in (self.client, *self.copies)], len(flushers)

    def flush(self):
        self.client.flush()
        return self.client._flusher._sender.client

    def __ray_shutdown__(self):
        self.client.close()


@pytest.fixture
def start_worker(ray):
    """Return a function that starts a worker, which is killed after the test."""
    started = []

    def start(*clients):
        started.append(ray.remote(num_cpus=0, max_concurrency=2)(Worker).remote(*clients))
        return started[-1]

    yield start
    for worker in started:
        ray.kill(worker)


def test_a_ray_hub_redacts_secrets_of_the_environment_of_the_driver(make_config, ray, monkeypatch):
    monkeypatch.setenv("GAME_TOKEN", "g4me-t0ken")  # Ray has been started before
    with trieye.Run(make_config(tags={"note": "for g4me-t0ken"}, runtime={"kind": "ray"})) as run:
        run.set_tags({"more": "g4me-t0ken"})
    for path in filter(Path.is_file, run.dir.rglob("*")):
        assert b"g4me-t0ken" not in path.read_bytes(), path
    assert json.loads((run.dir / "run.json").read_text())["tags"] == {"note": "for ***", "more": "***"}


@pytest.mark.long
def test_tasks_and_actors_log_to_the_run(open_run, ray, start_worker):
    run = open_run()

    @ray.remote(num_cpus=0)
    def work(client):
        with client:
            client.log("b", 1.0, step=1)
            return client.step

    client = run.client()
    client.step = 5
    worker = start_worker(run, run.client(), client)
    kinds, num_flushers = ray.get(worker.kinds.remote())
    assert kinds == ["RunClient"] * 3
    assert num_flushers == 1
    ray.get(worker.log.remote("a", 1000))
    sender = ray.get(worker.flush.remote())
    assert sender != run._flusher._sender.client
    assert ray.get([work.remote(client), work.remote(run)]) == [5, 0]
    assert counts(run) == {"a": 1000.0, "b": 2.0, "c": 3.0}


@pytest.mark.long
def test_an_actor_that_ends_closes_its_client(open_run, ray):
    run = open_run(flush_interval_s=60)
    workers = [ray.remote(num_cpus=0)(Worker).remote(run) for _ in range(2)]
    ray.get([worker.log.remote("a", 10) for worker in workers])
    del workers
    wait_until(lambda: run.health()["accepted"] >= 20)
    assert counts(run) == {"a": 20.0}


@pytest.mark.slow
@pytest.mark.long
def test_a_killed_hub_loses_no_values_of_the_run_or_its_workers(open_run, ray, start_worker):
    run = open_run(flush_interval_s=0.05)
    workers = [start_worker(run.client()) for _ in range(2)]
    ray.get([worker.log.remote("b", 1) for worker in workers])
    totals, pids, num_logged = [worker.log_until_stopped.remote("b") for worker in workers], set(), 0
    for _ in range(2):
        pid = run.health()["pid"]
        pids.add(pid)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda pid=pid: run.health()["pid"] != pid)
        for _ in range(1000):
            run.log("a", 1.0, step=1)
        num_logged += 1000
        run.flush()
    ray.get([worker.stop.remote() for worker in workers])
    num_by_workers = sum(ray.get(totals))
    assert len(pids) == 2
    assert counts(run) == {"a": float(num_logged), "b": float(num_by_workers)}
    assert run.health()["dropped"] == {}
    assert json.loads((run.dir / "run.json").read_text())["attempt"] == 1


def test_only_values_flushed_before_a_worker_is_killed_or_the_run_closes_are_logged(open_run, ray, start_worker):
    run = open_run(flush_interval_s=60)
    worker = start_worker(run)
    ray.get(worker.log.remote("a", 100))
    ray.get(worker.flush.remote())
    ray.get(worker.log.remote("a", 5))
    ray.kill(worker)
    other = start_worker(run)
    ray.get(other.log.remote("a", 1000))
    ray.get(other.flush.remote())
    assert counts(run) == {"a": 1100.0}
    ray.get(other.log.remote("a", 3))
    run.close()
    with pytest.raises(ray.exceptions.RayTaskError, match="3 are not logged"):
        ray.get(other.flush.remote())


def test_a_run_closed_during_logging_contains_exactly_the_accepted_values(make_config):
    run = trieye.Run(make_config(stats={"metrics": [{"name": "a", "aggregation": "count"}]})).open()
    hub, accepted = run._attempt.hub, []

    def log_until_closed():
        for number in itertools.count(1):
            batch = EventBatch.from_rows([("a", 1.0, number, 1.7e9, None)])
            hub.send(Ledger.log_columns, batch, client="other", seq=number)
            accepted.append(number)

    with ThreadPoolExecutor(1) as pool:
        logging = pool.submit(log_until_closed)
        wait_until(lambda: len(accepted) > 100)
        run.close()
        with pytest.raises(RunClosedError):
            logging.result(60)
    assert sum(read_history(run.dir, metrics=["a"]).column("value").to_pylist()) == len(accepted)
