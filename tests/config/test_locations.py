"""Directories with environment variables, and MLflow tracking URIs."""

from pathlib import Path

import pytest

from trieye.config import PersistenceConfig
from trieye.config.hydra.preflight import check_paths
from trieye.config.locations import (
    CheckpointReference,
    check_tracking_uri,
    checkpoint_reference,
    expanded,
    is_reference,
)
from trieye.exceptions import ConfigurationError


def test_environment_variables_are_expanded(monkeypatch, tmp_path):
    monkeypatch.setenv("SCRATCH", str(tmp_path))
    for typed in ("$SCRATCH/x", "${SCRATCH}/x"):
        assert expanded("key", typed) == f"{tmp_path}/x"
        assert PersistenceConfig(root_data_dir=typed, app_name="a").get_app_root_dir() == tmp_path / "x" / "a"
    assert expanded("key", "a$/b") == "a$/b"


def test_an_unknown_environment_variable_is_named(monkeypatch):
    monkeypatch.delenv("NO_SUCH", raising=False)
    with pytest.raises(ConfigurationError, match=r"persistence.root_data_dir=\$NO_SUCH/x: .* variable \$NO_SUCH"):
        check_paths(PersistenceConfig(root_data_dir="$NO_SUCH/x"))


@pytest.mark.parametrize(
    "uri", ["sqlite:///a.db", "http://h:1", "file:/a", "mysql+pymysql://u@h/d", "postgresql://h/d", "databricks"]
)
def test_uris_that_mlflow_accepts_are_valid(uri):
    assert check_tracking_uri(uri) == uri
    config = PersistenceConfig(mlflow_tracking_uri=uri)
    assert uri == config.MLFLOW_TRACKING_URI


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("best", (None, "best")),
        ("latest", (None, "latest")),
        ("step:1200", (None, 1200)),
        ("first try (2):best", ("first try (2)", "best")),
        ("best:latest", ("best", "latest")),
        ("r:step:0", ("r", 0)),
        ("first:crash-12", ("first", 12, True)),
    ],
)
def test_a_checkpoint_can_be_referenced_by_name(typed, meant):
    assert checkpoint_reference(typed) == CheckpointReference(*meant)
    assert is_reference("load_checkpoint_path", typed)
    assert not is_reference("load_buffer_path", typed)
    config = PersistenceConfig(load_checkpoint_path=typed)
    check_paths(config)
    assert config.anchored(Path("/work")).load_checkpoint_path == typed


@pytest.mark.parametrize(
    "typed", ["./best", "runs/best", "Best", "step:", "step:-1", "step:x", "a:b:best", "1200", "crash-12", ""]
)
def test_any_other_checkpoint_reference_is_a_path(typed):
    assert checkpoint_reference(typed) is None


def test_resume_dirs_must_exist_and_are_relative_to_the_directory_of_creation(tmp_path, monkeypatch):
    (tmp_path / "old_data").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCRATCH", str(tmp_path))
    config = PersistenceConfig(resume_dirs=["old_data", "$SCRATCH/old_data"])
    monkeypatch.chdir("/")
    assert set(config.get_resume_roots().values()) == {tmp_path / "old_data"}
    check_paths(config)
    with pytest.raises(ConfigurationError, match=r"persistence\.resume_dirs=.*did you mean '.*old_data'"):
        check_paths(PersistenceConfig(resume_dirs=[str(tmp_path / "old_date")]))
