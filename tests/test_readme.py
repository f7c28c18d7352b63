"""README.md and docs/: their commands and code run, their links exist, and the two front pages stay short.

Trainings have small budgets, unless `make docs-long` sets TRIEYE_DOCS_LONG=1: then each has the budget of its page.
"""

import itertools
import json
import os
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

COMMAND_PAGES = (
    "README.md",
    "docs/tutorial.md",
    "docs/project.md",
    "docs/checkpoints.md",
    "docs/cli.md",
    "docs/debugging.md",
    *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/algorithms/*.md")),
)
"""Pages whose commands run one after the other, in one project."""
CODE_PAGES = (
    "README.md",
    "docs/python_api.md",
    "docs/checkpoints.md",
    "docs/replay.md",
    "docs/explanations/windows.md",
)
"""Pages whose code needs no project."""
PROJECT_CODE_PAGES = {"docs/runs.md": "my_agent/", "docs/results.md": "Estimate("}
"""Pages whose code runs in the project after all commands, each with a part of its output."""
PAGES_WITH_A_TEST = {
    "docs/compatibility.md": "compat/test_actor.py",
    "docs/hydra_sweeps.md": "test_readme.py",
    "docs/notebooks.md": "test_notebook_page.py",
    "docs/project.md": "test_readme.py",
    "docs/pyexputils.md": "sweeps/test_pyexputils_page.py",
    "docs/training.md": "training/test_docs.py",
}
"""Pages whose code is one program, and the test that runs it."""
LINKED_PAGES = sorted({*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob(".github/**/*.md")})

NOT_RUN_HERE = ("make ", "source ", "pip install", "trieye ui")
"""The first three install the environment of this test; the last waits for Ctrl-C."""
IS_LONG = os.environ.get("TRIEYE_DOCS_LONG") == "1"
LIMIT_S = 4 * 3600 if IS_LONG else 280
pytestmark = [
    pytest.mark.usefixtures("git_repositories"),
    pytest.mark.timeout(LIMIT_S + 320),  # the first test that needs the project waits for all commands
]
KILL = re.compile(r"timeout -s KILL \d+ ")
PROGRAMS = {"python": [], "trieye": ["-m", "trieye.cli"]}
ONLY_COMPOSED = "--only-composed"
"""Marks the arguments of a command whose config is composed and checked, together with others."""
RUN_COMMANDS = """
import json, runpy, sys
for words in json.load(open("commands.json")):
    print("$", *words, flush=True)
    sys.argv, sys.orig_argv = words[2:], [sys.executable, *words[1:]]
    try:
        runpy.run_module(words[2], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        assert not end.code, end.code
"""
"""Runs Python commands one after the other in one process, which takes half as long as a process for each."""
COMPOSE = """
import json, sys, trieye
from my_agent.config import TrainConfig
from my_agent.train import train
for overrides in json.load(open("composed.json")):
    print(overrides)
    if overrides[0] == "-m":
        sys.argv = ["train.py", *overrides, "hydra.sweeper.dry_run=true"]
        train()
    else:
        trieye.compose(overrides, config_path="conf", config_type=TrainConfig).check()
"""


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


def longer_trainings(folder):
    """Return the trainings and sweeps of other pages that no other test composes."""
    pages = ("docs/results.md", "docs/sweeps.md", "docs/training.md", "docs/tune.md")
    text = "".join((ROOT / page).read_text() for page in pages).replace("\\\n", "")
    lines = re.findall(r"^    (python -m my_agent\.train .*)$", text, re.MULTILINE)
    lines = [line for line in lines if not re.search("agent=a2c|experiment=best_first", line)]  # files of these pages
    assert len(lines) >= 7
    return [line for line in lines if not is_composed_elsewhere(line, folder)]


def run(command, folder, modules=warm.HEAVY, *, code=0):
    """Run a command that ends with an exit code."""
    if command[0] in PROGRAMS and not IS_LONG:
        done = warm.run([*PROGRAMS[command[0]], *command[1:]], folder, modules=modules)
    else:
        words = [sys.executable, *PROGRAMS[command[0]]] if command[0] in PROGRAMS else command[:1]
        done = subprocess.run([*words, *command[1:]], cwd=folder, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == code, f"{command}\n{done.stdout}\n{done.stderr}"
    return done


def run_all(lines, project):
    """Run Python commands in one process, or in one each if they have their full budgets."""
    commands = [small(line) for line in lines]
    if IS_LONG:
        return [run(command, project) for command in commands]
    words = [["python", *PROGRAMS[command[0]], *command[1:]] for command in commands]
    (project / "commands.json").write_text(json.dumps(words))
    return [run(["python", "-c", RUN_COMMANDS], project)]


def is_composed_elsewhere(line, folder):
    """Return whether test_template.py composes the only preset of a line, or another line has all its overrides."""
    words = shlex.split(line.partition(".train ")[2].removeprefix("-m "), comments=True)
    if IS_LONG or not words:
        return False
    group, _, option = words[0].partition("=")
    if len(words) == 1 and group in {"experiment", "debug", "hparams_search"}:  # test_template.py composes each
        assert (folder / "conf" / group / f"{option}.yaml").is_file(), line
        return True
    if small(line)[-1] != ONLY_COMPOSED:
        return False
    others = [other for other in commands() if other != line]
    return any(set(words) <= set(shlex.split(other)) for other in others if ".train " in other)


def small(line):
    """Return the arguments of a command, with a small budget if it trains; the demo covers long trainings."""
    command = shlex.split(KILL.sub("", line))
    overrides = line.partition(".train ")[2]
    if IS_LONG:
        return command
    if line.startswith("trieye evaluate"):
        return [*command, "--episodes=2"]
    if ".train" not in line or re.search(r" --(help|cfg|info)\b", line):
        return command
    if not re.search("run_name|debug=default|-m ", overrides):
        return [*command, ONLY_COMPOSED]  # other lines train
    is_ppo = "agent=ppo" in line or "experiment=ppo" in line
    budget = [
        "loop.steps=48",
        "loop.evaluate_every_steps=48",
        "env.eval_episodes=1",
        "agent.rollout_steps=4" if is_ppo else "agent.learning_starts=32",
    ]
    if "run_name=killed" in line or "run_name=whole" in line:
        # eight checkpoints; one process is killed after its first
        budget = ["loop.steps=512", "persistence.checkpoint_save_freq_steps=64", "agent.rollout_steps=8"]
        budget += ["loop.evaluate_every_steps=512", "env.eval_episodes=1"]
    budget += [] if "runtime" in line else ["runtime=local"]
    if overrides.startswith("-m "):
        budget += ["hydra.launcher.isolate=none"]
        command = [word.partition(",")[0] if word.startswith("agent.lr=") else word for word in command]
    if "sinks" not in line:
        budget += ["sinks=[tensorboard]"] if "run_name=first" in line else ["sinks=[]"]  # other tests cover MLflow
    return command + budget


def first_job(words):
    """Return the overrides of the first job of a grid; the words of other commands are unchanged."""
    if words[0] != "-m" or any(word.startswith("hydra.sweeper.kind=") for word in words):
        return words
    return [re.sub(r"=(range\()?([^,]+),.*", r"=\2", word) for word in words[1:]]


def compose(lines, project):
    """Compose and check the configs of lines that train longer, and the first jobs of sweeps, in one process."""
    command_lines = [first_job(shlex.split(line.partition(".train ")[2], comments=True)) for line in lines]
    (project / "composed.json").write_text(json.dumps(command_lines))
    run(["python", "-c", COMPOSE], project)


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
    """Return a project after every command of the pages has run in it, or its config has been composed."""
    folder = tmp_path_factory.mktemp("readme")
    only_composed, outputs = [], []
    for is_python, lines in itertools.groupby(commands(), lambda line: line.startswith(("python ", "trieye "))):
        if is_python:
            needed_lines = [line for line in lines if not is_composed_elsewhere(line, folder)]
            run_lines = [line for line in needed_lines if small(line)[-1] != ONLY_COMPOSED]
            only_composed += [line for line in needed_lines if line not in run_lines]
            outputs += run_all(run_lines, folder)
            continue
        for line in lines:
            if line.startswith("cd "):
                folder = folder / line[3:]
            elif KILL.match(line):
                train_until_killed(line, folder)
            else:
                outputs.append(run(["bash", "-c", line], folder))
                (folder / "checksums").write_text(outputs[-1].stdout)
    compose([*only_composed, *longer_trainings(folder)], folder)
    assert not any("\x1b" in done.stdout + done.stderr for done in outputs), "colors are for terminals"
    return folder


@pytest.mark.slow
def test_a_killed_run_resumes_bit_identically(project):
    checksums = [line.split()[0] for line in (project / "checksums").read_text().splitlines()]
    assert len(checksums) == 2
    assert len(set(checksums)) == 1
    (killed,) = [record for record in records(project) if record["run_name"] == "killed"]
    assert killed["attempt"] == 2
    assert "checkpoint_step_" in killed["resumed_from"]


@pytest.mark.slow
def test_all_commands_run_and_all_sweep_jobs_complete(project):
    assert {record["status"] for record in records(project)} == {"FINISHED"}
    statuses = [json.loads(path.read_text()) for path in project.glob("multirun/*/*/status.json")]
    assert [status["state"] for status in statuses] == ["completed"] * (4 if IS_LONG else 2)


@pytest.mark.slow
@pytest.mark.parametrize("page", PROJECT_CODE_PAGES)
def test_the_python_calls_of_a_page_work_in_a_project(project, tmp_path, page):
    (block,) = blocks(page, "python")
    assert block.count("runs.rerun(") == (page == "docs/runs.md")  # tests/runs start whole programs
    (tmp_path / "shown.py").write_text(block.replace("runs.rerun(", "runs.plan_rerun("))
    assert PROJECT_CODE_PAGES[page] in run(["python", str(tmp_path / "shown.py")], project).stdout


@pytest.mark.slow
def test_a_configuration_error_is_one_message_and_exit_code_2(project):
    (block,) = [block for block in blocks("docs/project.md", "text") if block.startswith("$ ")]
    command, _, message = block.removeprefix("$ ").partition("\n")
    done = run(shlex.split(command), project, code=2)
    assert done.stdout == ""
    assert done.stderr.strip() == message.strip()


RUN_BLOCKS = """
import sys

for name in sys.argv[1:]:
    print(name)
    exec(compile(open(name).read(), name, "exec"), {"__name__": "__main__"})
"""


@pytest.mark.slow
def test_the_code_of_the_pages_runs(tmp_path):
    (tmp_path / "run_blocks.py").write_text(RUN_BLOCKS)
    scripts = []
    for page in CODE_PAGES:
        for number, block in enumerate(blocks(page, "python")):
            scripts.append(f"{Path(page).stem}_{number}.py")
            (tmp_path / scripts[-1]).write_text(block)
    assert len(scripts) >= 8
    run(["python", str(tmp_path / "run_blocks.py"), *scripts], tmp_path)  # one process: same imports


def test_every_block_of_commands_and_code_has_a_test():
    pages = [str(page.relative_to(ROOT)) for page in LINKED_PAGES if page.name != "CONTRIBUTING.md"]
    run_here = {"bash": {*COMMAND_PAGES}, "python": {*CODE_PAGES, *PROJECT_CODE_PAGES, *PAGES_WITH_A_TEST}}
    for language, covered in run_here.items():
        assert {page for page in pages if blocks(page, language)} - covered == set(), language
    for page, test in PAGES_WITH_A_TEST.items():
        assert Path(page).name in (ROOT / "tests" / test).read_text(), f"{test} does not run {page}"


@pytest.mark.long
def test_the_hydra_programs_of_the_page_are_swept(tmp_path):
    programs = {block.split()[1]: block for block in blocks("docs/hydra_sweeps.md", "python")}
    for name, program in programs.items():
        (tmp_path / name).write_text(program)
    assert programs["fit.py"].count("\n") <= 12
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/config.yaml").write_text("lr: 0.1\nepochs: 20\n")
    block, _, results = blocks("docs/hydra_sweeps.md", "console")
    first, *others = block.splitlines()
    assert first in (ROOT / "README.md").read_text()
    # the fork server imports all modules of this process
    for command in ([*shlex.split(first), "hydra.launcher.backend=local"], *map(shlex.split, others)):
        run(command, tmp_path, warm.LIGHT)
    status = json.loads(run(["trieye", "sweep", "status", "--json"], tmp_path).stdout)
    assert [job["state"] for job in status["jobs"]] == ["completed"] * 3
    for command in map(shlex.split, results.splitlines()):
        run(command, tmp_path, warm.LIGHT if command[0] == "python" else warm.HEAVY)
    assert (tmp_path / "table.md").read_text().splitlines()[2].startswith("| 0.3 ")
    assert (tmp_path / "curve.png").exists()
    run(["python", "learn.py", *shlex.split(first)[2:], "hydra.launcher.isolate=none"], tmp_path)
    losses = [record["summary"]["loss"]["last"] for record in sorted(records(tmp_path), key=lambda run: run["job"])]
    assert losses == sorted(losses, reverse=True)
    assert len(set(losses)) == 3
    run(["trieye", "results", "table", ".trieye_data", "--by", "lr", "-o", "learned.md"], tmp_path)
    assert (tmp_path / "learned.md").read_text().splitlines()[2].startswith("| 0.3 ")  # the lowest loss
    defaults, *_ = blocks("docs/hydra_sweeps.md", "yaml")
    (tmp_path / "conf/config.yaml").write_text(f"{defaults}lr: 0.1\nepochs: 3\n")
    options = ["hydra.sweep.dir=second", "hydra.launcher.isolate=none"]
    run(["python", "train.py", "-m", "epochs=1,2", *options], tmp_path)
    assert json.loads((tmp_path / "second/1/checkpoint.json").read_text())["epoch"] == 2


@pytest.mark.long
def test_a_program_without_the_template_is_swept(tmp_path):
    (config,) = [block for block in blocks("docs/project.md", "yaml") if block.startswith("# conf/train.yaml")]
    (program,) = [block for block in blocks("docs/project.md", "python") if block.startswith("# train.py")]
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/train.yaml").write_text(config)
    (tmp_path / "train.py").write_text(program)
    (command,) = [
        line for block in blocks("docs/project.md", "console") for line in block.splitlines() if " -m " in line
    ]
    words = [*shlex.split(command.replace("4", "2")), "runtime=local", "sinks=[]", "hydra.launcher.isolate=none"]
    assert "best of 2 jobs" in run(words, tmp_path).stdout


def anchors(page):
    """Return the anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", LINKED_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_links_of_a_page_exist(page):
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
