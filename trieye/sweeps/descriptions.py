"""Description: reads a PyExpUtils experiment description (JSON) as the axes of a sweep."""

import itertools
import json
import math
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from trieye.config.base import did_you_mean
from trieye.config.hydra.axes import axes_of, typed
from trieye.config.hydra.override_text import bare
from trieye.exceptions import ConfigurationError, SerializationError
from trieye.files.atomic import write_atomic
from trieye.sweeps.grid import Grid

SWEPT = "metaParameters"
SAVE_PATHS = "save_paths.jsonl"
"""File in the directory of a sweep with the result directory of each job, one per line."""

_CONFIG = Path("config.json")
_KEY = re.compile(r"\+{0,2}[A-Za-z_][\w-]*(?:\.[\w-]+)*")
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True)
class Description:
    """An experiment: job `i` is run `i // num_combinations` of the value combination `i % num_combinations`.

    The last key varies fastest.

    Attributes:
        path: The file.
        fields: Content of the file.
        axes: Values of each dotted key below `metaParameters`; list elements have their index as key.
        runs: Number of runs of each combination.
    """

    path: Path
    fields: Mapping[str, Any]
    axes: Mapping[str, Sequence[Any]]
    runs: int = 1

    @classmethod
    def read(cls, path: Path, *, runs: int = 1, blocks: Sequence[str] = (SWEPT,)) -> Self:
        """Read a file.

        Args:
            path: The file.
            runs: Number of runs of each combination.
            blocks: Top-level keys with swept values.

        Raises:
            ConfigurationError: The file is missing or damaged, or describes no sweep; the message names file and key.
        """
        fields = _fields(path)
        axes: dict[str, list[Any]] = {}
        for block in blocks:
            if not isinstance(fields.get(block), dict):
                hint = "" if block in fields else did_you_mean(block, fields)
                raise ConfigurationError(f"{path}: {block}, an object with the values of each key, is missing{hint}")
            for key, values in _leaves(path, fields[block], (block,), ()):
                if key in axes:
                    raise ConfigurationError(f"{path}: duplicate key {key}")
                axes[key] = values
        return cls(path, fields, axes, runs)

    @property
    def words(self) -> list[str]:
        """The swept keys and values as command-line overrides."""
        return [f"{key}={','.join(map(typed, values))}" for key, values in self.axes.items()]

    @property
    def num_combinations(self) -> int:
        """Number of combinations; 1, the empty one, without keys."""
        return math.prod(map(len, self.axes.values()))

    def values(self, index: int) -> dict[str, Any]:
        """Return a deep copy of the values of a job, by dotted key.

        Raises:
            IndexError: The index is out of range.
        """
        _, remainder = self._run_and_combination(index)
        job_values = {}
        for key, values in reversed(list(self.axes.items())):
            remainder, position = divmod(remainder, len(values))
            job_values[bare(key)] = deepcopy(values[position])
        return dict(reversed(job_values.items()))

    def _run_and_combination(self, index: int) -> tuple[int, int]:
        if not 0 <= index < self.num_combinations * self.runs:
            raise IndexError(f"job {index}: {self.path} has jobs 0 to {self.num_combinations * self.runs - 1}")
        return divmod(index, self.num_combinations)

    @cached_property
    def name(self) -> str:
        """The `name` field, else the path of its directory below the experiment directory, else `unnamed`."""
        if isinstance(self.fields.get("name"), str):
            return str(self.fields["name"])
        directory = self.path.resolve().parent
        roots = (Path(self._settings.get("experiment_directory", "experiments")).resolve(), Path.cwd())
        root = next((root for root in roots if directory.is_relative_to(root)), directory.parent)
        return directory.relative_to(root).as_posix() if directory != root else "unnamed"

    @property
    def save_pattern(self) -> str | None:
        """The `save_path` field, else `save_path` of the config.json in the working directory."""
        pattern = self.fields.get("save_path", self._settings.get("save_path"))
        return None if pattern is None else str(pattern)

    @cached_property
    def _settings(self) -> dict[str, Any]:
        return _fields(_CONFIG) if _CONFIG.is_file() else {}

    def save_path(self, index: int) -> str:
        """Return the result directory of a job.

        The pattern may contain `{name}`, `{run}`, `{params}`, swept keys and other fields of the file.

        Raises:
            ConfigurationError: There is no `save_path`, or it contains an unknown placeholder.
            IndexError: The index is out of range.
        """
        pattern = self.save_pattern
        if pattern is None:
            raise ConfigurationError(
                f"{self.path}: save_path is missing; set it here or in {_CONFIG} to a pattern of result paths, such as "
                "results/{name}/{params}/{run}"
            )
        run, _ = self._run_and_combination(index)
        values = {key: str(value).replace("/", "%2F") for key, value in self.values(index).items()}
        field_texts = {key: str(value) for key, value in self.fields.items() if isinstance(value, str | int | float)}
        params = "_".join(f"{key}-{values[key]}" for key in sorted(values))
        fields = {**field_texts, **values, "name": self.name, "run": str(run), "params": params}
        for name in sorted(set(_PLACEHOLDER.findall(pattern)) - fields.keys()):
            raise ConfigurationError(
                f"save_path={pattern}: {{{name}}} is undefined in {self.path}{did_you_mean(name, fields)} "
                f"(choose from: {', '.join(fields)})"
            )
        return _PLACEHOLDER.sub(lambda match: fields[match[1]], pattern)

    def save_paths(self, grid: Grid) -> list[str]:
        """Return the result directory of each job of a sweep; empty if another value or key than described varies.

        Args:
            grid: The jobs, which may have other indices than in the description.

        Raises:
            ConfigurationError: See `save_path`; or two jobs would share a path.
        """
        choices = {bare(key): values for key, values in axes_of(self.words)}
        if self.runs > 1:
            choices = {"seed": tuple(map(str, range(self.runs))), **choices}
        columns = {
            bare(key): values for axis in grid.axes for key, *values in zip(axis.keys, *axis.places, strict=True)
        }
        is_described = all(set(columns[key]) <= set(values) for key, values in choices.items())
        if not (is_described and choices.keys() >= set(map(bare, grid.varying))):
            return []
        indices: dict[str, int] = {}
        for index in range(grid.size):
            own_index, values = 0, grid.all_values(index)
            for key, texts in choices.items():
                own_index = own_index * len(texts) + texts.index(values[key])
            path = self.save_path(own_index)
            if (other := indices.setdefault(path, index)) != index:
                raise ConfigurationError(
                    f"save_path={self.save_pattern}: jobs {other} ({' '.join(grid[other])}) and {index} "
                    f"({' '.join(grid[index])}) of {self.path} would share the path {path}; use {{params}} for all "
                    "keys, and {run} for the seed"
                )
        return list(indices)

    def save_context(self, index: int, base: Path | str = ".") -> "SaveContext":
        """Return the result directory of a job as a `SaveContext`.

        Args:
            index: Index of the job.
            base: Directory that the path is relative to.

        Raises:
            ConfigurationError: See `save_path`.
            IndexError: The index is out of range.
        """
        return SaveContext(Path(base) / self.save_path(index))


def write_save_paths(sweep: Path, paths: Sequence[str]) -> None:
    """Record the result directory of each job of a sweep, which becomes Hydra's output directory of the job.

    Args:
        sweep: Directory of the sweep.
        paths: The result directories, by index of the job.
    """
    write_atomic(sweep / SAVE_PATHS, "".join(f"{json.dumps(path)}\n" for path in paths).encode())


def save_path_in(sweep: Path, index: int) -> str | None:
    """Return the result directory of a job that was planned from a description; None if there is none.

    Args:
        sweep: Directory of the sweep.
        index: Index of the job.

    Raises:
        SerializationError: The file is damaged.
    """
    path = sweep / SAVE_PATHS
    try:
        with path.open("rb") as file:
            line = next(itertools.islice(file, index, None), None)
        return None if line is None else str(json.loads(line))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise SerializationError(f"{path} is damaged in line {index + 1}; repeat the plan") from error


@dataclass(frozen=True, slots=True)
class SaveContext:
    """Result directory of a job.

    Attributes:
        directory: The directory.
    """

    directory: Path

    def resolve(self, name: str = "") -> Path:
        """Return the path of a file in the directory; leading `../` leave it."""
        base = self.directory
        parts = list(Path(name).parts)
        while parts and parts[0] == "..":
            base, parts = base.parent, parts[1:]
        return base.joinpath(*parts)

    def ensure_exists(self) -> Path:
        """Create the directory if necessary, and return it."""
        self.directory.mkdir(parents=True, exist_ok=True)
        return self.directory

    def remove(self) -> None:
        """Delete the directory and its content, if it exists."""
        if self.directory.exists():
            shutil.rmtree(self.directory)


def _fields(path: Path) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        items: dict[str, Any] = {}
        for key, value in pairs:
            if key in items:
                raise ValueError(f"duplicate key {key}")
            items[key] = value
        return items

    try:
        fields = json.loads(path.read_bytes(), object_pairs_hook=unique)
    except OSError as error:
        hint = did_you_mean(path.name, [other.name for other in path.parent.glob("*.json") if other != path])
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}{hint}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ConfigurationError(f"{path}: expected an object, as in {{'{SWEPT}': {{'alpha': [0.1, 0.5]}}}}")
    return fields


def _leaves(path: Path, value: Any, parts: tuple[str, ...], key: tuple[str, ...]) -> Iterator[tuple[str, list[Any]]]:
    """Yield each dotted key with its values."""
    is_list = isinstance(value, list)
    if isinstance(value, dict) or (is_list and value and all(isinstance(item, dict) for item in value)):
        items = value.items() if isinstance(value, dict) else ((str(index), item) for index, item in enumerate(value))
        for name, item in items:
            yield from _leaves(path, item, (*parts, name), (*key, name))
        return
    values, full_key = value if is_list else [value], ".".join(parts)
    if not values:
        raise ConfigurationError(
            f"{path}: {full_key} is an empty list, so there would be no jobs; remove it, or use [null]"
        )
    if any(isinstance(item, dict) for item in values):
        raise ConfigurationError(f"{path}: {full_key} mixes objects and values; a list may contain only one kind")
    if not _KEY.fullmatch(".".join(key)):
        raise ConfigurationError(f"{path}: {full_key} is not a valid config key; use letters, digits, _, - and dots")
    text, count = Counter(map(str, values)).most_common(1)[0]
    if count > 1:
        raise ConfigurationError(f"{path}: {full_key} contains {text} twice")
    yield ".".join(key), values
