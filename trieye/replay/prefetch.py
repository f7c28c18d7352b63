"""Prefetcher: batches that a thread copies ahead, as arrays or as torch tensors on any device."""

import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from queue import Queue
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from trieye.exceptions import ConfigurationError, ReplayClosedError
from trieye.replay.batch import Batch
from trieye.replay.samplers.base import Draw

Fill = Callable[[Draw, Batch | None], Batch]


class TorchBatches:
    """Makes tensors of batches.

    On the CPU they are views of the batch's memory. For CUDA the memory is page-locked, the copy goes along on a stream
    of its own, and packed rows are copied as the one block that they are.
    """

    def __init__(self, device: str) -> None:
        """Choose the device.

        Args:
            device: As torch spells it: `cpu`, `cuda`, `cuda:1`, `mps`, ...

        Raises:
            ConfigurationError: There is no such device.
        """
        import torch

        self._torch: Any = torch  # some of its functions have no types
        try:
            self._device = torch.device(device)
            torch.empty(0, device=self._device)
        except (RuntimeError, AssertionError) as error:  # what torch raises differs from backend to backend
            raise ConfigurationError(f"device {device!r} cannot be used: {error}") from error
        self._stream: Any = None
        if self._device.type == "cuda":
            self._stream = self._torch.cuda.Stream(self._device)

    def staged(self, batch: Batch) -> Batch:
        """Return a batch of the same content whose memory copies to the device quickly; it may be `batch` itself."""
        if self._stream is None:
            return batch
        packed = _packed(batch)
        records = None if batch.records is None else self._pinned(batch.records)
        data = {
            key: records[key] if records is not None and key in packed else self._pinned(array)
            for key, array in batch.data.items()
        }
        return Batch(data, batch.ids, batch.weights, batch.info, batch.mask, records)

    def copied(self, batch: Batch) -> tuple[Batch, Any]:
        """Start the copy to the device.

        Returns:
            The batch with tensors in `data`, `weights` and `mask`, and arrays as before otherwise; and an event after
            which the memory of the argument may be written to again, or None if it is in use, or free, already.
        """
        if self._stream is None:
            return self._moved(batch), None
        with self._torch.cuda.stream(self._stream):
            moved = self._moved(batch)
            event = self._torch.cuda.Event()
            event.record(self._stream)
        return moved, event

    def received(self, batch: Batch, event: Any) -> Batch:
        """Return a batch that was copied, for use on the current stream of the calling thread."""
        if event is not None:
            current = self._torch.cuda.current_stream(self._device)
            current.wait_event(event)
            for tensor in (*batch.data.values(), batch.weights, batch.mask):
                if tensor is not None:  # the allocator must not hand the memory out before this stream is done with it
                    tensor.record_stream(current)  # type: ignore[union-attr]  # a tensor by now
        return batch

    def _moved(self, batch: Batch) -> Batch:
        packed = [] if self._device.type == "cpu" else _packed(batch)
        fields = {}
        if packed and batch.records is not None:
            fields = unpacked(self._tensor(_as_bytes(batch.records)), batch.records.dtype, packed)
        data = {key: fields[key] if key in fields else self._tensor(array) for key, array in batch.data.items()}
        mask: Any = None if batch.mask is None else self._tensor(batch.mask)
        weights: Any = self._tensor(batch.weights)
        return Batch(data, batch.ids, weights, batch.info, mask)

    def _tensor(self, array: NDArray[Any]) -> Any:
        writeable = array if array.flags.writeable else array.copy()  # torch knows no read-only tensors, and warns
        return self._torch.from_numpy(writeable).to(self._device, non_blocking=self._stream is not None)

    def _pinned(self, array: NDArray[Any]) -> NDArray[Any]:
        memory = self._torch.empty(array.nbytes, dtype=self._torch.uint8, pin_memory=True).numpy()
        pinned: NDArray[Any] = memory.view(array.dtype).reshape(array.shape)
        pinned[...] = array
        return pinned


def unpacked(records: Any, dtype: np.dtype[Any], keys: list[str]) -> dict[str, Any]:
    """Return the fields of records as tensors that view them.

    Args:
        records: uint8 tensor `[n, bytes]`.
        dtype: What one record is.
        keys: The fields wanted.
    """
    import torch

    fields, layout = {}, dict(dtype.fields or {})
    for key in keys:
        field, offset = layout[key][:2]
        kind = torch.from_numpy(np.empty(0, field.base)).dtype
        column = records[:, offset : offset + field.itemsize].view(kind)
        fields[key] = column.reshape(len(records), *field.shape) if field.shape else column[:, 0]
    return fields


def _packed(batch: Batch) -> list[str]:
    """Return the keys whose values lie in the batch's block of records."""
    if batch.records is None:
        return []
    return [key for key, array in batch.data.items() if np.may_share_memory(array, batch.records)]


def _as_bytes(records: NDArray[Any]) -> NDArray[np.uint8]:
    return records.view(np.uint8).reshape(len(records), records.dtype.itemsize)


@dataclass(slots=True)
class _Slot:
    """Memory of one batch, and the event after which it may be written to; None: at once."""

    batch: Batch | None = None
    event: Any = None


_Job = tuple[Draw, _Slot]
_Result = tuple[_Slot, Batch | BaseException]


class DeviceBatches:
    """Makes batches of tensors one at a time, for whoever does not prefetch; each has memory of its own on its device.

    One thread at a time.
    """

    def __init__(self) -> None:
        self._devices: dict[str, TorchBatches] = {}
        self._slot = _Slot()  # page-locked memory, which the next batch of the same signature is written into
        self._signature: tuple[Any, ...] = ()

    def make(
        self, device: str, out: Batch | None, signature: tuple[Any, ...], draw: Callable[[], Draw], fill: Fill
    ) -> Batch:
        """Draw and copy rows, and start their copy to the device.

        Args:
            device: As `TorchBatches` takes it.
            out: None; refused otherwise.
            signature: What tells batches of different sizes and keys apart.
            draw: Decides about the batch.
            fill: Copies its rows, into the memory of an earlier batch if one is given.

        Raises:
            ConfigurationError: There is no such device, or `out` is given.
        """
        if out is not None:
            raise ConfigurationError(
                f"sample(device={device!r}) makes new tensors, and cannot write into `out`; leave it away, or use "
                "iter_batches(device=...), which uses its memory again"
            )
        if device not in self._devices:
            self._devices[device] = TorchBatches(device)
        tensors = self._devices[device]
        slot = self._slot if (device, *signature) == self._signature else _Slot()
        moved = _make(draw(), slot, fill, tensors)
        if slot.event is not None:  # otherwise the tensors may be views of that memory
            self._slot, self._signature = slot, (device, *signature)
        return tensors.received(moved, slot.event)


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
