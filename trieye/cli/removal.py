"""Deleting runs: what there is of each on the disk, in MLflow and in the mirror, and the order in which it goes."""

import argparse
import contextlib
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Literal

from rich.filesize import decimal

from trieye.cli.given_run import config_of
from trieye.cli.saved import disk_bytes
from trieye.config import TrieyeConfig
from trieye.config.base import did_you_mean
from trieye.config.redaction import redacted_text
from trieye.exceptions import ConfigurationError, RunLockedError, TrieyeError
from trieye.files.atomic import recover, remove_directory
from trieye.files.run_files import RUN_RECORD
from trieye.files.run_record import RunRecord
from trieye.mirror.layout import COMMIT
from trieye.mirror.store import MirrorStore
from trieye.process.lock import RunLock, is_alive
from trieye.process.terminal import Table, Terminal
from trieye.sinks.mlflow.run import delete_run

EXIT_REFUSED = 1


@dataclass(frozen=True)
class Removal:
    """A run that may be deleted, and what there is of it.

    Attributes:
        run_dir: Its directory.
        record: Who it is.
        config: Its config for the directory in which it is now.
    """

    run_dir: Path
    record: RunRecord
    config: TrieyeConfig

    @classmethod
    def of(cls, run_dir: Path) -> "Removal":
        """Look at a run.

        Raises:
            RunLockedError: It is alive.
            ConfigurationError: It cannot be read where it has an MLflow run or a mirror.
        """
        record = RunRecord.read(run_dir / RUN_RECORD)
        if record is None:
            raise ConfigurationError(f"{run_dir} is no run: it has no {RUN_RECORD}")
        if is_alive(run_dir):
            raise RunLockedError(f"run {run_dir.name!r} is alive, and nothing of it is deleted; stop it first")
        return cls(run_dir, record, config_of(run_dir))

    @property
    def name(self) -> str:
        """Its app and its name."""
        return f"{self.record.app_name}/{self.record.run_name}"

    @property
    def last_used(self) -> float:
        """Unix time in seconds at which it ended, or was last heard of."""
        files = (path for path in self.run_dir.iterdir() if path.is_file())
        return self.record.ended or max((path.stat().st_mtime for path in files), default=self.record.started)

    @cached_property
    def size_bytes(self) -> int:
        """Bytes of its directory."""
        return disk_bytes(self.run_dir)

    @cached_property
    def mirrored(self) -> dict[str, int]:
        """Keys and bytes of its objects in the mirror; nothing if it has none.

        Raises:
            ConfigurationError: The mirror cannot be used.
            ConnectionError: The mirror does not answer.
        """
        if self._mirror is None:
            return {}
        try:
            return self._mirror.list()
        except FileNotFoundError:  # there is no such bucket any more
            return {}

    @cached_property
    def _mirror(self) -> MirrorStore | None:
        url = self.config.persistence.mirror
        return None if url is None else MirrorStore(url, self.record.app_name, self.record.run_name)

    def delete(self) -> None:
        """Delete the MLflow run, the mirror and the directory, in this order: what an error leaves is found again.

        Raises:
            RunLockedError: Somebody has started it meanwhile.
            TrieyeError: MLflow or the mirror does not answer; the directory is still there.
        """
        with RunLock(self.run_dir / "run.lock"), RunLock(self.run_dir / "hub.lock"):
            if self.record.mlflow_run_id is not None:
                delete_run(self.config.persistence.MLFLOW_TRACKING_URI, self.record.mlflow_run_id)
            # a state without its mark does not count, so nobody restores half a run
            for key in sorted(self.mirrored, key=lambda key: not key.endswith(COMMIT)):
                assert self._mirror is not None  # noqa: S101 - it has objects
                self._mirror.delete(key)
            remove_directory(self.run_dir)
        recover(self.run_dir.parent, self.run_dir.name)
        left = next(self.run_dir.parent.glob(f".tmp-{self.run_dir.name}~*"), None)
        if left is not None:
            raise TrieyeError(f"run {self.name!r} is deleted, but for files that this user may not delete: {left}")


def idle_runs(app: str, root: Path) -> list[Removal]:
    """Return the runs of an app that are not alive, the one that was used last at the end.

    Args:
        app: Its name below `root`, or its directory.
        root: Directory of all apps.

    Raises:
        ConfigurationError: There is no such app, or a run of it cannot be read.
    """
    app_dir = root / app if (root / app).is_dir() else Path(app)
    runs = sorted(path.parent.resolve() for path in app_dir.glob(f"*/*/{RUN_RECORD}") if path.parent.name[0] != ".")
    if not runs:
        apps = sorted({path.parents[2].name for path in root.glob(f"*/*/*/{RUN_RECORD}")})
        known = f"{root.resolve()} has: {', '.join(apps) or 'none'}"
        raise ConfigurationError(f"app {app!r}: it has no runs{did_you_mean(app, apps)} ({known})")
    idle = [Removal.of(run_dir) for run_dir in runs if not is_alive(run_dir)]
    return sorted(idle, key=lambda held: held.last_used)


def best_first(runs: Sequence[Removal], metric: str | None, mode: Literal["max", "min"] | None) -> list[Removal]:
    """Return the runs that have a metric, by its best value.

    Args:
        runs: The runs.
        metric: Its name; None: their `loop.objective`.
        mode: Which value is best; None: their `loop.mode`, which says it of their objective only.

    Raises:
        ConfigurationError: The runs have several objectives, or nobody says which value of the metric is best.
        TrieyeError: None of them has it.
    """
    if metric is not None:
        _require(metric, runs)
        if mode is None and any(held.config.loop.objective != metric for held in runs):
            raise ConfigurationError(
                f"--metric {metric}: say whether a lower or a higher value is better, by --mode min or --mode max; "
                "loop.mode says so of loop.objective"
            )
    judged = {(metric or held.config.loop.objective, mode or held.config.loop.mode) for held in runs}
    if len(judged) > 1:
        shown = ", ".join(sorted(f"{mode} of {name}" for name, mode in judged))
        raise ConfigurationError(f"--keep best: these runs have several objectives ({shown}); say --metric and --mode")
    (name, which), *_ = judged or {("", "max")}
    sign = 1.0 if which == "max" else -1.0

    def goodness(held: Removal) -> float:
        seen = held.record.summary.get(name)
        return -math.inf if seen is None else sign * (seen["max"] if which == "max" else seen["min"])

    _require(name, runs)
    rated = [held for held in runs if goodness(held) > -math.inf]
    return sorted(rated, key=goodness, reverse=True)


def _require(metric: str, runs: Sequence[Removal]) -> None:
    known = sorted({name for held in runs for name in held.record.summary})
    if runs and metric not in known:
        hint = f"{did_you_mean(metric, known)} (they have: {', '.join(known[:10]) or 'none'})"
        raise TrieyeError(f"--keep best: no run has a metric {metric!r}{hint}")


def carry_out(removals: Sequence[Removal], options: argparse.Namespace) -> int:
    """Show what is to be deleted, ask, delete it, and return the exit code.

    Raises:
        ConfigurationError: Nobody can be asked.
        TrieyeError: MLflow or a mirror does not answer; the run that it belongs to is left, and those after it.
    """
    if not removals:
        print("there is nothing to delete")
        return 0
    with _explained():
        Terminal().print(_table(removals))
    if options.dry_run:
        print("this was a dry run: nothing is deleted")
        return 0
    if not options.yes and not _agrees(len(removals)):
        print("nothing is deleted")
        return EXIT_REFUSED
    for removal in removals:
        with _explained():
            removal.delete()
        print(f"deleted {removal.name}")
    if any(removal.record.mlflow_run_id is not None for removal in removals):
        print("their MLflow runs lie in its trash: `mlflow runs restore` brings one back, `mlflow gc` empties it")
    return 0


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except ConnectionError as error:
        raise TrieyeError(
            f"{error}; what belongs together is deleted together, so try again when it answers"
        ) from error


def _agrees(count: int) -> bool:
    if not sys.stdin.isatty():
        raise ConfigurationError("nobody can be asked here whether to delete these; --yes deletes without a question")
    what = "this run" if count == 1 else f"these {count} runs"
    return input(f"delete {what} for good? [y/N] ").strip().lower() in {"y", "yes"}


def _table(removals: Sequence[Removal]) -> Table:
    table = Table("run", is_ruled=False)
    table.add_column("status", no_wrap=True)
    table.add_column("last used", no_wrap=True)
    table.add_column("directory", justify="right", no_wrap=True)
    table.add_column("mirror", justify="right", no_wrap=True)
    table.add_column("MLflow run")
    for removal in removals:
        when = f"{datetime.fromtimestamp(removal.last_used).astimezone():%Y-%m-%d %H:%M}"
        mirrored = decimal(sum(removal.mirrored.values())) if removal.mirrored else "-"
        mlflow = removal.record.mlflow_run_id
        place = (
            "-"
            if mlflow is None
            else f"{mlflow[:8]} in {redacted_text(removal.config.persistence.MLFLOW_TRACKING_URI)}"
        )
        table.add_row(removal.name, removal.record.status, when, decimal(removal.size_bytes), mirrored, place)
    total = sum(removal.size_bytes for removal in removals)
    table.note(f"{len(removals)} in all, {decimal(total)} on this disk")
    return table
