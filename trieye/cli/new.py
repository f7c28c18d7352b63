"""`trieye new`: create a project from trieye's template.

Create a project with an algorithm whose files you own, its config, tests and tooling.

In a terminal, trieye asks for missing answers. Without a terminal, or with --no-input, it uses the defaults.

Examples:
  trieye new my_agent                                package my_agent in the folder my_agent
  trieye new "Swing Up" --env-id Acrobot-v1          package swing_up
  trieye new my_agent --no-input --ci none -o work   without prompts, in the folder work/my_agent
  trieye new my_agent --git yes                      with a git repository and an initial commit
"""

import argparse
import json
import re
import runpy
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from trieye.exceptions import ConfigurationError

TEMPLATE = Path(__file__).resolve().parent.parent / "template"


@dataclass(frozen=True, slots=True)
class TemplateQuestion:
    """A variable of the template, with the prompt that asks for its value.

    Attributes:
        name: Key of the answer.
        text: Text of the prompt.
        default: Default answer; may be a Jinja expression.
        choices: Allowed answers; empty if any text is allowed.
    """

    name: str
    text: str
    default: str
    choices: tuple[str, ...]

    @property
    def help(self) -> str:
        """The help text of the option, with its default or its choices."""
        reference = re.search(r"cookiecutter\.(\w+)", self.default)
        default = f"from {reference[1].upper().removeprefix('PROJECT_')}" if reference else self.default
        return f"{self.text} ({', '.join(self.choices) or f'default: {default}'})"


@cache
def questions() -> list[TemplateQuestion]:
    """Return the questions of the template in order."""
    context = json.loads((TEMPLATE / "cookiecutter.json").read_text("utf-8"))
    prompts = context["__prompts__"]
    choices = {name: tuple(value) if isinstance(value, list) else () for name, value in context.items()}
    defaults = {name: (*choices[name], value)[0] for name, value in context.items() if not name.startswith("_")}
    return [TemplateQuestion(name, prompts[name], default, choices[name]) for name, default in defaults.items()]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    name_question, *option_questions = questions()
    parser.add_argument(name_question.name, nargs="?", metavar="NAME", help="project name")
    text = "parent folder of the project folder (default: working directory)"
    parser.add_argument("-o", "--output-dir", type=Path, default=Path(), metavar="DIR", help=text)
    for question in option_questions:
        option = f"--{question.name.replace('_', '-')}"
        parser.add_argument(option, metavar=question.name.upper(), help=question.help)
    parser.add_argument("--no-input", action="store_true", help="use the defaults instead of prompting")
    parser.add_argument(
        "--overwrite", action="store_true", help="write into an existing folder and overwrite files of the same name"
    )
    parser.set_defaults(when_interrupted="interrupted; nothing was written")


def run(options: argparse.Namespace) -> int:
    """Create the project that the options describe, and print the next steps."""
    values = {question.name: getattr(options, question.name) for question in questions()}
    overrides = {name: value for name, value in values.items() if value is not None}
    answers = answers_of(
        overrides,
        answer=_default if options.no_input or not sys.stdin.isatty() else _prompted,
        check_slug=lambda slug: _check_target(options.output_dir / slug, overwrite=options.overwrite),
    )
    if options.overwrite:
        target = options.output_dir / answers["slug"]
        options.when_interrupted = f"interrupted; {target} may be incomplete: run the command again"
    project = bake(answers, options.output_dir, overwrite=options.overwrite)
    print(_closing(project, answers["slug"], answers["algorithm"]))
    return 0


def answers_of(
    overrides: dict[str, str],
    answer: Callable[[TemplateQuestion, dict[str, str]], str] | None = None,
    check_slug: Callable[[str], None] = lambda _: None,
) -> dict[str, str]:
    """Return an answer to every question.

    Args:
        overrides: Answers by the name of the question.
        answer: Returns the answer to another question, from those before it; by default, its default.
        check_slug: Raises if the name of the project folder cannot be used; called before further questions.

    Raises:
        ConfigurationError: An answer is invalid.
    """
    _check_answers(overrides)  # first, because a default derived from an invalid answer is invalid too
    answers: dict[str, str] = {}
    for question in questions():
        name = question.name
        answers[name] = overrides[name] if name in overrides else (answer or _default)(question, answers)
        if name == "slug":
            _check_answers(answers)
            check_slug(answers[name])
    _check_answers(answers)
    return answers


def complaint_about(name: str, answer: str) -> str | None:
    """Return an error message for one answer; None if it is valid."""
    question = {question.name: question for question in questions()}[name]
    if question.choices and answer not in question.choices:
        from trieye.config.base import did_you_mean

        hint = did_you_mean(answer, question.choices)
        return f"{name}: unknown value {answer!r}{hint} (choose from: {', '.join(question.choices)})"
    check = _rules().get(name)
    return check(answer) if check else None


def bake(answers: dict[str, str], output_dir: Path, *, overwrite: bool = False) -> Path:
    """Render the template and return the project folder.

    Args:
        answers: A valid answer to every question.
        output_dir: Parent folder; created if missing.
        overwrite: Whether files of an existing project folder may be overwritten.

    Raises:
        ConfigurationError: The project cannot be written.
    """
    from cookiecutter.exceptions import CookiecutterException
    from cookiecutter.main import cookiecutter

    with tempfile.TemporaryDirectory() as scratch:
        # by default, cookiecutter writes replay files to the home directory and reads answers from the user's config
        settings = Path(scratch) / "config.yaml"
        settings.write_text(json.dumps({"cookiecutters_dir": scratch, "replay_dir": scratch}), "utf-8")
        directory_before, tempfile.tempdir = tempfile.tempdir, scratch  # cookiecutter leaves the rendered hooks there
        try:
            with _parent_of_new(output_dir, overwrite=overwrite) as parent:
                project = cookiecutter(
                    str(TEMPLATE),
                    no_input=True,
                    extra_context={name: _literal(answer) for name, answer in answers.items()},
                    output_dir=str(parent),
                    overwrite_if_exists=overwrite,
                    config_file=str(settings),
                )
                return Path(project) if overwrite else Path(project).rename(output_dir.absolute() / answers["slug"])
        except (CookiecutterException, OSError) as error:
            raise ConfigurationError(f"cannot write the project to {str(output_dir)!r}: {error}") from error
        finally:
            tempfile.tempdir = directory_before


@contextmanager
def _parent_of_new(output_dir: Path, *, overwrite: bool) -> Iterator[Path]:
    """Yield the folder to create the project folder in: a temporary one, from which a complete project is moved."""
    output_dir.mkdir(parents=True, exist_ok=True)
    if overwrite:
        yield output_dir
        return
    with tempfile.TemporaryDirectory(prefix=".trieye_new_", dir=output_dir) as parent:
        yield Path(parent)


def trieye_line(project: Path) -> str:
    """Return the line of pyproject.toml with the project's dependency on trieye."""
    lines = (project / "pyproject.toml").read_text("utf-8").splitlines()
    return next(line.strip() for line in lines if re.match(r' +"trieye\b', line))


def _prompted(question: TemplateQuestion, answers: dict[str, str]) -> str:
    """Prompt until the answer is valid."""
    default = _default(question, answers)
    choices = f" ({', '.join(question.choices)})" if len(question.choices) > 1 else ""
    while True:
        try:
            answer = input(f"{question.text}{choices} [{default}]: ").strip() or default
        except EOFError:  # Ctrl-D
            print(file=sys.stderr)
            raise KeyboardInterrupt from None
        if not (complaint := complaint_about(question.name, answer)):
            return answer
        print(f"  {complaint}", file=sys.stderr)


def _check_answers(answers: dict[str, str]) -> None:
    complaints = [complaint for name, answer in answers.items() if (complaint := complaint_about(name, answer))]
    if complaints:
        raise ConfigurationError("; ".join(complaints))


def _check_target(project: Path, *, overwrite: bool) -> None:
    """Check that the project folder does not exist and that no file blocks its path."""
    is_folder = project.is_dir()
    if project.exists() and not (overwrite and is_folder):
        noun, advice = ("folder", ", or --overwrite to write into it") if is_folder else ("file", "")
        raise ConfigurationError(f"{noun} {str(project)!r} already exists; choose another name or -o DIR{advice}")
    ancestor = next(parent for parent in project.absolute().parents if parent.exists())
    if not ancestor.is_dir():
        raise ConfigurationError(f"cannot create {str(project)!r}: {str(ancestor)!r} is a file; choose another -o DIR")


def _default(question: TemplateQuestion, answers: dict[str, str]) -> str:
    """Return the default of a question, which may depend on the answers to earlier questions."""
    if "{{" not in question.default:
        return question.default
    from cookiecutter.environment import StrictEnvironment

    # cookiecutter's own environment, so that plain cookiecutter and `trieye new` render equal defaults
    environment = StrictEnvironment(context={"cookiecutter": answers})
    default: str = environment.from_string(question.default).render(cookiecutter=answers)
    return default


def _literal(answer: str) -> str:
    """Return a template that renders to the answer, because cookiecutter would render braces in an answer."""
    if answer.replace("_", "").replace(".", "").replace("-", "").isalnum() and answer.isascii():
        return answer  # cookiecutter compares choices before rendering
    return '{{ "' + "".join(f"\\U{ord(character):08x}" for character in answer) + '" }}'


@cache
def _rules() -> dict[str, Callable[[str], str | None]]:
    """Load the checks from the template's hook, so that plain cookiecutter and `trieye new` apply the same rules."""
    hook = runpy.run_path(str(TEMPLATE / "hooks" / "pre_gen_project.py"), run_name="trieye_template_rules")
    rules: dict[str, Callable[[str], str | None]] = hook["CHECKS"]
    return rules


def _closing(project: Path, slug: str, algorithm: str) -> str:
    """Return the next steps for the user."""
    command = algorithm if algorithm in {"single_file", "sb3"} else "train"
    folder = project.relative_to(Path.cwd()) if project.is_relative_to(Path.cwd()) else project
    line = trieye_line(project).rstrip(",")
    source = "a wheel of this trieye, in wheels/" if "{root:uri}" in line else "trieye"
    return (
        f"Created {folder}. Next:\n\n"
        f"  cd {shlex.quote(str(folder))}\n"
        f"  make install && source .venv/bin/activate    # an environment of its own\n"
        f"  python -m {slug}.{command} --help\n"
        f"  python -m {slug}.{command}\n\n"
        f"pyproject.toml installs {source}: {line}"
    )
