"""`Run.steps`: iterate over the remaining steps of a run, with stop requests and a progress bar."""

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Protocol

from trieye.config.root import TrieyeConfig
from trieye.exceptions import RunInterrupted
from trieye.process import watchdog
from trieye.process.progress import ProgressBar, say
from trieye.process.signals import StopSignals, stop_reason

_PREFERRED_PREFIXES = ("eval", "episode/return", "return", "reward", "loss")
_HIDDEN_PREFIXES = ("time/", "progress/", "env_steps")


class SteppedRun(Protocol):
    """The attributes and methods of a run that the step loop uses.

    Attributes:
        name: Name of the run.
        step: The current step, or the last completed one.
        saved_step: The last saved step; -1 before the first.
        last_step: The last step of the loop; None if there is no limit.
        stop_requested: Whether a signal requested a stop.
        stop_requested_at: Time of the request, as `time.monotonic`; None before.
        exit_code: Exit code of the process after a stop.
        loop_signals: Signal handlers of the loops that have not ended; the end of the run gives them back.
    """

    name: str
    step: int
    saved_step: int
    last_step: int | None
    stop_requested: bool
    stop_requested_at: float | None
    exit_code: int
    loop_signals: Sequence[StopSignals]

    @property
    def config(self) -> TrieyeConfig:
        """The config of the run."""

    def key_metrics(self) -> Mapping[str, float]:
        """Return the values for the progress bar, the most important one first."""

    def wait_for_saves(self) -> None:
        """Wait until all saves are on disk; raise if one failed."""


def steps(
    run: SteppedRun, total: int | None, *, counts: bool = True, is_running: Callable[[], bool] = lambda: True
) -> Generator[int]:
    """Yield the remaining step numbers; see `Run.steps`.

    Args:
        run: The run.
        total: The last step; None if there is no limit.
        counts: Add 1 to `run.step` before each iteration; with False the loop body sets it.
        is_running: Whether the loop body is running; see `StopSignals`.

    Raises:
        RunInterrupted: A signal requested a stop.
        CheckpointError: A signal requested a stop, and the state could not be saved.
    """
    if total is not None and run.step >= total:
        say(f"run {run.name!r} is finished: {run.step} of {total} steps are done; raise the number to continue")
        return
    if any(signals.has_stopped for signals in run.loop_signals):
        run.stop_requested, run.stop_requested_at = False, None

    def request_stop(exit_code: int) -> None:
        run.stop_requested, run.stop_requested_at, run.exit_code = True, time.monotonic(), exit_code
        watchdog.note_request()

    stops = StopSignals(
        request_stop,
        "stopping after this step and saving; the same signal again (or Ctrl-C) stops immediately",
        requeue_exit_code=run.config.runtime.requeue_exit_code,
        is_running=is_running,
    )
    run.loop_signals = (*(other for other in run.loop_signals if not other.is_given_back), stops)
    with stops, ProgressBar(run.name, total, run.step, run.key_metrics, has_bar=run.config.progress_bar) as bar:
        run.last_step = total if counts else None
        could_save = False  # whether an iteration began after the stop request, so that its body saw `save_due`
        while total is None or run.step < total:
            if run.stop_requested and (could_save or run.saved_step == run.step):
                break
            could_save = run.stop_requested
            run.step += counts
            try:
                yield run.step
            finally:  # also after a `break` in the loop body
                bar.update(run.step)
    if run.stop_requested and (total is None or run.step < total):
        run.wait_for_saves()
        stops.note_stop()
        raise RunInterrupted(farewell(run), run.exit_code)


def is_save_due(run: SteppedRun) -> bool:
    """Return whether the interval of checkpoints has passed, the loop ends, or a signal requested a stop."""
    every = run.config.persistence.checkpoint_save_freq_steps
    is_at_end = run.step == run.last_step != run.saved_step
    is_stopping = (
        run.stop_requested and run.step != run.saved_step
    )  # a second save would lose the objective of the first
    return is_stopping or is_at_end or (every > 0 and run.step // every > max(run.saved_step, 0) // every)


def farewell(run: SteppedRun) -> str:
    """Return the message for a run that stops before its end."""
    save_text = f"its state at step {run.saved_step} is saved" if run.saved_step >= 0 else "nothing was saved"
    end = stop_reason() or f"restart with run_name={run.name} to resume it"
    return f"run {run.name!r} stops at step {run.step}: {save_text}; {end}"


def with_stop_note(run: SteppedRun, error: BaseException) -> BaseException:
    """Return an error that ends the run, with a note if it prevents the save that a signal requested."""
    if run.stop_requested and run.saved_step != run.step and isinstance(error, Exception):
        error.add_note(f"a signal requested a stop, and its last step failed: {farewell(run)}")
        if "DataLoader worker" in str(error):
            error.add_note("to save, workers need DataLoader(..., worker_init_fn=trieye.ignore_stop_signals)")
    return error


def key_metrics(latest: Mapping[str, float], objective: str) -> dict[str, float]:
    """Return the values to show next to the progress bar: the objective, then returns, rewards, losses and others."""
    prefixes = (objective.lower(), *_PREFERRED_PREFIXES)

    def rank(name: str) -> tuple[bool, int]:
        starts = [index for index, start in enumerate(prefixes) if name.lower().startswith(start)]
        return name != objective, min(starts, default=len(prefixes))

    names = [name for name in latest if not name.startswith(_HIDDEN_PREFIXES)]
    return {name: latest[name] for name in sorted(names, key=rank)}
