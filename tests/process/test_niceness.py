import json
import subprocess
import sys

import pytest

PROGRAM = """
import json, os, sys, threading
from trieye.process.niceness import limit_niceness

before = os.nice(int(sys.argv[1]))
threading.Thread(target=threading.Event().wait, daemon=True).start()
limit_niceness(**json.loads(sys.argv[2]))
nices = {os.getpriority(os.PRIO_PROCESS, int(thread)) for thread in os.listdir("/proc/self/task")}
try:
    os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0) - 1)
    is_allowed = True
except PermissionError:
    is_allowed = False
print(json.dumps([before, sorted(nices), is_allowed]))
"""


@pytest.mark.parametrize(("nicer_by", "at_least", "at_most"), [(2, -20, 5), (15, -20, 5), (2, 15, 19), (18, 15, 19)])
def test_every_thread_gets_the_niceness_that_the_user_may_set(nicer_by, at_least, at_most):
    limits = json.dumps({"at_least": at_least, "at_most": at_most})
    command = [sys.executable, "-c", PROGRAM, str(nicer_by), limits]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    before, nices, is_allowed = json.loads(done.stdout)
    expected = min(max(before, at_least), at_most)
    assert nices == [expected if is_allowed or expected > before else before]
