"""EventBatch: raw events as columns, the exchange format between processes."""

import pickle
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

MAX_NAME_LENGTH = 1000
"""Maximum length of a name in characters; no backend shows more."""

MAX_CONTEXT_BYTES = 64 << 10
"""Maximum size of an event's context; metrics read only numbers and short texts from it."""


class EventRow(NamedTuple):
    """One event as user code logs it; a tuple because construction must be cheap."""

    name: str
    value: float
    step: int
    time: float
    context: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Events in the order in which they were logged.

    Attributes:
        names: The distinct names.
        codes: int32 `[n]`, index into `names`.
        values: float64 `[n]`.
        steps: int64 `[n]`, global steps.
        times: float64 `[n]`, Unix time in seconds.
        contexts: Context by row, for rows that have one.
    """

    names: tuple[str, ...]
    codes: NDArray[np.int32]
    values: NDArray[np.float64]
    steps: NDArray[np.int64]
    times: NDArray[np.float64]
    contexts: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def from_rows(cls, rows: Sequence[EventRow | tuple[Any, ...]]) -> Self:
        """Create a batch from rows.

        Raises:
            OverflowError, TypeError, ValueError: A value is not a number, or a step does not fit int64; see `salvage`.
        """
        # `zip(*rows)` takes three times as long: it creates an iterator per row
        names, values, steps, times, contexts = (map(itemgetter(column), rows) for column in range(5))
        name_by_row, context_by_row, size = list(names), list(contexts), len(rows)
        table = {name: code for code, name in enumerate(dict.fromkeys(name_by_row))}
        return cls(
            names=tuple(table),
            # not np.array, which accepts None
            codes=np.fromiter(map(table.__getitem__, name_by_row), np.int32, size),
            values=np.fromiter(values, np.float64, size),
            steps=np.fromiter(steps, np.int64, size),
            times=np.fromiter(times, np.float64, size),
            contexts={row: item for row, item in enumerate(context_by_row) if item} if any(context_by_row) else {},
        )

    def take(self, rows: NDArray[np.intp]) -> Self:
        """Return the events at some rows, in that order."""
        contexts = {}
        if self.contexts:
            contexts = {index: self.contexts[row] for index, row in enumerate(rows.tolist()) if row in self.contexts}
        return type(self)(self.names, self.codes[rows], self.values[rows], self.steps[rows], self.times[rows], contexts)

    def by_name(self) -> list[tuple[str, Self]]:
        """Return (name, events) for each name that occurs, events in the order of arrival."""
        if len(self.names) == 1:
            return [(self.names[0], self)] if len(self) else []
        sorted_batch = self.take(np.argsort(self.codes, kind="stable"))
        bounds = np.searchsorted(sorted_batch.codes, np.arange(len(self.names) + 1)).tolist()
        contexts: defaultdict[int, dict[int, Mapping[str, Any]]] = defaultdict(dict)
        for row, context in sorted_batch.contexts.items():
            code = int(sorted_batch.codes[row])
            contexts[code][row - bounds[code]] = context
        return [
            (name, sorted_batch.part(slice(start, stop), contexts.get(code, {})))
            for code, (name, start, stop) in enumerate(zip(self.names, bounds[:-1], bounds[1:], strict=True))
            if stop > start
        ]

    def part(self, rows: slice, contexts: Mapping[int, Mapping[str, Any]]) -> Self:
        """Return consecutive events with these contexts; the columns are views."""
        return type(self)(self.names, self.codes[rows], self.values[rows], self.steps[rows], self.times[rows], contexts)

    def __len__(self) -> int:
        return len(self.codes)


def context_bytes(context: Mapping[Any, Any]) -> int:
    """Return the approximate serialized size of an event's context in bytes."""
    return sum(_bytes_of(key) + _bytes_of(value) for key, value in context.items())


def _bytes_of(value: Any) -> int:
    if value is None or isinstance(value, int | float):
        return 8
    if isinstance(value, str | bytes):
        return len(value)
    try:
        return len(pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL))
    except Exception:  # noqa: BLE001 - a user's object, whose pickling may raise anything
        return sys.getsizeof(value)


def salvage(rows: Sequence[EventRow]) -> tuple[list[EventRow], list[tuple[str, str]]]:
    """Split rows into the ones that fit into a batch, and the (reason, name) of the rejected ones."""
    valid_rows: list[EventRow] = []
    invalid_rows: list[tuple[str, str]] = []
    for row in rows:
        try:
            EventBatch.from_rows([row])
        except OverflowError:
            invalid_rows.append(("non_finite" if _fits(row.step) else "step_out_of_range", str(row.name)))
        except (TypeError, ValueError):
            invalid_rows.append(("invalid", str(row.name)))
        else:
            valid_rows.append(row)
    return valid_rows, invalid_rows


def _fits(step: int) -> bool:
    return abs(step) <= np.iinfo(np.int64).max
