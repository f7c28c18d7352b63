"""Selection: which runs a condition means, where runs differ, and which of them are replicates of one config."""

import json
import math
import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from trieye.config.base import did_you_mean
from trieye.exceptions import ConfigurationError
from trieye.results.runs import LoadedRun, is_seed

MISSING = object()
"""What a run has that lacks a parameter."""

ATTRIBUTES = ("seed", "name", "app", "status", "axis", "job", "sweep", "place")
"""What can be asked for besides parameters, where no parameter has that name."""

NOT_COUNTED = "not counted"
"""What problems say of a run in whose place another one counts."""

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


def condition(asked: str, allowed: Any, runs: Sequence[LoadedRun], *, strict: bool) -> Condition:
    """Return the test for runs that `where(asked=allowed)` stands for.

    Args:
        asked: A key, perhaps with `__ge` or another operator at its end.
        allowed: What its value is compared with.
        runs: Among which the key has to be known.
        strict: A run that lacks the parameter does not fit.

    Raises:
        ConfigurationError: No run knows the key, it may be several, or the operator is unknown.
    """
    name, _, suffix = asked.rpartition("__")
    if name and suffix not in _OPERATORS:
        hint = did_you_mean(suffix, _OPERATORS)
        raise ConfigurationError(f"{asked}: {suffix!r} is no operator{hint} (known: {', '.join(_OPERATORS)})")
    key = resolve(name or asked, runs)
    fits = _OPERATORS[suffix if name else "eq"]
    if suffix == "in" and name and (isinstance(allowed, str) or not isinstance(allowed, Collection)):
        raise ConfigurationError(f"{asked}={allowed!r}: give a list of the values that are allowed")

    def test(run: LoadedRun) -> bool:
        value = value_of(run, key)
        if value is MISSING:
            return not strict
        try:
            return bool(fits(value, allowed))
        except TypeError:  # such as None >= 1e-4
            return False

    return test


def resolve(asked: str, runs: Iterable[LoadedRun]) -> str:
    """Return the whole key that is meant: itself, or the only one that ends with it.

    Raises:
        ConfigurationError: No run knows it, or it may be several.
    """
    known = dict.fromkeys(key for run in runs for key in (*run.params, *run.varied, *run.defaults))
    if asked in known:
        return asked
    if asked in ATTRIBUTES:
        return asked
    found = [key for key in known if key.endswith(f".{asked}")]
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigurationError(f"{asked}: this may be {' or '.join(sorted(found))}; say which")
    last_parts = {key.rpartition(".")[2] for key in known}
    hint = did_you_mean(asked, [*known, *last_parts, *ATTRIBUTES])
    differing = compared_by(list(runs)) or sorted(known)
    more = ", ..." if len(differing) > _MAX_SHOWN else ""
    shown = ", ".join(differing[:_MAX_SHOWN]) + more
    raise ConfigurationError(f"{asked}: no run has such a parameter{hint} (what differs: {shown or 'nothing'})")


def value_of(run: LoadedRun, key: str) -> Any:
    """Return what a run has for a whole key; `MISSING` if nothing."""
    if key in run.params:
        return run.params[key]
    if key in run.varied:
        return run.varied[key]
    if key in run.defaults:
        return run.defaults[key]
    name = key.removeprefix(_OF_THE_RUN)
    if name not in ATTRIBUTES:
        return MISSING
    value = getattr(run, name)
    return MISSING if value is None else value


def attribute(name: str, runs: Iterable[LoadedRun]) -> str:
    """Return the key of an attribute, which differs from its name where runs have a parameter of that name."""
    is_parameter = any(name in run.params or name in run.varied for run in runs)
    return f"{_OF_THE_RUN}{name}" if is_parameter else name


def identity(value: Any) -> Any:
    """Return something hashable that equal values have in common."""
    if isinstance(value, bool):
        return bool, value
    is_plain = value is MISSING or value is None or isinstance(value, str | int)
    if is_plain or (isinstance(value, float) and not math.isnan(value)):
        return value
    return json.dumps(value, sort_keys=True, default=str)


def is_compared(key: str) -> bool:
    """Return False for seeds and for the keys that name the objective: they do not distinguish configs."""
    return not is_seed(key) and key not in ("loop.objective", "loop.mode")


def varying(runs: Sequence[LoadedRun]) -> list[str]:
    """Return the parameters, but for seeds, in which runs differ, or which only some of them have."""
    keys = dict.fromkeys(key for run in runs for key in run.params if is_compared(key))
    held = [{**run.defaults, **run.params} for run in runs]
    return [key for key in keys if len({identity(params.get(key, MISSING)) for params in held}) > 1]


def compared_by(runs: Sequence[LoadedRun]) -> list[str]:
    """Return by what runs are compared if nobody says: what varies in their sweeps, or else all that differs."""
    varied = dict.fromkeys(key for run in runs for key in run.varied if not is_seed(key))
    differing = [key for key in varied if len({identity(value_of(run, key)) for run in runs if run.varied}) > 1]
    return differing or varying(runs)


def grouped(runs: Iterable[LoadedRun], keys: Sequence[str]) -> dict[tuple[Any, ...], list[LoadedRun]]:
    """Return runs by their values of keys, in the order in which each combination is found first."""
    found: dict[tuple[Any, ...], list[LoadedRun]] = {}
    for run in runs:
        found.setdefault(tuple(identity(value_of(run, key)) for key in keys), []).append(run)
    return found


def identifying(runs: Sequence[LoadedRun], keys: Sequence[str]) -> list[str]:
    """Return the attributes that tell configs apart besides some keys: the app, and the sweep if it repeats a seed.

    Two apps with equal parameters are two programs. Two sweeps may share the seeds of a config out among them; if both
    have the same seed, the config was measured twice.
    """
    added: list[str] = []
    apps = [{run.app for run in group} for group in grouped(runs, keys).values()]
    if any(len(names) > 1 for names in apps):
        added.append(attribute("app", runs))
    for group in grouped(runs, [*keys, *added]).values():
        places = {(run.seed, run.sweep) for run in group if run.seed is not None}
        if len({seed for seed, _ in places}) < len(places):
            return [*added, attribute("sweep", runs)]
    return added


def replicates(
    groups: Sequence[Sequence[LoadedRun]], note: Callable[[str, str], None]
) -> tuple[list[int], list[list[list[LoadedRun | None]]]]:
    """Return the seeds of all groups, and for each group one row or more with the run of each seed, or None.

    A run without a seed takes a free place, in the order of the runs. Of several runs with one seed, the newest one
    that ended counts. The others get rows of their own if they are trials or were named to `load`, and are dropped
    otherwise.

    Args:
        groups: The runs of each config.
        note: Is told of each dropped run.
    """
    split = [_rows(runs, note) for runs in groups]
    seeds = {seed for rows in split for row in rows for seed in row}
    for runs, (row, *_) in zip(groups, split, strict=True):
        free = iter(range(len(seeds) + len(runs)))
        for run in (run for run in runs if run.seed is None):
            row[next(seed for seed in free if seed not in row)] = run
    every = sorted({seed for rows in split for row in rows for seed in row})
    return every, [[[row.get(seed) for seed in every] for row in rows] for rows in split]


def _rows(runs: Sequence[LoadedRun], note: Callable[[str, str], None]) -> list[dict[int, LoadedRun]]:
    main: dict[int, LoadedRun] = {}
    more: list[dict[int, LoadedRun]] = []
    for run in sorted(runs, key=_precedence)[::-1]:
        if run.seed is None:
            continue
        first = main.setdefault(run.seed, run)
        if first is not run and (run.is_named or _are_trials(first, run)):
            more.append({run.seed: run})
        elif first is not run:
            kind = "newer" if first.is_ended == run.is_ended else "finished"
            note(run.path, f"{NOT_COUNTED}: {first.path} is a {kind} run of the same app, config and seed {run.seed}")
    return [main, *more]


def _precedence(run: LoadedRun) -> tuple[bool, float]:
    return run.is_ended, 0.0 if math.isnan(run.created) else run.created


def _are_trials(one: LoadedRun, other: LoadedRun) -> bool:
    """Tell whether two runs are trials of one sweep or study, of which neither replaces the other."""
    if not one.sweep or one.sweep != other.sweep:
        return False
    return (one.job is not None and other.job is not None) or one.is_ended == other.is_ended


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> set[str]:
    """Return the keys in which parameters differ, but for seeds."""
    return {
        key
        for key in one.keys() | other.keys()
        if not is_seed(key) and identity(one.get(key, MISSING)) != identity(other.get(key, MISSING))
    }
