"""WandbSink: points, parameters, tags, files and media of a run to Weights & Biases."""

import ast
import contextlib
import glob
import html
import io
import logging
import math
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
from trieye.stats.operations import LogHistogram, LogImage, LogTable, LogText, LogVideo, Medium
from trieye.stats.point import Point

log = logging.getLogger("trieye.sinks")

STEP = "global_step"
"""Name of the x axis of all curves: wandb's own step only grows, and late points would be dropped."""

_MAX_BINS = 512
_MAX_GROUP_LENGTH = 128
_INIT_TIMEOUT_S = 60.0
_FINISH_TIMEOUT_S = 60.0
"""How long the end of a run, and of the process, waits for a server that is away; the data stay on disk."""
_WRITE_INTERVAL_S = 0.1
"""How often wandb's process writes to its file. By default it holds 15 s back: in 7 of 14 kills up to 65 of the newest
1000 points, of which it had confirmed the receipt, were lost."""
_SETTLE_S = 0.3
_EXIT_CODES: Mapping[RunStatus, int] = {"FINISHED": 0, "RUNNING": 1, "FAILED": 1, "KILLED": 130}


class WandbSink:
    """Logs to one run of wandb, which later attempts continue.

    Points that come again after a kill of the hub are there twice: wandb cannot tell.

    Args:
        config: Where to.

    Attributes:
        flush_interval_s: Seconds that a written point may wait for `flush`.
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
        """Start wandb's process, if need be, and create the run or continue it.

        Raises:
            TrieyeError: Nobody is logged in, or the server cannot be reached.
        """
        self._info = run
        with self._explained("open"):
            self._run = self._init(run)
        self.set_tags(run.tags)

    def write(self, points: Sequence[Point]) -> None:
        """Log points; those of a step become one row.

        Raises:
            TrieyeError: wandb's process is gone; the next call starts another.
        """
        with self._explained("write"):
            run = self._connected()
            for row in _rows(points):
                run.log(row)

    def flush(self) -> None:
        """Wait until wandb's process has everything and has had the time to write it to its file.

        After a kill of both, `wandb sync` sends what is there.

        Raises:
            TrieyeError: wandb's process is gone.
        """
        with self._explained("flush"):
            self._connected().status()
            time.sleep(_SETTLE_S)  # wandb does not say when it has written

    def log_params(self, params: Mapping[str, str]) -> None:
        """Add parameters to the run's config; those that it has already stay as they are.

        Raises:
            TrieyeError: wandb's process is gone.
        """
        with self._explained("write"):
            config = self._connected().config
            values = {printable(name): _value(text) for name, text in params.items()}
            config.update({name: value for name, value in values.items() if name not in config})

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Set tags, as `tags` in the run's config: those of wandb itself have no values.

        Raises:
            TrieyeError: wandb's process is gone.
        """
        self._tags.update({printable(name): printable(text) for name, text in tags.items()})
        with self._explained("write"):
            run = self._connected()
            run.config.update({"tags": {**run.config.get("tags", {}), **self._tags}}, allow_val_change=True)

    def log_artifact(self, path: Path, artifact_path: str | None) -> None:
        """Copy a file, or a directory under its name, to the files of the run.

        Raises:
            ProcessingError: It is gone or cannot be read, or `artifact_path` leaves the run's files.
            TrieyeError: wandb's process is gone.
        """
        with self._explained("write"):
            run = self._connected()
            root = Path(run.dir).resolve()
            target = (root / (artifact_path or "") / path.name).resolve()
            if not target.is_relative_to(root) or target == root:
                raise ProcessingError(f"artifact {path}: {artifact_path!r} is not below the files of the run")
            try:
                files = _copy(path, target)
            except FileNotFoundError as error:
                raise ProcessingError(f"artifact {path} is gone; it is left out") from error
            except PermissionError as error:
                raise ProcessingError(f"artifact {path} cannot be read; it is left out") from error
            for file in files:
                run.save(glob.escape(str(file)), base_path=str(root), policy="now")

    def log_media(self, medium: Medium) -> None:
        """Log a picture, a video, a table, a histogram, or a text, which is shown as it is.

        Raises:
            TrieyeError: wandb's process is gone.
        """
        with self._explained("write"):
            row = {_name(medium.name): _shown(medium), STEP: medium.step, **_time(medium.wall_time)}
            self._connected().log(row)

    def close(self, status: RunStatus) -> None:
        """Send what is left and record how the run ended; RUNNING marks it as preempted.

        Raises:
            TrieyeError: wandb's process is gone.
        """
        with self._explained("close"):
            run = self._connected()
            if status == "RUNNING":
                run.mark_preempting()
            try:
                run.finish(exit_code=_EXIT_CODES[status])
            except TimeoutError:
                log.warning("wandb has not sent everything; type `wandb sync %s`", Path(run.dir).parent)
            self._run = self._info = None

    def _connected(self) -> Any:
        """Return the run, in a new process of wandb if the one that had it is gone."""
        if self._run is None and self._info is not None:
            self._run = self._init(self._info)
        return self._run

    def _init(self, info: RunInfo) -> Any:
        import wandb

        self._require_key()
        info.run_dir.mkdir(parents=True, exist_ok=True)  # wandb would silently take another one
        run = wandb.init(
            project=self._config.project or info.app_name,
            entity=self._config.entity,
            mode=self._config.mode,
            id=info.run_id,
            name=info.run_name,
            group=sweep_name(info.group)[-_MAX_GROUP_LENGTH:] if info.group is not None else None,
            dir=info.run_dir,
            resume="allow",
            reinit="create_new",  # a run of the user's own in this process goes on
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
        """Find the key of the account, which wandb would ask for on the terminal in the middle of the training.

        Raises:
            TrieyeError: There is none.
        """
        import wandb

        mode = self._config.mode or wandb.setup().settings.mode
        # a run that is there has a key; and wandb prints a line for each login, also in an outage
        if mode != "online" or self._has_key or wandb.run is not None:
            return
        self._has_key = wandb.login(prompt=False, verify=False)
        if not self._has_key:
            raise TrieyeError(
                "wandb knows no API key; type `wandb login`, set WANDB_API_KEY, or choose sinks.wandb.mode=offline"
            )

    @contextlib.contextmanager
    def _explained(self, doing: str) -> Iterator[None]:
        try:
            yield
        except TrieyeError:
            raise
        except Exception as error:
            # the second one is no public name of wandb
            if isinstance(error, ConnectionError) or type(error).__name__ == "MailboxClosedError":
                self._forget()
            reason = (str(error).strip() or type(error).__name__).splitlines()[0][:500]
            raise TrieyeError(f"wandb failed to {doing}: {reason}") from error

    def _forget(self) -> None:
        """Give up a process of wandb that was killed, so that the next call can start another."""
        import wandb

        self._run = None
        with contextlib.suppress(Exception):  # it says that the process is gone, and forgets it
            wandb.teardown()


def _rows(points: Sequence[Point]) -> Iterator[dict[str, float]]:
    """Yield one row for points that follow each other, share a step and have different names."""
    row: dict[str, float] = {}
    for point in points:
        name = _name(point.metric)
        if row and (row[STEP] != point.step or name in row):
            yield row
            row = {}
        row |= {name: point.value, STEP: point.step, **_time(point.wall_time)}
    if row:
        yield row


def _time(wall_time: float) -> dict[str, float]:
    # wandb takes the time of the call otherwise, which is that of the delivery
    return {"_timestamp": wall_time} if isinstance(wall_time, float) and math.isfinite(wall_time) else {}


def _name(name: str) -> str:
    # these two have a meaning for wandb
    return f"metric/{printable(name)}" if name == STEP or name.startswith("_") else printable(name)


def _value(text: str) -> float | str:
    """Return a number or a truth value as such, so that wandb can plot and filter by it."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return printable(text)
    return value if isinstance(value, bool | int | float) else printable(text)


def _copy(source: Path, target: Path) -> list[Path]:
    target.parent.mkdir(parents=True, exist_ok=True)
    if not source.is_dir():
        shutil.copyfile(source, target)
        return [target]
    shutil.copytree(source, target, dirs_exist_ok=True)
    return sorted(file for file in target.rglob("*") if file.is_file())


def _shown(medium: Medium) -> Any:
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
    """Return counts and edges, with neighbors joined where there are more bins than wandb takes."""
    every = -(-len(histogram.counts) // _MAX_BINS)
    counts = [sum(histogram.counts[first : first + every]) for first in range(0, len(histogram.counts), every)]
    edges = histogram.edges[:-1:every]
    return counts, [*edges, histogram.edges[-1]]
