"""One run for many torch.distributed processes: rank 0 logs, the other ranks get a silent stand-in."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from trieye.config import TrieyeConfig
from trieye.process.signals import StopSignals
from trieye.run.run import Run


class SilentSave:
    """Stand-in for `trieye.SaveHandle` in ranks other than 0, which save nothing.

    Attributes:
        step: Step of the state that rank 0 saves.
        path, superseded, done: Always None, False and True.
    """

    path, superseded, done = None, False, True

    def __init__(self, step: int) -> None:
        self.step = step

    def wait(self, timeout_s: float | None = None) -> None:
        """Return immediately, also if rank 0 is still writing the checkpoint."""


class SilentRun:
    """Stand-in for the run in ranks other than 0: it accepts every method call of `Run` and does nothing.

    Methods return None, except `steps`, `save` and `restore`. Attributes that require the run itself, such as
    `replay`, raise `AttributeError`.

    Attributes:
        config, name, dir, last_step: As in `Run`.
        step: The current step; after a restore in rank 0, set it to the value that rank 0 broadcasts.
        saved_step: Step of the last call of `save`; -1 before the first.
        restored: Always empty.
        resumed, resumed_from_another, save_due, stop_requested, was_interrupted: Always False.
        stop_requested_at, loop_signals, exit_code: Always None, empty and 130.
    """

    resumed = resumed_from_another = save_due = stop_requested = was_interrupted = False
    stop_requested_at, loop_signals, exit_code = None, (), 130

    def __init__(self, config: TrieyeConfig) -> None:
        self.config, self.name, self.step, self.saved_step = config, config.run_name, 0, -1
        self.dir = config.persistence.get_run_base_dir()
        self.last_step: int | None = None
        self.restored: Mapping[str, Any] = {}

    def steps(self, total: int | None) -> Iterator[int]:
        """Yield the step numbers after `step` up to `total`, like `Run.steps`; None yields steps without limit."""
        self.last_step = total
        while total is None or self.step < total:
            self.step += 1
            yield self.step

    def save(self, *, step: int | None = None, **options: Any) -> SilentSave:
        """Save nothing."""
        del options
        self.saved_step = self.step if step is None else step
        return SilentSave(self.saved_step)

    def restore(self, **options: Any) -> bool:
        """Restore nothing and return False, also if rank 0 restores a checkpoint."""
        del options
        return False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not callable(getattr(Run, name, None)):
            raise AttributeError(
                f"run.{name}: no method of Run, and only rank 0 has the run: broadcast its values to the other ranks"
            )
        return _nothing


def _nothing(*values: Any, **options: Any) -> None:
    del values, options


def rank() -> int:
    """Return the rank from torch.distributed if initialized, else from `RANK` or `SLURM_PROCID`, else 0."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return int(dist.get_rank())
    ranks = (os.environ.get(name, "") for name in ("RANK", "SLURM_PROCID"))
    return next((int(text) for text in ranks if text.isdecimal()), 0)


@contextmanager
def run_of_rank_zero(config: TrieyeConfig) -> Iterator[Run | SilentRun]:
    """Open the run in rank 0 and yield a stand-in whose calls do nothing in the other ranks.

    Each value is logged once, however many processes call `run.log`. State that all ranks need, such as `run.step`
    after a restore, must be broadcast by rank 0 through torch.distributed:

        start = [run.step]
        torch.distributed.broadcast_object_list(start)
        run.step = start[0]

    The other ranks ignore the first stop signal, because rank 0 needs them to complete its step before it saves. They
    end with an error of their next collective operation, or when the launcher kills them.

    Args:
        config: Config of the run.
    """
    if rank() == 0:
        with Run(config) as run:
            yield run
    else:
        with StopSignals(_nothing, None):
            yield SilentRun(config)
