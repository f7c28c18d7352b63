"""No password, token or key is written to a file, a tracker or the terminal; user code gets the real values."""

import logging
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from mlflow import MlflowClient
from pydantic import BaseModel

import trieye
from trieye.cli import main
from trieye.files.run_record import RunRecord

pytestmark = pytest.mark.usefixtures("warm_programs")

HIDDEN = {"***"}
SECRETS = (b"hunter2", b"g4me-t0ken", b"yaml-pw", b"typed-pw")
TRAIN = """
import os, signal
import trieye
from trieye.config.base import StrictModel

class Game(StrictModel):
    login: str
    password: str

class GameConfig(trieye.TrieyeConfig):
    game: Game

@trieye.main(config_path="conf", config_name="train")
def train(config: GameConfig) -> None:
    assert config.game == Game(login=os.environ["GAME_TOKEN"], password="yaml" + "-pw")
    with trieye.Run(config) as run:
        run.log_params(config.model_dump(include={"game", "tags", "seed"}))
        run.set_tags({"login": config.game.login, "kept": "yes"})
        for step in range(10):
            run.log("loss", 1.0 / (step + 1), step=step)
        run.flush()
        assert run.mlflow_run_id(120)
        os.kill(os.getpid(), signal.SIGKILL)

train()
"""
CONFIG = """
defaults: [schema, runtime: local, persistence: default, stats: default, sinks: [mlflow, tensorboard], _self_]
app_name: app
run_name: run
game:
  login: ${oc.env:GAME_TOKEN}
  password: yaml-pw
hydra: {searchpath: ["pkg://trieye.conf"]}
"""


@pytest.fixture
def server(tmp_path, warm_programs):
    """Start an MLflow server that requires the password `hunter2` of `ann`, and return its port."""
    (tmp_path / "server").mkdir()
    program = Path(__file__).parent / "sinks" / "mlflow_server.py"
    with (tmp_path / "server" / "log").open("wb") as log:
        command = [sys.executable, str(program), str(tmp_path / "server"), "0", "ann", "hunter2"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


def holding(directory, secrets):
    """Return the files below a directory that contain a secret, except for the user's own files in `conf`."""
    files = [path for path in directory.rglob("*") if path.is_file() and "conf" not in path.parts]
    return [path for path in files if any(secret in path.read_bytes() for secret in secrets)]


@pytest.mark.slow
def test_a_killed_run_is_delivered_to_a_server_whose_password_is_never_stored(server, tmp_path, monkeypatch, capfd):
    uri = f"http://ann:hunter2@127.0.0.1:{server}"
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "train.yaml").write_text(CONFIG)
    (tmp_path / "train.py").write_text(TRAIN)
    command = [sys.executable, "train.py", "+tags.db_token=typed-pw"]
    environment = {**os.environ, "GAME_TOKEN": "g4me-t0ken", "MLFLOW_TRACKING_URI": uri}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=False, timeout=280)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    assert not any(secret in done.stdout + done.stderr for secret in SECRETS)

    run = tmp_path / ".trieye_data" / "app" / "runs" / "run"
    for current_uri in ("", "http://ann:hunter2@elsewhere"):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", current_uri)
        assert main(["close", str(run)]) == 2
        errors = capfd.readouterr().err
        assert f"http://ann:***@127.0.0.1:{server}" in errors
        assert "set the environment variable MLFLOW_TRACKING_URI" in errors
        assert "hunter2" not in errors
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert main(["close", str(run)]) == 0
    assert main(["rebuild", str(run), "--sink", "mlflow"]) == 0
    captured = capfd.readouterr()
    assert "hunter2" not in captured.out + captured.err

    client = MlflowClient(tracking_uri=uri)
    (mlflow_run,) = client.search_runs([client.get_experiment_by_name("app").experiment_id])
    assert mlflow_run.info.status == "KILLED"
    assert len(client.get_metric_history(mlflow_run.info.run_id, "loss")) == 10
    assert {mlflow_run.data.params[key] for key in ("game.login", "game.password", "tags.db_token")} == HIDDEN
    assert (mlflow_run.data.params["seed"], mlflow_run.data.tags["kept"]) == ("0", "yes")
    assert {mlflow_run.data.tags[key] for key in ("login", "db_token")} == HIDDEN
    assert holding(tmp_path, SECRETS) == []
    assert '"password": "***"' in (run / "configs.json").read_text()
    assert "${oc.env:GAME_TOKEN}" in (run / ".hydra" / "config.yaml").read_text()


def test_stored_logs_and_tracebacks_of_a_failed_run_contain_no_secrets(make_config, monkeypatch):
    monkeypatch.setenv("GAME_TOKEN", "g4me-t0ken")
    with pytest.raises(RuntimeError), trieye.Run(make_config()) as run:
        logging.getLogger("trieye.game").warning("the game says: token=%s", "hunter2")
        print("token", "g4me-t0ken", "of http://ann:hunter2@host", sep="=")  # noqa: T201 - in several parts
        raise RuntimeError("no answer from http://ann:hunter2@host for g4me-t0ken, password='typed-pw x'")
    assert holding(run.dir, SECRETS) == []
    logs = [path.read_text() for path in (run.dir / "logs").iterdir()]
    assert any("the game says: token=***" in log for log in logs)
    assert "token=*** http://ann:***@host\n" in (run.dir / "logs" / "output.log").read_text()
    report = (run.dir / "logs" / "failure_of_attempt_1.txt").read_text()
    assert "no answer from http://ann:***@host for ***, password=***" in report


def test_parameters_that_are_models_and_dataclasses_contain_no_secrets(make_config):
    class Service(BaseModel):
        api_key: str = "hunter2"

    @dataclass
    class Game:
        password: str

    with trieye.Run(make_config(sinks={"tensorboard": {"enabled": True}})) as run:
        service, game = Service(), Game("typed-pw")
        run.log_params({"model": service, "game": game, "nested": {"of": service}, "all": [service, game]})
    assert holding(run.dir, SECRETS) == []
    assert RunRecord.read(run.dir / "run.json").params["model"] == "api_key=***"
