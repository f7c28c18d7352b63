"""`trieye attempts`: the attempts of a run, and their superseded points.

List the attempts of a run with the points that each one logged, or show the superseded points of one again.

An attempt is a start of the program, or a part of it after the process opened or restored the run again. An attempt
that logs steps again supersedes older points, which stay in the history. --restore N shows those of attempt N again;
points of other attempts from the same step on are superseded instead, metric by metric, and can be restored likewise.
TensorBoard is rewritten. No process may be writing to the run.

Examples:
  trieye attempts first
  trieye attempts my_agent/first --restore 1
"""

import argparse
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trieye.cli.arguments import add_run_argument, add_timeout

if TYPE_CHECKING:
    from trieye.process.terminal import Table

MAX_METRICS = 3


@dataclass(frozen=True)
class Attempt:
    """One attempt.

    Attributes:
        number: 1, 2, 3 and so on.
        started: Unix time in seconds.
        shown: Number of its points that are shown.
        superseded: Number of its points that are superseded.
        metrics: Metrics of its superseded points.
    """

    number: int
    started: float
    shown: int
    superseded: int
    metrics: list[str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    add_run_argument(parser)
    parser.add_argument("--restore", type=int, metavar="N", help="show the superseded points of attempt N again")
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")
    add_timeout(parser)


def run(options: argparse.Namespace) -> int:
    """List the attempts, or restore one."""
    from trieye.cli.delivery import deliver, idle_run
    from trieye.cli.given_run import find_run
    from trieye.exceptions import ConfigurationError
    from trieye.process.terminal import Terminal

    run_dir = find_run(options.run_name, options.root)
    attempts = attempts_of(run_dir)
    if options.restore is None:
        if options.json:
            print(
                json.dumps({"run_dir": str(run_dir), "attempts": [asdict(attempt) for attempt in attempts]}, indent=2)
            )
        else:
            Terminal().print(_table(run_dir, attempts))
        return 0
    number = options.restore
    restorable = [attempt.number for attempt in attempts if attempt.superseded]
    if number not in restorable:
        choices = ", ".join(map(str, restorable)) or "no attempt has any"
        raise ConfigurationError(
            f"--restore {number}: attempt {number} has no superseded points (choose from: {choices})"
        )
    _, config = idle_run(run_dir)
    return deliver(config, options.timeout, change=lambda hub: hub.restore_opening(number))


def attempts_of(run_dir: Path) -> list[Attempt]:
    """Return the attempts of a run with the points that the journal and the history files hold.

    Raises:
        JournalError: They cannot be read.
    """
    import numpy as np

    from trieye.files.run_files import JOURNAL
    from trieye.history.history import read_history
    from trieye.hub.marks import AttemptMark
    from trieye.journal.scan import read_meta

    shown, hidden = read_history(run_dir), read_history(run_dir, superseded=True)
    held = read_meta(run_dir / JOURNAL, "attempt")
    openings = AttemptMark.from_bytes(held).all_openings if held is not None else ()
    firsts = np.array([opening.index for opening in openings], np.int64)

    of_shown, of_hidden = (np.searchsorted(firsts, table["index"].to_numpy(), "right") for table in (shown, hidden))
    names = np.array(hidden["metric"].to_pylist(), object)
    attempts = [
        Attempt(
            opening.number,
            opening.started,
            int((of_shown == place).sum()),
            int((of_hidden == place).sum()),
            sorted(set(names[of_hidden == place].tolist())),
        )
        for place, opening in enumerate(openings, 1)
    ]
    return [attempt for attempt in attempts if attempt.shown or attempt.superseded]


def _table(run_dir: Path, attempts: list[Attempt]) -> "Table":
    from trieye.process.terminal import Table

    columns = ("attempt", "started", "points shown", "superseded", "of metrics")
    table = Table(*columns, title=run_dir.name, is_ruled=False)
    for one in attempts:
        more = f" and {len(one.metrics) - MAX_METRICS} more" if len(one.metrics) > MAX_METRICS else ""
        metrics = ", ".join(one.metrics[:MAX_METRICS]) + more
        started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(one.started))
        table.add_row(str(one.number), started, f"{one.shown:,}", f"{one.superseded:,}", metrics)
    return table
