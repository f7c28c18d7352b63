"""Inject NaN and infinity at random: no checkpoint may contain them, and the message must name their source.

Each training takes a few hundred environment steps with a small DQN or PPO in this process, or with explorers in
threads; `--ray` adds some with explorers in Ray. One value is replaced: an observation, the first observation of an
episode, a reward, the loss or the gradient of an update, a row for the replay, a priority, or a weight. Trainings that
stop must fail with the source in their message; the others must complete, report and count it.
"""

import argparse
import contextlib
import io
import json
import math
import os
import random
import re
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.numpy import load_file

sys.path.insert(0, str(Path(__file__).parents[1]))

import trieye
from tests.training.algorithms import DQN, PPO, TrainConfig
from trieye.experiment.loop import run_alone
from trieye.files.run_files import RunFiles
from trieye.history.table import read_history

ENVIRONMENT = ("observation", "reset", "reward")
UPDATE = ("loss", "gradient")
REPLAY = ("row", "priority")
MESSAGES = {
    "observation": r"the observation with {value} of environment \d+{owner}",
    "reset": r"the observation with {value} of environment \d+{owner}",
    "reward": r"the reward {value} of environment \d+{owner}",
    # the gradient of the Huber loss is finite for an infinite error: then the loss or the priority is reported
    "loss": r"gradient of policy\.\S+ is \S+ \(optimizer\).* in update {update} at environment step \d+"
    r"|\d+ of \d+ priorities are not finite|metric loss/td is {value}",
    "gradient": r"gradient of policy\.\S+ is \S+ \(optimizer\).* in update {update} at environment step \d+",
    "row": r"1 of \d+ rows for the replay have {value} in 'reward'",
    "priority": r"1 of \d+ priorities are not finite, the first {value}",
    "weight": r"(policy|target)\.\S+ is {value} at environment step \d+",
}
"""Pattern of the message for each source."""


if TYPE_CHECKING:
    EngineBase = trieye.TrainEngine[TrainConfig]
else:
    EngineBase = object


class Injector(EngineBase):
    """Mixin of an engine that injects `value` into `source` at the update or environment step `at`."""

    source: str = ""
    value: float = math.nan
    at: float = 0

    def train_step(self, batch: Any) -> Any:
        """Corrupt the loss, the gradient, a priority or a weight in one update."""
        is_due, handle, columns = self.updates == self.at, None, batch.data
        if is_due and self.source == "loss":
            name = "reward" if "next_obs" in columns else "returns"
            columns[name] = columns[name] * self.value
        if is_due and self.source == "gradient":
            weight = random.choice([p for n, p in self.policy.named_parameters() if n.startswith(("q", "pi"))])
            handle = weight.register_hook(lambda grad: torch.full_like(grad, self.value))
        metrics = super().train_step(batch)
        if handle is not None:
            handle.remove()
        if is_due and self.source == "priority":
            self.replay.update_priorities(batch.ids[:1], [self.value])
        if is_due and self.source == "weight":
            with torch.no_grad():
                random.choice(list(getattr(self, "target", self.policy).parameters())).view(-1)[0] = self.value
        return metrics

    def collect(self, steps: int | None = None) -> Any:
        """Corrupt a collected row."""
        rows = super().collect(steps)
        if self.source == "row" and self.env_steps >= self.at and rows.valid.any():
            self.at = math.inf
            rows.arrays["reward"][tuple(np.argwhere(rows.valid)[0])] = self.value
        return rows


class CorruptedDQN(Injector, DQN, policy=DQN.policy_class):
    """A DQN."""


class CorruptedPPO(Injector, PPO, policy=PPO.policy_class):
    """A PPO."""


def case(rng: random.Random, root: Path, number: int, *, ray: bool) -> tuple[Any, TrainConfig, dict[str, Any]]:
    """Return an engine class, its config, and the injection."""
    engine_class = rng.choice([CorruptedDQN, CorruptedPPO])
    is_dqn = engine_class is CorruptedDQN
    explorers = rng.choice([1, 2]) if ray else rng.choice([0, 0, 0, 1, 2])
    sources = [*ENVIRONMENT * 2, *UPDATE, "weight", *(REPLAY if is_dqn and not explorers else ())]
    source = rng.choice(ENVIRONMENT) if ray else rng.choice(sources)
    value, mode = rng.choice([math.nan, math.inf, -math.inf]), rng.choice(["stop", "skip", "warn"])
    num, normalizes = rng.choice([1, 2, 3]), rng.random() < 0.4
    at = {"reset": rng.randint(12, 14), "row": rng.randint(30, 100)}.get(source, rng.randint(40, 60))
    env = {
        "id": "tests.training.worlds:Spoiled-v0",
        "kwargs": {"target": source, "value": value, "at": at if source in ENVIRONMENT else 10**9},
        "num": num,
        "eval_episodes": 1,
        "normalize_observations": is_dqn and normalizes,
        "normalize_rewards": normalizes,
    }
    dqn = {"kind": "dqn", "rollout_steps": rng.choice([1, 4, 16]), "batch_size": 8, "learning_starts": 8}
    ppo = {"kind": "ppo", "rollout_steps": rng.choice([8, 32]), "batch_size": 16}
    replay = {"kind": rng.choice(["uniform", "prioritized"]), "n_step": rng.choice([1, 3]), "capacity": 500}
    steps = 160 * num * max(explorers, 1)
    config = TrainConfig(
        agent=dqn if is_dqn else ppo,
        env=env,
        **({"replay": replay} if is_dqn else {}),
        explorer={"num": explorers},
        run_name=f"run{number}",
        seed=rng.randrange(1 << 20),
        runtime={"kind": "ray" if ray else "local"},
        sinks={},
        persistence={"root_data_dir": str(root), "checkpoint_save_freq_steps": rng.choice([20, 50]), "keep_last": 3},
        loop={"axis": "env_steps", "steps": steps, "on_nonfinite": mode, "evaluate_every_steps": steps // 2},
    )
    return engine_class, config, {"source": source, "value": value, "mode": mode, "at": at, "explorers": explorers}


def run(number: int, seed: int, root: Path, *, ray: bool) -> dict[str, Any]:
    """Train once, and return the injection and its problem, if there is one."""
    rng = random.Random(f"{seed}-{number}")
    random.seed(f"{seed}-{number}")
    engine_class, config, injection = case(rng, root, number, ray=ray)
    engine = type(engine_class.__name__, (engine_class,), injection, policy=engine_class.policy_class)
    output = io.StringIO()
    error: trieye.TrieyeError | str | None = None
    with contextlib.redirect_stderr(output):
        try:
            run_alone(engine, config)
        except trieye.TrieyeError as raised:
            error = raised
        except Exception:  # noqa: BLE001 - `problem` judges any exception
            error = traceback.format_exc()
    return injection | {"problem": problem(config, injection, output.getvalue(), error)}


def problem(config: TrainConfig, injection: dict[str, Any], output: str, error: Any) -> str | None:
    """Return the problem of a training, or None."""
    files = RunFiles(config.persistence)
    owner = r" of explorer \d+" if injection["explorers"] else ""
    pattern = MESSAGES[injection["source"]].format(value=f"{injection['value']:g}", owner=owner, update=injection["at"])
    message = str(error) if error is not None else output
    if (error is not None) != (injection["mode"] == "stop" or injection["source"] == "weight"):
        return f"{'failed' if error is not None else 'did not stop'}: {message[-1500:]}"
    if not re.search(pattern, message):
        return f"no message matches {pattern!r}: {message[-1500:]}"
    if error is not None and (status := json.loads(files.run_record_path.read_text())["status"]) != "FAILED":
        return f"the status is {status}"
    if error is None and not any(name.startswith("nonfinite/") for name in _metrics(files.run_base_dir)):
        return "no metric counts the injection"
    return _bad_number(files.run_base_dir)


def _metrics(run_dir: Path) -> set[str]:
    return set(read_history(run_dir).to_pydict()["metric"])


def _bad_number(run_dir: Path) -> str | None:
    paths = [path for path in run_dir.rglob("*.safetensors") if "checkpoints" in path.parts or "parts" in path.parts]
    for path in paths:
        for name, array in load_file(path).items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                return f"{path.relative_to(run_dir)}: {name} is not finite"
    return None


def main() -> None:
    """Run the injections and print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--injections", type=int, default=1000)
    parser.add_argument("--ray", type=int, default=6, help="number of additional injections with explorers in Ray")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="run only the injection with this number")
    options = parser.parse_args()
    os.environ.setdefault("PYTHONPATH", str(Path(__file__).parents[1]))
    began, counts, problems = time.monotonic(), Counter[str](), []
    numbers = range(options.injections + options.ray) if options.only is None else [options.only]
    for number in numbers:
        with tempfile.TemporaryDirectory() as root:
            injection = run(number, options.seed, Path(root), ray=number >= options.injections)
        counts[f"{injection['source']}, {injection['mode']}"] += 1
        if injection["problem"] is not None:
            problems.append(f"injection {number} of seed {options.seed}: {injection}")
            print(problems[-1], file=sys.stderr)
    num_injections = sum(counts.values())
    figures = {
        "soak": "nonfinite",
        "injections": num_injections,
        "of": dict(sorted(counts.items())),
        "seconds_each": round((time.monotonic() - began) / num_injections, 2),
        "problems": len(problems),
        "met": not problems,
    }
    print(json.dumps(figures))
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
