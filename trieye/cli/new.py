"""`trieye new`: a project of one's own, made from trieye's template.

Make a new project: a real algorithm of your own, config, tests and everything around it.

In a terminal, trieye asks what was not given; elsewhere, and with --no-input, it takes the defaults.

Examples:
  trieye new my_agent                                a package my_agent in the folder my_agent
  trieye new "Swing Up" --env-id Acrobot-v1          the package swing_up
  trieye new my_agent --no-input --ci none -o work   without questions, in the folder work
  trieye new my_agent --git yes                      with a git repository and a first commit
"""

import argparse
import json
import re
import runpy
import shlex
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from trieye.exceptions import ConfigurationError

TEMPLATE = Path(__file__).resolve().parent.parent / "template"


@dataclass(frozen=True, slots=True)
class Question:
    """One question of the template.

    Attributes:
        name: The key of its answer.
        text: How to ask it.
        default: The answer if none is given; may be a Jinja expression.
        choices: The only answers allowed; empty if anything goes.
    """

    name: str
    text: str
    default: str
    choices: tuple[str, ...]

    @property
    def help(self) -> str:
        """The question as `--help` shows it, with its default or its choices."""
        follows = re.search(r"cookiecutter\.(\w+)", self.default)
        default = f"from {follows[1].upper().removeprefix('PROJECT_')}" if follows else self.default
        return f"{self.text} ({', '.join(self.choices) or f'default: {default}'})"


@cache
def questions() -> list[Question]:
    """Return the questions of the template in their order."""
    context = json.loads((TEMPLATE / "cookiecutter.json").read_text("utf-8"))
    choices = {name: tuple(held) if isinstance(held, list) else () for name, held in context.items()}
    asked = {name: (*choices[name], held)[0] for name, held in context.items() if not name.startswith("_")}
    return [Question(name, context["__prompts__"][name], default, choices[name]) for name, default in asked.items()]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    name, *others = questions()
    parser.add_argument(name.name, nargs="?", metavar="NAME", help="name of the project")
    parser.add_argument(
        "-o", "--output-dir", type=Path, default=Path(), metavar="DIR", help="folder to make it in (default: here)"
    )
    for question in others:
        option = f"--{question.name.replace('_', '-')}"
        parser.add_argument(option, metavar=question.name.upper(), help=question.help)
    parser.add_argument("--no-input", action="store_true", help="ask nothing, take the defaults")
    parser.add_argument(
        "--overwrite", action="store_true", help="write into an existing folder, over files of the same name"
    )
    parser.set_defaults(when_interrupted="interrupted; nothing was written")


def run(options: argparse.Namespace) -> int:
    """Make the project that the options describe, and say how to begin."""

    def check_folder(slug: str) -> None:
        _check_target(options.output_dir / slug, overwrite=options.overwrite)

    given = {question.name: getattr(options, question.name) for question in questions()}
    answers = {name: answer for name, answer in given.items() if answer is not None}
    if not options.no_input and sys.stdin.isatty():
        answers = _ask(answers, check_folder)
    answers = answers_of(answers)
    check_folder(answers["slug"])
    project = bake(answers, options.output_dir, overwrite=options.overwrite)
    print(_closing(project, answers["slug"], answers["algorithm"]))
    return 0


def answers_of(given: dict[str, str]) -> dict[str, str]:
    """Return an answer to every question: those given, by name of the question, and the defaults.

    Raises:
        ConfigurationError: An answer cannot be used.
    """
    _check_answers(given)  # first, because a default that follows from a bad answer is bad, too
    answers: dict[str, str] = {}
    for question in questions():
        answers[question.name] = given[question.name] if question.name in given else _default(question, answers)
    _check_answers(answers)
    return answers


def complaint_about(name: str, answer: str) -> str | None:
    """Say what is wrong with one answer, or None."""
    question = {question.name: question for question in questions()}[name]
    if question.choices and answer not in question.choices:
        from trieye.config.base import did_you_mean

        known = ", ".join(question.choices)
        return f"{name} {answer!r} is unknown{did_you_mean(answer, question.choices)} (known: {known})"
    check = _rules().get(name)
    return check(answer) if check else None


def bake(answers: dict[str, str], output_dir: Path, *, overwrite: bool = False) -> Path:
    """Write the project and return its folder.

    Args:
        answers: A checked answer to every question.
        output_dir: The folder to make it in; made if missing.
        overwrite: Whether files of an existing folder may be replaced.

    Raises:
        ConfigurationError: It cannot be written.
    """
    from cookiecutter.exceptions import CookiecutterException
    from cookiecutter.main import cookiecutter

    with tempfile.TemporaryDirectory() as scratch:
        # cookiecutter would keep its memory in the home directory, and take answers from the user's file there
        settings = Path(scratch) / "config.yaml"
        settings.write_text(json.dumps({"cookiecutters_dir": scratch, "replay_dir": scratch}), "utf-8")
        try:
            project = cookiecutter(
                str(TEMPLATE),
                no_input=True,
                extra_context={name: _literal(answer) for name, answer in answers.items()},
                output_dir=str(output_dir),
                overwrite_if_exists=overwrite,
                config_file=str(settings),
            )
        except (CookiecutterException, OSError) as error:
            raise ConfigurationError(f"the project cannot be written to {str(output_dir)!r}: {error}") from error
    return Path(project)


def trieye_line(project: Path) -> str:
    """Return the line of pyproject.toml that says on which trieye a project depends."""
    lines = (project / "pyproject.toml").read_text("utf-8").splitlines()
    return next(line.strip() for line in lines if re.match(r' +"trieye\[', line))


def _ask(given: dict[str, str], check_folder: Callable[[str], None]) -> dict[str, str]:
    """Ask for what was not given; a folder that cannot be written to ends it as soon as its name is known."""
    _check_answers(given)
    answers = dict(given)
    for question in questions():
        if question.name not in answers:
            answers[question.name] = _answer(question, answers)
        if question.name == "slug":
            check_folder(answers["slug"])
    return answers


def _answer(question: Question, answers: dict[str, str]) -> str:
    """Ask one question until its answer can be used."""
    default = _default(question, answers)
    choices = f" ({', '.join(question.choices)})" if len(question.choices) > 1 else ""
    while True:
        try:
            typed = input(f"{question.text}{choices} [{default}]: ").strip() or default
        except EOFError:  # Ctrl-D
            print(file=sys.stderr)
            raise KeyboardInterrupt from None
        if not (complaint := complaint_about(question.name, typed)):
            return typed
        print(f"  {complaint}", file=sys.stderr)


def _check_answers(answers: dict[str, str]) -> None:
    complaints = [complaint for name, answer in answers.items() if (complaint := complaint_about(name, answer))]
    if complaints:
        raise ConfigurationError("; ".join(complaints))


def _check_target(project: Path, *, overwrite: bool) -> None:
    """Check that the project can be written: there is no such folder, and no file above it."""
    is_folder = project.is_dir()
    if project.exists() and not (overwrite and is_folder):
        kind, advice = ("folder", ", or --overwrite to write into it") if is_folder else ("file", "")
        raise ConfigurationError(f"there is a {kind} {str(project)!r} already; choose another name or -o DIR{advice}")
    above = next(parent for parent in project.absolute().parents if parent.exists())
    if not above.is_dir():
        raise ConfigurationError(f"{str(project)!r} cannot be made: {str(above)!r} is a file; choose another -o DIR")


def _default(question: Question, answers: dict[str, str]) -> str:
    """Return the default of a question, which may follow from the answers to those before it."""
    if "{{" not in question.default:
        return question.default
    from cookiecutter.environment import StrictEnvironment

    # as cookiecutter renders it, so that plain cookiecutter and `trieye new` cannot disagree
    environment = StrictEnvironment(context={"cookiecutter": answers})
    default: str = environment.from_string(question.default).render(cookiecutter=answers)
    return default


def _literal(answer: str) -> str:
    """Return a template that renders to the answer: cookiecutter renders defaults, and an answer may hold braces."""
    if answer.replace("_", "").replace(".", "").replace("-", "").isalnum() and answer.isascii():
        return answer  # choices are compared before they are rendered
    return '{{ "' + "".join(f"\\U{ord(character):08x}" for character in answer) + '" }}'


@cache
def _rules() -> dict[str, Callable[[str], str | None]]:
    """Read the rules from the hook, so that plain cookiecutter and `trieye new` cannot disagree."""
    hook = runpy.run_path(str(TEMPLATE / "hooks" / "pre_gen_project.py"), run_name="trieye_template_rules")
    rules: dict[str, Callable[[str], str | None]] = hook["CHECKS"]
    return rules


def _closing(project: Path, slug: str, algorithm: str) -> str:
    """Return what to do next."""
    command = algorithm if algorithm in {"single_file", "sb3"} else "train"
    text = (
        f"Made {project}. Next:\n\n  cd {shlex.quote(str(project))}\n  make install && source .venv/bin/activate\n"
        f"  python -m {slug}.{command} --help\n  python -m {slug}.{command}"
    )
    line = trieye_line(project)
    name = line.partition("]")[0].lstrip('"') + "]"
    if " @ file://" not in line:
        return f"{text}\n\n`make install` takes this trieye, as pyproject.toml says: {line.rstrip(',')}"
    return (
        f"{text}\n\nIt depends on the trieye on this disk. For elsewhere, as for CI, change this line of pyproject.toml"
        f' to a release, as "{name}>=0.2", or a repository, as "{name} @ git+URL":\n\n  {line}'
    )
