"""Secrets on a command line and in YAML files reach the task, and no file of Hydra contains them."""

import os
import sys
from typing import Any

import numpy as np
import pytest
import yaml

import trieye
from tests.config.conftest import Project
from trieye.config import MetricConfig, StatsConfig, TrieyeConfig
from trieye.run.application import print_config

SECRETS = {
    "TYPED": "typed-s3cret",
    "YAML": "yaml-s3cret",
    "ENV": "env-s3cret",
    "SET": "set-s3cret",
    "AXIS": "axis-s3cret",
}
LOCAL = """
# @package _global_
tags:
  api_key: yaml-s3cret
  note: ${oc.env:GAME_TOKEN}
  other: ${oc.env:GAME_USER,anonymous}
hydra:
  job:
    env_set:
      SOME_PASSWORD: set-s3cret
"""
CHECK = """
@trieye.main(config_path="conf", config_name="train")
def train(config: TrieyeConfig) -> None:
    import os
    assert os.environ["SOME_PASSWORD"] == "set-" + "s3cret"
    expected = {"api_key": "yaml", "note": "env", "db_password": "typed"}
    assert {key: value.removesuffix("-s3cret") for key, value in config.tags.items() if key in expected} == expected
    assert config.persistence.MLFLOW_TRACKING_URI == "http://ann:" + "typed-" + "s3cret@host"
    assert config.tags["other"] == "anonymous"
"""
TYPED = (
    "+experiment=secret",
    "+tags.db_password=typed-s3cret",
    "persistence.mlflow_tracking_uri=http://ann:typed-s3cret@host",
)


def prepare(project: Project, monkeypatch) -> None:
    project.write("train", (project.conf / "train.yaml").read_text().replace("  - experiment: null\n", ""))
    project.write("experiment/secret", LOCAL)
    program = project.directory / "train.py"
    head, _, _ = program.read_text().partition("@trieye.main")
    program.write_text(f"{head}{CHECK}\nif __name__ == '__main__':\n    train()\n")
    monkeypatch.setenv("GAME_TOKEN", SECRETS["ENV"])


def files_with_secrets(project: Project) -> list[str]:
    paths = [path for path in project.directory.rglob("*") if path.is_file() and project.conf not in path.parents]
    assert any(path.name == "overrides.yaml" for path in paths)
    return [
        str(path)
        for path in paths
        if b"s3cret" in path.read_bytes().replace(b'"s3cret', b"").replace(b'-s3cret")', b"")
    ]


def test_secrets_reach_the_task_but_not_the_hydra_records(project, monkeypatch):
    prepare(project, monkeypatch)
    completed = project.ran(*TYPED, "run_name=one", "print_config=true")
    assert "s3cret" not in completed.out + completed.err
    records = project.directory / ".trieye_data" / "tested" / "runs" / "one" / ".hydra"
    tags = yaml.safe_load((records / "config.yaml").read_text())["tags"]
    assert tags == {
        "api_key": "${oc.env:TRIEYE_SECRET_TAGS_API_KEY}",
        "note": "${oc.env:GAME_TOKEN}",
        "other": "${oc.env:GAME_USER,anonymous}",
        "db_password": "${oc.env:TRIEYE_SECRET_TAGS_DB_PASSWORD}",
    }
    overrides = yaml.safe_load((records / "overrides.yaml").read_text())
    assert "persistence.mlflow_tracking_uri=${oc.env:TRIEYE_SECRET_PERSISTENCE_MLFLOW_TRACKING_URI}" in overrides
    assert yaml.safe_load((records / "hydra.yaml").read_text())["hydra"]["job"]["env_set"] == {"SOME_PASSWORD": "***"}
    assert files_with_secrets(project) == []
    restarted = project.run("--config-dir", str(records), "--config-name", "config", "run_name=two")
    assert restarted.code == 2
    assert "TRIEYE_SECRET_" in restarted.err


class NestedConfig(TrieyeConfig):
    options: dict[str, Any] = {}
    more: dict[str, Any] = {}


@pytest.fixture
def _restored_environment():
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.usefixtures("_restored_environment")
def test_secrets_in_dicts_and_lists_become_references_and_later_overrides_remain(start, project):
    value = "{kind: a, db: {pwd: typed-s3cret}, db_pwd: set-s3cret, words: ['pwd=set-s3cret', b], secret: 5, note: '1'}"
    (config,) = start(f"options={value}", "options.kind=b", config_type=NestedConfig)
    assert config.options == {
        "kind": "b",
        "db": {"pwd": "typed-s3cret"},
        "db_pwd": "set-s3cret",
        "words": ["pwd=set-s3cret", "b"],
        "secret": 5,
        "note": "1",
    }
    assert files_with_secrets(project) == []


@pytest.mark.usefixtures("_restored_environment")
def test_the_hydra_records_of_a_sweep_contain_no_secrets(start, project, monkeypatch):
    prepare(project, monkeypatch)
    axis = "{a: 'x, y', token: 3},{b: {api_key: yaml-s3cret}}"
    project.write(
        "train", f'{(project.conf / "train.yaml").read_text()}\nhydra: {{sweeper: {{params: {{options: "{axis}"}}}}}}'
    )
    typed_axes = "+tags.other_token=choice(axis-s3cret)", "more=choice( {api_key: axis-s3cret})"
    configs = start("-m", *TYPED, *typed_axes, config_type=NestedConfig)
    assert [config.options for config in configs] == [{"a": "x, y", "token": 3}, {"b": {"api_key": "yaml-s3cret"}}]
    assert [config.more for config in configs] == [{"api_key": "axis-s3cret"}] * 2
    assert len(list((project.directory / "multirun").rglob("overrides.yaml"))) == 2
    assert files_with_secrets(project) == []


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("tagz.token=typed-s3cret", "tagz.token=***: unknown key"),
        (
            "persistence.mirror=s3://key:typed-s3cret@bucket",
            "persistence.mirror=s3://key:***@bucket: a mirror URL must not contain",
        ),
        ("persistence.mlflow_tracking_uri=htp://ann:typed-s3cret@host", "htp://ann:***@host: unknown scheme 'htp'"),
        ("+tags.token={typed-s3cret", "+tags.token=***: not a valid key=value override"),
    ],
)
def test_a_message_about_a_typed_secret_redacts_it(mistaken, typed, expected):
    message = mistaken(typed)
    assert expected in message
    assert "s3cret" not in message


def test_the_printed_config_has_each_key_with_its_value(capsys):
    tags = {"token": "s3cret", "note": "[red]plain[/red]"}
    print_config(TrieyeConfig(run_name="r", tags=tags, stats=StatsConfig(metrics=[MetricConfig(name="a/b")])))
    printed = yaml.safe_load(capsys.readouterr().out)
    assert printed["tags"] == {"token": "***", "note": "[red]plain[/red]"}
    assert (printed["seed"], printed["runtime"]["kind"], printed["stats"]["metrics"][0]["name"]) == (0, "ray", "a/b")


def test_a_rejected_attempt_leaves_the_hydra_records_unchanged(project, monkeypatch, capsys):
    @trieye.main(config_path=str(project.conf))
    def train(config: TrieyeConfig) -> None:
        weights = np.zeros(int(config.tags["size"]))
        with trieye.Run(config) as run:
            run.restore(weights=weights)
            run.save(step=run.step + 1, weights=weights)

    def start(*words):
        monkeypatch.setattr(sys, "argv", ["train.py", "run_name=one", "runtime=local", "sinks=[]", *words])
        train()

    run_dir = project.directory / ".trieye_data" / "tested" / "runs" / "one"

    def files():
        paths = [path for path in run_dir.rglob("*") if path.is_file()]
        names = {path: str(path.relative_to(run_dir)) for path in paths}
        return {name: path.read_bytes() for path, name in names.items() if not name.startswith(("run.lock", "logs/"))}

    start("+tags.size=3")
    before = files()
    with pytest.raises(SystemExit, match="1"):
        start("+tags.size=4", "+tags.color=red")
    errors = capsys.readouterr().err
    assert ("weights" in errors, "Traceback" in errors) == (True, False)
    assert files() == before
    start("+tags.size=3", "+tags.color=red")
    assert "+tags.color=red" in (run_dir / ".hydra" / "overrides.yaml").read_text()
    assert not (run_dir / "logs" / ".hydra").exists()
