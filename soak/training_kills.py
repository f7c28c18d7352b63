"""Kill trainings at random steps, again and again, and compare each bit for bit with one that was never killed.

What is trained are the algorithms of the project template, baked for the occasion: in environments that can be saved in
the middle of an episode, alone and four at once, and in one that cannot, where a save waits for the end of one.
Weights, optimizers, replay buffers, random generators, episodes and the history have to be the same; then both train
on, and still have to be.
"""

import argparse
import ctypes
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

import trieye
from trieye.checkpoints.store import CheckpointStore
from trieye.cli.new import answers_of, bake
from trieye.history.history import read_history
from trieye.snapshot.environments import stateful
from trieye.snapshot.generators import generator_state

DEADLINE_S = 120.0
MORE_STEPS = 20
DQN = {"kind": "dqn", "learning_starts": 64, "target_update_interval": 20, "rollout_steps": 1}
PPO = {"kind": "ppo", "rollout_steps": 16, "epochs": 2}
RECURRENT = {**PPO, "kind": "recurrent_ppo", "memory_size": 16}
SAC = {"kind": "sac", "learning_starts": 64, "updates_per_env_step": 0.25, "rollout_steps": 1}
TD3 = {**SAC, "kind": "td3"}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "dqn": (DQN, {"id": "CartPole-v1"}),
    "dqn_that_waits": (DQN, {"id": "HiddenCartPole-v1"}),
    "ppo": (PPO, {"id": "CartPole-v1"}),
    "ppo_of_four": (PPO, {"id": "CartPole-v1", "num": 4, "normalize_observations": True}),
    "recurrent_ppo_of_four": (RECURRENT, {"id": "CartPole-v1", "num": 4}),
    "sac": (SAC, {"id": "Pendulum-v1", "max_episode_steps": 50}),
    "td3": (TD3, {"id": "Pendulum-v1", "max_episode_steps": 50}),
}
"""Agent and environment of each training; that of `dqn_that_waits` cannot be saved in the middle of an episode."""


class HiddenCartPole(CartPoleEnv):
    """CartPole whose state is in C, as that of a physics engine is."""

    @property
    def state(self) -> np.ndarray | None:
        """Position, velocity, angle and angular velocity, float64 `[4]`."""
        memory = vars(self).get("_memory")
        return None if memory is None else np.array(memory)

    @state.setter
    def state(self, value: Any) -> None:
        self._memory = None if value is None else (ctypes.c_double * 4)(*value)


def configure(root: Path, case: str, run_name: str, steps: int, device: str = "cpu") -> Any:
    """Return the config of a run on a device that learns soon and saves often."""
    from my_agent.config import TrainConfig

    agent, env = CASES[case]
    return TrainConfig(
        agent={"hidden_sizes": [32], "batch_size": 16, "device": device, **agent},
        env={"eval_episodes": 1, **env},
        run_name=run_name,
        runtime={"kind": "local"},
        sinks={},
        persistence={"root_data_dir": str(root), "checkpoint_save_freq_steps": 10},
        loop={"axis": "env_steps", "steps": steps, "evaluate_every_steps": 60},
    )


def engine_of(config: Any) -> Any:
    """Return the class that trains."""
    module, _, name = config.agent.engine.partition(":")
    return getattr(import_module(module), name)


def train(project: Path, config: Any) -> None:
    """Train to the end, and note after each step how many environment steps were made."""
    note = os.open(project / f"{config.run_name}.progress", os.O_RDWR | os.O_CREAT)

    class Watched(engine_of(config)):  # type: ignore[misc]  # made by the template
        def step(self) -> dict[str, float]:
            values = super().step()
            os.pwrite(note, self.env_steps.to_bytes(8, "little"), 0)
            return dict(values)

    trieye.run_experiment(Watched, config)


def begin(project: Path, config: Any, *, fork: bool) -> int:
    """Start a life of a run in a process of its own and return its id."""
    if not fork:
        case = config.run_name.partition("_")[2]
        given = [str(project), config.persistence.root_data_dir, case, config.run_name, str(config.loop.steps)]
        given.append(config.agent.device)
        command = [sys.executable, __file__, "--child", json.dumps(given)]
        with (project / f"{config.run_name}.log").open("ab") as log:
            return subprocess.Popen(command, stderr=log).pid
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.dup2(os.open(project / f"{config.run_name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
            train(project, config)
            code = 0
        finally:
            os._exit(code)
    return pid


def kill_at(project: Path, config: Any, pid: int, target: int) -> int | None:
    """Kill a process when it has made so many environment steps; return its exit code if it ended before."""
    progress = project / f"{config.run_name}.progress"
    until = time.monotonic() + DEADLINE_S
    while int.from_bytes(progress.read_bytes() if progress.exists() else b"", "little") < target:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            os.kill(pid, signal.SIGKILL)
            raise TimeoutError(f"run {config.run_name} makes no steps")
        time.sleep(0.0005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def run_killed(project: Path, config: Any, *, kills: int, fork: bool, env_steps: int) -> list[str]:
    """Train a run that is killed at random places, to the end; return what went wrong."""
    for number, target in enumerate(sorted(random.sample(range(1, env_steps), kills)), start=1):
        code = kill_at(project, config, begin(project, config, fork=fork), target)
        if code is not None:
            log = (project / f"{config.run_name}.log").read_text(errors="replace")
            return [f"the process that was to be killed at environment step {target} ended with {code}: {log[-800:]}"]
        print(f"{config.run_name}: {number} of {kills} kills, at environment step {target}", file=sys.stderr)
    _, status = os.waitpid(begin(project, config, fork=fork), 0)
    return [f"the last process ended with {os.waitstatus_to_exitcode(status)}"] if status else []


def differences(one: Any, other: Any, path: str = "") -> Iterator[str]:
    """Yield the places at which two states differ in any bit."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        if one.keys() != other.keys():
            yield f"{path}: {sorted(map(str, one))} and {sorted(map(str, other))}"
            return
        for key in one:
            yield from differences(one[key], other[key], f"{path}/{key}")
    elif isinstance(one, list | tuple) and type(one) is type(other) and len(one) == len(other):
        for index, (left, right) in enumerate(zip(one, other, strict=True)):
            yield from differences(left, right, f"{path}/{index}")
    elif generator_state(one) is not None:
        yield from differences(generator_state(one), generator_state(other), path)
    elif type(one) is not type(other) or _bits(one) != _bits(other):
        yield f"{path}: {one!r:.60} and {other!r:.60}"


def _bits(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        value = value.cpu().numpy()
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        return array.dtype, array.shape, array.tobytes()
    return value.hex() if isinstance(value, float) else value


def trained(config: Any) -> tuple[dict[str, Any], Any]:
    """Return what was saved last, without the clock and the replay buffer, and the engine made of it."""
    store = CheckpointStore(config.persistence.get_run_base_dir() / "checkpoints", read_only=True)
    saved = store.load(store.entries()[-1].path)
    engine = engine_of(config)(config)
    state = saved["objects"]["experiment"]["state"]
    engine.load_checkpoint(state)
    loop = {name: value for name, value in saved["objects"]["loop"].items() if name != "time_s"}
    return {"state": _compared(state), "loop": loop, "rng": saved["rng"], "step": saved["step"]}, engine


def _compared(state: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out the replay, which is compared by its draws, and environments: nobody seeds the generators of spaces."""
    collector = stateful(state["collector"])
    held = collector.state_dict() if hasattr(collector, "state_dict") else collector
    told = {name: value for name, value in held.items() if name != "envs"}
    return {**{name: value for name, value in state.items() if name != "replay"}, "collector": told}


def state_of(engine: Any) -> dict[str, Any]:
    """Return what an engine is made of; the replay buffer by what it draws."""
    state = _compared(engine.save_checkpoint(Path()))
    held = {name: getattr(value, "state_dict", lambda value=value: value)() for name, value in state.items()}
    held["attributes"] = {
        name: getattr(value, "state_dict", lambda value=value: value)() for name, value in held["attributes"].items()
    }
    if engine.replay is not None:
        held["drawn"] = [len(engine.replay), *(dict(engine.replay.sample(512)) for _ in range(8))]
    return held


def points(config: Any) -> dict[str, list[tuple[int, str]]]:
    """Return the points of each metric that has to do with no clock, in the order in which they were logged."""
    table = read_history(config.persistence.get_run_base_dir())
    columns = (table[name].to_pylist() for name in ("metric", "step", "value"))
    found: dict[str, list[tuple[int, str]]] = {}
    for metric, step, value in zip(*columns, strict=True):
        if not metric.startswith(("time/", "rate/", "trieye/")) and not metric.endswith("_per_s"):
            found.setdefault(metric, []).append((step, float(value).hex()))
    return found


def judge(whole: Any, killed: Any, *, waits: bool) -> dict[str, Any]:
    """Return the figures of a run and what is different in the one that was killed."""
    (saved, engine), (saved_again, engine_again) = trained(whole), trained(killed)
    problems = [
        *differences(saved, saved_again, "saved"),
        *differences(state_of(engine), state_of(engine_again), "engine"),
    ]
    for _ in range(MORE_STEPS):
        problems += differences(engine.step(), engine_again.step(), "learned later")
    problems += differences(state_of(engine), state_of(engine_again), "later")
    curves = points(whole)
    problems += differences(curves, points(killed), "history")
    if trieye.EnvState(engine.envs).is_exact is waits:
        problems.append(f"{whole.env.id} was taken for one that can{'' if waits else 'not'} be saved anywhere")
    first = engine_of(whole)(whole)
    if all(torch.equal(*pair) for pair in zip(first.policy.parameters(), engine.policy.parameters(), strict=True)):
        problems.append("nothing was learned")
    return {
        "env_steps": engine.env_steps,
        "updates": engine.updates,
        "points": sum(map(len, curves.values())),
        "problems": problems[:10],
    }


def main() -> int:
    """Print one JSON line; the exit code says whether all is well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="of each run")
    parser.add_argument("--steps", type=int, default=400, help="environment steps of each run")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--seed", type=int, default=None, help="of the places of the kills")
    parser.add_argument("--device", default="cpu", help="device of all lives: cpu, cuda, ...")
    parser.add_argument("--fork", action="store_true", help="do not start Python anew for each life: much faster")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    gym.register("HiddenCartPole-v1", HiddenCartPole, max_episode_steps=200)
    if options.child:
        project, root, case, run_name, steps, device = json.loads(options.child)
        sys.path.insert(0, project)
        train(Path(project), configure(Path(root), case, run_name, int(steps), device))
        return 0
    seed = random.randrange(2**32) if options.seed is None else options.seed
    random.seed(seed)
    with tempfile.TemporaryDirectory() as root:
        runs = soak(Path(root), options)
    met = not any(run["problems"] for run in runs.values())
    settings = {"kills": options.kills, "seed": seed, "device": options.device}
    print(json.dumps({"benchmark": "training_kills", **settings, "runs": runs, "met": met}))
    return 0 if met else 1


def soak(root: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Train each case once in peace and once with kills, and compare."""
    project = bake(answers_of({"project_name": "My Agent"}), root)
    sys.path.insert(0, str(project))
    if options.fork:
        for name in ("my_agent.dqn", "my_agent.ppo", "my_agent.recurrent_ppo", "my_agent.sac", "my_agent.td3"):
            import_module(name)
        torch.optim.Adam([torch.zeros(1, requires_grad=True)])  # imports for seconds what every life needs
    pairs, failures = {}, {}
    for case in options.cases:
        whole, killed = pairs[case] = tuple(
            configure(root, case, f"{kind}_{case}", options.steps, options.device) for kind in ("whole", "killed")
        )
        failures[case] = run_killed(project, whole, kills=0, fork=options.fork, env_steps=1)
        made = int.from_bytes((project / f"{whole.run_name}.progress").read_bytes(), "little")
        failures[case] += run_killed(project, killed, kills=options.kills, fork=options.fork, env_steps=made)
    # after all forks: pyarrow and torch begin threads of their own
    return {
        case: {"problems": failures[case]} if failures[case] else judge(*pair, waits=case == "dqn_that_waits")
        for case, pair in pairs.items()
    }


if __name__ == "__main__":
    sys.exit(main())
