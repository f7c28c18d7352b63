"""LoadedRun: a run of any program, without its points; PointReader: reads the points of runs."""

import json
import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from trieye.history.arrow import as_numpy

Points = Mapping[str, "Series"]
"""Points of one run, by metric."""


class Series(NamedTuple):
    """Points of one metric in one run, in the order of logging.

    Attributes:
        steps: `[points]` int64, in the unit of `LoadedRun.axis`.
        values: `[points]` float64.
        times: `[points]` float64, Unix time in seconds.
    """

    steps: NDArray[np.int64]
    values: NDArray[np.float64]
    times: NDArray[np.float64]


NOTHING = Series(np.zeros(0, np.int64), np.zeros(0), np.zeros(0))


def points_in(table: Any) -> Points:
    """Return the points in a `pyarrow.Table` with the columns metric, step, value and wall_time."""
    names = table["metric"].combine_chunks().dictionary_encode()
    codes = as_numpy(names.indices)
    order = np.argsort(codes, kind="stable")
    columns = [as_numpy(table[name])[order] for name in ("step", "value", "wall_time")]
    bounds = np.searchsorted(codes[order], np.arange(len(names.dictionary) + 1)).tolist()
    parts = zip(names.dictionary.to_pylist(), bounds[:-1], bounds[1:], strict=True)
    return {name: Series(*(column[first:end] for column in columns)) for name, first, end in parts}


FOREIGN_AXIS = "env_steps"
"""Unit of the steps of a run that does not record it: CleanRL and Stable-Baselines3 count environment steps."""


class Problems:
    """Messages on unreadable runs and files, without duplicates, in order of discovery."""

    def __init__(self) -> None:
        self.texts: dict[str, None] = {}
        self.num_left_out = 0

    def note(self, path: object, reason: object) -> None:
        """Record a problem with a path."""
        self.texts.setdefault(f"{path}: {reason}", None)

    def leave_out(self, path: object, reason: object) -> None:
        """Record and count a skipped run or file."""
        self.num_left_out += 1
        self.note(path, f"skipped: {reason}")


class PointReader(Protocol):
    """Reads the points of the runs of one store."""

    def read(self, runs: Sequence["LoadedRun"], metrics: Collection[str] | None) -> Mapping[str, Points]:
        """Return the points of each run, keyed by `LoadedRun.path`; unreadable runs are skipped and reported.

        Args:
            runs: Runs of this reader.
            metrics: Requested metrics; None: all. The result may contain more.
        """

    def metrics(self, runs: Sequence["LoadedRun"]) -> Collection[str]:
        """Return the metric names of the runs; here, from all of their points."""
        return {name for points in self.read(runs, None).values() for name in points}

    def origin(self, run: "LoadedRun") -> Mapping[str, Any] | None:
        """Return the provenance that the store itself has for a run; here, none."""
        del run
        return None


@dataclass(frozen=True, eq=False)
class LoadedRun:
    """A run of any program; its points are read on demand. `trieye.runs.StoredRun` describes a run directory of trieye.

    Attributes:
        path: Run directory, or address in a store; unique among the runs of a result.
        name: Name of the run.
        app: App or experiment of the run.
        params: Parameters including the seed, with dotted names.
        seed: Seed; None if not recorded.
        status: RUNNING, FINISHED, FAILED or KILLED, as the run recorded it; UNKNOWN if it records no status.
        step: Last step; None if unknown without reading points.
        axis: Unit of the steps: `step`, `env_steps` or `updates`.
        created: Creation time in Unix seconds; NaN if unknown.
        run_id: Id of a trieye run, equal in its directory and in MLflow; empty for runs of other programs.
        is_copy: Whether its directory is a copy of another run directory, which still exists.
        sweep: Directory of its sweep; empty if it belongs to none.
        sweep_id: Distinguishes its sweep from equally named sweeps in other exported files; empty for other runs.
        job: Index of its job in the sweep.
        varied: Values that vary in its sweep, by key, including choices of config groups, which are not parameters.
        planned_seeds: Seeds of the jobs of its sweep with the same other values; None: all seeds of the sweep.
        place: Argument of `load` that contains the run.
        defaults: Parameters with default values in sections that the run does not use; used only to compare the run
            with runs that set them.
        is_closed: False for a killed run until it is closed; until then, only its journal has the latest points.
        is_named: Whether the run itself was an argument of `load`, rather than a directory of several runs.
        objective: Metric that rates a run without `loop.objective`; empty: none.
        modes: `max` or `min` by objective, from the sweep or the file of the run; they precede `loop.mode`.
        tags: Tags by key, such as `tags.variant`; they distinguish configs only where a selection names them.
    """

    path: str
    name: str
    app: str
    params: Mapping[str, Any]
    seed: int | None
    status: str
    step: int | None
    source: PointReader = field(repr=False)
    axis: str = "step"
    created: float = math.nan
    run_id: str = ""
    is_copy: bool = False
    sweep: str = ""
    sweep_id: str = ""
    job: int | None = None
    varied: Mapping[str, Any] = field(default_factory=dict)
    planned_seeds: frozenset[int] | None = None
    place: str = ""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    is_closed: bool = True
    is_named: bool = False
    objective: str = ""
    modes: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> Hashable:
        """A key that is equal if another location has the same run; `created` identifies the job of a Hydra program.

        The name of a job begins with the directory of its sweep, which may be renamed; it counts only if archives or
        the file system have cut `created` to seconds, which two sweeps may share.
        """
        if self.run_id or math.isnan(self.created):
            return self.run_id or self.path
        name = self.name.partition("/")[2] if self.sweep and not self.created.is_integer() else self.name
        return self.app, name, self.seed, self.job, self.created

    @property
    def cohort(self) -> Hashable:
        """A key that is equal for runs whose seeds are expected of each other."""
        return self.app, self.sweep, self.place, self.is_named

    def mode(self, metric: str) -> str | None:
        """Return `max` or `min`, whether higher or lower values of a metric are better; None if it is not recorded."""
        modes = set(self.modes.values())
        default = modes.pop() if len(modes) == 1 else self.params.get("loop.mode")
        return self.modes.get(metric, default)

    @property
    def is_ended(self) -> bool:
        """Whether the run finished; True for runs with an UNKNOWN status."""
        return self.status not in {"FAILED", "KILLED", "RUNNING"}


def typed(text: str) -> Any:
    """Parse a parameter stored as text: int, float, bool, None, list or dict, or else str."""
    words = {"true": True, "false": False, "none": None, "null": None}
    if text.lower() in words:
        return words[text.lower()]
    if text.startswith(("[", "{")):
        try:
            return json.loads(text)
        except ValueError:
            return text
    if not text.strip() or "_" in text:  # Python would parse 2026_1 as a number
        return text
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def own_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """Return the tags that the program of a run set, not MLflow or trieye, as `LoadedRun.tags`."""
    return {f"tags.{name}": text for name, text in tags.items() if not name.startswith(("mlflow.", "trieye."))}


def seed_in(params: Mapping[str, Any]) -> int | None:
    """Return the seed among parameters: `hydra.seed`, `seed`, else the only key that ends with `.seed`."""
    own_seeds = [params[key] for key in ("hydra.seed", "seed") if key in params]
    seeds = own_seeds[:1] or [value for key, value in params.items() if is_seed(key)]
    is_unique = len(seeds) == 1 and isinstance(seeds[0], int) and not isinstance(seeds[0], bool)
    return int(seeds[0]) if is_unique else None


def is_seed(key: str) -> bool:
    """Return whether a parameter is a seed, which distinguishes replicates of a config, not configs."""
    return key.rpartition(".")[2] == "seed"


def listed(texts: Sequence[str], max_texts: int) -> str:
    """Join the first texts for a message; `none` without texts."""
    return ", ".join([*texts[:max_texts], *(["..."] if len(texts) > max_texts else [])]) or "none"


def as_text(value: Any) -> str:
    """Return a parameter as a user types it."""
    return "null" if value is None else str(value)
