"""Recorder: logs values under names; `Run` is one, and so is `RunClient`, which other threads and processes hold."""

from collections.abc import Callable, Mapping, Sequence, Sized
from time import time
from types import TracebackType
from typing import Any, Literal, Self

from trieye.config import RuntimeConfig
from trieye.exceptions import RunClosedError, noted
from trieye.hub.hub import Channel
from trieye.run import media, video
from trieye.run import table as tables
from trieye.run.flusher import Flusher, flusher_of
from trieye.run.media import context_of, name_of, number_of, step_of


class Recorder:
    """Takes values and leaves them to a flusher; safe to use from several threads.

    Args:
        name: Name of the run.
        max_pending: Values that may wait before there has to be made room.

    Attributes:
        name: Name of the run.
        step: Global step of what is logged without one.
    """

    def __init__(self, name: str, max_pending: int) -> None:
        self.name = name
        self.step = 0
        self._flusher: Flusher | None = None
        # the hot path of `log`: a deque and its append while there is a flusher
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
        """Log one value, or a dict of values; returns at once, and a thread brings it to the hub.

        Args:
            name: Name of the event, or {name: value}; values that are None are left out, and those of a dict inside
                are logged as `name/key`.
            value: A number, NumPy scalar or tensor with one element.
            step: Global step; None: `self.step`, in a run the step that is under way.
            context: Further values of the event, for metrics with a `context_key` or `x_axis=episode`.
            wall_time: Unix time in seconds at which it happened; None: now.

        Raises:
            RunClosedError: The run is not open.
            ProcessingError: Too many values wait, and the hub will never take them.
            TypeError, ValueError: The value is no number.
        """
        if value is None:
            self._log_mapping(name, step, context, wall_time)
            return
        if name.__class__ is not str or not name:
            name = name_of(name)
        if value.__class__ is not float:
            value = number_of(name, value)
        if step.__class__ is not int:
            step = self.step if step is None else step_of(name, step)
        if context is not None:
            context = context_of(name, context)
        if len(self._pending) >= self._max_pending and not self._open_flusher().make_room():
            return
        self._append((name, value, step, time() if wall_time is None else float(wall_time), context))

    def _log_mapping(
        self, values: Any, step: int | None, context: Mapping[str, Any] | None, wall_time: float | None
    ) -> None:
        if not isinstance(values, Mapping):
            raise TypeError(f"log({values!r}): a value is missing; log a name and a value, or a dict of them")
        for name, value in values.items():
            if isinstance(value, Mapping):
                inside = {f"{name_of(name)}/{name_of(key)}": held for key, held in value.items()}
                self._log_mapping(inside, step, context, wall_time)
            elif value is not None:
                self.log(name, value, step=step, context=context, wall_time=wall_time)

    def log_histogram(self, name: str, values: Any, step: int | None = None, bins: int | Sequence[float] = 64) -> None:
        """Log the distribution of values, such as the weights of a layer; returns at once, as `log` does.

        Args:
            name: Name of the curve.
            values: Numbers in any shape: an array, a tensor, a list.
            step: Global step; None: as in `log`.
            bins: How many bins of equal width, or the borders between them, ascending; values beyond count nowhere.

        Raises:
            RunClosedError: The run is not open.
            TypeError, ValueError: There are no numbers in it.
        """
        self._open_flusher().submit(media.histogram(name, values, bins=bins, step=self._step(step), time=time()))

    def log_image(self, name: str, picture: Any, step: int | None = None) -> None:
        """Log a picture; returns at once, as `log` does.

        Args:
            name: Name of the series.
            picture: An array or tensor `[height, width]`, `[height, width, channels]` or `[3, height, width]`, uint8 or
                floats from 0 to 1, or a PIL image.
            step: Global step; None: as in `log`.

        Raises:
            RunClosedError: The run is not open.
            TypeError, ValueError: It is no picture.
        """
        self._open_flusher().submit(media.image(name, picture, step=self._step(step), time=time()))

    def log_figure(self, name: str, figure: Any, step: int | None = None) -> None:
        """Log a figure as a picture, drawn here and now; the figure stays open.

        Args:
            name: Name of the series.
            figure: A `Figure` of matplotlib, or anything else that has `savefig(file, format="png")`.
            step: Global step; None: as in `log`.

        Raises:
            RunClosedError: The run is not open.
            TypeError, ValueError: It is no figure, or too large.
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
        """Log a video; it is encoded before this returns: 100 frames of 256 x 256 take 1 to 2 s.

        Args:
            name: Name of the series.
            frames: An array or tensor `[time, height, width, channels]` or `[time, channels, height, width]`, uint8 or
                floats from 0 to 1, or a list of pictures as `log_image` takes them.
            step: Global step; None: as in `log`.
            fps: Frames per second; a GIF shows 50 at most and leaves out the frames between.
            format: `gif`, which MLflow, TensorBoard and wandb show, or `mp4`, which is smaller, needs `trieye[video]`,
                and is not shown by TensorBoard.

        Raises:
            RunClosedError: The run is not open.
            TypeError, ValueError: They are no frames of one size, or too many.
            ConfigurationError: `mp4` without `trieye[video]`.
        """
        made = video.video(name, frames, fps=fps, format=format, step=self._step(step), time=time())
        self._open_flusher().submit(made)

    def log_table(self, name: str, table: Any, step: int | None = None) -> None:
        """Log a table; returns at once, as `log` does.

        Args:
            name: Name of the series.
            table: {column: values}, a list of {column: value}, or a data frame of pandas or polars, of which the index
                is left out. Cells are texts, numbers, booleans, dates or None.
            step: Global step; None: as in `log`.

        Raises:
            RunClosedError: The run is not open.
            TypeError, ValueError: It is no table, or too large.
        """
        self._open_flusher().submit(tables.table(name, table, step=self._step(step), time=time()))

    def log_text(self, name: str, text: str, step: int | None = None) -> None:
        """Log a text, Markdown where the sink shows it; returns at once, as `log` does.

        Args:
            name: Name of the series.
            text: The text.
            step: Global step; None: as in `log`.

        Raises:
            RunClosedError: The run is not open.
            TypeError, ValueError: It is no text, or too long.
        """
        self._open_flusher().submit(media.text(name, text, step=self._step(step), time=time()))

    def _step(self, step: int | None) -> int:
        return self.step if step is None else step

    def _use(self, flusher: Flusher, on_end: Callable[[], None]) -> None:
        """Log through a flusher until it ends, of which it tells a bound method that calls `_let_go`."""
        self._flusher, self._pending, self._append = flusher, flusher.pending, flusher.pending.append
        if not flusher.attach(on_end):
            self._let_go()

    def _let_go(self) -> None:
        self._flusher, self._pending, self._append = None, (), self._append_first

    def _append_first(self, row: tuple[Any, ...]) -> None:
        self._open_flusher().pending.append(row)

    def _open_flusher(self) -> Flusher:
        """Return the flusher in use.

        Raises:
            RunClosedError: There is none.
        """
        if self._flusher is None:
            raise RunClosedError(f"run {self.name!r} is not open, and nothing can be logged")
        return self._flusher


class RunClient(Recorder):
    """Logs to a run from wherever it is sent to; made by `Run.client`.

    With `runtime=ray` it can be given to Ray tasks and actors. Each process has one thread that brings its values to
    the hub, however many copies of the client it holds; what the death of the process can take with it is one
    `runtime.flush_interval_s`. A hub that is restarted costs nothing.

    Values that are still to be sent when the run is closed are refused, and so are those that wait when a process of
    Ray ends, since nothing can be sent from its exit handlers. So use the client as a context manager, or `flush` or
    `close` it; an actor that holds one does so in its method `__ray_shutdown__`.

    A SIGTERM that a scheduler sends to every process of a job ends Ray's workers, and with them what they logged within
    the last flush interval; SIGUSR1 (`--signal=USR1@120` of Slurm) leaves those alone that belong to a Ray which the
    run started.

        @ray.remote
        def collect(client):
            with client:
                for step in range(1000):
                    client.log("episode/return", play(), step=step)

    Args:
        channel: The way to the hub.
        runtime: Interval and bounds.
        flusher: The one that this process has for the hub; None: it is found or made at first use.

    Attributes:
        name: Name of the run.
        step: Global step of what is logged without one; set it, since a client does not know how far the run is.
    """

    def __init__(self, channel: Channel, runtime: RuntimeConfig, *, flusher: Flusher | None = None) -> None:
        super().__init__(channel.run_name, runtime.max_pending_events)
        self._channel = channel
        self._runtime = runtime
        self._is_closed = False
        if flusher is not None:
            self._use(flusher, self._end)

    def flush(self) -> None:
        """Return when everything that this process logged so far is accepted by the hub.

        Raises:
            RunClosedError: The client was closed.
            ProcessingError: The hub takes nothing; the values are kept, and sent as soon as it does.
        """
        self._open_flusher().flush()

    def close(self) -> None:
        """Return when everything is accepted, and log no more through this copy; a second call does nothing.

        Raises:
            ProcessingError: The hub takes nothing.
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
            raise RunClosedError(f"this client of run {self.name!r} is closed, and nothing can be logged through it")
        while self._flusher is None and not self._is_closed:
            self._use(flusher_of(self._channel, self._runtime), self._end)
        return super()._open_flusher()

    def _end(self) -> None:
        self._is_closed = True
        self._let_go()

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
