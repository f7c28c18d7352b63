"""One run of several processes of torch.distributed."""

import json
import subprocess
import sys

import pytest

from trieye.history.history import read_history

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
    table = read_history(config.persistence.get_run_base_dir())
    steps = [
        step
        for metric, step in zip(table["metric"].to_pylist(), table["step"].to_pylist(), strict=True)
        if metric == "loss"
    ]
    assert steps == list(range(1, 21))
    record = json.loads((config.persistence.get_run_base_dir() / "run.json").read_text())
    assert (record["attempt"], record["status"]) == (1, "FINISHED")
