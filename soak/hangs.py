"""Let an environment hang at a random moment, ask the training to stop, and measure how long it takes to end.

Where the environment is in a process of its own (an explorer in Ray, a member of `env.vector=async`) or in a thread
(explorers with `runtime=local`), and where a step of Python sleeps or computes for ever in the learner's process, the
training has to save and to end within 10 s. A call into C that never returns ends with its process, within 10 s as
well, with the last checkpoint whole and a message that names the environment. Each run has to be whole and to resume.
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
import psutil
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

LIMIT_S = 10.0
START_S = 180.0
RAY_AGENTS_S = 120.0
"""Ray's own agents end 61 s after SIGKILL of the driver that started Ray, with or without trieye."""

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
    library.pthread_mutex_lock(mutex)  # which no signal interrupts


class Hanging(CartPoleEnv):
    """CartPole; when the file `hang` appears, the first step or reset that takes it never returns.

    Args:
        root: Where the file is.
        kind: How it hangs.
    """

    def __init__(self, root: str, kind: str) -> None:
        super().__init__()
        self._root, self._kind = root, kind

    def _may_hang(self) -> None:
        try:
            Path(self._root, "hang").rename(Path(self._root, "hangs"))
        except OSError:
            return
        hang(self._kind)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Begin an episode."""
        self._may_hang()
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        """Make a step, which takes a moment."""
        self._may_hang()
        time.sleep(0.0005)
        return super().step(action)


if __name__ != "__main__":  # explorers import it by its name
    gym.register("Hanging-v0", "hangs:Hanging", max_episode_steps=100)


def configure(root: Path, place: str, style: str, kind: str, env_steps: int) -> Any:
    """Return the config of a run."""
    from my_agent.config import TrainConfig

    explorers = {"num": 2, "fragment_steps": 16, "restart_backoff_s": 0.2} if place in {"threads", "ray"} else {}
    return TrainConfig(
        agent={"kind": "ppo", "hidden_sizes": [16], "batch_size": 32, "rollout_steps": 16, "epochs": 1},
        env={
            "id": "hangs:Hanging-v0",
            "kwargs": {"root": str(root), "kind": kind},
            "num": 2,
            "vector": "async" if place == "async" else "sync",
            "eval_episodes": 1,
        },
        run_name="hangs",
        runtime={"kind": "ray" if place == "ray" else "local"},
        explorer=explorers,
        sync={"style": style, **({} if style == "fixed" else {"max_staleness": 2})} if explorers else {},
        sinks={},
        persistence={"root_data_dir": str(root), "checkpoint_save_freq_steps": 100},
        loop={"axis": "env_steps", "env_steps": env_steps, "evaluate_every_steps": 500},
    )


def train(config: Any, root: Path) -> None:
    """Train, and note how many environment steps were made."""
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
    """Return when so many environment steps were made.

    Raises:
        RuntimeError: The training ended.
    """
    until = time.monotonic() + START_S
    while int((root / "progress").read_text() or 0) < steps:
        if process.poll() is not None or time.monotonic() > until:
            raise RuntimeError(f"the training made no steps: {log_of(root)[-1500:]}")
        time.sleep(0.01)


def log_of(root: Path) -> str:
    """Return what was printed."""
    return (root / "log").read_text(errors="replace")


@contextlib.contextmanager
def started(project: Path, root: Path, *given: Any) -> Iterator["subprocess.Popen[bytes]"]:
    """Start a training."""
    (root / "progress").write_text("")
    words = json.dumps([str(project), str(root), *given])
    with (root / "log").open("ab") as log:
        process = subprocess.Popen([sys.executable, __file__, "--child", words], stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def tried(project: Path, root: Path, place: str, style: str, kind: str, number: int, dice: random.Random) -> Any:
    """Let one training hang and stop; return how many seconds it took to end, and what is wrong."""
    root.mkdir()
    with started(project, root, place, style, kind, 10**9) as process:
        await_progress(process, root, dice.randrange(150, 900))
        (root / "hang").touch()
        until = time.monotonic() + START_S
        while not (root / "hangs").exists():
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"nothing took the file: {log_of(root)[-1500:]}")
            time.sleep(0.01)
        time.sleep(dice.choice([0.0, dice.uniform(0.0, 2.0), dice.uniform(0.0, 8.0)]))
        family = [process.pid, *(child.pid for child in psutil.Process(process.pid).children(recursive=True))]
        began = time.monotonic()
        process.send_signal(number)
        try:
            code = process.wait(60)
        except subprocess.TimeoutExpired:
            return 60.0, [f"it did not end within 60 s: {log_of(root)[-1500:]}"]
        took_s = time.monotonic() - began
    problems = [] if took_s <= LIMIT_S else [f"it took {took_s:.1f} s"]
    problems += judge(root, place, kind, code, 128 + number, family)
    problems += resumed(project, root, place, style, kind)
    return took_s, [f"{problem}: {log_of(root)[-1500:]}" for problem in problems]


def judge(root: Path, place: str, kind: str, code: int, expected: int, family: list[int]) -> list[str]:
    """Return what is wrong with a run that was stopped."""
    import trieye
    from trieye.files.run_record import RunRecord

    run_dir = next(root.glob("*/runs/hangs"))
    status, problems, told = RunRecord.read(run_dir / "run.json").status, [], log_of(root)
    was_killed = code == -signal.SIGKILL
    if code != expected and not (was_killed and kind in IN_C):
        problems.append(f"it ended with {code}, and not {expected}")
    if was_killed and "Hanging-v0 has not returned" not in told:
        problems.append("no message names the environment")
    step = trieye.load_checkpoint(run_dir, "latest").step
    if not was_killed:
        made = int((root / "progress").read_text())
        if status != "KILLED":
            problems.append(f"its status is {status}")
        if step < made:
            problems.append(f"{made} steps were made, and {step} are saved")
    until = time.monotonic() + (RAY_AGENTS_S if was_killed and place == "ray" else 10.0)
    while left := [pid for pid in family if psutil.pid_exists(pid) and is_alive(pid)]:
        if time.monotonic() > until:
            problems.append(f"processes were left behind: {left}")
            for pid in left:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            break
        time.sleep(0.1)
    return problems


def is_alive(pid: int) -> bool:
    """Tell whether a process is neither gone nor a zombie."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def resumed(project: Path, root: Path, place: str, style: str, kind: str) -> list[str]:
    """Return what is wrong with a run that is started again."""
    import trieye

    step = trieye.load_checkpoint(next(root.glob("*/runs/hangs")), "latest").step
    with started(project, root, place, style, kind, step + 200) as process:
        try:
            code = process.wait(START_S)
        except subprocess.TimeoutExpired:
            return ["it did not end after the resume"]
    return [] if code == 0 else [f"after the resume it ended with {code}"]


def cases(places: list[str], styles: list[str], kinds: list[str]) -> list[tuple[str, str, str]]:
    """Return place, style and kind of each case."""
    found: list[tuple[str, str, str]] = []
    for place in places:
        own = [kind for kind in kinds if place != "ray" or kind in {"sleep", "blocked_with_gil"}]
        own = own if place != "async" else [kind for kind in own if kind in {"sleep", "blocked_with_gil"}]
        found += itertools.product([place], styles if place in {"threads", "ray"} else ["fixed"], own)
    return found


def soak(root: Path, options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Run all tries and return what they took and what is wrong."""
    from trieye.cli.new import answers_of, bake

    project = bake(answers_of({"project_name": "My Agent"}), root)
    signals = [signal.Signals[name] for name in options.signals]
    plan = [
        (*case, number, attempt)
        for case in cases(options.places, options.styles, options.kinds)
        for number in signals
        for attempt in range(options.tries)
    ]
    took: dict[str, list[float]] = {}
    problems: list[str] = []
    lock = threading.Lock()

    def one(index: int) -> None:
        place, style, kind, number, _ = plan[index]
        dice = random.Random(f"{seed} {index}")
        try:
            took_s, found = tried(project, root / f"try{index}", place, style, kind, number, dice)
        except RuntimeError as error:
            took_s, found = 0.0, [str(error)]
        with lock:
            took.setdefault(f"{place} {kind}", []).append(round(took_s, 1))
            problems.extend(f"{place} {style} {kind} {number.name}: {problem}" for problem in found)
            said = "; ".join(re.sub(r"\s+", " ", problem)[:200] for problem in found)
            print(f"{place} {style} {kind} {number.name}: {took_s:.1f} s {said}", file=sys.stderr)

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(one, range(len(plan))))
    longest = {case: max(times) for case, times in took.items()}
    return {"tries": len(plan), "longest_s": longest, "problems": problems[:5], "num_problems": len(problems)}


def main() -> int:
    """Print one JSON line; the exit code says whether all is well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--tries", type=int, default=5, help="of each case and signal")
    parser.add_argument("--places", nargs="+", default=["own", "async", "threads", "ray"])
    parser.add_argument("--styles", nargs="+", choices=STYLES, default=list(STYLES))
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--signals", nargs="+", choices=["SIGINT", "SIGTERM"], default=["SIGINT", "SIGTERM"])
    parser.add_argument("--jobs", type=int, default=1, help="trainings at once; they take time from each other")
    parser.add_argument("--seed", type=int, default=None, help="of the moments")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        project, root, place, style, kind, env_steps = json.loads(options.child)
        sys.path.insert(0, project)
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in a background job of a shell
            signal.signal(signal.SIGINT, signal.default_int_handler)
        train(configure(Path(root), place, style, kind, env_steps), Path(root))
        return 0
    seed = random.randrange(2**32) if options.seed is None else options.seed
    with tempfile.TemporaryDirectory() as root:
        found = soak(Path(root), options, seed)
    met = not found["num_problems"]
    print(json.dumps({"benchmark": "hangs", **found, "seed": seed, "met": met}))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
