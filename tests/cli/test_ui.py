import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from urllib.parse import unquote

import psutil
import pytest

import trieye
from tests.cli.conftest import Screen, config_in
from tests.waiting import wait_until
from trieye.cli import main
from trieye.cli.pages import MAX_STORES, PageSelection, pages_of
from trieye.cli.report_server import HEALTH, _page, server_command
from trieye.exceptions import ConfigurationError
from trieye.process.local_servers import free_port
from trieye.runs.finding import resolve
from trieye.sinks.mlflow.pages import experiments_of

SWEEP = "/of/a sweep/2026-01-01"
NO_REPORT = "no report: pass an app, a sweep or a run"


def make_run(root, name, *, app="agents", sinks=("mlflow", "tensorboard"), group=None):
    config = config_in(root, name, app_name=app, sinks={sink: {"enabled": True} for sink in sinks})
    with trieye.Run(config, group=group) as run:
        run.log({"loss": 0.5}, step=1)


@pytest.fixture(scope="module")
def _made(tmp_path_factory):
    root = tmp_path_factory.mktemp("ui") / "root"
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        make_run(root, "first")
        make_run(root, "second", group=SWEEP)
        make_run(root, "bare", app="others", sinks=())
        make_run(root, "events", app="others", sinks=["tensorboard"])
    return root


@pytest.fixture
def root(_made, tmp_path, monkeypatch):
    """Return a directory of apps that a test may change: `agents` with MLflow, `others` without it."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(_made, tmp_path / ".trieye_data"))


@pytest.fixture
def sweep(root, tmp_path):
    """Return the directory of a sweep of one job, whose run is `second`."""
    job = tmp_path / "multirun" / "grid" / "0"
    job.mkdir(parents=True)
    (job / "run").symlink_to(root / "agents" / "runs" / "second")
    return job.parent


def mlflow_run_of(run_dir):
    return json.loads((run_dir / "run.json").read_text())["mlflow_run_id"]


def change(path, *, of="persistence", **values):
    record = json.loads(path.read_text())
    record[of].update(values)
    path.write_text(json.dumps(record))


def pages(reference, root, directory, **options):
    shown_pages, notes = pages_of(PageSelection(reference, [root]), directory, **options)
    return {page.title: page for page in shown_pages}, notes


def runs_linked(directory):
    return sorted(str(path.relative_to(directory)) for path in directory.glob("**/*") if path.is_symlink())


class UiProcess:
    """`trieye ui` in a separate process.

    Attributes:
        process: The process.
        lines: The lines printed so far.
        family: Its descendant processes.
        directory: Of its servers.
    """

    def __init__(self, *arguments):
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        command = [sys.executable, "-m", "trieye.cli", "ui", *map(str, arguments)]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, process_group=0
        )
        self.lines = []
        for line in self.process.stdout:
            self.lines.append(line.strip())
            if line.startswith("Ctrl-C stops"):
                break
        self.family = psutil.Process(self.process.pid).children(recursive=True) if self.process.poll() is None else []
        guard = next(one.cmdline() for one in self.family if "guard.py" in one.cmdline()[-2])
        self.directory = Path(guard[-1])

    @property
    def links(self):
        return dict(re.fullmatch(r"(\w+) +(http.+)", line).groups() for line in self.lines if "  http" in line)

    def end(self, number):
        self.process.send_signal(number)
        rest = self.process.stdout.read()
        return self.process.wait(), rest

    def is_gone(self):
        gone = all(not one.is_running() or one.status() == psutil.STATUS_ZOMBIE for one in self.family)
        return gone and not self.directory.exists()


@pytest.fixture
def ui():
    """Return a function that starts `trieye ui`, and end the process even if the test fails."""
    with contextlib.ExitStack() as stack:

        def start(*arguments):
            started = UiProcess(*arguments)
            stack.callback(started.process.stdout.close)
            stack.callback(started.process.wait)
            stack.callback(started.process.kill)
            return started

        yield start


def get(link, path, **body):
    address = link.partition("/#")[0].rstrip("/")
    data = json.dumps(body).encode() if body else None
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{address}{path}", data=data, headers=headers)  # noqa: S310 - our own address
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=60) as answer:
        return answer.status, answer.read()


@pytest.mark.long
@pytest.mark.slow
def test_a_run_is_shown_in_mlflow_and_tensorboard_until_ctrl_c(root, sweep, ui, tmp_path):
    port = free_port()
    shown = ui("agents/first", "--root", root, "--port", port)
    run_id = mlflow_run_of(root / "agents" / "runs" / "first")
    assert list(shown.links) == ["MLflow", "TensorBoard", "report"]
    assert (
        shown.links["MLflow"] == f"http://127.0.0.1:{port}/#/experiments/1/runs/{run_id}?workflowType=machine_learning"
    )
    status, page = get(shown.links["MLflow"], "/")
    assert (status, b"<title>MLflow" in page) == (200, True)
    _, answer = get(shown.links["MLflow"], f"/api/2.0/mlflow/runs/get?run_id={run_id}")
    mlflow_run = json.loads(answer)["run"]
    assert (mlflow_run["info"]["experiment_id"], mlflow_run["info"]["run_name"]) == ("1", "first")
    assert [(item["key"], item["value"]) for item in mlflow_run["data"]["metrics"]] == [("loss", 0.5)]
    _, answer = get(shown.links["MLflow"], f"/api/2.0/mlflow/artifacts/list?run_id={run_id}&path=config")
    files = [item["path"] for item in json.loads(answer)["files"]]
    assert "config/configs.json" in files
    status, text = get(shown.links["MLflow"], f"/get-artifact?path=config/configs.json&run_uuid={run_id}")
    assert (status, json.loads(text)["run_name"]) == (200, "first")
    # the filter in the link of a sweep finds its runs, and the run above them
    shown_pages, _ = pages("grid", root, tmp_path, only="mlflow")
    expected = unquote(shown_pages["MLflow"].fragment.partition("searchFilter=")[2])
    _, answer = get(shown.links["MLflow"], "/api/2.0/mlflow/runs/search", experiment_ids=["1"], filter=expected)
    assert {item["info"]["run_name"] for item in json.loads(answer)["runs"]} == {"second", "a sweep/2026-01-01"}
    assert experiments_of(f"http://127.0.0.1:{port}", [run_id]) == ["1"]
    # artifacts logged through this server go to the directory of the runs' artifacts
    _, answer = get(shown.links["MLflow"], "/api/2.0/mlflow/experiments/create", name="another")
    _, answer = get(shown.links["MLflow"], "/api/2.0/mlflow/experiments/get-by-name?experiment_name=another")
    artifact_uri = json.loads(answer)["experiment"]["artifact_location"]
    assert artifact_uri.startswith((root / "agents" / "mlruns" / "artifacts").as_uri())

    status, page = get(shown.links["TensorBoard"], "/")
    assert (status, b"<title>TensorBoard" in page) == (200, True)
    wait_until(lambda: json.loads(get(shown.links["TensorBoard"], "/data/runs")[1]) == ["first"], pause_s=0.5)

    commands = [" ".join(item.cmdline()).replace(str(tmp_path), "") for item in shown.family]
    assert sum("mlflow" in command for command in commands) == 2  # MLflow's command, and one worker
    assert shown.end(signal.SIGINT)[0] == 0
    assert shown.is_gone()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".trieye_data",
        "multirun",
    ]  # no server wrote to the working directory


@pytest.mark.slow
@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.long), signal.SIGKILL])
def test_any_end_of_the_command_ends_its_servers(root, ui, number):
    shown = ui("first", "--root", root, "--only", "report")
    assert list(shown.links) == ["report"]
    assert len(shown.family) == 2  # the guard, and the report
    code, _ = shown.end(number)
    assert code == {signal.SIGTERM: 0, signal.SIGKILL: -signal.SIGKILL}[number]
    wait_until(shown.is_gone, pause_s=0.05)


@pytest.mark.slow
def test_a_dead_server_is_an_error_with_the_end_of_its_log(root, ui):
    shown = ui("events", "--root", root, "--only", "tensorboard")
    assert list(shown.links) == ["TensorBoard"]
    assert len(shown.family) == 3  # the guard, TensorBoard, and its data server
    next(one for one in shown.family if "tensorboard.main" in one.cmdline()).kill()
    rest = shown.process.stdout.read()
    assert shown.process.wait() == 1
    assert "error: TensorBoard exited with code -9" in rest
    assert "(Press CTRL+C to quit)" in rest
    assert shown.is_gone()


def test_ctrl_c_during_the_start_ends_the_servers(root):
    command = [sys.executable, "-m", "trieye.cli", "ui", "agents", "--root", str(root), "--only", "mlflow"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, process_group=0) as process:
        assert process.stderr.readline() == "trieye: starting MLflow\n"
        wait_until(lambda: len(psutil.Process(process.pid).children(recursive=True)) >= 2)
        family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == "interrupted\n"
    assert process.returncode == 130
    wait_until(lambda: not any(one.is_running() for one in family))


def test_an_app_is_shown_as_its_mlflow_experiment(root, tmp_path):
    shown_pages, notes = pages("agents", root, tmp_path)
    assert (list(shown_pages), notes) == (["MLflow", "TensorBoard", "report"], [])
    assert shown_pages["MLflow"].fragment.startswith("/#/experiments/1/runs?")
    assert "searchFilter" not in shown_pages["MLflow"].fragment
    assert runs_linked(tmp_path / "tensorboard") == ["first", "second"]


def test_a_sweep_shows_only_its_runs(root, sweep, tmp_path):
    shown_pages, _ = pages(str(sweep), root, tmp_path)
    # `tags.`trieye.sweep` = '/of/a sweep/2026-01-01'`
    expected = "searchFilter=tags.%60trieye.sweep%60%20%3D%20%27%2Fof%2Fa%20sweep%2F2026-01-01%27"
    assert shown_pages["MLflow"].fragment.startswith("/#/experiments/1/runs?")
    assert shown_pages["MLflow"].fragment.endswith(expected)
    assert runs_linked(tmp_path / "tensorboard") == ["second"]


def test_tensorboard_shows_new_runs_and_drops_deleted_ones(root, sweep, tmp_path):
    logdir = tmp_path / "tensorboard"
    shown_pages, _ = pages("grid", root, tmp_path, only="tensorboard")
    assert list(shown_pages) == ["TensorBoard"]
    (sweep / "1").mkdir()
    (sweep / "1" / "run").symlink_to(root / "agents" / "runs" / "first")
    shown_pages["TensorBoard"].refresh()
    assert runs_linked(logdir) == ["first", "second"]
    shutil.rmtree(root / "agents" / "runs" / "second")
    shown_pages["TensorBoard"].refresh()
    assert runs_linked(logdir) == ["first"]
    assert (logdir / "first").samefile(root / "agents" / "runs" / "first")


def test_tensorboard_shows_a_run_once_its_config_is_written(root, tmp_path):
    config = root / "agents" / "runs" / "second" / "configs.json"
    hidden = config.rename(tmp_path / "configs.json")
    shown_pages, (note,) = pages("agents", root, tmp_path, only="tensorboard")
    assert f"{config.parent} is skipped: " in note
    hidden.rename(config)
    shown_pages["TensorBoard"].refresh()
    assert runs_linked(tmp_path / "tensorboard") == ["first", "second"]


def test_without_a_name_all_apps_are_shown_with_one_server_per_store(root, tmp_path):
    shutil.copytree(root / "agents", root / "moved")  # its store goes with it
    shown_pages, notes = pages(None, root, tmp_path)
    assert (list(shown_pages), notes) == (["MLflow (agents)", "MLflow (moved)", "TensorBoard"], [NO_REPORT])
    stores = {shown_pages[title].environment["MLFLOW_BACKEND_STORE_URI"] for title in list(shown_pages)[:2]}
    assert stores == {f"sqlite:///{root / app / 'mlruns' / 'mlflow.db'}" for app in ("agents", "moved")}
    apps = ["agents/first", "agents/second", "moved/first", "moved/second", "others/events"]
    assert runs_linked(tmp_path / "tensorboard") == apps


def test_too_many_mlflow_stores_are_rejected(root, command):
    for number in range(MAX_STORES):
        shutil.copytree(root / "agents", root / f"copy{number}")
    assert f"its runs are in {MAX_STORES + 1} MLflow stores" in command.error("ui", "--root", root)


def test_a_run_without_sinks_has_only_the_report(root, tmp_path, command):
    shown_pages, notes = pages("bare", root, tmp_path)
    assert list(shown_pages) == ["report"]
    assert [note.partition(":")[0] for note in notes] == ["no MLflow page", "no TensorBoard page"]
    err = command.error("ui", "bare", "--root", root, "--only", "mlflow")
    assert "nothing to show in the browser: no MLflow page: the MLflow sink was disabled" in err
    assert f"nothing to show in the browser: {NO_REPORT}" in command.error("ui", "--root", root, "--only", "report")


def test_the_report_is_regenerated_on_each_load(root, monkeypatch):
    source = ".trieye_data/agents/runs/first"
    _, page = _page(source)
    assert "<h1>No report</h1>" in page  # the metric is ambiguous
    assert "nor a returned number; add --metric (choose from: loss)<p>" in page
    assert "<code>trieye results report " in page
    change(root / "agents/runs/first/configs.json", of="loop", objective="loss")
    _, page = _page(source)
    assert "<h1>loss of first</h1>" in page
    assert f"<code>{source}</code>" in page
    assert '<a href="/' not in page  # a browser opens no files from here
    monkeypatch.delitem(sys.modules, "trieye.results.report")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert "the report needs matplotlib, which is not installed: pip install matplotlib" in _page(source)[1]


def test_the_report_is_served_only_under_local_names_and_without_other_files(tmp_path):
    port = free_port()

    def get_as(host, path=HEALTH):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        with contextlib.closing(connection):
            connection.request("GET", path, headers={"Host": host})
            answer = connection.getresponse()
            return answer.status, answer.read()

    def is_up():
        with contextlib.suppress(ConnectionRefusedError):
            return get_as("localhost")

    with subprocess.Popen(server_command(str(tmp_path), ".", port)) as server:
        try:
            wait_until(is_up)
            for host in ("localhost", "127.0.0.1", "LOCALHOST:80", f"localhost:{port}"):
                assert get_as(host)[0] == 200
            for host in ("evil.example", f"evil.example:{port}", "localhost.evil.example", "["):
                assert get_as(host, "/") == (403, b"")
            assert get_as("localhost", "/etc/passwd")[0] == 404
            status, page = get_as("localhost", "/")
            assert (status, b"<h1>No report</h1>" in page) == (200, True)
        finally:
            server.kill()


def test_a_run_with_a_damaged_config_is_named_and_skipped(root, tmp_path, command):
    runs = root / "agents" / "runs"
    (runs / "first" / "configs.json").write_text('{"persistence": {}}')
    shown_pages, notes = pages("agents", root, tmp_path)
    assert (len(shown_pages), runs_linked(tmp_path / "tensorboard")) == (3, ["second"])
    assert notes == [f"{runs / 'first'} is skipped: configs.json has no 'sinks'"]
    (runs / "first" / "configs.json").write_text("{")
    assert f"no runs in {runs / 'first'}; {runs / 'first'} is skipped: " in command.error("ui", "first", "--root", root)


@pytest.mark.parametrize("name", ["/home", "../second"])
def test_tensorboard_shows_no_directory_outside_a_run(root, tmp_path, name):
    run_dir = root / "agents" / "runs" / "first"
    change(run_dir / "configs.json", tensorboard_dir_name=name)
    _, notes = pages("agents", root, tmp_path, only="tensorboard")
    assert notes == [f"{run_dir} is skipped: {name!r} is not a file name inside the directory"]
    assert runs_linked(tmp_path / "tensorboard") == ["second"]


def test_an_existing_server_is_linked_without_its_password(root, capfd):
    for run_dir in (root / "agents" / "runs").iterdir():
        change(run_dir / "configs.json", mlflow_tracking_uri="http://me:hunter2@127.0.0.1:9/track/")
    assert main(["ui", "first", "--root", str(root), "--only", "mlflow", "--no-browser"]) == 0
    out, err = capfd.readouterr()
    assert (out, err) == ("MLflow  http://127.0.0.1:9/track/#/experiments\n", "")  # no notes


@pytest.mark.parametrize(
    ("display", "arguments", "is_opened"), [(":7", [], True), (":7", ["--no-browser"], False), ("", [], False)]
)
def test_a_browser_opens_only_with_a_display(root, monkeypatch, display, arguments, is_opened):
    change(root / "agents/runs/first/configs.json", mlflow_tracking_uri="http://127.0.0.1:9")
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr(sys, "stdout", Screen())
    monkeypatch.setenv("DISPLAY", display)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    assert main(["ui", "first", "--root", str(root), "--only", "mlflow", *arguments]) == 0
    assert opened == (["http://127.0.0.1:9/#/experiments"] if is_opened else [])


def test_a_store_without_a_server_is_named_without_its_password(root, command):
    change(root / "agents" / "runs" / "first" / "configs.json", mlflow_tracking_uri="postgresql://me:hunter2@db/x")
    err = command.error("ui", "first", "--root", root, "--only", "mlflow")
    assert "mlflow server --backend-store-uri postgresql://me:***@db/x" in err


def test_event_files_are_shown_even_if_the_mlflow_database_is_missing(root, tmp_path):
    (root / "agents" / "mlruns" / "mlflow.db").unlink()
    shown_pages, (note,) = pages("agents", root, tmp_path)
    assert list(shown_pages) == ["TensorBoard", "report"]
    assert "mlflow.db no longer exists" in note


@pytest.mark.parametrize("revision", ["451aebb31d03", "ffffffffffff"])  # MLflow's first revision; an unknown one
def test_a_database_of_another_mlflow_version_is_unchanged(root, command, revision):
    database = root / "agents" / "mlruns" / "mlflow.db"
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("DROP TABLE model_versions")  # MLflow would make it, without a word
        connection.execute("UPDATE alembic_version SET version_num = ?", [revision])
    text = command.error("ui", "agents", "--root", root, "--only", "mlflow")
    assert "has another schema than the installed MLflow" in text
    assert "mlflow db upgrade sqlite:///" in text
    assert "--upgrade mlflow" in text
    with contextlib.closing(sqlite3.connect(database)) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [(revision,)]


def test_a_port_in_use_is_reported(root, capfd, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert main(["ui", "events", "--root", str(root), "--port", str(port)]) == 2
    text = capfd.readouterr().err
    assert f"port {port}: Address already in use; choose another port" in text
    assert not list(tmp_path.glob("trieye-*"))


def test_an_invalid_port_is_rejected(command):
    for port in ("0", "65536", "http"):
        assert f"invalid port '{port}'; expected an integer from 1 to 65535" in command.error("ui", "--port", port)


def test_an_unknown_name_suggests_the_closest_one(root, sweep, command):
    closest = {"frist": "first", "agents/secnd": "agents/second", "agnets": "agents", "multirun/gird": None}
    for name, suggestion in closest.items():
        text = command.error("ui", name, "--root", root)
        assert f"{name}: no such run, app, sweep or directory" in text
        assert suggestion is None or f"did you mean {suggestion!r}?" in text


def test_a_name_resolves_to_an_app_then_a_run_then_a_local_directory(root, sweep, tmp_path):
    (tmp_path / "first").mkdir()
    (tmp_path / "agents").mkdir()
    runs = root / "agents" / "runs"
    assert resolve("agents", [root]) == root / "agents"
    assert resolve("first", [root]) == resolve("agents/first", [root]) == runs / "first"
    assert resolve(str(runs / "first"), []) == runs / "first"
    assert resolve("grid", [root]) == resolve("multirun/grid", [root]) == sweep
    shutil.copytree(runs / "first", root / "others" / "runs" / "first")
    with pytest.raises(
        ConfigurationError, match=r"several runs have this name; choose one: agents/first, others/first"
    ):
        resolve("first", [root])
