"""The message of a guard process after a process was killed."""

import os
import signal
import subprocess
import sys
import time

PROGRAM = """
import sys
from trieye.process.crash_report import CrashReport
report = CrashReport("it's \\"gone\\" $HOME")
if "withdraw" in sys.argv:
    report.withdraw()
    report.withdraw()
print("ready", flush=True)
sys.stdin.read()
"""


def start_program(*arguments):
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    assert process.stdout.readline() == "ready\n"
    return process


def test_the_report_of_a_killed_process_is_printed():
    process = start_program()
    process.kill()
    assert process.stderr.read() == 'trieye: it\'s "gone" $HOME\n'
    process.communicate()


def test_the_report_survives_a_signal_to_the_process_group():
    process = start_program()
    time.sleep(0.3)  # until the shell ignores it
    os.killpg(process.pid, signal.SIGTERM)
    assert "it's" in process.stderr.read()
    process.communicate()


def test_a_withdrawn_report_is_not_printed():
    process = start_program("withdraw")
    process.kill()
    assert process.communicate()[1] == ""
