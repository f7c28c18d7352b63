"""Selection: conditions on runs, differences between runs, and the replicates of each config."""

import json
import math
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from trieye.config.base import did_you_mean
from trieye.exceptions import ConfigurationError
from trieye.renames import KEYS
from trieye.results.runs import LoadedRun, is_seed, listed, typed

MISSING = object()
"""Value of a parameter that a run lacks."""

ATTRIBUTES = ("seed", "name", "app", "status", "axis", "job", "sweep", "place")
"""Attributes of runs that conditions accept unless a parameter has the same name."""

NOT_COUNTED = "not counted"
"""Marks problems of runs that another run of the same config and seed replaces."""

_MAX_SHOWN = 8
_OF_THE_RUN = "run."
_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "ge": operator.ge,
    "le": operator.le,
    "gt": operator.gt,
    "lt": operator.lt,
    "in": lambda value, allowed: value in allowed,
}

Condition = Callable[[LoadedRun], bool]


def condition(name: str, allowed: Any, runs: Sequence[LoadedRun], *, strict: bool) -> Condition:
    """Return the predicate for runs of `where(name=allowed)`.

    Args:
        name: A key, optionally with `__ge` or another operator as suffix.
        allowed: The operand.
        runs: Runs among which the key is resolved.
        strict: Whether runs without the parameter are rejected.

    Raises:
        ConfigurationError: The key is unknown or ambiguous, or the operator is unknown.
    """
    stem, _, suffix = name.rpartition("__")
    if stem and suffix not in _OPERATORS:
        hint = did_you_mean(suffix, _OPERATORS)
        raise ConfigurationError(f"{name}: unknown operator {suffix!r}{hint} (choose from: {', '.join(_OPERATORS)})")
    key = resolve(stem or name, runs)
    fits = _OPERATORS[suffix if stem else "eq"]
    if suffix == "in" and stem and (isinstance(allowed, str) or not isinstance(allowed, Collection)):
        raise ConfigurationError(f"{name}={allowed!r}: expected a list of allowed values")

    def meets(value: Any) -> bool:
        try:
            return bool(fits(value, allowed))
        except TypeError:  # such as None >= 1e-4
            return False

    def test(run: LoadedRun) -> bool:
        value = value_of(run, key)
        if value is MISSING:
            return not strict
        forms = [value]
        if isinstance(value, str) and not isinstance(allowed, str):
            forms.append(typed(value))  # tags are texts, also where they look like numbers
        if value == run.sweep:  # a directory, which its name denotes as well
            forms.append(PurePath(value).name)
        each = map(meets, forms)
        return all(each) if fits is operator.ne else any(each)

    return test


def distinct(name: str, runs: Sequence[LoadedRun]) -> str:
    """Return the key of a name with its values, for messages: `agent.lr is 0.001, 0.01`."""
    key = resolve(name, runs)
    values = dict.fromkeys(str(value) for run in runs if (value := value_of(run, key)) is not MISSING)
    return f"{key} is {listed(list(values), _MAX_SHOWN)}"


def resolve(name: str, runs: Iterable[LoadedRun]) -> str:
    """Return the full key of a name: the name itself, or the only key that ends with it.

    Raises:
        ConfigurationError: The name is unknown or ambiguous.
    """
    keys = dict.fromkeys(key for run in runs for key in (*run.params, *run.varied, *run.defaults, *run.tags))
    if name in keys or name in ATTRIBUTES:
        return name
    if f"{name}.kind" in keys:  # the option of a config group, which is a key itself only where a sweep varies it
        return f"{name}.kind"
    matches = [key for key in keys if key.endswith(f".{name}")]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise ConfigurationError(f"{name}: ambiguous, could be {' or '.join(sorted(matches))}; use the full key")
    last_parts = {key.rpartition(".")[2] for key in keys}
    hint = f"; {KEYS[name]}" if name in KEYS else did_you_mean(name, [*keys, *last_parts, *ATTRIBUTES])
    differing_keys = listed(compared_by(list(runs)) or sorted(keys), _MAX_SHOWN)
    raise ConfigurationError(f"{name}: no run has this parameter{hint} (differing parameters: {differing_keys})")


def value_of(run: LoadedRun, key: str) -> Any:
    """Return the value of a full key in a run, or `MISSING`."""
    for values in (run.params, run.varied, run.defaults, run.tags):
        if key in values:
            return values[key]
    name = key.removeprefix(_OF_THE_RUN)
    if name not in ATTRIBUTES:
        return MISSING
    value = getattr(run, name)
    return MISSING if value is None else value


def value_or_none(run: LoadedRun, key: str) -> Any:
    """Return the value of a full key in a run; None if it has none."""
    return None if (value := value_of(run, key)) is MISSING else value


def attribute(name: str, runs: Iterable[LoadedRun]) -> str:
    """Return the key of an attribute: its name, prefixed with `run.` if runs have a parameter of that name."""
    is_parameter = any(name in run.params or name in run.varied for run in runs)
    return f"{_OF_THE_RUN}{name}" if is_parameter else name


def identity(value: Any) -> Any:
    """Return a hashable key that is equal for equal values."""
    if isinstance(value, bool):
        return bool, value
    is_plain = value is MISSING or value is None or isinstance(value, str | int)
    if is_plain or (isinstance(value, float) and not math.isnan(value)):
        return value
    return json.dumps(value, sort_keys=True, default=str)


def as_key(value: Any) -> Any:
    """Return a value as the key of a dictionary."""
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def is_compared(key: str) -> bool:
    """Return False for seeds and for the keys that name the objective: they do not distinguish configs."""
    return not is_seed(key) and key not in ("loop.objective", "loop.mode")


def varying(runs: Sequence[LoadedRun]) -> list[str]:
    """Return the parameters, except seeds, that differ between runs or that only some runs have."""
    keys = dict.fromkeys(key for run in runs for key in run.params if is_compared(key))
    with_defaults = [{**run.defaults, **run.params} for run in runs]
    return [key for key in keys if len({identity(params.get(key, MISSING)) for params in with_defaults}) > 1]


def compared_by(runs: Sequence[LoadedRun]) -> list[str]:
    """Return the default parameters to compare by: those varied in the sweeps, or else all that differ."""
    keys = dict.fromkeys(key for run in runs for key in run.varied if not is_seed(key))
    differing_keys = [key for key in keys if len({identity(value_of(run, key)) for run in runs if run.varied}) > 1]
    return differing_keys or varying(runs)


def grouped(runs: Iterable[LoadedRun], keys: Sequence[str]) -> dict[tuple[Any, ...], list[LoadedRun]]:
    """Group runs by their values of keys, in order of first appearance."""
    groups: dict[tuple[Any, ...], list[LoadedRun]] = {}
    for run in runs:
        groups.setdefault(tuple(identity(value_of(run, key)) for key in keys), []).append(run)
    return groups


def unselected_seeds(selected_runs: Iterable[LoadedRun], configs: Iterable[Sequence[LoadedRun]]) -> dict[str, set[int]]:
    """Return the seeds of the config of each selected run, by path, that are not selected.

    Args:
        selected_runs: The selected runs.
        configs: All runs of each config.
    """
    paths, seeds = {run.path for run in selected_runs}, dict[str, set[int]]()
    for runs in configs:
        other_seeds = {run.seed for run in runs if run.path not in paths and run.seed is not None}
        seeds |= {run.path: other_seeds for run in runs if run.path in paths}
    return seeds


def identifying(runs: Sequence[LoadedRun], keys: Sequence[str]) -> list[str]:
    """Return the attributes that distinguish configs in addition to `keys`: the app, and the sweep if a seed repeats.

    Two apps with equal parameters are two programs. Two sweeps may divide the seeds of a config among them; if both
    have the same seed, the config was measured twice.
    """
    attributes: list[str] = []
    apps = [{run.app for run in group} for group in grouped(runs, keys).values()]
    if any(len(names) > 1 for names in apps):
        attributes.append(attribute("app", runs))
    for group in grouped(runs, [*keys, *attributes]).values():
        seeds = {(run.seed, run.sweep) for run in group if run.seed is not None}
        if len({seed for seed, _ in seeds}) < len(seeds):
            return [*attributes, attribute("sweep", runs)]
    return attributes


def replicates(
    groups: Sequence[Sequence[LoadedRun]], note: Callable[[str, str], None]
) -> tuple[list[int], list[list[list[LoadedRun | None]]]]:
    """Return the seeds of all groups, and for each group one or more rows with the run of each seed, or None.

    A run without a seed takes the next unused seed, in the order of the runs, and counts once if it has several
    locations. Of several runs with the same seed, the newest finished run counts. The other runs get separate rows if
    they are trials or were named to `load`, and are dropped otherwise.

    Args:
        groups: The runs of each config.
        note: Called with the path of each dropped run and the reason.
    """
    rows_of_groups = [_rows(runs, note) for runs in groups]
    seeds = {seed for rows in rows_of_groups for row in rows for seed in row}
    for runs, (row, *_) in zip(groups, rows_of_groups, strict=True):
        free_seeds = iter(range(len(seeds) + len(runs)))
        for run in _without_seed(runs, note):
            row[next(seed for seed in free_seeds if seed not in row)] = run
    all_seeds = sorted({seed for rows in rows_of_groups for row in rows for seed in row})
    return all_seeds, [[[row.get(seed) for seed in all_seeds] for row in rows] for rows in rows_of_groups]


def _rows(runs: Sequence[LoadedRun], note: Callable[[str, str], None]) -> list[dict[int, LoadedRun]]:
    main_row: dict[int, LoadedRun] = {}
    extra_rows: list[dict[int, LoadedRun]] = []
    for run in sorted(runs, key=_precedence)[::-1]:
        if run.seed is None:
            continue
        counted_run = main_row.setdefault(run.seed, run)
        if counted_run is not run and (run.is_named or _are_trials(counted_run, run)):
            extra_rows.append({run.seed: run})
        elif counted_run is not run:
            note(run.path, f"{NOT_COUNTED}: {_replaced_by(counted_run, run)}")
    return [main_row, *extra_rows]


def _without_seed(runs: Sequence[LoadedRun], note: Callable[[str, str], None]) -> Iterator[LoadedRun]:
    counted_runs = {run.run_id: run for run in sorted(runs, key=_precedence)}
    for run in (run for run in runs if run.seed is None):
        counted_run = counted_runs[run.run_id]
        if run is counted_run or run.is_named or not run.run_id:
            yield run
        else:
            note(run.path, f"{NOT_COUNTED}: {_replaced_by(counted_run, run)}")


def _replaced_by(counted_run: LoadedRun, run: LoadedRun) -> str:
    if run.run_id and run.run_id == counted_run.run_id:
        return f"it is a copy of {counted_run.path}" if run.is_copy else f"{counted_run.path} has the same run id"
    kind = "newer" if counted_run.is_ended == run.is_ended else "finished"
    return f"{counted_run.path} is a {kind} run of the same app, config and seed {run.seed}"


def _precedence(run: LoadedRun) -> tuple[bool, bool, float]:
    return run.is_ended, not run.is_copy, 0.0 if math.isnan(run.created) else run.created


def _are_trials(one: LoadedRun, other: LoadedRun) -> bool:
    """Return whether two runs are trials of one sweep or study, so that neither replaces the other."""
    if not one.sweep or one.sweep != other.sweep:
        return False
    return (one.job is not None and other.job is not None) or one.is_ended == other.is_ended


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> set[str]:
    """Return the keys, except seeds, of differing parameters."""
    return {
        key
        for key in one.keys() | other.keys()
        if not is_seed(key) and identity(one.get(key, MISSING)) != identity(other.get(key, MISSING))
    }
