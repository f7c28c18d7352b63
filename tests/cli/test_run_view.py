import io
import secrets

import pytest
from rich.console import Console

import trieye
from tests.cli.conftest import wait_until
from trieye.cli.run_view import read_view, render
from trieye.hub.status import read_status


@pytest.fixture
def mirror(tmp_path):
    return tmp_path / "mirror"


@pytest.fixture
def run(make_config, mirror):
    persistence = {"mirror": f"file://{mirror}", "mirror_every_s": 1}
    with trieye.Run(make_config(persistence=persistence, stats={"processing_interval_seconds": 0.01})) as run:
        yield run


def put_a_file_there(mirror):
    if mirror.exists():  # the run may make it again at any moment
        mirror.rename(mirror.with_name(secrets.token_hex(8)))
    try:
        mirror.open("xb").close()
    except FileExistsError:
        return False
    return True


def shown(run):
    console = Console(width=250, record=True, file=io.StringIO())
    console.print(render(read_view(run.dir, None)))
    return console.export_text()


def test_the_mirror_of_a_run_is_shown_with_its_lag_and_with_what_is_wrong(run, mirror):
    wait_until(lambda: (read_status(run.dir).get("mirror") or {}).get("mirrored_at"))
    assert f"mirror file://{mirror}: no checkpoint yet · journal as of 0 s ago\n" in shown(run)
    run.step = 5
    run.save(weights=[1.0])
    wait_until(lambda: read_status(run.dir)["mirror"]["committed"])
    assert f"mirror file://{mirror}: checkpoint_step_5 · journal as of" in shown(run)
    wait_until(lambda: put_a_file_there(mirror))
    wait_until(lambda: read_status(run.dir)["mirror"]["error"])
    assert "NotADirectoryError" in shown(run)
    mirror.unlink()


def test_a_run_without_mirror_shows_none(make_config):
    with trieye.Run(make_config()) as run:
        run.flush()
        wait_until(lambda: read_status(run.dir))
        assert "mirror" not in shown(run)
        assert run.health()["mirror"] is None
