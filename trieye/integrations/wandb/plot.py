"""plot: the charts of `wandb.plot`, each logged as its table."""

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from trieye.integrations.wandb.media import Table


def _of_table(table: Table, *_: Any, **__: Any) -> Table:
    """Return the table that the chart shows."""
    return table


bar = histogram = line = scatter = _of_table


def plot_table(vega_spec_name: str, data_table: Table, *_: Any, **__: Any) -> Table:
    """Return the table that the chart shows."""
    del vega_spec_name
    return data_table


def line_series(xs: Iterable[Any], ys: Iterable[Iterable[Any]], keys: Any = None, **_: Any) -> Table:
    """Return the points of several lines as a table."""
    lines, shared_xs = [list(line) for line in ys], list(xs)
    columns = shared_xs if shared_xs and isinstance(shared_xs[0], Iterable) else [shared_xs] * len(lines)
    names = list(keys or [f"line_{index}" for index in range(len(lines))])
    rows = [
        [x, name, y]
        for name, column, values in zip(names, columns, lines, strict=True)
        for x, y in zip(column, values, strict=False)
    ]
    return Table(["step", "lineKey", "lineVal"], rows)


def _of_labels(*names: str) -> Callable[..., Table]:
    """Return a function that makes the table of labels and predictions behind a chart."""

    def chart(*values: Any, **options: Any) -> Table:
        arguments = {**dict(zip(names, values, strict=False)), **options}
        columns = {name: arguments[name] for name in names if arguments.get(name) is not None}
        cells = [[np.asarray(cell).tolist() for cell in column] for column in columns.values()]
        return Table(list(columns), list(itertools.zip_longest(*cells)))

    return chart


confusion_matrix = _of_labels("probs", "y_true", "preds", "class_names")
pr_curve = roc_curve = _of_labels("y_true", "y_probas", "labels")
