"""The project template: its questions, its rules, and baking it."""

import json
import re
import runpy
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from trieye.config.base import did_you_mean
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


@cache
def questions() -> list[Question]:
    """Return the questions of the template in their order."""
    context = json.loads((TEMPLATE / "cookiecutter.json").read_text("utf-8"))
    texts = context["__prompts__"]
    asked = {name: default for name, default in context.items() if not name.startswith("_")}
    return [
        Question(name, texts[name], default[0], tuple(default))
        if isinstance(default, list)
        else Question(name, texts[name], default, ())
        for name, default in asked.items()
    ]


def answers_of(given: dict[str, str], *, check: bool = True) -> dict[str, str]:
    """Return an answer to every question: those given, and the defaults.

    Args:
        given: Answers by name of the question.
        check: Whether to check them.

    Raises:
        ConfigurationError: A name is unknown, or an answer cannot be used.
    """
    known = [question.name for question in questions()]
    if unknown := sorted(set(given) - set(known)):
        raise ConfigurationError(
            f"the template has no question {unknown[0]!r}{did_you_mean(unknown[0], known)} (known: {', '.join(known)})"
        )
    if check:
        check_answers(given)  # first, because a default that follows from a bad answer is bad, too
    answers: dict[str, str] = {}
    for question in questions():
        answers[question.name] = given[question.name] if question.name in given else _default(question, answers)
    if check:
        check_answers(answers)
    return answers


def check_answers(answers: dict[str, str]) -> None:
    """Check some answers, by name of the question.

    Raises:
        ConfigurationError: An answer cannot be used; all that cannot are named.
    """
    complaints = [complaint_about(name, answer) for name, answer in answers.items()]
    if found := [complaint for complaint in complaints if complaint]:
        raise ConfigurationError("; ".join(found))


def complaint_about(name: str, answer: str) -> str | None:
    """Say what is wrong with one answer, or None."""
    question = next(question for question in questions() if question.name == name)
    if question.choices and answer not in question.choices:
        known = ", ".join(question.choices)
        return f"{name} {answer!r} is unknown{did_you_mean(answer, question.choices)} (known: {known})"
    check = _rules().get(name)
    return check(answer) if check else None


def check_target(project: Path, *, overwrite: bool) -> None:
    """Check that the project can be written.

    Raises:
        ConfigurationError: The folder exists and may not be written into, or one above it is a file.
    """
    if project.exists() and not (overwrite and project.is_dir()):
        kind = "folder" if project.is_dir() else "file"
        raise ConfigurationError(
            f"there is a {kind} {str(project)!r} already; choose another name or -o DIR"
            + (", or --overwrite to write into it" if project.is_dir() else "")
        )
    for parent in project.absolute().parents:
        if parent.exists():
            if not parent.is_dir():
                raise ConfigurationError(
                    f"{str(project)!r} cannot be made: {str(parent)!r} is a file; choose another -o DIR"
                )
            return


def checkout_line(project: Path) -> str | None:
    """Return the line of pyproject.toml that makes a project depend on a checkout on this disk, or None."""
    lines = (project / "pyproject.toml").read_text("utf-8").splitlines()
    return next((line.strip() for line in lines if re.match(r' +"trieye\S* @ file://', line)), None)


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


def _default(question: Question, answers: dict[str, str]) -> str:
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
    hook = TEMPLATE / "hooks" / "pre_gen_project.py"
    rules: dict[str, Callable[[str], str | None]] = runpy.run_path(str(hook), run_name="trieye_template_rules")[
        "CHECKS"
    ]
    return rules
