"""Delete stored runs with what they own, their MLflow run and mirror, so that a retry can complete it; claim both."""

import contextlib
import glob
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from trieye.config import TrieyeConfig
from trieye.config.base import did_you_mean
from trieye.exceptions import ConfigurationError, RunLockedError, SerializationError, TrieyeError
from trieye.files.atomic import abandoned, original_name, recover, remove_directory
from trieye.files.atomic import remove as remove_tree
from trieye.files.run_files import RUN_RECORD
from trieye.files.run_record import RunRecord
from trieye.files.run_record import claim as record_owner
from trieye.mirror.removal import MirrorObjects, delete_objects, owned_objects
from trieye.mirror.store import MirrorStore
from trieye.process.lock import RunLock, is_alive
from trieye.runs.config import config_of
from trieye.runs.finding import (
    DEFAULT_ROOT,
    RunMissingError,
    RunReference,
    is_run_leftover,
    roots_of,
    run_directory,
    run_entry,
)
from trieye.runs.stored_run import Mode, StoredRun, disk_bytes
from trieye.sinks.mlflow.run import delete_run, is_owned_by


def remove(run: RunReference, *, root: Path = Path(DEFAULT_ROOT), dry_run: bool = False) -> "Removal":
    """Delete a run: its directory, its objects in the mirror, and its MLflow run, which MLflow keeps in its trash.

    A copy of a run owns neither the MLflow run nor the mirror, so only its directory is deleted. A directory without
    run.json among the runs of `root`, as an interrupted program leaves it, counts as a run, and so do the remaining
    files of a run whose deletion was interrupted.

    Args:
        run: The run, its directory or its name below `root`.
        root: Directory of all apps.
        dry_run: Whether to delete nothing yet: `Removal.delete` of the result does.

    Returns:
        The removal; its `notes` name remains of the run, with the reason.

    Raises:
        ConfigurationError: There is no such run, a symbolic link leads to it, a name leads out of `root`, or a
            `StoredRun` is neither in `root` nor in the project around the working directory.
        RunLockedError: The run is alive.
        SerializationError: Its run.json is damaged.
        TrieyeError: MLflow or the mirror does not answer; the directory still exists.
    """
    removal = Removal.of(_named_directory(run, root), root)
    if not dry_run:
        removal.delete()
    return removal


@dataclass(frozen=True)
class PruneResult:
    """What `prune` deletes.

    Attributes:
        removals: The deleted runs, the last used one at the end.
        retained: Why each other run is kept, by its directory.
    """

    removals: list["Removal"]
    retained: dict[Path, str]


def prune(
    app: str,
    *,
    older_than_s: float,
    keep_best: int | None = None,
    keep_newest: int = 0,
    metric: str | None = None,
    mode: Mode | None = None,
    root: Path = Path(DEFAULT_ROOT),
    dry_run: bool = False,
) -> PruneResult:
    """Delete the runs of an app that ended long ago, except the best and the newest ones.

    Runs that are alive, runs with a damaged run.json, and symbolic links are never deleted; with `keep_best`, neither
    are runs without the metric.

    Args:
        app: Its name below `root`, or its directory.
        older_than_s: Age in seconds, counted from the end of a run or its last sign of life.
        keep_best: Number of the best runs to keep; None: those without the metric are not kept either.
        keep_newest: Number of the newest runs to keep.
        metric: The metric that rates the runs; None: their `loop.objective`.
        mode: Whether higher values are better; None: their `loop.mode`.
        root: Directory of all apps.
        dry_run: Whether to delete nothing yet: `Removal.delete` of each result does.

    Raises:
        ConfigurationError: There is no such app, or the runs cannot be rated.
        TrieyeError: MLflow or a mirror does not answer; runs that were not deleted yet still exist.
    """
    half_deleted, runs, retained = _idle_runs(app, root)
    cutoff = time.time() - older_than_s
    retained |= {run.run_dir: "used recently" for run in runs if run.last_used > cutoff}
    retained |= {run.run_dir: _best_of(keep_newest, "newest") for run in runs[::-1][:keep_newest]}
    if keep_best is not None:
        ranked_runs = _best_first(runs, metric, mode)
        retained |= {run.run_dir: "objective unknown" for run in runs if run not in ranked_runs}
        retained |= {run.run_dir: _best_of(keep_best, "best") for run in ranked_runs[:keep_best]}
    removals = [*half_deleted, *(run for run in runs if run.run_dir not in retained)]
    for removal in () if dry_run else removals:
        removal.delete()
    return PruneResult(removals, retained)


def _best_of(num: int, which: str) -> str:
    return f"the {which}" if num == 1 else f"among the {num} {which}"


def _named_directory(run: RunReference, root: Path) -> Path:
    """Return the real directory of a run, or of one without run.json."""
    reference = run.run_dir if isinstance(run, StoredRun) else run
    try:
        path = run_entry(reference, [root])
    except ConfigurationError as error:
        name = str(reference)
        leftovers = [path for path in root.glob("*/*/*") if name in {path.name, f"{path.parents[1].name}/{path.name}"}]
        leftovers = [path for path in (Path(name), *leftovers) if _is_inside(path, root) and is_run_leftover(path)]
        for leftover, path in _half_deleted(root.glob("*/*")).items() if isinstance(error, RunMissingError) else ():
            if name in {path.name, f"{path.parents[1].name}/{path.name}"} or Path(name).resolve() == path.resolve():
                leftovers.append(leftover)
        if len({path.resolve() for path in leftovers}) != 1:
            raise
        path = leftovers[0]
    if path.is_symlink():
        raise ConfigurationError(
            f"{path} is a symbolic link to {path.resolve()}; to delete the run, name that directory; to delete only "
            f"the link, use `rm {path}`"
        )
    if isinstance(run, StoredRun) and not any(_is_inside(path, one) for one in (root, *roots_of(None))):
        raise ConfigurationError(
            f"run {run}: {path} is neither below {root} nor in this project; if it was not found through a link, pass "
            "its root or its directory"
        )
    if not isinstance(run, StoredRun) and path != Path(reference) and not _is_inside(path, root):
        raise ConfigurationError(f"run {reference!r}: {path.resolve()} is outside --root {root}; name its directory")
    return path.resolve()


def _half_deleted(directories: Iterable[Path]) -> dict[Path, Path]:
    """Return the remaining directory and the original path of each run whose deletion was interrupted."""
    paths = [path for directory in directories for path in abandoned(directory)]
    return {path: path.with_name(original_name(path)) for path in paths if path.is_dir() and not path.is_symlink()}


def _is_half_deleted(path: Path) -> bool:
    return path.name.startswith(".") and path in abandoned(path.parent)


@dataclass(frozen=True)
class Removal:
    """A run, or a directory without run.json, to delete; its MLflow run and mirror go only if they name it as owner.

    Attributes:
        run_dir: The directory.
        name: App and name of the directory; its path if it is not below the root of all apps.
        record: Its run.json, if there is one.
        config: Its config with its current directory; None if it cannot be read.
        refusal: Why it does not own the MLflow run and the mirror of the run; None if it may.
    """

    run_dir: Path
    name: str
    record: RunRecord | None
    config: TrieyeConfig | None
    refusal: str | None

    @classmethod
    def of(cls, run_dir: Path, root: Path) -> "Removal":
        """Return the removal of a directory.

        Args:
            run_dir: The directory, without symbolic links.
            root: Directory of all apps.

        Raises:
            RunLockedError: The run is alive.
            SerializationError: Its run.json is damaged.
        """
        name = f"{run_dir.parents[1].name}/{run_dir.name}" if _is_inside(run_dir, root) else str(run_dir)
        if _is_half_deleted(run_dir):  # its MLflow run and its mirror were deleted before
            return cls(run_dir, name, None, None, "its deletion was interrupted")
        if is_alive(run_dir):
            raise RunLockedError(f"run {run_dir.name!r} is still running; nothing was deleted; stop it first")
        record, config = RunRecord.read(run_dir / RUN_RECORD), None
        refusal = f"it has no {RUN_RECORD}" if record is None else record.refusal(run_dir)
        try:
            config = config_of(run_dir)
        except ConfigurationError as error:
            refusal = refusal or str(error)
        return cls(run_dir, name, record, config, refusal)

    @property
    def last_used(self) -> float:
        """Unix time in seconds of its end, or of its last sign of life."""
        ended = None if self.record is None else self.record.ended
        # reading processes change the memory of SQLite and, with filelock 3.30, the lock files
        paths = (path for path in self.run_dir.iterdir() if path.exists() and not path.name.endswith(("-shm", ".lock")))
        return ended or max((path.stat().st_mtime for path in paths), default=self.run_dir.stat().st_mtime)

    @cached_property
    def size_bytes(self) -> int:
        """Bytes of its directory."""
        return disk_bytes(self.run_dir)

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
    def mirrors(self) -> list[tuple[MirrorStore, MirrorObjects | None]]:
        """Its mirror under its current and all earlier names, and the objects; None: not its own.

        Raises:
            ConfigurationError: The mirror cannot be used.
            TrieyeError: The mirror does not answer.
        """
        record, config = self.record, self.config
        if self.refusal is not None or config is None or record is None or record.owner is None:
            return []
        if (url := config.persistence.mirror) is None:
            return []
        owners = {(config.app_name, config.run_name): {record.owner.token}}
        for mirror in filter(None, [record.mirror, *record.former_mirrors]):
            owners.setdefault((mirror.app_name, mirror.run_name), set()).add(mirror.token)
        stores = [(MirrorStore(url, *name), tokens) for name, tokens in owners.items()]
        with _explained():
            return [(store, owned_objects(store, run_id=record.run_id, owners=tokens)) for store, tokens in stores]

    @property
    def mirrored_bytes(self) -> int:
        """Bytes of its objects in the mirror."""
        return sum(sum(objects.sizes.values()) for _, objects in self.mirrors if objects)

    def notes(self) -> Iterator[str]:
        """Yield the remains of the run, with the reason."""
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
            elif objects.foreign:
                files_text = f"{len(objects.foreign)} files below {store.address}, such as {objects.foreign[0]}"
                yield f"{self.name}: files that trieye did not write are not deleted: {files_text}"

    def delete(self) -> None:
        """Delete the MLflow run, the mirror and the directory in this order, so that a retry completes it.

        Raises:
            RunLockedError: Another process has started it.
            TrieyeError: It was used since it was listed, or MLflow or the mirror does not answer; the directory still
                exists.
        """
        if _is_half_deleted(self.run_dir):
            remove_tree(self.run_dir)
            remainder = self.run_dir if self.run_dir.exists() else None
        else:
            self._delete_run()
            recover(self.run_dir.parent, self.run_dir.name)
            remainder = next(self.run_dir.parent.glob(f".tmp-{glob.escape(self.run_dir.name)}~*"), None)
        if remainder is not None:
            raise TrieyeError(f"run {self.name!r} is deleted, except files that this user may not delete: {remainder}")

    def _delete_run(self) -> None:
        with RunLock(self.run_dir / "run.lock"), RunLock(self.run_dir / "hub.lock"), _explained():
            if all(path.name.startswith(("run.lock", "hub.lock")) for path in self.run_dir.iterdir()):
                remove_directory(self.run_dir)  # another process deleted it, and its locks created it again
                return
            if _use_of(RunRecord.read(self.run_dir / RUN_RECORD)) != _use_of(self.record):
                raise TrieyeError(f"run {self.name!r} was used since it was listed, and is kept; repeat the command")
            if self.owns_mlflow_run and self.record is not None and self.config is not None:
                delete_run(self.config.persistence.MLFLOW_TRACKING_URI, str(self.record.mlflow_run_id))
            for store, objects in self.mirrors:
                delete_objects(store, objects.sizes if objects else {})
            remove_directory(self.run_dir)


def claim(run: RunReference, *, root: Path | None = None) -> Path:
    """Record the directory of a run that was moved as the owner of its MLflow run and its mirror, and return it.

    Args:
        run: The run, its directory or its name.
        root: Directory of all apps; None: the directories of the project around the working directory.

    Raises:
        ConfigurationError: There is no such run, or it is a copy of a run that still exists.
        RunLockedError: The run is alive.
    """
    run_dir = run_directory(run, root=root)
    with RunLock(run_dir / "run.lock"), RunLock(run_dir / "hub.lock"):
        record_owner(run_dir)
    return run_dir


def _use_of(record: RunRecord | None) -> tuple[str, int, float | None] | None:
    return None if record is None else (record.run_id, record.attempt, record.ended)


def _idle_runs(app: str, root: Path) -> tuple[list[Removal], list[Removal], dict[Path, str]]:
    """Return the half-deleted runs of an app, the runs to choose from, and why each other run is kept.

    The last used run is at the end. A run that a link above it leads to outside the app's root counts as a link.
    """
    is_named = Path(app).name == app and (root / app).is_dir()
    app_dir, parent_dir = (root / app, root) if is_named else (Path(app), Path(app).resolve().parent)
    half_deleted = [path.resolve() for path in _half_deleted(app_dir.glob("*")) if _is_inside(path, parent_dir)]
    runs = sorted(path.parent for path in app_dir.glob(f"*/*/{RUN_RECORD}") if path.parent.name[0] != ".")
    if not runs and not half_deleted:
        apps = sorted({path.parents[2].name for path in root.glob(f"*/*/*/{RUN_RECORD}")})
        names = {path.parent.name for path in root.glob(f"*/*/*/{RUN_RECORD}")}
        hint = "; it is a run, and only the runs of an app are pruned" if app in names else did_you_mean(app, apps)
        allowed = f"{root.resolve()} has: {', '.join(apps) or 'none'}"
        raise ConfigurationError(f"app {app!r}: it has no runs{hint} ({allowed})")
    links = [run_dir for run_dir in runs if run_dir.is_symlink() or not _is_inside(run_dir, parent_dir)]
    retained = {run_dir: f"{run_dir} is a symbolic link to {run_dir.resolve()}" for run_dir in links}
    retained |= {run_dir: "running" for run_dir in runs if run_dir not in links and is_alive(run_dir)}
    idle_runs = []
    for run_dir in [run_dir for run_dir in runs if run_dir not in retained]:
        try:
            idle_runs.append(Removal.of(run_dir.resolve(), parent_dir))
        except SerializationError as error:
            retained[run_dir] = str(error)
    removals = [Removal.of(path, parent_dir) for path in half_deleted]
    return removals, sorted(idle_runs, key=lambda run: run.last_used), retained


def _best_first(runs: Sequence[Removal], metric: str | None, mode: Mode | None) -> list[Removal]:
    """Return the rated runs by their best value, the last used first among equals; diverged runs come last."""
    if not runs:
        return []
    stored = {run.run_dir: StoredRun.read(run.run_dir) for run in runs}
    metrics = sorted({name for run in stored.values() for name in run.metrics})
    if metric is not None:
        _require(metric, metrics)
        if mode is None and any(run.metric != metric for run in stored.values()):
            raise ConfigurationError(
                f"--metric {metric}: choose --mode min or --mode max; loop.mode applies to loop.objective only"
            )
    objectives = {(name, mode or run.mode) for run in stored.values() if (name := metric or run.metric) is not None}
    if len(objectives) > 1:
        text = ", ".join(sorted(f"{better} of {name}" for name, better in objectives))
        raise ConfigurationError(f"--keep best: these runs have several objectives ({text}); use --metric and --mode")
    (name, better), *_ = objectives or {("", "max")}
    _require(name, metrics)
    rated_runs = {path: StoredRun.read(path, metric=name, mode=better) for path in stored}

    def rating(run: Removal) -> tuple[bool, float]:
        best, sign = rated_runs[run.run_dir].best, 1.0 if better == "max" else -1.0
        return not rated_runs[run.run_dir].diverged, math.nan if best is None else sign * best

    return sorted((run for run in reversed(runs) if not math.isnan(rating(run)[1])), key=rating, reverse=True)


def _require(metric: str, metrics: Sequence[str]) -> None:
    if metric not in metrics:
        hint = f"{did_you_mean(metric, metrics)} (they have: {', '.join(metrics[:10]) or 'none'})"
        raise TrieyeError(f"--keep best: no run has a metric {metric!r}{hint}")


def _is_inside(path: Path, root: Path) -> bool:
    return root.resolve() in path.resolve().parents[2:3]


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except ConnectionError as error:
        raise TrieyeError(f"{error}; a run and its copies are deleted together, so retry when it answers") from error
