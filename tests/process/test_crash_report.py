"""The message of a guard process after a process was killed."""

import os
import signal
import subprocess
import sys
import time

import pytest

PROGRAM = """
import sys
from trieye.process.crash_report import CrashReport
words = CrashReport("it's \\"gone\\" $HOME")
if "withdraw" in sys.argv:
    words.withdraw()
    words.withdraw()
print("ready", flush=True)
sys.stdin.read()
"""


def begun(*words):
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_they_are_said_for_a_process_that_is_killed(number):
    process = begun()
    process.send_signal(number)
    assert process.stderr.read() == 'trieye: it\'s "gone" $HOME\n'
    process.communicate()


def test_a_signal_to_the_whole_group_does_not_silence_them():
    process = begun()
    time.sleep(0.3)  # until the shell ignores it
    os.killpg(process.pid, signal.SIGTERM)
    assert "it's" in process.stderr.read()
    process.communicate()


def test_nothing_is_said_that_was_withdrawn():
    process = begun("withdraw")
    process.kill()
    assert process.communicate()[1] == ""
