"""docs/: navigation, references and cross-references are complete; `make docs` builds the site from them."""

import argparse
import importlib
import pkgutil
import re
import runpy
import shlex
from collections import Counter
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

import trieye
from trieye import cli
from trieye.config.agent import AgentConfig, ReplayAgentConfig
from trieye.config.base import StrictModel, Variants, set_by
from trieye.config.spellings import ModelOf015

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
COMMAND_PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *PAGES]
ABSTRACT = {AgentConfig, ModelOf015, ReplayAgentConfig, StrictModel, Variants}
"""Base classes; their fields appear as keys of their subclasses."""


@pytest.fixture(scope="module")
def generated():
    """Return the namespace of docs/generated.py."""
    return runpy.run_path(str(ROOT / "docs/generated.py"))


@pytest.fixture(scope="module")
def documented(generated):
    """Return the overrides in the configuration reference, by key."""
    page = generated["filled"]((ROOT / "docs/reference/config.md").read_text())
    entries = re.findall(r"^`([\w.]+)=(.*)`\n: (\S.*)", page, re.MULTILINE)
    assert all(text.rstrip("\\.") for _, _, text in entries)
    return {key: value for key, value, _ in entries}


def config_models():
    """Return the models of all modules below trieye/config, and of the config of trainings."""
    names = [module.name for module in pkgutil.walk_packages(trieye.config.__path__, "trieye.config.")]
    modules = [importlib.import_module(name) for name in [*names, "trieye.training.config"]]
    values = [value for module in modules for value in vars(module).values() if isinstance(value, type)]
    return {value for value in values if issubclass(value, StrictModel)} - ABSTRACT


def flattened(config, prefix=""):
    """Yield the dotted keys of a config, where an empty dict is a value."""
    for key, value in config.items():
        name = f"{prefix}{key}"
        yield from flattened(value, f"{name}.") if isinstance(value, dict) and value else [name]


@pytest.mark.long
def test_every_key_of_a_composed_config_is_in_the_reference(generated, documented):
    composed = generated["defaults_of"](generated["roots"]()[""], {})
    keys = [key for key in flattened(composed) if key != "agent"]  # its keys depend on the algorithm
    assert len(keys) > 130
    assert [key for key in keys if key not in documented and not re.match(r"agent\.\w+\.", key)] == ["stats.metrics"]


def test_every_field_of_every_config_model_is_in_the_reference(documented):
    models = config_models()
    assert len(models) > 25
    words = {word for key in documented for word in key.split(".")}
    fields = {
        f"{model.__name__}.{name}" for model in models for name, info in model.model_fields.items() if not set_by(info)
    }
    assert sorted(field for field in fields if field.split(".")[1] not in words) == []


@pytest.mark.parametrize("prefix", ["", "hydra.launcher", "hydra.sweeper"])
def test_documented_overrides_parse_and_equal_the_defaults(generated, documented, prefix):
    model = generated["roots"]()[prefix]
    required = {"env.id": "CartPole-v1", "run_name": "first"}
    words = [f"{key}={required.get(key, value)}" for key, value in documented.items() if "NAME" not in key]
    is_other = ("agent.", "hydra.") if not prefix else ()
    parsed = OverridesParser.create().parse_overrides(
        [word for word in words if word.startswith(prefix) and not word.startswith(is_other)]
    )
    assert len(parsed) > 10
    config = OmegaConf.create({})
    for override in parsed:
        key = override.key_or_group.removeprefix(prefix).lstrip(".")
        OmegaConf.update(config, key, override.value(), force_add=True)
    expected = generated["defaults_of"](model, {})
    if not prefix:
        OmegaConf.update(config, "agent.kind", "dqn", force_add=True)
        OmegaConf.update(config, "stats.metrics", {}, force_add=True)
        expected |= {"agent": {"kind": "dqn"}, "run_name": "first", "env": expected["env"] | {"id": "CartPole-v1"}}
    assert model.model_validate(OmegaConf.to_container(config)) == model.model_validate(expected)


def test_every_public_name_is_in_the_reference(generated):
    requested = re.findall(
        r"^<!-- generated: names (\S+)(.*) -->$",
        "\n".join(path.read_text() for path in PAGES if path.parent.name == "reference"),
        re.MULTILINE,
    )
    names = [name for package, only in requested if package == "trieye" for name in only.split()]
    assert Counter(names) == Counter(trieye.__all__)
    sources = {path: path.read_text() for path in (ROOT / "trieye").rglob("__init__.py")}
    packages = {
        ".".join(path.parent.relative_to(ROOT).parts) for path, text in sources.items() if "\n__all__ = " in text
    }
    assert packages == {package for package, only in requested if not only} | {"trieye"}
    part = generated["names"]("trieye.runs")
    assert ".. autofunction:: verify" in part
    assert ".. autoclass:: StoredRun" in part


def test_every_command_and_action_is_in_the_reference(generated, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    page = generated["filled"]((ROOT / "docs/reference/commands.md").read_text())
    for name in cli.COMMANDS:
        assert f"\n## trieye {name}\n\n```text\nusage: trieye {name} " in page
    for name in ("sweep relaunch", "results select", "cluster files"):
        assert f"\n### trieye {name}\n\n```text\nusage: trieye {name} " in page


def test_the_navigation_lists_every_page_once(generated):
    listed = Counter(page.path for pages in generated["navigation"]().values() for page in pages)
    missing = {path for path in PAGES if path.name != "index.md"} - set(listed)
    assert missing == set(), "add a line to docs/index.md"
    assert max(listed.values()) == 1
    llms = generated["llms"]("https://example.org/")
    assert llms.startswith("# trieye\n\n> An experiment framework")
    assert "- [Tutorial](https://example.org/_sources/docs/tutorial.md.txt): " in llms
    assert "- [Configuration keys](https://example.org/docs/reference/config.html): " in llms
    assert llms.count("\n- ") == len(listed)


def commands_on(page):
    """Return the words of each `trieye` command in the code of a page, fenced or indented."""
    text = page.read_text().replace("\\\n", "")
    code = re.findall(r"^```(?:bash|console|text)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    code += re.findall(r"^ {4}(\S.*)$", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    lines = [line.removeprefix("$ ") for block in code for line in block.splitlines()]
    return [
        shlex.split(re.sub(r"\$\w+", "1", line), comments=True)[1:]
        for line in lines
        if re.match(r"trieye (?!COMMAND)[a-z]", line)
    ]


@pytest.mark.parametrize("page", [page for page in COMMAND_PAGES if commands_on(page)], ids=lambda page: page.name)
def test_the_commands_of_a_page_are_accepted_by_their_parsers(page, capsys):
    for words in commands_on(page):
        try:
            cli._parser(words[0]).parse_args(words, argparse.Namespace(typed=words))
        except SystemExit:
            pytest.fail(f"trieye {shlex.join(words)}\n{capsys.readouterr().err}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_files_and_tests_that_a_page_names_exist(page):
    for name, test in re.findall(
        r"`((?:tests|benchmarks|soak|docs|\.ci|trieye)/[\w./]+)(?:::(\w+))?`", page.read_text()
    ):
        assert (ROOT / name).exists(), name
        assert not test or f"def {test}(" in (ROOT / name).read_text(), f"{name} has no {test}"


def test_the_site_index_lists_versions_newest_first_and_a_rebuild_replaces_its_version(tmp_path):
    add = runpy.run_path(str(ROOT / ".ci/site.py"))["add"]
    (build := tmp_path / "build").mkdir()
    site = tmp_path / "site"
    for version, text in (("0.9.0", "old"), ("0.10.0", "newest"), ("0.9.0", "mended")):
        (build / "index.html").write_text(text)
        add(build, site, version)
    assert re.findall(r'href="(.+?)/"', (site / "index.html").read_text()) == ["0.10.0", "0.9.0"]
    assert (site / "0.9.0/index.html").read_text() == "mended"
    assert (site / "0.10.0/index.html").read_text() == "newest"
