import io
import re
import select
import sys
import time
import types

import pytest

from tests.terminals import on_a_terminal, read_until
from trieye.process import progress, terminal
from trieye.process.progress import ProgressBar


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def shown_on_terminal(monkeypatch):
    """Return a function that draws one update of a bar on a terminal of some width, and returns what it shows."""
    monkeypatch.setenv("TERM", "xterm")

    def show(columns, name, total, step, metrics):
        monkeypatch.setattr(sys, "stderr", drawn := Terminal())
        monkeypatch.setenv("COLUMNS", str(columns))
        with ProgressBar(name, total, 0, lambda: metrics) as bar:
            bar.update(step)
        return drawn.getvalue()

    return show


def test_progress_is_plain_lines_without_a_terminal(capsys):
    with ProgressBar("run", 10, 2, lambda: {"eval/return": 3.14159}) as bar:
        for step in range(3, 11):
            bar.update(step)
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("trieye: run: step 10/10 (100 %)")
    assert last.endswith("eval/return=3.142")


def test_a_program_without_standard_error_shows_no_bar(monkeypatch):
    monkeypatch.setattr("sys.stderr", None)
    with ProgressBar("run", 2, 0, dict) as bar:
        bar.update(1)
    assert terminal.Terminal(stderr=True).width > 1000


def test_messages_never_go_to_standard_output(monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr", None)
    progress.say("a message")
    assert not capsys.readouterr().out


def test_a_step_is_printed_once_even_if_ipython_is_partially_imported(capsys, monkeypatch):
    monkeypatch.setattr(progress, "REFRESH_INTERVAL_S", 0.0)
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))  # still without get_ipython
    with ProgressBar("run", 10, 9, dict) as bar:
        bar.update(10)
    assert capsys.readouterr().err.count("step 10/10") == 1


def test_lines_are_throttled(capsys):
    with ProgressBar("run", None, 0, dict) as bar:
        for step in range(100_000):
            bar.update(step)
    assert len(capsys.readouterr().err.splitlines()) <= 3


def test_a_terminal_shows_a_bar_with_the_key_metrics(shown_on_terminal):
    output = shown_on_terminal(160, "my_run", 10, 10, {f"metric{number}": number for number in range(9)})
    assert "my_run" in output
    assert "10/10" in output
    assert re.search(r"0:00:0\d.*elapsed.*0:00:00.*left", output)
    assert "metric3=3" in output
    assert f"metric{progress.MAX_SHOWN_METRICS}=" not in output


def test_a_narrow_terminal_truncates_the_metrics_but_not_steps_and_times(shown_on_terminal):
    metrics = {f"episode/return{number}": 500.0 for number in range(4)}
    for columns in (80, 120):
        output = shown_on_terminal(columns, "run_20261122", 60_000, 12_345, metrics)
        output = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", output)
        assert re.search(r"run_20261122 .*12345/60000 0:00:0\d elapsed -?[0-9:-]+ left episode/", output), output
        assert all(len(line) <= columns for line in re.split(r"[\r\n]+", output))


DEBUGGED = """
from trieye.process.progress import ProgressBar
with ProgressBar("run", 10, 0, dict) as bar:
    for step in range(1, 11):
        x = 40 + step
        if step == 2:
            breakpoint()
        bar.update(step)
"""


@pytest.mark.parametrize("chosen", ["", "ray.util.rpdb._driver_set_trace"])  # the value that Ray sets in a driver
def test_breakpoint_owns_the_terminal_until_the_debugger_exits(chosen):
    with on_a_terminal(DEBUGGED, PYTHONBREAKPOINT=chosen) as (terminal, process):
        assert re.search(r"<string>\([78]\)<module>\(\)", read_until(terminal, r"\(Pdb\) $"))  # 7 since Python 3.13
        for _ in range(3):  # across an update of the bar and into the next step
            time.sleep(0.3)  # long enough for the bar to be drawn
            assert not select.select([terminal], [], [], 0)[0]
            terminal.write(b"n\n")
            assert "/10" not in read_until(terminal, r"\(Pdb\) $")
        terminal.write(b"p x * 100\n")
        assert re.search(r"^4[23]00\r$", read_until(terminal, r"4[23]00\s+\(Pdb\) $"), re.MULTILINE)
        terminal.write(b"c\n")
        read_until(terminal, "10/10")
        assert process.wait(20) == 0


WITHOUT_BAR = """
import trieye
settings = {"runtime": {"kind": "local"}, "sinks": {}, "persistence": {"root_data_dir": ROOT}}
config = trieye.TrieyeConfig(run_name="plain", progress_bar=False, **settings)
with trieye.Run(config) as run:
    for step in run.steps(3):
        pass
"""


@pytest.mark.long
def test_progress_bar_false_prints_plain_lines(tmp_path):
    code = WITHOUT_BAR.replace("ROOT", repr(str(tmp_path)))
    with on_a_terminal(code) as (terminal, process):
        output = read_until(terminal, r"plain: step 3/3 \(100 %\)")
        assert "\x1b" not in output
        assert process.wait(30) == 0
