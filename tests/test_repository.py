"""Files that GitHub reads: the workflow, issue forms and citation metadata."""

import tomllib
from pathlib import Path

import pytest
import yaml

from trieye.version import VERSION

ROOT = Path(__file__).parents[1]
FORMS = sorted(path for path in ROOT.glob(".github/ISSUE_TEMPLATE/*.yml") if path.name != "config.yml")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CLASSIFIER = "Programming Language :: Python :: "


def load(path):
    return yaml.safe_load((ROOT / path).read_text())


def test_the_workflow_tests_every_supported_python_with_read_only_permissions():
    workflow = load(".github/workflows/ci.yml")
    assert workflow["permissions"] == {"contents": "read"}
    pythons = [name.removeprefix(CLASSIFIER) for name in PROJECT["classifiers"] if name.startswith(f"{CLASSIFIER}3.")]
    (job,) = workflow["jobs"].values()
    assert job["strategy"]["matrix"]["python"] == pythons
    assert "permissions" not in job
    (command,) = [step["run"] for step in job["steps"] if "run" in step]
    assert "make test" in (ROOT / command).read_text()


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_an_issue_form_has_the_keys_that_github_requires(path):
    form = load(path)
    assert {"name", "description", "body"} <= form.keys()
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert fields
    assert all(field["attributes"]["label"] for field in fields)
    assert len({field["id"] for field in fields}) == len(fields)
    assert any(field.get("validations", {}).get("required") for field in fields)


def test_there_are_forms_for_bugs_features_and_questions():
    assert [path.stem for path in FORMS] == ["bug", "feature", "question"]
    assert load(".github/ISSUE_TEMPLATE/config.yml")["blank_issues_enabled"] is False


def test_the_citation_is_valid_and_names_the_current_version():
    citation = load("CITATION.cff")
    assert citation["cff-version"] == "1.2.0"
    assert citation["type"] in {"software", "dataset"}
    assert {"message", "title", "authors"} <= citation.keys()
    allowed = {"name", "family-names", "given-names", "orcid", "affiliation", "email", "website"}
    assert all(author.keys() <= allowed and author for author in citation["authors"])
    assert str(citation["version"]) == VERSION
    assert citation["license"] == PROJECT["license"]
