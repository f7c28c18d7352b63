"""Explorers on two nodes: a local Ray cluster with two nodes stands for two machines.

    python examples/two_nodes.py

On real machines, `ray start` creates the cluster, and `python -m my_agent.train runtime=cluster explorer.num=4` trains
on it (docs/cluster.md).
"""

import sys

import ray
from ppo import Config
from ray.cluster_utils import Cluster

import trieye


def main(env_steps: int) -> None:
    """Start two nodes, and train PPO with an explorer on each."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    config = Config(
        app_name="examples",
        run_name="two_nodes",
        runtime={"kind": "cluster", "address": cluster.address},
        explorer={"num": 2, "placement": "spread", "num_cpus": 1},
        loop={"axis": "env_steps", "env_steps": env_steps, "evaluate_every_steps": env_steps},
    )
    try:
        print(f"best return: {trieye.train(config)}")
    finally:
        ray.shutdown()  # a cluster with connected drivers cannot be shut down
        cluster.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 50_000)
