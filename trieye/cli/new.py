"""`trieye new`: a project of one's own, made from trieye's template."""

import argparse
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trieye.cli.template import Question

_EPILOG = """\
In a terminal, trieye asks what was not given; elsewhere, and with --no-input, it takes the defaults.

examples:
  trieye new my_agent                                a package my_agent in the folder my_agent
  trieye new "Swing Up" --env-id Acrobot-v1          the package swing_up
  trieye new my_agent --no-input --ci none -o work   without questions, in the folder work
"""
_OPTIONS = {
    "slug": "package and folder name (default: from NAME)",
    "description": "what it is for, in one line",
    "author": "who writes it",
    "algorithm": "algorithm to begin with: dqn",
    "env_id": "Gymnasium id of the environment (default: CartPole-v1)",
    "python_version": "oldest Python that it supports",
    "license": "MIT, BSD-3-Clause, Apache-2.0 or Proprietary",
    "ci": "continuous integration: github or none",
}


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `new` to the commands of the parser."""
    parser = commands.add_parser(
        "new",
        help="make a new project",
        description="Make a new project: a real algorithm of your own, config, tests and everything around it.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("project_name", nargs="?", metavar="NAME", help="name of the project")
    parser.add_argument(
        "-o", "--output-dir", type=Path, default=Path(), metavar="DIR", help="folder to make it in (default: here)"
    )
    for name, text in _OPTIONS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", metavar=name.upper(), help=text)
    parser.add_argument("--no-input", action="store_true", help="ask nothing, take the defaults")
    parser.add_argument(
        "--overwrite", action="store_true", help="write into an existing folder, over files of the same name"
    )
    parser.set_defaults(run=run, when_interrupted="interrupted; nothing was written")


def run(options: argparse.Namespace) -> int:
    """Make the project that the options describe, and say how to begin.

    Raises:
        ConfigurationError: An answer cannot be used, or the folder exists; nothing was written.
    """
    from trieye.cli.template import answers_of, bake, check_target

    given = {name: value for name in ("project_name", *_OPTIONS) if (value := getattr(options, name)) is not None}
    if not options.no_input and sys.stdin.isatty():
        given = _ask(given, lambda slug: check_target(options.output_dir / slug, overwrite=options.overwrite))
    answers = answers_of(given)
    check_target(options.output_dir / answers["slug"], overwrite=options.overwrite)
    project = bake(answers, options.output_dir, overwrite=options.overwrite)
    print(_closing(project, answers["slug"]))
    return 0


def _ask(given: dict[str, str], check_slug: Callable[[str], None]) -> dict[str, str]:
    """Ask for what was not given, each question until its answer can be used.

    Args:
        given: Answers by name of the question.
        check_slug: Called as soon as the slug is known, to stop before further questions.
    """
    from trieye.cli.template import check_answers, questions

    check_answers(given)
    answers = dict(given)
    for question in questions():
        if question.name not in answers:
            answers[question.name] = _answer(question, answers)
        if question.name == "slug":
            check_slug(answers["slug"])
    return answers


def _answer(question: "Question", answers: dict[str, str]) -> str:
    """Ask one question until its answer can be used."""
    from trieye.cli.template import answers_of, complaint_about

    default = answers_of(answers, check=False)[question.name]
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


def _closing(project: Path, slug: str) -> str:
    """Return what to do next."""
    from trieye.cli.template import checkout_line

    text = (
        f"Made {project}. Next:\n\n  cd {shlex.quote(str(project))}\n  make install && source .venv/bin/activate\n"
        f"  python -m {slug}.train --help\n  python -m {slug}.train"
    )
    if line := checkout_line(project):
        text += (
            "\n\nIt depends on the trieye on this disk. For elsewhere, as for CI, change this line of pyproject.toml"
            f' to a release, as "trieye[rl]>=0.2", or a repository, as "trieye[rl] @ git+URL":\n\n  {line}'
        )
    return text
