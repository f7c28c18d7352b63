"""One run of several processes of torch.distributed."""

import json
import subprocess
import sys

import pytest

import trieye
from trieye.history.history import read_history
from trieye.integrations.distributed import SilentRun

PROGRAM = """
import os
import sys
import torch
import torch.distributed as dist
import trieye
from trieye.integrations.distributed import rank, run_of_rank_zero

dist.init_process_group("gloo")
config = trieye.TrieyeConfig.model_validate_json(sys.argv[1])
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with run_of_rank_zero(config) as run:
    for step in range(1, 21):
        loss = model(torch.full((4, 2), float(rank()))).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.step = step
        run.log({"loss": loss.item()})
    os.write(1, f"{rank()} {type(run).__name__} {run.name}\\n".encode())  # atomic: the other process writes, too
dist.barrier()
os._exit(0)  # threads of gloo abort now and then while an interpreter ends
"""


@pytest.mark.long
@pytest.mark.slow
def test_two_processes_log_each_value_once(make_config, tmp_path):
    config = make_config()
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    done = subprocess.run(
        [*command, str(tmp_path / "program.py"), config.model_dump_json()], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["0 Run run", "1 SilentRun run"]
    table = read_history(config.persistence.get_run_base_dir(), ["loss"])
    assert table["step"].to_pylist() == list(range(1, 21))
    record = json.loads((config.persistence.get_run_base_dir() / "run.json").read_text())
    assert (record["attempt"], record["status"]) == (1, "FINISHED")


STOPPED = """
import sys
import time
import torch
import torch.distributed as dist
import trieye
from trieye.integrations.distributed import run_of_rank_zero

rank, store, config = sys.argv[1:]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=2)
with run_of_rank_zero(trieye.TrieyeConfig.model_validate_json(config)) as run:
    for step in run.steps(None):
        dist.all_reduce(torch.ones(1))
        print(step, flush=True)
        time.sleep(0.01)
        if run.save_due:
            run.save(step=step)
"""


@pytest.mark.usefixtures("warm_programs")
def test_rank_zero_saves_after_a_signal_to_all_ranks(make_config, tmp_path):
    def start(rank):
        command = [sys.executable, "-c", STOPPED, str(rank), str(tmp_path / "store"), make_config().model_dump_json()]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    with start(0) as first, start(1) as second:
        second_step = int(second.stdout.readline())
        second.terminate()
        while int(first.stdout.readline()) < second_step + 50:
            pass
        first.terminate()
        _, errors = first.communicate(timeout=30)
        second.communicate(timeout=30)
    assert first.returncode == 143, errors
    assert "its state at step" in errors
    assert second.returncode > 0


def test_a_stand_in_continues_at_the_step_that_rank_zero_broadcasts(make_config):
    run = SilentRun(make_config())
    assert run.restore(model=None) is False
    run.step = 3
    assert list(run.steps(5)) == [4, 5]
    assert list(run.steps(5)) == []
    assert next(run.steps(None)) == 6


def test_a_stand_in_has_the_attributes_of_a_run(make_config):
    run, stand_in = trieye.Run(make_config()), SilentRun(make_config())
    names = [name for name in vars(run) if not name.startswith("_")]
    assert {name: getattr(stand_in, name) for name in names} == {name: getattr(run, name) for name in names}
    handle = stand_in.save(step=7, model=None)
    assert (handle.wait(), handle.step, handle.path, handle.done, stand_in.saved_step) == (None, 7, None, True, 7)
    assert stand_in.log({"loss": 1.0}) is None
    for name in ("replay", "attempt"):
        with pytest.raises(AttributeError, match=rf"run\.{name}: .*only rank 0 has the run"):
            getattr(stand_in, name)
    with pytest.raises(AttributeError, match=r"run\.sav: no method"):
        stand_in.sav()
