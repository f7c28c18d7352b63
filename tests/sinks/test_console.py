import logging

import pytest

from tests import warm
from trieye.sinks.console import LOGGER, ConsoleSink, LastResort
from trieye.sinks.thread import SinkThread
from trieye.stats.point import Point
from trieye.testing import MemoryHistory, make_run_info

PROGRAM = """
import logging, sys
from pathlib import Path
{before}
from trieye.sinks.console import ConsoleSink
from trieye.stats.point import Point
from trieye.testing import make_run_info
sink = ConsoleSink()
sink.open(make_run_info(Path(".")))
{after}
sink.write([Point("Rate/Steps", 12.34567, 10, 1.7e9), Point("loss", -1.0, 11, 1.7e9)])
sink.close("FINISHED")
"""


@pytest.fixture
def printed(tmp_path):
    """Return a function that runs a program and returns (stdout, stderr); pytest configures logging in this process."""

    def run(before="", after=""):
        (tmp_path / "program.py").write_text(PROGRAM.format(before=before, after=after))
        done = warm.run(["program.py"], tmp_path, modules=warm.RUN)
        assert done.returncode == 0, done.stderr
        return done.stdout, done.stderr

    return run


def test_lines_are_visible_once_without_configured_logging(printed):
    lines = "STATS [10]: Rate/Steps = 12.3457\nSTATS [11]: loss = -1.0000\n"
    assert printed(after="ConsoleSink().open(make_run_info(Path('.')))  # several sinks share a logger") == ("", lines)


@pytest.mark.parametrize("level", ["INFO", "WARNING"])
@pytest.mark.parametrize("position", ["before", "after"])
def test_lines_are_printed_once_if_the_application_configures_logging(printed, level, position):
    setup = f"logging.basicConfig(level=logging.{level}, format='app %(message)s')"
    assert printed(**{position: setup})[1] == "app STATS [10]: Rate/Steps = 12.3457\napp STATS [11]: loss = -1.0000\n"


def test_handlers_of_warnings_and_log_files_do_not_hide_the_lines(printed, tmp_path):
    setup = f"""
handler = logging.StreamHandler()
handler.setLevel(logging.WARNING)
logging.getLogger().addHandler(handler)
logging.getLogger("trieye").addHandler(logging.FileHandler({str(tmp_path / "log")!r}))
"""
    assert printed(before=setup)[1].count("STATS") == 2
    assert (tmp_path / "log").read_text().count("STATS") == 2


@pytest.mark.parametrize("name", ["trieye", "trieye.stats_processor"])
def test_an_application_can_silence_the_lines(printed, name):
    assert printed(before=f"logging.getLogger({name!r}).setLevel(logging.ERROR)") == ("", "")


def test_lines_are_printed_above_a_progress_bar(printed):
    before = "from rich.console import Console; from rich.progress import Progress"
    after = """
progress = Progress(console=Console(file=sys.stdout, force_terminal=True, width=60), redirect_stderr=True)
progress.add_task("train", total=2)
progress.start()
import atexit; atexit.register(progress.stop)
"""
    stdout, stderr = printed(before, after)
    assert stdout.count("STATS [10]: Rate/Steps = 12.3457") == 1
    assert stderr == ""


def test_a_closed_terminal_does_not_stop_the_sink(printed):
    assert printed(after="import io; sys.stderr = io.StringIO(); sys.stderr.close()") == ("", "")


@pytest.fixture
def _restored_logger():
    yield
    LOGGER.handlers = [handler for handler in LOGGER.handlers if not isinstance(handler, LastResort)]
    LOGGER.setLevel(logging.NOTSET)


@pytest.mark.usefixtures("_restored_logger")
def test_only_points_of_this_attempt_are_logged(tmp_path, caplog):
    source = MemoryHistory([Point("loss", 0.5, 3, 1.7e9, ("console",))])
    thread = SinkThread(ConsoleSink(), make_run_info(tmp_path), source)
    source.append([Point("loss", 0.5, 4, 1.7e9, ("console",)), Point("other", 0.5, 4, 1.7e9, ("mlflow",))])
    assert thread.close("FINISHED", 20)
    assert [(record.name, record.levelno, record.getMessage()) for record in caplog.records] == [
        ("trieye.stats_processor", logging.INFO, "STATS [4]: loss = 0.5000")
    ]
