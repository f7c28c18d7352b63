"""Result and progress of a training, and the check from its files whether a run is already finished."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trieye.checkpoints.directory import peek
from trieye.checkpoints.store import CheckpointStore
from trieye.config import TrieyeConfig
from trieye.config.hydra.launch import launch_info
from trieye.config.loop import LoopConfig
from trieye.config.sinks import SinksConfig
from trieye.exceptions import ConfigurationError, TrieyeError
from trieye.files.run_files import RunFiles
from trieye.files.run_record import RunRecord
from trieye.hub.status import last_status
from trieye.process.progress import say
from trieye.run.attempt import check_changes, check_job


@dataclass(frozen=True, slots=True)
class Result:
    """How a training ended.

    Attributes:
        objective: Best value of `loop.objective` over all attempts, excluding a run that this run was forked from; None
            if it was never logged.
        step: Last completed step.
        env_steps: Environment steps over all attempts.
        stop_reason: The limit that stopped the training.
        run_dir: Directory of the run.
        best_checkpoint: The checkpoint with the best objective, otherwise the newest one; None without checkpoints.
    """

    objective: float | None
    step: int
    env_steps: int
    stop_reason: str
    run_dir: Path
    best_checkpoint: Path | None

    def sentence(self, objective: str) -> str:
        """Return a one-line summary of the result for users."""
        best = "" if self.objective is None else f", best {objective} {self.objective:g}"
        checkpoint = "" if self.best_checkpoint is None else f" ({self.best_checkpoint.name})"
        return f"run {self.run_dir.name!r} is done: {self.stop_reason}{best}{checkpoint}; files are in {self.run_dir}"


@dataclass
class TrainingProgress:
    """Progress of a training over all attempts; the step of its run is one of the first three counts."""

    iterations: int = 0
    env_steps: int = 0
    updates: int = 0
    evaluations: int = 0
    time_s: float = 0.0
    best: float | None = None
    evaluated_step: int = -1
    evaluating: int | None = None
    """Step of the checkpoint that is being evaluated in the background."""
    objective: str | None = None
    """Metric of `best`; None before the first start."""
    mode: str | None = None
    """Whether a higher or lower objective is better."""
    owes_evaluation: bool = False
    """Whether a signal interrupted the evaluation of this step; the next start repeats it first."""

    def count(self, values: Mapping[str, Any]) -> None:
        """Count an iteration, and the environment steps and updates among its values.

        Raises:
            ConfigurationError: A count is not a whole number.
        """
        self.iterations += 1
        self.env_steps += _whole("env_steps", values)
        self.updates += _whole("updates", values)

    def rate_by(self, limits: LoopConfig) -> None:
        """Rate by the objective of the config.

        Raises:
            ConfigurationError: The best value so far is of another objective.
        """
        for name in ("objective", "mode"):
            now, before = getattr(limits, name), getattr(self, name)
            if self.best is not None and before not in (None, now):
                raise ConfigurationError(
                    f"loop.{name}={now}: the run was rated with loop.{name}={before} so far; set loop.{name}={before}, "
                    "or choose another run_name"
                )
        self.objective, self.mode = limits.objective, limits.mode

    def counted(self) -> dict[str, int]:
        """Return the counts by the names that `loop.axis` uses."""
        return {"step": self.iterations, "env_steps": self.env_steps, "updates": self.updates}

    def reason_to_stop(self, limits: LoopConfig, step: int) -> str | None:
        """Return a description of the first limit that is reached at `step`, or None."""
        if limits.steps is not None and step >= limits.steps:
            return f"loop.steps={limits.steps} done{_overshoot(step, limits.steps)}"
        if limits.env_steps is not None and self.env_steps >= limits.env_steps:
            return f"loop.env_steps={limits.env_steps} done{_overshoot(self.env_steps, limits.env_steps)}"
        if limits.time_s is not None and self.time_s >= limits.time_s:
            return f"loop.time_s={limits.time_s:g} over"
        if limits.target is not None and self.best is not None and not is_worse(self.best, limits.target, limits.mode):
            return f"loop.target={limits.target:g} reached: {limits.objective}={self.best:g}"
        return None


def _whole(name: str, values: Mapping[str, Any]) -> int:
    value = values.get(name)
    try:
        number = 0.0 if value is None else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not (number >= 0.0 and number.is_integer()):
        raise ConfigurationError(f"step() returned {name}={value!r}; expected a whole number >= 0")
    return int(number)


def _overshoot(count: int, limit: int) -> str:
    """Return the excess over a limit; vector steps and fragments are not split, and a resume may lower the limit."""
    return f", {count - limit} beyond the limit" if count > limit else ""


def finished(config: TrieyeConfig) -> Result | None:
    """Return the result of a run that has nothing left to train or to deliver, otherwise None; only reads files.

    Raises:
        ConfigurationError: The run trains another algorithm, has another objective, or belongs to another job.
    """
    persistence = config.trieye.persistence
    if persistence.load_checkpoint_path is not None or persistence.mirror is not None:
        return None  # the run may go back to a checkpoint, or the mirror may be incomplete
    paths = RunFiles(persistence)
    store = CheckpointStore(paths.checkpoint_dir, read_only=True)
    try:
        record, entries = RunRecord.read(paths.run_record_path), store.entries()
        if record is None or record.status != "FINISHED" or not entries or not _is_delivered(paths, config.sinks):
            return None
        newest = entries[-1]
        progress = TrainingProgress(**peek(newest.path, "objects", "loop"))
    except (TrieyeError, TypeError, ValueError, KeyError):  # the start of the run reports the damaged file
        return None
    progress.rate_by(config.loop)
    reason = progress.reason_to_stop(config.loop, newest.step)
    if reason is None:
        return None
    launch = launch_info()
    if launch is not None and launch.sweep_dir is not None:
        check_job(paths, launch, str(launch.sweep_dir))
    check_changes(paths, config)
    say(finished_sentence(config.run_name, reason))
    best_checkpoint = (store.ranked(config.loop.mode) or [newest])[0].path
    return Result(progress.best, newest.step, progress.env_steps, reason, paths.run_base_dir, best_checkpoint)


def _is_delivered(paths: RunFiles, sinks: SinksConfig) -> bool:
    """Return whether each enabled sink has all data of the run."""
    sink_statuses = last_status(paths.run_base_dir).get("sinks", ())
    complete = {sink["name"] for sink in sink_statuses if not sink["backlog"]}
    return complete.issuperset(sinks.enabled)


def finished_sentence(run_name: str, reason: str) -> str:
    """Return the message for a user who starts a finished run."""
    return f"run {run_name!r} is finished: {reason}; raise the limit to continue, or choose another run_name"


def is_worse(value: float, target: float, mode: str) -> bool:
    """Return whether an objective is worse than a target; `mode` as in `loop.mode`."""
    return value < target if mode == "max" else value > target
