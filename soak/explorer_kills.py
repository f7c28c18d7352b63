"""Kill explorers, the replay, the hub and the learner of one training repeatedly.

The DQN of the project template learns CartPole from two explorers in Ray, fully asynchronously. The training must
survive each kill. At the end, its history must have every step exactly once, strictly increasing versions, and counts
whose sums equal the counters of the training. `--agent ppo` has no replay, and its fragments must never be too stale.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]  # stubs would be one more package

DEADLINE_S = 180.0
KINDS = {
    "explorer": "ExplorerActor",
    "replay": "ReplayActor",
    "hub": "HubActor",
}
AGENTS: dict[str, dict[str, Any]] = {
    "dqn": {"kind": "dqn", "learning_starts": 200, "rollout_steps": 1, "updates_per_env_step": 0.25},
    "ppo": {"kind": "ppo", "rollout_steps": 32, "epochs": 2},
}
STALENESS = 2


def configure(root: Path, agent: str, env_steps: int) -> Any:
    """Return the config of the run."""
    from my_agent.config import TrainConfig  # type: ignore[import-not-found]  # the generated project

    return TrainConfig(
        agent={"hidden_sizes": [32], "batch_size": 32, **AGENTS[agent]},
        env={"id": "CartPole-v1", "eval_episodes": 1, "num": 2},
        run_name="killed",
        runtime={"kind": "ray"},
        explorer={"num": 2, "fragment_steps": 32, "replay_snapshot_interval_s": 2.0, "restart_backoff_s": 0.2},
        sync={"style": "fully_async", "max_staleness": STALENESS},
        sinks={},
        persistence={"root_data_dir": str(root), "checkpoint_save_freq_steps": 2000},
        loop={"axis": "env_steps", "env_steps": env_steps, "evaluate_every_steps": 100_000},
    )


def train_watched(config: Any, root: Path) -> None:
    """Train to completion, and record the number of environment steps in `progress`."""
    import trieye

    module, _, name = config.agent.engine.partition(":")
    engine = getattr(__import__(module, fromlist=[name]), name)
    progress = os.open(root / "progress", os.O_RDWR | os.O_CREAT)
    advance = engine.advance

    def watched(self: Any) -> Any:
        values = advance(self)
        os.pwrite(progress, self.env_steps.to_bytes(8, "little"), 0)
        return values

    engine.advance = watched
    trieye.run_experiment(engine, config)


class TrainingProcess:
    """A training in a separate process, with the actors that it starts."""

    def __init__(self, project: Path, root: Path, *arguments: Any, script: str = __file__) -> None:
        (root / "progress").write_bytes(b"")
        words = json.dumps([str(project), str(root), *arguments])
        with (root / "log").open("ab") as log:
            self.process = subprocess.Popen([sys.executable, script, "--child", words], stdout=log, stderr=log)
        self._root = root

    def num_env_steps(self) -> int:
        """Return the number of environment steps."""
        path = self._root / "progress"
        return int.from_bytes(path.read_bytes(), "little") if path.exists() else 0

    def await_progress(self, steps: int) -> None:
        """Wait for `steps` more environment steps."""
        until, first = time.monotonic() + DEADLINE_S, 0
        while not first or self.num_env_steps() < first + steps:
            first = first or self.num_env_steps()
            if self.process.poll() is not None:
                raise RuntimeError(f"the training exited with {self.process.returncode}")
            if time.monotonic() > until:
                raise TimeoutError("the training makes no progress")
            time.sleep(0.02)

    def of_kind(self, kind: str) -> list[psutil.Process]:
        """Return the processes of an actor class."""
        processes = []
        for process in psutil.Process(self.process.pid).children(recursive=True):
            try:
                processes += [process] if process.cmdline()[0].startswith(f"ray::{KINDS[kind]}") else []
            except (psutil.Error, IndexError):
                continue
        return processes

    def kill(self, kind: str) -> None:
        """Kill one process of a kind."""
        if kind == "learner":
            actors = [process for kind in KINDS for process in self.of_kind(kind)]
            self.process.kill()
            self.process.wait()
            _, alive = psutil.wait_procs(actors, timeout=60)  # processes of Ray take longer
            if alive:
                raise TimeoutError(f"processes survive the learner: {[process.name() for process in alive]}")
            return
        until = time.monotonic() + DEADLINE_S
        while not (processes := self.of_kind(kind)):  # it may be restarting after the previous kill
            if time.monotonic() > until:
                raise TimeoutError(f"no {kind} is running")
            time.sleep(0.1)
        random.choice(processes).send_signal(signal.SIGKILL)


def soak(root: Path, *, agent: str, kinds: list[str], kills: int) -> dict[str, Any]:
    """Run the soak and return its figures."""
    from trieye.cli.new import answers_of, bake

    project = bake(answers_of({"project_name": "My Agent"}), root)
    sys.path.insert(0, str(project))
    kinds = [kind for kind in kinds if agent == "dqn" or kind != "replay"]
    plan = [kinds[number % len(kinds)] for number in range(kills)]
    random.shuffle(plan)
    training = TrainingProcess(project, root, agent, 10**9)
    try:
        for number, kind in enumerate(plan, start=1):
            training.await_progress(random.randrange(500, 3000))
            training.kill(kind)
            print(f"{number} of {kills} kills: {kind}, at environment step {training.num_env_steps()}", file=sys.stderr)
            if kind == "learner":
                training = TrainingProcess(project, root, agent, 10**9)
        training.await_progress(2000)
        training.process.terminate()
        training.process.wait(DEADLINE_S)
        num_steps = training.num_env_steps()
        training = TrainingProcess(project, root, agent, num_steps + 3000)
        code = training.process.wait(DEADLINE_S)
        log = "" if code == 0 else (root / "log").read_text(errors="replace")[-2000:]
        problems = [] if code == 0 else [f"the last process exited with {code}: {log}"]
    except (RuntimeError, TimeoutError, subprocess.TimeoutExpired) as error:
        problems = [f"{error}: {(root / 'log').read_text(errors='replace')[-2000:]}"]
    finally:
        training.process.kill()
    figures: dict[str, Any] = {} if problems else check(configure(root, agent, 10**9), problems)
    by_kind = {kind: plan.count(kind) for kind in kinds}
    return {"benchmark": "explorer_kills", "agent": agent, "kills": by_kind, **figures, "problems": problems[:10]}


def check(config: Any, problems: list[str]) -> dict[str, Any]:
    """Check the history of the run, append its problems to `problems`, and return its figures."""
    from trieye.checkpoints.store import CheckpointStore
    from trieye.history.history import read_history

    run_dir = config.persistence.get_run_base_dir()
    table = read_history(run_dir)
    columns = (table[name].to_pylist() for name in ("metric", "step", "value"))
    curves: dict[str, list[tuple[int, float]]] = {}
    for metric, step, value in zip(*columns, strict=True):
        curves.setdefault(metric, []).append((step, value))
    store = CheckpointStore(run_dir / "checkpoints", read_only=True)
    counters = store.load(store.entries()[-1].path)["objects"]["loop"]
    versions = [value for _, value in curves["sync/version"]]
    if any(later <= earlier for earlier, later in pairwise(versions)):
        problems.append("the versions do not strictly increase")
    for name in ("env_steps", "updates"):
        total = sum(value for _, value in curves[name])
        if total != counters[name]:
            problems.append(f"the sum of {name} is {total}, the training counted {counters[name]}")
        steps = [step for step, _ in curves[name]]
        if len(set(steps)) != len(steps) or steps != sorted(steps):
            problems.append(f"{name}: steps are repeated or out of order")
    dropped = {name: points[-1][1] for name, points in curves.items() if name.startswith("replay/dropped/")}
    if dropped.get("replay/dropped/stale"):
        problems.append("stale fragments were dropped")
    staleness = max((value for _, value in curves.get("replay/staleness_max", [])), default=None)
    if staleness is not None and staleness > STALENESS:
        problems.append(f"a fragment was {staleness} versions behind, {STALENESS} are allowed")
    return {
        "env_steps": counters["env_steps"],
        "updates": counters["updates"],
        "versions": int(versions[-1]),
        "restarts": curves["explorer/restarts"][-1][1],
        "lost": curves["explorer/lost_fragments"][-1][1],
        "staleness_max": staleness,
        "dropped": dropped,
    }


def main() -> int:
    """Print one JSON line; exit with 1 if there is a problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--agent", choices=AGENTS, default="dqn")
    parser.add_argument("--kinds", nargs="+", choices=[*KINDS, "learner"], default=[*KINDS, "learner"])
    parser.add_argument("--seed", type=int, default=None, help="seed of the order and the times of the kills")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        project, root, agent, env_steps = json.loads(options.child)
        sys.path.insert(0, project)
        train_watched(configure(Path(root), agent, env_steps), Path(root))
        return 0
    seed = random.randrange(2**32) if options.seed is None else options.seed
    random.seed(seed)
    with tempfile.TemporaryDirectory() as root:
        figures = soak(Path(root), agent=options.agent, kinds=options.kinds, kills=options.kills)
    print(json.dumps({**figures, "seed": seed, "met": not figures["problems"]}))
    return 0 if not figures["problems"] else 1


if __name__ == "__main__":
    sys.exit(main())
