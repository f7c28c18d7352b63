import contextlib
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

from trieye.exceptions import ConfigurationError
from trieye.replay.rows.memory import AttachedMemory, available_bytes, open_memory


def opened(kind, tmp_path, **options):
    return open_memory(kind, tmp_path if kind == "mmap" else None, **options)


@pytest.mark.parametrize(("kind", "prefault"), [("ram", True), ("ram", False), ("shm", False), ("mmap", True)])
def test_new_arrays_are_zeroed_and_writable(kind, prefault, tmp_path):
    memory = opened(kind, tmp_path, prefault=prefault)
    record = np.dtype([("a", np.int16), ("b", np.float64, (3,))])
    arrays = [
        memory.allocate("x", (7, 2), np.uint8),
        memory.allocate("y", (5,), record),
        memory.allocate("z", (0,), "f4"),
    ]
    assert not arrays[0].any()
    assert not arrays[1]["b"].any()
    arrays[0][:] = 3
    arrays[1]["b"] = 0.5
    assert arrays[1]["b"].sum() == 7.5
    assert memory.size_bytes >= sum(array.nbytes for array in arrays)


def test_mapped_files_are_unlinked_and_sparse(tmp_path):
    memory = opened("mmap", tmp_path, prefault=False)
    array = memory.allocate("x", (1 << 30,), np.uint8)
    array[12345] = 1
    assert list(tmp_path.iterdir()) == []
    descriptor = memory.handle.arrays["x"][0]
    assert os.fstat(descriptor).st_blocks * 512 < 1 << 26


@pytest.mark.parametrize("how", ["close", "forget"])
@pytest.mark.parametrize("kind", ["shm", "mmap"])
def test_closing_releases_the_files_but_keeps_arrays_in_use(kind, how, tmp_path):
    memory = opened(kind, tmp_path)
    array = memory.allocate("x", (10,), np.int64)
    descriptor = memory.handle.arrays["x"][0]
    file = os.fstat(descriptor)
    if how == "close":
        memory.close()
        assert memory.handle is None
    del memory
    with contextlib.suppress(OSError):  # another thread may have reused the number
        assert not os.path.samestat(os.fstat(descriptor), file)
    array[:] = 7
    assert array.sum() == 70


@pytest.mark.parametrize("kind", ["shm", "mmap"])
def test_attached_arrays_show_writes_of_the_owner_and_are_read_only(kind, tmp_path):
    memory = opened(kind, tmp_path)
    array = memory.allocate("x", (4, 3), np.float32)
    view = AttachedMemory(memory.handle).allocate("x", (4, 3), np.float32)
    array[2, 1] = 5
    assert view[2, 1] == 5
    with pytest.raises(ValueError, match="read-only"):
        view[0, 0] = 1


def test_the_handle_of_closed_memory_is_rejected():
    memory = open_memory("shm")
    memory.allocate("x", (4, 3), np.float32)
    handle = memory.handle
    memory.close()
    with pytest.raises(ConfigurationError, match="array 'x' of process"):
        AttachedMemory(handle).allocate("x", (4, 3), np.float32)


OWNER = """
import numpy as np, os, pickle, sys, time
from trieye.replay.rows.memory import open_memory
memory = open_memory("shm")
memory.allocate("x", (1 << 20,), np.uint8)[:] = 9
sys.stdout.buffer.write(pickle.dumps(memory.handle)); sys.stdout.flush(); os.close(1)
time.sleep(60)
"""


def test_shared_memory_of_a_killed_owner_survives_only_in_attached_processes():
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE)
    handle = pickle.loads(owner.stdout.read())
    owner.stdout.close()
    view = AttachedMemory(handle).allocate("x", (1 << 20,), np.uint8)
    owner.kill()
    owner.wait()
    assert view.sum() == 9 << 20
    with pytest.raises(ConfigurationError, match="must be alive"):
        AttachedMemory(handle).allocate("x", (1 << 20,), np.uint8)


@pytest.mark.parametrize("kind", ["ram", "shm"])
def test_an_allocation_beyond_the_available_memory_is_rejected(kind):
    with pytest.raises(ConfigurationError, match=r"storage of 'x' needs \d+\.\d GiB, but .*; lower replay.capacity"):
        open_memory(kind).allocate("x", (available_bytes() + (1 << 30),), np.uint8)


GIB = 1 << 30
MEMINFO = {"proc/meminfo": "MemTotal: 99 kB\nMemAvailable: 8388608 kB\n"}
V2 = {"memory.max": f"{6 * GIB}\n", "memory.current": f"{5 * GIB}\n", "memory.stat": f"anon 7\ninactive_file {GIB}\n"}
V1 = {
    "memory.limit_in_bytes": f"{6 * GIB}\n",
    "memory.usage_in_bytes": f"{5 * GIB}\n",
    "memory.stat": f"inactive_file 7\ntotal_inactive_file {GIB}\n",
}


def files_in(folder, files):
    return {f"{folder}/{name}": text for name, text in files.items()}


CGROUPS = {
    "none": ({}, 8),
    "v2": (files_in("sys/fs/cgroup", V2), 2),
    "unlimited": (files_in("sys/fs/cgroup", {**V2, "memory.max": "max\n"}), 8),
    "full": (files_in("sys/fs/cgroup", {**V2, "memory.current": f"{9 * GIB}\n"}), 0),
    "usage unknown": (files_in("sys/fs/cgroup", {"memory.max": f"{6 * GIB}\n"}), 6),
    "own": ({"proc/self/cgroup": "0::/jobs/17\n", **files_in("sys/fs/cgroup/jobs/17", V2)}, 2),
    "parent": ({"proc/self/cgroup": "0::/jobs/17\n", **files_in("sys/fs/cgroup/jobs", V2)}, 2),
    "other": ({"proc/self/cgroup": "0::/other\n", **files_in("sys/fs/cgroup/jobs", V2)}, 8),
    "v1": (files_in("sys/fs/cgroup/memory", V1), 2),
    "v1 unlimited": (files_in("sys/fs/cgroup/memory", {**V1, "memory.limit_in_bytes": f"{1 << 63}\n"}), 8),
    "v1 parent": (
        {"proc/self/cgroup": "5:cpu:/\n4:memory:/jobs/9\n", **files_in("sys/fs/cgroup/memory/jobs", V1)},
        2,
    ),
}


@pytest.mark.parametrize(("files", "free_gib"), CGROUPS.values(), ids=CGROUPS)
def test_available_memory_excludes_the_usage_of_the_control_group(tmp_path, files, free_gib):
    for name, text in (MEMINFO | files).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert available_bytes(tmp_path) == free_gib * GIB


def test_a_full_disk_is_reported_with_its_directory(tmp_path):
    with pytest.raises(ConfigurationError, match=f"there is not enough space in {tmp_path}"):
        open_memory("mmap", tmp_path).allocate("x", (1 << 50,), np.uint8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("rom",), r"storage 'rom' is unknown; did you mean 'ram'\? \(known: ram, shm, mmap\)"),
        (("mmap",), "storage_dir is 'None' and storage is 'mmap'; storage='mmap' requires"),
        (("ram", "/tmp"), "storage_dir is '/tmp' and storage is 'ram'; .* other storages do not accept it"),
        (("mmap", "/nowhere"), "storage_dir '/nowhere' is not a directory"),
    ],
)
def test_invalid_storage_options_are_rejected(arguments, message):
    with pytest.raises(ConfigurationError, match=message):
        open_memory(*arguments)
