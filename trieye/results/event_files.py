"""EventDirectories: runs stored only as TensorBoard event files, such as runs of Stable-Baselines3."""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from operator import itemgetter
from pathlib import Path

import numpy as np

from trieye.results.runs import FOREIGN_AXIS, LoadedRun, PointReader, Points, Problems, Series, seed_in, typed
from trieye.sinks.tensorboard.reading import Scalar, params_of, scalars_in

_FIRST_BYTES = 64 << 10
"""Bytes read for parameters, which are written before the points; points are read on demand."""

OF_ADD_HPARAMS = re.compile(r"\d{10}\.\d+")
"""Name of the subdirectory where `SummaryWriter.add_hparams` stores the parameters of a run."""

_NUMBERED = re.compile(r"(.+?)_(\d+)")
"""Run names of Stable-Baselines3: `PPO_1`, `PPO_2`."""


def event_files(directory: Path) -> list[Path]:
    """Return the event files in a directory, oldest first."""
    return sorted(path for path in directory.glob("*tfevents*") if path.is_file())


def _files_of_add_hparams(directory: Path) -> list[Path]:
    directories = [path for path in directory.glob("*") if OF_ADD_HPARAMS.fullmatch(path.name)]
    return [file for path in sorted(directories) for file in event_files(path)]


class EventDirectories(PointReader):
    """Reads directories with event files, one run each.

    Args:
        problems: Collects a message for each unreadable file.
        names_media: Whether to report skipped images, histograms and texts to `problems`.
    """

    def __init__(self, problems: Problems, *, names_media: bool = False) -> None:
        self._problems, self._names_media = problems, names_media

    def run(self, directory: Path, root: Path) -> LoadedRun:
        """Return the run in a directory, named by its path below `root`.

        A run without parameters gets the parameter `tb_log_name`, so that runs of two algorithms are never mistaken for
        seeds of one config; a number at the end of the name, as in `PPO_1`, becomes the seed.
        """
        files = event_files(directory) + _files_of_add_hparams(directory)
        recorded_params, began = params_of(files, _FIRST_BYTES)
        params = {key: typed(value) if isinstance(value, str) else value for key, value in recorded_params.items()}
        is_root = directory == root
        name = directory.name if is_root else directory.relative_to(root).as_posix()
        seed = seed_in(params)
        if not params:
            match = _NUMBERED.fullmatch(name)
            params = {"tb_log_name": match[1] if match else name}
            seed = int(match[2]) if match else None
        return LoadedRun(
            path=str(directory),
            name=name,
            app=root.resolve().parent.name if is_root else root.name,
            params=params,
            seed=seed,
            status="UNKNOWN",
            step=None,
            source=self,
            axis=FOREIGN_AXIS,
            created=math.nan if began is None else began,
        )

    def read(self, runs: Sequence[LoadedRun], metrics: Collection[str] | None) -> Mapping[str, Points]:
        """Return all scalars of each run, keyed by `LoadedRun.path`; files are read whole, regardless of `metrics`."""
        del metrics
        return {
            run.path: points_in_events(Path(run.path), self._problems, names_media=self._names_media) for run in runs
        }


def points_in_events(directory: Path, problems: Problems, *, names_media: bool = False) -> Points:
    """Return the scalars of the event files in a directory; see `EventDirectories`.

    Metrics of `add_hparams`, which has no step, count unless the run logged a curve of that name.
    """
    files = event_files(directory)
    if not files:
        problems.note(directory, "its event files no longer exist")
    media: dict[str, set[str]] = {}
    scalars = scalars_in(_files_of_add_hparams(directory), problems.note, media)
    scalars |= scalars_in(files, problems.note, media)
    if names_media and media:
        names = "; ".join(f"{kind}: {', '.join(sorted(tags))}" for kind, tags in sorted(media.items()))
        problems.note(directory, f"only scalars are read, not {names}")
    return {tag: _series(points) for tag, points in scalars.items()}


def _series(points: Sequence[Scalar]) -> Series:
    # not `zip(*points)`, which creates an iterator per point
    steps, values, times = (map(itemgetter(column), points) for column in range(3))
    size = len(points)
    return Series(np.fromiter(steps, np.int64, size), np.fromiter(values, float, size), np.fromiter(times, float, size))
