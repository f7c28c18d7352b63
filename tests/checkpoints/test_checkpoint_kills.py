"""Saves killed with SIGKILL: at each file operation, and at random moments."""

import random
import signal
import subprocess
import sys

import numpy as np
import pytest

from trieye.checkpoints.store import CheckpointStore
from trieye.snapshot.encode import encode

# one process forks a child for each operation at which a save is killed: n is the n-th audited operation
KILL_AT_EACH_OPERATION = """
import os, pathlib, shutil, signal, sys
import numpy as np
from trieye.checkpoints.store import CheckpointStore
from trieye.snapshot.encode import encode

here, step = pathlib.Path(sys.argv[1]), int(sys.argv[2])
OPERATIONS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.scandir", "os.listdir", "shutil.rmtree"}

def state(step, version):
    return encode({"step": step, "version": version, "a": np.full(1000, version)})

def save_killed_at(directory, kill_at):
    count = 0
    def watch(event, args):
        nonlocal count
        if event in OPERATIONS:
            count += 1
            if count == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
    encoded = state(step, 2)
    sys.addaudithook(watch)
    CheckpointStore(directory).save(step, encoded)
    os._exit(0)

def outcome(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

for kill_at in range(1, 1000):
    directory = here / f"{step}-{kill_at}"
    CheckpointStore(directory).save(1, state(1, 1))
    pid = os.fork()
    if pid == 0:
        save_killed_at(directory, kill_at)
    code = outcome(pid)
    reader, store = CheckpointStore(directory, read_only=True), CheckpointStore(directory)
    for opened in (reader, store):
        entry = opened.latest()
        loaded = opened.load(entry.path)
        assert loaded["step"] == entry.step and loaded["version"] in (1, 2), (kill_at, loaded)
        assert (loaded["a"] == loaded["version"]).all(), kill_at
    if code == 0:
        assert (entry.step, loaded["version"]) == (step, 2), (entry, loaded)
    store.save(3, state(3, 3))
    left = sorted(path.name for path in directory.iterdir())
    assert {*left} <= {"checkpoint_step_1", "checkpoint_step_2", "checkpoint_step_3"}, (kill_at, left)
    shutil.rmtree(directory)
    if code == 0:
        break
    assert code == -signal.SIGKILL, code
print(kill_at - 1)
"""


@pytest.mark.parametrize("step", [1, 2], ids=["replacing a checkpoint", "adding a checkpoint"])
def test_a_save_killed_at_any_file_operation_leaves_a_whole_checkpoint(tmp_path, step):
    command = [sys.executable, "-c", KILL_AT_EACH_OPERATION, str(tmp_path), str(step)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 10, "operations at which it was killed"


SAVE_IN_A_LOOP = """
import itertools, pathlib, sys
import numpy as np
from trieye.checkpoints.store import CheckpointStore
from trieye.snapshot.encode import encode
from trieye.checkpoints.retention import Retention
store = CheckpointStore(pathlib.Path(sys.argv[1]))
for step in itertools.count(int(sys.argv[2])):
    for version in (1, 2):
        store.save(step, encode({"step": step, "version": version, "a": np.full(200_000, step)}))
        print(step, flush=True)
    store.prune(Retention(keep_last=2))
"""


def test_no_save_that_was_reported_is_lost_when_the_process_is_killed(tmp_path):
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")  # noqa: T201 - to run a failure again
    chance = random.Random(seed)
    reported = 0
    for _ in range(12):
        command = [sys.executable, "-c", SAVE_IN_A_LOOP, str(tmp_path / "c"), str(reported + 1)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            for _ in range(chance.randrange(1, 8)):
                reported = int(process.stdout.readline())
            process.send_signal(signal.SIGKILL)
            lines = process.stdout.read().split()
        reported = int(lines[-1]) if lines else reported
        store = CheckpointStore(tmp_path / "c")
        entry = store.latest()
        loaded = store.load(entry.path)
        assert reported <= entry.step <= reported + 1
        assert loaded["step"] == entry.step
        assert (loaded["a"] == entry.step).all()
        reported = entry.step
    names = [path.name for path in store.directory.iterdir()]
    assert not [name for name in names if name.startswith(".") or "damaged" in name]


def test_a_full_disk_costs_the_new_checkpoint_only(tmp_path):
    """A file size limit of the process stands for the disk: writing fails half-way with an OSError."""
    store = CheckpointStore(tmp_path)
    store.save(1, encode({"a": np.zeros(10)}))
    program = (
        "import pathlib, resource, signal, sys\n"
        "import numpy as np\n"
        "from trieye.exceptions import SerializationError\n"
        "from trieye.checkpoints.store import CheckpointStore\n"
        "from trieye.snapshot.encode import encode\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "try:\n"
        "    CheckpointStore(pathlib.Path(sys.argv[1])).save(2, encode({'a': np.zeros(100_000)}))\n"
        "except SerializationError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    assert "checkpoint_step_2 could not be saved (800000 bytes): File too large" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint_step_1"]
    assert store.latest().step == 1
