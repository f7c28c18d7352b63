"""How far a training is, and whether that is its end: known from its files, before anything is started."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trieye.checkpoints.directory import peek
from trieye.checkpoints.store import CheckpointStore
from trieye.config import TrieyeConfig
from trieye.config.loop import LoopConfig
from trieye.config.sinks import SinksConfig
from trieye.exceptions import TrieyeError
from trieye.files.run_files import RunFiles
from trieye.files.run_record import RunRecord
from trieye.hub.status import last_status
from trieye.process.progress import say
from trieye.run.attempt import tell_changes


@dataclass(frozen=True, slots=True)
class Result:
    """How a training ended.

    Attributes:
        objective: Best value of `loop.objective` over all attempts, those of a run from which it started left out; None
            if it was never logged.
        step: Last complete step.
        env_steps: Environment steps made, over all attempts.
        stop_reason: What stopped it.
        run_dir: Directory of the run.
        best_checkpoint: The checkpoint with the best objective, or else the newest one.
    """

    objective: float | None
    step: int
    env_steps: int
    stop_reason: str
    run_dir: Path
    best_checkpoint: Path | None

    def sentence(self, objective: str) -> str:
        """Return how the training ended, for people."""
        best = "" if self.objective is None else f", best {objective} {self.objective:g}"
        kept = "" if self.best_checkpoint is None else f" ({self.best_checkpoint.name})"
        return f"run {self.run_dir.name!r} is done: {self.stop_reason}{best}{kept}; its files are in {self.run_dir}"


@dataclass
class Progress:
    """How far a training is, over all attempts, besides the step of its run, which is one of the first three."""

    iterations: int = 0
    env_steps: int = 0
    updates: int = 0
    evaluations: int = 0
    time_s: float = 0.0
    best: float | None = None
    evaluated_step: int | None = -1
    evaluating: int | None = None
    """Step of the checkpoint that is being evaluated beside the training."""
    owes_evaluation: bool = False
    """Whether a signal interrupted the evaluation of this step, which the next start does first."""

    def count(self, values: Mapping[str, float | None]) -> None:
        """Count an iteration, and the environment steps and updates that it says it made."""
        self.iterations += 1
        self.env_steps += int(values.get("env_steps") or 0)
        self.updates += int(values.get("updates") or 0)

    def counted(self) -> dict[str, int]:
        """Return what has been counted, by the names that `loop.axis` has for it."""
        return {"step": self.iterations, "env_steps": self.env_steps, "updates": self.updates}

    def reason_to_stop(self, limits: LoopConfig, step: int) -> str | None:
        """Return which limit is reached after this many steps, or None."""
        if limits.steps is not None and step >= limits.steps:
            return f"loop.steps={limits.steps} done{_overshoot(step, limits.steps)}"
        if limits.env_steps is not None and self.env_steps >= limits.env_steps:
            return f"loop.env_steps={limits.env_steps} done{_overshoot(self.env_steps, limits.env_steps)}"
        if limits.time_s is not None and self.time_s >= limits.time_s:
            return f"loop.time_s={limits.time_s:g} over"
        if limits.target is not None and self.best is not None and not _worse(self.best, limits.target, limits.mode):
            return f"loop.target={limits.target:g} reached: {limits.objective}={self.best:g}"
        return None


def _overshoot(made: int, limit: int) -> str:
    """Return the excess over a limit: vector steps and fragments are whole, and a resume may lower the limit."""
    return f", {made - limit} beyond the limit" if made > limit else ""


def finished(config: TrieyeConfig) -> Result | None:
    """Return how a run ended that has nothing left to do, neither to train nor to deliver; only files are read."""
    persistence = config.trieye.persistence
    if persistence.load_checkpoint_path is not None or persistence.mirror is not None:
        return None  # it may go back to a checkpoint; the mirror may lack some
    paths = RunFiles(persistence)
    store = CheckpointStore(paths.checkpoint_dir, read_only=True)
    try:
        record, entries = RunRecord.read(paths.run_record_path), store.entries()
        if record is None or record.status != "FINISHED" or not entries or not _is_delivered(paths, config.sinks):
            return None
        newest = entries[-1]
        progress = Progress(**peek(newest.path, "objects", "loop"))
    except (TrieyeError, TypeError, ValueError, KeyError):  # what is damaged is reported by the start of the run
        return None
    reason = progress.reason_to_stop(config.loop, newest.step)
    if reason is None:
        return None
    tell_changes(paths, config)
    say(finished_sentence(config.run_name, reason))
    kept = (store.ranked(config.loop.mode) or [newest])[0].path
    return Result(progress.best, newest.step, progress.env_steps, reason, paths.run_base_dir, kept)


def _is_delivered(paths: RunFiles, sinks: SinksConfig) -> bool:
    """Tell whether each enabled sink has all of the run."""
    known = last_status(paths.run_base_dir).get("sinks", ())
    complete = {sink["name"] for sink in known if not sink["backlog"]}
    return complete.issuperset(sinks.enabled)


def finished_sentence(run_name: str, reason: str) -> str:
    """Return what to tell somebody who started a finished run."""
    return f"run {run_name!r} is finished: {reason}; raise the limit to go on, or choose another run_name"


def _worse(value: float, target: float, mode: str) -> bool:
    return value < target if mode == "max" else value > target
