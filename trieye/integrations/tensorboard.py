"""SummaryWriter: a drop-in replacement for `torch.utils.tensorboard.SummaryWriter` that logs to a run.

    from trieye.integrations.tensorboard import SummaryWriter     # the only line to change

Logged values survive a crash of the program and appear exactly once in MLflow, TensorBoard and the history. A program
restarted with the same `log_dir` resumes the same run; points logged again replace older points. `log_dir` becomes a
link to the run directory, so `tensorboard --logdir runs` still works.
"""

import hashlib
import os
import socket
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trieye.config.base import did_you_mean
from trieye.config.packages import load
from trieye.config.redaction import redacted
from trieye.exceptions import RunLockedError
from trieye.files.run_files import RUN_RECORD
from trieye.files.run_record import RunRecord, RunStatus
from trieye.integrations import media
from trieye.integrations.opening import SHARED, AdoptedRun, AdoptingLogger, run_dir_of, safe_name
from trieye.process.progress import say
from trieye.run.media import array_of
from trieye.run.run import Run

LOG_DIR, LOG_PATH = "trieye.log_dir", "trieye.log_path"
"""Tag of a run: its log directory, relative to the working directory if it is inside."""

_MAX_STEM = 40
"""Characters of a run name that precede a hash."""

_ONLY_TENSORBOARD = frozenset({
    "add_audio", "add_custom_scalars", "add_custom_scalars_marginchart", "add_custom_scalars_multilinechart",
    "add_embedding", "add_graph", "add_histogram_raw", "add_image_with_boxes", "add_mesh", "add_onnx_graph",
    "add_pr_curve", "add_pr_curve_raw", "add_tensor",
})  # fmt: skip
"""Calls that only TensorBoard can display: torch's writer adds them to the event files, not to the run's history."""

Step = int | None
"""Step of a call; None: 0."""

WallTime = float | None
"""Unix time of a call in seconds; None: now."""

_GROWTH, _SMALLEST, _LARGEST = 1.1, 1e-12, 1e20
"""TensorFlow's histogram bins: each edge is 10 % further from 0 than the previous edge."""


class SummaryWriter(AdoptingLogger):
    """Logs to a run through the methods and defaults of `torch.utils.tensorboard.SummaryWriter`.

    Args:
        log_dir: Determines the run name: `runs/NAME` is the run NAME, with a hash if the run NAME has another log
            directory. None or "": `runs/<time>_<host><comment>`.
        comment: Suffix of the default `log_dir`; ignored if `log_dir` is set.
        purge_step: Points at or after this step are superseded; None: only points logged again are replaced.
        max_queue: Ignored: logging never waits for a queue.
        flush_secs: Ignored: `runtime.flush_interval_s` is 0.2.
        filename_suffix: Ignored: trieye names the event files.

    Attributes:
        log_dir: The argument or its default; a link to the run directory.
        run: The `trieye.Run`.

    Raises:
        ConfigurationError: The run directory cannot be used.
        RunLockedError: Another process writes to the run.
    """

    def __init__(
        self,
        log_dir: str | os.PathLike[str] | None = None,
        comment: str = "",
        purge_step: int | None = None,
        max_queue: int = 10,
        flush_secs: float = 120,
        filename_suffix: str = "",
    ) -> None:
        del max_queue, flush_secs, filename_suffix
        began = datetime.now().astimezone().strftime("%b%d_%H-%M-%S")
        self.log_dir = os.fspath(log_dir or Path("runs") / f"{began}_{socket.gethostname()}{comment}")
        self._purge_step = purge_step
        self._stepless: set[str] = set()
        self._torch_writer: Any = None
        self._torch_methods: set[str] = set()
        try:
            self._open()
        except RunLockedError:  # by a program that started in the same second
            if log_dir:
                raise
            self.log_dir += f"_{os.getpid()}"
            self._open()

    def _open(self) -> AdoptedRun:
        """Return the run; reopen it after `close`."""
        if self._adopted is None:
            name, tags = _name_and_tags(Path(self.log_dir))
            self._adopted = AdoptedRun.join(**SHARED or {"name": name})
            self._adopted.users.add(self)
            self.run = self._adopted.run
            if not SHARED:
                self.run.set_tags(tags)
            self._stepless.clear()
            _link(Path(self.log_dir), self.run.dir)
            if self._purge_step is not None:
                self._adopted.resumes_at(self._purge_step)
                self._purge_step = None
        return self._adopted

    def _at(self, step: Any) -> tuple[Run, int]:
        """Return the run, reopened if necessary, and the step of a call."""
        return self._open().run, 0 if step is None else int(step)

    # numbers

    def add_scalar(
        self,
        tag: str,
        scalar_value: Any,
        global_step: Step = None,
        walltime: WallTime = None,
        new_style: bool = False,
        double_precision: bool = False,
    ) -> None:
        """Log a number, a NumPy scalar or a tensor with one element."""
        del new_style, double_precision
        if self._adopted is not None and global_step.__class__ is int:
            self.run.log(tag, scalar_value, step=global_step, wall_time=walltime)
            return
        run, step = self._at(global_step)
        if global_step is None and tag not in self._stepless:
            run.note_stepless(tag)
            self._stepless.add(tag)
        run.log(tag, scalar_value, step=step, wall_time=walltime)

    def add_scalars(
        self, main_tag: str, tag_scalar_dict: Mapping[str, Any], global_step: Step = None, walltime: WallTime = None
    ) -> None:
        """Log numbers as `main_tag/tag` in this run; torch creates one run per tag instead."""
        for tag, value in tag_scalar_dict.items():
            self.add_scalar(f"{main_tag}/{tag}", value, global_step, walltime)

    def add_hparams(
        self,
        hparam_dict: Mapping[str, Any],
        metric_dict: Mapping[str, Any],
        hparam_domain_discrete: Mapping[str, list[Any]] | None = None,
        run_name: str | None = None,
        global_step: Step = None,
    ) -> None:
        """Log hyperparameters and metrics in this run; torch creates another run instead."""
        del hparam_domain_discrete, run_name
        for argument in (hparam_dict, metric_dict):
            if not isinstance(argument, Mapping):
                raise TypeError(f"add_hparams: expected dicts as hparam_dict and metric_dict, got {argument!r}")
        self._open().run.log_params({str(name): value for name, value in hparam_dict.items()})
        for name, value in metric_dict.items():
            self.add_scalar(name, value, global_step)

    def add_histogram(
        self,
        tag: str,
        values: Any,
        global_step: Step = None,
        bins: str | int = "tensorflow",
        walltime: WallTime = None,
        max_bins: int | None = None,
    ) -> None:
        """Log the histogram of an array or a tensor; `bins` as in `numpy.histogram`, by default TensorFlow's."""
        del walltime
        array = array_of(f"add_histogram({tag!r})", values).astype(np.float64).reshape(-1)
        edges = _bin_edges(array, bins, max_bins)
        run, step = self._at(global_step)
        run.log_histogram(tag, array, step, edges)

    # images

    def add_image(
        self, tag: str, img_tensor: Any, global_step: Step = None, walltime: WallTime = None, dataformats: str = "CHW"
    ) -> None:
        """Log an image: uint8, or numbers in [0, 1]."""
        del walltime
        picture = media.picture(f"add_image({tag!r})", img_tensor, dataformats)
        run, step = self._at(global_step)
        run.log_image(tag, picture, step)

    def add_images(
        self, tag: str, img_tensor: Any, global_step: Step = None, walltime: WallTime = None, dataformats: str = "NCHW"
    ) -> None:
        """Tile a batch of images into one image, eight per row."""
        self.add_image(tag, img_tensor, global_step, walltime, dataformats)

    def add_figure(
        self, tag: str, figure: Any, global_step: Step = None, close: bool = True, walltime: WallTime = None
    ) -> None:
        """Log a matplotlib figure, or a list of figures in one image; `close` closes them in pyplot."""
        del walltime
        image = media.drawn(f"add_figure({tag!r})", figure, close=close)
        run, step = self._at(global_step)
        run.log_image(tag, image, step)

    def add_video(
        self, tag: str, vid_tensor: Any, global_step: Step = None, fps: float = 4, walltime: WallTime = None
    ) -> None:
        """Log videos `[videos, time, channels, height, width]` side by side in one video."""
        del walltime
        frames = media.frames(f"add_video({tag!r})", vid_tensor)
        run, step = self._at(global_step)
        run.log_video(tag, frames, step, fps=fps)

    # the rest

    def add_text(self, tag: str, text_string: str, global_step: Step = None, walltime: WallTime = None) -> None:
        """Log a text; CleanRL's `hyperparameters` table also sets the hyperparameters of the run."""
        del walltime
        run, step = self._at(global_step)
        media.log_text(run, f"{tag}/text_summary", text_string, step)
        if tag == "hyperparameters":
            from trieye.sinks.tensorboard.reading import params_in_text

            self.run.log_params(params_in_text(text_string))

    def __getattr__(self, name: str) -> Any:
        """Forward calls that only TensorBoard can display to torch's writer."""
        if name not in _ONLY_TENSORBOARD:
            methods = [*_ONLY_TENSORBOARD, *(method for method in dir(type(self)) if method.startswith("add_"))]
            raise AttributeError(f"SummaryWriter has no {name!r}{did_you_mean(name, methods)}")

        def call(*values: Any, **options: Any) -> Any:
            return getattr(self._writer_for(name), name)(*values, **options)

        return call

    def _writer_for(self, method: str) -> Any:
        """Return torch's writer, opened if necessary; the first call of each method prints a note."""
        self._open()
        if method not in self._torch_methods:
            self._torch_methods.add(method)
            say(f"run {self.run.name!r}: {method} is shown by TensorBoard only; the run's history does not contain it")
        if self._torch_writer is None:
            self._torch_writer = load("torch.utils.tensorboard", method).SummaryWriter(str(self.run.dir))
        return self._torch_writer

    def get_logdir(self) -> str:
        """Return `log_dir`."""
        return self.log_dir

    def flush(self) -> None:
        """Block until all logged values are accepted, so that they survive a crash of this process."""
        if self._adopted is not None:
            self.run.flush()
            if self._torch_writer is not None:
                self._torch_writer.flush()

    def close(self, status: RunStatus = "FINISHED") -> None:
        """Close the run; the next call opens it again."""
        if self._adopted is not None:
            if self._torch_writer is not None:
                self._torch_writer.close()
            self._torch_writer = None
            self._torch_methods.clear()
            adopted_run, self._adopted = self._adopted, None
            adopted_run.leave(self, status)

    _end = close


def _name_and_tags(log_dir: Path) -> tuple[str, dict[str, str]]:
    """Return the name of the run of a directory, with a hash if another directory has the name, and the run's tags."""
    absolute = Path(os.path.abspath(log_dir))  # noqa: PTH100 - links stay
    is_inside = absolute.is_relative_to(Path.cwd())
    path = absolute.relative_to(Path.cwd()) if is_inside else absolute
    parts = path.parts if is_inside else path.parts[-2:]
    name = safe_name("-".join(parts[1:] if parts[:1] == ("runs",) and len(parts) > 1 else parts))
    tags: dict[str, str] = redacted({LOG_DIR: path.as_posix(), LOG_PATH: str(absolute)})
    run_dir = run_dir_of(name)
    record = RunRecord.read(run_dir / RUN_RECORD)
    old_tags = tags if record is None else {**tags, **record.tags}
    is_elsewhere = old_tags[LOG_PATH] != tags[LOG_PATH] and Path(old_tags[LOG_PATH]).resolve() == run_dir.resolve()
    if (is_elsewhere or old_tags[LOG_DIR] != tags[LOG_DIR]) and log_dir.resolve() != run_dir.resolve():
        text = str(absolute if is_elsewhere else path)
        name = safe_name(f"{name[:_MAX_STEM]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}")
    return name, tags


def _link(log_dir: Path, run_dir: Path) -> None:
    """Link `log_dir` to the run directory unless `log_dir` exists or cannot be created."""
    reason = "already exists and is not replaced by a link"
    try:
        if log_dir.resolve() == run_dir.resolve():
            return
        if not log_dir.exists() and not log_dir.is_symlink():
            log_dir.parent.mkdir(parents=True, exist_ok=True)
            log_dir.symlink_to(os.path.relpath(run_dir, log_dir.parent.resolve()), target_is_directory=True)
            return
    except OSError as error:  # below the link to a deleted run, or in a read-only directory
        reason = f"cannot become a link ({error})"
    say(f"{log_dir} {reason}; the run is in {run_dir}")


def _bin_edges(values: NDArray[np.float64], bins: str | int, max_bins: int | None) -> list[float]:
    """Return the edges of histogram bins; TensorFlow's bins are restricted to the range of the values."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        raise ValueError("add_histogram: the values contain no finite number")
    if bins != "tensorflow":
        edges = np.histogram_bin_edges(finite, bins)
    else:
        largest = max(_LARGEST, np.abs(finite).max())
        count = int(np.log(largest / _SMALLEST) / np.log(_GROWTH)) + 2
        positive = _SMALLEST * _GROWTH ** np.arange(count)
        edges = np.concatenate([-positive[::-1], [0.0], positive])
        first_bin = max(int(np.searchsorted(edges, finite.min(), "right")) - 1, 0)
        edges = edges[first_bin : int(np.searchsorted(edges, finite.max(), "right")) + 1]
    if max_bins is not None and len(edges) - 1 > max_bins:
        edges = edges[:: -(-(len(edges) - 1) // max_bins)]
        edges[-1] = max(edges[-1], finite.max())
    return [float(edge) for edge in edges]
