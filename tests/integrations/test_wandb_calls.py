"""Programs written for wandb: logged values, and the start, resume and end of runs."""

import json
import math
import secrets
import sqlite3
from pathlib import Path

import numpy as np
import pytest
import torch

from tests import warm
from tests.integrations.conftest import media, points
from tests.waiting import wait_until
from trieye.exceptions import ConfigurationError
from trieye.files.run_record import RunRecord
from trieye.integrations import opening, wandb
from trieye.integrations.wandb.offline import records_in, values_of
from trieye.integrations.wandb.values import flat

NAMES = ("WANDB_MODE", "WANDB_PROJECT", "WANDB_NAME", "WANDB_RUN_ID", "WANDB_RESUME", "WANDB_DIR", "WANDB_RUN_GROUP")


@pytest.fixture(autouse=True)
def _in_tmp_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def run_dir(name, project="p"):
    return Path(".trieye_data") / project / "runs" / name


def params():
    with sqlite3.connect(".trieye_data/p/mlruns/mlflow.db") as store:
        return dict(store.execute("SELECT key, value FROM params"))


def kill_run():
    """Leave the run as a killed process does."""
    wandb.run._adopted.run.close("KILLED")
    wandb._current = None
    opening.AdoptedRun._open.clear()


def program(*lines):
    """Run a program in another process, and return its exit code."""
    head = "import sys\nimport trieye.integrations.wandb as wandb\n"
    return warm.run(["-c", head + "\n".join(lines)], Path.cwd()).returncode


@pytest.mark.long
@pytest.mark.parametrize(("exit_code", "status"), [(0, "FINISHED"), (3, "FAILED")])
def test_a_program_that_ends_without_finish_keeps_its_last_row_and_has_the_status_of_its_exit(exit_code, status):
    log = "for n in range(10): wandb.log({'a': n}, step=n)"
    assert program("wandb.init(project='p', id='one')", log, f"sys.exit({exit_code})") == exit_code
    assert points() == [("a", step, float(step)) for step in range(10)]
    assert RunRecord.read(run_dir("one") / "run.json").status == status
    assert json.loads((run_dir("one") / "wandb-summary.json").read_text()) == {"a": 9.0}


def test_a_killed_run_resumes_at_its_next_row_with_step_metrics():
    for attempt in (1, 2):
        run = wandb.init(project="p", id="one", resume="allow")
        assert run.resumed == (attempt == 2)
        run.define_metric("env_step")
        run.define_metric("*", step_metric="env_step")
        for row in range(run.step, run.step + 10):
            wandb.log({"env_step": 1000 * row + 1}, step=row)
            wandb.log({"loss": float(row)}, step=row)
        run.run.flush()
        kill_run()
    assert [row for row in points() if row[0] == "loss"] == [("loss", 1000 * n + 1, float(n)) for n in range(18)]
    assert [row for row in points() if row[0] == "env_step"] == [("env_step", n, 1000.0 * n + 1) for n in range(18)]
    assert RunRecord.read(run_dir("one") / "run.json").attempt == 2


def test_fractional_step_metrics_keep_each_point(capsys):
    for attempt in range(2):
        with wandb.init(project="p", id="one", resume="allow") as run:
            run.define_metric("epoch")
            run.define_metric("loss", step_metric="epoch")
            for number in range(8 * attempt, 8 * attempt + 8):
                wandb.log({"epoch": number / 4, "loss": float(number)})
    assert [row for row in points() if row[0] == "loss"] == [("loss", n, float(n)) for n in range(16)]
    assert [row for row in points() if row[0] == "epoch"] == [("epoch", n, n / 4) for n in range(16)]
    assert capsys.readouterr().err.count("'epoch' has the value 0.25") == 1


def test_config_and_the_summary_of_all_attempts_survive_a_kill():
    with wandb.init(project="p", id="one", resume="allow", config={"lr": 0.1, "net": {"size": [3, 4]}}) as run:
        run.define_metric("best", summary="max")
        run.summary.update(note="first", name="one")
        wandb.log({"a": 1.0, "best": 9.0, "text": "x", "histogram": wandb.Histogram([1.0, 2.0])})
    run = wandb.init(project="p", id="one", resume="allow", config={"batch": 8})
    run.define_metric("best", summary="max")
    run.summary["note"] = "second"
    wandb.log({"a": 2.0, "best": 7.0})
    wandb.log({"a": 3.0, "best": 5.0})
    run.run.flush()
    kill_run()
    run = wandb.init(project="p", id="one", resume="must")
    run.define_metric("best", summary="max")
    assert dict(run.config) == {"lr": 0.1, "net": {"size": [3, 4]}, "batch": 8}
    others = {"name": "one", "text": "x", "histogram": {"_type": "histogram"}}
    assert dict(run.summary) == {"a": 3.0, "best": 9.0, "note": "second", **others}
    run.config.lr = 0.2  # another attempt may have another value
    assert wandb.config.lr == 0.2


def test_values_of_the_config_and_the_summary_are_restored_with_their_types():
    values = {"rate": np.float32(0.5), "count": np.int64(3), "sizes": [1, 2], "none": None, "inf": math.inf}
    values |= {"tensor": torch.tensor(0.25, requires_grad=True), "array": np.arange(3), "net": {"act": ("relu",)}}
    restored = {"rate": 0.5, "count": 3, "sizes": [1, 2], "none": None, "inf": math.inf, "tensor": 0.25}
    restored |= {"array": [0, 1, 2], "net": {"act": ["relu"]}}
    others = {"day": np.datetime64("2026-01-01"), "wide": np.longdouble(1.5), "bytes": np.bytes_(b"a"), "set": {1}}
    values |= others
    restored |= {name: str(getattr(value, "item", lambda value=value: value)()) for name, value in others.items()}
    with wandb.init(project="p", id="one", resume="allow", config=values) as run:
        run.summary.update(values)
    with wandb.init(project="p", id="one", resume="must") as run:
        assert (dict(run.config), dict(run.summary)) == (restored, restored)


def test_a_changed_name_and_changed_tags_and_notes_are_tags_of_the_run():
    with wandb.init(project="p", id="one", tags=["a"]) as run:
        run.name, run.notes = "better", "a note"
        run.tags += ("b",)
    tags = RunRecord.read(run_dir("one") / "run.json").tags
    assert {key: tags[key] for key in ("mlflow.runName", "mlflow.note.content", "wandb.tags")} == {
        "mlflow.runName": "better", "mlflow.note.content": "a note", "wandb.tags": "a,b"
    }  # fmt: skip


def test_a_secret_in_the_config_is_neither_stored_nor_restored():
    secret = secrets.token_hex(8)
    for config in ({"api_key": secret, "lr": 1}, None):
        with wandb.init(project="p", id="one", resume="allow", config=config) as run:
            assert run.config.as_dict() == (config or {"lr": 1})
    assert all(secret.encode() not in path.read_bytes() for path in run_dir("one").rglob("*") if path.is_file())


def test_each_init_in_a_notebook_starts_another_run(monkeypatch):
    interactiveshell = pytest.importorskip("IPython.core.interactiveshell")
    monkeypatch.setattr(interactiveshell.InteractiveShell, "_instance", None)
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)  # IPython warns if another environment is active
    shell = interactiveshell.InteractiveShell.instance()
    try:
        wandb.init(project="p", id="n1")
        wandb.log({"a": 1.0})
        two = wandb.init(project="p", id="n2")
        wandb.log({"a": 2.0})
        assert (wandb.run is two, two.id) == (True, "n2")
    finally:
        shell.clear_instance()
    wandb.finish()
    assert (points("n1"), points("n2")) == ([("a", 0, 1.0)], [("a", 0, 2.0)])
    assert RunRecord.read(run_dir("n1") / "run.json").status == "FINISHED"


def test_media_are_logged_by_type():
    matplotlib = pytest.importorskip("matplotlib.figure")
    table = wandb.Table(columns=["x", "y"], data=[[1, "a"], [2, "b"]])
    table.add_data(3, np.float32(0.5))
    row = {
        "image": wandb.Image(np.random.default_rng(0).random((8, 9, 3)), caption="noise"),
        "images": [wandb.Image(torch.zeros(3, 4, 5)), wandb.Image(np.zeros((4, 5), np.uint8))],
        "histogram": wandb.Histogram(torch.randn(100)),
        "counted": wandb.Histogram(np_histogram=np.histogram([1, 2, 2, 3], 3)),
        "density": wandb.Histogram(np_histogram=np.histogram([1, 2, 2, 3], 2, density=True)),
        "video": wandb.Video(np.zeros((4, 3, 8, 8), np.uint8), fps=4),
    }
    row |= {"table": table, "text": "x" * 1_000_000, "array": np.arange(10.0), "figure": matplotlib.Figure()}
    with wandb.init(project="p", id="one"):
        wandb.log(row | {"page": wandb.Html("<b>hello</b>")})
        logged = {item.name: item for item in media()}
    assert {name: type(item).__name__ for name, item in logged.items()} == {
        **dict.fromkeys(("image", "images/0", "images/1", "figure"), "LogImage"),
        **dict.fromkeys(("histogram", "counted", "density", "array"), "LogHistogram"),
        **dict.fromkeys(("image/caption", "text"), "LogText"),
        "video": "LogVideo",
        "table": "LogTable",
    }
    assert (logged["counted"].counts, logged["density"].counts) == ([1.0, 2.0, 1.0], [0.25, 0.75])
    assert logged["table"].rows() == (["x", "y"], [[1, "a"], [2, "b"], [3, 0.5]])


@pytest.mark.usefixtures("mlflow")
def test_the_config_is_recorded_and_cannot_be_changed():
    run = wandb.init(project="p", id="one", config={"lr": 0.1, "net": {"size": 3}})
    run.config.batch = 32
    run.config["seed"] = 1
    assert (run.config.lr, run.config["batch"], wandb.config.net) == (0.1, 32, {"size": 3})
    with pytest.raises(ConfigurationError, match="allow_val_change"):
        run.config.lr = 0.2
    with pytest.raises(AttributeError, match="did you mean 'batch'"):
        run.config.bach  # noqa: B018
    wandb.finish()
    assert params() == {"lr": "0.1", "net.size": "3", "batch": "32", "seed": "1"}


def test_metrics_can_have_separate_axes_and_summaries():
    with wandb.init(project="p", id="one") as run:
        run.define_metric("env_step")
        run.define_metric("loss", summary="min")
        run.define_metric("*", step_metric="epoch", summary="last")
        run.define_metric("train/*", step_metric="env_step", summary="max")
        for number in range(3):
            wandb.log({"env_step": 100 * number, "epoch": 7.0, "train/return": 3.0 - number, "loss": float(number)})
        run.summary["note"] = "done"
        run.summary.best = 7
    returns = [("train/return", 100 * number, 3.0 - number) for number in range(3)]
    assert [row for row in points() if row[0] == "train/return"] == returns
    summary = json.loads((run_dir("one") / "wandb-summary.json").read_text())
    numbers = {"env_step": 200.0, "epoch": 7.0, "train/return": 3.0, "loss": 0.0}
    assert summary == {**numbers, "note": "done", "best": 7}
    assert [row[1] for row in points() if row[0] == "loss"] == [0, 1, 2]  # an exact name applies before a later pattern


def test_watched_gradients_are_logged():
    model = torch.nn.Sequential(torch.nn.Embedding(4, 3, sparse=True), torch.nn.Linear(3, 2))
    with wandb.init(project="p", id="one"):
        wandb.watch(model, log="all", log_freq=2)
        for _ in range(4):
            model(torch.tensor([1])).sum().backward()
            wandb.log({"loss": 1.0})
        logged = {(item.name, item.step) for item in media()}
    names = [f"{kind}/{name}" for kind in ("gradients", "parameters") for name in ("0.weight", "1.weight", "1.bias")]
    assert logged == {(name, step) for name in names for step in (0, 2)}


def log_some():
    for number in range(5):
        wandb.log({"a": float(number)})


def test_a_restart_without_resume_prints_its_directory_and_replaces_earlier_points(capsys):
    for _ in range(2):
        wandb.init(project="p", id="one")
        assert f"run 'one' of project 'p' begins in {run_dir('one').absolute()}" in capsys.readouterr().err
        log_some()
        wandb.finish()
    assert points() == [("a", step, float(step)) for step in range(5)]


def test_resume_must_needs_a_run_and_resume_never_rejects_one():
    with pytest.raises(ConfigurationError, match="resume='must'"):
        wandb.init(project="p", id="one", resume="must")
    wandb.init(project="p", id="one", resume="never")
    wandb.finish()
    with pytest.raises(ConfigurationError, match="resume='never'"):
        wandb.init(project="p", id="one", resume="never")


@pytest.mark.long
@pytest.mark.parametrize("resume", ["auto", True])
def test_a_run_without_an_id_resumes_only_after_a_crash(resume):
    first = wandb.init(project="p", resume=resume)
    log_some()
    wandb.run._adopted.run.flush()
    kill_run()
    second = wandb.init(project="p", resume=resume)
    assert (second.id, second.resumed, second.step) == (first.id, True, 5)
    second.finish()
    third = wandb.init(project="p", resume=resume)
    assert (third.id != first.id, third.resumed) == (True, False)


def test_environment_variables_replace_missing_arguments(monkeypatch):
    for name, value in zip(NAMES, ("offline", "q", "called", "one", "allow", "there", "g"), strict=True):
        monkeypatch.setenv(name, value)
    with wandb.init() as run:
        assert (run.project, run.name, run.id, run.group) == ("q", "called", "one", "g")
        wandb.log({"a": 1})
    record = RunRecord.read(Path("there/.trieye_data/q/runs/called-one/run.json"))
    assert record.status == "FINISHED"


def test_a_disabled_run_stores_nothing(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    with wandb.init(project="p", config={"lr": 1}) as run:
        wandb.log({"a": 1.0})
        wandb.save("*.txt")
        run.summary["b"] = 1
        assert run.config.lr == 1
    assert not Path(".trieye_data").exists()


def test_a_second_init_returns_the_open_run_unless_reinit_is_set():
    one = wandb.init(project="p", id="one")
    assert wandb.init(project="p", id="two") is one
    two = wandb.init(project="p", id="two", reinit=True)
    assert (wandb.run is two, two.id) == (True, "two")
    assert RunRecord.read(run_dir("one") / "run.json").status == "FINISHED"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: wandb.log({"a": 1}), r"wandb.log: call wandb.init\(\) first"),
        (lambda: wandb.config, r"call wandb.init\(\) first"),
        (lambda: wandb.init(projct="p"), "projct=...\\): unknown argument; did you mean 'project'"),
        (lambda: wandb.init(mode="of"), "did you mean 'offline'|choose from online"),
        (lambda: wandb.init(resume="yes"), "choose from allow, must, never, auto"),
    ],
)
def test_invalid_calls_are_named(call, message):
    with pytest.raises(ConfigurationError, match=message):
        call()


def test_an_invalid_environment_variable_is_named(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "ofline")
    with pytest.raises(ConfigurationError, match=r"mode='ofline'\) or WANDB_MODE: .*did you mean 'offline'"):
        wandb.init(project="p")


def test_settings_replace_missing_arguments_only():
    settings = wandb.Settings(run_id="one", run_tags=("a",), mode="disabled", console="off")
    with wandb.init(project="p", id="two", settings=settings) as run:
        assert (run.id, run.tags, run.disabled) == ("two", ("a",), True)


def test_an_unsupported_name_suggests_an_alternative():
    with pytest.raises(AttributeError, match=r"wandb.sweep .*trieye results"):
        wandb.sweep  # noqa: B018
    with pytest.raises(AttributeError, match=r"has no 'Tabl'; did you mean 'Table'.*it has AlertLevel, Artifact"):
        wandb.Tabl  # noqa: B018
    assert wandb.run is None


def test_rows_equal_those_of_wandbs_own_offline_run(monkeypatch, capsys):
    """The same calls through wandb itself, read back from its offline file, give equal rows."""
    real = pytest.importorskip("wandb")

    def calls(module):
        working_dir = str(Path.cwd())  # wandb's service process may run elsewhere
        with module.init(project="p", id="one", mode="offline", dir=working_dir, config={"lr": 0.1}):
            module.log({"a": 1.0, "nested": {"b": 2}})
            module.log({"a": 2.0}, commit=False)
            module.log({"c": np.float32(0.5)})
            module.log({"a": torch.tensor(3.0), "c": {"d": {"e": 4.0}}}, step=7)
            module.log({"b": 5}, step=7)
            module.log({"a": 4.0}, step=5)
            module.log({"d": True}, step=9)
            return dict(module.run.summary)

    monkeypatch.setenv("WANDB_SILENT", "true")
    calls(real)
    assert calls(wandb) == {"a": 3.0, "nested.b": 2.0, "c": 0.5, "c.d.e": 4.0, "b": 5.0}
    assert "the current step is 7" in capsys.readouterr().err
    (path,) = Path("wandb").glob("offline-run-*/*.wandb")
    wait_until(lambda: any(record.HasField("exit") for record in records_in(path)))
    rows = [values_of(record.history.item) for record in records_in(path) if record.HasField("history")]
    theirs = [
        (name, row["_step"], float(value)) for row in rows for name, value in flat(row) if not name.startswith("_")
    ]
    assert sorted(points()) == sorted(theirs)
