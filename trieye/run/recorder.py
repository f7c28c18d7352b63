"""Recorder: logs values under names; what a `Run` and its clients have in common."""

from collections.abc import Callable, Mapping, Sized
from time import time
from typing import Any

from trieye.exceptions import RunClosedError
from trieye.run import media
from trieye.run.flusher import Flusher
from trieye.run.values import context_of, name_of, number_of, step_of


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
    ) -> None:
        """Log one value, or a dict of values; returns at once, and a thread brings it to the hub.

        Args:
            name: Name of the event, or {name: value}; values that are None are left out.
            value: A number, NumPy scalar or tensor with one element.
            step: Global step; None: `self.step`, in a run the step that is under way.
            context: Further values of the event, for metrics with a `context_key` or `x_axis=episode`.

        Raises:
            RunClosedError: The run is not open.
            ProcessingError: Too many values wait, and the hub will never take them.
            TypeError, ValueError: The value is no number.
        """
        if value is None:
            self._log_mapping(name, step, context)
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
        self._append((name, value, step, time(), context))

    def _log_mapping(self, values: Any, step: int | None, context: Mapping[str, Any] | None) -> None:
        if not isinstance(values, Mapping):
            raise TypeError(f"log({values!r}): a value is missing; log a name and a value, or a dict of them")
        for name, value in values.items():
            if value is not None:
                self.log(name, value, step=step, context=context)

    def log_histogram(self, name: str, values: Any, step: int | None = None, bins: int = 64) -> None:
        """Log the distribution of values, such as the weights of a layer; returns at once, as `log` does.

        Args:
            name: Name of the curve.
            values: Numbers in any shape: an array, a tensor, a list.
            step: Global step; None: as in `log`.
            bins: How many bins.

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
        flusher.attach(on_end)

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
