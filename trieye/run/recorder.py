"""Recorder: the logging methods that `Run` and `RunClient` share, and `RunClient` for other threads and processes."""

import os
from collections.abc import Callable, Mapping, Sequence, Sized
from time import time
from types import TracebackType
from typing import Any, Literal, Self

from trieye.config import RuntimeConfig
from trieye.exceptions import RunClosedError, noted
from trieye.hub.hub import EventChannel
from trieye.run import media, video
from trieye.run import table as tables
from trieye.run.flusher import Flusher, flusher_of
from trieye.run.media import context_of, items_of, name_of, number_of, step_of, time_of

FORKED = "is open in process {}; a forked process cannot use it"


class Recorder:
    """Queues logged values for a flusher; thread-safe.

    Args:
        name: Name of the run.
        max_pending: Maximum number of queued values; beyond it, logging blocks or drops (`runtime.overflow`).

    Attributes:
        name: Name of the run.
        step: Default global step of logged values.
    """

    def __init__(self, name: str, max_pending: int) -> None:
        self.name = name
        self.step = 0
        self._flusher: Flusher | None = None
        # cached for the hot path of `log`: the flusher's deque and its `append`
        self._max_pending = max_pending
        self._pending: Sized = ()
        self._append: Callable[[tuple[Any, ...]], None] = self._append_first

    def log(
        self,
        name: str | Mapping[str, Any],
        value: Any = None,
        *,
        step: int | None = None,
        context: Mapping[str, Any] | None = None,
        wall_time: float | None = None,
    ) -> None:
        """Log values; returns immediately, and a background thread sends them to the hub.

        Args:
            name: Name of the event, or {name: value}; None values are skipped, and nested dicts are logged as
                `name/key`.
            value: A number, NumPy scalar or tensor with one element; a list or tuple is logged as one event per item.
            step: Global step; None selects `self.step`, which in a run is the current step.
            context: Further values of the event, for metrics with a `context_key` or `x_axis=episode`.
            wall_time: Unix time of the event in seconds; None selects the current time.

        Raises:
            RunClosedError: The run is not open.
            ProcessingError: The queue is full, and the hub will never accept more values.
            TypeError, ValueError: The value is not a number, or `wall_time` is not a Unix time.
        """
        if value is None:
            self._log_mapping(name, step, context, wall_time)
            return
        if name.__class__ is not str or not name:
            name = name_of(name)
        if value.__class__ is not float:
            if isinstance(value, list | tuple):
                for number in [number_of(name, item) for item in value]:
                    self.log(name, number, step=step, context=context, wall_time=wall_time)
                return
            value = number_of(name, value)
        if step.__class__ is not int:
            step = self.step if step is None else step_of(name, step)
        if context is not None:
            context = context_of(name, context)
        if len(self._pending) >= self._max_pending and not self._open_flusher().make_room():
            return
        self._append((name, value, step, time() if wall_time is None else time_of(name, wall_time), context))

    def _log_mapping(
        self, values: Any, step: int | None, context: Mapping[str, Any] | None, wall_time: float | None
    ) -> None:
        if not isinstance(values, Mapping):
            raise TypeError(
                f"log({values!r}): the value is missing; pass a name and a value, or a dict {{name: value}}"
            )
        for name, value in items_of(values):
            self.log(name, value, step=step, context=context, wall_time=wall_time)

    def log_histogram(
        self,
        name: str,
        values: Any,
        step: int | None = None,
        bins: int | Sequence[float] = 64,
        *,
        weights: Any = None,
    ) -> None:
        """Log the distribution of values, such as the weights of a layer, without waiting for the hub.

        Args:
            name: Name of the series.
            values: Numbers of any shape: an array, tensor or list.
            step: Global step; None as in `log`.
            bins: Number of bins of equal width, or ascending bin edges; values outside the edges are not counted.
            weights: Contribution of each value to its bin, such as a density; None: 1.

        Raises:
            RunClosedError: The run is not open.
            TypeError, ValueError: `values` contains no numbers, or `bins` or `weights` is invalid.
        """
        step = self._step(step)
        self._open_flusher().submit(media.histogram(name, values, bins=bins, weights=weights, step=step, time=time()))

    def log_image(self, name: str, picture: Any, step: int | None = None) -> None:
        """Log an image, encoded as PNG before this returns; does not wait for the hub.

        Args:
            name: Name of the series.
            picture: An array or tensor `[height, width]`, `[height, width, channels]` or `[channels, height, width]`
                with 1, 3 or 4 channels, uint8 or floats from 0 to 1, or a PIL image.
            step: Global step; None as in `log`.

        Raises:
            RunClosedError: The run is not open.
            TypeError, ValueError: `picture` is not an image, or is too large.
        """
        self._open_flusher().submit(media.image(name, picture, step=self._step(step), time=time()))

    def log_figure(self, name: str, figure: Any, step: int | None = None) -> None:
        """Log a figure as an image, rendered before this returns; the figure stays open.

        Args:
            name: Name of the series.
            figure: A matplotlib `Figure`, or another object with `savefig(file, format="png")`.
            step: Global step; None as in `log`.

        Raises:
            RunClosedError: The run is not open.
            TypeError, ValueError: `figure` has no `savefig`, or the image is too large.
        """
        self._open_flusher().submit(media.figure(name, figure, step=self._step(step), time=time()))

    def log_video(
        self,
        name: str,
        frames: Any,
        step: int | None = None,
        *,
        fps: float = 30.0,
        format: Literal["gif", "mp4"] = "gif",  # noqa: A002 - as wandb calls it
    ) -> None:
        """Log a video, encoded before this returns: 100 frames of 256 x 256 take 1 to 2 s.

        Args:
            name: Name of the series.
            frames: An array or tensor `[time, height, width, channels]` or `[time, channels, height, width]`, uint8 or
                floats from 0 to 1, or a list of images as for `log_image`.
            step: Global step; None as in `log`.
            fps: Frames per second; above 50, a GIF skips frames, and a GIF of more than 655 s plays faster.
            format: `gif`, which MLflow, TensorBoard and wandb show, or `mp4`, which is smaller, requires
                `trieye[video]`, and is not shown by TensorBoard.

        Raises:
            RunClosedError: The run is not open.
            TypeError, ValueError: The frames are no images of equal size, or too many or too large.
            ConfigurationError: `format` is invalid, or `mp4` without `trieye[video]`.
        """
        medium = video.video(name, frames, fps=fps, format=format, step=self._step(step), time=time())
        self._open_flusher().submit(medium)

    def log_table(self, name: str, table: Any, step: int | None = None) -> None:
        """Log a table without waiting for the hub.

        Args:
            name: Name of the series.
            table: {column: values}, a list of {column: value}, or a pandas or polars data frame, without its index.
                Cells are strings, numbers, booleans, dates or None.
            step: Global step; None as in `log`.

        Raises:
            RunClosedError: The run is not open.
            TypeError, ValueError: `table` is not a table, or is too large.
        """
        self._open_flusher().submit(tables.table(name, table, step=self._step(step), time=time()))

    def log_text(self, name: str, text: str, step: int | None = None) -> None:
        """Log a text without waiting for the hub; sinks that support Markdown render it.

        Args:
            name: Name of the series.
            text: Plain text or Markdown; values of secret environment variables are stored as `***`.
            step: Global step; None as in `log`.

        Raises:
            RunClosedError: The run is not open.
            TypeError, ValueError: `text` is not a string, or is too long.
        """
        self._open_flusher().submit(media.text(name, text, step=self._step(step), time=time()))

    def _step(self, step: int | None) -> int:
        return self.step if step is None else step

    def _use(self, flusher: Flusher, on_end: Callable[[], None]) -> None:
        """Log through a flusher until it ends; it then calls the bound method `on_end`, which detaches it."""
        self._flusher, self._pending, self._append = flusher, flusher.pending, flusher.pending.append
        if not flusher.attach(on_end):
            self._detach_flusher()

    def _detach_flusher(self) -> None:
        self._flusher, self._pending, self._append = None, (), self._append_first

    def _append_first(self, row: tuple[Any, ...]) -> None:
        self._open_flusher().pending.append(row)

    def _open_flusher(self) -> Flusher:
        """Return the flusher in use.

        Raises:
            RunClosedError: No flusher is in use.
        """
        if self._flusher is None:
            raise RunClosedError(f"run {self.name!r} is not open; values cannot be logged")
        return self._flusher


class RunClient(Recorder):
    """Logs to a run from another thread or process; created by `Run.client`.

    With `runtime=ray` a client can be passed to Ray tasks and actors. Each process sends its values to the hub in one
    thread, regardless of how many copies of the client it holds. A killed process loses the values of at most one
    `runtime.flush_interval_s`; a restart of the hub loses none.

    Values that are still queued when the run is closed are lost, and so are those queued when a Ray worker process
    ends, because its exit handlers cannot send. So use the client as a context manager, or call `flush` or `close`; an
    actor calls them in its method `__ray_shutdown__`.

    SIGTERM from a scheduler to every process of a job also ends Ray workers, which lose the values of their last flush
    interval; SIGUSR1 (Slurm: `--signal=USR1@120`) does not end workers of a Ray instance that the run started.

        @ray.remote
        def collect(client):
            with client:
                for step in range(1000):
                    client.log("episode/return", play(), step=step)

    Args:
        channel: The channel to the hub.
        runtime: Flush interval and queue limits.
        flusher: The flusher of this process for the hub; None selects or creates it at first use.

    Attributes:
        name: Name of the run.
        step: Default global step of logged values; set it, because a client does not follow the step of the run.
    """

    def __init__(self, channel: EventChannel, runtime: RuntimeConfig, *, flusher: Flusher | None = None) -> None:
        super().__init__(channel.run_name, runtime.max_pending_events)
        self._channel = channel
        self._runtime = runtime
        self._is_closed, self._pid = False, os.getpid()
        if flusher is not None:
            self._use(flusher, self._end)

    def flush(self) -> None:
        """Wait until the hub has accepted all values that this process logged so far.

        Raises:
            RunClosedError: The client is closed.
            ProcessingError: The hub accepts no values; they stay queued and are sent once it does.
        """
        self._open_flusher().flush()

    def close(self) -> None:
        """Flush and close this copy of the client; a second call does nothing.

        Raises:
            ProcessingError: The hub accepts no values.
        """
        if self._is_closed:
            return
        flusher = self._flusher
        self._end()
        if flusher is not None:
            try:
                flusher.flush()
            finally:
                flusher.detach(self._end)

    def _open_flusher(self) -> Flusher:
        if self._is_closed:
            is_forked = self._pid != os.getpid()
            why = FORKED.format(self._pid) if is_forked else "is closed; values cannot be logged through it"
            raise RunClosedError(f"this client of run {self.name!r} {why}")
        while self._flusher is None and not self._is_closed:
            self._use(flusher_of(self._channel, self._runtime), self._end)
        return super()._open_flusher()

    def _end(self) -> None:
        self._is_closed = True
        self._detach_flusher()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with noted(error, f"closing the client of run {self.name!r}"):
            self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._channel, self._runtime), {"step": self.step}

    def __repr__(self) -> str:
        return f"<trieye.RunClient of run {self.name!r} at step {self.step}{', closed' if self._is_closed else ''}>"
