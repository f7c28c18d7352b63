"""The search path plugin does not affect Hydra programs without trieye."""

import json
import subprocess
import sys

import pytest

FOREIGN = """
import json
import sys
{first}
import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

ConfigStore.instance().store(name="schema", node={{"mine": 1}})

@hydra.main(config_path="conf", config_name="train", version_base="1.3")
def train(config) -> None:
    sources = [source.provider for source in HydraConfig.get().runtime.config_sources]
    ours = [name for name in sys.modules if name.startswith("trieye")]
    print(json.dumps([OmegaConf.to_container(config), sources, ours[:1]]))

train()
"""


@pytest.mark.long
@pytest.mark.parametrize("first", ["", "import trieye; trieye.TrieyeConfig(); from trieye.config.hydra import compose"])
def test_a_program_without_trieye_composes_the_same_config_as_before(tmp_path, first):
    (tmp_path / "conf/runtime").mkdir(parents=True)
    (tmp_path / "conf/train.yaml").write_text("defaults:\n  - schema\n  - runtime: mine\n  - _self_\nseed: 7\n")
    (tmp_path / "conf/runtime/mine.yaml").write_text("kind: own\n")
    (tmp_path / "train.py").write_text(FOREIGN.format(first=first))

    command = [sys.executable, "-W", "ignore", "train.py"]  # Hydra 1.4 warns about `version_base`
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    config, sources, trieye_modules = json.loads(done.stdout)
    assert config == {"mine": 1, "runtime": {"kind": "own"}, "seed": 7}
    assert sources == ["hydra", "main", "schema"]
    assert trieye_modules == (["trieye"] if first else [])  # slow modules are not imported
