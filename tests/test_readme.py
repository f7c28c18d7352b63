"""README.md and docs/: their commands and code run, their links exist, and the two front pages stay short."""

import json
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import warm
from tests.waiting import wait_until

ROOT = Path(__file__).parents[1]

COMMAND_PAGES = ("README.md", "docs/project.md", "docs/checkpoints.md", "docs/cli.md")
"""Pages whose commands run one after the other, in one project."""
CODE_PAGES = ("README.md", "docs/python_api.md", "docs/checkpoints.md", "docs/replay.md")
"""`compat/test_actor.py` runs docs/compatibility.md, `training/test_docs.py` runs docs/training.md."""
LINKED_PAGES = sorted({*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob(".github/**/*.md")})

NOT_RUN_HERE = ("make ", "pip install", "trieye ui")
"""The first two install what runs this test; the last waits for Ctrl-C."""
pytestmark = pytest.mark.timeout(600)  # the first test that needs the project waits for all commands
KILL = re.compile(r"timeout -s KILL \d+ ")


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)


def commands():
    """Return each command once, in the order of the pages."""
    lines = [
        line.split("  #")[0].split(" # ")[0].strip()
        for page in COMMAND_PAGES
        for block in blocks(page, "bash")
        for line in block.splitlines()
    ]
    return [line for line in dict.fromkeys(lines) if line and not line.startswith(NOT_RUN_HERE)]


def run(command, folder):
    starts = {"python": [], "trieye": ["-m", "trieye.cli"]}
    if command[0] in starts:
        return warm.run([*starts[command[0]], *command[1:]], folder)
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=280)


def small(line):
    """Return the arguments of a command, with a small budget if it trains: the lengths are the demo's business."""
    command = shlex.split(KILL.sub("", line))
    if ".train" not in line or "--help" in line:
        return command
    is_ppo = "agent=ppo" in line
    budget = [
        "loop.steps=48",
        "loop.evaluate_every_steps=24",
        "env.eval_episodes=1",
        "agent.rollout_steps=4" if is_ppo else "agent.learning_starts=32",
    ]
    if "run_name=killed" in line or "run_name=whole" in line:
        budget = [
            "loop.steps=3_072",
            "loop.evaluate_every_steps=3_072",
            "env.eval_episodes=1",
            "agent.rollout_steps=16",
        ]
        budget += [
            "persistence.checkpoint_save_freq_steps=256"
        ]  # the first of twelve, after which one process is killed
    budget += [] if "runtime" in line else ["runtime=local"]
    budget += ["hydra.launcher.isolate=none"] if " -m " in line.partition(".train")[2] else []
    if "sinks" not in line:
        budget += ["sinks=[tensorboard]"] if "run_name=first" in line else ["sinks=[]"]  # MLflow has tests of its own
    return command + budget


def train_until_killed(line, project):
    """Start a training and send it SIGKILL after its first checkpoint."""
    with warm.Popen(
        [sys.executable, *small(line)[1:]], cwd=project, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            wait_until(lambda: list(project.glob(".trieye_data/*/runs/killed/checkpoints/checkpoint_step_*")))
        finally:
            process.kill()
    assert process.returncode == -signal.SIGKILL


def records(project):
    return [json.loads(path.read_text()) for path in project.glob(".trieye_data/*/runs/*/run.json")]


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """Return the project in which every command of the pages has run."""
    folder = tmp_path_factory.mktemp("readme")
    for line in commands():
        if line.startswith("cd "):
            folder = folder / line[3:]
        elif KILL.match(line):
            train_until_killed(line, folder)
        else:
            command = small(line) if line.startswith(("python", "trieye")) else ["bash", "-c", line]
            done = run(command, folder)
            assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
            assert "\x1b" not in done.stdout + done.stderr, "colors are for terminals"
            if line.startswith("sha256sum"):
                (folder / "checksums").write_text(done.stdout)
    return folder


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_bits_of_an_uninterrupted_one(project):
    checksums = [line.split()[0] for line in (project / "checksums").read_text().splitlines()]
    assert len(checksums) == 2
    assert len(set(checksums)) == 1
    (killed,) = [record for record in records(project) if record["run_name"] == "killed"]
    assert killed["attempt"] == 2
    assert "checkpoint_step_" in killed["resumed_from"]


@pytest.mark.slow
def test_all_commands_run_and_every_job_of_the_sweeps_is_completed(project):
    assert {record["status"] for record in records(project)} == {"FINISHED"}
    statuses = [json.loads(path.read_text()) for path in project.glob("multirun/*/*/status.json")]
    assert [status["state"] for status in statuses] == ["completed"] * 4


@pytest.mark.slow
def test_the_python_calls_of_the_runs_page_work_in_a_project(project, tmp_path):
    (block,) = blocks("docs/runs.md", "python")
    assert block.count("runs.rerun(") == 1  # tests/runs start whole programs
    (tmp_path / "shown.py").write_text(block.replace("runs.rerun(", "runs.plan_rerun("))
    done = run(["python", str(tmp_path / "shown.py")], project)
    assert done.returncode == 0, done.stderr
    assert "my_agent/" in done.stdout, done.stdout


@pytest.mark.slow
def test_a_mistake_is_one_message_and_exit_code_2(project):
    (block,) = [block for block in blocks("docs/project.md", "text") if block.startswith("$ ")]
    command, _, message = block.removeprefix("$ ").partition("\n")
    done = run(shlex.split(command), project)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.strip() == message.strip()


CODE = [(page, block) for page in CODE_PAGES for block in blocks(page, "python")]


@pytest.mark.parametrize(
    ("page", "block"), CODE, ids=lambda value: value.strip().splitlines()[0] if "\n" in value else value
)
@pytest.mark.slow
def test_the_code_runs(page, block, tmp_path):
    script = tmp_path / "shown.py"
    script.write_text(block)
    done = run(["python", str(script)], tmp_path)
    assert done.returncode == 0, done.stderr


def test_any_hydra_program_is_swept(tmp_path):
    (program,) = [block for block in blocks("docs/sweeps.md", "python") if block.startswith("# fit.py")]
    (tmp_path / "fit.py").write_text(program)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/config.yaml").write_text("lr: 0.1\nepochs: 20\n")
    (command,) = [block for block in blocks("README.md", "console") if block.startswith("python fit.py")]
    assert command.strip() in (ROOT / "docs/sweeps.md").read_text()
    done = run([*shlex.split(command), "hydra.launcher.isolate=none"], tmp_path)
    assert done.returncode == 0, done.stderr
    status = json.loads(run(["trieye", "sweep", "status", "--json"], tmp_path).stdout)
    assert [job["state"] for job in status["jobs"]] == ["completed"] * 3


def anchors(page):
    """Return the anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", LINKED_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_links_exist(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked), target


@pytest.mark.parametrize("page", ["README.md", "ARCHITECTURE.md"])
def test_the_front_pages_are_short(page):
    assert len((ROOT / page).read_text().splitlines()) <= 150
