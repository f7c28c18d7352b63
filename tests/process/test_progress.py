import io
import re
import sys

from trieye.process import progress
from trieye.process.progress import Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_without_a_terminal_there_are_plain_lines(capsys):
    with Progress("run", 10, 2, lambda: {"eval/return": 3.14159}) as bar:
        for step in range(3, 11):
            bar.update(step)
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("trieye: run: step 10/10 (100 %)")
    assert last.endswith("eval/return=3.142")


def test_lines_come_now_and_then_and_not_at_every_step(capsys):
    with Progress("run", None, 0, dict) as bar:
        for step in range(100_000):
            bar.update(step)
    assert len(capsys.readouterr().err.splitlines()) <= 3


def test_a_step_has_one_line(capsys, monkeypatch):
    monkeypatch.setattr(progress, "REFRESH_INTERVAL_S", 0.0)
    with Progress("run", 10, 9, dict) as bar:
        bar.update(10)
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_on_a_terminal_there_is_a_bar_with_the_key_metrics(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    with Progress("my_run", 10, 0, lambda: {f"metric{number}": number for number in range(9)}) as bar:
        bar.update(10)
    shown = terminal.getvalue()
    assert "my_run" in shown
    assert "10/10" in shown
    assert re.search(r"0:00:0\d.*elapsed.*0:00:00.*left", shown)
    assert "metric3=3" in shown
    assert f"metric{progress.MAX_SHOWN_METRICS}=" not in shown
