"""Deleting runs: which directory, MLflow run and mirror objects are deleted, and in which order."""

import argparse
import contextlib
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from rich.filesize import decimal

from trieye.cli.found_runs import is_run_leftover, loop_of, published_metrics
from trieye.cli.given_run import config_of, find_entry
from trieye.cli.saved import disk_bytes
from trieye.config import TrieyeConfig
from trieye.config.base import did_you_mean
from trieye.config.redaction import redacted_text
from trieye.exceptions import ConfigurationError, RunLockedError, TrieyeError
from trieye.files.atomic import recover, remove_directory
from trieye.files.run_files import RUN_RECORD
from trieye.files.run_record import RunRecord
from trieye.mirror.removal import delete_objects, owned_objects
from trieye.mirror.store import MirrorStore
from trieye.process.lock import RunLock, is_alive
from trieye.process.terminal import Table, Terminal
from trieye.sinks.mlflow.run import delete_run, is_owned_by
from trieye.stats.drops import has_diverged

EXIT_REFUSED = 1


def named_directory(name: str, root: Path) -> Path:
    """Return the real directory that a user named: a run, or a directory without run.json among the runs of `root`.

    Args:
        name: Its path, or its name below `root`: run or app/run.
        root: Directory of all apps.

    Raises:
        ConfigurationError: It does not exist, is a symbolic link, or a name below `root` leads out of it.
    """
    try:
        path = find_entry(name, root)
    except ConfigurationError:
        leftovers = [path for path in root.glob("*/*/*") if name in {path.name, f"{path.parents[1].name}/{path.name}"}]
        leftovers = [path for path in (Path(name), *leftovers) if _is_inside(path, root) and is_run_leftover(path)]
        if len({path.resolve() for path in leftovers}) != 1:
            raise
        path = leftovers[0]
    if path.is_symlink():
        raise ConfigurationError(
            f"{path} is a symbolic link to {path.resolve()}; to delete the run, name that directory; to delete only "
            f"the link, use `rm {path}`"
        )
    if path != Path(name) and not _is_inside(path, root):
        raise ConfigurationError(f"run {name!r}: {path.resolve()} is outside --root {root}; name its directory")
    return path.resolve()


def _is_inside(path: Path, root: Path) -> bool:
    return root.resolve() in path.resolve().parents[2:3]


@dataclass(frozen=True)
class Removal:
    """A run, or a directory without run.json, to delete; its MLflow run and mirror go only if they name it as owner.

    Attributes:
        run_dir: The directory.
        name: App and name of the directory, as the user knows it; its path if it is not below the root of all apps.
        record: Its run.json, if there is one.
        config: Its config for the directory in which it is now; None if it cannot be read.
        refusal: Why it does not own the MLflow run and the mirror of the run; None if it may.
    """

    run_dir: Path
    name: str
    record: RunRecord | None
    config: TrieyeConfig | None
    refusal: str | None

    @classmethod
    def of(cls, run_dir: Path, root: Path) -> "Removal":
        """Look at a directory.

        Args:
            run_dir: The directory, without symbolic links.
            root: Directory of all apps.

        Raises:
            RunLockedError: The run is alive.
            SerializationError: Its run.json is damaged.
        """
        if is_alive(run_dir):
            raise RunLockedError(f"run {run_dir.name!r} is alive, and nothing of it is deleted; stop it first")
        record, config = RunRecord.read(run_dir / RUN_RECORD), None
        refusal = f"it has no {RUN_RECORD}" if record is None else record.refusal(run_dir)
        try:
            config = config_of(run_dir)
        except ConfigurationError as error:
            refusal = refusal or str(error)
        name = f"{run_dir.parents[1].name}/{run_dir.name}" if _is_inside(run_dir, root) else str(run_dir)
        return cls(run_dir, name, record, config, refusal)

    @property
    def last_used(self) -> float:
        """Unix time in seconds of its end, or of its last sign of life."""
        ended = None if self.record is None else self.record.ended
        return ended or max(path.stat().st_mtime for path in (self.run_dir, *self.run_dir.iterdir()) if path.exists())

    @cached_property
    def size_bytes(self) -> int:
        """Bytes of its directory."""
        return disk_bytes(self.run_dir)

    @cached_property
    def metrics(self) -> Mapping[str, Mapping[str, float | None]]:
        """Last value and extremes of each metric, as `trieye runs` shows them."""
        summary: Any = self.record and self.record.summary
        return summary or published_metrics(self.run_dir)

    @cached_property
    def owns_mlflow_run(self) -> bool | None:
        """Whether its MLflow run names this directory as owner; None if there is no MLflow run.

        Raises:
            TrieyeError: MLflow does not answer.
        """
        record, config = self.record, self.config
        if record is None or record.mlflow_run_id is None:
            return None
        if self.refusal is not None or config is None or record.owner is None:
            return False
        uri = config.persistence.MLFLOW_TRACKING_URI
        return is_owned_by(record.owner.token, uri, record.mlflow_run_id, record.run_id)

    @cached_property
    def mirrors(self) -> list[tuple[MirrorStore, dict[str, int] | None]]:
        """Its mirror, also that of its name before a rename, and keys and bytes of the objects; None: not its own.

        Raises:
            ConfigurationError: The mirror cannot be used.
            ConnectionError: The mirror does not answer.
        """
        record, config = self.record, self.config
        if self.refusal is not None or config is None or record is None or record.owner is None:
            return []
        if (url := config.persistence.mirror) is None:
            return []
        names = dict.fromkeys([(config.app_name, config.run_name), (record.app_name, record.run_name)])
        stores = [MirrorStore(url, *name) for name in names]
        return [(store, owned_objects(store, run_id=record.run_id, owner=record.owner.token)) for store in stores]

    @property
    def mirrored_bytes(self) -> int:
        """Bytes of its objects in the mirror."""
        return sum(sum(objects.values()) for _, objects in self.mirrors if objects)

    def notes(self) -> Iterator[str]:
        """Yield what is left of the run, and why."""
        why = self.refusal or "it does not name this directory as its owner"
        if self.record is not None and self.owns_mlflow_run is False:
            run_id = self.record.mlflow_run_id
            yield f"{self.name}: MLflow run {run_id} is not deleted: {why}"
        may_be_mirrored = self.config is None or self.config.persistence.mirror is not None
        if self.record is not None and self.refusal is not None and may_be_mirrored:
            yield f"{self.name}: the mirror of the run, if it has one, is not deleted: {why}"
        for store, objects in self.mirrors:
            if objects is None:
                yield f"{self.name}: the mirror {store.address} is not deleted: {why}"

    def delete(self) -> None:
        """Delete the MLflow run, the mirror and the directory in this order, so that a retry finds what an error left.

        Raises:
            RunLockedError: Another process has started it meanwhile.
            TrieyeError: MLflow or the mirror does not answer; the directory still exists.
        """
        with RunLock(self.run_dir / "run.lock"), RunLock(self.run_dir / "hub.lock"):
            if self.owns_mlflow_run and self.record is not None and self.config is not None:
                delete_run(self.config.persistence.MLFLOW_TRACKING_URI, str(self.record.mlflow_run_id))
            for store, objects in self.mirrors:
                delete_objects(store, objects or {})
            remove_directory(self.run_dir)
        recover(self.run_dir.parent, self.run_dir.name)
        remainder = next(self.run_dir.parent.glob(f".tmp-{self.run_dir.name}~*"), None)
        if remainder is not None:
            raise TrieyeError(f"run {self.name!r} is deleted, except files that this user may not delete: {remainder}")


def idle_runs(app: str, root: Path) -> list[Removal]:
    """Return the runs of an app that are not alive, the last used one at the end; print those that are skipped.

    Symbolic links, and whatever a link leads to outside the app's root, are skipped.

    Args:
        app: Its name below `root`, or its directory.
        root: Directory of all apps.

    Raises:
        ConfigurationError: There is no such app.
    """
    is_named = (root / app).is_dir()
    app_dir, inside = (root / app, root) if is_named else (Path(app), Path(app).resolve().parent)
    runs = sorted(path.parent for path in app_dir.glob(f"*/*/{RUN_RECORD}") if path.parent.name[0] != ".")
    if not runs:
        apps = sorted({path.parents[2].name for path in root.glob(f"*/*/*/{RUN_RECORD}")})
        known = f"{root.resolve()} has: {', '.join(apps) or 'none'}"
        raise ConfigurationError(f"app {app!r}: it has no runs{did_you_mean(app, apps)} ({known})")
    links = [run_dir for run_dir in runs if run_dir.is_symlink() or not _is_inside(run_dir, inside)]
    for run_dir in links:
        print(f"skipping {run_dir}: a symbolic link leads to {run_dir.resolve()}")
    idle = [Removal.of(run_dir.resolve(), inside) for run_dir in runs if run_dir not in links and not is_alive(run_dir)]
    return sorted(idle, key=lambda run: run.last_used)


def best_first(runs: Sequence[Removal], metric: str | None, mode: Literal["max", "min"] | None) -> list[Removal]:
    """Return the runs whose objective is known, by its best value; runs in which it diverged come last.

    Args:
        runs: The runs.
        metric: Its name; None: their `loop.objective`.
        mode: Which value is best; None: their `loop.mode`, which applies to their objective only.

    Raises:
        ConfigurationError: The runs have several objectives, or the mode of the metric is missing.
        TrieyeError: None of them has the metric.
    """
    loops = {run.run_dir: loop_of(run.run_dir) for run in runs}
    if metric is not None:
        _require(metric, runs)
        if mode is None and any(loop.objective != metric for loop in loops.values()):
            raise ConfigurationError(
                f"--metric {metric}: choose --mode min or --mode max; loop.mode applies to loop.objective only"
            )
    judged = {(name, mode or loop.mode) for loop in loops.values() if (name := metric or loop.objective) is not None}
    if len(judged) > 1:
        shown = ", ".join(sorted(f"{mode} of {name}" for name, mode in judged))
        raise ConfigurationError(f"--keep best: these runs have several objectives ({shown}); use --metric and --mode")
    (name, which), *_ = judged or {("", "max")}
    sign = 1.0 if which == "max" else -1.0

    def goodness(run: Removal) -> tuple[bool, float]:
        value = run.metrics.get(name, {}).get(which)
        return not has_diverged(run.metrics, name), math.nan if value is None else sign * value

    _require(name, runs)
    return sorted((run for run in runs if not math.isnan(goodness(run)[1])), key=goodness, reverse=True)


def _require(metric: str, runs: Sequence[Removal]) -> None:
    names = sorted({name for run in runs for name in run.metrics})
    if runs and metric not in names:
        hint = f"{did_you_mean(metric, names)} (they have: {', '.join(names[:10]) or 'none'})"
        raise TrieyeError(f"--keep best: no run has a metric {metric!r}{hint}")


def carry_out(removals: Sequence[Removal], options: argparse.Namespace) -> int:
    """List the runs, ask for confirmation, delete them, and return the exit code.

    Raises:
        ConfigurationError: There is no terminal to ask on.
        TrieyeError: MLflow or a mirror does not answer; the run that it belongs to is left, and those after it.
    """
    if not removals:
        print("there is nothing to delete")
        return 0
    with _explained():
        Terminal().print(_table(removals))
        for note in (note for removal in removals for note in removal.notes()):
            print(note)
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
    if any(removal.owns_mlflow_run for removal in removals):
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
        mirrored = decimal(removal.mirrored_bytes) if removal.mirrored_bytes else "-"
        mlflow, record = "-", removal.record
        if removal.owns_mlflow_run and record is not None and removal.config is not None:
            uri = redacted_text(removal.config.persistence.MLFLOW_TRACKING_URI)
            mlflow = f"{str(record.mlflow_run_id)[:8]} in {uri}"
        status = f"no {RUN_RECORD}" if record is None else record.status
        table.add_row(removal.name, status, when, decimal(removal.size_bytes), mirrored, mlflow)
    total = sum(removal.size_bytes for removal in removals)
    table.note(f"{len(removals)} in all, {decimal(total)} on this disk")
    return table
