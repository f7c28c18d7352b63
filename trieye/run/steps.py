"""steps: the loop over the steps of a run that are left."""

import time
from collections.abc import Generator, Mapping
from typing import Protocol

from trieye.config.root import TrieyeConfig
from trieye.exceptions import RunInterrupted
from trieye.process import watchdog
from trieye.process.progress import Progress, say
from trieye.process.signals import StopSignals

_LOOKED_FOR = ("eval", "episode/return", "return", "reward", "loss")
_NOT_KEY_METRICS = ("time/", "progress/", "env_steps")


class Stepped(Protocol):
    """The part of a run that the loop uses.

    Attributes:
        name: Name of the run.
        step: The current step, or the last complete one.
        saved_step: The last step that was saved; -1 before the first.
        stop_requested: Whether a signal asked the run to stop.
        stop_requested_at: Time of the request, as `time.monotonic`; None before.
        exit_code: Exit code of the process after a stop.
    """

    name: str
    step: int
    saved_step: int
    stop_requested: bool
    stop_requested_at: float | None
    exit_code: int

    @property
    def config(self) -> TrieyeConfig:
        """The config of the run."""

    def key_metrics(self) -> Mapping[str, float]:
        """Return the values to show, the most important one first."""

    def wait_for_saves(self) -> None:
        """Wait until all saves are on disk; raises if one failed."""


def steps(run: Stepped, total: int | None, *, counts: bool = True) -> Generator[int]:
    """Yield the numbers of the steps that are left; see `Run.steps`.

    Args:
        run: The run.
        total: The last step; None: there is none.
        counts: Add 1 to the step of the run before each round; False: the body of the loop sets it.

    Raises:
        RunInterrupted: A signal asked the run to stop.
        CheckpointError: A signal asked the run to stop, and its state could not be saved.
    """
    if total is not None and run.step >= total:
        say(f"run {run.name!r} is finished: {run.step} of {total} steps are done; raise the number to go on")
        return

    def request_stop(exit_code: int) -> None:
        run.stop_requested, run.stop_requested_at, run.exit_code = True, time.monotonic(), exit_code
        watchdog.note_request()

    stops = StopSignals(
        request_stop,
        "stopping after this step and saving; the same signal again (or Ctrl-C) stops at once",
        requeue_exit_code=run.config.runtime.requeue_exit_code,
    )
    with stops, Progress(run.name, total, run.step, run.key_metrics, has_bar=run.config.progress_bar) as bar:
        had_its_chance = False
        while total is None or run.step < total:
            if run.stop_requested and (had_its_chance or run.saved_step == run.step):
                break
            had_its_chance = run.stop_requested
            run.step += counts
            try:
                yield run.step
            finally:  # also when the loop is left by `break`
                bar.update(run.step)
    if run.stop_requested and (total is None or run.step < total):
        run.wait_for_saves()
        raise RunInterrupted(farewell(run), run.exit_code)


def farewell(run: Stepped) -> str:
    """Return the message for a run that stops before its end."""
    saved = f"its state at step {run.saved_step} is saved" if run.saved_step >= 0 else "nothing was saved"
    return f"run {run.name!r} stops at step {run.step}: {saved}; start it again with run_name={run.name} to go on"


def key_metrics(latest: Mapping[str, float], objective: str) -> dict[str, float]:
    """Return the values worth a place beside the progress bar, those that people look for first."""
    wanted = (objective, *_LOOKED_FOR)

    def rank(name: str) -> int:
        return next((place for place, start in enumerate(wanted) if name.lower().startswith(start)), len(wanted))

    shown = [name for name in latest if not name.startswith(_NOT_KEY_METRICS)]
    return {name: latest[name] for name in sorted(shown, key=rank)}
