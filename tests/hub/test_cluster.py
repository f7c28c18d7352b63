"""What is said of the nodes of a cluster."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from trieye.hub.cluster import Node, compare, offset_of

GB = 1_000_000_000
VERSIONS = {"trieye": "0.3.0", "ray": "2.60.0", "torch": "2.13.0", "numpy": "2.3.0"}
HERE = Node("here", "", "laptop", python="3.11.7", versions=VERSIONS)
WELL = Node(
    "abcdef0123456789",
    "10.0.0.2",
    "worker",
    python="3.11.9",
    executable="/usr/bin/python3",
    versions=VERSIONS,
    disks={"/data": (50 * GB, 100 * GB)},
)


def test_of_a_cluster_that_is_well_nothing_is_said():
    found = compare([WELL, replace(WELL, is_here=True)], HERE, "/data")
    assert (found.problems, found.notes) == ([], [])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"import_error": "ModuleNotFoundError: No module named 'trieye'", "versions": {**VERSIONS, "trieye": None}},
            "by /usr/bin/python3: ModuleNotFoundError: No module named 'trieye'; install there what is installed here",
        ),
        ({"versions": {**VERSIONS, "trieye": "0.2.0"}}, "trieye 0.2.0 there, 0.3.0 here"),
        ({"versions": {**VERSIONS, "ray": "2.55.0"}}, "ray 2.55.0 there, 2.60.0 here"),
        ({"python": "3.12.1"}, "Python 3.12.1 there, 3.11.7 here"),
        ({"error": "no worker started there in time"}, "does not answer: no worker started there in time"),
        ({"disks": {"/data": (GB, 100 * GB)}}, "1.0 GB of 100.0 GB are free in /data"),
    ],
)
def test_what_keeps_a_training_from_running_is_a_problem_with_a_name(change, said):
    found = compare([replace(WELL, **change)], HERE, "/data")
    assert len(found.problems) == 1
    assert found.problems[0].startswith("node abcdef01 (worker)")
    assert said in found.problems[0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"versions": {**VERSIONS, "torch": "2.12.0"}}, "torch 2.12.0 there, 2.13.0 here"),
        ({"sees_root": False}, "/data is not the same directory there"),
        ({"offset_s": -3.0}, "its clock is -3.00 s off"),
        ({"latency_s": 0.05}, "50 ms there and back"),
        ({"is_alive": False}, "is dead"),
    ],
)
def test_what_may_be_meant_so_is_a_note(change, said):
    found = compare([replace(WELL, **change)], HERE, "/data")
    assert found.problems == []
    assert len(found.notes) == 1
    assert said in found.notes[0]


def test_of_a_clock_the_fastest_answer_counts():
    latency_s, offset_s = offset_of([(0.0, 5.9, 1.0), (2.0, 7.05, 2.1), (3.0, 9.0, 4.5)])
    assert latency_s == pytest.approx(0.1)
    assert offset_s == pytest.approx(5.0)


def test_the_command_asks_the_nodes_of_a_real_cluster(ray_cluster, tmp_path):
    import ray

    address = ray.get_runtime_context().gcs_address
    command = [sys.executable, "-m", "trieye.cli", "cluster", "check", address, "--json", "--root", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    (node,) = told["nodes"]
    assert node["node_id"] == ray.get_runtime_context().get_node_id()
    assert node["versions"] == told["versions"]
    assert node["import_error"] is None
    assert node["sees_root"]
    assert 0.0 < node["latency_s"] < 5.0
    assert abs(node["offset_s"]) < node["latency_s"]  # it is the same clock
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("127.0.0.1:1", "error: address=127.0.0.1:1: no Ray cluster answers there"),
        ("ray://127.0.0.1:10001", "error: address=ray://127.0.0.1:10001: Ray Client leaves the program outside"),
    ],
)
def test_where_no_cluster_is_the_command_says_so(address, said):
    command = [sys.executable, "-m", "trieye.cli", "cluster", "check", address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(said)
