"""docs/notebooks.md: its cells run in a real kernel, in a new project."""

import os
import re
import signal
import sys
from pathlib import Path

import pytest
from jupyter_client.manager import start_new_kernel

from trieye.cli import main
from trieye.files.run_record import RunRecord

PAGE = Path(__file__).parents[1] / "docs/notebooks.md"
BLOCKS = re.findall(r"^```(?:python|text)\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
COMPOSE, TRAIN, RESULTS, COMMANDS, LOOP = BLOCKS


class Kernel:
    """A kernel with the frontend of a test.

    Args:
        directory: Its working directory.
    """

    def __init__(self, directory):
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # for `!trieye`
        self.manager, self.client = start_new_kernel(cwd=str(directory), env=os.environ | {"PATH": path})

    def run(self, code, *, on_text=None, answers=()):
        """Run a cell, and return its text, the types of its rich output, and its error."""
        texts, kinds, error, replies = [], set(), "", list(answers)

        def on_output(message):
            nonlocal error
            content = message["content"]
            if message["msg_type"] == "stream":
                texts.append(content["text"])
                if on_text is not None:
                    on_text("".join(texts))
            elif message["msg_type"] in {"display_data", "update_display_data", "execute_result"}:
                kinds.update(content["data"])
                texts.append(content["data"].get("text/plain", ""))
            elif message["msg_type"] == "error":
                error = f"{content['ename']}: {content['evalue']}"

        self.client.execute_interactive(
            code,
            timeout=240,
            allow_stdin=bool(answers),
            output_hook=on_output,
            stdin_hook=lambda _: self.client.input(replies.pop(0)),
        )
        return "".join(texts), kinds, error

    def close(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("notebook")
    assert main(["new", "my_agent", "--no-input", "-o", str(folder)]) == 0
    return folder / "my_agent"


@pytest.fixture(scope="module")
def kernel(project):
    kernel = Kernel(project)
    yield kernel
    kernel.close()


def record(project, name):
    return RunRecord.read(project / ".trieye_data/my_agent/runs" / name / "run.json")


@pytest.mark.long
def test_the_cells_of_the_page_run_stop_resume_and_plot(project, kernel):
    cell = COMPOSE.replace('"runtime', '"agent.rollout_steps=16", "runtime')
    assert kernel.run(cell)[2] == ""
    is_stopped = False

    def stop(text):
        nonlocal is_stopped
        if not is_stopped and re.search(r"notebook: step [1-9]", text):
            is_stopped = True
            kernel.manager.interrupt_kernel()

    text, _, error = kernel.run(TRAIN, on_text=stop)
    assert "\rnotebook: step " in text
    assert error.startswith("RunInterrupted: ")
    assert record(project, "notebook").status == "KILLED"
    at = int(kernel.run("import trieye.runs\nprint(trieye.runs.get('notebook').step)")[0])
    kernel.run(cell.replace("40_000", str(at + 400)).replace("2_000", "200"))
    text, _, error = kernel.run(TRAIN)
    assert error == ""
    assert "it continues at step" in text
    assert record(project, "notebook").status == "FINISHED"
    assert "is done" in kernel.run(TRAIN)[0]

    text, kinds, error = kernel.run(f"%matplotlib inline\n{RESULTS}")
    assert error == ""
    assert {"image/png", "text/html"} <= kinds
    try:
        text, kinds, error = kernel.run(COMMANDS)
        assert error == ""
        assert "eval/return, mean of the last 10%" in text
        assert "text/html" in kinds
    finally:
        text, _, _ = kernel.run("from tensorboard import manager\nprint(*[one.pid for one in manager.get_all()])")
        pids = [int(word) for word in text.split()]
        for pid in pids:
            os.kill(pid, signal.SIGTERM)
    assert len(pids) == 1


@pytest.mark.long
@pytest.mark.slow
def test_the_debugger_opens_below_the_cell_and_the_run_continues_or_fails(project, kernel):
    text, _, error = kernel.run(f"import trieye\n{LOOP}", answers=["p step + 1000", "c"])
    assert "1003" in text
    assert error == ""
    assert record(project, "loop").status == "FINISHED"
    kernel.run(LOOP.replace("loop", "quit"), answers=["q"])
    assert record(project, "quit").status == "FAILED"
    assert "ZeroDivisionError" in kernel.run("1 / 0")[2]
    assert "1007" in kernel.run("%debug", answers=["p 7 + 1000", "q"])[0]
