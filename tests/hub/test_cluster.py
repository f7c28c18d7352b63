"""The cluster check, joining a cluster, and messages about clusters that cannot be joined."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.json_schemas import validated
from trieye.cli import main
from trieye.config import RuntimeConfig
from trieye.exceptions import ConfigurationError
from trieye.hub.cluster import Node, compare, offset_of, unreachable

GB = 1_000_000_000
VERSIONS = {"trieye": "0.3.0", "ray": "2.60.0", "torch": "2.13.0", "numpy": "2.3.0"}
HERE = Node("here", "", "laptop", python="3.11.7", versions=VERSIONS)
WELL = Node(
    "abcdef0123456789", "10.0.0.2", "worker", python="3.11.9", executable="/usr/bin/python3", versions=VERSIONS,
    disks={"/data": (50 * GB, 100 * GB)},
)  # fmt: skip


def test_a_healthy_cluster_has_no_findings():
    findings = compare([WELL, replace(WELL, is_here=True)], HERE, "/data")
    assert (findings.problems, findings.notes) == ([], [])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"import_error": "ModuleNotFoundError: No module named 'trieye'", "versions": {**VERSIONS, "trieye": None}},
            "python3 cannot import trieye: ModuleNotFoundError: No module named 'trieye'; install trieye 0.3.0 there",
        ),
        ({"versions": {**VERSIONS, "trieye": "0.2.0"}}, "trieye 0.2.0 there, 0.3.0 here"),
        ({"versions": {**VERSIONS, "ray": "2.55.0"}}, "ray 2.55.0 there, 2.60.0 here"),
        ({"python": "3.12.1"}, "Python 3.12.1 there, 3.11.7 here"),
        ({"error": "no worker started there in time"}, "does not answer: no worker started there in time"),
        ({"disks": {"/data": (GB, 100 * GB)}}, "1.0 GB of 100.0 GB are free in /data"),
        ({"disks": {"/data": (GB // 100, GB // 50)}}, "0.0 GB of 0.0 GB are free in /data"),
    ],
)
def test_a_node_that_cannot_run_a_training_is_a_problem(change, message):
    findings = compare([replace(WELL, **change)], HERE, "/data")
    assert len(findings.problems) == 1
    assert findings.problems[0].startswith("node abcdef01 (worker)")
    assert message in findings.problems[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"versions": {**VERSIONS, "torch": "2.12.0"}}, "torch 2.12.0 there, 2.13.0 here"),
        ({"sees_root": False}, "/data is not the same directory there"),
        ({"sees_root": False, "can_write": False}, "/data cannot be written there: jobs of a sweep fail"),
        ({"offset_s": -3.0}, "its clock is -3.00 s off"),
        ({"latency_s": 0.05}, "the round trip takes 50 ms"),
        ({"is_alive": False}, "is dead"),
    ],
)
def test_a_possibly_intended_difference_is_a_note(change, message):
    findings = compare([replace(WELL, **change)], HERE, "/data")
    assert findings.problems == []
    assert len(findings.notes) == 1
    assert message in findings.notes[0]


def test_findings_shared_by_many_nodes_are_reported_once():
    old = {"versions": {**VERSIONS, "trieye": "0.2.0"}, "sees_root": False}
    nodes = [replace(WELL, node_id=str(number), host=f"worker{number}", **old) for number in range(20)]
    findings = compare([WELL, *nodes], HERE, "/data")
    assert [len(findings.problems), len(findings.notes)] == [1, 1]
    assert findings.problems[0].startswith("20 nodes (worker0, worker1, ")
    assert ", ...): trieye 0.2.0 there, 0.3.0 here" in findings.problems[0]


def test_the_fastest_answer_determines_latency_and_clock_offset():
    latency_s, offset_s = offset_of([(0.0, 5.9, 1.0), (2.0, 7.05, 2.1), (3.0, 9.0, 4.5)])
    assert latency_s == pytest.approx(0.1)
    assert offset_s == pytest.approx(5.0)


def test_cluster_check_queries_the_nodes_of_a_real_cluster(ray_cluster, tmp_path):
    import ray

    address = ray.get_runtime_context().gcs_address
    command = [sys.executable, "-m", "trieye.cli", "cluster", "check", address, "--json", "--root", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    report = validated(done.stdout)
    (node,) = report["nodes"]
    assert node["node_id"] == ray.get_runtime_context().get_node_id()
    assert node["versions"] == report["versions"]
    assert node["import_error"] is None
    assert node["sees_root"]
    assert 0.0 < node["latency_s"] < 5.0
    assert abs(node["offset_s"]) < node["latency_s"]  # both use the same clock
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_nodes_are_compared_even_if_the_directory_cannot_be_written(ray_cluster):
    from trieye.hub.ray_cluster import ask_nodes

    (node,) = ask_nodes(Path("/proc"), 60.0)  # a file system that refuses new files, also of root
    assert (node.error, node.sees_root) == (None, False)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.1:1", "no Ray cluster answers there"),
        ("ray://127.0.0.1:10001", "Ray Client leaves the program outside"),
        ("http://127.0.0.1:8265", "the address of a Ray cluster is HOST:PORT"),
        ("head", "the address of a Ray cluster is HOST:PORT"),
        (".head:6379", "Ray cannot be joined there (UnicodeError: "),
    ],
)
def test_cluster_check_rejects_an_address_without_a_cluster(monkeypatch, capsys, address, message):
    monkeypatch.setenv("RAY_ADDRESS", address)
    for arguments, source in (([address], "address"), ([], "RAY_ADDRESS")):
        assert main(["cluster", "check", *arguments]) == 2
        assert capsys.readouterr().err.splitlines()[-1].startswith(f"error: {source}={address}: {message}")


def test_an_auto_address_without_a_running_ray_is_an_error(monkeypatch):
    import ray

    from trieye.hub.ray_cluster import address_to_join

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    stale = "127.0.0.1:1"
    monkeypatch.setattr(ray._private.services, "get_ray_address_from_environment", lambda *_: stale)
    with pytest.raises(
        ConfigurationError, match=r"^x=auto, which was 127\.0\.0\.1:1 when Ray was started here: no Ray"
    ):
        address_to_join("x=auto", "auto")

    def nothing(*_):
        raise ConnectionError("Could not find any running Ray instance.")

    monkeypatch.setattr(ray._private.services, "get_ray_address_from_environment", nothing)
    with pytest.raises(ConfigurationError, match=r"^x=auto: no Ray runs on this machine; start one with"):
        address_to_join("x=auto", "auto")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ConnectionRefusedError(111, "Connection refused"), "no Ray cluster answers there"),
        (ConnectionError("Failed to connect to Ray cluster at 10.0.0.5:6379"), "`export RAY_AUTH_MODE=token` here"),
        (
            RuntimeError("Version mismatch: Ray 2.55"),
            "cannot be joined there (RuntimeError: Version mismatch: Ray 2.55)",
        ),
    ],
)
def test_the_message_depends_on_why_a_cluster_is_unreachable(error, message):
    assert message in unreachable("address=10.0.0.5:6379", error)


def test_an_unknown_runtime_env_key_is_rejected_unless_ray_has_plugins(monkeypatch):
    import ray

    from trieye.hub.ray_start import join_ray

    runtime = RuntimeConfig(kind="cluster", address="127.0.0.1:1", runtime_env={"pipp": ["gymnasium"]})
    with pytest.raises(
        ConfigurationError, match=r"^hydra\.launcher\.runtime_env: Ray \S+ has no key 'pipp'; did you mean 'pip'\?"
    ):
        join_ray(runtime, "hydra.launcher")
    monkeypatch.setenv("RAY_RUNTIME_ENV_PLUGINS", '[{"class": "mine.Plugin"}]')
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    assert join_ray(runtime, "hydra.launcher") == []
