"""OfflineRuns: reads wandb offline files, one per run, with protobuf records in LevelDB's log format."""

import json
import math
import struct
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trieye.config.packages import require
from trieye.exceptions import ConfigurationError
from trieye.integrations.wandb.axes import Axes
from trieye.integrations.wandb.values import flat
from trieye.results.runs import LoadedRun, PointReader, Points, Problems, Series, seed_in

_BLOCK, _HEADER = 32768, 7
_WHOLE, _LAST = 1, 4
_MOST_DIGITS = 300
"""Integers with more digits are beyond the range of a float."""

_FILES = "*run-*/run-*.wandb"


class OfflineRuns(PointReader):
    """The runs below a directory `wandb`, or in one of its files.

    Args:
        path: The directory `wandb`, its parent, the directory of a run, or a `.wandb` file.
        problems: Collects a message for each unreadable file.

    Raises:
        ConfigurationError: The path contains no run, or wandb, whose record classes are needed, is not installed.
    """

    def __init__(self, path: Path, problems: Problems) -> None:
        require("wandb", "reading wandb files")
        files = (
            [path] if path.is_file() else [*path.glob("run-*.wandb"), *path.glob(_FILES), *path.glob(f"wandb/{_FILES}")]
        )
        if not files:
            raise ConfigurationError(
                f"{path}: contains no wandb run; expected files such as wandb/offline-run-*/run-*.wandb"
            )
        self._files, self._problems = sorted(files), problems

    def runs(self) -> list[LoadedRun]:
        """Return the runs, sorted by file name, which begins with the date."""
        return [run for run in map(self._run, self._files) if run is not None]

    def _run(self, path: Path) -> LoadedRun | None:
        params: dict[str, Any] = {}
        began, exit_code, step = None, None, None
        for record, values in self._records(path):
            if record.HasField("run"):
                began = record.run
                params |= values
            elif record.HasField("config"):
                params |= values
            elif record.HasField("exit"):
                exit_code = record.exit.exit_code
            elif record.HasField("history"):
                step = record.history.step.num
        if began is None:
            self._problems.leave_out(path, "it has no intact run record, with which a wandb file begins")
            return None
        params = {key: value for key, value in params.items() if key != "_wandb"}
        return LoadedRun(
            path=str(path),
            name=began.display_name or began.run_id,
            app=began.project or "uncategorized",
            params=params,
            seed=seed_in(params),
            status="KILLED" if exit_code is None else "FAILED" if exit_code else "FINISHED",
            step=step,
            source=self,
            created=began.start_time.seconds + began.start_time.nanos / 1e9
            if began.HasField("start_time")
            else math.nan,
        )

    def read(self, runs: Sequence[LoadedRun], metrics: Collection[str] | None) -> Mapping[str, Points]:
        """Return the points of each run, keyed by `LoadedRun.path`; omitted media are reported to `problems`.

        Numbers that only the summary of a run contains are points at its last step.
        """
        del metrics
        return {run.path: self._points(Path(run.path)) for run in runs}

    def _points(self, path: Path) -> Points:
        rows: list[tuple[int, float, dict[str, float]]] = []
        media: set[str] = set()
        summary: dict[str, float] = {}
        axes = Axes(lambda *_: None)
        for record, values in self._records(path):
            if record.HasField("metric"):
                metric = record.metric
                axes.define(metric.name or metric.glob_name, metric.step_metric or None)
                continue
            logged_values = dict(flat({key: value for key, value in values.items() if not key.startswith("_")}))
            numbers = {name: float(value) for name, value in logged_values.items() if isinstance(value, int | float)}
            if record.HasField("history"):
                media |= logged_values.keys() - numbers.keys()
                time_s = values.get("_timestamp")
                rows.append((record.history.step.num, time_s if isinstance(time_s, int | float) else math.nan, numbers))
            elif record.HasField("summary"):
                summary |= numbers
        last_row, last_time = rows[-1][:2] if rows else (0, math.nan)
        names = {name for _, _, numbers in rows for name in numbers}
        rows.append((last_row, last_time, {name: value for name, value in summary.items() if name not in names}))
        if media:
            self._problems.note(path, f"left out, because they are not numbers: {', '.join(sorted(media))}")
        return self._with_steps(path, rows, axes)

    def _with_steps(self, path: Path, rows: Sequence[tuple[int, float, dict[str, float]]], axes: Axes) -> Points:
        """Return the points of rows, whose steps are the values of their step metrics."""
        for _, _, numbers in rows:
            fractions = {axis for axis in axes.step_metrics & numbers.keys() if not numbers[axis].is_integer()}
            axes.fractional |= {axis for axis in fractions if math.isfinite(numbers[axis])}
        if axes.fractional:
            names = ", ".join(sorted(axes.fractional))
            self._problems.note(
                path, f"row numbers replace steps, because these step metrics have fractional values: {names}"
            )
        points: dict[str, list[tuple[int, float, float]]] = {}
        for row, time_s, numbers in rows:
            axes.update(numbers)
            for name, value in numbers.items():
                points.setdefault(name, []).append((axes.step_of(name, row), value, time_s))
        return {name: Series(*map(np.array, zip(*items, strict=True))) for name, items in points.items()}

    def _records(self, path: Path) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Yield the records and their values, up to the first damaged record."""
        from google.protobuf.message import DecodeError

        try:
            for proto in records_in(path):
                config, summary = proto.config.update or proto.run.config.update, proto.summary.update
                items = proto.history.item or summary or config
                yield proto, values_of(items)
        except (OSError, OverflowError, ValueError, DecodeError) as error:
            self._problems.note(path, f"read up to the first damaged record: {' '.join(str(error).split())}")


def records_in(path: Path) -> Iterator[Any]:
    """Yield the records in a wandb file as instances of wandb's `Record`."""
    from wandb.proto.wandb_internal_pb2 import Record

    for data in _blocks_of(path.read_bytes()):
        yield Record.FromString(data)


def _blocks_of(data: bytes) -> Iterator[bytes]:
    """Yield the records of a log in LevelDB's format; an incomplete last record is skipped.

    Raises:
        ValueError: A checksum does not match.
    """
    offset, payload = _HEADER, b""
    while offset + _HEADER <= len(data):
        num_left = _BLOCK - offset % _BLOCK
        if num_left < _HEADER:
            offset += num_left
            continue
        checksum, length, kind = struct.unpack_from("<IHB", data, offset)
        if offset + _HEADER + length > len(data):
            return
        content = data[offset + _HEADER - 1 : offset + _HEADER + length]  # the checksum covers the kind byte
        if zlib.crc32(content) != checksum:
            raise ValueError(
                f"the record at byte {offset} has checksum {zlib.crc32(content):08x}, expected {checksum:08x}"
            )
        payload += content[1:]
        offset += _HEADER + length
        if kind in {_WHOLE, _LAST}:
            yield payload
            payload = b""


def values_of(items: Iterable[Any]) -> dict[str, Any]:
    """Return the values of the items of a record as nested dicts.

    Raises:
        ValueError: A value is not JSON.
    """
    values: dict[str, Any] = {}
    for item in items:
        *parent_keys, leaf_key = item.nested_key or [item.key]
        parent_items = values
        for parent_key in parent_keys:
            parent_items = parent_items.setdefault(parent_key, {})
        try:
            parent_items[leaf_key] = json.loads(item.value_json, parse_int=_int_of)
        except ValueError as error:
            raise ValueError(f"the value of {leaf_key}, {item.value_json[:80]!r}, is not JSON") from error
    return values


def _int_of(text: str) -> float:
    return int(text) if len(text) <= _MOST_DIGITS else float(text)
