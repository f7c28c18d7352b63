"""Forks of a warm process behave like new interpreters."""

import os
import signal
import subprocess
import sys

import pytest

from tests import warm

LOADED = "'hydra._internal.hydra' in sys.modules"


@pytest.fixture
def popen():
    return warm.PopenLight


def output_of(popen, *command, **options):
    with popen([sys.executable, *command], stdout=subprocess.PIPE, text=True, **options) as process:
        return process.communicate(timeout=60)[0].strip(), process.returncode


@pytest.mark.parametrize("popen", [warm.PopenLight, warm.PopenRun])  # the second is a fork of the first
def test_a_program_is_a_child_of_the_test_with_its_arguments_directory_and_environment(popen, tmp_path):
    text = f"import os, sys; print(os.getppid(), os.getcwd(), sys.argv[1:], os.environ['A'], __name__, {LOADED})"
    (tmp_path / "program.py").write_text(text)
    (tmp_path / "module.py").write_text(text)
    for command in (["program.py"], ["-m", "module"], ["-c", text]):
        result, _ = output_of(popen, *command, "x y", cwd=tmp_path, env={**os.environ, "A": "1"})
        assert result == f"{os.getpid()} {tmp_path} ['x y'] 1 __main__ True"


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("pass", 0),
        ("raise SystemExit", 0),
        ("raise SystemExit(7)", 7),
        ("raise SystemExit('no')", 1),
        ("1 / 0", 1),
        ("raise KeyboardInterrupt", -signal.SIGINT),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL),
    ],
)
def test_a_program_exits_as_in_an_interpreter(popen, code, status):
    code = f"import atexit; atexit.register(print, 'left', flush=True)\n{code}"
    output = "" if status == -signal.SIGKILL else "left"
    assert output_of(popen, "-c", code, stderr=subprocess.PIPE) == (output, status)


def test_a_program_receives_signals_and_may_lead_a_session(popen):
    code = "import os, time; print(os.getsid(0), flush=True); time.sleep(60)"
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
        with popen([sys.executable, "-c", code], start_new_session=True, **streams) as process:
            assert process.stdout.readline() == f"{process.pid}\n"
            os.killpg(process.pid, number)
            assert process.wait(30) == -number


def test_a_program_waits_for_its_non_daemon_threads(popen):
    code = "import threading, time; threading.Thread(target=lambda: (time.sleep(0.2), print('done'))).start()"
    assert output_of(popen, "-c", code) == ("done", 0)


def test_finalizers_of_a_program_run_at_its_exit(popen):
    code = "import weakref\nclass A: pass\na = A()\nweakref.finalize(a, print, 'finalized')"
    assert output_of(popen, "-c", code) == ("finalized", 0)


@pytest.mark.parametrize(
    "options", [{"env": {**os.environ, "PYTHONHASHSEED": "1"}}, {"preexec_fn": int}, {"executable": sys.executable}]
)
def test_unsupported_options_start_an_interpreter(popen, options):
    assert output_of(popen, "-c", f"import sys; print({LOADED})", **options) == ("False", 0)
