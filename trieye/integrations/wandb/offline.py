"""OfflineRuns: what wandb wrote offline; a log in LevelDB's format of its own records, one file for each run."""

import json
import math
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trieye.exceptions import ConfigurationError
from trieye.results.runs import Points, Problems, Series, StoredRun, seed_in

_BLOCK, _HEADER = 32768, 7
_WHOLE, _LAST = 1, 4
_FILES = "*run-*/run-*.wandb"


class OfflineRuns:
    """The runs below a directory `wandb`, or in one file of it.

    Args:
        path: The directory `wandb`, the one that holds it, that of a run, or its `.wandb` file.
        problems: Takes what cannot be read.

    Raises:
        ConfigurationError: There is none, or wandb is not installed, which knows what its records are.
    """

    def __init__(self, path: Path, problems: Problems) -> None:
        try:
            import wandb  # noqa: F401
        except ModuleNotFoundError as error:
            raise ConfigurationError("reading files of wandb needs it: pip install 'trieye[wandb]'") from error
        found = (
            [path] if path.is_file() else [*path.glob("run-*.wandb"), *path.glob(_FILES), *path.glob(f"wandb/{_FILES}")]
        )
        if not found:
            raise ConfigurationError(
                f"{path}: there is no run of wandb in it, a file such as wandb/offline-run-*/run-*.wandb"
            )
        self._files, self._problems = sorted(found), problems

    def runs(self) -> list[StoredRun]:
        """Return the runs, in the order of their names, which begin with their dates."""
        return [run for run in map(self._run, self._files) if run is not None]

    def _run(self, path: Path) -> StoredRun | None:
        params: dict[str, Any] = {}
        begun, exit_code, step = None, None, None
        for record in self._records(path):
            if record.HasField("run"):
                begun = record.run
                params |= values_of(record.run.config.update)
            elif record.HasField("config"):
                params |= values_of(record.config.update)
            elif record.HasField("exit"):
                exit_code = record.exit.exit_code
            elif record.HasField("history"):
                step = record.history.step.num
        if begun is None:
            self._problems.note(path, "left out: it does not say which run it is of")
            return None
        params = {key: value for key, value in params.items() if key != "_wandb"}
        return StoredRun(
            path=str(path),
            name=begun.display_name or begun.run_id,
            app=begun.project or "uncategorized",
            params=params,
            seed=seed_in(params),
            status="KILLED" if exit_code is None else "FAILED" if exit_code else "FINISHED",
            step=step,
            source=self,
            created=begun.start_time.seconds + begun.start_time.nanos / 1e9
            if begun.HasField("start_time")
            else math.nan,
        )

    def metrics(self, runs: Sequence[StoredRun]) -> Collection[str]:
        """Return the names of the metrics that runs have."""
        return {name for points in self.read(runs, None).values() for name in points}

    def read(self, runs: Sequence[StoredRun], metrics: Collection[str] | None) -> Mapping[str, Points]:
        """Return all numbers of runs, by the `path` of each; media are left out, which is noted."""
        del metrics
        return {run.path: self._points(Path(run.path)) for run in runs}

    def _points(self, path: Path) -> Points:
        found: dict[str, list[tuple[int, float, float]]] = {}
        media: set[str] = set()
        for record in self._records(path):
            if record.HasField("history"):
                values = values_of(record.history.item)
                at = float(values.get("_timestamp", math.nan))
                for name, value in _leaves({key: held for key, held in values.items() if key[0] != "_"}):
                    if isinstance(value, int | float):
                        found.setdefault(name, []).append((record.history.step.num, float(value), at))
                    else:
                        media.add(name)
        if media:
            self._problems.note(path, f"no numbers, and left out: {', '.join(sorted(media))}")
        return {name: Series(*map(np.array, zip(*held, strict=True))) for name, held in found.items()}

    def _records(self, path: Path) -> Iterator[Any]:
        from google.protobuf.message import DecodeError

        try:
            yield from records_in(path)
        except (OSError, DecodeError) as error:
            self._problems.note(path, f"read up to where it is damaged: {error}")


def records_in(path: Path) -> Iterator[Any]:
    """Yield the records in a file of wandb, as its own class `Record`."""
    from wandb.proto.wandb_internal_pb2 import Record

    for data in _blocks_of(path.read_bytes()):
        yield Record.FromString(data)


def _blocks_of(data: bytes) -> Iterator[bytes]:
    """Yield the records of a log in LevelDB's format, up to one that is not whole: it is being written, or was cut."""
    at, whole = _HEADER, b""
    while at + _HEADER <= len(data):
        left = _BLOCK - at % _BLOCK
        if left < _HEADER:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        if at + _HEADER + length > len(data):
            return
        whole += data[at + _HEADER : at + _HEADER + length]
        at += _HEADER + length
        if kind in {_WHOLE, _LAST}:
            yield whole
            whole = b""


def values_of(items: Iterable[Any]) -> dict[str, Any]:
    """Return what items of a record say, nested as they were."""
    values: dict[str, Any] = {}
    for item in items:
        *parents, name = item.nested_key or [item.key]
        place = values
        for parent in parents:
            place = place.setdefault(parent, {})
        place[name] = json.loads(item.value_json)
    return values


def _leaves(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and "_type" not in value:
            yield from _leaves(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value
