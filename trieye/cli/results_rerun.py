"""What `trieye results select --rerun` does: the best configs of a sweep once more, on seeds of their own."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trieye.cli.confirmation import confirm
from trieye.cli.results_asked import Asked
from trieye.config.sweeper import SweeperConfig
from trieye.exceptions import ConfigurationError
from trieye.results import statistics, tables
from trieye.results.groups import RunGroups, ScoreDefinition
from trieye.results.hyperparameters import Selection
from trieye.results.loading import load
from trieye.results.runs import LoadedRun, is_seed
from trieye.results.selection import differences
from trieye.sweeps.grid import Grid, bare
from trieye.sweeps.record import SweepRecord, lock_in
from trieye.sweeps.spec import grid_of

_OF_THE_GRID = ("hydra.sweeper.", "hydra.sweep.dir", "hydra.mode")


def rerun(asked: Asked, found: Mapping[str, tuple[RunGroups, Selection]]) -> int:
    """Run the best config of each group again, and show how both stages came out; return the exit code.

    Raises:
        ConfigurationError: The runs are of no sweep, or of several, or one cannot be run again.
    """
    places = {
        (name, place): _first(groups, place)
        for name, (groups, chosen) in found.items()
        for place in (chosen.not_worse if asked.options.close else (chosen.best,))
    }
    sweep = _sweep_of(list(places.values()))
    record = SweepRecord.of(sweep).at(sweep)
    grid = record.the_grid()
    seeds = [run.seed for run in asked.all_runs if run.seed is not None]
    seeds += [int(value) for axis in grid.axes for value in _seeds(axis) if value.lstrip("-").isdecimal()]
    first = max(seeds, default=-1) + 1
    fresh = range(first, first + asked.options.rerun)
    jobs = [grid[run.job] for run in places.values() if run.job is not None]
    again = _record(record, jobs, fresh)
    directory = sweep.with_name(f"{sweep.name}_rerun_{again.the_grid().fingerprint[:8]}")
    names = ", ".join(found[name][0].labels[place] for name, place in places)
    seen = f"seeds {fresh[0]} to {fresh[-1]}" if len(fresh) > 1 else f"seed {fresh[0]}"
    print(f"again, with {seen}: {names}\nin {directory}")
    if not asked.options.dry_run:
        confirm(
            [*record.program, *again.own, *again.spec],
            record.working_dir,
            origin=str(sweep),
            is_signed=record.is_signed,
            is_confirmed=asked.options.yes,
        )
        again.sign()
        with lock_in(directory):
            if SweepRecord.read(directory) is None:
                again.write(directory)
    else:
        for index in again.the_grid():
            print(f"  job {index}: {' '.join(again.the_grid()[index])}")
        return 0
    from trieye.cli import main

    code = main(["sweep", "relaunch", "--yes", str(directory)])
    _show(asked, places, found, directory)
    return code


def _first(groups: RunGroups, place: int) -> LoadedRun:
    number = next(number for number in groups.rows[place] if number is not None)
    return next(run for run in groups.results.table[number] if run is not None)


def _sweep_of(runs: Sequence[LoadedRun]) -> Path:
    places = {run.sweep for run in runs if run.job is not None}
    if len(places) != 1 or any(run.job is None for run in runs):
        shown = ", ".join(sorted(places)) or "no sweep"
        raise ConfigurationError(
            f"--rerun: what was chosen is of {shown}; it needs one sweep, whose program it can start: give the "
            "directory of one, or use `trieye rerun RUN seed=...`"
        )
    return Path(places.pop())


def _seeds(axis: Any) -> list[str]:
    return [value for place in axis.places for key, value in zip(axis.keys, place, strict=True) if is_seed(bare(key))]


def _record(record: SweepRecord, jobs: Sequence[Sequence[str]], seeds: Sequence[int]) -> SweepRecord:
    """Return the sweep that runs the configs of some jobs of another one, with other seeds."""
    columns: dict[str, list[str]] = {}
    seed_key = "seed"
    for words in jobs:
        for word in words:
            key, _, value = word.partition("=")
            if is_seed(bare(key)):
                seed_key = key
            else:
                columns.setdefault(key, []).append(value)
    if any(len(values) != len(jobs) for values in columns.values()):
        raise ConfigurationError("--rerun: the configs have not the same keys; run them one by one with --where")
    zipped = [key for key, values in columns.items() if len(set(values)) > 1]
    words = [f"{key}={','.join(values) if key in zipped else values[0]}" for key, values in columns.items()]
    words.append(f"{seed_key}={','.join(map(str, seeds))}")
    options: dict[str, Any] = {"zip": [[bare(key) for key in zipped]]} if len(zipped) > 1 else {}
    own = [word for word in record.own if not word.lstrip("+").startswith(_OF_THE_GRID)]
    if not any(word.startswith("hydra/sweeper=") for word in own):
        own.insert(0, "hydra/sweeper=trieye")
    own += [f"hydra.sweeper.{key}={json.dumps(value)}" for key, value in options.items()]
    grid: Grid = grid_of(words, SweeperConfig.model_validate(options))
    made = SweepRecord(program=record.program, working_dir=record.working_dir, spec=words, own=own, mode=record.mode)
    made.set_grid(grid)
    return made


def _show(
    asked: Asked,
    places: Mapping[tuple[str, int], LoadedRun],
    found: Mapping[str, tuple[RunGroups, Selection]],
    directory: Path,
) -> None:
    """Show both stages apart: what was chosen by is no evidence of how good the choice is."""
    fresh = load(directory)
    scoring: ScoreDefinition = asked.scoring
    rows: dict[str, dict[str, statistics.Estimate]] = {}
    for (name, place), run in places.items():
        groups, chosen = found[name]
        label = groups.labels[place]
        rows[f"{label}, seeds it was chosen by"] = {asked.stat: chosen.estimates[place]}
        same = fresh.only(other for other in fresh if not differences(other.params, run.params))
        if len(same):
            (scores,) = RunGroups.of(same, ["place"], asked.options.task).scores(scoring)
            rows[f"{label}, fresh seeds"] = {asked.stat: statistics.aggregate(scores, asked.stat, **asked.intervals)}
    table = tables.scores_table(rows, asked.stat, title=asked.title, confidence=asked.options.confidence)
    asked.console.print(table)
    for text in fresh.problems:
        asked.console.print(text, style="yellow")
