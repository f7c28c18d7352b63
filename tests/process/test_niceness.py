import json
import subprocess
import sys

import pytest

from trieye.process.niceness import ACTOR_NICENESS

PROGRAM = """
import json, os, sys, threading
from trieye.process.niceness import get_a_fair_share

before = os.nice(int(sys.argv[1]))
threading.Thread(target=threading.Event().wait, daemon=True).start()
get_a_fair_share()
nices = {os.getpriority(os.PRIO_PROCESS, int(thread)) for thread in os.listdir("/proc/self/task")}
try:
    os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0) - 1)
    is_allowed = True
except PermissionError:
    is_allowed = False
print(json.dumps([before, sorted(nices), is_allowed]))
"""


@pytest.mark.parametrize("nicer_by", [2, 15])
def test_every_thread_gets_the_niceness_that_the_user_may_set(nicer_by):
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(nicer_by)], capture_output=True, text=True, check=True)
    before, nices, is_allowed = json.loads(done.stdout)
    assert nices == [min(before, ACTOR_NICENESS) if is_allowed else before]
