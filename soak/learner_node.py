"""Train on a cluster with a mirror, kill the learner and its node, and resume in an empty directory on another node.

The second attempt has no access to the first directory. It must continue the same run, at most one save behind, with
one history: every step exactly once, and counts whose sums equal the counters of the training.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]  # stubs would be one more package
from explorer_kills import DEADLINE_S, TrainingProcess, check, train_watched
from nodes import await_condition
from nodes import configure as configure_nodes
from ray.cluster_utils import Cluster

SAVE_EVERY = 2000


def configure(root: Path, address: str, mirror: str, env_steps: int) -> Any:
    """Return the config of the run."""
    config = configure_nodes(root, address, 1e6)
    values = config.model_dump()
    values["persistence"] |= {"mirror": mirror, "mirror_interval_s": 2.0, "checkpoint_save_freq_steps": SAVE_EVERY}
    values["loop"] |= {"time_s": None, "env_steps": env_steps}
    return type(config).model_validate(values)


def steps_in(root: Path) -> list[int]:
    """Return the steps of the checkpoints below a directory."""
    paths = root.glob("*/runs/nodes/checkpoints/checkpoint_step_*/MANIFEST.json")
    return sorted(int(path.parent.name.rpartition("_")[2]) for path in paths)


def hubs_on(node: Any) -> list[psutil.Process]:
    """Return the hub processes on a node."""
    raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
    return [child for child in raylet.children() if child.cmdline() and "HubActor" in child.cmdline()[0]]


def soak(root: Path, *, saves: int) -> dict[str, Any]:
    """Run the soak and return its figures."""
    from trieye.cli.new import answers_of, bake
    from trieye.files.run_record import RunRecord

    project = bake(answers_of({"project_name": "My Agent"}), root)
    sys.path.insert(0, str(project))
    mirror = (root / "mirror").as_uri()
    first_dir, second_dir = root / "one", root / "two"
    for directory in (first_dir, second_dir, root / "mirror"):
        directory.mkdir()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    node = cluster.add_node(num_cpus=1)
    training = TrainingProcess(project, first_dir, cluster.address, mirror, 10**9, script=__file__)
    problems: list[str] = []
    figures: dict[str, Any] = {}
    try:
        await_condition(f"{saves} checkpoints", lambda: max(steps_in(first_dir), default=0) >= saves * SAVE_EVERY)
        for process in hubs_on(cluster.head_node):  # without a chance to shut down, as on a lost node
            process.kill()
        training.process.kill()
        training.process.wait()
        cluster.remove_node(node, allow_graceful=False)
        before = steps_in(first_dir)
        identity = RunRecord.read(next(first_dir.glob("*/runs/nodes")) / "run.json")
        first_dir.rename(root / "lost")
        cluster.add_node(num_cpus=1)
        training = TrainingProcess(project, second_dir, cluster.address, mirror, before[-1] + 4000, script=__file__)
        code = training.process.wait(2 * DEADLINE_S)
        log = (second_dir / "log").read_text(errors="replace")
        if code:
            problems.append(f"the second attempt exited with {code}: {log[-2000:]}")
        record = RunRecord.read(next(second_dir.glob("*/runs/nodes")) / "run.json")
        resumed = int(record.resumed_from.rpartition("_")[2]) if record and record.resumed_from else -1
        figures = {"saved": before, "resumed_at": resumed}
        if identity is None or record is None or identity.run_id != record.run_id or record.attempt != 2:
            problems.append(f"the runs differ: {identity} and {record}")
        if resumed not in before[-2:]:
            problems.append(f"resumed from {resumed}, checkpoints: {before}")
    except (RuntimeError, TimeoutError, StopIteration, subprocess.TimeoutExpired) as error:
        logs = [path.read_text(errors="replace")[-2000:] for path in root.glob("*/log")]
        problems.append(f"{type(error).__name__} {error}: {logs}")
    finally:
        training.process.kill()
        cluster.shutdown()
    if not problems:
        figures |= check(configure(second_dir, "auto", mirror, 1), problems)
    return {"benchmark": "learner_node", **figures, "problems": problems[:10]}


def main() -> int:
    """Print one JSON line; exit with 1 if there is a problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--saves", type=int, default=5, help="checkpoints before the node is killed")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        project, root, address, mirror, env_steps = json.loads(options.child)
        sys.path.insert(0, project)
        train_watched(configure(Path(root), address, mirror, env_steps), Path(root))
        return 0
    root = Path(tempfile.mkdtemp())
    try:
        figures = soak(root, saves=options.saves)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    print(json.dumps({**figures, "met": not figures["problems"]}))
    return 0 if not figures["problems"] else 1


if __name__ == "__main__":
    sys.exit(main())
