"""Account for every environment step of explorers, in any order of their results.

A seeded scheduler runs explorers in this process, in virtual time: fragments and their results take random times, so
results overtake each other. Some seeds kill explorers, raise exceptions in environments, lose results, and resume with
other numbers of explorers, intervals and fragments in flight. `fragments_in_ray.py` tests the same with processes.

The environments count their steps in a file. Without faults, every step must be counted exactly once and none dropped;
a fault loses at most the fragments in flight. No row of a replay may span an interruption.
"""

# ruff: noqa: SLF001 - only private attributes of the explorer group show the fragments in flight

import argparse
import heapq
import json
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal

import gymnasium as gym
import numpy as np
import torch
from pydantic import Field

import trieye
from trieye.snapshot.parts import SavedParts
from trieye.training.exploring.explorer import Explorer, FragmentResult

STYLES = ("fixed", "trainer_driven", "explorer_driven", "fully_async")
FAULTS = ("kill", "raise", "hang")
N_STEP = 3
HANG_S = 0.5


class Steps(gym.Env[Any, Any]):
    """Appends a byte to a file at each step; observations contain two random numbers per episode, and the step."""

    action_space = gym.spaces.Discrete(2)

    fails_in: ClassVar[int] = 0
    """Steps until an environment of this process raises an exception; 0: never."""
    is_counted: ClassVar[bool] = True
    """False in a process that only checks environments."""

    def __init__(self, path: str, longest: int = 40, width: int = 3) -> None:
        self._path, self._longest = path, longest
        self.observation_space = gym.spaces.Box(0.0, 2.0**24, (width,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode with a random identity."""
        super().reset(seed=seed, options=options)
        self._episode = self.np_random.integers(1 << 24, size=2)
        self._length, self._at = int(self.np_random.integers(1, self._longest)), 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Count the step, and raise an exception if one is scheduled."""
        del action
        if Steps.is_counted:
            os.write(descriptor_of(self._path), b".")
        self._at += 1
        if Steps.fails_in:
            Steps.fails_in -= 1
            if not Steps.fails_in:
                raise ZeroDivisionError("injected fault")
        return self._obs(), 1.0, self._at >= self._length, False, {}

    def _obs(self) -> Any:
        obs = np.zeros(self.observation_space.shape or (), np.float32)
        obs[:3] = (*self._episode, self._at)
        return obs


@cache
def descriptor_of(path: str) -> int:
    """Return the descriptor of the file that counts steps, opened once per process."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def make_steps(**kwargs: Any) -> Steps:
    """Return an environment."""
    return Steps(**kwargs)


gym.register("CountedSteps-v0", make_steps)


class Agent(trieye.AgentConfig):
    """Config of `Rows`, which does not learn."""

    kind: Literal["rows"] = "rows"
    actions = ("discrete",)
    engine: str = "fragments:Rows"


class ReplayAgent(trieye.ReplayAgentConfig):
    """Config of `Replay`, which does not learn."""

    kind: Literal["replay"] = "replay"
    actions = ("discrete",)
    engine: str = "fragments:Replay"
    learning_starts: int = 20
    updates_per_env_step: float = 0.2


class Config(trieye.TrainingConfig):
    """Config of these trainings."""

    agent: trieye.AgentConfig = Field(default_factory=Agent)


class ConstantPolicy(trieye.Policy):
    """Always takes action 0."""

    def __init__(self, config: Any, spaces: Any) -> None:
        super().__init__(config, spaces)
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def act(self, obs: Any, state: Any, ctx: Any) -> trieye.Act:
        """Return zeros."""
        del state, ctx
        return trieye.Act(torch.zeros(len(obs), dtype=torch.int64))


class Rows(trieye.TrainEngine[Config], policy=ConstantPolicy):
    """Counts rows that arrive more than once."""

    def setup(self, config: Config) -> None:
        """Start without rows."""
        del config
        self._seen: set[tuple[float, ...]] = set()
        self._num_repeated = 0

    def step(self) -> dict[str, float]:
        """Collect."""
        rows = self.collect()
        identities = [tuple(row) for row in rows.arrays["obs"][rows.valid][:, :3].tolist()]
        self._num_repeated += len(identities) - len(set(identities) - self._seen)
        self._seen.update(identities)
        return {}


class Replay(trieye.TrainEngine[Config], policy=ConstantPolicy):
    """Counts rows of a replay that span two episodes."""

    def setup(self, config: Config) -> None:
        """Start with a count of zero."""
        del config
        self._num_spanning = 0

    def step(self) -> dict[str, float]:
        """Collect and sample."""
        self.replay.extend(self.collect())
        for batch in self.due_batches():
            self._num_spanning += num_spanning_rows(batch)
        return {}


def num_spanning_rows(batch: Any) -> int:
    """Return how many n-step rows span two episodes."""
    before, after = batch["obs"].numpy(), batch["next_obs"].numpy()
    steps = after[:, 2] - before[:, 2]
    return int(np.count_nonzero((before[:, :2] != after[:, :2]).any(1) | (steps < 1) | (steps > N_STEP)))


class Scheduler:
    """A pool of explorers whose results arrive in virtual time, each after a random delay.

    Args:
        dice: Generator of durations, delays and faults.
        faults: Kinds of faults to inject.
    """

    def __init__(self, dice: random.Random, faults: tuple[str, ...]) -> None:
        self._dice, self._faults = dice, faults
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._changed, self._turn = threading.Condition(), threading.Lock()
        self._spread = dice.choice([0.0, 0.5, 3.0])
        self._is_closed = self._is_learner_waiting = False
        self.now, self._num_events = 0.0, 0
        self.settle: Callable[[], None] = lambda: None
        self.may_fail: Callable[[], bool] = lambda: False
        self._thread = threading.Thread(target=self._run, name="scheduler", daemon=True)
        self._thread.start()

    def start(self, task: Any, index: int, incarnation: int) -> "ScheduledWorker":
        """Start an explorer (see `ExplorerPool`)."""
        return ScheduledWorker(self, Explorer(task, index, incarnation))

    def after(self, delay: float, act: Callable[[], None]) -> None:
        """Call a function after a delay."""
        with self._changed:
            self._num_events += 1
            heapq.heappush(self._events, (self.now + delay, self._num_events, act))
            self._changed.notify_all()

    def duration(self, mean: float) -> float:
        """Return a random duration."""
        return self._dice.expovariate(1.0 / mean)

    def random_step(self, steps: int) -> int:
        """Return a random step of a fragment."""
        return self._dice.randint(1, steps)

    @property
    def has_faults(self) -> bool:
        """Whether explorers may fail; a busy machine then exceeds their short time limit, too."""
        return bool(self._faults)

    @property
    def delay(self) -> float:
        """A random delay of a result."""
        return self._spread * self._dice.random()

    def fault(self) -> str | None:
        """Return the fault to inject into a fragment, or None."""
        if not self._faults or not self.may_fail() or self._dice.random() > 0.05:
            return None
        return self._dice.choice(self._faults)

    @contextmanager
    def waiting_learner(self) -> Iterator[None]:
        """Advance time while the learner waits for explorers."""
        self._set_waiting(is_learner_waiting=True)
        try:
            yield
        finally:
            self._set_waiting(is_learner_waiting=False)

    def _set_waiting(self, *, is_learner_waiting: bool) -> None:
        with self._changed:
            self._is_learner_waiting = is_learner_waiting
            self._changed.notify_all()

    def work(self, seconds: float) -> None:
        """Advance time while the learner works."""
        until = self.now + seconds
        while self._step(until):
            pass
        self.now = max(self.now, until)

    def close(self) -> None:
        """Stop the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()

    def _step(self, until: float) -> bool:
        with self._turn:  # the learner and the thread take turns
            with self._changed:
                if not self._events or self._events[0][0] > until:
                    return False
                self.now, _, act = heapq.heappop(self._events)
            act()
            self.settle()
        return True

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed or (self._is_learner_waiting and bool(self._events)))
                if self._is_closed:
                    return
            self._step(float("inf"))


class ScheduledWorker:
    """An explorer with delayed results."""

    def __init__(self, scheduler: Scheduler, explorer: Explorer) -> None:
        self._scheduler, self._explorer = scheduler, explorer
        self._free_at = 0.0
        self._pending: list[Future[Any]] = []
        self._is_killed = self._hangs = False

    def find(self) -> "Future[str]":
        """Return the name of the machine (see `WorkerHandle`)."""
        return completed("here")

    def begin(self, method: str, *values: Any) -> "Future[Any]":
        """Call a method (see `WorkerHandle`)."""
        if method != "rollout":
            return completed(getattr(self._explorer, method)(*values))
        future: Future[Any] = Future()
        self._pending.append(future)
        starts_at = max(self._free_at, self._scheduler.now)
        self._free_at = starts_at + self._scheduler.duration(1.0)
        self._scheduler.after(self._free_at - self._scheduler.now, lambda: self._collect(values[0], future))
        return future

    def tell(self, method: str, *values: Any) -> None:
        """Call a method before the current fragment, which is collected at its end (see `WorkerHandle`)."""
        if not (self._is_killed or self._hangs):
            getattr(self._explorer, method)(*values)

    def _collect(self, assignment: Any, future: "Future[Any]") -> None:
        if self._is_killed or self._hangs:
            return
        fault = self._scheduler.fault()
        self._hangs = fault == "hang"
        if self._hangs:
            return
        Steps.is_counted = True  # steps of the environment checker are not
        Steps.fails_in = self._scheduler.random_step(assignment.steps) if fault == "raise" else 0
        try:
            result: FragmentResult | Exception = self._explorer.rollout(assignment)
        except Exception as error:  # noqa: BLE001 - the environment may raise any exception
            result = error
        Steps.is_counted = False
        if fault == "kill":
            self._fail(ConnectionError("the process was killed"))
        else:
            self._scheduler.after(self._scheduler.delay, lambda: self._complete(future, result))

    def _complete(self, future: "Future[Any]", result: FragmentResult | Exception) -> None:
        if future in self._pending:
            self._pending.remove(future)
            future.set_exception(result) if isinstance(result, Exception) else future.set_result(result)

    def _fail(self, error: Exception) -> None:
        pending, self._pending = self._pending, []
        for future in pending:
            future.set_exception(error)

    def kill(self) -> None:
        """Kill the explorer (see `WorkerHandle`)."""
        self._is_killed = True


def completed(value: Any) -> "Future[Any]":
    """Return a completed future."""
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def draw_config(dice: random.Random, root: Path, *, is_replay: bool, style: str) -> dict[str, Any]:
    """Return the parts of a config that do not change on resume."""
    env = {"id": "CountedSteps-v0", "num": dice.choice([1, 2]), "kwargs": {"path": str(root / "steps")}}
    replay = {"n_step": N_STEP, "capacity": 4096} if is_replay else {}
    return {
        "agent": {"kind": "replay" if is_replay else "rows", "batch_size": 16, "rollout_steps": dice.choice([1, 3])},
        "env": env,
        "replay": replay,
        "run_name": "counted",
        "runtime": {"kind": "local"},
        "sinks": {},
        "persistence": {"root_data_dir": str(root)},
        "loop": {"axis": "env_steps"},
        "seed": dice.randrange(1000),
        "sync": {"style": style, "max_staleness": dice.choice([0, 1, 2])},
    }


def random_config(dice: random.Random, parts: dict[str, Any], *, fails: bool) -> Config:
    """Return a config with random values of the keys that may change on resume."""
    explorer: dict[str, Any] = {"num": dice.choice([1, 2, 4, 8]), "max_in_flight": dice.choice([1, 2, 3])}
    explorer |= {"max_restarts": 1000, "restart_backoff_s": 0.001, "fragment_timeout_s": HANG_S if fails else 300.0}
    sync = {**parts["sync"], "interval": dice.choice([1, 2, 4])}
    sync |= {"offset": dice.choice([0, 1, 2])} if sync["style"] == "fixed" else {}
    return Config.model_validate({**parts, "explorer": explorer, "sync": sync})


def run_seed(seed: int, root: Path, *, steps: int) -> list[str]:
    """Run up to three attempts of a training, which resume from each other, and return the problems."""
    dice = random.Random(seed)
    style, is_replay = dice.choice(STYLES), dice.random() < 0.3
    faults = FAULTS if dice.random() < 0.3 else ()
    parts = draw_config(dice, root, is_replay=is_replay, style=style)
    state: Any = None
    problems: list[str] = []
    seen: set[Any] = set()
    for _ in range(dice.choice([1, 2, 3])):
        config = random_config(dice, parts, fails=bool(faults))
        engine: Any = (Replay if is_replay else Rows)(config)
        scheduler = engine._row_source._group._pool = Scheduler(dice, faults)
        engine._seen = seen
        try:
            own_problems, state = attempt(engine, scheduler, state, steps)
        finally:
            engine.cleanup()
            scheduler.close()
        problems += [
            f"seed {seed} ({config.sync.style}, {config.explorer.num} explorers): {problem}" for problem in own_problems
        ]
    return problems


def parts_of(incremental: Any) -> SavedParts:
    """Return incremental state as a checkpoint stores it."""
    state_parts = incremental.state_parts(())
    return SavedParts(state_parts.state, tuple(state_parts.new), state_parts.new)


def attempt(engine: Any, scheduler: Scheduler, state: Any, steps: int) -> tuple[list[str], Any]:
    """Train for `steps` steps, and return the problems and the state to resume from."""
    source, group = engine._row_source, engine._row_source._group
    if state is not None:
        source.load_state_dict(state["source"])
        if engine.replay is not None:
            engine.replay.load_state_dict(state["replay"])

    lost_before = group.lost

    def settle() -> None:
        is_processed = threading.Event()
        group._events.put(is_processed.set)
        if group._thread.is_alive():
            is_processed.wait(5.0)

    scheduler.settle, scheduler.may_fail = settle, lambda: group._has_delivered
    for _ in range(steps):
        with scheduler.waiting_learner():
            engine.step()
        scheduler.work(scheduler.duration(0.5))
        source.learned()
    with scheduler.waiting_learner():
        saved = source.state_dict()
    if "buffer" in saved["inbox"]:
        saved["inbox"]["buffer"] = parts_of(saved["inbox"]["buffer"])
    problems = problems_of(engine, saved, engine.config.agent.rollout_steps * engine.config.env.num)
    if group.lost > lost_before and not scheduler.has_faults:  # its time limit is half a second, else 300
        problems.append(f"{group.lost - lost_before} fragments are reported lost without a fault")
    return problems, {"source": saved, "replay": None if engine.replay is None else parts_of(engine.replay)}


def problems_of(engine: Any, saved: Any, size: int) -> list[str]:
    """Return the problems of the counters of a training with fragments of `size` steps."""
    num_queued = sum(report["env_steps"] for report in saved["inbox"]["reports"])
    missing = Path(engine.config.env.kwargs["path"]).stat().st_size - saved["env_steps"] - num_queued
    problems = []
    if not 0 <= missing <= saved["lost"] * size:
        problems.append(f"{missing} steps are missing, and {saved['lost']} fragments of {size} are reported lost")
    metrics = engine._row_source.metrics()
    if dropped := {name: value for name, value in metrics.items() if name.startswith("replay/dropped") and value}:
        problems.append(f"dropped: {dropped}")
    if num := getattr(engine, "_num_repeated", 0):
        problems.append(f"{num} rows arrived twice")
    if num := getattr(engine, "_num_spanning", 0):
        problems.append(f"{num} rows of the replay span an interruption")
    return problems


def main() -> int:
    """Print one JSON line; exit with 1 if there is a problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--steps", type=int, default=12, help="learner steps of each attempt")
    options = parser.parse_args()
    problems: list[str] = []
    Steps.is_counted = False
    began = time.process_time()
    for seed in range(options.first, options.first + options.seeds):
        with tempfile.TemporaryDirectory() as root:
            descriptor_of.cache_clear()
            problems += run_seed(seed, Path(root), steps=options.steps)
    seconds = (time.process_time() - began) / options.seeds
    figures = {"benchmark": "fragments", "seeds": options.seeds, "cpu_s_per_seed": round(seconds, 4)}
    print(json.dumps({**figures, "problems": problems[:10], "num": len(problems), "met": not problems}))
    return 0 if not problems else 1


if __name__ == "__main__":
    sys.exit(main())
