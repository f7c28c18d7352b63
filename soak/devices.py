"""Train the algorithms of the template on one device and resume on another, and optionally time each precision.

Without a GPU, it only repeats `training_kills`. After a resume on another device, the weights must equal the
checkpoint bit for bit, training must complete with finite weights on the new device, and one warning must state that
the resume is not bit-exact. `training_kills --device cuda` tests a bit-exact resume on the same device.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from itertools import permutations
from pathlib import Path
from typing import Any

import torch
from training_kills import CASES, configure, engine_of

import trieye
from trieye.checkpoints.store import CheckpointStore
from trieye.cli.new import answers_of, bake
from trieye.experiment.loop import run_alone

AGENTS = ("dqn", "ppo", "sac", "td3")
STEPS = 400
WARNING = "the resume is not bit-exact"
PRECISIONS: dict[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16": {"precision": "bfloat16"},
    "compiled": {"compile": True},
    "compiled, bfloat16": {"compile": True, "precision": "bfloat16"},
}


def config_of(root: Path, agent: str, run_name: str, device: str, **more: Any) -> Any:
    """Return a config; `more` overrides fields of the agent."""
    config = configure(root, agent, run_name, STEPS, device)
    return type(config).model_validate({**config.model_dump(), "agent": {**config.agent.model_dump(), **more}})


def saved_policy(config: Any) -> dict[str, torch.Tensor]:
    """Return the weights in the newest checkpoint of a run, on the CPU."""
    store = CheckpointStore(config.persistence.get_run_base_dir() / "checkpoints", read_only=True)
    state = store.load(store.entries()[-1].path)["objects"]["experiment"]["state"]
    return {name: tensor.cpu() for name, tensor in state["policy"].items()}


def train(config: Any, *, stop_at: int | None) -> dict[str, Any]:
    """Train, resume if there is a checkpoint, and return the observations.

    Args:
        config: Config of the run.
        stop_at: Environment steps after which the run saves and stops; None: train to completion.
    """
    import signal

    observed: dict[str, Any] = {}

    class Watched(engine_of(config)):  # type: ignore[misc]  # a class of the generated project
        def load_checkpoint(self, state: Any) -> None:
            expected = saved_policy(config)
            super().load_checkpoint(state)
            weights = {name: tensor.cpu() for name, tensor in self.policy.state_dict().items()}
            observed["same_weights"] = all(torch.equal(weights[name], tensor) for name, tensor in expected.items())
            observed["resumed_at"] = self.env_steps

        def step(self) -> Any:
            values = super().step()
            if stop_at is not None and self.env_steps >= stop_at:
                signal.raise_signal(signal.SIGTERM)
            observed["devices"] = sorted({parameter.device.type for parameter in self.policy.parameters()})
            observed["finite"] = all(bool(parameter.isfinite().all()) for parameter in self.policy.parameters())
            observed["env_steps"], observed["updates"] = self.env_steps, self.updates
            return values

    try:
        run_alone(Watched, config)
    except trieye.RunInterrupted:
        observed["stopped"] = True
    return observed


def updates_per_s(config: Any, *, warm_up_s: float = 15.0, measured_s: float = 10.0) -> float:
    """Return updates per second of an engine, after a warm-up."""
    engine = engine_of(config)(config)
    began = time.monotonic()
    while time.monotonic() - began < warm_up_s or engine.updates < 20:
        engine.advance()
    before, began = engine.updates, time.monotonic()
    while time.monotonic() - began < measured_s:
        engine.advance()
    if config.agent.device != "cpu":
        torch.cuda.synchronize()
    rate: float = (engine.updates - before) / (time.monotonic() - began)
    engine.cleanup()
    return rate


def run_child(project: Path, **arguments: Any) -> tuple[dict[str, Any], str]:
    """Run a child process; return its JSON line and its stderr."""
    command = [sys.executable, __file__, "--child", json.dumps({"project": str(project), **arguments})]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        return {"error": done.stderr[-600:]}, done.stderr
    return json.loads(done.stdout.strip().splitlines()[-1]), done.stderr


def child(arguments: dict[str, Any]) -> None:
    """Train or time in this process, and print the observations."""
    sys.path.insert(0, arguments["project"])
    torch.set_num_threads(1)
    # a separate root for each run, because a new run resumes from another run in the same root
    root = Path(arguments["project"]).parent / arguments["run_name"]
    config = config_of(
        root, arguments["agent"], arguments["run_name"], arguments["device"], **arguments.get("more", {})
    )
    print(
        json.dumps(
            updates_per_s(config) if arguments.get("is_timed") else train(config, stop_at=arguments.get("stop_at"))
        )
    )


def resume_across(project: Path, agent: str, saved_on: str, resumed_on: str) -> dict[str, Any]:
    """Train on one device and resume on another; return the observations and the problems."""
    run_name = f"{agent}_{saved_on}_{resumed_on}".replace(":", "")
    common = {"agent": agent, "run_name": run_name}
    first, _ = run_child(project, **common, device=saved_on, stop_at=STEPS // 2)
    second, output = run_child(project, **common, device=resumed_on)
    checks = {
        "the first attempt did not stop": first.get("stopped"),
        "did not resume": second.get("resumed_at", 0) >= STEPS // 2,
        "weights differ from the checkpoint": second.get("same_weights"),
        "weights are not finite": second.get("finite"),
        f"weights are not on {resumed_on}": second.get("devices") == [resumed_on.partition(":")[0]],
        "did not complete": second.get("env_steps", 0) >= STEPS,
        f"{output.count(WARNING)} warnings": output.count(WARNING) == 1,
    }
    problems = [problem for problem, is_right in checks.items() if not is_right]
    return {**second, "problems": problems, **({"first": first, "output": output[-500:]} if problems else {})}


def main() -> int:
    """Print one JSON line per resume and per timing; the exit code is 1 if there is a problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--devices", nargs="+", default=["cpu", "cuda"], help="devices; every ordered pair is tested")
    parser.add_argument("--agents", nargs="+", choices=AGENTS, default=list(AGENTS))
    parser.add_argument("--time", action="store_true", help="also time updates in each precision (2 minutes)")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(json.loads(options.child))
        return 0
    is_met = True
    with tempfile.TemporaryDirectory() as root:
        project = bake(answers_of({"project_name": "My Agent"}), Path(root))
        for agent in options.agents:
            for saved_on, resumed_on in permutations(options.devices, 2):
                observed = resume_across(project, agent, saved_on, resumed_on)
                is_met = is_met and not observed["problems"]
                line = {"agent": agent, "env": CASES[agent][1]["id"], "saved_on": saved_on, "resumed_on": resumed_on}
                print(json.dumps({"benchmark": "devices", **line, **observed}), flush=True)
        for device in options.devices if options.time else []:
            for name, more in PRECISIONS.items():
                shape = {"hidden_sizes": [1024, 1024], "batch_size": 1024, "updates_per_env_step": 1.0, **more}
                shape |= {"learning_starts": 1024}
                rate, _ = run_child(project, agent="dqn", run_name="timed", device=device, more=shape, is_timed=True)
                line = {"agent": "dqn", "device": device, "precision": name, "updates_per_s": rate}
                print(json.dumps({"benchmark": "devices", **line}), flush=True)
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
