import os
import pty
import signal
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.waiting import wait_until
from trieye.cli.new import TEMPLATE, answers_of, complaint_about, questions
from trieye.version import VERSION

pytestmark = pytest.mark.usefixtures("git_repositories", "warm_programs")


@pytest.fixture(autouse=True)
def _in_tmp_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def new(capfd):
    return Command(capfd, "new", "--no-input")


@pytest.fixture
def rejection(new):
    """Return a function that passes invalid answers, checks that nothing is written, and returns the message."""

    def reject(*arguments):
        before = sorted(Path().rglob("*"))
        code, out, err = new(*arguments)
        assert (code, out) == (2, "")
        assert sorted(Path().rglob("*")) == before
        assert "Traceback" not in err
        return err

    return reject


@pytest.mark.long
def test_new_creates_a_project_and_prints_the_first_command_and_the_line_to_change_after_a_release(
    new, tmp_path, monkeypatch
):
    (tmp_path / "home").mkdir()
    (tmp_path / "home/.cookiecutterrc").write_text("default_context: {ci: none, author: Jane Doe}\n")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    output = new.output("Swing Up", "--env-id", "Acrobot-v1", "-o", "a/b")
    project = Path("a/b/swing_up")
    metadata = (project / "pyproject.toml").read_text()
    assert tomllib.loads(metadata)["project"]["name"] == "swing_up"
    assert "env: acrobot " in (project / "conf/train.yaml").read_text()
    assert (project / "swing_up/dqn.py").exists()
    assert "cd " in output
    assert "python -m swing_up.train" in output
    line = f'"trieye @ {{root:uri}}/wheels/trieye-{VERSION}-py3-none-any.whl"'
    assert line in metadata
    assert output.endswith(f"{line}\n")
    # the settings of the user for cookiecutter are neither used nor changed
    assert [path.name for path in (tmp_path / "home").iterdir()] == [".cookiecutterrc"]
    assert list((tmp_path / "temporary").iterdir()) == []
    assert (project / ".github/workflows/ci.yml").exists()
    assert "Jane Doe" not in metadata


def test_the_default_package_name_is_valid_for_any_project_name():
    slugs = {"My Agent!": "my_agent", "Ünïcode Ägent": "unicode_agent", "a.b/c-d": "a_b_c_d", "my_agent": "my_agent"}
    assert {name: answers_of({"project_name": name})["slug"] for name in slugs} == slugs


@pytest.mark.long
def test_the_closing_lines_name_the_command_and_the_extra_of_stable_baselines3(new):
    output = new.output("my_agent", "--algorithm", "sb3")
    assert "  python -m my_agent.sb3\n" in output
    assert '"trieye[sb3] @ {root:uri}/wheels/' in output


@pytest.fixture
def _git_author(monkeypatch):
    for name in ("GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL"):
        monkeypatch.setenv(name, "ann@example.org")


@pytest.mark.long
@pytest.mark.usefixtures("_git_author")
def test_a_git_repository_is_created_on_request(new, monkeypatch):
    new.output("my_agent", "--git", "yes")
    git = ["git", "-C", "my_agent"]
    assert subprocess.run([*git, "status", "--porcelain"], capture_output=True, check=True).stdout == b""
    listed = subprocess.run([*git, "ls-files"], capture_output=True, text=True, check=True).stdout.split()
    assert {".gitignore", "my_agent/dqn.py", "my_agent/train.py"} <= set(listed)
    monkeypatch.setenv("PATH", "")
    code, _, err = new("other", "--git", "yes")
    assert (code, "project created, but `git init --quiet` failed" in err) == (0, True), err
    assert Path("other/pyproject.toml").exists()


@pytest.mark.long
@pytest.mark.usefixtures("_git_author")
def test_files_of_the_user_are_neither_deleted_nor_committed(new):
    theirs = {".github/CODEOWNERS", ".github/workflows/ci.yml", ".github/workflows/deploy.yml", "secret.env"}
    for path in (Path("my_agent", name) for name in theirs):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    words = ["my_agent", "--overwrite", "--ci", "none", "--git", "yes"]
    git = ["git", "-C", "my_agent"]
    new.output(*words)
    assert {Path("my_agent", name).read_text() for name in theirs} == {"mine"}
    committed = subprocess.run([*git, "ls-files"], capture_output=True, text=True, check=True).stdout.split()
    assert {".gitignore", "conf/train.yaml", "my_agent/dqn.py", "pyproject.toml"} <= set(committed)
    assert not theirs & set(committed)
    assert any(name.startswith("wheels/") for name in committed)
    subprocess.run([*git, "add", "secret.env"], check=True)
    code, _, err = new(*words, "--description", "another")  # now it is a repository
    assert code == 0, err
    assert f"not committed: it is in the git repository {Path('my_agent').resolve()}" in err
    log = subprocess.run([*git, "log", "--oneline"], capture_output=True, text=True, check=True).stdout
    assert len(log.splitlines()) == 1


def test_an_invalid_answer_is_named_and_nothing_is_written(rejection):
    for arguments, message in (
        (["x", "--algorithm", "dqm"], "algorithm: unknown value 'dqm'; did you mean 'dqn'?"),
        (["x", "--license", "mit"], "license: unknown value 'mit'; did you mean 'MIT'?"),
        (["x", "--python-version", "3.9"], "python_version: unknown value '3.9'"),
        (["x", "--env-id", "Cart Pole"], "env_id 'Cart Pole' is not a Gymnasium id"),
        (["2fast"], "slug '2fast' is not a valid package name"),
        ([""], "project_name is empty"),
        (["!?"], "slug '' is not a valid package name"),
        (["class"], "try class_agent"),
        (["match"], "slug 'match' is a Python keyword"),
        (["test"], "slug 'test' would shadow a module"),
        (["trieye"], "slug 'trieye' would shadow a module"),
        (["numpy"], "try numpy_agent"),
        (["x", "--slug", "../escape"], "slug '../escape' is not a valid package name"),
        (["x" * 41], "has 41 characters; at most 40"),
        (["x", "--description", " \n"], "description is empty"),
        (["x", "--author", "a\x1b[31mb"], r"unprintable characters: '\x1b'"),
        (["x", "--description", "y" * 301], "has 301 characters; at most 300"),
    ):
        assert message in rejection(*arguments)


def test_an_existing_folder_is_kept_unless_overwrite_is_passed(new, rejection):
    Path("my_agent").mkdir()
    Path("my_agent/notes.txt").write_text("mine")
    assert "folder 'my_agent' already exists" in rejection("my_agent")
    new.output("my_agent", "--overwrite")
    assert Path("my_agent/notes.txt").read_text() == "mine"
    assert Path("my_agent/pyproject.toml").exists()


def test_a_file_at_the_target_path_is_named(rejection):
    Path("my_agent").write_text("mine")
    assert "file 'my_agent' already exists" in rejection("my_agent", "--overwrite")
    assert "is a file; choose another -o DIR" in rejection("other", "-o", "my_agent/below")
    assert "cannot write the project to '/proc/nowhere'" in rejection("other", "-o", "/proc/nowhere")


def run_in_terminal(typed, *arguments):
    controller, terminal = pty.openpty()
    command = [sys.executable, "-m", "trieye.cli", "new", *arguments]
    child = subprocess.Popen(command, stdin=terminal, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    os.close(terminal)
    os.write(controller, typed.encode())
    output, _ = child.communicate(timeout=60)
    os.close(controller)
    return child.returncode, output


def test_ctrl_d_at_a_question_aborts_like_ctrl_c():
    code, output = run_in_terminal("My Robot\n\x04")
    assert code == 130
    assert output.endswith("interrupted; nothing was written\n")
    assert "Traceback" not in output
    assert not list(Path().iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "interrupted; nothing was written\n"),
        (["--overwrite"], "my_agent may be incomplete: run the command again\n"),
    ],
)
def test_an_interrupt_leaves_no_part_of_a_project_unless_a_folder_is_overwritten(arguments, message):
    command = [sys.executable, "-m", "trieye.cli", "new", "my_agent", "--no-input", *arguments]
    child = subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: list(Path().rglob("my_agent/conf")))
    os.killpg(child.pid, signal.SIGINT)
    error = child.communicate(timeout=60)[1]
    assert (child.returncode, error.endswith(message)) == (130, True), error
    assert bool(list(Path().iterdir())) == bool(arguments)


@pytest.mark.long
@pytest.mark.parametrize(
    ("typed", "arguments"), [("My Robot\n\n", []), ("My Robot\n", ["--slug", "my_robot"]), ("\n", ["My Robot"])]
)
def test_an_existing_folder_is_rejected_before_further_questions(typed, arguments):
    Path("my_robot").mkdir()
    code, output = run_in_terminal(typed, *arguments)
    assert code == 2
    assert "folder 'my_robot' already exists" in output
    assert "What it is for" not in output


def test_an_invalid_option_is_rejected_before_any_question():
    code, output = run_in_terminal("", "--license", "mit")
    assert code == 2
    assert output.startswith("error: license: unknown value 'mit'; did you mean 'MIT'?")


@pytest.mark.long
def test_a_question_is_repeated_until_the_answer_is_valid():
    typed = ["My Robot", "class", "robot", "", "dqm", "dqn", "", "3.12", "", "none", ""]
    code, output = run_in_terminal("".join(line + "\n" for line in typed), "--author", "Ann")
    assert code == 0, output
    assert "slug 'class' is a Python keyword" in output
    assert "Name of the Python package and the project folder [my_robot]" in output
    project = tomllib.loads(Path("robot/pyproject.toml").read_text())["project"]
    assert (project["requires-python"], project["authors"]) == (">=3.12", [{"name": "Ann"}])
    assert not Path("robot/.github").exists()


def test_help_has_an_option_for_each_question(command):
    shown = command.output("new", "--help")
    for question in questions()[1:]:
        assert f"--{question.name.replace('_', '-')}" in shown
        assert all(choice in shown for choice in question.choices)


def test_each_question_has_a_text_and_a_valid_default():
    answers = answers_of({})
    for question in questions():
        assert question.text
        assert complaint_about(question.name, answers[question.name]) is None
    assert not list(TEMPLATE.rglob("__pycache__")), "reading the rules leaves a trace"
