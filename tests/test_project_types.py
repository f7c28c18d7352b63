"""A generated project passes `mypy --strict`, which finds misspelled names of its config and its batches."""

import re
import shutil
import subprocess
import sys

import pytest

from trieye.cli.new import TEMPLATE, answers_of, bake

SLUG = "my_agent"
TYPOS = {
    "max_grad_nrom": ("self.agent.max_grad_norm", '"DQNConfig" has no attribute "max_grad_nrom"'),
    "duoble": ("self.agent.double", '"DQNConfig" has no attribute "duoble"'),
    "wieghts": ("batch.weights", '"Minibatch" has no attribute "wieghts"'),
}


@pytest.fixture(scope="module")
def errors_of(request):
    """Return a function that runs `mypy --strict` in a project and returns its errors.

    The cache starts as a copy of the one that `make check` wrote: both configurations have the same options.
    """
    cache = request.config.cache.mkdir("mypy")
    if (checked := request.config.rootpath / ".mypy_cache").is_dir():
        shutil.copytree(checked, cache, dirs_exist_ok=True)

    def check(project):
        command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(cache), "--no-error-summary"]
        done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False, timeout=280)
        assert done.returncode in {0, 1}, done.stderr
        return [line for line in done.stdout.splitlines() if ": error: " in line]

    return check


def test_the_code_of_a_project_does_not_depend_on_the_answers():
    """Except for its name: so it is checked in one project."""
    code = "".join(path.read_text("utf-8") for path in (TEMPLATE / "{{cookiecutter.slug}}").rglob("*.py"))
    assert set(re.findall(r"\{[{%].*?[}%]\}", code)) == {"{{ cookiecutter.slug }}"}


@pytest.mark.long
@pytest.mark.slow
def test_a_project_has_no_type_errors_and_misspelled_names_are_errors(tmp_path, errors_of):
    project = bake(answers_of({"project_name": "My Agent"}), tmp_path)
    assert errors_of(project) == []
    file = project / SLUG / "dqn.py"
    code = file.read_text("utf-8")
    for typo, (name, _) in TYPOS.items():
        assert code.count(name) == 1
        code = code.replace(name, f"{name.rpartition('.')[0]}.{typo}")
    file.write_text(code, "utf-8")
    messages = sorted(re.sub(r".*: error: (.*?)(;.*)?  \[.*", r"\1", line) for line in errors_of(project))
    assert messages == sorted(message for _, message in TYPOS.values())
