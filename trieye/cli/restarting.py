"""Show and start a restart, and confirm its stored command, for `trieye rerun` and `trieye fork`."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import islice

from trieye.cli.confirmation import confirm
from trieye.cli.output import print_json
from trieye.process.terminal import Terminal, Text
from trieye.run.provenance import DIRECTORY
from trieye.runs.comparing import Differences
from trieye.runs.program import Confirm, key_of
from trieye.runs.restarting import RestartPlan

_MAX_SHOWN = 30
_MAX_VALUE = 60
_CONTEXT = 15
"""Characters of a long value shown before its first difference."""


def restart(plan: RestartPlan, options: argparse.Namespace, schema: str) -> int:
    """Show a restart, check that its checkpoint fits, and start it; return the exit code.

    Args:
        plan: The restart.
        options: `overrides`, `dry_run` and `json`.
        schema: Schema name of the JSON document.
    """
    _show_divergence(plan, options.overrides)
    plan.check_fit()
    with nullcontext(plan) if options.dry_run else plan.reserved() as reserved_plan:
        _show_plan(reserved_plan, options, schema)
        if options.dry_run:
            return 0
        return plan.program.start(reserved_plan.overrides, stdout=sys.stderr if options.json else None)


def _show_plan(plan: RestartPlan, options: argparse.Namespace, schema: str) -> None:
    checkpoint = plan.checkpoint
    if options.json:
        document = {
            "run": str(plan.source), "run_dir": plan.run_dir, "command": plan.program.command(plan.overrides),
            "directory": plan.program.directory, "changes": plan.divergence.parts(), "is_dry_run": options.dry_run,
        }  # fmt: skip
        print_json(schema, document if checkpoint is None else {**document, "checkpoint": checkpoint.path})
        return
    if checkpoint is not None:
        rating = "" if checkpoint.objective is None else f", objective {checkpoint.objective:g}"
        step = f"step {checkpoint.step}{rating}"
        print(f"run {plan.run_dir.name!r} starts from {plan.source} at {step}; the command, also to resume it:")
    print(plan.line, flush=True)


def confirmed(options: argparse.Namespace) -> Confirm:
    """Return a function that asks the user to confirm a stored command; `--yes` confirms without asking."""
    return partial(confirm, is_confirmed=options.yes)


def _show_divergence(plan: RestartPlan, overrides: Sequence[str]) -> None:
    """Print the differences from the stored run to stderr, and mark differences requested by overrides."""
    console, keys, source = Terminal(stderr=True), [key_of(word) for word in overrides], plan.source
    parts = plan.divergence.parts()
    for old_key, new_key in plan.program.renamed.items():
        console.print(Text(f"override: {old_key} was renamed to {new_key}", "yellow"))
    for part, differences in parts.items():
        for key, old_value, new_value in islice(lines_of(differences), _MAX_SHOWN):
            is_override = part == "config" and any(f"{key}.".startswith(f"{name.replace('/', '.')}.") for name in keys)
            line = f"{part}: {key}: {old_value} -> {new_value}{'  (override)' if is_override else ''}"
            console.print(Text(line, "" if is_override else "yellow"))
        if len(differences) > _MAX_SHOWN:
            console.print(Text(f"{part}: {len(differences) - _MAX_SHOWN} more differences", "yellow"))
    provenance = source.provenance
    if provenance is None:
        console.print(Text("provenance unavailable: commit and packages were not recorded", "yellow"))
    elif provenance.commit is not None and provenance.commit.is_dirty:
        patch = source.run_dir / DIRECTORY / f"attempt-{source.attempt}.patch"
        advice = f"patch: {patch}" if patch.exists() else "the patch was not stored"
        console.print(Text(f"commit: the run had uncommitted changes; {advice}", "yellow"))
    if not any(parts.values()):
        console.print(f"no differences from {source}: config, commit and packages are equal")


def lines_of(differences: Differences) -> Iterator[tuple[str, str, str]]:
    """Yield (key, first, second) of each difference; long values are cut to an excerpt around the first difference."""
    for key, pair in sorted(differences.items()):
        first_text, second_text = ("none" if value is None else str(value) for value in pair)
        length = min(len(first_text), len(second_text))
        num_common = next((index for index in range(length) if first_text[index] != second_text[index]), length)
        begin = max(num_common - _CONTEXT, 0) if max(len(first_text), len(second_text)) > _MAX_VALUE else 0
        yield key, _excerpt(first_text, begin), _excerpt(second_text, begin)


def _excerpt(text: str, begin: int) -> str:
    end = begin + _MAX_VALUE
    return f"{'...' if begin else ''}{text[begin:end]}{'...' if end < len(text) else ''}"
