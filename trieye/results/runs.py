"""LoadedRun: a run of any program, without its points; PointReader: reads the points of runs."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Points = Mapping[str, "Series"]
"""The points of one run, by metric."""


class Series(NamedTuple):
    """The points of one metric in one run, in the order in which they were made.

    Attributes:
        steps: `[points]` int64, what the run counts as its steps.
        values: `[points]` float64.
        times: `[points]` float64, Unix time in seconds.
    """

    steps: NDArray[np.int64]
    values: NDArray[np.float64]
    times: NDArray[np.float64]


NOTHING = Series(np.zeros(0, np.int64), np.zeros(0), np.zeros(0))


class Problems:
    """What could not be read, in words, each once, in the order in which it was found."""

    def __init__(self) -> None:
        self.texts: dict[str, None] = {}
        self.num_left_out = 0

    def note(self, place: object, reason: object) -> None:
        """Take note that something at a place is left out, or not as it should be."""
        self.texts.setdefault(f"{place}: {reason}", None)

    def leave_out(self, place: object, reason: object) -> None:
        """Note that a run, or a file of it, is left out."""
        self.num_left_out += 1
        self.note(place, f"left out: {reason}")


class PointReader(Protocol):
    """Reads the points of the runs of one store."""

    def read(self, runs: Sequence["LoadedRun"], metrics: Collection[str] | None) -> Mapping[str, Points]:
        """Return the points of runs, by the `path` of each; what cannot be read is noted as a problem and left out.

        Args:
            runs: Runs of this source.
            metrics: Only these; None: all. More may be returned.
        """

    def metrics(self, runs: Sequence["LoadedRun"]) -> Collection[str]:
        """Return the names of the metrics that runs have."""


@dataclass(frozen=True, eq=False)
class LoadedRun:
    """A run of any program; its points are read on demand. `trieye.runs.StoredRun` describes a run directory of trieye.

    Attributes:
        path: Its directory, or its address in a store; no two runs of a result have the same.
        name: Its name.
        app: The app or experiment that it belongs to.
        params: Its parameters, with dotted names; the seed is among them.
        seed: Its seed; None if it tells none.
        status: RUNNING, FINISHED, FAILED or KILLED, as the run noted itself; UNKNOWN if it notes no such thing.
        step: Its last step, as far as that is known without reading its points.
        axis: What its steps count: `step`, `env_steps` or `updates`.
        created: When it was begun, in Unix seconds; NaN if nobody knows.
        run_id: Identity of a run of trieye, the same in its directory and in MLflow; empty for others.
        sweep: Directory of its sweep; empty if it belongs to none.
        job: Its number there.
        varied: What varies in its sweep, by key, such as the choice of a config group, which is no parameter.
        place: What was given to `load`, where it was found.
        defaults: Parameters with default values in sections that the run does not use. They are compared with other
            runs that set them, and shown nowhere else.
        is_closed: False until a killed run is closed: only its journal has the latest points.
        is_named: Whether `load` was given this run itself, not a directory with several runs.
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
    sweep: str = ""
    job: int | None = None
    varied: Mapping[str, Any] = field(default_factory=dict)
    place: str = ""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    is_closed: bool = True
    is_named: bool = False

    @property
    def is_ended(self) -> bool:
        """Whether it ran to its end, as far as its store tells."""
        return self.status not in {"FAILED", "KILLED", "RUNNING"}


def typed(text: str) -> Any:
    """Return a parameter that a store holds as text as what it looks like: a number, a truth value, None or a text."""
    words = {"true": True, "false": False, "none": None, "null": None}
    if text.lower() in words:
        return words[text.lower()]
    if not text.strip() or "_" in text:  # Python takes 2026_1 for a number
        return text
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def seed_in(params: Mapping[str, Any]) -> int | None:
    """Return the seed among parameters: `seed`, else the only key that ends with `.seed`."""
    found = [params["seed"]] if "seed" in params else [value for key, value in params.items() if is_seed(key)]
    is_one = len(found) == 1 and isinstance(found[0], int) and not isinstance(found[0], bool)
    return int(found[0]) if is_one else None


def is_seed(key: str) -> bool:
    """Tell whether a parameter is a seed, which tells replicates of a config apart, not configs."""
    return key.rpartition(".")[2] == "seed"
