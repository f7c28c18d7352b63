"""What the actions of `trieye results` do."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from trieye.cli.output import print_json
from trieye.cli.results_asked import Asked, chosen, places_of
from trieye.config.base import did_you_mean
from trieye.exceptions import ConfigurationError
from trieye.files.atomic import write_atomic
from trieye.results import hyperparameters, selection, statistics, tables
from trieye.results.aggregates import Aggregate
from trieye.results.aligned import Floats
from trieye.results.curves import aggregate_curves
from trieye.results.groups import RunGroups, ScoreDefinition
from trieye.results.hyperparameters import Mode, Selection
from trieye.results.loading import load

_MOST_PAIRS = 15
_MOST_CONFIGS = 20
_MOST_COLUMNS = 5


def table(options: argparse.Namespace) -> int:
    """Show figures of each group."""
    asked = Asked(options)
    groups = asked.groups()
    scores = groups.scores(asked.scoring)
    median: Aggregate = "run_median" if len(groups.tasks) == 1 else "median"  # that of one task's mean is the mean
    names: dict[Aggregate, None] = dict.fromkeys([asked.stat, "iqm", median, "mean"])
    found = [{name: statistics.aggregate(held, name, **asked.intervals) for name in names} for held in scores]
    penalties = groups.penalties(asked.scoring)
    ranked = sorted(
        range(len(found)), key=lambda place: (penalties[place], _rank(found[place][asked.stat].value, asked.mode))
    )
    if options.json:
        diverged = groups.diverged(asked.scoring)
        asked.print_json(
            {
                "groups": [
                    {
                        "label": groups.labels[place],
                        "values": groups.values[place],
                        "diverged": diverged[place],
                        **found[place],
                    }
                    for place in ranked
                ]
            }
        )
        return 0
    labels = groups.marked(asked.scoring).labels
    shown = {labels[place]: {**found[place], "std": _spread(scores[place])} for place in ranked}
    asked.console.print(tables.scores_table(shown, asked.stat, title=asked.title, confidence=options.confidence))
    if options.output is not None:
        from trieye.results import plots

        figures = {label: figures[asked.stat] for label, figures in shown.items()}
        _save(plots.intervals(figures, f"{asked.scoring.name} ({asked.stat})", labels=labels), options.output)
    asked.tell()
    return 0


def curve(options: argparse.Namespace) -> int:
    """Show the learning curves of each group."""
    asked = Asked(options)
    groups = asked.groups()
    grid, curves = groups.curves(asked.scoring, options.x, options.grid)
    labels = groups.marked(asked.scoring).labels
    bands = {
        label: aggregate_curves(values, grid, asked.stat, **asked.intervals)
        for label, values in zip(labels, curves, strict=True)
    }
    name = asked.scoring.name
    counted = {run.axis for run in asked.results}
    x = counted.pop() if options.x == "step" and len(counted) == 1 else options.x
    if options.json:
        shown = zip(groups.labels, groups.diverged(asked.scoring), bands.values(), strict=True)
        asked.print_json(
            {"x": x, "curves": [{"label": label, "diverged": num, "band": band} for label, num, band in shown]}
        )
        return 0
    if options.output is not None:
        from trieye.results import plots

        runs = {
            label: np.moveaxis(held, -1, 0).reshape(len(grid), -1).T for label, held in zip(labels, curves, strict=True)
        }
        what = f"{asked.stat}, {options.confidence:.0%} CI"
        _save(plots.curves(bands, name, x, what=what, runs=runs if options.runs else None), options.output)
    else:
        from trieye.results.terminal import curves as in_terminal

        print(in_terminal(bands, name, x, asked.console))
    asked.tell()
    return 0


def compare(options: argparse.Namespace) -> int:
    """Show which group is better, how surely and by how much."""
    asked = Asked(options)
    by_place = len(options.places) > 1 and not options.by
    groups = asked.groups(by=["place"] if by_place else None)
    if len(groups.labels) == 1:
        raise ConfigurationError(f"there is one group only, {groups.labels[0]}; say by what to compare (--by)")
    scores = groups.scores(asked.scoring)
    if not options.json:
        groups = groups.marked(asked.scoring)
    numbers = [(x, y) for x in range(len(scores)) for y in range(x + 1, len(scores))]
    pairs = []
    for x, y in numbers[: None if options.json else _MOST_PAIRS]:
        sides = (scores[x], scores[y]) if asked.mode == "max" else (-scores[x], -scores[y])
        chance = statistics.probability_of_improvement(*sides, **asked.intervals)
        gap = statistics.difference(scores[x], scores[y], asked.stat, **asked.intervals)
        pairs.append((groups.labels[x], groups.labels[y], chance, gap))
    if options.json:
        asked.print_json(
            {"pairs": [dict(zip(("x", "y", "probability", "difference"), pair, strict=True)) for pair in pairs]}
        )
        return 0
    better = "more" if asked.mode == "max" else "less"
    title = f"{asked.title}; {better} is better"
    counts = {label: int(np.isfinite(held).sum()) for label, held in zip(groups.labels, scores, strict=True)}
    asked.console.print(tables.pairs_table(pairs, counts, asked.stat, title=title))
    if len(numbers) > len(pairs):
        asked.console.print(f"and {len(numbers) - len(pairs)} more pairs: --json has them all")
    if len(groups.labels) <= _MOST_COLUMNS and (found := groups.differences()):
        asked.console.print(tables.differences_table(found, groups.labels))
    if options.output is not None:
        from trieye.results import plots

        _save(plots.profiles(profiles_of(groups, scores, asked), asked.scoring.name), options.output)
    asked.tell()
    return 0


def profiles_of(groups: RunGroups, scores: Sequence[Floats], asked: Asked) -> dict[str, statistics.Band]:
    """Return the performance profile of each group, at the scores of all of them."""
    every = np.unique(np.concatenate([held[~np.isnan(held)] for held in scores]))
    if not len(every):
        raise ConfigurationError(f"{asked.scoring.name}: no run has a value that counts")
    low, high = every[0], every[-1]
    at = np.linspace(low - 0.02 * (high - low or 1.0), high, 200)
    return {
        label: statistics.performance_profile(held, at, **asked.intervals)
        for label, held in zip(groups.labels, scores, strict=True)
    }


def sensitivity(options: argparse.Namespace) -> int:
    """Show what a parameter matters."""
    asked = Asked(options)
    key = selection.resolve(options.param, asked.results.runs)
    lines, labels = {}, {}
    for name, groups in RunGroups.by_config(asked.results, asked.by, options.task).items():
        if found := groups.sensitivity(key, asked.scoring, asked.stat, mode=asked.mode, **asked.intervals):
            lines[name], labels[name] = found, groups.marked(asked.scoring).labels
    if options.json:
        asked.print_json(
            {"param": key, "lines": [{"label": name, "settings": list(held)} for name, held in lines.items()]}
        )
        return 0
    asked.console.print(tables.settings_table(lines, options.param, labels, title=asked.title))
    if options.output is not None:
        from trieye.results import plots

        _save(plots.sensitivity(lines, options.param, f"{asked.scoring.name} ({asked.stat})"), options.output)
    asked.tell()
    return 0


def select(options: argparse.Namespace) -> int:
    """Show the best config of each group, and run it again on fresh seeds."""
    asked = Asked(options)
    if options.rerun is not None and options.rerun < 1:
        raise ConfigurationError(f"--rerun {options.rerun}: it has to be 1 or more")
    found: dict[str, tuple[RunGroups, Selection]] = {}
    for name, groups in RunGroups.by_config(asked.results, asked.by, options.task).items():
        scores = groups.scores(asked.scoring)
        diverged = groups.penalties(asked.scoring)
        chosen_ = hyperparameters.select(scores, asked.stat, mode=asked.mode, diverged=diverged, **asked.intervals)
        found[name] = groups, chosen_
    if options.json and options.rerun is not None:
        raise ConfigurationError("--json: not with --rerun, which starts runs; `trieye results table` has their scores")
    if options.json:
        asked.print_json({"groups": [_plain_selection(asked.scoring, name, *held) for name, held in found.items()]})
        return 0
    for name, (groups, chosen_) in found.items():
        title = f"{name}: {asked.title}" if name else asked.title
        labels = groups.marked(asked.scoring).labels
        shown = tables.selection_table(chosen_, labels, asked.stat, title=title, most=_MOST_CONFIGS)
        asked.console.print(shown)
    asked.tell()
    if options.rerun is None:
        flattered = "the best of many looks better than it is: --rerun N shows how it does on fresh seeds"
        asked.console.print(
            flattered if any(len(held.estimates) > 1 for _, held in found.values()) else "", style="dim"
        )
        return 0
    from trieye.cli.results_rerun import rerun

    return rerun(asked, found)


def report(options: argparse.Namespace) -> int:
    """Write a page with all of it."""
    asked, out = Asked(options), Path.cwd() / options.output
    page = page_of(asked, beside=out.parent)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(out, page.encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise ConfigurationError(f"{options.output} cannot be written: {error.strerror or error}") from error
    if options.json:
        asked.print_json({"path": out})
        return 0
    print(f"written to {options.output}")
    asked.tell()
    return 0


def page_of(asked: Asked, *, beside: Path | None) -> str:
    """Return the page with all that was asked for.

    Args:
        asked: What was asked for, with the options of `report`.
        beside: The directory that the page will lie in; None: in none, and nothing is linked.
    """
    from trieye.results.report import Question, Report

    options = asked.options
    places = places_of(options)
    question = Question(
        title=options.title or f"{asked.scoring.name} of {', '.join(Path(place).name for place in places)}",
        places=places,
        command=shlex.join(["trieye", *options.typed]),
        made=datetime.now().astimezone(),
        here=Path.cwd(),
        beside=beside,
        by=asked.by,
        task=options.task,
        stat=asked.stat,
        mode=asked.mode,
        confidence=asked.intervals["confidence"],
        x=options.x,
    )
    return Report(asked.groups().marked(asked.scoring), asked.scoring, question).html()


def export(options: argparse.Namespace) -> int:
    """Write the points of all runs as one table."""
    from trieye.results.conversion import write_table

    results = chosen(load(places_of(options)), options.where, strict=options.strict)
    metrics = None if options.metric is None else [name.strip() for name in options.metric.split(",")]
    if metrics is not None:
        known = results.metrics()
        for name in metrics:
            if name not in known:
                raise ConfigurationError(f"{name}: no run has it{did_you_mean(name, known)}")
    points = results.to_arrow(metrics)
    write_table(points, options.output)
    if options.json:
        counts = {"num_points": points.num_rows, "num_runs": len(results)}
        print_json("results.export", {"path": options.output.absolute(), **counts, "problems": results.problems})
        return 0
    print(f"{points.num_rows:,} points of {len(results)} runs written to {options.output}")
    for text in results.problems:
        print(text, file=sys.stderr)
    return 0


def _spread(scores: Floats) -> statistics.Estimate:
    held = scores[~np.isnan(scores)]
    value = float(held.std(ddof=1)) if len(held) > 1 else np.nan
    return statistics.Estimate(value, None, None, len(held), 0)


def _rank(value: float, mode: Mode) -> float:
    return np.inf if np.isnan(value) else -value if mode == "max" else value


def _save(figure: Any, path: Path) -> None:
    from trieye.results import plots

    plots.save(figure, path)
    print(f"written to {path}")


def _plain_selection(scoring: ScoreDefinition, name: str, groups: RunGroups, found: Selection) -> dict[str, Any]:
    columns = {
        "label": groups.labels,
        "values": groups.values,
        "diverged": groups.diverged(scoring),
        "estimate": found.estimates,
        "p_best": found.p_best.tolist(),
        "p_as_good": found.p_as_good.tolist(),
    }
    configs = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    not_worse = [groups.labels[place] for place in found.not_worse]
    return {"label": name, "best": groups.labels[found.best], "not_worse": not_worse, "configs": configs}
