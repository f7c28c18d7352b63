"""`--json`: each document fits its schema in docs/json-schemas.json, the source of docs/json.md."""

import re
import shutil
from pathlib import Path

import pytest

import trieye
from tests.cli.conftest import config_in
from tests.json_schemas import SCHEMAS, SOURCE, formatted, validated
from trieye.cli import COMMANDS, _parser, main
from trieye.files.run_record import RunRecord

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "json.md"
WITHOUT_JSON = {"new", "ui"}
"""Commands that print instructions for a person, not results."""

INTRODUCTION = """# JSON output

Every command that prints results takes `--json` and then prints one JSON document on stdout, in one line. Its first
key, `schema`, is the name and the version of its schema, such as `trieye.runs/1`. Within a version keys are only added,
so ignore unknown keys; a key that changes its meaning or disappears raises the version. Numbers that are
not finite are `null`; times are Unix seconds. Progress, notes and warnings go to stderr. An error prints no document
but one line on stderr. A document comes with exit code 1 if it reports damage (`verify`, `checkpoints`), missing items
(`close`, `rebuild`, `attempts --restore`), skipped items (`import`, `convert`), problems (`cluster check`), failed jobs
(`sweep merge`), or jobs that are neither completed nor pruned (`sweep status`). `sweep run`, `sweep relaunch`, `rerun`
and `fork` exit with the code of the program.

[json-schemas.json](json-schemas.json) has the same as [JSON Schema](https://json-schema.org), and
`python tests/cli/test_json_output.py` formats it and generates this page from it. `trieye new` and `trieye ui` have no
`--json`.

"""


def rows(schema, prefix=""):
    """Yield key, type and meaning of each key of a schema, nested objects by their path."""
    for key, value in schema.get("properties", {}).items():
        if "const" not in value:
            yield f"{prefix}{key}", type_of(value), value.get("description", "")
            inner, path = value, f"{prefix}{key}"
            while inner.get("type") == "array" and "items" in inner:
                inner, path = inner["items"], f"{path}[]"
            yield from rows(inner, f"{path}.")
    if isinstance(extra := schema.get("additionalProperties"), dict) and "properties" in extra:
        yield from rows(extra, f"{prefix}*.")


def type_of(value):
    kinds = [value["type"]] if isinstance(value.get("type"), str) else value.get("type", ["any"])
    if "enum" in value:
        return " or ".join(f"`{choice}`" for choice in value["enum"])
    named = {"array": lambda: f"array of {type_of(value['items'])}" if "items" in value else "pair"}
    return " or ".join(named.get(kind, lambda kind=kind: kind)() for kind in kinds)


def page_text():
    sections = []
    for name, schema in SCHEMAS.items():
        table = "".join(f"| `{key}` | {kind} | {meaning} |\n" for key, kind, meaning in rows(schema))
        sections.append(f"## {name}\n\n`{schema['description']}`\n\n| key | type | meaning |\n|---|---|---|\n{table}")
    return INTRODUCTION + "\n".join(sections)


def test_the_page_is_generated_from_the_formatted_schemas():
    remedy = "write them with `python tests/cli/test_json_output.py`"
    assert SOURCE.read_text() == f"{formatted(SCHEMAS)}\n", remedy
    assert PAGE.read_text() == page_text(), remedy
    assert [name for name, schema in SCHEMAS.items() if "schema" not in schema["required"]] == []


def test_each_command_and_action_takes_json_and_has_a_schema():
    documented = {re.match(r"trieye\.(.+)/\d+", name)[1] for name in SCHEMAS}
    for command in COMMANDS:
        parser = next(action for action in _parser(command)._actions if action.choices).choices[command]
        actions = [action for action in parser._actions if action.choices and action.dest == "action"]
        parsers = {command: parser}
        if actions:
            parsers = {f"{command}.{name}": action for name, action in actions[0].choices.items()}
        for name, subparser in parsers.items():
            has_json = any("--json" in action.option_strings for action in subparser._actions)
            assert has_json == (name in documented) == (command not in WITHOUT_JSON), name


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A project with two finished runs, a killed one, a planned sweep and a pickle of trieye 0.1.5."""
    project = tmp_path_factory.mktemp("project")
    for name, best in (("first", 1.0), ("second", 2.0)):
        sinks = {"tensorboard": {"enabled": True}}
        config = config_in(project / ".trieye_data", name, seed=int(best), sinks=sinks)
        for _ in range(2):  # two attempts, and the second one supersedes
            with trieye.Run(config) as run:
                run.log_params({"agent.lr": best})
                for step in range(1, 4):
                    run.step = step
                    run.log({"eval/return": best + step, "loss": 1.0}, step=step)
                run.save(weights=[best])
    killed = run.dir.with_name("killed")
    shutil.copytree(run.dir, killed)
    record = RunRecord.read(killed / "run.json")
    record.run_id, record.run_name, record.status, record.owner = "x", "killed", "RUNNING", None
    record.save(killed / "run.json")
    assert main(["sweep", "plan", "seed=1,2", "-o", str(project / "sweep")]) == 0
    return project


@pytest.fixture
def document(project, monkeypatch, capfd):
    """Return a function that runs a command with --json, and returns its exit code and its validated document."""
    monkeypatch.chdir(project)

    def run(*arguments, code=0):
        exit_code = main([*arguments, "--json"])
        output = capfd.readouterr()
        assert exit_code == code, output.err
        return validated(output.out)

    return run


@pytest.mark.parametrize(
    ("arguments", "schema"),
    [
        ("runs", "runs"),
        ("watch first", "watch"),
        ("metrics first", "metrics"),
        ("metrics first -m loss -m eval/*", "metrics"),
        ("why first", "why"),
        ("why killed", "why"),
        ("verify first", "verify"),
        ("checkpoints first --verify", "checkpoints"),
        ("attempts first", "attempts"),
        ("attempts first --restore 1", "attempts.restore"),
        ("close first", "close"),
        ("rebuild first --sink tensorboard", "rebuild"),
        ("claim first", "claim"),
        ("diff first second", "diff"),
        ("rm first --dry-run", "rm"),
        ("prune agents --older-than 0s --keep best:1 --dry-run", "prune"),
        ("sweep plan seed=1,2 agent.lr=1,2", "sweep.plan"),
        ("sweep show -d sweep 1", "sweep.show"),
        ("sweep find -d sweep seed=2", "sweep.find"),
        ("sweep relaunch sweep --only failed", "sweep.relaunch"),
        ("results table .trieye_data --include-unfinished", "results.table"),
        ("results curve .trieye_data --include-unfinished", "results.curve"),
        ("results compare .trieye_data --by agent.lr --include-unfinished", "results.compare"),
        ("results sensitivity .trieye_data --param agent.lr --include-unfinished", "results.sensitivity"),
        ("results importance .trieye_data --include-unfinished", "results.importance"),
        ("results select .trieye_data --include-unfinished", "results.select"),
        ("results report first -o report.html", "results.report"),
        ("results export .trieye_data -o points.csv", "results.export"),
        ("cluster files", "cluster.files"),
    ],
)
def test_the_document_of_a_command_fits_its_schema(arguments, schema, document):
    assert document(*arguments.split())["schema"] == f"trieye.{schema}/1"


def test_a_status_with_missing_jobs_exits_with_1_and_has_a_document(document):
    assert document("sweep", "status", "sweep", code=1)["counts"] == {"missing": 2}


def test_json_output_deletes_runs_only_when_confirmed(document, project, command):
    shutil.copytree(project / ".trieye_data/agents/runs/first", project / ".trieye_data/agents/runs/copy")
    assert "--yes" in command.error("rm", "copy", "--json")
    (removed,) = document("rm", "copy", "--yes")["runs"]
    assert removed["name"] == "agents/copy"
    assert not Path(removed["run_dir"]).exists()


if __name__ == "__main__":
    SOURCE.write_text(f"{formatted(SCHEMAS)}\n")
    PAGE.write_text(page_text())
