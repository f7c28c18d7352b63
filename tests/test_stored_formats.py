"""Runs whose checkpoints have an earlier format, as earlier commits wrote them, open, verify and resume.

The archives in `tests/stored/formats/` hold a run of 30 steps that saved a torch module, its optimizer, numbers and a
replay buffer at steps 10, 20 and 30. Never make an archive again: add one.
"""

import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

import trieye
from trieye.cli import main
from trieye.results import load

ARCHIVES = sorted((Path(__file__).parent / "stored/formats").glob("*.tar.xz"))
READS_REPLAY = {"checkpoint_format_1": False, "checkpoint_format_2": True}


@pytest.fixture(params=ARCHIVES, ids=lambda path: path.name.partition(".")[0])
def stored(request, tmp_path):
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path, filter="data")
    return request.param.name.partition(".")[0], tmp_path / "data"


@pytest.mark.long
def test_every_format_verifies_shows_its_curves_and_resumes(stored, capsys):
    name, root = stored
    run_dir = root / "stored_app/runs/stored"
    assert main(["verify", str(run_dir)]) == 0
    assert "everything is intact" in capsys.readouterr().out
    (series,) = load(str(run_dir)).series("episode/return")
    assert series.values[-1] == 30.0
    net = torch.nn.Linear(3, 2)
    state = {
        "net": net,
        "opt": torch.optim.Adam(net.parameters()),
        "counters": {"step": 0, "best": np.float32(0)},
        "replay": trieye.ReplayBuffer(64, seed=0),
    }
    config = trieye.TrieyeConfig(
        app_name="stored_app",
        run_name="stored",
        runtime={"kind": "local"},
        sinks={},
        persistence={"root_data_dir": str(root)},
    )
    with trieye.Run(config) as run:
        if not READS_REPLAY[name]:
            with pytest.raises(trieye.ConfigurationError, match=r"has format 1, but this trieye reads format 2"):
                run.restore(**state)
            del state["replay"]
        run.restore(**state)
        assert run.step == state["counters"]["step"] == 30
        assert state["counters"]["best"] == 1.5
        assert net.weight.sum().item() == pytest.approx(-0.4991614)
        assert state["opt"].state_dict()["state"][0]["step"] == 30
        run.step = 40
        run.log({"episode/return": 40.0})
        run.save(**state)
    if "replay" in state:
        assert np.unique(state["replay"].sample(512)["obs"]).tolist() == list(range(15, 31))
    assert trieye.load_checkpoint(run_dir, "latest").step == 40
    assert main(["verify", str(run_dir)]) == 0
