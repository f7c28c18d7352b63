"""The table of sampled rows: what the newest batch of an engine looks like, for people."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from trieye.training.batches import Minibatch

NUM_ROWS = 8
_MAX_SHOWN = 8
"""Numbers of an observation or an action that are shown one by one."""


def table_of(batch: Minibatch) -> dict[str, list[Any]]:
    """Return the first rows of a batch, as columns of plain cells for `Run.log_table`.

    Numbers stand as they are; a few numbers become a text of them, pictures a text with their shape, mean and bounds.
    Of observations those before the step are shown.

    Args:
        batch: A minibatch; rows from a replay buffer have ids and weights, too.
    """
    found = {name: _cells(column) for name, column in _columns(batch.data) if not name.startswith("next_")}
    if "ids" in vars(batch):  # it was drawn from a replay buffer
        found |= {"id": batch.ids[:NUM_ROWS].tolist(), "weight": batch.weights[:NUM_ROWS].tolist()}
    return found


def _columns(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    for name, column in data.items():
        if isinstance(column, Mapping):
            yield from _columns(column, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", column


def _cells(column: torch.Tensor) -> list[Any]:
    rows = column[:NUM_ROWS].detach().cpu()
    return [_cell(row) for row in rows]


def _cell(row: torch.Tensor) -> Any:
    if row.numel() == 1:
        return row.item()
    if row.ndim == 1 and row.numel() <= _MAX_SHOWN:
        return " ".join(f"{value:.4g}" for value in row.tolist())
    numbers = row.double()
    shape = "x".join(map(str, row.shape))
    return f"{shape}, mean {numbers.mean():.4g}, {numbers.min():.4g} to {numbers.max():.4g}"
