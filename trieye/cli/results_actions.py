"""The actions of `trieye results`: compute tables, plots, reports and exports, and print or save them."""

import argparse
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from trieye.cli.output import print_json
from trieye.cli.run_selection import RunSelection, metrics_in, select_runs, sources_of
from trieye.config.base import did_you_mean
from trieye.exceptions import ConfigurationError
from trieye.process.terminal import TextTable
from trieye.results import hyperparameters, score_files, selection, statistics, tables
from trieye.results.aggregates import Aggregate
from trieye.results.conversion import written
from trieye.results.curves import aggregate_curves
from trieye.results.groups import Pair, RunGroups, ScoreDefinition
from trieye.results.hyperparameters import Selection
from trieye.results.loading import load
from trieye.sweeps.importance import MIN_JOBS, importances
from trieye.sweeps.report import importance_rows

_MOST_PAIRS = 15
_MOST_CONFIGS = 20
_MOST_COLUMNS = 5


def table(options: argparse.Namespace) -> int:
    """Show the aggregate scores of each group."""
    is_table = _is_table(options.output)
    selected = RunSelection(options)
    groups = selected.groups()
    scores = groups.scores(selected.scoring)
    # with one task, `median` (of the tasks' means) would equal the mean
    median: Aggregate = "run_median" if len(groups.tasks) == 1 else "median"
    names: dict[Aggregate, None] = dict.fromkeys([selected.stat, "iqm", median, "mean"])
    figures = [{name: statistics.aggregate(group, name, **selected.intervals) for name in names} for group in scores]
    mains = [group[selected.stat] for group in figures]
    ranked_rows = hyperparameters.ranked(mains, groups.penalties(selected.scoring), selected.figure_mode)
    num_diverged = groups.diverged(selected.scoring)
    rows = [
        {"label": groups.labels[row], "values": groups.values[row], "diverged": num_diverged[row], **figures[row]}
        for row in ranked_rows
    ]
    labels = groups.marked(selected.scoring).labels
    shown_rows = {labels[row]: {**figures[row], "std": statistics.spread(scores[row])} for row in ranked_rows}
    text_table = tables.scores_table(shown_rows, selected.stat, title=selected.title, confidence=options.confidence)
    if not options.json:
        selected.console.print(text_table)

    def write(path: Path) -> None:
        if is_table:
            values = [groups.values[row] or {"": groups.labels[row]} for row in ranked_rows]
            counts = [num_diverged[row] for row in ranked_rows]
            kwargs = {"notes": _notes_of(text_table), **selected.intervals}
            score_files.write_scores(values, list(shown_rows.values()), counts, selected.stat, path, **kwargs)
            return
        from trieye.results import plots

        main_figures = {label: group[selected.stat] for label, group in shown_rows.items()}
        plots.save(plots.intervals(main_figures, f"{selected.scoring.name} ({selected.stat})", labels=labels), path)

    return _finish(selected, {"groups": rows}, write)


def _is_table(path: Path | None) -> bool:
    """Return whether an output is a table; refuse one that is neither that nor a picture, before any run is read."""
    if path is None:
        return False
    from trieye.results import plots

    suffix, formats = path.suffix.lower()[1:], (*score_files.FORMATS, *plots.FORMATS)
    if suffix not in formats:
        hint = did_you_mean(suffix, formats)
        raise ConfigurationError(
            f"-o {path}: unknown format {suffix!r}{hint} (choose from: {', '.join(f'.{name}' for name in formats)})"
        )
    return suffix in score_files.FORMATS


def _finish(selected: RunSelection, document: Mapping[str, Any], write: Callable[[Path], None]) -> int:
    """Write the file of -o, then print the document with --json, else the notes."""
    options = selected.options
    if options.output is not None:
        write(options.output)
        if not options.json:
            print(f"written to {options.output}")
    if options.json:
        selected.print_json(document)
    else:
        selected.print_notes()
    return 0


def curve(options: argparse.Namespace) -> int:
    """Show the learning curves of each group."""
    selected = RunSelection(options)
    groups = selected.groups()
    grid, curves = groups.curves(selected.scoring, options.x, options.grid)
    by_label = dict(zip(groups.marked(selected.scoring).labels, curves, strict=True))
    bands = {
        label: aggregate_curves(values, grid, selected.stat, **selected.intervals) for label, values in by_label.items()
    }
    name = selected.scoring.name
    axes = {run.axis for run in selected.results}
    x = axes.pop() if options.x == "step" and len(axes) == 1 else options.x
    rows = [
        {"label": label, "diverged": num, "band": band}
        for label, num, band in zip(groups.labels, groups.diverged(selected.scoring), bands.values(), strict=True)
    ]
    if options.output is None and not options.json:
        from trieye.results.terminal import curves as in_terminal

        print(in_terminal(bands, name, x, selected.console))

    def write(path: Path) -> None:
        from trieye.results import plots

        shown_curves = by_label if options.runs else {}
        runs = {label: values.reshape(-1, len(grid)) for label, values in shown_curves.items()}
        legend = f"{selected.stat}, {options.confidence:.0%} CI"
        plots.save(plots.curves(bands, name, x, what=legend, runs=runs, marks=options.mark), path)

    return _finish(selected, {"x": x, "curves": rows}, write)


def compare(options: argparse.Namespace) -> int:
    """Show which group is better, with probability and difference."""
    is_table = _is_table(options.output)
    selected = RunSelection(options)
    by = ["place"] if len(options.sources) > 1 and not options.by else selected.by
    groups, reason = selected.groups(by=by), selected.excluded(by)
    if len(groups.labels) == 1:
        raise ConfigurationError(
            f"only one group to compare ({groups.labels[0]}); " + (reason or "choose the keys to group by with --by")
        )
    if reason:
        selected.results.note("fewer groups", reason)
    marked, indices = groups.marked(selected.scoring), list(combinations(range(len(groups.labels)), 2))
    compared = indices[: None if options.json or is_table else _MOST_PAIRS]
    pairs = marked.pairs(compared, selected.scoring, selected.stat, mode=selected.mode, **selected.intervals)
    rows = []
    for (x, y), pair in zip(compared, pairs, strict=True):
        names = {"x": groups.labels[x], "y": groups.labels[y]}
        rows.append({**names, "probability": pair.chance, "difference": pair.gap, "verdict": pair.verdict})
    labels, shown_pairs = marked.labels, pairs[:_MOST_PAIRS]
    text_table = tables.pairs_table(shown_pairs, selected.stat, title=_title_with_direction(selected))
    if not options.json:
        selected.console.print(text_table)
        _print_verdicts(selected, shown_pairs)
        if len(indices) > len(shown_pairs):
            selected.console.print(f"{len(indices) - len(shown_pairs)} more pairs; --json and -o pairs.csv list all")
        if len(labels) <= _MOST_COLUMNS and (differences := groups.differences()):
            selected.console.print(tables.differences_table(differences, labels))

    def write(path: Path) -> None:
        if is_table:
            notes = _notes_of(text_table)
            score_files.write_pairs(pairs, selected.stat, path, notes=notes, **selected.intervals)
            return
        from trieye.results import plots

        scores = dict(zip(labels, marked.scores(selected.scoring), strict=True))
        bands = statistics.performance_profiles(scores, selected.scoring.name, **selected.intervals)
        plots.save(plots.profiles(bands, selected.scoring.name), path)

    return _finish(selected, {"pairs": rows}, write)


def _title_with_direction(selected: RunSelection) -> str:
    direction = "higher" if selected.mode == "max" else "lower"
    gap_is_lower = ", with a lower optimality gap" if selected.stat == "optimality_gap" else ""
    return f"{selected.title}; {direction} is better{gap_is_lower}"


def _notes_of(table: TextTable) -> list[str]:
    """Return the title and the notes of a table as lines of text."""
    return [line for text in (table.title, table.caption) if text is not None for line in str(text).splitlines()]


def _print_verdicts(selected: RunSelection, pairs: Sequence[Pair]) -> None:
    """Print a sentence per comparison."""
    for x, y, (num_x, num_y), _, _, verdict, reason in pairs:
        is_clear, sizes = verdict != "inconclusive", f"with {num_x} + {num_y} runs"
        text = f"{x} is {verdict} than {y} {sizes}" if is_clear else f"{x} and {y}: inconclusive {sizes}"
        selected.console.print(f"{text}: {reason}", style="bold" if is_clear else "")
    if len(pairs) > 1 and any(pair.verdict != "inconclusive" for pair in pairs):
        selected.console.print(f"the intervals are not corrected for the number of pairs, {len(pairs)}")


def sensitivity(options: argparse.Namespace) -> int:
    """Show the scores for each value of a hyperparameter."""
    selected = RunSelection(options)
    key = selection.resolve(options.param, selected.results.runs)
    results = selected.results.told_apart([key])  # by default, tags do not distinguish configs
    lines, labels = {}, {}
    for name, groups in RunGroups.by_config(results, selected.by, options.task).items():
        if settings := groups.sensitivity(
            key, selected.scoring, selected.stat, mode=selected.mode, **selected.intervals
        ):
            lines[name], labels[name] = settings, groups.marked(selected.scoring).labels
    if not options.json:
        selected.console.print(tables.settings_table(lines, options.param, labels, title=selected.title))

    def write(path: Path) -> None:
        from trieye.results import plots

        plots.save(plots.sensitivity(lines, options.param, f"{selected.scoring.name} ({selected.stat})"), path)

    rows = [{"label": name, "settings": list(settings)} for name, settings in lines.items()]
    return _finish(selected, {"param": key, "lines": rows}, write)


def importance(options: argparse.Namespace) -> int:
    """Show how much each varying key affects the score of a config, and plot the configs as parallel coordinates."""
    selected = RunSelection(options)
    groups = selected.groups()
    figures = [statistics.aggregate(scores, selected.stat).value for scores in groups.scores(selected.scoring)]
    values = _without_inactive(groups)
    shares = importances(values, figures)
    num_configs = int(np.isfinite(figures).sum())
    name = f"{selected.scoring.name} ({selected.stat})"
    text_table = importance_rows({name: shares})
    if text_table is None and (options.output is not None or not options.json):
        raise ConfigurationError(
            f"importance needs two or more varying keys and {MIN_JOBS} configs with different scores; "
            f"{num_configs} of {len(figures)} configs have a score, and "
            f"{len(shares)} keys vary ({', '.join(one.key for one in shares) or 'none'})"
        )
    if not options.json:
        selected.console.print(text_table)

    def write(path: Path) -> None:
        from trieye.results import plots

        keys = [one.key for one in shares]
        plots.save(plots.parallel(values, figures, keys, name, mode=selected.figure_mode), path)

    return _finish(selected, {"keys": shares, "num_configs": num_configs}, write)


def _without_inactive(groups: RunGroups) -> list[dict[str, Any]]:
    """Return the values of each group, without keys that exist only in other jobs of its sweep."""
    firsts = [runs[0] for runs in groups.runs]
    varying: dict[str, set[str]] = {}
    for run in firsts:
        varying.setdefault(run.sweep, set()).update(run.varied)
    return [
        {key: value for key, value in values.items() if key in run.varied or key not in varying[run.sweep]}
        for run, values in zip(firsts, groups.values, strict=True)
    ]


def select(options: argparse.Namespace) -> int:
    """Show the best config of each group, and optionally rerun it with fresh seeds."""
    selected = RunSelection(options)
    if options.rerun is not None and options.rerun < 1:
        raise ConfigurationError(f"--rerun {options.rerun}: must be at least 1")
    selections: dict[str, tuple[RunGroups, Selection]] = {}
    for name, groups in RunGroups.by_config(selected.results, selected.by, options.task).items():
        scores = groups.scores(selected.scoring)
        diverged = groups.penalties(selected.scoring)
        choice = hyperparameters.select(
            scores, selected.stat, mode=selected.mode, diverged=diverged, **selected.intervals
        )
        selections[name] = groups, choice
    if options.json and options.rerun is not None:
        raise ConfigurationError(
            "--json cannot be combined with --rerun; run `trieye results table --json` after the rerun instead"
        )
    if options.json:
        rows = [_plain_selection(selected.scoring, name, *pair) for name, pair in selections.items()]
        selected.print_json({"groups": rows})
        return 0
    for name, (groups, choice) in selections.items():
        title = f"{name}: {selected.title}" if name else selected.title
        labels = groups.marked(selected.scoring).labels
        text_table = tables.selection_table(choice, labels, selected.stat, title=title, max_rows=_MOST_CONFIGS)
        selected.console.print(text_table)
    selected.print_notes()
    if options.rerun is None:
        bias = "the score of the selected config is optimistic; --rerun N measures it with fresh seeds"
        has_choice = any(len(choice.estimates) > 1 for _, choice in selections.values())
        selected.console.print(bias if has_choice else "", style="dim")
        return 0
    from trieye.cli.results_rerun import rerun

    return rerun(selected, selections)


def report(options: argparse.Namespace) -> int:
    """Write the HTML report."""
    selected, out = RunSelection(options), Path.cwd() / options.output
    page = page_of(selected, directory=out.parent)

    def write(path: Path) -> None:
        with written(path) as scratch:
            scratch.write_bytes(page.encode("utf-8", "backslashreplace"))

    return _finish(selected, {"path": out}, write)


def page_of(selected: RunSelection, *, directory: Path | None) -> str:
    """Return the HTML report of the selected runs.

    Args:
        selected: The selected runs and the options of `report`.
        directory: Directory of the HTML file; None: the page is not a file and has no links.
    """
    from trieye.results.report import Comparison, Report

    options, names = selected.options, ", ".join(Path(source).name for source in selected.sources)
    comparison = Comparison(
        title=options.title or f"{selected.scoring.name} of {names}",
        sources=selected.sources,
        command=shlex.join(["trieye", *options.typed]),
        directory=directory,
        by=selected.by,
        task=options.task,
        stat=selected.stat,
        mode=selected.mode,
        confidence=selected.intervals["confidence"],
        x=options.x,
    )
    return Report(selected.groups().marked(selected.scoring), selected.scoring, comparison).html()


def export(options: argparse.Namespace) -> int:
    """Write the points of all runs as one table."""
    results = select_runs(load(sources_of(options)), options.where, strict=options.strict)
    metrics = None if options.metric is None else metrics_in(options.metric, results)
    if metrics is not None:
        logged_metrics = results.metrics()
        for name in metrics:
            if name not in logged_metrics:
                raise ConfigurationError(f"--metric {name}: no run logged it{did_you_mean(name, logged_metrics)}")
    num_points = results.export(options.output, metrics)
    if options.json:
        counts = {"num_points": num_points, "num_runs": len(results)}
        print_json("results.export", {"path": options.output.absolute(), **counts, "problems": results.problems})
        return 0
    print(f"{num_points:,} points of {len(results)} runs written to {options.output}")
    for text in results.problems:
        print(text, file=sys.stderr)
    return 0


def _plain_selection(scoring: ScoreDefinition, name: str, groups: RunGroups, selected: Selection) -> dict[str, Any]:
    columns = {
        "label": groups.labels,
        "values": groups.values,
        "diverged": groups.diverged(scoring),
        "estimate": selected.estimates,
        "p_best": selected.p_best.tolist(),
        "p_as_good": selected.p_as_good.tolist(),
    }
    configs = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    not_worse = [groups.labels[index] for index in selected.not_worse]
    return {"label": name, "best": groups.labels[selected.best], "not_worse": not_worse, "configs": configs}
