"""Sweep unchanged Hydra programs that do not import trieye, and kill the driver repeatedly.

The programs follow public documentation: the composition and structured-config examples of Hydra, a plain script, a
project in the layout of lightning-hydra-template, and a torch loop in the style of TorchRL. A Hydra callback records
job, process, start and end in a file. At the end, every job must be completed, no two processes of a job may have
overlapped, and none may have started after the job was completed. Both backends are tested.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]  # stubs would be one more package
from relaunch_kills import DEADLINE_S, STEPS, Driver, await_starts, completed, num_starts, problems, read_events

RECORDER = """
import json, os, random, time
from pathlib import Path
from hydra.experimental.callback import Callback

EVENTS = Path(__file__).with_name("events.jsonl")


def ticks(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return None


class Recorder(Callback):
    def record(self, config, kind, **fields):
        fields |= {"job": config.hydra.job.num, "kind": kind, "pid": os.getpid(), "at": time.monotonic()}
        with EVENTS.open("a") as file:
            file.write(json.dumps({**fields, "ticks": ticks(os.getpid())}) + chr(10))

    def on_job_start(self, config, **kwargs):
        events = [json.loads(line) for line in EVENTS.read_text().splitlines()] if EVENTS.exists() else []
        own = [event for event in events if event["job"] == config.hydra.job.num]
        ended = [event["pid"] for event in own if event["kind"] == "end"]
        alive = [event["pid"] for event in own if event["pid"] not in ended and ticks(event["pid"]) == event["ticks"]]
        self.record(config, "start", alive=alive)
        time.sleep(random.uniform(0.1, 1.0))  # simulates a longer job

    def on_job_end(self, config, job_return, **kwargs):
        self.record(config, "end", done=DONE)
"""
COMPOSITION = {
    "my_app.py": """
from omegaconf import DictConfig, OmegaConf
import hydra


@hydra.main(version_base=None, config_path="conf", config_name="config")
def my_app(cfg: DictConfig) -> None:
    print(OmegaConf.to_yaml(cfg))


if __name__ == "__main__":
    my_app()
""",
    "conf/config.yaml": "defaults:\n  - schema: school\n  - db: mysql\n  - ui: full\n",
    "conf/db/mysql.yaml": "driver: mysql\nuser: omry\npassword: secret\ntimeout: 10\n",
    "conf/db/postgresql.yaml": "driver: postgresql\nuser: postgres_user\npassword: drowssap\ntimeout: 10\n",
    "conf/schema/school.yaml": "database: school\n",
    "conf/schema/support.yaml": "database: support\n",
    "conf/schema/warehouse.yaml": "database: warehouse\n",
    "conf/ui/full.yaml": "windows:\n  create_db: true\n  view: true\n",
    "conf/ui/view.yaml": "windows:\n  create_db: false\n  view: true\n",
}
STRUCTURED = {
    "my_app.py": """
from dataclasses import dataclass, field
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from omegaconf import MISSING


@dataclass
class MySQLConfig:
    driver: str = "mysql"
    host: str = "localhost"
    port: int = 3306


@dataclass
class PostGreSQLConfig:
    driver: str = "postgresql"
    host: str = "localhost"
    port: int = 5432
    timeout: int = 10


@dataclass
class Config:
    defaults: list[Any] = field(default_factory=lambda: [{"db": "mysql"}])
    db: Any = MISSING


cs = ConfigStore.instance()
cs.store(group="db", name="mysql", node=MySQLConfig)
cs.store(group="db", name="postgresql", node=PostGreSQLConfig)
cs.store(name="config", node=Config)


@hydra.main(version_base=None, config_name="config")
def my_app(cfg: Config) -> int:
    assert hydra.utils.instantiate({"_target_": "builtins.int", "_args_": [cfg.db.port]}) == cfg.db.port
    return cfg.db.port


if __name__ == "__main__":
    my_app()
""",
}
PLAIN = {
    "my_app.py": """
import random

import hydra


def inside(seed, num):
    generator = random.Random(seed)
    return sum(generator.random() ** 2 + generator.random() ** 2 < 1 for _ in range(num))


@hydra.main(version_base="1.3", config_path=None)
def main(cfg):
    return 4 * inside(cfg.seed, cfg.num) / cfg.num


if __name__ == "__main__":
    main()
""",
}
LIGHTNING_LIKE = {
    ".project-root": "",
    "src/__init__.py": "",
    "src/models/__init__.py": "",
    "src/models/module.py": """
import random


class Module:
    def __init__(self, lr, hidden):
        self.lr, self.hidden, self.loss = lr, hidden, 1.0

    def training_step(self):
        self.loss *= 1 - self.lr * random.random()
        return self.loss
""",
    "src/trainer.py": """
class Trainer:
    def __init__(self, max_epochs, default_root_dir):
        self.max_epochs, self.default_root_dir = max_epochs, default_root_dir

    def fit(self, model):
        for _ in range(self.max_epochs):
            loss = model.training_step()
        return {"val/loss": loss}
""",
    "src/train.py": """
import random
import sys
from pathlib import Path

import hydra
from omegaconf import DictConfig

sys.path.insert(0, str(Path(__file__).parents[1]))  # as rootutils.setup_root does


def train(cfg: DictConfig):
    random.seed(cfg.seed)
    model = hydra.utils.instantiate(cfg.model)
    trainer = hydra.utils.instantiate(cfg.trainer)
    return trainer.fit(model), {"cfg": cfg, "model": model, "trainer": trainer}


@hydra.main(version_base="1.3", config_path="../configs", config_name="train.yaml")
def main(cfg: DictConfig):
    metric_dict, _ = train(cfg)
    return metric_dict[cfg.optimized_metric]


if __name__ == "__main__":
    main()
""",
    "configs/train.yaml": """
defaults:
  - _self_
  - model: default
  - trainer: default
  - paths: default
  - hydra: default
  - optional local: default
task_name: train
optimized_metric: val/loss
seed: 1
""",
    "configs/model/default.yaml": "_target_: src.models.module.Module\nlr: 0.1\nhidden: 64\n",
    "configs/trainer/default.yaml": "_target_: src.trainer.Trainer\nmax_epochs: 10\n"
    "default_root_dir: ${paths.output_dir}\n",
    "configs/paths/default.yaml": "root_dir: ${oc.env:PWD}\nlog_dir: ${paths.root_dir}/logs/\n"
    "output_dir: ${hydra:runtime.output_dir}\nwork_dir: ${hydra:runtime.cwd}\n",
    "configs/hydra/default.yaml": """
run:
  dir: ${paths.log_dir}/${task_name}/runs/${now:%Y-%m-%d}_${now:%H-%M-%S}
sweep:
  dir: ${paths.log_dir}/${task_name}/multiruns/${now:%Y-%m-%d}_${now:%H-%M-%S}
  subdir: ${hydra.job.num}
job_logging:
  handlers:
    file:
      filename: ${hydra.runtime.output_dir}/${task_name}.log
""",
}
TORCH = {
    "dqn.py": """
import hydra
import torch


@hydra.main(config_path="", config_name="config", version_base="1.1")
def main(cfg):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(cfg.env.seed)
    model = torch.nn.Sequential(torch.nn.Linear(4, cfg.num_cells), torch.nn.Tanh(), torch.nn.Linear(cfg.num_cells, 2))
    target = torch.nn.Linear(4, 2).to(device)
    optimizer = torch.optim.SGD(model.to(device).parameters(), lr=cfg.optim.lr)
    for _ in range(cfg.loss.num_updates):
        batch = torch.randn(cfg.buffer.batch_size, 4, device=device)
        loss = (model(batch) - target(batch)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


if __name__ == "__main__":
    main()
""",
    "config.yaml": "env: {seed: 0}\noptim: {lr: 0.01}\nloss: {num_updates: 100}\nbuffer: {batch_size: 32}\n"
    "num_cells: 32\n",
}
PROGRAMS: dict[str, tuple[dict[str, str], str, list[str]]] = {
    "composition": (COMPOSITION, "my_app.py", [
        "db=mysql,postgresql", "schema=school,support,warehouse", "ui=full,view", "db.timeout=10,20",
    ]),
    "structured": (STRUCTURED, "my_app.py", ["db=mysql,postgresql", "db.port=range(0,12)"]),
    "plain": (PLAIN, "my_app.py", ["+seed=range(0,12)", "+num=1000,10000"]),
    "lightning_like": (LIGHTNING_LIKE, "src/train.py", ["model.lr=0.1,0.2", "seed=range(0,12)"]),
    "torch": (TORCH, "dqn.py", ["optim.lr=0.1,0.01", "env.seed=range(0,12)"]),
}  # fmt: skip
"""Files, entry point and axes of each program; each sweep has 24 jobs."""
NUM_JOBS = 24
RELAUNCH = ["-m", "trieye.cli", "sweep", "relaunch", "sweep"]


def is_overloaded(root: Path) -> bool:
    """Return whether the last driver exited because Ray did not start in time on a busy machine."""
    return "error: Ray did not start" in (root / "log").read_text(errors="replace")[-500:]


def soak(root: Path, name: str, backend: str, kills: int) -> dict[str, Any]:
    """Sweep a program, kill its drivers, and return the figures."""
    files, entry, axes = PROGRAMS[name]
    for path, text in {**files, "recorder.py": RECORDER.replace("DONE", str(STEPS))}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text.lstrip("\n"))
    words = [
        entry, "-m", "hydra/launcher=trieye", "hydra/sweeper=trieye", "hydra.sweep.dir=sweep",
        f"hydra.launcher.backend={backend}", "+hydra.callbacks.recorder._target_=recorder.Recorder", *axes,
    ]  # fmt: skip
    began, num_kills = time.monotonic(), 0
    completed_at_kills: list[tuple[float, set[int]]] = []
    drivers = [Driver(root, words, entry)]
    try:
        while num_kills < kills:
            if not await_starts(root, drivers[-1], num_starts(root) + random.randint(1, NUM_JOBS // (kills + 1))):
                if not is_overloaded(root):
                    break
                drivers.append(Driver(root, RELAUNCH, entry))
                continue
            time.sleep(random.uniform(0.0, 1.0))
            drivers[-1].kill()
            num_kills += 1
            completed_at_kills.append((time.monotonic(), completed(root)))
            drivers.append(Driver(root, RELAUNCH, entry))
        while (code := drivers[-1].process.wait(DEADLINE_S)) and is_overloaded(root):
            drivers.append(Driver(root, RELAUNCH, entry))
    finally:
        for driver in drivers:
            driver.process.kill()
            for process in driver.survivors():
                with contextlib.suppress(psutil.Error):
                    process.kill()
    failures = [f"exit code {code}: {(root / 'log').read_text(errors='replace')[-1000:]}"] if code else []
    failures += [] if num_kills == kills else [f"the sweep ended after {num_kills} of {kills} kills"]
    failures += problems(read_events(root), completed_at_kills, completed(root), NUM_JOBS)
    return {
        "completed": len(completed(root)), "kills": num_kills, "starts": num_starts(root),
        "took_s": round(time.monotonic() - began), "problems": failures[:10],
    }  # fmt: skip


def main() -> int:
    """Print one JSON line; exit with 1 if there is a problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--programs", nargs="+", choices=list(PROGRAMS), default=list(PROGRAMS))
    parser.add_argument("--backends", nargs="+", choices=["local", "ray"], default=["local", "ray"])
    parser.add_argument("--kills", type=int, default=5, help="number of kills of the driver")
    parser.add_argument("--seed", type=int, default=None, help="seed of the times of the kills")
    options = parser.parse_args()
    seed = random.randrange(2**32) if options.seed is None else options.seed
    random.seed(seed)
    root, figures = Path(tempfile.mkdtemp()), {}
    try:
        for name in options.programs:
            for backend in options.backends:
                directory = root / f"{name}_{backend}"
                directory.mkdir()
                # the recorder must be importable in all processes of the sweep
                os.environ["PYTHONPATH"] = os.pathsep.join([str(directory), *PYTHONPATH])
                figures[f"{name}_{backend}"] = soak(directory, name, backend, options.kills)
                print(name, backend, figures[f"{name}_{backend}"], file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    is_met = not any(entry["problems"] for entry in figures.values())
    print(json.dumps({"benchmark": "hydra_programs", "jobs": NUM_JOBS, **figures, "seed": seed, "met": is_met}))
    return 0 if is_met else 1


PYTHONPATH = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]

if __name__ == "__main__":
    sys.exit(main())
