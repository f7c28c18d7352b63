"""Train on a cluster with a mirror, kill the learner with its node, and go on with another directory on another node.

Nothing of the first directory is seen by the second start. It has to go on as the same run, at most one save behind,
and its history is one: every step once, and counts that add up to what the training counted itself.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil
from explorer_kills import DEADLINE_S, Life, check, train_watched
from nodes import await_that
from nodes import configure as configure_nodes
from ray.cluster_utils import Cluster

SAVED_EVERY = 2000


def configure(root: Path, address: str, mirror: str, env_steps: int) -> Any:
    """Return the config of the run."""
    config = configure_nodes(root, address, 1e6)
    given = config.model_dump()
    given["persistence"] |= {"mirror": mirror, "mirror_interval_s": 2.0, "checkpoint_save_freq_steps": SAVED_EVERY}
    given["loop"] |= {"time_s": None, "env_steps": env_steps}
    return type(config).model_validate(given)


def steps_in(root: Path) -> list[int]:
    """Return the steps of the checkpoints below a directory."""
    paths = root.glob("*/runs/nodes/checkpoints/checkpoint_step_*/MANIFEST.json")
    return sorted(int(path.parent.name.rpartition("_")[2]) for path in paths)


def hubs_on(node: Any) -> list[psutil.Process]:
    """Return the processes of hubs on a node."""
    raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
    return [child for child in raylet.children() if child.cmdline() and "HubActor" in child.cmdline()[0]]


def soak(root: Path, *, saves: int) -> dict[str, Any]:
    """Run the soak and return its figures."""
    from trieye.cli.new import answers_of, bake
    from trieye.files.run_record import RunRecord

    project = bake(answers_of({"project_name": "My Agent"}), root)
    sys.path.insert(0, str(project))
    mirror = (root / "mirror").as_uri()
    one, two = root / "one", root / "two"
    for place in (one, two, root / "mirror"):
        place.mkdir()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    first = cluster.add_node(num_cpus=1)
    life = Life(project, one, cluster.address, mirror, 10**9, script=__file__)
    problems: list[str] = []
    figures: dict[str, Any] = {}
    try:
        await_that("so many checkpoints", lambda: max(steps_in(one), default=0) >= saves * SAVED_EVERY)
        for process in hubs_on(cluster.head_node):  # a node that is lost lets nobody end in order
            process.kill()
        life.process.kill()
        life.process.wait()
        cluster.remove_node(first, allow_graceful=False)
        before = steps_in(one)
        identity = RunRecord.read(next(one.glob("*/runs/nodes")) / "run.json")
        one.rename(root / "lost")
        cluster.add_node(num_cpus=1)
        life = Life(project, two, cluster.address, mirror, before[-1] + 4000, script=__file__)
        code = life.process.wait(2 * DEADLINE_S)
        log = (two / "log").read_text(errors="replace")
        if code:
            problems.append(f"the second start ended with {code}: {log[-2000:]}")
        record = RunRecord.read(next(two.glob("*/runs/nodes")) / "run.json")
        resumed = int(record.resumed_from.rpartition("_")[2]) if record and record.resumed_from else -1
        figures = {"saved": before, "resumed_at": resumed}
        if identity is None or record is None or identity.run_id != record.run_id or record.attempt != 2:
            problems.append(f"it is another run: {identity} and {record}")
        if resumed not in before[-2:]:
            problems.append(f"it went on from {resumed}, of {before}")
    except (RuntimeError, TimeoutError, StopIteration, subprocess.TimeoutExpired) as error:
        logs = [path.read_text(errors="replace")[-2000:] for path in root.glob("*/log")]
        problems.append(f"{type(error).__name__} {error}: {logs}")
    finally:
        life.process.kill()
        cluster.shutdown()
    if not problems:
        figures |= check(configure(two, "auto", mirror, 1), problems)
    return {"benchmark": "learner_node", **figures, "problems": problems[:10]}


def main() -> int:
    """Print one JSON line; the exit code says whether all is well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--saves", type=int, default=5, help="checkpoints before the node is lost")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        project, root, address, mirror, env_steps = json.loads(options.child)
        sys.path.insert(0, project)
        train_watched(configure(Path(root), address, mirror, env_steps), Path(root))
        return 0
    root = Path(tempfile.mkdtemp())
    try:
        found = soak(root, saves=options.saves)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    print(json.dumps({**found, "met": not found["problems"]}))
    return 0 if not found["problems"] else 1


if __name__ == "__main__":
    sys.exit(main())
