"""Run twelve jobs on a cluster of three nodes, kill one node while jobs run on all nodes, and print the outcome."""

import json
import subprocess
import sys
import time
from pathlib import Path

from ray.cluster_utils import Cluster

PROGRAM = """
import time
import trieye

class Agent:
    done = 0

    def state_dict(self):
        return {"done": self.done}

    def load_state_dict(self, state):
        self.done = state["done"]

@trieye.main(config_path="conf")
def main(config: trieye.TrieyeConfig) -> float:
    import ray
    agent = Agent()
    with trieye.Run(config) as run:
        node = run.dir / "node"
        node.write_text((node.read_text() if node.exists() else "") + ray.get_runtime_context().get_node_id() + " ")
        run.restore(agent=agent)
        for step in run.steps(TOTAL):
            agent.done += 1
            time.sleep(0.1)
            if step % 5 == 0:
                run.save(agent=agent)
        return float(agent.done)

if __name__ == "__main__":
    main()
"""
NUM_JOBS, TOTAL = 12, 60


def is_over(job: Path) -> bool:
    """Return whether a job has ended."""
    return '"completed"' in (job / "status.json").read_text()


def main(directory: Path) -> None:
    """Run the sweep, and kill the second node when half of the jobs have ended and one of it has a checkpoint."""
    (directory / "program.py").write_text(PROGRAM.replace("TOTAL", str(TOTAL)))
    (directory / "conf").mkdir()
    (directory / "conf/train.yaml").write_text(
        "defaults: [trieye, _self_]\nruntime: {kind: local}\nsinks: {mlflow: {enabled: false}}\n"
    )
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    second, *_ = [cluster.add_node(num_cpus=1) for _ in range(2)]
    words = ["-m", "hydra/launcher=trieye", "hydra/sweeper=trieye", f"hydra.launcher.address={cluster.address}"]
    words += [f"seed=range(0,{NUM_JOBS})", "hydra.sweep.dir=s"]
    command = [sys.executable, "program.py", *words]
    sweep = subprocess.Popen(command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    until, victim = time.monotonic() + 330, None
    while victim is None and time.monotonic() < until and sweep.poll() is None:
        time.sleep(0.1)
        ended = sum(path.read_text().count('"completed"') for path in (directory / "s").glob("*/status.json"))
        for job in (directory / "s").glob("[0-9]*") if ended >= NUM_JOBS // 2 - 1 else ():
            begun = job / "run" / "node"
            saved = any((job / "run" / "checkpoints").glob("checkpoint_step_*"))
            if saved and begun.is_file() and begun.read_text().split() == [second.node_id] and not is_over(job):
                victim = job.name
    if victim is not None:
        cluster.remove_node(second, allow_graceful=False)
    printed = sweep.communicate(timeout=360)[0]
    nodes = {path.read_text().split()[0] for path in (directory / "s").glob("*/run/node")}
    records = {path.parent.name: json.loads(path.read_text()) for path in (directory / "s").glob("*/status.json")}
    run = json.loads((directory / "s" / str(victim) / "run/run.json").read_text()) if victim is not None else {}
    cluster.shutdown()
    report = {"nodes": len(nodes), "victim": victim, "code": sweep.returncode, "jobs": records, "run": run}
    sys.stdout.write(json.dumps(report | {"printed": printed[-3000:]}) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
