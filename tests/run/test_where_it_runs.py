"""Supported environments: notebooks, spawned processes, systems other than Linux, and refused ones."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests import warm

CONFIG = """
import sys, time, trieye
config = trieye.TrieyeConfig(
    app_name="app", run_name="first", runtime={"kind": "local"}, persistence={"root_data_dir": "data"}, sinks={}
)
"""
TRAIN = """
class Agent:
    done = 0
    def state_dict(self): return {"done": self.done}
    def load_state_dict(self, state): self.done = state["done"]

agent = Agent()
with trieye.Run(config) as run:
    run.restore(agent=agent)
    for step in run.steps(TOTAL):
        agent.done += 1
        run.log({"loss": 1.0 / step})
        if run.save_due:
            run.save(agent=agent)
        time.sleep(0.01)
    run.save(agent=agent)
print("trained", agent.done, run.step)
"""


STOP_SOON = """
import _thread, threading, time
def stop():
    while "run" not in globals() or not run.step:
        time.sleep(0.01)
    threading.Timer(1.0, _thread.interrupt_main).start()
threading.Thread(target=stop).start()
"""


def program(tmp_path, *parts):
    (tmp_path / "program.py").write_text("\n".join(textwrap.dedent(part) for part in parts))
    return warm.run(["program.py"], tmp_path, modules=warm.RUN)


def record(tmp_path):
    return json.loads((tmp_path / "data/app/runs/first/run.json").read_text())


@pytest.mark.long
def test_a_start_in_a_subdirectory_does_not_create_a_second_run(tmp_path):
    done = program(tmp_path, CONFIG, TRAIN.replace("TOTAL", "3"))
    assert done.returncode == 0, done.stderr
    (below := tmp_path / "below" / "deeper").mkdir(parents=True)
    done = warm.run([str(tmp_path / "program.py")], below, modules=warm.RUN)
    assert done.returncode != 0
    assert f"run_name=first: this run exists in {tmp_path / 'data/app/runs/first'}" in done.stderr
    assert "data" not in [path.name for path in below.iterdir()]


@pytest.fixture
def notebook(tmp_path):
    """Return a function that runs a cell in a real kernel, and returns its output."""
    book = nbformat.v4.new_notebook()
    client = NotebookClient(book, timeout=120, allow_errors=True, resources={"metadata": {"path": str(tmp_path)}})

    def run(code, interrupt_when=None):
        cell = nbformat.v4.new_code_cell(textwrap.dedent(code))
        book.cells.append(cell)

        def look(cell, output):
            if interrupt_when is not None and interrupt_when in output.get("text", ""):
                client.km.interrupt_kernel()

        client.on_output = look
        client.execute_cell(cell, len(book.cells) - 1)
        return "".join(out.get("text", "") + f"{out.get('ename', '')}: {out.get('evalue', '')}" for out in cell.outputs)

    with client.setup_kernel():
        yield run


@pytest.mark.long
@pytest.mark.slow
def test_a_notebook_shows_progress_stops_on_an_interrupt_and_resumes(notebook, tmp_path):
    notebook(CONFIG)
    stopped = notebook(STOP_SOON + TRAIN.replace("TOTAL", "2000"))
    assert "\rfirst: step " in stopped
    assert "RunInterrupted" in stopped
    assert record(tmp_path)["status"] == "KILLED"
    at = int(notebook("print(run.saved_step)").split(":")[0])
    assert 0 < at < 2000
    again = notebook(TRAIN.replace("TOTAL", str(at + 20)))
    assert f"trained {at + 20} {at + 20}" in again
    assert record(tmp_path)["status"] == "FINISHED"

    notebook("run = trieye.Run(config).open()\nrun.log('loss', 1.0)")
    twice = notebook("run = trieye.Run(config).open()")
    assert "RunLockedError: run 'first' is being written by process" in twice
    assert "the current process: close the run first, by run.close()" in twice
    notebook("run.close()")
    assert "Error" not in notebook("with trieye.Run(config) as run:\n    run.log('loss', 1.0)")


@pytest.mark.long
def test_spawned_processes_do_not_affect_the_run(tmp_path):
    child = """
        import multiprocessing

        def work(number):
            return number**2

        if __name__ == "__main__":
            with trieye.Run(config) as run, multiprocessing.get_context("spawn").Pool(2) as pool:
                run.log("sum", sum(pool.map(work, range(4))))
                try:
                    pool.apply(work, (run.client(),))
                except trieye.ConfigurationError as error:
                    print("refused:", error)
    """
    done = program(tmp_path, CONFIG, child)
    assert done.returncode == 0, done.stderr
    assert "refused: run 'first' lives in this process (runtime=local)" in done.stdout
    assert record(tmp_path)["summary"]["sum"]["max"] == 14.0


def test_a_spawning_program_without_a_main_guard_is_an_error_with_a_hint(tmp_path):
    child = """
        import multiprocessing

        run = trieye.Run(config).open()
        try:
            process = multiprocessing.get_context("spawn").Process(target=print, args=("unreached",))
            process.start()
            process.join()
        finally:
            run.close()
    """
    done = program(tmp_path, CONFIG, child)
    assert 'put the code that starts the run under `if __name__ == "__main__":`' in done.stderr
    assert record(tmp_path)["attempt"] == 1


NO_LINUX = """
import builtins, io, os, pathlib
for name in ("memfd_create", "fdatasync", "posix_fallocate", "posix_fadvise", "copy_file_range", "sched_getaffinity"):
    delattr(os, name)

def without(function):
    def wrapped(path, *args, **kwargs):
        if isinstance(path, (str, os.PathLike)) and os.fspath(path).startswith(("/proc", "/sys/fs/cgroup")):
            raise FileNotFoundError(2, "No such file or directory", path)
        return function(path, *args, **kwargs)
    return wrapped

import psutil
for module, name in ((io, "open"), (os, "open"), (os, "stat"), (os, "listdir"), (os, "scandir"), (builtins, "open")):
    setattr(module, name, without(getattr(module, name)))
"""
EVERYTHING = """
import numpy as np
from trieye.cli import main

for total in (20, 40):
    with trieye.Run(config) as run:
        run.restore()
        for step in run.steps(total):
            run.replay.add(obs=np.zeros(3, np.float32), reward=1.0, terminated=False, truncated=False)
            run.log("loss", 1.0 / step)
        run.save()
assert len(run.replay) == 40
assert main(["verify", str(run.dir)]) == 0
assert main(["watch", str(run.dir), "--once"]) == 0
try:
    trieye.ReplayBuffer(100, storage="shm")
except trieye.ConfigurationError as error:
    print(error)
"""


def test_linux_only_functions_are_optional(tmp_path):
    parts = []
    for durability in ("process", "interval", "always"):
        settings = CONFIG.replace('"data"}', f'"data", "durability": "{durability}"}}')
        parts += [settings.replace("first", durability), EVERYTHING]
    code = "\n".join((NO_LINUX, *parts))
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("everything is intact") == 3
    assert done.stdout.count("replay storage 'shm' needs Linux; use storage='mmap'") == 3


def test_an_import_on_windows_is_an_error_with_an_alternative():
    code = "import sys; sys.platform = 'win32'; import trieye"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.stderr.splitlines()[-1] == "ImportError: trieye needs Linux or macOS; on Windows use it in WSL 2"
