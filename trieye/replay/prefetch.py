"""Prefetcher: batches that a thread copies ahead, into memory that is used again and again."""

import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from queue import Queue
from types import TracebackType
from typing import Any, Self

from trieye.exceptions import ConfigurationError, ReplayClosedError
from trieye.replay.batch import Batch
from trieye.replay.device import TorchBatches
from trieye.replay.samplers.base import Draw

Fill = Callable[[Draw, Batch | None], Batch]


@dataclass(slots=True)
class _Slot:
    """Memory of one batch, and the event after which it may be written to; None: at once."""

    batch: Batch | None = None
    event: Any = None


_Job = tuple[Draw, _Slot]
_Result = tuple[_Slot, Batch | BaseException]


class Prefetcher:
    """Yields batches for ever; while one is used, a thread copies the rows of the next ones.

    What is drawn is decided in the thread that asks, `depth` batches ahead; only the copying goes on meanwhile. So the
    batches depend on the calls made and never on timing: they are those of `sample` called `depth` batches earlier.
    Rows must not change while they are copied: whoever changes them calls `settle` first.

    A batch is valid until the next one is asked for. One thread at a time may ask.
    """

    def __init__(self, draw: Callable[[], Draw], fill: Fill, *, depth: int = 2, device: str | None = None) -> None:
        """Start the thread; nothing is drawn yet.

        Args:
            draw: Decides about a batch.
            fill: Copies its rows, into the memory of an earlier batch if one is given.
            depth: Batches that are made ahead.
            device: Hand out torch tensors on this device, `cpu` or `cuda` for instance; NumPy arrays if None. Ids stay
                NumPy arrays.

        Raises:
            ConfigurationError: The depth is below 1, or there is no such device.
        """
        if depth < 1:
            raise ConfigurationError(f"prefetch is {depth}; at least 1 batch must be made ahead")
        self._draw = draw
        self._torch = None if device is None else TorchBatches(device)
        self._free = deque(_Slot() for _ in range(depth + 1))
        self._held: _Slot | None = None
        self._num_ahead = 0
        self._jobs: Queue[_Job | None] = Queue()
        self._results: Queue[_Result] = Queue()
        # without a reference to this object, so that the thread ends when nobody asks any more
        arguments = (self._jobs, self._results, fill, self._torch)
        self._thread = threading.Thread(target=_work, args=arguments, name="trieye-prefetch", daemon=True)
        self._thread.start()
        self._end = weakref.finalize(self, self._jobs.put, None)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        if not self._end.alive:
            raise StopIteration
        if not self._thread.is_alive():
            raise ReplayClosedError("a forked process has no thread that prefetches; call iter_batches in it")
        if self._held is not None:
            self._free.append(self._held)
            self._held = None
        self._draw_ahead()
        slot, made = self._results.get()
        self._num_ahead -= 1
        if isinstance(made, BaseException):
            self.close()
            raise made
        self._held = slot
        return made if self._torch is None else self._torch.received(made, slot.event)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def settle(self) -> None:
        """Wait until everything that was drawn is copied, so that rows may change."""
        if self._thread.is_alive():  # not in a forked process
            self._jobs.join()

    def close(self) -> None:
        """End the thread; what was drawn ahead is lost, and no batch comes any more."""
        self._end()
        self._thread.join()

    def _draw_ahead(self) -> None:
        while self._free:
            try:
                drawn = self._draw()
            except Exception:
                # those that were drawn come first; the next call draws again, for what is missing may be there by then
                if not self._num_ahead:
                    raise
                return
            self._jobs.put((drawn, self._free.popleft()))
            self._num_ahead += 1


def _work(jobs: Queue[_Job | None], results: Queue[_Result], fill: Fill, torch_batches: TorchBatches | None) -> None:
    while (job := jobs.get()) is not None:
        draw, slot = job
        try:
            results.put((slot, _make(draw, slot, fill, torch_batches)))
        except BaseException as error:  # noqa: BLE001  # every error belongs to the thread that asks for the batch
            results.put((slot, error))
        finally:
            del job, draw, slot
            jobs.task_done()
    jobs.task_done()


def _make(draw: Draw, slot: _Slot, fill: Fill, torch_batches: TorchBatches | None) -> Batch:
    if slot.event is not None:
        slot.event.synchronize()
    batch = fill(draw, slot.batch)
    if torch_batches is None:
        slot.batch = batch
        return batch
    slot.batch = batch if slot.batch is not None else torch_batches.staged(batch)
    moved, slot.event = torch_batches.copied(slot.batch)
    return moved
