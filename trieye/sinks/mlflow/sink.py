"""MlflowSink: logs points, parameters, tags, files and media of a run to an MLflow store or server."""

import contextlib
import errno
import itertools
import json
import logging
import os
import posixpath
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trieye.config.names import printable
from trieye.config.redaction import redacted_text
from trieye.exceptions import ProcessingError, SinkBusyError, SinkGoneError, TrieyeError
from trieye.sinks.base import RunInfo, RunStatus
from trieye.sinks.mlflow import run as mlflow_run
from trieye.sinks.mlflow import store as mlflow_store
from trieye.sinks.mlflow.run import OWNER_TAG, PARENT_TAG, SWEEP_TAG, artifact_directory, mlflow_name
from trieye.sinks.mlflow.system import SystemMetrics
from trieye.stats.operations import LogImage, LogTable, LogText, LogVideo, Medium
from trieye.stats.point import Point

log = logging.getLogger("trieye.sinks")

MAX_REMEMBERED = 2_000_000
"""Capacity of `SupersededPoints`; 16 bytes per point, where tuples would take 200."""

_CHUNK = 500_000
_pack = struct.Struct("<qd").pack

_Kind = Literal["metrics", "params", "tags"]
_MAX_PER_BATCH: dict[_Kind, int] = {"metrics": 1000, "params": 100, "tags": 100}
_MAX_PARAM_LENGTH = 6000
_MAX_TAG_LENGTH = 8000
CHANGED_PREFIX = "trieye.changed."
"""Prefix of the tag with the changed value of a parameter."""

_NAME_ERRORS = tuple(f"[Errno {code}]" for code in (errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG))
"""Errors of a file store, which keeps each metric in a file of its name: `loss` and `loss/actor` exclude each other."""

MAX_FAILED_UPLOADS = 3
"""Consecutive failures after which an upload waits no longer: points must not wait for an artifact store."""


class MlflowSink:
    """Logs to one MLflow run, which later attempts continue.

    Args:
        on_run_id: Called with the id of the MLflow run before the first point is written.
        client: An `MlflowClient` to use instead of a new one, together with `RunInfo.mlflow_run_id` if that is set.
        system_metrics_interval_s: Seconds between two points of each system metric; None disables system metrics.

    Attributes:
        run_id: Id of the MLflow run; None until `open` succeeds.
        is_empty: Whether the MLflow run is new.
        num_refused: Number of points, parameters and tags that MLflow rejected.
    """

    name = "mlflow"

    def __init__(
        self,
        on_run_id: Callable[[str], None] | None = None,
        client: Any = None,
        *,
        system_metrics_interval_s: float | None = None,
    ) -> None:
        self.run_id: str | None = None
        self.is_empty = False
        self.num_refused = 0
        self._on_run_id = on_run_id
        self._custom_client = client
        self._client: Any = client
        self._uri = ""
        self._run_dir = Path()
        self._database: tuple[Path, os.stat_result] | None = None
        self._names: dict[str, str] = {}
        self._params: dict[str, str] = {}  # with the latest values
        self._reported_keys: set[tuple[str, ...]] = set()
        self._impossible_keys: set[tuple[str, str]] = set()
        self._failed_uploads = 0
        self._missing_artifacts: list[str] = []
        self._superseded_points = SupersededPoints()
        self._parent_id: str | None = None
        self._sweep: tuple[str, str] | None = None
        self._system_metrics_interval_s = system_metrics_interval_s
        self._system_metrics: SystemMetrics | None = None

    def open(self, run: RunInfo) -> None:
        """Create or continue the MLflow run, in an experiment named after the app.

        The members of a sweep are nested below one parent run.

        Raises:
            TrieyeError: MLflow cannot be reached, or the experiment was deleted; the message explains the remedy.
        """
        self._uri, self._run_dir = run.tracking_uri, run.run_dir
        mlflow_store.require_password(self._uri)
        if self._custom_client is not None and run.mlflow_run_id is not None:
            run_id = run.mlflow_run_id
        else:
            with self._explained("open"):
                run_id = self._connect(run)
        self.run_id = run_id
        if self._on_run_id is not None:
            self._on_run_id(run_id)
        tags = {SWEEP_TAG: run.group, PARENT_TAG: self._parent_id, OWNER_TAG: run.owner}
        self.set_tags({**run.tags, **{name: text for name, text in tags.items() if text is not None}})
        if self._system_metrics_interval_s is not None and self._system_metrics is None:
            self._system_metrics = self._start_system_metrics(self._system_metrics_interval_s)

    def note_superseded(self, points: Iterable[Point]) -> None:
        """Record points that MLflow has and a rewind superseded: equal points are not logged again."""
        self._superseded_points.add(points)

    def write(self, points: Sequence[Point]) -> None:
        """Log points in one request; their wall time is the time of the metric.

        Raises:
            TrieyeError: MLflow cannot be reached.
        """
        from mlflow.entities import Metric

        metrics = [
            Metric(self._name("metric", point.metric), point.value, int(max(point.wall_time, 0.0) * 1000), point.step)
            for point in self._superseded_points.without(points)
        ]
        with self._explained("write"):
            self._log("metrics", metrics)

    def log_params(self, params: Mapping[str, str]) -> None:
        """Log new parameters; a tag stores the changed value of an existing one, which MLflow cannot update.

        Raises:
            TrieyeError: MLflow cannot be reached.
        """
        from mlflow.entities import Param

        new_params, changes = {}, []
        for name, text in params.items():
            key, value = self._name("parameter", name), self._cut("parameter", name, text, _MAX_PARAM_LENGTH)
            if key not in self._params:
                new_params[key] = value
            elif self._params[key] != value:
                changes.append((name, key, value))
        with self._explained("write"):
            self._log("params", [Param(key, value) for key, value in new_params.items()])
        self._params.update(new_params)
        for name, key, value in changes:
            tag = f"{CHANGED_PREFIX}{name}"
            self.set_tags({tag: value})
            log.warning("MLflow keeps parameter %r; the tag %r stores its new value %r", name, tag, value[:100])
            self._params[key] = value

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Set tags.

        Raises:
            TrieyeError: MLflow cannot be reached.
        """
        from mlflow.entities import RunTag

        cut = {self._name("tag", name): self._cut("tag", name, text, _MAX_TAG_LENGTH) for name, text in tags.items()}
        with self._explained("write"):
            self._log("tags", [RunTag(key, value) for key, value in cut.items()])

    def log_artifact(self, path: Path, artifact_path: str | None) -> None:
        """Copy a file, or a directory under its name, to the artifacts of the run.

        Raises:
            ProcessingError: It does not exist or cannot be read, `artifact_path` leaves the run's artifacts, or uploads
                have failed `MAX_FAILED_UPLOADS` times in a row although MLflow answers.
            TrieyeError: MLflow cannot be reached.
        """
        folder = posixpath.normpath(artifact_path or ".")
        if folder.startswith(("/", "..")):
            raise ProcessingError(
                f"artifact {path}: artifact_path={artifact_path!r} is outside the artifacts of the run; pass a "
                "relative path without '..'"
            )
        artifact_path = None if folder == "." else folder
        with self._explained("write"):
            if os.access(path, os.R_OK):
                self._upload(path, artifact_path)
            elif path.name not in self._names_in(artifact_path):  # else delivered before and deleted here
                raise ProcessingError(f"artifact {path} does not exist or cannot be read; skipped")

    def log_media(self, medium: Medium) -> None:
        """Store an image, video, table or text as an artifact by name and step; ignore histograms.

        A medium replaces an earlier one of the same name and step. A redelivered medium cannot be distinguished from
        another one of that step: MLflow does not record which medium an artifact was.

        Raises:
            ProcessingError: MLflow rejects it, or uploads fail as in `log_artifact`.
            TrieyeError: MLflow cannot be reached.
        """
        if isinstance(medium, LogImage):
            kind, suffix, content = "images", "png", medium.png
        elif isinstance(medium, LogText):
            kind, suffix, content = "texts", "md", printable(medium.text).encode()
        elif isinstance(medium, LogVideo):
            kind, suffix, content = "videos", medium.format, medium.content
        elif isinstance(medium, LogTable):
            kind, suffix, content = "tables", "json", medium.json  # as MLflow's own `log_table` writes it
        else:
            return
        with self._explained("write"), tempfile.TemporaryDirectory(prefix="trieye-") as directory:
            path = Path(directory) / f"step_{medium.step}.{suffix}"
            path.write_bytes(content)
            directory_name = f"{kind}/{artifact_directory(medium.name)}"
            self._upload(path, directory_name)
            if kind == "tables":
                self._register_table(f"{directory_name}/{path.name}")

    def _register_table(self, artifact: str) -> None:
        """Add a table to the tag in which MLflow's UI looks for tables; drop the oldest if the tag gets too long."""
        from mlflow.utils.mlflow_tags import MLFLOW_LOGGED_ARTIFACTS

        old_tables = json.loads(self._client.get_run(self.run_id).data.tags.get(MLFLOW_LOGGED_ARTIFACTS, "[]"))
        table = {"path": artifact, "type": "table"}
        tables = [*(other for other in old_tables if other != table), table]
        while len(text := json.dumps(tables)) > _MAX_TAG_LENGTH:
            tables.pop(0)
        self._client.set_tag(self.run_id, MLFLOW_LOGGED_ARTIFACTS, text, synchronous=True)

    def close(self, status: RunStatus) -> None:
        """Record the final status of the run; RUNNING leaves it open for the next attempt.

        Raises:
            TrieyeError: MLflow cannot be reached.
        """
        if self._system_metrics is not None:
            self._system_metrics.stop()
            self._system_metrics = None
        if self._missing_artifacts:
            log.warning(
                "artifacts missing in MLflow: %d (latest: %s); once uploads work, `trieye rebuild %s --sink mlflow` "
                "delivers them",
                len(self._missing_artifacts),
                self._missing_artifacts[-1],
                self._run_dir,
            )
            self._missing_artifacts.clear()
        if status != "RUNNING":
            with self._explained("close"):
                self._client.set_terminated(self.run_id, status)
                if self._sweep is not None:
                    mlflow_run.end_sweep(self._client, str(self.run_id), *self._sweep)

    def store_activity(self) -> object:
        """Return a value that changes with every write to an SQLite store."""
        return mlflow_store.activity_of(self._uri)

    def _connect(self, run: RunInfo) -> str:
        from mlflow import MlflowClient

        mlflow_store.prepare_client(self._uri)
        if mlflow_store.is_sqlite(self._uri):
            # half a second of imports, outside the lock that other processes wait for
            import mlflow.store.tracking.sqlalchemy_store  # noqa: F401 - only loaded
        with mlflow_store.database_lock(self._uri) as database:
            if database is not None:
                mlflow_store.prepare_database(database)
                mlflow_store.forget_connections(database)
                self._database = database, database.stat()
                if database == (run.mlflow_dir / "mlflow.db").resolve():
                    mlflow_store.follow_move(
                        database, mlflow_run.artifacts_of(run), experiment=run.app_name, run_id=run.mlflow_run_id
                    )
            self._client = self._custom_client or MlflowClient(tracking_uri=self._uri)
            experiment_id = mlflow_run.experiment_id(self._client, run)
            if run.group is not None:
                self._sweep = experiment_id, run.group
                self._parent_id = mlflow_run.sweep_parent(self._client, experiment_id, run.group)
        existing_run = mlflow_run.find(self._client, run, experiment_id)
        self.is_empty = existing_run is None
        if existing_run is None:
            return mlflow_run.create(self._client, run, experiment_id)
        tags = existing_run.data.tags
        changed_names = [name for name in tags if name.startswith(CHANGED_PREFIX)]
        self._params = existing_run.data.params | {
            name.removeprefix(CHANGED_PREFIX): tags[name] for name in changed_names
        }
        self._client.update_run(existing_run.info.run_id, status="RUNNING")
        return str(existing_run.info.run_id)

    def _start_system_metrics(self, interval_s: float) -> SystemMetrics | None:
        try:
            from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

            with mlflow_store.quiet("mlflow.system_metrics.system_metrics_monitor"):
                monitor = SystemMetricsMonitor(self.run_id, interval_s, resume_logging=True, tracking_uri=self._uri)
        except Exception as error:  # noqa: BLE001 - the border to MLflow, psutil and drivers: points must be logged anyway
            hint = "; pip install psutil" if isinstance(error, ImportError) else ""
            log.warning(
                "sinks.mlflow.system_metrics: disabled, because system metrics cannot be read: %s%s",
                redacted_text(str(error)),
                hint,
            )
            return None
        return SystemMetrics(monitor)

    def _names_in(self, artifact_path: str | None) -> set[str]:
        return {posixpath.basename(file.path) for file in self._client.list_artifacts(self.run_id, artifact_path)}

    def _upload(self, path: Path, artifact_path: str | None) -> None:
        try:
            self._client.log_artifact(self.run_id, str(path), artifact_path)
        except Exception as error:
            artifact_uri = self._client.get_run(self.run_id).info.artifact_uri  # raises if the whole store fails
            directory = redacted_text(posixpath.join(artifact_uri, artifact_path or ""))
            message = f"artifact {path.name} cannot be uploaded to {directory}: {_first_line(error)}"
            self._failed_uploads += 1
            if self._failed_uploads < MAX_FAILED_UPLOADS and not _is_refusal(error):
                raise TrieyeError(message) from error
            self._missing_artifacts.append(message)
            raise ProcessingError(message) from error
        self._failed_uploads = 0

    def _log(self, kind: _Kind, entities: Sequence[Any]) -> None:
        size = _MAX_PER_BATCH[kind]
        for start in range(0, len(entities), size):
            self._log_batch(kind, entities[start : start + size])

    def _log_batch(self, kind: _Kind, entities: Sequence[Any]) -> None:
        num_entities = len(entities)
        entities = [entity for entity in entities if (kind, entity.key) not in self._impossible_keys]
        self.num_refused += num_entities - len(entities)
        if not entities:
            return
        try:
            # with MLFLOW_ENABLE_ASYNC_LOGGING, the call would return before anything is stored
            self._client.log_batch(self.run_id, **{kind: entities}, synchronous=True)
        except Exception as error:
            is_about_name = any(text in str(error) for text in _NAME_ERRORS)
            if not is_about_name and not _is_refusal(error):
                raise
            run = self._client.get_run(self.run_id)
            mlflow_run.require_active(self._client, run)
            if is_about_name:
                # the entities before the failing one are stored, and would be stored again; its key never is
                stored_keys = getattr(run.data, kind)
                entities = list(itertools.dropwhile(lambda entity: entity.key in stored_keys, entities))
                if not entities:
                    raise
                self._impossible_keys.add((kind, entities[0].key))
            if is_about_name or len(entities) == 1:
                self._refuse(f"{kind} {entities[0].key!r}: {_first_line(error)}", kind, entities[0].key)
                entities = entities[1:]
            # a refused entity must not cost the others of its batch
            half = len(entities) // 2
            self._log_batch(kind, entities[:half])
            self._log_batch(kind, entities[half:])

    def _name(self, kind: str, name: str) -> str:
        if name not in self._names:
            self._names[name] = mlflow_name(name)
            if self._names[name] != name:
                log.warning("%s %r is logged as %r: MLflow rejects the original name", kind, name, self._names[name])
        return self._names[name]

    def _cut(self, kind: str, name: str, value: str, length: int) -> str:
        value = printable(value).replace("\0", "\\x00")  # some databases reject NUL
        if len(value) > length and (kind, name) not in self._reported_keys:
            self._reported_keys.add((kind, name))
            log.warning("%s %r is truncated from %d to %d characters, MLflow's limit", kind, name, len(value), length)
        return value[:length]

    def _refuse(self, message: str, *key: str) -> None:
        """Count an entity that MLflow rejected, and report it once per key."""
        self.num_refused += 1
        if key not in self._reported_keys:
            self._reported_keys.add(key)
            log.warning("MLflow rejects %s", message)

    @contextlib.contextmanager
    def _explained(self, doing: Literal["open", "write", "close"]) -> Iterator[None]:
        try:
            if self._database is not None and doing != "open" and mlflow_store.is_replaced(*self._database):
                raise self._gone("was deleted or replaced while the run wrote to it")  # noqa: TRY301 - handled below
            yield
        except TrieyeError:
            raise
        except Exception as error:
            if doing != "open" and getattr(error, "error_code", None) == "RESOURCE_DOES_NOT_EXIST":
                raise self._gone(f"no longer has the run {self.run_id}") from error
            shown_uri, reason = redacted_text(self._uri), redacted_text(_first_line(error))
            if mlflow_store.is_sqlite(self._uri) and mlflow_store.is_locked(error):
                raise SinkBusyError(f"MLflow at {shown_uri} is locked by other processes ({reason})") from error
            if "home directory" in reason:  # MLflow looks for it when it is imported
                hint = "set the environment variable HOME to a writable directory, and restart"
            elif self._uri.startswith("http"):
                keys = "persistence.mlflow_tracking_uri or MLFLOW_TRACKING_URI"
                hint = f"check that the server runs and that {keys} is correct"
            else:
                hint = "check that its directory is writable and that the disk is not full"
            raise TrieyeError(f"MLflow at {shown_uri} failed to {doing}: {reason}; {hint}") from error

    def _gone(self, how: str) -> SinkGoneError:
        return SinkGoneError(
            f"MLflow at {redacted_text(self._uri)} {how}; after this run ends, `trieye rebuild {self._run_dir} "
            "--sink mlflow` or a restart of the run writes the history to it again"
        )


def _is_refusal(error: Exception) -> bool:
    return getattr(error, "error_code", None) in {"INVALID_PARAMETER_VALUE", "BAD_REQUEST"}


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:500]


class SupersededPoints:
    """A set of the newest `limit` superseded points, keyed by (metric, step, value).

    It stores 64-bit hashes. A hash collision loses a point, once in 1e13 lookups; disk failures are more frequent.
    """

    def __init__(self, limit: int = MAX_REMEMBERED) -> None:
        self._limit = limit
        self._keys = np.empty(0, np.int64)
        self._sorted_keys = self._keys

    def add(self, points: Iterable[Point]) -> None:
        """Add points that are not in the set; beyond the limit, remove the oldest."""
        keys = map(_key, points)
        while (chunk := np.fromiter(itertools.islice(keys, _CHUNK), np.int64)).size:
            self._keys = np.concatenate((self._keys, chunk[~self._contains(chunk)]))[-self._limit :]
            self._sorted_keys = np.sort(self._keys)

    def without(self, points: Sequence[Point]) -> Sequence[Point]:
        """Return the points that are not in the set."""
        is_in_set = self._contains(np.fromiter(map(_key, points), np.int64))
        return [point for point, hit in zip(points, is_in_set, strict=True) if not hit]

    def _contains(self, keys: NDArray[np.int64]) -> NDArray[np.bool_]:
        if not self._sorted_keys.size:
            return np.zeros(keys.size, np.bool_)
        indices = np.searchsorted(self._sorted_keys, keys)
        is_in_set: NDArray[np.bool_] = self._sorted_keys[np.minimum(indices, self._sorted_keys.size - 1)] == keys
        return is_in_set


def _key(point: Point) -> int:
    """Return the hash of a point."""
    # adding 0.0 makes -0.0 and 0.0 equal, as they are elsewhere. Bytes are hashed instead of numbers, because Python's
    # hashes of -1 and -2 are equal.
    return hash(_pack(point.step, point.value + 0.0) + point.metric.encode("utf-8", "surrogatepass"))
