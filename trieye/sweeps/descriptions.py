"""Description: a JSON file in which PyExpUtils describes an experiment, read as what varies in a sweep."""

import json
import math
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from trieye.config.base import did_you_mean
from trieye.config.hydra.axes import quoted
from trieye.exceptions import ConfigurationError
from trieye.sweeps.grid import bare

SWEPT = "metaParameters"
_CONFIG = Path("config.json")
_KEY = re.compile(r"\+{0,2}[A-Za-z_][\w-]*(?:\.[\w-]+)*")
_PLAIN = re.compile(r"[A-Za-z][\w./-]*")
_MEANS_SOMETHING = {"true", "false", "null", "nan", "inf"}
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True)
class Description:
    """An experiment: job `i` has combination `i % num_combinations` of its values, and is run `i // num_combinations`.

    The last key varies fastest.

    Attributes:
        path: Its file.
        fields: What the file holds.
        axes: The values of each key below `metaParameters`, dotted; an element of a list has its number as its key.
        runs: How often each combination is run.
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
            runs: How often each combination is run.
            blocks: What in it varies.

        Raises:
            ConfigurationError: It is not there, is damaged, or describes no sweep; the message names the file and the
                key.
        """
        fields = _fields(path)
        axes: dict[str, list[Any]] = {}
        for block in blocks:
            if not isinstance(fields.get(block), dict):
                hint = "" if block in fields else did_you_mean(block, fields)
                raise ConfigurationError(f"{path}: {block}, an object with the values of each key, is missing{hint}")
            for key, values in _leaves(path, fields[block], (block,), ()):
                if key in axes:
                    raise ConfigurationError(f"{path}: {key} is described twice")
                axes[key] = values
        return cls(path, fields, axes, runs)

    @property
    def words(self) -> list[str]:
        """What varies, as it would be typed."""
        return [f"{key}={','.join(map(_word, values))}" for key, values in self.axes.items()]

    @property
    def num_combinations(self) -> int:
        """How many combinations there are; without keys there is one, the empty one."""
        return math.prod(map(len, self.axes.values()))

    def values(self, index: int) -> dict[str, Any]:
        """Return the values of a job, by their dotted keys; they are its own.

        Raises:
            IndexError: There is no such job.
        """
        _, rest = self._run_and_combination(index)
        chosen = {}
        for key, values in reversed(list(self.axes.items())):
            rest, place = divmod(rest, len(values))
            chosen[bare(key)] = deepcopy(values[place])
        return dict(reversed(chosen.items()))

    def _run_and_combination(self, index: int) -> tuple[int, int]:
        if not 0 <= index < self.num_combinations * self.runs:
            raise IndexError(f"job {index}: {self.path} has the jobs 0 to {self.num_combinations * self.runs - 1}")
        return divmod(index, self.num_combinations)

    @property
    def name(self) -> str:
        """Its `name`, else the directories between that of all experiments and its file, else `unnamed`."""
        if isinstance(self.fields.get("name"), str):
            return str(self.fields["name"])
        root = Path(self._settings.get("experiment_directory", "experiments"))
        here, top = self.path.resolve().parent, root.resolve()
        if here.is_relative_to(top):
            here = here.relative_to(top)
        elif here.is_relative_to(Path.cwd()):
            here = here.relative_to(Path.cwd())
        else:
            here = Path(here.name)
        return here.as_posix() if here.parts else "unnamed"

    @property
    def save_pattern(self) -> str | None:
        """Its `save_path`, else that of the config.json in the working directory."""
        found = self.fields.get("save_path", self._settings.get("save_path"))
        return None if found is None else str(found)

    @cached_property
    def _settings(self) -> dict[str, Any]:
        return _fields(_CONFIG) if _CONFIG.is_file() else {}

    def save_path(self, index: int) -> str:
        """Return where a job keeps its results.

        `{name}`, `{run}`, `{params}`, a key that varies and what else is in the file stand for themselves.

        Raises:
            ConfigurationError: Nothing says where, or two jobs would share a path.
            IndexError: There is no such job.
        """
        pattern = self.save_pattern
        if pattern is None:
            raise ConfigurationError(
                f"{self.path}: save_path is missing; write it there or into {_CONFIG}, "
                "as in results/{name}/{params}/{run}"
            )
        run, _ = self._run_and_combination(index)
        values = {key: str(value).replace("/", "%2F") for key, value in self.values(index).items()}
        named = {key: str(value) for key, value in self.fields.items() if isinstance(value, str | int | float)}
        params = "_".join(f"{key}-{values[key]}" for key in sorted(values))
        known = {**named, **values, "name": self.name, "run": str(run), "params": params}
        self._check_places(pattern, known)
        return _PLACEHOLDER.sub(lambda match: known[match[1]], pattern)

    def _check_places(self, pattern: str, known: Mapping[str, str]) -> None:
        used = set(_PLACEHOLDER.findall(pattern))
        for name in sorted(used - known.keys()):
            raise ConfigurationError(
                f"save_path={pattern}: {{{name}}} stands for nothing in {self.path}{did_you_mean(name, known)} "
                f"(known: {', '.join(known)})"
            )
        missing = ["run"] if self.runs > 1 and "run" not in used else []
        if "params" not in used:
            missing += [bare(key) for key, values in self.axes.items() if len(values) > 1 and bare(key) not in used]
        if missing:
            raise ConfigurationError(
                f"save_path={pattern}: jobs of {self.path} would share a path; it lacks {{{'}, {'.join(missing)}}}"
                + (", or {params} for all keys" if missing != ["run"] else "")
            )

    def save_context(self, index: int, base: Path | str = ".") -> "SaveContext":
        """Return the directory in which a job keeps its results.

        Args:
            index: The job.
            base: What the path begins from.

        Raises:
            ConfigurationError: As `save_path`.
            IndexError: There is no such job.
        """
        return SaveContext(Path(base) / self.save_path(index))


@dataclass(frozen=True, slots=True)
class SaveContext:
    """Where a job keeps its results.

    Attributes:
        directory: The place.
    """

    directory: Path

    def resolve(self, name: str = "") -> Path:
        """Return the path of a file in it; a `../` at the beginning leads out of it."""
        found = self.directory
        parts = list(Path(name).parts)
        while parts and parts[0] == "..":
            found, parts = found.parent, parts[1:]
        return found.joinpath(*parts)

    def ensure_exists(self) -> Path:
        """Make the directory if it is not there, and return it."""
        self.directory.mkdir(parents=True, exist_ok=True)
        return self.directory

    def remove(self) -> None:
        """Delete the directory with all that is in it, if it is there."""
        if self.directory.exists():
            shutil.rmtree(self.directory)


def _fields(path: Path) -> dict[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise ConfigurationError(f"{path}: {key} is described twice")
            found[key] = value
        return found

    try:
        held = json.loads(path.read_bytes(), object_pairs_hook=once)
    except FileNotFoundError as error:
        near = did_you_mean(path.name, [other.name for other in path.parent.glob("*.json")])
        raise ConfigurationError(f"{path}: there is no such file{near}") from error
    except OSError as error:
        raise ConfigurationError(f"{path}: it cannot be read: {error.strerror}") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: this is no JSON: {error}") from error
    if not isinstance(held, dict):
        raise ConfigurationError(f"{path}: an object was expected, as in {{'{SWEPT}': {{'alpha': [0.1, 0.5]}}}}")
    return held


def _leaves(path: Path, value: Any, where: tuple[str, ...], key: tuple[str, ...]) -> Iterator[tuple[str, list[Any]]]:
    """Yield each dotted key with its values."""
    is_list = isinstance(value, list)
    if isinstance(value, dict) or (is_list and value and all(isinstance(item, dict) for item in value)):
        items = value.items() if isinstance(value, dict) else ((str(at), item) for at, item in enumerate(value))
        for name, item in items:
            yield from _leaves(path, item, (*where, name), (*key, name))
        return
    values, place = value if is_list else [value], ".".join(where)
    if not values:
        raise ConfigurationError(
            f"{path}: {place} is an empty list, so there would be no jobs; leave it out, or [null]"
        )
    if any(isinstance(item, dict) for item in values):
        raise ConfigurationError(f"{path}: {place} holds objects and values; a list holds either")
    if not _KEY.fullmatch(".".join(key)):
        raise ConfigurationError(f"{path}: {place} cannot be the key of a config: letters, digits, _, - and dots can")
    told = [str(item) for item in values]
    twice = next((item for at, item in enumerate(told) if item in told[:at]), None)
    if twice is not None:
        raise ConfigurationError(f"{path}: {place} has {twice} twice")
    yield ".".join(key), values


def _word(value: Any) -> str:
    """Return a value as Hydra's grammar has it."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, list):
        return f"[{','.join(map(_word, value))}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{_word(key)}:{_word(item)}" for key, item in value.items()) + "}"
    if not isinstance(value, str):
        return repr(value)
    is_plain = _PLAIN.fullmatch(value) and value.lower() not in _MEANS_SOMETHING
    return value if is_plain else quoted(value)
