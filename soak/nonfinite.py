"""Inject NaN and infinity at random: no checkpoint holds any, and the message names where it came from.

Each training is a few hundred environment steps of a small DQN or PPO in this process, or with explorers in threads;
`--ray` adds some with explorers in Ray. One thing is spoiled: an observation, the first observation of an episode, a
reward, the loss or the gradient of an update, a row on its way into the replay, a priority, or a weight. Trainings that
stop have to fail with the source in their message; the others have to finish, report it, and count it.
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
from typing import Any

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
NAMES = {
    "observation": r"the observation with {value} of environment \d+{owner}",
    "reset": r"the observation with {value} of environment \d+{owner}",
    "reward": r"the reward {value} of environment \d+{owner}",
    # Huber's gradient of an infinite error is finite: then the loss, or the priority, is what is found
    "loss": r"gradient of policy\.\S+ is \S+ \(optimizer\).* in update {update} at environment step \d+"
    r"|\d+ of \d+ priorities are not finite|metric loss/td is {value}",
    "gradient": r"gradient of policy\.\S+ is \S+ \(optimizer\).* in update {update} at environment step \d+",
    "row": r"1 of \d+ rows for the replay have {value} in 'reward'",
    "priority": r"1 of \d+ priorities are not finite, the first {value}",
    "weight": r"(policy|target)\.\S+ is {value} at environment step \d+",
}
"""What the message says of each source."""


class Spoils:
    """An engine that spoils what is its own."""

    what, value, at = "", math.nan, 0

    def train_step(self, batch: Any) -> Any:
        """Spoil the loss, the gradient, a priority or a weight in one update."""
        is_turn, handle, held = self.updates == self.at, None, batch.data
        if is_turn and self.what == "loss":
            name = "reward" if "next_obs" in held else "returns"
            held[name] = held[name] * self.value
        if is_turn and self.what == "gradient":
            weight = random.choice([p for n, p in self.policy.named_parameters() if n.startswith(("q", "pi"))])
            handle = weight.register_hook(lambda grad: torch.full_like(grad, self.value))
        found = super().train_step(batch)
        if handle is not None:
            handle.remove()
        if is_turn and self.what == "priority":
            self.replay.update_priorities(batch.ids[:1], [self.value])
        if is_turn and self.what == "weight":
            with torch.no_grad():
                random.choice(list(getattr(self, "target", self.policy).parameters())).view(-1)[0] = self.value
        return found

    def collect(self, steps: int | None = None) -> Any:
        """Spoil a row after it was collected."""
        rows = super().collect(steps)
        if self.what == "row" and self.env_steps >= self.at and rows.valid.any():
            self.at = math.inf
            rows.arrays["reward"][tuple(np.argwhere(rows.valid)[0])] = self.value
        return rows


class SpoiledDQN(Spoils, DQN, policy=DQN.policy_class):
    """A DQN."""


class SpoiledPPO(Spoils, PPO, policy=PPO.policy_class):
    """A PPO."""


def case(rng: random.Random, root: Path, number: int, *, ray: bool) -> tuple[type, TrainConfig, dict[str, Any]]:
    """Return an engine, its config, and what is spoiled."""
    engine_class = rng.choice([SpoiledDQN, SpoiledPPO])
    is_dqn = engine_class is SpoiledDQN
    explorers = rng.choice([1, 2]) if ray else rng.choice([0, 0, 0, 1, 2])
    sources = [*ENVIRONMENT * 2, *UPDATE, "weight", *(REPLAY if is_dqn and not explorers else ())]
    what = rng.choice(ENVIRONMENT) if ray else rng.choice(sources)
    value, mode = rng.choice([math.nan, math.inf, -math.inf]), rng.choice(["stop", "skip", "warn"])
    num, normalizes = rng.choice([1, 2, 3]), rng.random() < 0.4
    at = {"reset": rng.randint(12, 14), "row": rng.randint(30, 100)}.get(what, rng.randint(40, 60))
    env = {
        "id": "tests.training.worlds:Spoiled-v0",
        "kwargs": {"target": what, "value": value, "at": at if what in ENVIRONMENT else 10**9},
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
    return engine_class, config, {"what": what, "value": value, "mode": mode, "at": at, "explorers": explorers}


def run(number: int, seed: int, root: Path, *, ray: bool) -> dict[str, Any]:
    """Train once, and return what was spoiled and what is wrong, if anything is."""
    rng = random.Random(f"{seed}-{number}")
    random.seed(f"{seed}-{number}")
    engine_class, config, told = case(rng, root, number, ray=ray)
    spoiled = type(engine_class.__name__, (engine_class,), told, policy=engine_class.policy_class)
    output, error = io.StringIO(), None
    with contextlib.redirect_stderr(output):
        try:
            run_alone(spoiled, config)
        except trieye.TrieyeError as raised:
            error = raised
        except Exception:  # noqa: BLE001 - the judgment is below
            error = traceback.format_exc()
    return told | {"problem": problem(config, told, output.getvalue(), error)}


def problem(config: TrainConfig, told: dict[str, Any], output: str, error: Any) -> str | None:
    """Return what a training did that it must not do."""
    files = RunFiles(config.persistence)
    owner = r" of explorer \d+" if told["explorers"] else ""
    named = NAMES[told["what"]].format(value=f"{told['value']:g}", owner=owner, update=told["at"])
    message = str(error) if error is not None else output
    if (error is not None) != (told["mode"] == "stop" or told["what"] == "weight"):
        return f"{'it failed' if error is not None else 'it did not stop'}: {message[-1500:]}"
    if not re.search(named, message):
        return f"nothing says {named!r}: {message[-1500:]}"
    if error is not None and (status := json.loads(files.run_record_path.read_text())["status"]) != "FAILED":
        return f"its status is {status}"
    if error is None and not any(name.startswith("nonfinite/") for name in _metrics(files.run_base_dir)):
        return "no metric counts it"
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
    """Inject as often as asked for, and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--injections", type=int, default=1000)
    parser.add_argument("--ray", type=int, default=6, help="as many more with explorers in Ray")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="the injection of this number alone")
    options = parser.parse_args()
    os.environ.setdefault("PYTHONPATH", str(Path(__file__).parents[1]))
    began, counts, problems = time.monotonic(), Counter[str](), []
    numbers = range(options.injections + options.ray) if options.only is None else [options.only]
    for number in numbers:
        with tempfile.TemporaryDirectory() as root:
            told = run(number, options.seed, Path(root), ray=number >= options.injections)
        counts[f"{told['what']}, {told['mode']}"] += 1
        if told["problem"] is not None:
            problems.append(f"injection {number} of seed {options.seed}: {told}")
            print(problems[-1], file=sys.stderr)
    num_done = sum(counts.values())
    figures = {
        "soak": "nonfinite",
        "injections": num_done,
        "of": dict(sorted(counts.items())),
        "seconds_each": round((time.monotonic() - began) / num_done, 2),
        "problems": len(problems),
        "met": not problems,
    }
    print(json.dumps(figures))
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
