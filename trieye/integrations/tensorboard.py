"""SummaryWriter: takes the calls of `torch.utils.tensorboard.SummaryWriter` into a run.

    from trieye.integrations.tensorboard import SummaryWriter     # the one line that changes

What is logged survives the death of the program and appears in MLflow, TensorBoard and the history once. A program that
is started again with the same `log_dir` continues the same run, and what it logs again replaces the older points.
`log_dir` becomes a link to the directory of the run, so `tensorboard --logdir runs` shows what it always did.
"""

import os
import socket
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from trieye.config.base import did_you_mean
from trieye.exceptions import ConfigurationError
from trieye.files.run_record import RunStatus
from trieye.integrations import media
from trieye.integrations.opening import SHARED, AdoptedRun, safe_name
from trieye.process.progress import say
from trieye.run.media import array_of
from trieye.run.run import Run

_ONLY_TENSORBOARD = frozenset(
    {
        "add_audio",
        "add_custom_scalars",
        "add_custom_scalars_marginchart",
        "add_custom_scalars_multilinechart",
        "add_embedding",
        "add_graph",
        "add_histogram_raw",
        "add_image_with_boxes",
        "add_mesh",
        "add_onnx_graph",
        "add_pr_curve",
        "add_pr_curve_raw",
        "add_tensor",
    }
)
"""What only TensorBoard can show: torch's own writer puts it beside the rest, and the history of the run lacks it."""

_GROWTH, _SMALLEST, _LARGEST = 1.1, 1e-12, 1e20
"""Borders of the bins that TensorFlow chose for histograms: each a tenth further from 0 than the one before."""


class SummaryWriter:
    """Logs to a run by the methods of `torch.utils.tensorboard.SummaryWriter`, with their defaults.

    Args:
        log_dir: Names the run: `runs/NAME` is the run NAME. None: `runs/<time>_<host><comment>`.
        comment: See above; it is ignored where there is a `log_dir`.
        purge_step: What was logged at this step or later is superseded; None: each metric replaces what it logs again.
        max_queue: Ignored: nothing waits for a queue.
        flush_secs: Ignored: `runtime.flush_interval_s` is 0.2.
        filename_suffix: Ignored: event files have names of their own.

    Attributes:
        log_dir: As given; a link to the directory of the run.
        run: The `trieye.Run`.

    Raises:
        ConfigurationError: The directory of the run cannot be used.
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
        if log_dir is None:
            began = datetime.now().astimezone().strftime("%b%d_%H-%M-%S")
            log_dir = Path("runs") / f"{began}_{socket.gethostname()}{comment}"
        self.log_dir = os.fspath(log_dir)
        self._purge_step = purge_step
        self._held: AdoptedRun | None = None
        self._stepless: set[str] = set()
        self._others: dict[str, Any] = {}
        self._open()

    def _open(self) -> AdoptedRun:
        """Return the run, opened again after `close`."""
        if self._held is None:
            self._held = AdoptedRun.join(**SHARED or {"name": _run_name(Path(self.log_dir))})
            self.run = self._held.run
            self._stepless.clear()
            _link(Path(self.log_dir), self.run.dir)
            if self._purge_step is not None:
                self._held.resumes_at(self._purge_step)
                self._purge_step = None
        return self._held

    def _at(self, step: Any) -> tuple[Run, int]:
        """Return the run, opened if it is closed, and the step of a call."""
        return self._open().run, 0 if step is None else int(step)

    # numbers

    def add_scalar(
        self,
        tag: str,
        scalar_value: Any,
        global_step: int | None = None,
        walltime: float | None = None,
        new_style: bool = False,
        double_precision: bool = False,
    ) -> None:
        """Log a number, NumPy scalar or tensor with one element."""
        del new_style, double_precision
        if self._held is not None and global_step.__class__ is int:
            self.run.log(tag, _squeezed(scalar_value), step=global_step, wall_time=walltime)
            return
        run, step = self._at(global_step)
        if global_step is None and tag not in self._stepless:
            run.note_stepless(tag)
            self._stepless.add(tag)
        run.log(tag, _squeezed(scalar_value), step=step, wall_time=walltime)

    def add_scalars(
        self,
        main_tag: str,
        tag_scalar_dict: Mapping[str, Any],
        global_step: int | None = None,
        walltime: float | None = None,
    ) -> None:
        """Log numbers as `main_tag/tag`, in this run; the original makes a run of each."""
        for tag, value in tag_scalar_dict.items():
            self.add_scalar(f"{main_tag}/{tag}", value, global_step, walltime)

    def add_hparams(
        self,
        hparam_dict: Mapping[str, Any],
        metric_dict: Mapping[str, Any],
        hparam_domain_discrete: Mapping[str, list[Any]] | None = None,
        run_name: str | None = None,
        global_step: int | None = None,
    ) -> None:
        """Log parameters of the run, and numbers; the original makes another run of them."""
        del hparam_domain_discrete, run_name
        for given in (hparam_dict, metric_dict):
            if not isinstance(given, Mapping):
                raise TypeError("add_hparams: hparam_dict and metric_dict are dicts")
        self._open()
        self.run.log_params({str(name): value for name, value in hparam_dict.items()})
        for name, value in metric_dict.items():
            self.add_scalar(name, value, global_step)

    def add_histogram(
        self,
        tag: str,
        values: Any,
        global_step: int | None = None,
        bins: str | int = "tensorflow",
        walltime: float | None = None,
        max_bins: int | None = None,
    ) -> None:
        """Log the distribution of an array or a tensor; `bins` as for `numpy.histogram`, or TensorFlow's."""
        del walltime
        array = array_of(f"add_histogram({tag!r})", values).astype(np.float64).reshape(-1)
        borders = _borders(array, bins, max_bins)
        run, step = self._at(global_step)
        run.log_histogram(tag, array, step, borders)

    # pictures

    def add_image(
        self,
        tag: str,
        img_tensor: Any,
        global_step: int | None = None,
        walltime: float | None = None,
        dataformats: str = "CHW",
    ) -> None:
        """Log a picture: uint8, or numbers of which 1 is the brightest."""
        del walltime
        picture = media.picture(f"add_image({tag!r})", img_tensor, dataformats)
        run, step = self._at(global_step)
        run.log_image(tag, picture, step)

    def add_images(
        self,
        tag: str,
        img_tensor: Any,
        global_step: int | None = None,
        walltime: float | None = None,
        dataformats: str = "NCHW",
    ) -> None:
        """Log a batch of pictures as one, eight in a row."""
        self.add_image(tag, img_tensor, global_step, walltime, dataformats)

    def add_figure(
        self,
        tag: str,
        figure: Any,
        global_step: int | None = None,
        close: bool = True,
        walltime: float | None = None,
    ) -> None:
        """Log a figure of matplotlib, or a list of them as one picture, and close them."""
        del walltime
        drawn = media.drawn(f"add_figure({tag!r})", figure, close=close)
        run, step = self._at(global_step)
        run.log_image(tag, drawn, step)

    def add_video(
        self,
        tag: str,
        vid_tensor: Any,
        global_step: int | None = None,
        fps: float = 4,
        walltime: float | None = None,
    ) -> None:
        """Log videos `[videos, time, channels, height, width]` side by side as one."""
        del walltime
        frames = media.frames(f"add_video({tag!r})", vid_tensor)
        run, step = self._at(global_step)
        run.log_video(tag, frames, step, fps=fps)

    # the rest

    def add_text(
        self, tag: str, text_string: str, global_step: int | None = None, walltime: float | None = None
    ) -> None:
        """Log a text; the table of `hyperparameters` that CleanRL writes becomes the parameters of the run, too."""
        del walltime
        run, step = self._at(global_step)
        media.log_text(run, f"{tag}/text_summary", text_string, step)
        if tag == "hyperparameters":
            from trieye.sinks.tensorboard.reading import params_in_text

            self.run.log_params(params_in_text(text_string))

    def __getattr__(self, name: str) -> Any:
        """Return what only TensorBoard can show, by torch's own writer."""
        if name not in _ONLY_TENSORBOARD:
            known = [*_ONLY_TENSORBOARD, *(known for known in dir(type(self)) if known.startswith("add_"))]
            raise AttributeError(f"SummaryWriter has no {name!r}{did_you_mean(name, known)}")

        def call(*values: Any, **options: Any) -> Any:
            return getattr(self._torch_writer(name), name)(*values, **options)

        return call

    def _torch_writer(self, asked: str) -> Any:
        self._open()
        directory = str(self.run.dir)
        if asked not in self._others:
            say(f"run {self.run.name!r}: {asked} is shown by TensorBoard only, and the run's history lacks it")
        if directory not in self._others:
            try:
                from torch.utils.tensorboard import SummaryWriter as TorchWriter
            except ImportError as error:
                raise ConfigurationError(f"{asked}: only torch can write that, which is not installed") from error
            self._others[directory] = TorchWriter(directory)
        self._others[asked] = self._others[directory]
        return self._others[directory]

    def get_logdir(self) -> str:
        """Return `log_dir`."""
        return self.log_dir

    def flush(self) -> None:
        """Return when everything that was logged is accepted, and survives whatever happens to this process."""
        if self._held is not None:
            self.run.flush()
            for other in set(self._others.values()):
                other.flush()

    def close(self, status: RunStatus = "FINISHED") -> None:
        """Close the run; the next call opens it again."""
        if self._held is not None:
            for other in set(self._others.values()):
                other.close()
            self._others.clear()
            held, self._held = self._held, None
            held.leave(status)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        is_left = kind is not None and issubclass(kind, KeyboardInterrupt | SystemExit)
        self.close("FINISHED" if kind is None else "KILLED" if is_left else "FAILED")


def _run_name(log_dir: Path) -> str:
    path = Path(os.path.abspath(log_dir))  # noqa: PTH100 - links stay
    parts = path.relative_to(Path.cwd()).parts if path.is_relative_to(Path.cwd()) else path.parts[-2:]
    return safe_name("-".join(parts[1:] if parts[:1] == ("runs",) and len(parts) > 1 else parts))


def _link(log_dir: Path, run_dir: Path) -> None:
    """Let `log_dir` be the directory of the run; one that is there already stays."""
    if not log_dir.exists() and not log_dir.is_symlink():
        log_dir.parent.mkdir(parents=True, exist_ok=True)
        log_dir.symlink_to(os.path.relpath(run_dir, log_dir.parent.resolve()), target_is_directory=True)
    elif log_dir.resolve() != run_dir.resolve():
        say(f"{log_dir} is there already and stays as it is; the run is in {run_dir}")


def _squeezed(value: Any) -> Any:
    return value.item() if isinstance(value, np.ndarray) and value.size == 1 else value


def _borders(values: NDArray[np.float64], bins: str | int, max_bins: int | None) -> list[float]:
    """Return the borders between bins: of TensorFlow's those around the values."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        raise ValueError("add_histogram: there is no finite number among the values")
    if bins != "tensorflow":
        found = np.histogram_bin_edges(finite, bins)
    else:
        largest = max(_LARGEST, np.abs(finite).max())
        count = int(np.log(largest / _SMALLEST) / np.log(_GROWTH)) + 2
        away = _SMALLEST * _GROWTH ** np.arange(count)
        found = np.concatenate([-away[::-1], [0.0], away])
        first = max(int(np.searchsorted(found, finite.min(), "right")) - 1, 0)
        found = found[first : int(np.searchsorted(found, finite.max(), "right")) + 1]
    if max_bins is not None and len(found) - 1 > max_bins:
        found = found[:: -(-(len(found) - 1) // max_bins)]
        found[-1] = max(found[-1], finite.max())
    return [float(border) for border in found]
