"""One run for many torch.distributed processes: rank 0 logs, the other ranks get a silent stand-in."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from trieye.config import TrieyeConfig
from trieye.run.run import Run


class SilentRun:
    """Stand-in for the run in ranks other than 0: accepts every method of `Run` and does nothing.

    Attributes:
        config: The config of the run.
        name: The run's name.
        step: The step that the program set last.
        stop_requested, save_due, resumed: Always False.
    """

    stop_requested = save_due = resumed = False

    def __init__(self, config: TrieyeConfig) -> None:
        self.config, self.name, self.step = config, config.run_name, 0

    def steps(self, total: int) -> Iterator[int]:
        """Yield 1 to `total`, like `Run.steps` for a new run."""
        for self.step in range(1, total + 1):
            yield self.step

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(Run, name):
            raise AttributeError(f"Run has no {name!r}")
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

    Each value is logged once, however many processes call `run.log`. State that all ranks need, such as whether the run
    was resumed, must be broadcast by rank 0 through torch.distributed.

    Args:
        config: Config of the run.
    """
    if rank() == 0:
        with Run(config) as run:
            yield run
    else:
        yield SilentRun(config)
