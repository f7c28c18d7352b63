"""Kill trainings at random steps repeatedly, and compare each bit for bit with an uninterrupted training.

The algorithms come from a project created from the template. Most cases use one or four environments that can be saved
during an episode; one case uses an environment that cannot, so saves wait for the end of an episode. Weights,
optimizers, replay buffers, random generators, episodes and the history must be equal, also after further training of
both.
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
"""Agent and environment of each training; the environment of `dqn_that_waits` cannot be saved during an episode."""


class HiddenCartPole(CartPoleEnv):
    """CartPole with its state in C memory, like the state of a physics engine."""

    @property
    def state(self) -> np.ndarray | None:
        """Position, velocity, angle and angular velocity, float64 `[4]`."""
        memory = vars(self).get("_memory")
        return None if memory is None else np.array(memory)

    @state.setter
    def state(self, value: Any) -> None:
        self._memory = None if value is None else (ctypes.c_double * 4)(*value)


def make_hidden_cart_pole(**kwargs: Any) -> HiddenCartPole:
    """Return an environment."""
    return HiddenCartPole(**kwargs)


def configure(root: Path, case: str, run_name: str, steps: int, device: str = "cpu") -> Any:
    """Return the config of a run that learns after few steps and saves often."""
    from my_agent.config import TrainConfig  # type: ignore[import-not-found]  # the generated project

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
    """Return the engine class."""
    module, _, name = config.agent.engine.partition(":")
    return getattr(import_module(module), name)


def train(project: Path, config: Any) -> None:
    """Train to completion, and record the number of environment steps after each step."""
    progress = os.open(project / f"{config.run_name}.progress", os.O_RDWR | os.O_CREAT)

    class Watched(engine_of(config)):  # type: ignore[misc]  # a class of the generated project
        def step(self) -> dict[str, float]:
            values = super().step()
            os.pwrite(progress, self.env_steps.to_bytes(8, "little"), 0)
            return dict(values)

    trieye.run_experiment(Watched, config)


def start(project: Path, config: Any, *, fork: bool) -> int:
    """Start an attempt of a run in a new process, and return the process id."""
    if not fork:
        case = config.run_name.partition("_")[2]
        arguments = [str(project), config.persistence.root_data_dir, case, config.run_name, str(config.loop.steps)]
        arguments.append(config.agent.device)
        command = [sys.executable, __file__, "--child", json.dumps(arguments)]
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
    """Kill a process after `target` environment steps; return its exit code if it exits before."""
    progress = project / f"{config.run_name}.progress"
    until = time.monotonic() + DEADLINE_S
    while int.from_bytes(progress.read_bytes() if progress.exists() else b"", "little") < target:
        exited_pid, status = os.waitpid(pid, os.WNOHANG)
        if exited_pid:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            os.kill(pid, signal.SIGKILL)
            raise TimeoutError(f"run {config.run_name} makes no progress")
        time.sleep(0.0005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def run_killed(project: Path, config: Any, *, kills: int, fork: bool, env_steps: int) -> list[str]:
    """Kill a run at random environment steps, train it to completion, and return the problems."""
    for number, target in enumerate(sorted(random.sample(range(1, env_steps), kills)), start=1):
        code = kill_at(project, config, start(project, config, fork=fork), target)
        if code is not None:
            log = (project / f"{config.run_name}.log").read_text(errors="replace")
            return [f"the process exited with {code} before its kill at environment step {target}: {log[-800:]}"]
        print(f"{config.run_name}: {number} of {kills} kills, at environment step {target}", file=sys.stderr)
    _, status = os.waitpid(start(project, config, fork=fork), 0)
    return [f"the last process exited with {os.waitstatus_to_exitcode(status)}"] if status else []


def differences(one: Any, other: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of differing bits in two states."""
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


def restored(config: Any) -> tuple[dict[str, Any], Any]:
    """Return the last checkpoint without the clock and the replay buffer, and an engine restored from it."""
    store = CheckpointStore(config.persistence.get_run_base_dir() / "checkpoints", read_only=True)
    saved = store.load(store.entries()[-1].path)
    engine = engine_of(config)(config)
    state = saved["objects"]["experiment"]["state"]
    engine.load_checkpoint(state)
    loop = {name: value for name, value in saved["objects"]["loop"].items() if name != "time_s"}
    return {"state": _compared(state), "loop": loop, "rng": saved["rng"], "step": saved["step"]}, engine


def _compared(state: Mapping[str, Any]) -> dict[str, Any]:
    """Remove the replay, which is compared by its samples, and environments, whose spaces have unseeded generators."""
    collector = stateful(state["collector"])
    collector_state = collector.state_dict() if hasattr(collector, "state_dict") else collector
    without_envs = {name: value for name, value in collector_state.items() if name != "envs"}
    return {**{name: value for name, value in state.items() if name != "replay"}, "collector": without_envs}


def state_of(engine: Any) -> dict[str, Any]:
    """Return the state of an engine, with samples instead of the replay buffer."""
    saved = _compared(engine.save_checkpoint(Path()))
    state = {name: getattr(value, "state_dict", lambda value=value: value)() for name, value in saved.items()}
    state["attributes"] = {
        name: getattr(value, "state_dict", lambda value=value: value)() for name, value in state["attributes"].items()
    }
    if engine.replay is not None:
        state["samples"] = [len(engine.replay), *(dict(engine.replay.sample(512)) for _ in range(8))]
    return state


def points(config: Any) -> dict[str, list[tuple[int, str]]]:
    """Return the points of each metric that does not depend on the clock, in the order of the history."""
    table = read_history(config.persistence.get_run_base_dir())
    columns = (table[name].to_pylist() for name in ("metric", "step", "value"))
    curves: dict[str, list[tuple[int, str]]] = {}
    for metric, step, value in zip(*columns, strict=True):
        if not metric.startswith(("time/", "rate/", "trieye/")) and not metric.endswith("_per_s"):
            curves.setdefault(metric, []).append((step, float(value).hex()))
    return curves


def compare(uninterrupted: Any, killed: Any, *, waits: bool) -> dict[str, Any]:
    """Return the figures of a run, and the differences of the killed run."""
    (saved, engine), (killed_saved, killed_engine) = restored(uninterrupted), restored(killed)
    problems = [
        *differences(saved, killed_saved, "saved"),
        *differences(state_of(engine), state_of(killed_engine), "engine"),
    ]
    for _ in range(MORE_STEPS):
        problems += differences(engine.step(), killed_engine.step(), "metrics of further training")
    problems += differences(state_of(engine), state_of(killed_engine), "engine after further training")
    curves = points(uninterrupted)
    problems += differences(curves, points(killed), "history")
    if trieye.EnvState(engine.envs).is_exact is waits:
        problems.append(
            f"{uninterrupted.env.id} was classified as {'savable' if waits else 'not savable'} during an episode"
        )
    initial = engine_of(uninterrupted)(uninterrupted)
    if all(torch.equal(*pair) for pair in zip(initial.policy.parameters(), engine.policy.parameters(), strict=True)):
        problems.append("the weights did not change")
    return {
        "env_steps": engine.env_steps,
        "updates": engine.updates,
        "points": sum(map(len, curves.values())),
        "problems": problems[:10],
    }


def main() -> int:
    """Print one JSON line; exit with 1 if there is a problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="kills of each run")
    parser.add_argument("--steps", type=int, default=400, help="environment steps of each run")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--seed", type=int, default=None, help="seed of the steps of the kills")
    parser.add_argument("--device", default="cpu", help="device of all attempts: cpu, cuda, ...")
    parser.add_argument(
        "--fork", action="store_true", help="fork the attempts instead of starting Python for each: much faster"
    )
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    gym.register("HiddenCartPole-v1", make_hidden_cart_pole, max_episode_steps=200)
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
    """Train each case with and without kills, and compare."""
    project = bake(answers_of({"project_name": "My Agent"}), root)
    sys.path.insert(0, str(project))
    if options.fork:
        for name in ("my_agent.dqn", "my_agent.ppo", "my_agent.recurrent_ppo", "my_agent.sac", "my_agent.td3"):
            import_module(name)
        torch.optim.Adam([torch.zeros(1, requires_grad=True)])  # imports modules that every attempt needs
    pairs, failures = {}, {}
    for case in options.cases:
        uninterrupted, killed = pairs[case] = tuple(
            configure(root, case, f"{kind}_{case}", options.steps, options.device)
            for kind in ("uninterrupted", "killed")
        )
        failures[case] = run_killed(project, uninterrupted, kills=0, fork=options.fork, env_steps=1)
        num_steps = int.from_bytes((project / f"{uninterrupted.run_name}.progress").read_bytes(), "little")
        failures[case] += run_killed(project, killed, kills=options.kills, fork=options.fork, env_steps=num_steps)
    # after all forks, because pyarrow and torch start threads
    return {
        case: {"problems": failures[case]} if failures[case] else compare(*pair, waits=case == "dqn_that_waits")
        for case, pair in pairs.items()
    }


if __name__ == "__main__":
    sys.exit(main())
