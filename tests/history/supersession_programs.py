"""Programs that execute an attempt of the reference model through each of the loggers."""

import os
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.forked import in_a_child
from tests.history.supersession_model import Attempt, Call
from trieye.history.history import read_history
from trieye.integrations.opening import AdoptedRun, adopted_config, safe_name
from trieye.run.run import Run

APP = "app"
Log = Callable[[Call], object]
Logging = Iterator[tuple[Run, Log]]


@contextmanager
def with_run(name: str, root: Path, attempt: Attempt, run_options: dict[str, Any]) -> Logging:
    with Run(adopted_config(name, APP, {"root": root, **run_options})) as run:
        if attempt.checkpoint is not None:
            of, num_calls = attempt.checkpoint
            run.restore(from_checkpoint=root / f"{name}-{of}-{num_calls}", state={})
        elif attempt.restored is not None:
            run.supersede(attempt.restored)

        def log(call: Call) -> None:
            if call.kind == "medium":
                run.log_text(call.metric, str(call.value), step=call.step or 0)
            else:
                run.log(call.metric, call.value, step=call.step)

        yield run, log


@contextmanager
def with_summary_writer(name: str, root: Path, attempt: Attempt, run_options: dict[str, Any]) -> Logging:
    from trieye.integrations.tensorboard import SummaryWriter

    # opened first, so that its sinks apply
    AdoptedRun.join(safe_name(name), app=APP, root=root, **run_options)
    with SummaryWriter(Path("runs") / name, purge_step=attempt.restored) as writer:

        def log(call: Call) -> None:
            if call.kind == "medium":
                writer.add_text(call.metric, str(call.value), call.step)
            else:
                writer.add_scalar(call.metric, call.value, call.step)

        yield writer.run, log


@contextmanager
def with_wandb(name: str, root: Path, attempt: Attempt, run_options: dict[str, Any]) -> Logging:
    from trieye.integrations import wandb

    AdoptedRun.join(safe_name(name), app=APP, root=root, **run_options)
    resume = None if attempt.restored is not None else "allow"
    run = wandb.init(project=APP, id=name, resume=resume)
    run.define_metric("*", step_metric="wandb/x")

    def log(call: Call) -> None:
        run.log({"wandb/x": call.step, call.metric: str(call.value) if call.kind == "medium" else call.value})

    yield run.run, log
    run.finish()


@contextmanager
def with_lightning(name: str, root: Path, attempt: Attempt, run_options: dict[str, Any]) -> Logging:
    from trieye.integrations.lightning import RunLogger

    AdoptedRun.join(safe_name(name), app=APP, root=root, **run_options)
    logger = RunLogger(name, app=APP, root=root)
    if attempt.restored is not None:
        logger.adopted.resumes_at(attempt.restored)

    def log(call: Call) -> None:
        if call.kind == "medium":
            logger.experiment.log_text(call.metric, str(call.value), step=call.step)
        else:
            logger.log_metrics({call.metric: call.value}, call.step)

    yield logger.experiment, log
    logger.adopted.leave(logger)


PROGRAMS: dict[str, Any] = {
    "Run": with_run,
    "SummaryWriter": with_summary_writer,
    "wandb": with_wandb,
    "Lightning": with_lightning,
}


@dataclass(frozen=True)
class Story:
    """Attempts of one run.

    Attributes:
        logger: A key of `PROGRAMS`.
        name: Name of the run.
        root: Directory of all runs.
        attempts: The attempts, in order.
        killed: Numbers of the attempts that end with SIGKILL after the hub has accepted all events.
        run_options: Further options of the run, such as its sinks.
    """

    logger: str
    name: str
    root: Path
    attempts: Sequence[Attempt]
    killed: frozenset[int] = frozenset()
    run_options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def run_dir(self) -> Path:
        return self.root / APP / "runs" / self.name

    def play(self) -> None:
        """Execute all attempts; killed ones run in children of this process."""
        if self.logger == "Lightning":
            import_module("trieye.integrations.lightning")  # takes seconds, too long for a child with a timeout
        for number in range(len(self.attempts)):
            if number not in self.killed:
                self._attempt(number)
            else:
                assert in_a_child(partial(self._attempt, number)) == -signal.SIGKILL

    def _attempt(self, number: int) -> None:
        attempt = self.attempts[number]
        checkpoints = [other.checkpoint for other in self.attempts if other.checkpoint is not None]
        with PROGRAMS[self.logger](self.name, self.root, attempt, dict(self.run_options)) as (run, log):
            for done in range(len(attempt.calls) + 1):
                if (number, done) in checkpoints:
                    run.save(step=done + 1, state={}).wait()
                    saved = run.dir / "checkpoints" / f"checkpoint_step_{done + 1}"
                    shutil.copytree(saved, self.root / f"{self.name}-{number}-{done}")
                if done < len(attempt.calls):
                    log(attempt.calls[done])
                if done % 7 == 3:
                    run.flush()
            run.flush()
            if number in self.killed:
                os.kill(os.getpid(), signal.SIGKILL)

    def curves(self) -> dict[str, list[tuple[int, float]]]:
        """Return the curves in the history, except for internal metrics of the logger and the hub."""
        table = read_history(self.run_dir)
        shown_curves: dict[str, list[tuple[int, float]]] = {}
        columns = (table[name].to_pylist() for name in ("metric", "step", "value"))
        for metric, step, value in zip(*columns, strict=True):
            if not metric.startswith(("trieye/", "wandb/")):
                shown_curves.setdefault(metric, []).append((step, value))
        return {metric: sorted(curve) for metric, curve in shown_curves.items()}
