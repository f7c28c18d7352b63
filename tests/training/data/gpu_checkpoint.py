"""Creates `gpu_checkpoint/`: the simulated checkpoint of a run on one GPU, for lack of a GPU.

`python -m tests.training.data.gpu_checkpoint` trains on the CPU and modifies the checkpoint as a GPU would: states of
torch generators have 16 bytes there (the seed, and the number of draws), and the process has an additional generator
for each CUDA device. Weights and moments are saved as numbers without a device.
"""

import json
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import trieye
from tests.training.algorithms import PPO, ActorCritic, TrainConfig, mlp
from trieye.checkpoints.directory import load_state, read_hub_state, save_state
from trieye.checkpoints.manifest import read_manifest
from trieye.snapshot.nodes import KIND

DIRECTORY = Path(__file__).parent / "gpu_checkpoint"


class Small(ActorCritic):
    """Has few weights, and normalizes observations."""

    def __init__(self, config, spaces):
        super().__init__(config, spaces)
        self.pi, self.v = mlp([4, 2]), mlp([4, 1])


class OnGPU(PPO, policy=Small):
    """The trained engine; has a tensor on its device."""

    def setup(self, config):
        super().setup(config)
        self.squares = None

    def step(self):
        metrics = super().step()
        self.squares = self.optimizer.state[self.policy.pi[0].weight]["exp_avg_sq"].clone()
        return metrics


def make_config(root_data_dir: Path, env_steps: int) -> TrainConfig:
    """Return the config of a run of `env_steps` steps."""
    return TrainConfig.model_validate(
        {
            "agent": {
                "kind": "ppo",
                "engine": f"{__name__}:OnGPU",
                "device": "cpu",
                "rollout_steps": 8,
                "batch_size": 8,
            },
            "env": {"id": "CartPole-v1", "num": 2, "eval_episodes": 2, "normalize_observations": True},
            "run_name": "run",
            "runtime": {"kind": "local"},
            "sinks": {},
            "persistence": {"root_data_dir": str(root_data_dir)},
            "loop": {"axis": "env_steps", "env_steps": env_steps},
        }
    )


def _as_on_gpu(node: Any, arrays: dict[str, Any]) -> None:
    """Change the states of generators in a tree."""
    for item in node.values() if isinstance(node, dict) else node:
        if not isinstance(item, dict | list):
            continue
        if isinstance(item, dict) and item.get(KIND) == "generator" and item["state"]["generator"] == "torch.Generator":
            item["state"]["device"] = "cuda:0"
            arrays[item["state"]["state"]["array"]] = np.frombuffer(np.array([42, 1024], "<u8").tobytes(), np.uint8)
        _as_on_gpu(item, arrays)


def main() -> None:
    """Train, change, and write."""
    with tempfile.TemporaryDirectory() as directory:
        trained = trieye.run_experiment(OnGPU, make_config(Path(directory), 64)).best_checkpoint
        encoded, manifest = load_state(trained), read_manifest(trained)
        _as_on_gpu(encoded.tree, encoded.arrays)
        encoded.arrays["rng/torch_cuda/0"] = np.frombuffer(np.array([0, 4096], "<u8").tobytes(), np.uint8)
        encoded.tree["rng"]["torch_cuda"] = [{KIND: "ndarray", "array": "rng/torch_cuda/0"}]
        tree = json.loads(json.dumps(encoded.tree).replace(directory, "/home/user"))
        shutil.rmtree(DIRECTORY, ignore_errors=True)
        save_state(
            DIRECTORY,
            replace(encoded, tree=tree),
            step=manifest.step,
            sequence=manifest.sequence,
            metadata=manifest.metadata,
            hub_state=read_hub_state(trained),
        )


if __name__ == "__main__":
    from tests.training.data.gpu_checkpoint import main  # so that classes are named by their module

    main()
