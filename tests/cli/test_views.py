import dataclasses
import io
import secrets
import shutil

import pytest
from rich.console import Console

import trieye
from tests.waiting import wait_until
from trieye.cli.views import read_view, render_run
from trieye.exceptions import ConfigurationError
from trieye.files.run_record import RunRecord
from trieye.hub.status import read_status
from trieye.process.text import duration


def log(run, count, *, names=1):
    before = read_status(run.dir).get("processed", 0)
    for step in range(count):
        run.log({f"loss/{number:02}": step / 4 for number in range(names)}, step=step)
    run.flush()
    wait_until(lambda: read_status(run.dir).get("processed", 0) == before + count * names)


def shown(view, width=250, height=24):
    console = Console(width=width, height=height, record=True, file=io.StringIO())
    console.print(render_run(view, console))
    return console.export_text()


def shown_now(run):
    return shown(read_view(run.dir, None))


def test_the_view_fits_the_terminal(run):
    log(run, 3, names=60)
    view = read_view(run.dir, None)
    for width, height in ((80, 24), (120, 40), (60, 15)):
        lines = shown(view, width, height).rstrip("\n").splitlines()
        assert len(lines) < height
        assert max(map(len, lines)) <= width
        assert " more" in lines[-1]
    assert "loss/59" in shown(view, 80, 100)
    assert "mirror" not in shown(view)


def test_rates_cover_the_last_seconds(run):
    log(run, 5)
    first = read_view(run.dir, None)
    assert "/s)" not in shown(first)
    log(run, 50)
    second = read_view(run.dir, first)
    rate = 50 / (second.statuses[-1][0] - second.statuses[0][0])
    assert f"events 55 ({rate:,.0f}/s)" in shown(second)


def test_the_last_checkpoint_and_dropped_and_late_points_are_shown(run):
    log(run, 9)
    run.step = 7
    run.save(weights=[1.0])
    run.log({"loss/00": float("nan")}, step=20)
    run.log({"loss/00": 1.0}, step=1)
    run.flush()
    for text in ("checkpoint step 7, ", "late 1 ", "(non_finite) 1"):
        wait_until(lambda text=text: text in shown_now(run))


@pytest.mark.long
def test_a_failing_sink_is_shown_with_the_start_of_its_error(make_config):
    config = make_config(
        sinks={"mlflow": {"enabled": True}},
        persistence={"mlflow_tracking_uri": "http://127.0.0.1:9"},
        stats={"processing_interval_seconds": 0.01},
    )
    with trieye.Run(config) as run:
        wait_until(lambda: any(sink["error"] for sink in read_status(run.dir).get("sinks", ())))
        text = shown_now(run)
    assert "http://127.0.0.1:9" in text
    assert " ..." in text


def test_a_run_whose_hub_is_starting_says_so(tmp_path):
    RunRecord(app_name="agents", run_name="first").save(tmp_path / "run.json")
    text = shown(read_view(tmp_path, None))
    assert "not published a status yet" in text
    assert "no metrics yet" in text


def test_a_temporarily_unreadable_journal_leaves_the_last_values(run):
    log(run, 9)
    wait_until(lambda: "loss/00" in shown(read_view(run.dir, None)))
    before = read_view(run.dir, None)
    run.close()
    (run.dir / "journal.db").write_bytes(b"no journal" * 1000)
    text = shown(read_view(run.dir, before))
    assert "cannot be read" in text
    assert "loss/00" in text


def test_deleting_a_run_ends_its_view(run):
    view = read_view(run.dir, None)
    run.close()
    shutil.rmtree(run.dir)
    with pytest.raises(ConfigurationError, match=f"{run.dir}: it has no run.json"):
        read_view(run.dir, view)


def test_values_that_are_not_finite_are_marked(run):
    log(run, 1)
    view = read_view(run.dir, None)
    status = {**view.status, "metrics": {"a": {"last": None, "min": 1.0, "max": None, "step": 3}}}
    text = shown(dataclasses.replace(view, statuses=((0.0, status),)))
    assert ["a", "not", "finite", "1", "not", "finite", "3"] in [line.split() for line in text.splitlines()]


def test_durations_are_shown_in_two_units():
    texts = {-1: "0 s", 59.4: "59 s", 61: "1 min 01 s", 3660: "1 h 01 min", 90_000: "1 d 1 h"}
    assert {seconds: duration(seconds) for seconds in texts} == texts


def replace_by_a_file(mirror):
    if mirror.exists():  # the run may create it again at any moment
        mirror.rename(mirror.with_name(secrets.token_hex(8)))
    try:
        mirror.open("xb").close()
    except FileExistsError:
        return False
    return True


def test_the_mirror_of_a_run_is_shown_with_its_lag_and_its_errors(make_config, tmp_path):
    mirror = tmp_path / "mirror"
    persistence = {"mirror": f"file://{mirror}", "mirror_interval_s": 1}
    with trieye.Run(make_config(persistence=persistence, stats={"processing_interval_seconds": 0.01})) as run:
        wait_until(lambda: (read_status(run.dir).get("mirror") or {}).get("mirrored_at"))
        assert f"mirror file://{mirror}: no checkpoint yet · journal as of 0 s ago\n" in shown_now(run)
        run.step = 5
        run.save(weights=[1.0])
        wait_until(lambda: read_status(run.dir)["mirror"]["committed"])
        assert f"mirror file://{mirror}: checkpoint_step_5 · " in shown_now(run)
        wait_until(lambda: replace_by_a_file(mirror))
        wait_until(lambda: read_status(run.dir)["mirror"]["error"])
        assert "NotADirectoryError" in shown_now(run)
        mirror.unlink()
