"""Hang an environment at a random time, send a signal to the training, and measure how long it takes to exit.

The training must save and exit within 10 s if the environment runs in a separate process (an explorer in Ray, a member
of `env.vector=async`) or in a thread (explorers with `runtime=local`), or if Python code sleeps or computes endlessly
in the process of the learner. A call into C that never returns can only be killed, also within 10 s, with the last
checkpoint intact and a message that names the environment. Every run must be intact and resume.
"""

import argparse
import contextlib
import ctypes
import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gymnasium as gym
import psutil  # type: ignore[import-untyped]  # stubs would be one more package
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

LIMIT_S = 10.0
START_S = 180.0
RAY_AGENTS_S = 120.0
"""The agents of Ray exit 61 s after SIGKILL of the driver that started Ray, with or without trieye."""

STYLES = ("fixed", "trainer_driven", "explorer_driven", "fully_async")
KINDS = ("sleep", "busy", "blocked", "blocked_with_gil")
IN_C = ("blocked", "blocked_with_gil")


def hang(kind: str) -> None:
    """Never return."""
    if kind == "sleep":
        time.sleep(100_000)
    while kind == "busy":
        pass
    library = ctypes.PyDLL(None) if kind == "blocked_with_gil" else ctypes.CDLL(None)
    mutex = ctypes.create_string_buffer(128)
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)  # signals do not interrupt it


class Hanging(CartPoleEnv):
    """CartPole with a step or reset that never returns: the first that removes the file `hang` after it appears.

    Args:
        root: Directory of the file.
        kind: How to hang: one of `KINDS`.
    """

    def __init__(self, root: str, kind: str) -> None:
        super().__init__()
        self._root, self._kind = root, kind

    def _may_hang(self) -> None:
        try:
            Path(self._root, "hang").rename(Path(self._root, "is_hanging"))
        except OSError:
            return
        hang(self._kind)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Start an episode."""
        self._may_hang()
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        """Take a step of at least 0.5 ms."""
        self._may_hang()
        time.sleep(0.0005)
        return super().step(action)  # type: ignore[no-untyped-call]  # gymnasium does not annotate it


if __name__ != "__main__":  # explorers import this module
    gym.register("Hanging-v0", "hangs:Hanging", max_episode_steps=100)


def configure(root: Path, location: str, style: str, kind: str, env_steps: int) -> Any:
    """Return the config of a run."""
    from my_agent.config import TrainConfig  # type: ignore[import-not-found]  # the generated project

    explorers = {"num": 2, "fragment_steps": 16, "restart_backoff_s": 0.2} if location in {"threads", "ray"} else {}
    return TrainConfig(
        agent={"kind": "ppo", "hidden_sizes": [16], "batch_size": 32, "rollout_steps": 16, "epochs": 1},
        env={
            "id": "hangs:Hanging-v0",
            "kwargs": {"root": str(root), "kind": kind},
            "num": 2,
            "vector": "async" if location == "async" else "sync",
            "eval_episodes": 1,
        },
        run_name="hangs",
        runtime={"kind": "ray" if location == "ray" else "local"},
        explorer=explorers,
        sync={"style": style, **({} if style == "fixed" else {"max_staleness": 2})} if explorers else {},
        sinks={},
        persistence={"root_data_dir": str(root), "checkpoint_save_freq_steps": 100},
        loop={"axis": "env_steps", "env_steps": env_steps, "evaluate_every_steps": 500},
    )


def train(config: Any, root: Path) -> None:
    """Train, and record the number of environment steps in `progress`."""
    import trieye

    module, _, name = config.agent.engine.partition(":")
    engine = getattr(__import__(module, fromlist=[name]), name)
    advance = engine.advance

    def watched(self: Any) -> Any:
        values = advance(self)
        (root / "progress").write_text(str(self.env_steps))
        return values

    engine.advance = watched
    trieye.run_experiment(engine, config)


def await_progress(process: "subprocess.Popen[bytes]", root: Path, steps: int) -> None:
    """Wait for `steps` environment steps.

    Raises:
        RuntimeError: The training exited or makes no progress.
    """
    until = time.monotonic() + START_S
    while int((root / "progress").read_text() or 0) < steps:
        if process.poll() is not None or time.monotonic() > until:
            raise RuntimeError(f"the training makes no progress: {log_of(root)[-1500:]}")
        time.sleep(0.01)


def log_of(root: Path) -> str:
    """Return the output of the trainings."""
    return (root / "log").read_text(errors="replace")


@contextlib.contextmanager
def started(project: Path, root: Path, *arguments: Any) -> Iterator["subprocess.Popen[bytes]"]:
    """Start a training, and kill it at the end of the block."""
    (root / "progress").write_text("")
    words = json.dumps([str(project), str(root), *arguments])
    with (root / "log").open("ab") as log:
        process = subprocess.Popen([sys.executable, __file__, "--child", words], stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def hang_and_signal(
    project: Path, root: Path, case: tuple[str, str, str], signal_number: int, generator: random.Random
) -> tuple[float, list[str]]:
    """Hang and signal one training; return the seconds until it exited, and the problems."""
    location, style, kind = case
    root.mkdir()
    with started(project, root, location, style, kind, 10**9) as process:
        await_progress(process, root, generator.randrange(150, 900))
        (root / "hang").touch()
        until = time.monotonic() + START_S
        while not (root / "is_hanging").exists():
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"no environment hangs: {log_of(root)[-1500:]}")
            time.sleep(0.01)
        time.sleep(generator.choice([0.0, generator.uniform(0.0, 2.0), generator.uniform(0.0, 8.0)]))
        family = [process.pid, *(child.pid for child in psutil.Process(process.pid).children(recursive=True))]
        began = time.monotonic()
        process.send_signal(signal_number)
        try:
            code = process.wait(60)
        except subprocess.TimeoutExpired:
            return 60.0, [f"did not exit within 60 s: {log_of(root)[-1500:]}"]
        took_s = time.monotonic() - began
    problems = [] if took_s <= LIMIT_S else [f"exited after {took_s:.1f} s"]
    problems += problems_of(root, location, kind, code, 128 + signal_number, family)
    problems += problems_of_resume(project, root, location, style, kind)
    return took_s, [f"{problem}: {log_of(root)[-1500:]}" for problem in problems]


def problems_of(root: Path, location: str, kind: str, code: int, expected: int, family: list[int]) -> list[str]:
    """Return the problems of a run that was stopped by a signal."""
    import trieye
    from trieye.files.run_record import RunRecord

    run_dir = next(root.glob("*/runs/hangs"))
    record, problems = RunRecord.read(run_dir / "run.json"), []
    was_killed = code == -signal.SIGKILL
    if code != expected and not (was_killed and kind in IN_C):
        problems.append(f"exited with {code}, expected {expected}")
    if was_killed and "Hanging-v0 has not returned" not in log_of(root):
        problems.append("no message names the environment")
    step = trieye.load_checkpoint(run_dir, "latest").step
    if not was_killed:
        env_steps = int((root / "progress").read_text())
        if record is None or record.status != "KILLED":
            problems.append(f"the status is not KILLED: {record}")
        if step < env_steps:
            problems.append(f"{step} of {env_steps} environment steps are saved")
    until = time.monotonic() + (RAY_AGENTS_S if was_killed and location == "ray" else 10.0)
    while survivors := [pid for pid in family if psutil.pid_exists(pid) and is_alive(pid)]:
        if time.monotonic() > until:
            problems.append(f"processes survive: {survivors}")
            for pid in survivors:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            break
        time.sleep(0.1)
    return problems


def is_alive(pid: int) -> bool:
    """Return whether a process exists and is no zombie."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def problems_of_resume(project: Path, root: Path, location: str, style: str, kind: str) -> list[str]:
    """Resume a run, and return its problems."""
    import trieye

    step = trieye.load_checkpoint(next(root.glob("*/runs/hangs")), "latest").step
    with started(project, root, location, style, kind, step + 200) as process:
        try:
            code = process.wait(START_S)
        except subprocess.TimeoutExpired:
            return ["the resumed run did not exit"]
    return [] if code == 0 else [f"the resumed run exited with {code}"]


def all_cases(locations: list[str], styles: list[str], kinds: list[str]) -> list[tuple[str, str, str]]:
    """Return location, style and kind of each case."""
    cases: list[tuple[str, str, str]] = []
    for location in locations:
        is_process = location in {"ray", "async"}
        tested_kinds = [kind for kind in kinds if not is_process or kind in {"sleep", "blocked_with_gil"}]
        tested_styles = styles if location in {"threads", "ray"} else ["fixed"]
        cases += itertools.product([location], tested_styles, tested_kinds)
    return cases


def soak(root: Path, options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Run all trainings and return their longest times and problems."""
    from trieye.cli.new import answers_of, bake

    project = bake(answers_of({"project_name": "My Agent"}), root)
    signals = [signal.Signals[name] for name in options.signals]
    plan = [
        (case, sent_signal)
        for case in all_cases(options.places, options.styles, options.kinds)
        for sent_signal in signals
        for _ in range(options.tries)
    ]
    took: dict[str, list[float]] = {}
    problems: list[str] = []
    lock = threading.Lock()

    def run_one(index: int) -> None:
        case, sent_signal = plan[index]
        location, _, kind = case
        title = f"{' '.join(case)} {sent_signal.name}"
        generator = random.Random(f"{seed} {index}")
        try:
            took_s, own_problems = hang_and_signal(project, root / f"try{index}", case, sent_signal, generator)
        except RuntimeError as error:
            took_s, own_problems = 0.0, [str(error)]
        with lock:
            took.setdefault(f"{location} {kind}", []).append(round(took_s, 1))
            problems.extend(f"{title}: {problem}" for problem in own_problems)
            summary = "; ".join(re.sub(r"\s+", " ", problem)[:200] for problem in own_problems)
            print(f"{title}: {took_s:.1f} s {summary}", file=sys.stderr)

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(run_one, range(len(plan))))
    longest = {case: max(times) for case, times in took.items()}
    return {"tries": len(plan), "longest_s": longest, "problems": problems[:5], "num_problems": len(problems)}


def main() -> int:
    """Print one JSON line; exit with 1 if there is a problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--tries", type=int, default=5, help="trainings for each case and signal")
    parser.add_argument(
        "--places",
        nargs="+",
        default=["own", "async", "threads", "ray"],
        help="environments in the learner (own), in subprocesses, or with explorers",
    )
    parser.add_argument("--styles", nargs="+", choices=STYLES, default=list(STYLES))
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--signals", nargs="+", choices=["SIGINT", "SIGTERM"], default=["SIGINT", "SIGTERM"])
    parser.add_argument("--jobs", type=int, default=1, help="concurrent trainings, which slow down each other")
    parser.add_argument("--seed", type=int, default=None, help="seed of the times of hangs and signals")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        project, root, location, style, kind, env_steps = json.loads(options.child)
        sys.path.insert(0, project)
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a background job of a shell
            signal.signal(signal.SIGINT, signal.default_int_handler)
        train(configure(Path(root), location, style, kind, env_steps), Path(root))
        return 0
    seed = random.randrange(2**32) if options.seed is None else options.seed
    with tempfile.TemporaryDirectory() as root:
        figures = soak(Path(root), options, seed)
    met = not figures["num_problems"]
    print(json.dumps({"benchmark": "hangs", **figures, "seed": seed, "met": met}))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
