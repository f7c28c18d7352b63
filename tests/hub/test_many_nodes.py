"""Clusters of several nodes, started as docs/cluster.md describes: the checks of the nodes, and trainings on them."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import psutil
import pytest

from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
PORT = 6397

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600)]


def commands():
    """Return the commands of docs/cluster.md, with this machine as every node."""
    page = (ROOT / "docs/cluster.md").read_text()
    (block,) = re.findall(r"^```console\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    lines = [line.split("  #")[0].strip() for line in block.splitlines()]
    return [line.replace("HEAD", "127.0.0.1").replace("6379", str(PORT)) for line in lines]


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Yield a function that runs a command as on a separate machine; end the Ray that it started afterwards."""
    ray_dir = Path("/tmp") / f"r{os.getpid()}"  # sockets have short names
    ray_dir.mkdir(exist_ok=True)
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "RAY_TMPDIR": str(ray_dir)}
    environment["HOME"] = str(tmp_path)  # with a separate token
    for name in ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH"):
        environment.pop(name, None)

    def run(line, *, folder=tmp_path):
        if line.startswith("export "):
            name, _, value = line.removeprefix("export ").partition("=")
            environment[name] = value
            line = "true"
        return subprocess.run(
            shlex.split(line), cwd=folder, capture_output=True, text=True, timeout=280, env=environment
        )

    def begin(line, *, folder, stderr):
        return subprocess.Popen(shlex.split(line), cwd=folder, stderr=stderr, env=environment)

    run.begin = begin
    run.stop = lambda: stop(ray_dir)
    yield run
    stop(ray_dir)
    shutil.rmtree(ray_dir, ignore_errors=True)


def stop(ray_dir):
    """Stop Ray as `ray stop` does, except for other Rays on this machine."""
    ray_processes = [process for process in psutil.process_iter() if is_ray_below(process, ray_dir)]
    for process in ray_processes:
        process.kill()
    psutil.wait_procs(ray_processes, timeout=30)


def is_ray_below(process, ray_dir):
    try:
        command = process.cmdline()
        is_ray = any(part in " ".join(command) for part in ("ray::", "raylet", "gcs_server", "/ray/"))
        return is_ray and process.environ().get("RAY_TMPDIR") == str(ray_dir)
    except psutil.Error:
        return False


@pytest.fixture
def head(machine):
    """Start the first node as the page does, and return the command for the others."""
    *first, other = commands()[:4]
    for line in first:
        assert machine(small(line)).returncode == 0
    return small(other)


def small(line):
    """Let `ray start` offer one CPU; return other commands unchanged."""
    return f"{line} --num-cpus=1" if line.startswith("ray start") else line


def test_the_commands_of_the_cluster_page_work(machine, tmp_path):
    assert machine("trieye new my_agent --no-input").returncode == 0
    project = tmp_path / "my_agent"
    short = "loop.steps=400 loop.evaluate_every_steps=200 env.eval_episodes=1 agent.learning_starts=32"
    outputs = []
    for line in commands():
        if line == "ray stop":
            machine.stop()
            continue
        command = small(line)
        command += f" {short} explorer.num_cpus=0.2" if "explorer.num" in line else ""
        command += f" {short} hydra.launcher.num_cpus=1 runtime=local" if " -m hydra" in line else ""
        done = machine(command, folder=project)
        assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        outputs.append((line, done.stdout + done.stderr))
    (check,) = [text for line, text in outputs if "cluster check" in line]
    assert "2 of 2 nodes are alive: a training can run on all of them\n" in check
    (training,) = [text for line, text in outputs if "explorer.num" in line]
    assert re.search(rf"sending its workers a copy of {project} \(\d+ files, [\d.,]+ \w+\)", training)
    records = [json.loads(path.read_text()) for path in project.glob(".trieye_data/*/runs/*/run.json")]
    assert [record["status"] for record in records if record["run_name"] == "wide"] == ["FINISHED"]
    assert len([record for record in records if record["status"] == "FINISHED"]) >= 5, outputs


def bare_venv(path):
    """Return the Python of a new environment with the packages of this one except trieye."""
    venv.EnvBuilder(symlinks=True).create(path)
    (packages,) = path.glob("lib/python*/site-packages")
    (site_packages,) = (BIN.parent).glob("lib/python*/site-packages")
    for entry in site_packages.iterdir():
        if "trieye" not in entry.name and entry.suffix != ".pth" and not (packages / entry.name).exists():
            (packages / entry.name).symlink_to(entry)
    return path / "bin" / "python"


def test_a_node_without_trieye_is_reported_and_rejected(machine, head, tmp_path):
    python = bare_venv(tmp_path / "bare")
    assert machine(f"{python} -c 'import ray'").returncode == 0
    assert machine(f"{python} -c 'import trieye'").returncode != 0
    joined = machine(f"{python} -m ray.scripts.scripts {head.removeprefix('ray ')}")
    assert joined.returncode == 0, joined.stderr
    checked = machine("trieye cluster check")
    assert checked.returncode == 1, checked.stdout + checked.stderr
    assert "cannot import trieye: ModuleNotFoundError: No module named 'trieye'; install trieye" in checked.stdout
    assert "2 of 2 nodes are alive: 1 problem\n" in checked.stdout
    assert machine("trieye new my_agent --no-input").returncode == 0
    train = "python -m my_agent.train runtime=cluster explorer.num=2 loop.steps=100 run_name=unfit"
    refused = machine(train, folder=tmp_path / "my_agent")
    assert refused.returncode == 2, refused.stdout + refused.stderr
    assert "No module named 'trieye'" in refused.stderr.splitlines()[-1]
    sweep = machine("python -m my_agent.train -m hydra.launcher.address=auto seed=0,1", folder=tmp_path / "my_agent")
    assert sweep.returncode == 2, sweep.stdout + sweep.stderr
    assert "No module named 'trieye'" in sweep.stderr.splitlines()[-1]


def test_a_sweep_collects_jobs_and_runs_of_a_node_without_a_shared_disk(machine, head, tmp_path):
    assert machine("trieye new my_agent --no-input").returncode == 0
    project = tmp_path / "my_agent"
    apart = "unshare --mount" if os.geteuid() == 0 else "unshare --mount --map-root-user"
    if machine(f"{apart} true").returncode != 0:
        pytest.skip("a machine with other files is made of a mount namespace, which is not allowed here")
    joined = machine(f"{apart} sh -c 'mount -t tmpfs tmpfs {project} && {head}'")
    assert joined.returncode == 0, joined.stderr
    noted = machine("trieye cluster check", folder=project)
    assert f"{project}/.trieye_data is not the same directory there" in noted.stdout
    sweep = "python -m my_agent.train -m hydra.launcher.address=auto seed=0,1 runtime=local sinks=[] loop.steps=200 "
    sweep += "loop.evaluate_every_steps=100 env.eval_episodes=1 agent.learning_starts=32 hydra.sweep.dir=s "
    done = machine(sweep + f"persistence.mirror=file://{tmp_path}/mirror", folder=project)
    assert done.returncode == 0, done.stdout + done.stderr
    records = [json.loads((project / "s" / index / "status.json").read_text()) for index in "01"]
    assert [record["state"] for record in records] == ["completed"] * 2
    assert all(record["step"] >= 200 for record in records)
    assert len(list(project.glob("s/*/output.log"))) == 1, "the other log is on the other disk"
    assert machine("trieye sweep merge s", folder=project).returncode == 0
    assert len(list(project.glob(".trieye_data/*/runs/s_*/run.json"))) == 2
    again = machine("trieye sweep relaunch s", folder=project)
    assert again.stdout.startswith("no jobs to run")


@pytest.mark.usefixtures("head")
def test_a_run_whose_head_node_was_lost_resumes_with_the_same_command(machine, tmp_path):
    assert machine("trieye new my_agent --no-input").returncode == 0
    project = tmp_path / "my_agent"
    train = "python -m my_agent.train runtime=cluster explorer.num=1 agent.learning_starts=32 sinks=[] run_name=lost "
    train += "loop.evaluate_every_steps=100_000 persistence.checkpoint_save_freq_steps=500 env.eval_episodes=1"
    with (tmp_path / "log").open("w") as log:
        first = machine.begin(f"{train} loop.steps=10_000_000", folder=project, stderr=log)
    wait_until(lambda: list(project.glob(".trieye_data/*/runs/lost/checkpoints/checkpoint_step_*")), within_s=120)
    machine.stop()
    assert first.wait(90) != 0
    wait_until(lambda: "run 'lost': its program was ended at once" in (tmp_path / "log").read_text())
    (record,) = project.glob(".trieye_data/*/runs/lost/run.json")
    identity = json.loads(record.read_text())["run_id"]
    assert machine(small(commands()[2])).returncode == 0
    steps = max(int(path.name.split("_")[-1]) for path in record.parent.glob("checkpoints/checkpoint_step_*")) + 500
    again = machine(f"{train} loop.steps={steps}", folder=project)
    assert again.returncode == 0, again.stderr
    assert "continues at step" in again.stderr
    resumed = json.loads(record.read_text())
    assert (resumed["run_id"], resumed["attempt"], resumed["status"]) == (identity, 2, "FINISHED")
