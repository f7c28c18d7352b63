"""Tables and lines of every command show values literally, on terminals and in pipes; a pipe gets one row per line."""

import io
import re
import shlex
import sys
from typing import Any

import pytest

import trieye
from tests.cli.conftest import Screen
from trieye.cli import main
from trieye.hub import ray_cluster
from trieye.hub.cluster import Node
from trieye.sweeps import progress, report
from trieye.sweeps.jobs import Done, Job, JobRecord
from trieye.sweeps.record import SweepRecord
from trieye.sweeps.status import status_of

HOSTILE = [
    "[/x]",
    "[bold]",
    "[relu,tanh]",
    "\x1b[31mred",
    "two\nlines",
    ":smile:",
    "long " * 60 + "end",
    "神經網絡",
    "",
]
NAMES = ["lr[relu]", "lr[tanh]", "網絡 [bold]"]
PICTURES = str.maketrans("\x1b\n", "␛␊")


class Config(trieye.TrieyeConfig):
    activation: str = "relu"


def visible(value):
    return value.translate(PICTURES)


@pytest.fixture(params=["pipe", "terminal"])
def shown(request, monkeypatch, tmp_path):
    """Return a function that calls another one, and returns its output on stdout and stderr without colors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "2000")
    monkeypatch.setenv("TERM", "xterm-256color")

    def call(function, *values):
        stream = Screen() if request.param == "terminal" else io.StringIO()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", stream)
            patch.setattr(sys, "stderr", stream)
            function(*values)
        text = stream.getvalue()
        if request.param == "pipe":
            assert "\x1b" not in text
        return re.sub(r"\x1b\[(?!31mred)[0-9;?]*[a-zA-Z]", "", text)

    return call


@pytest.fixture
def trieye_command(shown):
    def command(*arguments):
        return shown(main, [str(word) for word in arguments])

    return command


def assert_literal(text, values=HOSTILE):
    for value in values:
        assert visible(value) in text
    assert "\x1b[31m" not in text


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Runs whose activation, names and metrics look like markup."""
    root_dir = tmp_path_factory.mktemp("made")
    settings: dict[str, Any] = {"app_name": "app", "runtime": {"kind": "local"}, "sinks": {}}
    for number, value in enumerate(HOSTILE):
        name = NAMES[number] if number < len(NAMES) else f"run{number}"
        persistence = {"root_data_dir": str(root_dir)}
        with trieye.Run(Config(run_name=name, activation=value, persistence=persistence, **settings)) as run:
            for step in range(3):
                run.log({"eval/return": float(number + step), "m[/x]": 1.0, "m[bold]": 2.0}, step=step)
            run.save(weights=[1.0])
    return root_dir


@pytest.mark.parametrize("action", [("table",), ("select",), ("sensitivity", "--param", "activation"), ("compare",)])
def test_tables_of_results_show_values_literally(action, trieye_command, root):
    text = trieye_command("results", action[0], root, "--metric", "eval/return", *action[1:])
    assert_literal(text, HOSTILE[:4] if action[0] == "compare" else HOSTILE)


@pytest.mark.parametrize(
    "arguments",
    [
        ("runs",),
        ("rm", *(f"app/{name}" for name in NAMES), "--dry-run"),
        ("prune", "app", "--older-than", "0s", "--dry-run"),
    ],
)
def test_tables_of_runs_show_their_names_literally(arguments, trieye_command, root):
    assert_literal(trieye_command(*arguments, "--root", root), NAMES)


@pytest.mark.parametrize("command", ["checkpoints", "verify", "watch"])
def test_a_run_is_shown_literally(command, trieye_command, root):
    text = trieye_command(command, "app/lr[relu]", "--root", root, *(["--once"] if command == "watch" else []))
    assert_literal(text, ["lr[relu]", *(["m[/x]", "m[bold]"] if command == "watch" else [])])


def test_differences_between_runs_are_shown_literally(trieye_command, root):
    assert_literal(trieye_command("diff", "app/run3", "app/run4", "--root", root), HOSTILE[3:5])
    assert_literal(trieye_command("diff", "app/lr[relu]", "app/lr[tanh]", "--root", root), HOSTILE[:2] + NAMES[:2])


@pytest.fixture
def plan(tmp_path, trieye_command):
    """Return a function that plans a sweep over such values, and returns its directory and the output."""

    def make():
        (tmp_path / "train.py").touch()
        axis = ",".join(f"'{value}'" for value in HOSTILE)
        arguments = ["train.py", f"activation={axis}", "const=[relu,tanh]"]
        return tmp_path / "[first]", trieye_command("sweep", "plan", *arguments, "-o", tmp_path / "[first]")

    return make


def test_the_plan_of_a_sweep_shows_values_literally(plan):
    _, text = plan()
    assert_literal(text)
    assert "const=[relu,tanh]" in text


def test_tables_of_a_sweep_show_values_literally(plan, trieye_command, shown):
    sweep, _ = plan()
    for index, value in enumerate(HOSTILE):
        state: Any = "failed" if index == 1 else "completed"
        record = JobRecord(index=index, overrides=[f"activation={value}"], state=state, objective=float(index))
        record.error = f"[/e] {value}"
        record.write(sweep / str(index))
    status = trieye_command("sweep", "status", sweep)
    assert_literal(status)
    assert "[/e] [bold]" in status
    assert f"trieye sweep relaunch {shlex.quote(str(sweep))}" in status
    assert_literal(shown(report.final_table, status_of(sweep), SweepRecord.of(sweep), sweep))


@pytest.mark.parametrize(
    ("arguments", "num_rows"),
    [
        (("results", "table", "ROOT", "--metric", "eval/return"), len(HOSTILE)),
        (("prune", "app", "--older-than", "0s", "--dry-run", "--root", "ROOT"), len(HOSTILE)),
        (("runs", "--root", "ROOT"), len(HOSTILE)),
        (("checkpoints", "app/run6", "--root", "ROOT"), 1),
    ],
)
def test_a_pipe_gets_one_line_per_row(arguments, num_rows, root, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    main([str(root) if word == "ROOT" else word for word in arguments])
    text = capsys.readouterr().out
    row_markers = {"results": "no CI (n=1)", "checkpoints": " sizes fit"}
    assert len([line for line in text.splitlines() if row_markers.get(arguments[0], " FINISHED ") in line]) == num_rows
    assert arguments[0] != "results" or HOSTILE[6] in text


def test_a_running_sweep_shows_values_literally(shown, tmp_path):
    jobs = [Job(index, (f"activation={value}",)) for index, value in enumerate(HOSTILE)]

    def run():
        with progress.SweepProgress(tmp_path / "[first]", len(jobs), ["activation"]) as bar:
            for job in jobs:
                bar.began(job)
            bar.show()
            for job in jobs:
                bar.ended(job, Done(job.index, error=ValueError(f"[/e] {job.overrides[0]}")))

    assert_literal(shown(run), [value for value in HOSTILE if value.isprintable()])


def test_the_nodes_of_a_cluster_are_shown_literally(trieye_command, monkeypatch):
    nodes = [Node(f"{index}" * 8, "1.2.3.4", value) for index, value in enumerate(HOSTILE)]
    nodes.append(Node("9" * 8, "1.2.3.4", "silent", error="[/gone]"))
    monkeypatch.setattr(ray_cluster, "ask_cluster", lambda *_: nodes)
    assert_literal(trieye_command("cluster", "check", "[/address]"), [*HOSTILE, "[/gone]"])
