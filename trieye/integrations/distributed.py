"""Many processes of torch.distributed, one run: the first one holds it, the others are silent."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from trieye.config import TrieyeConfig
from trieye.run.run import Run


class SilentRun:
    """Takes the calls of a run in processes that do not hold it, and does nothing.

    Attributes:
        config: The config of the run.
        name: Its name.
        step: As the program sets it.
        stop_requested, save_due, resumed: Never.
    """

    stop_requested = save_due = resumed = False

    def __init__(self, config: TrieyeConfig) -> None:
        self.config, self.name, self.step = config, config.run_name, 0

    def steps(self, total: int) -> Iterator[int]:
        """Yield the numbers of the steps, as `Run.steps` does for a run that begins."""
        for self.step in range(1, total + 1):
            yield self.step

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(Run, name):
            raise AttributeError(f"Run has no {name!r}")
        return _nothing


def _nothing(*values: Any, **options: Any) -> None:
    del values, options


def rank() -> int:
    """Return the rank of this process: of torch.distributed if it is initialized, else what launchers set; 0 alone."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return int(dist.get_rank())
    names: Sequence[str] = ("RANK", "SLURM_PROCID")
    environment: Mapping[str, str] = os.environ
    return next((int(environment[name]) for name in names if environment.get(name, "").isdecimal()), 0)


@contextmanager
def run_of_rank_zero(config: TrieyeConfig) -> Iterator[Run | SilentRun]:
    """Open the run in the process of rank 0, and give the others a stand-in whose calls do nothing.

    Each value is logged once, however many processes call `run.log`. What all have to know, such as whether the run was
    resumed, rank 0 broadcasts by torch.distributed.

    Args:
        config: Of the run.
    """
    if rank() == 0:
        with Run(config) as run:
            yield run
    else:
        yield SilentRun(config)
