"""The table of sampled rows: shows the first rows of an engine's newest batch."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from trieye.training.batches import Minibatch

NUM_ROWS = 8
_MAX_NUMBERS = 8
"""Longest observation or action whose numbers are all shown."""


def table_of(batch: Minibatch) -> dict[str, list[Any]]:
    """Return the first rows of a batch as columns of plain cells for `Run.log_table`.

    Single numbers stay numbers; short vectors become text, larger arrays a text of their shape, mean, minimum and
    maximum. Columns of the next observation are omitted.

    Args:
        batch: A minibatch; rows from a replay buffer also have ids and weights.
    """
    columns = {name: _cells(column) for name, column in _columns(batch.data) if not name.startswith("next_")}
    if "ids" in vars(batch):  # drawn from a replay buffer
        columns |= {"id": batch.ids[:NUM_ROWS].tolist(), "weight": batch.weights[:NUM_ROWS].tolist()}
    return columns


def _columns(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    for name, column in data.items():
        if isinstance(column, Mapping):
            yield from _columns(column, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", column


def _cells(column: torch.Tensor) -> list[Any]:
    return [_cell(row) for row in column[:NUM_ROWS].detach().cpu()]


def _cell(row: torch.Tensor) -> Any:
    if row.numel() == 1:
        return row.item()
    if row.ndim == 1 and row.numel() <= _MAX_NUMBERS:
        return " ".join(f"{value:.4g}" for value in row.tolist())
    numbers = row.double()
    shape = "x".join(map(str, row.shape))
    return f"{shape}, mean {numbers.mean():.4g}, {numbers.min():.4g} to {numbers.max():.4g}"
