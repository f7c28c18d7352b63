"""Clusters of several nodes, started as the README says: what is found out about them, and what runs on them."""

import json
import os
import re
import shlex
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
PORT = 6397

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600)]


def section(title):
    text = (ROOT / "README.md").read_text()
    return re.search(rf"^## {title}\n(.*?)^## ", text, re.MULTILINE | re.DOTALL)[1]


def commands():
    """Return what the README's section says to type, for machines that are all this one."""
    (block,) = re.findall(r"^```console\n(.*?)^```", section("On a cluster"), re.MULTILINE | re.DOTALL)
    lines = [line.split("  #")[0].strip() for line in block.splitlines()]
    return [line.replace("HEAD", "127.0.0.1").replace("6379", str(PORT)) for line in lines]


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Return what runs a command as on a machine of its own; what Ray runs is ended in the end."""
    place = Path("/tmp") / f"r{os.getpid()}"  # sockets have short names
    place.mkdir(exist_ok=True)
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "RAY_TMPDIR": str(place)}
    environment.pop("RAY_ADDRESS", None)

    def run(line, *, folder=tmp_path, timeout=280, **changes):
        return subprocess.run(
            shlex.split(line),
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=timeout,
            env={**environment, **changes},
        )

    yield run
    run("ray stop --force")


def head_and_others(line, number):
    """Return the command that starts a node with one CPU and, as machines have, a Ray of its own."""
    return f"{line} --num-cpus=1 --include-dashboard=false" if number == 0 else f"{line} --num-cpus=1"


def test_the_cluster_section_of_the_readme_word_by_word(machine, tmp_path):
    assert machine("trieye new my_agent --no-input").returncode == 0
    project = tmp_path / "my_agent"
    small = "loop.steps=400 loop.evaluate_every_steps=200 env.eval_episodes=1 agent.learning_starts=32"
    seen = []
    for number, line in enumerate(commands()):
        given = head_and_others(line, number) if line.startswith("ray start") else line
        given += f" {small} explorer.num_cpus=0.2" if "explorer.num" in line else ""
        given += f" {small} hydra.launcher.num_cpus=1 runtime=local" if " -m hydra" in line else ""
        done = machine(given, folder=project)
        assert done.returncode == 0, f"{given}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        seen.append((line, done.stdout + done.stderr))
    told = dict(seen)
    (check,) = [text for line, text in seen if "cluster check" in line]
    assert "2 of 2 nodes are alive: a training can run on all of them" in check
    (training,) = [text for line, text in seen if "explorer.num" in line]
    assert re.search(rf"workers get a copy of {project} \(\d+ files, \d+ KiB\)", training)
    records = [json.loads(path.read_text()) for path in project.glob(".trieye_data/*/runs/*/run.json")]
    assert [record["status"] for record in records if record["run_name"] == "wide"] == ["FINISHED"]
    assert len([record for record in records if record["status"] == "FINISHED"]) >= 5, told


def bare_venv(place):
    """Return the Python of an environment that has all that this one has, but for trieye."""
    venv.EnvBuilder(symlinks=True).create(place)
    (packages,) = place.glob("lib/python*/site-packages")
    (ours,) = (BIN.parent).glob("lib/python*/site-packages")
    for path in ours.iterdir():
        if "trieye" not in path.name and path.suffix != ".pth" and not (packages / path.name).exists():
            (packages / path.name).symlink_to(path)
    return place / "bin" / "python"


def test_a_machine_without_trieye_is_found_and_named(machine, tmp_path):
    python = bare_venv(tmp_path / "bare")
    assert machine(f"{python} -c 'import ray'").returncode == 0
    assert machine(f"{python} -c 'import trieye'").returncode != 0
    head, other, *_ = commands()
    assert machine(head_and_others(head, 0)).returncode == 0
    joined = machine(f"{python} -m ray.scripts.scripts {head_and_others(other, 1).removeprefix('ray ')}")
    assert joined.returncode == 0, joined.stderr
    checked = machine("trieye cluster check")
    assert checked.returncode == 1, checked.stdout + checked.stderr
    assert "trieye cannot be imported by" in checked.stdout
    assert "ModuleNotFoundError: No module named 'trieye'; install there what is installed here" in checked.stdout
    assert "2 of 2 nodes are alive: 1 problems" in checked.stdout
    assert machine("trieye new my_agent --no-input").returncode == 0
    train = "python -m my_agent.train runtime=cluster explorer.num=2 loop.steps=100 run_name=unfit"
    refused = machine(train, folder=tmp_path / "my_agent")
    assert refused.returncode == 2, refused.stdout + refused.stderr
    assert "No module named 'trieye'" in refused.stderr.splitlines()[-1]
