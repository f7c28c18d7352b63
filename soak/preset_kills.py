"""Kill trainings of the presets of the project template at random moments, and compare each with an uninterrupted one.

Each preset trains shortly in its own environment. The killed training starts again after each kill; at the end,
weights, optimizers and evaluations must be equal bit for bit, unless the training has warned that its environments
cannot be saved within an episode. The libraries of all presets are in the environment of the reference tables (`make
reference`), which is created if it is missing.
"""

import argparse
import hashlib
import json
import random
import runpy
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SLUG = "my_agent"
DEADLINE_S = 300.0
INEXACT = "the resume is not exact"
"""Part of the warning of environments that cannot be saved within an episode, such as those of MuJoCo."""
OFF_POLICY = ("agent.learning_starts=200",)


@dataclass(frozen=True)
class Case:
    """A shortened preset.

    Attributes:
        steps: Environment steps of the training.
        save_every: Environment steps between two checkpoints.
        words: Further overrides.
    """

    steps: int
    save_every: int
    words: tuple[str, ...] = ()


CASES = {
    "dqn_cartpole": Case(30_000, 1000),
    "dqn_catch": Case(6000, 500, ("agent.updates_per_env_step=0.1",)),
    "dqn_minatar": Case(4000, 400, OFF_POLICY),
    "dqn_atari": Case(1600, 200, (*OFF_POLICY, "replay.capacity=2000")),
    "ppo_cartpole": Case(30_000, 1024),
    "ppo_pendulum": Case(30_000, 4096),
    "ppo_lunarlander": Case(24_576, 2048),
    "ppo_mujoco": Case(16_384, 2048),
    "ppo_minatar": Case(49_152, 8192),
    "ppo_atari": Case(6144, 1024),
    "recurrent_ppo_cartpole": Case(20_480, 1024),
    "sac_pendulum": Case(1500, 100, OFF_POLICY),
    "sac_mujoco": Case(1500, 100, (*OFF_POLICY, "replay.capacity=10000")),
    "td3_pendulum": Case(2000, 100, OFF_POLICY),
    "td3_mujoco": Case(2000, 100, (*OFF_POLICY, "replay.capacity=10000")),
}


class Training:
    """The training of a preset in a project.

    Args:
        python: Python of the environment.
        project: Directory of the project.
        preset: Name of the preset.
        name: Name of the run.
    """

    def __init__(self, python: Path, project: Path, preset: str, name: str) -> None:
        case = CASES[preset]
        self._project = project
        self._command = [
            str(python), "-m", f"{SLUG}.train", f"experiment={preset}", f"run_name={name}", "runtime=local", "sinks=[]",
            "progress_bar=false", "seed=7", f"loop.steps={case.steps}", f"loop.evaluate_every_steps={case.steps}",
            f"persistence.checkpoint_save_freq_steps={case.save_every}", "env.eval_episodes=2", *case.words,
        ]  # fmt: skip
        self.run_dir = project / ".trieye_data" / SLUG / "runs" / name

    def start(self) -> subprocess.Popen[bytes]:
        """Start or resume the training."""
        log = self.log_path.open("ab")
        return subprocess.Popen(self._command, cwd=self._project, stdout=log, stderr=log)

    @property
    def log_path(self) -> Path:
        """File of its output."""
        return self._project / f"{self.run_dir.name}.log"

    @property
    def log(self) -> str:
        """The last lines of its output."""
        return self.log_path.read_text()[-1500:]

    def checkpoints(self) -> set[str]:
        """Return the names of its checkpoints."""
        return {path.name for path in (self.run_dir / "checkpoints").glob("checkpoint_step_*")}

    def digest(self) -> str:
        """Return the SHA-256 digest of weights and optimizers at the end."""
        return hashlib.sha256((self.run_dir / "checkpoints/latest.pkl/state.safetensors").read_bytes()).hexdigest()

    def evaluations(self) -> list[tuple[int, float]]:
        """Return step and return of each evaluation."""
        from trieye.results import load

        series = load(self.run_dir).series(["eval/return"])[0]
        return list(zip(series.steps.tolist(), series.values.tolist(), strict=True))


def killed(training: Training, kills: int, generator: random.Random) -> int:
    """Run a training to its end with kills after new checkpoints; return the number of kills.

    Raises:
        RuntimeError: The training failed, or made no checkpoint in time.
    """
    done = 0
    while True:
        before, process, deadline = training.checkpoints(), training.start(), time.monotonic() + DEADLINE_S
        while done < kills and process.poll() is None and not training.checkpoints() - before:
            if time.monotonic() > deadline:
                process.kill()
                raise RuntimeError(f"no new checkpoint within {DEADLINE_S:.0f} s: {training.log}")
            time.sleep(0.02)
        if done < kills and process.poll() is None:
            time.sleep(generator.uniform(0.0, 0.5))
        if done < kills and process.poll() is None:
            process.kill()
            process.wait()
            done += 1
            continue
        if process.wait(DEADLINE_S) != 0:
            raise RuntimeError(training.log)
        return done


def compare(python: Path, project: Path, preset: str, kills: int, generator: random.Random) -> dict[str, Any]:
    """Train a preset twice, and return whether the results are equal."""
    whole = Training(python, project, preset, f"{preset}_whole")
    if whole.start().wait(DEADLINE_S) != 0:
        raise RuntimeError(whole.log)
    other = Training(python, project, preset, f"{preset}_killed")
    num = killed(other, kills, generator)
    is_equal = whole.digest() == other.digest() and whole.evaluations() == other.evaluations()
    is_exact = INEXACT not in other.log_path.read_text()
    return {"soak": "preset_kills", "preset": preset, "kills": num, "equal": is_equal, "claims_exactness": is_exact}


def main() -> None:
    """Compare the presets, print a line of JSON for each, and exit with 1 if one differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--kills", type=int, default=5, help="kills of each training (default: 5)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments of the kills")
    options = parser.parse_args()
    python: Path = runpy.run_path(str(ROOT / "benchmarks/reference/run.py"))["environment"]()
    generator, problems = random.Random(options.seed), 0
    with tempfile.TemporaryDirectory() as directory:
        new = [str(python), "-m", "trieye.cli", "new", SLUG, "--no-input", "--ci", "none", "-o", directory]
        subprocess.run(new, check=True, stdout=subprocess.DEVNULL)
        for preset in options.presets:
            outcome = compare(python, Path(directory) / SLUG, preset, options.kills, generator)
            problems += outcome["claims_exactness"] and not outcome["equal"]
            print(json.dumps(outcome), flush=True)
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
