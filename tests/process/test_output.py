"""The output of a program is copied to the log of its run and reaches the terminal unchanged."""
# ruff: noqa: T201 - the tests print

import contextlib
import io
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

import trieye
from tests import warm
from tests.forked import in_a_child
from trieye.process import output
from trieye.process.output import OutputLog, discard_dead_output, printing_to

pytestmark = pytest.mark.usefixtures("warm_programs")
WARM = warm.RUN

PROGRAM = """
import logging, os, signal, sys, trieye
logging.basicConfig(format="%(message)s")  # keeps a reference to the stream before the run opens
def config(name="run"):
    return trieye.TrieyeConfig(app_name="app", run_name=name, runtime={"kind": "local"}, sinks={},
        persistence={"root_data_dir": sys.argv[1], "log_output": sys.argv[2] == "on"})
"""


def run_program(body, tmp_path, *, switch="on", **changes):
    command = [sys.executable, "-c", PROGRAM + body, str(tmp_path / "root"), switch]
    return subprocess.run(command, check=False, timeout=60, **{"capture_output": True, "text": True, **changes})


def logged_lines(tmp_path, name="run"):
    """Return the lines of a run's output log, without trieye's messages."""
    text = (tmp_path / "root" / "app" / "runs" / name / "logs" / "output.log").read_text()
    return [line for line in text.splitlines() if not line.startswith("trieye: ")]


@pytest.fixture
def start(tmp_path):
    """Return a function that starts to log the streams that pytest installs for the test itself."""
    logs = []

    def begin():
        logs.append(OutputLog(tmp_path / "output.log"))
        return logs[-1]

    yield begin
    for log in logs:
        log.close()


@pytest.fixture
def content(tmp_path):
    return (tmp_path / "output.log").read_text


def test_output_survives_a_kill_and_the_next_attempt_appends(tmp_path):
    body = """
with trieye.Run(config()) as run:
    print("to stdout", 1); print("to stderr", file=sys.stderr); logging.warning("through logging")
    print("not complete", end="", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert run_program(body, tmp_path).returncode == -9
    heading, *lines = logged_lines(tmp_path)
    assert re.fullmatch(r"--- attempt 1, \d{4}-.*, process \d+ on .+ ---", heading)
    assert lines == ["to stdout 1", "to stderr", "through logging", "not complete"]
    done = run_program('with trieye.Run(config()) as run: print("again")\nprint("after it")', tmp_path)
    assert done.stdout == "again\nafter it\n"
    again = logged_lines(tmp_path)
    assert again[:4] == [heading, *lines[:3]]
    assert again[4].startswith("not complete--- attempt 2, ")
    assert again[5:] == ["again"]


@pytest.mark.parametrize(
    "body",
    [
        "with trieye.Run(config()) as run: raise ValueError('no good')",
        "run = trieye.Run(config()).open()\nraise ValueError('no good')",
        "import threading\nt = threading.Thread(target=int, args='x')\nwith trieye.Run(config()): t.start(); t.join()",
    ],
    ids=["in the run", "in an unclosed run", "in a thread"],
)
def test_the_traceback_of_an_uncaught_exception_is_logged_once(body, tmp_path):
    assert "ValueError: " in run_program(body, tmp_path).stderr
    lines = logged_lines(tmp_path)
    assert "Traceback (most recent call last):" in lines
    assert sum(re.match("ValueError: ", line) is not None for line in lines) == 1


@pytest.mark.long
def test_terminal_output_is_the_same_with_and_without_the_log(tmp_path):
    body = """
print("\\x1b[31mred\\x1b[0m", sys.stdout.isatty(), sys.stderr.isatty(), sys.stdout.fileno())
from rich.progress import Progress
from rich.console import Console
with trieye.Run(config()) as run:
    print("\\x1b[31mred\\x1b[0m", sys.stdout.isatty(), sys.stderr.isatty(), sys.stdout.fileno())
    with Progress(console=Console(stderr=True), auto_refresh=False) as bar:
        task = bar.add_task("walk", total=3)
        for _ in range(3):
            bar.advance(task); bar.refresh()
    for percent in (0, 50, 100):
        print(f"\\r{percent} %", end="", flush=True)
    print()
"""

    def terminal_output(switch, root):
        terminal, program_end = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), program_end)
        done = run_program(body, root, switch=switch, capture_output=False, env=environment, **streams)
        os.close(program_end)
        assert done.returncode == 0
        received = b""
        with contextlib.suppress(OSError):  # the other end is closed
            while part := os.read(terminal, 2**16):
                received += part
        os.close(terminal)
        return re.sub(rb"\d:\d\d:\d\d", b"time", received.replace(str(root).encode(), b"root"))

    assert terminal_output("on", tmp_path) == terminal_output("off", tmp_path / "other")
    assert not (tmp_path / "other" / "root" / "app" / "runs" / "run" / "logs" / "output.log").exists()
    _, first, *bars, last = logged_lines(tmp_path)
    assert first == "red True True 1"
    assert [line for line in bars if "100%" in line] == bars[-1:]
    assert last == "100 %"


OVERWRITTEN = [
    "a ", "b\n", "\r10 %", "\r20 %", "\n", "30 %\r", "40 %\r", "\nc\r\n", "x\ry\rz\n", "\x1b[2K\x1b]0;t\x07d\n"
]  # fmt: skip
PRINTED_ABOVE = [
    "\x1b[?25l\x1b[32mbar 1\x1b[0m",  # as rich draws and flushes it; text printed above overwrites the bar
    "\r\x1b[2Khello\n\x1b[32mbar 2\x1b[0m",
    "\r\x1b[2K\x1b[32mbar 3\x1b[0m",
    "\r\x1b[2Kworld\nbar 4",  # without colors
    "\r\x1b[2Kbar 5",
    "\r\x1b[2Kend\n",
    "no newline",
    " yet\r\n",
]


@pytest.mark.parametrize(
    ("texts", "logged"),
    [
        (OVERWRITTEN, "a b\n20 %\n40 %\nc\nz\nd\n"),
        (PRINTED_ABOVE, "hello\nworld\nbar 4\nend\nno newline yet\n"),
    ],
    ids=["overwritten", "printed above a bar"],
)
def test_only_the_last_version_of_an_overwritten_line_and_text_above_a_bar_are_logged(start, content, texts, logged):
    log = start()
    for text in texts:
        sys.stdout.write(text)
        sys.stdout.flush()
    log.close()
    assert content() == logged


def test_nested_logs_closed_out_of_order_restore_the_streams(tmp_path, capsys):
    def is_unpatched():
        return not any({"write", "flush"} & vars(stream).keys() for stream in (sys.stdout, sys.stderr))

    assert is_unpatched()
    one, two = OutputLog(tmp_path / "one"), OutputLog(tmp_path / "two")
    print("both")
    one.close()
    print("second", file=sys.stderr)
    three = OutputLog(tmp_path / "three")
    two.close()
    print("third")
    three.close()
    print("nobody")
    three.close()
    assert is_unpatched()
    contents = [(tmp_path / name).read_text() for name in ("one", "two", "three")]
    assert contents == ["both\n", "both\nsecond\n", "third\n"]
    assert capsys.readouterr() == ("both\nthird\nnobody\n", "second\n")


def test_a_later_patch_of_a_stream_is_preserved(start, content, capsys):
    log = start()
    loud, before = [], sys.stdout.write
    sys.stdout.write = lambda text: (loud.append(text), before(text))[1]
    print("one")
    log.close()
    print("two")
    del sys.stdout.write
    print("three")
    assert (content(), "".join(loud), capsys.readouterr().out) == ("one\n", "one\ntwo\n", "one\ntwo\nthree\n")


@pytest.mark.long
def test_a_forked_child_logs_to_the_same_file_while_a_thread_prints(start, content):
    start()
    stop = threading.Event()

    def print_repeatedly():
        while not stop.is_set():
            print("thread")

    thread = threading.Thread(target=print_repeatedly)
    thread.start()
    try:
        for _ in range(10):
            assert in_a_child(lambda: print("child") or 0) == 0
    finally:
        stop.set()
        thread.join()
    assert content().count("child\n") == 10


def test_lines_of_concurrent_threads_are_not_interleaved(start, content):
    start()

    def work(letter):
        for _ in range(500):
            sys.stdout.write(letter * 20 + "\n")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, "abcd"))
    assert sorted(content().split()) == sorted(letter * 20 for letter in "abcd" for _ in range(500))


def test_a_full_log_is_reported_once_and_still_gets_tracebacks(start, content, monkeypatch, capsys):
    log = start()
    monkeypatch.setattr(output, "MAX_OUTPUT_BYTES", 3 << 20)
    for _ in range(40):
        print("x" * 100_000)
    log.keep("a traceback")
    assert 2.8 * 2**20 < len(content()) < (3 << 20) + 200
    assert content().endswith("xx\ntrieye: this file is full (3 MiB)\na traceback\n")
    captured = capsys.readouterr()
    assert len(captured.out) == 40 * 100_001
    assert captured.err.count("is full (3 MiB)") == 1


def test_a_full_disk_is_reported_once_and_does_not_affect_prints(tmp_path, capsys):
    (tmp_path / "logs").mkdir()
    log = OutputLog(tmp_path / "output.log")
    with open("/dev/full", "wb") as full:  # noqa: PTH123 - a device
        os.dup2(full.fileno(), log._descriptor)
    print("one")
    print("two")
    log.close()
    captured = capsys.readouterr()
    assert captured.out == "one\ntwo\n"
    assert captured.err.count("output.log (No space left on device)") == 1


def test_streams_of_other_types_are_logged_or_left_unchanged(tmp_path, monkeypatch):
    class Slotted:
        __slots__ = ()

        def write(self, text):
            return len(text)

        def flush(self):
            pass

    written = io.StringIO()
    monkeypatch.setattr(sys, "stdout", written)
    monkeypatch.setattr(sys, "stderr", Slotted())
    log = OutputLog(tmp_path / "output.log")
    print("one")
    print("two", file=sys.stderr)
    with pytest.raises(TypeError):
        sys.stdout.write(b"bytes")
    log.close()
    monkeypatch.setattr(sys, "stderr", None)
    OutputLog(tmp_path / "output.log").close()
    assert (written.getvalue(), (tmp_path / "output.log").read_text()) == ("one\n", "one\n")


def test_a_linked_log_is_not_followed(tmp_path, make_config, capfd):
    config = make_config()
    with trieye.Run(config) as run:
        log_path = run.dir / "logs" / "output.log"
    log_path.unlink()
    (run.dir.parents[2] / "elsewhere").write_text("mine")
    log_path.symlink_to(run.dir.parents[2] / "elsewhere")
    with trieye.Run(config):
        print("hello")
    assert (run.dir.parents[2] / "elsewhere").read_text() == "mine"
    assert "output.log cannot be written" in capfd.readouterr().err


def test_a_signal_handler_that_prints_during_a_print_causes_no_deadlock(start, content):
    start()

    def handler(*_):
        print("from the handler")

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        for _ in range(2000):
            print("line")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert content().count("line") > 1900


def test_output_is_discarded_only_where_nothing_can_read_it():
    def printed():
        (reading, out), (closed, err) = os.pipe(), os.pipe()
        os.dup2(out, 1)
        os.dup2(err, 2)
        for descriptor in (err, closed):
            os.close(descriptor)
        discard_dead_output()
        return os.write(2, b"lost") == 4 and os.write(1, b"read") == 4 and os.read(reading, 9) == b"read"

    assert in_a_child(printed) == 1


@pytest.mark.parametrize(
    "spoil",
    [
        lambda: setattr(sys, "stdout", SimpleNamespace(write=sys.stdout.write)),  # a tee without flush
        lambda: setattr(sys, "stdout", None),
        lambda: sys.stdout.close(),  # noqa: PLW0108 - of the test
    ],
)
def test_a_stream_that_a_printing_block_replaced_or_closed_is_restored_at_its_end(tmp_path, monkeypatch, spoil):
    monkeypatch.setattr(sys, "stdout", open(1, "w", closefd=False))  # noqa: SIM115 - for its duration
    with printing_to(tmp_path / "outer"):
        with printing_to(tmp_path / "inner"):
            print("in the block")
            spoil()
        print("behind the block")
    assert (tmp_path / "inner").read_text() == "in the block\n"
    assert (tmp_path / "outer").read_text() == "behind the block\n"
