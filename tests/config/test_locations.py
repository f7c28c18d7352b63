"""Directories with environment variables, and addresses of MLflow stores."""

from pathlib import Path

import pytest

from trieye.config import PersistenceConfig
from trieye.config.locations import check_tracking_uri, expanded
from trieye.config.paths import check_paths
from trieye.exceptions import ConfigurationError


def test_environment_variables_are_expanded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("SCRATCH", str(tmp_path))
    for typed in ("$SCRATCH/x", "${SCRATCH}/x"):
        assert expanded("key", typed) == f"{tmp_path}/x"
        assert PersistenceConfig(root_data_dir=typed, app_name="a").get_app_root_dir() == tmp_path / "x" / "a"
    assert expanded("key", "a$/b") == "a$/b"


def test_an_unknown_environment_variable_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("NO_SUCH", raising=False)
    with pytest.raises(ConfigurationError) as caught:
        check_paths(PersistenceConfig(root_data_dir="$NO_SUCH/x"))
    assert str(caught.value) == (
        "persistence.root_data_dir=$NO_SUCH/x: there is no environment variable $NO_SUCH; set it, or type the directory"
    )


@pytest.mark.parametrize(
    "uri",
    [
        "sqlite:///a.db",
        "http://h:1",
        "file:/a",
        "mysql+pymysql://u@h/d",
        "postgresql://h/d",
        "databricks",
        "databricks://p",
    ],
)
def test_an_address_that_mlflow_takes_is_taken(uri: str):
    assert check_tracking_uri(uri) == uri
    config = PersistenceConfig(mlflow_tracking_uri=uri)
    assert uri == config.MLFLOW_TRACKING_URI


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("foo", "an MLflow store begins with its scheme, as in sqlite:///mlflow.db .schemes: sqlite, http, "),
        ("/a/b", "an MLflow store begins with its scheme"),
        ("htp://h", "'htp' is no scheme of an MLflow store; did you mean 'http'"),
    ],
)
def test_an_address_without_a_known_scheme_is_refused(uri: str, message: str):
    with pytest.raises(ValueError, match=message):
        check_tracking_uri(uri)
