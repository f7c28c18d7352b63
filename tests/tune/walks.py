"""Walks: small experiments with hyperparameters, whose curves reveal lost or repeated steps."""

import os
from pathlib import Path

import numpy as np
from pydantic import Field

import trieye
from tests.waiting import wait_until
from trieye.history.table import read_history


class WalkConfig(trieye.StrictModel):
    """Hyperparameters of a walk."""

    pace: float = Field(default=1.0, gt=0, le=100, description="Length of a step.")
    legs: int = Field(default=2, ge=1, le=8, description="Multiplier of a step.")
    gait: str = Field(default="slow", description="Style of the walk.")


class WalksConfig(trieye.TrieyeConfig):
    """The config of a walk."""

    walk: WalkConfig = Field(default_factory=WalkConfig, description="The walk.")


class Walk(trieye.Experiment[WalksConfig]):
    """Moves by `pace * legs` in each step; the objective is the distance plus noise."""

    def setup(self, config):
        self.position = 0.0
        self.path = []
        self.pid = os.getpid()

    def step(self):
        walk = self.config.walk
        self.position += walk.pace * walk.legs
        self.path.append(self.position)
        return {"position": self.position, "noise": np.random.rand(), "pid": float(os.getpid())}  # noqa: NPY002

    def evaluate(self):
        return {"eval/return": self.position, "eval/steps": float(len(self.path))}

    def save_checkpoint(self, checkpoint_dir):
        return {"position": self.position, "path": np.array(self.path)}

    def load_checkpoint(self, checkpoint):
        self.position, self.path = float(checkpoint["position"]), list(checkpoint["path"])

    def export_model(self, export_dir):
        path = export_dir / "position.txt"
        path.write_text(str(self.position))
        return [path]


class Agreeing(Walk):
    """A walk that accepts another config without a rebuild."""

    def reset_config(self, new_config):
        self.reused = True
        return True

    def step(self):
        return {**super().step(), "reused": float(getattr(self, "reused", False))}


class Raising(Walk):
    """A walk that fails in its sixth step if it is fast."""

    def step(self):
        if self.config.walk.pace > 50 and len(self.path) == 5:
            raise RuntimeError("too fast for this path")
        return super().step()


class Unlucky(Walk):
    """A walk that fails once, depending on its pace: 2 raises, 3 kills its process, 4 kills its process and damages
    the checkpoint that it would resume from.
    """

    def step(self):
        values, pace = super().step(), self.config.walk.pace
        flag = Path(self.run.config.persistence.root_data_dir) / f"befell-{pace:g}"
        if len(self.path) == 12 and pace > 1 and not flag.exists():
            flag.touch()
            if pace == 4:
                for checkpoint in Path("multirun").glob(f"*/tune/*_0000{self.run.name[-1]}/*/checkpoint_step_10"):
                    damage(checkpoint)
            if pace > 2:
                os.kill(os.getpid(), 9)
            raise RuntimeError("bad luck")
        return values


class FallsOver(Walk):
    """A walk whose second trial in a study raises when the others have been evaluated twice."""

    def step(self):
        if self.run.name.endswith("_1") and len(self.path) == 7:
            others = [self.run.dir.with_name(f"{self.run.name[:-1]}{index}") for index in (0, 2)]
            wait_until(lambda: all((run / "checkpoints/checkpoint_step_10").exists() for run in others))
            raise RuntimeError("the last one fell over")
        return super().step()


class Stumbles(Walk):
    """A walk whose process is killed once, while it copies another trial's state."""

    def reset_config(self, new_config):
        flag = Path(new_config.persistence.root_data_dir) / "stumbled"
        if not flag.exists():
            flag.touch()
            os.kill(os.getpid(), 9)
        return False


def damage(checkpoint):
    """Flip a bit of the largest file of a checkpoint, under all of its names."""
    largest = max((path for path in checkpoint.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 0xFF
    with largest.open("r+b") as file:
        file.write(content)


def curve_in(run_dir, metric="position"):
    """Return the steps and values of a metric of a run that are not superseded, in order."""
    table = read_history(run_dir)
    rows = [row for row in table.to_pylist() if row["metric"] == metric]
    return [(row["step"], row["value"]) for row in sorted(rows, key=lambda row: row["step"])]
