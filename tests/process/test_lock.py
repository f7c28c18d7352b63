import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.full_disk import full_disk
from trieye.exceptions import ConfigurationError, RunLockedError
from trieye.process.lock import RunLock, is_alive

HOLDER = """
import sys
from trieye.process.lock import RunLock
lock = RunLock(__import__("pathlib").Path(sys.argv[1])).acquire()
if "fork" in sys.argv and __import__("os").fork() == 0:
    print("child", flush=True)
    sys.stdin.read()
    sys.exit(0)
print("held", flush=True)
sys.stdin.read()
"""


RUN = """
import sys, trieye
config = trieye.TrieyeConfig(run_name="my_run", sinks={}, persistence={"root_data_dir": sys.argv[1]},
    runtime={"kind": "local" if sys.argv[2:] else "ray"})
try:
    with trieye.Run(config) as run:
        print("held", run.attempt, flush=True)
        sys.stdin.read()
except trieye.RunLockedError as error:
    print(error, sorted({"ray", "torch", "mlflow"} & set(sys.modules)), sep="\\n")
"""


@pytest.fixture
def start_holder(tmp_path):
    started = []

    def start(*words, lines=1, code=HOLDER):
        target = tmp_path / "my_run" / "run.lock" if code == HOLDER else tmp_path
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(target), *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        for _ in range(lines):
            assert process.stdout.readline()
        return process

    yield start
    for process in started:
        process.kill()
        process.stdin.close()
        process.stdout.read()
        process.stdout.close()
        process.wait()


def test_a_linked_holder_file_is_not_followed(tmp_path):
    (tmp_path / "elsewhere").write_text("of another user")
    (tmp_path / "run.lock.holder").symlink_to(tmp_path / "elsewhere")
    with RunLock(tmp_path / "run.lock") as lock:
        assert lock.holder()["pid"] == os.getpid()
        assert (tmp_path / "elsewhere").read_text() == "of another user"
        (tmp_path / "run.lock.holder").write_text("[" * 100_000)
        assert lock.holder() is None


def test_a_full_disk_does_not_prevent_locking(tmp_path):
    lock = RunLock(tmp_path / "run.lock")
    with full_disk(), lock:
        assert lock.is_held
    assert not lock.is_held_elsewhere()


def test_a_child_of_a_killed_holder_does_not_keep_the_run_locked(tmp_path, start_holder):
    holder = start_holder("fork", lines=2)
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with RunLock(tmp_path / "my_run" / "run.lock") as lock:
        assert (lock.holder()["pid"], lock.holder()["kind"]) == (os.getpid(), "driver")


def test_a_second_lock_in_the_same_process_fails_until_the_first_is_released(tmp_path):
    first, second = RunLock(tmp_path / "run.lock"), RunLock(tmp_path / "run.lock")
    for _ in range(2):
        first.acquire()
    with pytest.raises(RunLockedError):
        second.acquire()
    for _ in range(2):
        first.release()
    with second:
        assert second.is_held
    assert second.holder() is None


def test_a_lock_may_be_released_by_another_thread(tmp_path):
    lock = RunLock(tmp_path / "run.lock")
    with ThreadPoolExecutor(1) as thread:
        thread.submit(lock.acquire).result(10)
    assert lock.is_held
    lock.release()
    with ThreadPoolExecutor(1) as thread:
        thread.submit(RunLock(tmp_path / "run.lock").acquire).result(10).release()


def test_a_lock_that_cannot_be_created_is_a_configuration_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"run\.lock"):
        RunLock(tmp_path / "file" / "run.lock").acquire()


def test_checking_a_lock_names_its_holder_and_changes_nothing(tmp_path):
    path = tmp_path / "run" / "run.lock"
    RunLock.check(path)
    assert not path.parent.exists()
    with (
        RunLock(path),
        pytest.raises(RunLockedError, match=f"process {os.getpid()} on .*, the current process: close the run first"),
    ):
        RunLock.check(path)
    RunLock.check(path)
    with RunLock(path) as lock:
        assert lock.is_held


@pytest.mark.long
def test_a_second_start_fails_without_heavy_imports_and_succeeds_after_a_kill(tmp_path, start_holder):
    holder = start_holder("local", code=RUN)
    second = subprocess.run([sys.executable, "-c", RUN, str(tmp_path)], capture_output=True, text=True, check=True)

    message, imported = second.stdout.splitlines()
    assert f"'my_run' is being written by process {holder.pid} on {socket.gethostname()} since 20" in message
    assert "choose another run_name" in message
    assert imported == "[]"
    holder.kill()
    holder.wait()
    assert start_holder("local", code=RUN, lines=0).stdout.readline() == "held 2\n"


def test_the_error_for_a_remote_hub_explains_how_to_connect_or_delete_the_lock(tmp_path):
    lock = RunLock(tmp_path / "my_run" / "run.lock")
    record = {"kind": "hub", "actor": "my_hub", "address": "10.0.0.1:6379", "pid": 7, "host": "gone", "started": 1.0}
    with lock:
        lock.path.with_name("run.lock.holder").write_text(json.dumps(record))
        with pytest.raises(RunLockedError) as caught:
            RunLock(lock.path).acquire()
    for words in ("'my_hub'", "10.0.0.1:6379", "process 7 on gone", "get_or_create", "cluster", f"delete {lock.path}"):
        assert words in str(caught.value)


def test_a_copy_of_a_locked_directory_is_not_alive_but_a_moved_one_is(tmp_path, start_holder):
    holder = start_holder()
    copy, moved = shutil.copytree(tmp_path / "my_run", tmp_path / "copy"), tmp_path / "moved"
    (tmp_path / "my_run").rename(moved)
    assert (is_alive(copy), is_alive(moved)) == (False, True)
    path = moved / "run.lock.holder"
    record = json.loads(path.read_text())
    path.write_text(json.dumps(record | {"inode": record["inode"] + 1}))  # as after a remount with other numbers
    assert is_alive(moved)  # the lock decides
    path.write_text(json.dumps({name: record[name] for name in record if name != "inode"}))  # of an earlier version
    (moved / "run.lock").unlink()
    assert is_alive(moved)
    holder.kill()
    holder.wait()
    assert not is_alive(moved)
    path.write_text(json.dumps(record | {"pid": os.getpid()}))  # another process has its number
    assert not is_alive(moved)


def test_a_run_is_alive_only_while_it_is_locked_also_by_another_machine(tmp_path):
    elsewhere = '{"pid": 1, "host": "elsewhere", "boot": "b"}'
    assert not is_alive(tmp_path)
    with RunLock(tmp_path / "run.lock"):
        assert is_alive(tmp_path)
        (tmp_path / "run.lock.holder").write_text(elsewhere)
        assert is_alive(tmp_path)
    for holder in (elsewhere, "", "{}", '{"pid": "x", "host": "h"}', '{"pid": 1, "host": "elsewhere"}'):
        (tmp_path / "run.lock.holder").write_text(holder)
        assert not is_alive(tmp_path)


def test_an_announced_run_is_alive_also_after_a_killed_start(tmp_path, start_holder):
    lock = RunLock(tmp_path / "my_run" / "run.lock")
    killed = start_holder()
    lock.announce()  # the record of a living process stays
    assert lock.holder()["pid"] == killed.pid
    killed.kill()
    killed.wait()
    assert not is_alive(lock.path.parent)
    lock.announce()
    assert lock.holder()["pid"] == os.getpid()
    assert is_alive(lock.path.parent)


def test_a_lock_is_acquired_while_other_processes_announce_themselves(tmp_path):
    path, is_done = tmp_path / "run.lock", threading.Event()

    def announce():
        while not is_done.is_set():
            RunLock(path).announce()

    announcing = threading.Thread(target=announce)
    announcing.start()
    try:
        for _ in range(300):
            with RunLock(path) as lock:
                assert lock.holder()["pid"] == os.getpid()
    finally:
        is_done.set()
        announcing.join()
