"""WandbSink: logs points, parameters, tags, files and media of a run to Weights & Biases."""

import contextlib
import glob
import html
import io
import logging
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trieye.config.names import printable
from trieye.config.sinks import WandbSinkConfig
from trieye.exceptions import ProcessingError, TrieyeError
from trieye.sinks.base import RunInfo, RunStatus
from trieye.sinks.mlflow.run import sweep_name
from trieye.stats.operations import LogHistogram, LogImage, LogTable, LogText, LogVideo, Medium, typed
from trieye.stats.point import Point

log = logging.getLogger("trieye.sinks")

STEP = "global_step"
"""Name of the x axis of all curves: wandb's built-in step is monotonic, and late points would be dropped."""

_TIME = "_timestamp"
"""Time of a row; without it, wandb records the time of delivery."""

_MAX_BINS = 512
_MAX_GROUP_LENGTH = 128
_INIT_TIMEOUT_S = 60.0
_FINISH_TIMEOUT_S = 60.0
"""Maximum wait for an unreachable server at the end of a run and of the process; the data stay on disk."""
_WRITE_INTERVAL_S = 0.1
"""Interval at which wandb's process writes to its file. With the default of 15 s, 7 of 14 kills lost up to 65 of the
latest 1000 points, although wandb had acknowledged them."""
_SETTLE_S = 0.3
_EXIT_CODES: Mapping[RunStatus, int] = {"FINISHED": 0, "RUNNING": 1, "FAILED": 1, "KILLED": 130}


class WandbSink:
    """Logs to one wandb run, which later attempts continue.

    Points that are delivered again after a hub crash appear twice: wandb does not detect duplicates.

    Args:
        config: Project, entity and mode.

    Attributes:
        flush_interval_s: Maximum seconds between the write of a point and its `flush`.
    """

    name = "wandb"

    def __init__(self, config: WandbSinkConfig) -> None:
        self.flush_interval_s = config.flush_interval_s
        self._config = config
        self._info: RunInfo | None = None
        self._run: Any = None
        self._has_key = False
        self._tags: dict[str, str] = {}

    def open(self, run: RunInfo) -> None:
        """Start wandb's process if it is not running, and create the run or continue it.

        Raises:
            TrieyeError: No API key is configured, or the server cannot be reached.
        """
        self._info = run
        with self._explained("open"):
            self._run = self._init(run)
        self.set_tags(run.tags)

    def write(self, points: Sequence[Point]) -> None:
        """Log points; consecutive points of a step form one row.

        Raises:
            TrieyeError: wandb's process has died; the next call starts another.
        """
        with self._explained("write"):
            run = self._connected()
            for row in _rows(points):
                run.log(row)

    def flush(self) -> None:
        """Wait until wandb's process has received everything, and long enough for a write to its file.

        If both processes are killed, `wandb sync` uploads the file.

        Raises:
            TrieyeError: wandb's process has died.
        """
        with self._explained("flush"):
            self._connected().status()
            time.sleep(_SETTLE_S)  # wandb does not report completed writes

    def log_params(self, params: Mapping[str, str]) -> None:
        """Add new parameters to the run's config, `tags` as `param.tags`; existing ones stay unchanged.

        Raises:
            TrieyeError: wandb's process has died.
        """
        with self._explained("write"):
            config = self._connected().config
            values = {printable(name): typed(printable(text)) for name, text in params.items()}
            values = {"param.tags" if name == "tags" else name: value for name, value in values.items()}
            config.update({name: value for name, value in values.items() if name not in config})

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Set tags, as `tags` in the run's config: wandb's native tags have no values.

        Raises:
            TrieyeError: wandb's process has died.
        """
        self._tags.update({printable(name): printable(text) for name, text in tags.items()})
        with self._explained("write"):
            run = self._connected()
            run.config.update({"tags": {**run.config.get("tags", {}), **self._tags}}, allow_val_change=True)

    def log_artifact(self, path: Path, artifact_path: str | None) -> None:
        """Copy a file, or a directory under its name, to the files of the run.

        Raises:
            ProcessingError: It does not exist or cannot be read, or `artifact_path` leaves the run's files.
            TrieyeError: wandb's process has died.
        """
        with self._explained("write"):
            run = self._connected()
            root = Path(run.dir).resolve()
            target = (root / (artifact_path or "") / path.name).resolve()
            if not target.is_relative_to(root) or target == root:
                raise ProcessingError(f"artifact {path}: {artifact_path!r} is outside the files of the run")
            try:
                files = _copy(path, target)
            except FileNotFoundError as error:
                raise ProcessingError(f"artifact {path} does not exist; skipped") from error
            except PermissionError as error:
                raise ProcessingError(f"artifact {path} cannot be read; skipped") from error
            for file_path in files:
                run.save(glob.escape(str(file_path)), base_path=str(root), policy="now")

    def log_media(self, medium: Medium) -> None:
        """Log an image, a video, a table, a histogram, or a text, which is shown verbatim.

        Raises:
            TrieyeError: wandb's process has died.
        """
        with self._explained("write"):
            row = {_name(medium.name): _media_value(medium), STEP: medium.step, _TIME: medium.wall_time}
            self._connected().log(row)

    def close(self, status: RunStatus) -> None:
        """Upload remaining data and record the final status; RUNNING marks the run as preempted.

        Raises:
            TrieyeError: wandb's process has died.
        """
        with self._explained("close"):
            run = self._connected()
            if status == "RUNNING":
                run.mark_preempting()
            try:
                run.finish(exit_code=_EXIT_CODES[status])
            except TimeoutError:
                log.warning("wandb has not uploaded everything; run `wandb sync %s`", Path(run.dir).parent)
            self._run = self._info = None

    def _connected(self) -> Any:
        """Return the wandb run, after a restart of wandb's process if it has died."""
        if self._run is None and self._info is not None:
            self._run = self._init(self._info)
        return self._run

    def _init(self, info: RunInfo) -> Any:
        import wandb

        self._require_key()
        info.run_dir.mkdir(parents=True, exist_ok=True)  # otherwise wandb silently uses another directory
        run = wandb.init(
            project=self._config.project or info.app_name,
            entity=self._config.entity,
            mode=self._config.mode,
            id=info.run_id,
            name=info.run_name,
            group=sweep_name(info.group)[-_MAX_GROUP_LENGTH:] if info.group is not None else None,
            dir=info.run_dir,
            resume="allow",
            reinit="create_new",  # leaves the user's own wandb run in this process open
            settings=wandb.Settings(
                silent=True,
                console="off",
                init_timeout=_INIT_TIMEOUT_S,
                finish_timeout=_FINISH_TIMEOUT_S,
                finish_timeout_raises=True,
                x_transaction_log_flush_interval=_WRITE_INTERVAL_S,
                x_disable_stats=not self._config.system_metrics,
            ),
        )
        run.define_metric(STEP)
        run.define_metric("*", step_metric=STEP)
        return run

    def _require_key(self) -> None:
        """Check that an API key exists; otherwise wandb would prompt on the terminal during training.

        Raises:
            TrieyeError: No API key is configured.
        """
        import wandb

        mode = self._config.mode or wandb.setup().settings.mode
        # an open wandb run implies a key; wandb prints a line at each login, even during an outage
        if mode != "online" or self._has_key or wandb.run is not None:
            return
        self._has_key = wandb.login(prompt=False, verify=False)
        if not self._has_key:
            raise TrieyeError(
                "wandb has no API key; run `wandb login`, set WANDB_API_KEY, or set sinks.wandb.mode=offline"
            )

    @contextlib.contextmanager
    def _explained(self, doing: str) -> Iterator[None]:
        try:
            yield
        except TrieyeError:
            raise
        except Exception as error:
            # MailboxClosedError is not public in wandb
            if isinstance(error, ConnectionError) or type(error).__name__ == "MailboxClosedError":
                self._forget()
            reason = (str(error).strip() or type(error).__name__).splitlines()[0][:500]
            raise TrieyeError(f"wandb failed to {doing}: {reason}") from error

    def _forget(self) -> None:
        """Discard wandb's killed process, so that the next call can start another."""
        import wandb

        self._run = None
        with contextlib.suppress(Exception):  # teardown raises for a dead process, but discards it
            wandb.teardown()


def _rows(points: Sequence[Point]) -> Iterator[dict[str, float]]:
    """Yield one row per group of consecutive points that share a step and have different names."""
    row: dict[str, float] = {}
    for point in points:
        name = _name(point.metric)
        if row and (row[STEP] != point.step or name in row):
            yield row
            row = {}
        row |= {name: point.value, STEP: point.step, _TIME: point.wall_time}
    if row:
        yield row


def _name(name: str) -> str:
    # the step and names with a leading underscore are reserved
    return f"metric/{printable(name)}" if name == STEP or name.startswith("_") else printable(name)


def _copy(source: Path, target: Path) -> list[Path]:
    target.parent.mkdir(parents=True, exist_ok=True)
    if not source.is_dir():
        shutil.copyfile(source, target)
        return [target]
    shutil.copytree(source, target, dirs_exist_ok=True)
    return sorted(path for path in target.rglob("*") if path.is_file())


def _media_value(medium: Medium) -> Any:
    import wandb

    if isinstance(medium, LogImage):
        from PIL import Image

        return wandb.Image(Image.open(io.BytesIO(medium.png)))
    if isinstance(medium, LogText):
        return wandb.Html(f"<pre>{html.escape(printable(medium.text))}</pre>")
    if isinstance(medium, LogVideo):
        return wandb.Video(io.BytesIO(medium.content), format=medium.format)
    if isinstance(medium, LogTable):
        columns, rows = medium.rows()
        return wandb.Table(columns=columns, data=rows, allow_mixed_types=True)
    return wandb.Histogram(np_histogram=_few_bins(medium))


def _few_bins(histogram: LogHistogram) -> tuple[list[float], list[float]]:
    """Return counts and edges, with adjacent bins merged if there are more than wandb accepts."""
    every = -(-len(histogram.counts) // _MAX_BINS)
    counts = [sum(histogram.counts[first : first + every]) for first in range(0, len(histogram.counts), every)]
    edges = histogram.edges[:-1:every]
    return counts, [*edges, histogram.edges[-1]]
