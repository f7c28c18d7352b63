"""List runs, ask for confirmation and delete them, for `trieye rm` and `trieye prune`."""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.filesize import decimal

from trieye.cli.output import print_json
from trieye.config.redaction import redacted_text
from trieye.exceptions import ConfigurationError
from trieye.files.run_files import RUN_RECORD
from trieye.process.terminal import Terminal, TextTable
from trieye.runs.removal import Removal
from trieye.runs.stored_run import StoredRun

EXIT_REFUSED = 1
_STATUS = {"RUNNING": "LOST"}  # a run that is alive cannot be removed


def carry_out(
    removals: Sequence[Removal], options: argparse.Namespace, schema: str, retained: Mapping[Path, str] | None = None
) -> int:
    """List the runs, ask for confirmation, delete them, and return the exit code.

    Args:
        removals: The runs to delete.
        options: `dry_run`, `yes` and `json`; `metric` and `mode` if they rate the runs.
        schema: Schema name of the JSON document.
        retained: Why each other run is kept, by its directory.

    Raises:
        ConfigurationError: --yes is missing and standard input is not a terminal.
        TrieyeError: MLflow or a mirror does not answer; that run and all later ones are not deleted.
    """
    rows = [{**_row(removal), "objective": _objective(removal.run_dir, options)} for removal in removals]
    retained_rows = [
        {"run_dir": path, "objective": _objective(path, options), "reason": why}
        for path, why in (retained or {}).items()
    ]
    notes = [note for removal in removals for note in removal.notes()]
    if options.json:
        if removals and not (options.dry_run or options.yes):
            raise ConfigurationError("--json: add --yes to delete the runs, or --dry-run to list them")
    elif not _is_confirmed(rows, [*_sweeps(removals), *_grouped(retained_rows), *notes], options):
        return 0 if options.dry_run or not removals else EXIT_REFUSED
    for removal in () if options.dry_run else removals:
        removal.delete()
        if not options.json:
            print(f"deleted {removal.name}")
    if options.json:
        document = {"runs": rows, "notes": notes, "is_dry_run": options.dry_run}
        print_json(schema, document if retained is None else {**document, "retained": retained_rows})
    elif any(removal.owns_mlflow_run for removal in removals):
        print(
            "MLflow runs were moved to its trash: `mlflow runs restore` restores a run, `mlflow gc` empties the trash"
        )
    return 0


def _is_confirmed(rows: Sequence[dict[str, Any]], notes: Sequence[str], options: argparse.Namespace) -> bool:
    """List the runs and notes; return whether the user confirms the deletion."""
    if rows:
        Terminal().print(_table(rows))
    for note in notes:
        print(note)
    if not rows or options.dry_run:
        print("dry run: no runs were deleted" if rows else "no runs to delete")
        return False
    if options.yes:
        return True
    if not sys.stdin.isatty():
        raise ConfigurationError("cannot ask for confirmation without a terminal; add --yes to delete without asking")
    runs = "this run" if len(rows) == 1 else f"these {len(rows)} runs"
    is_confirmed = input(f"delete {runs}? [y/N] ").strip().lower() in {"y", "yes"}
    if not is_confirmed:
        print("no runs were deleted")
    return is_confirmed


def _objective(run_dir: Path, options: argparse.Namespace) -> float | None:
    """Return the value that rates a run; None if it has none."""
    with suppress(ConfigurationError):
        rated_by = {name: getattr(options, name, None) for name in ("metric", "mode")}
        return StoredRun.read(run_dir, **rated_by).best
    return None


def _grouped(retained_rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line for each reason to keep runs."""
    for why in dict.fromkeys(row["reason"] for row in retained_rows):
        rows = [row for row in retained_rows if row["reason"] == why]
        names = [f"{row['run_dir'].parents[1].name}/{row['run_dir'].name}{_rating(row)}" for row in rows]
        yield f"keeping {', '.join(names)}: {why}"


def _sweeps(removals: Sequence[Removal]) -> Iterator[str]:
    """Yield a line for each sweep whose jobs are deleted."""
    sweeps = Counter(removal.record.group for removal in removals if removal.record and removal.record.group)
    for sweep, num in sweeps.items():
        jobs = "is a job" if num == 1 else "are jobs"
        yield f"{num} of these runs {jobs} of the sweep {sweep.removeprefix(f'{Path.cwd()}/')}"


def _rating(row: Mapping[str, Any]) -> str:
    return "" if row["objective"] is None else f" ({row['objective']:.6g})"


def _row(removal: Removal) -> dict[str, Any]:
    record, config = removal.record, removal.config
    owns_run = removal.owns_mlflow_run and record is not None and config is not None
    return {
        "run_dir": removal.run_dir,
        "name": removal.name,
        "status": _STATUS.get(record.status, record.status) if record else None,
        "last_used": removal.last_used,
        "size_bytes": removal.size_bytes,
        "mirrored_bytes": removal.mirrored_bytes,
        "mlflow_run_id": record.mlflow_run_id if owns_run and record else None,
        "mlflow": redacted_text(config.persistence.MLFLOW_TRACKING_URI) if owns_run and config else None,
    }


def _table(rows: Sequence[dict[str, Any]]) -> TextTable:
    table = TextTable("run", is_ruled=False)
    for name in ("status", "objective", "last used", "directory", "mirror"):
        side: Any = "left" if name in {"status", "last used"} else "right"
        table.add_column(name, justify=side, no_wrap=True)
    table.add_column("MLflow run")
    for row in rows:
        table.add_row(
            row["name"],
            row["status"] or f"no {RUN_RECORD}",
            "-" if row["objective"] is None else f"{row['objective']:.6g}",
            f"{datetime.fromtimestamp(row['last_used']).astimezone():%Y-%m-%d %H:%M}",
            decimal(row["size_bytes"]),
            decimal(row["mirrored_bytes"]) if row["mirrored_bytes"] else "-",
            f"{row['mlflow_run_id'][:8]} in {row['mlflow']}" if row["mlflow_run_id"] else "-",
        )
    num_runs = f"{len(rows)} run{'' if len(rows) == 1 else 's'}"
    table.note(f"{num_runs}, {decimal(sum(row['size_bytes'] for row in rows))} on this disk")
    return table
