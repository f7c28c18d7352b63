"""Rerun the best configs of a sweep with fresh seeds, for `trieye results select --rerun`."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trieye.cli.confirmation import confirm
from trieye.cli.run_selection import RunSelection
from trieye.config.hydra.override_text import bare
from trieye.config.sweeper import SweeperConfig
from trieye.exceptions import ConfigurationError
from trieye.results import statistics, tables
from trieye.results.groups import RunGroups, ScoreDefinition
from trieye.results.hyperparameters import Selection
from trieye.results.loading import load, seeds_of
from trieye.results.runs import LoadedRun, is_seed
from trieye.results.selection import differences
from trieye.sweeps.grid import Grid
from trieye.sweeps.importance import number_of
from trieye.sweeps.jobs import JobRecord
from trieye.sweeps.record import SweepRecord, lock_in
from trieye.sweeps.spec import grid_of

_MODE = "hydra.sweeper.mode="
_OF_THE_GRID = ("hydra.sweeper.", "hydra.sweep.dir", "hydra.mode")


def rerun(selected: RunSelection, selections: Mapping[str, tuple[RunGroups, Selection]]) -> int:
    """Rerun the best config of each group, show the scores of both stages, and return the exit code.

    Raises:
        ConfigurationError: The runs do not belong to exactly one sweep, or a config cannot be rerun.
    """
    configs = {
        (name, row): _runs(groups, row)
        for name, (groups, selection) in selections.items()
        for row in (selection.not_worse if selected.options.close else (selection.best,))
    }
    selected_runs = [run for runs in configs.values() for run in runs]
    sweep = _sweep_of(selected_runs)
    record = SweepRecord.of(sweep).at(sweep)
    seeds = [run.seed for run in selected.all_runs if run.seed is not None]
    if record.is_search:
        jobs: list[Sequence[str]] = [_overrides_in(sweep / str(run.job)) for run in selected_runs]
    else:
        grid = record.the_grid()
        seeds += seeds_of(grid)
        jobs = [grid[run.job] for run in selected_runs if run.job is not None]
    first_seed = max(seeds, default=-1) + 1
    fresh_seeds = range(first_seed, first_seed + selected.options.rerun)
    rerun_record = _record(record, jobs, fresh_seeds)
    directory = sweep.with_name(f"{sweep.name}_rerun_{rerun_record.the_grid().fingerprint[:8]}")
    names = ", ".join(_label(selections, *key) for key in configs)
    seed_text = f"seeds {fresh_seeds[0]} to {fresh_seeds[-1]}" if len(fresh_seeds) > 1 else f"seed {fresh_seeds[0]}"
    print(f"rerun with {seed_text}: {names}\nsweep directory: {directory}")
    if not selected.options.dry_run:
        if not (record.is_signed and _are_of_the_command(record, jobs)):
            command = [*record.program, *rerun_record.own, *rerun_record.spec]
            confirm(command, record.working_dir, str(sweep), is_confirmed=selected.options.yes)
        rerun_record.sign()
        with lock_in(directory):
            if SweepRecord.read(directory) is None:
                rerun_record.write(directory)
    else:
        for index in rerun_record.the_grid():
            print(f"  job {index}: {' '.join(rerun_record.the_grid()[index])}")
        return 0
    from trieye.cli import main

    code = main(["sweep", "relaunch", "--yes", str(directory)])
    _show(selected, configs, selections, directory)
    return code


def _label(selections: Mapping[str, tuple[RunGroups, Selection]], name: str, row: int) -> str:
    """Return the label of a config, with the name of its group if there are several groups."""
    label = selections[name][0].labels[row]
    return f"{name} {label}" if name else label


def _runs(groups: RunGroups, row: int) -> list[LoadedRun]:
    """Return a run of each task of the group in this row."""
    rows = [groups.results.table[config_index] for config_index in groups.rows[row] if config_index is not None]
    return [next(run for run in runs if run is not None) for runs in rows]


def _sweep_of(runs: Sequence[LoadedRun]) -> Path:
    sweeps = {run.sweep for run in runs if run.job is not None}
    if len(sweeps) != 1 or any(run.job is None for run in runs):
        names = ", ".join(sorted(sweeps)) or "no sweep"
        raise ConfigurationError(
            f"--rerun: the selected runs belong to {names}; --rerun needs runs of one sweep to start its program: pass "
            "one sweep directory, or use `trieye rerun RUN seed=...`"
        )
    return Path(sweeps.pop())


def _are_of_the_command(record: SweepRecord, jobs: Iterable[Sequence[str]]) -> bool:
    """Return whether all overrides have keys of the signed command or numbers: the files of jobs are not signed."""
    keys = {bare(word.partition("=")[0]) for word in record.spec}
    words = [word.partition("=") for job in jobs for word in job]
    return all(bare(key) in keys or number_of(value) is not None for key, _, value in words)


def _overrides_in(job_dir: Path) -> list[str]:
    record = JobRecord.read(job_dir)
    if record is None:
        raise ConfigurationError(f"--rerun: {job_dir} has no record of its job, so its values are unknown")
    return record.overrides


def _record(record: SweepRecord, jobs: Sequence[Sequence[str]], seeds: Sequence[int]) -> SweepRecord:
    """Return the record of a sweep that repeats jobs of `record` with other seeds.

    Args:
        record: The original sweep.
        jobs: Overrides of each job to repeat.
        seeds: Seeds of the new sweep.
    """
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
        raise ConfigurationError("--rerun: the configs have different keys; rerun them one by one, selected by --where")
    zipped_keys = [key for key, values in columns.items() if len(set(values)) > 1]
    words = [f"{key}={','.join(values) if key in zipped_keys else values[0]}" for key, values in columns.items()]
    words.append(f"{seed_key}={','.join(map(str, seeds))}")
    options: dict[str, Any] = {"zip": [[bare(key) for key in zipped_keys]]} if len(zipped_keys) > 1 else {}
    own_words = [word for word in record.own if word.startswith(_MODE) or not word.lstrip("+").startswith(_OF_THE_GRID)]
    if not any(word.startswith("hydra/sweeper=") for word in own_words):
        own_words.insert(0, "hydra/sweeper=trieye")
    if record.is_search:  # its options may come from a config file
        own_words += ["hydra.sweeper.kind=grid", "hydra.sweeper.pruner=none"]
    own_words += [f"hydra.sweeper.{key}={json.dumps(value)}" for key, value in options.items()]
    grid: Grid = grid_of(words, SweeperConfig.model_validate(options))
    new_record = SweepRecord(
        program=record.program, working_dir=record.working_dir, spec=words, own=own_words, mode=record.mode
    )
    new_record.set_grid(grid)
    return new_record


def _show(
    selected: RunSelection,
    configs: Mapping[tuple[str, int], Sequence[LoadedRun]],
    selections: Mapping[str, tuple[RunGroups, Selection]],
    directory: Path,
) -> None:
    """Show the scores of both stages separately, because the selection biases the scores of the first stage."""
    fresh_runs = load(directory)
    scoring: ScoreDefinition = selected.scoring
    stat = selected.stat
    rows: dict[str, dict[str, statistics.Estimate]] = {}
    for (name, row), runs in configs.items():
        label = _label(selections, name, row)
        rows[f"{label}, selection seeds"] = {stat: selections[name][1].estimates[row]}
        tasks = [
            [fresh_run for fresh_run in fresh_runs if not differences(fresh_run.params, run.params)] for run in runs
        ]
        if all(tasks):  # else the mean over fewer tasks would be another figure
            same_runs = fresh_runs.only(run for task_runs in tasks for run in task_runs)
            (scores,) = RunGroups.of(same_runs, ["place"], selected.options.task).scores(scoring)
            rows[f"{label}, fresh seeds"] = {stat: statistics.aggregate(scores, stat, **selected.intervals)}
    table = tables.scores_table(rows, stat, title=selected.title, confidence=selected.options.confidence)
    selected.console.print(table)
    for text in fresh_runs.problems:
        selected.console.print(text, style="yellow")
