"""Prefetcher: copies batches ahead in a thread, as NumPy arrays or as torch tensors on any device."""

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
from trieye.replay.samplers.base import SampledIds

Fill = Callable[[SampledIds, Batch | None], Batch]


class TorchBatches:
    """Converts batches to tensors on one device.

    On the CPU, tensors view the batch's memory. For CUDA, batches are staged in page-locked memory and copied
    asynchronously on a separate stream; packed rows are copied in a single block.
    """

    def __init__(self, device: str) -> None:
        """Select the device.

        Args:
            device: A torch device such as `cpu`, `cuda`, `cuda:1` or `mps`.

        Raises:
            ConfigurationError: The device does not exist.
        """
        import torch

        self._torch: Any = torch  # some of its functions are untyped
        try:
            self._device = torch.device(device)
            torch.empty(0, device=self._device)
        except (RuntimeError, AssertionError) as error:  # the exception type differs between backends
            raise ConfigurationError(f"device {device!r} cannot be used: {error}") from error
        self._stream: Any = None
        if self._device.type == "cuda":
            self._stream = self._torch.cuda.Stream(self._device)

    def staged(self, batch: Batch) -> Batch:
        """Return a batch with the same values in memory that copies to the device quickly; may be `batch` itself."""
        if self._stream is None:
            return batch
        packed_keys = _packed(batch)
        records = None if batch.records is None else self._pinned(batch.records)
        data = {
            key: records[key] if records is not None and key in packed_keys else self._pinned(array)
            for key, array in batch.data.items()
        }
        return Batch(data, batch.ids, batch.weights, batch.info, batch.mask, records)

    def copied(self, batch: Batch) -> tuple[Batch, Any]:
        """Start the copy to the device.

        Returns:
            The batch with tensors in `data`, `weights` and `mask`, its other fields unchanged; and the CUDA event after
            which the argument's memory may be overwritten, or None if the tensors view it or the copy was synchronous.
        """
        if self._stream is None:
            return self._moved(batch), None
        with self._torch.cuda.stream(self._stream):
            device_batch = self._moved(batch)
            event = self._torch.cuda.Event()
            event.record(self._stream)
        return device_batch, event

    def received(self, batch: Batch, event: Any) -> Batch:
        """Return a copied batch for use on the current stream of the calling thread."""
        if event is not None:
            stream = self._torch.cuda.current_stream(self._device)
            stream.wait_event(event)
            for tensor in (*batch.data.values(), batch.weights, batch.mask):
                if tensor is not None:  # keeps the allocator from reusing the memory before this stream is done
                    tensor.record_stream(stream)  # type: ignore[union-attr]  # a tensor by now
        return batch

    def _moved(self, batch: Batch) -> Batch:
        packed_keys = [] if self._device.type == "cpu" else _packed(batch)
        fields = {}
        if packed_keys and batch.records is not None:
            fields = unpacked(self._tensor(_as_bytes(batch.records)), batch.records.dtype, packed_keys)
        data = {key: fields[key] if key in fields else self._tensor(array) for key, array in batch.data.items()}
        mask: Any = None if batch.mask is None else self._tensor(batch.mask)
        weights: Any = self._tensor(batch.weights)
        return Batch(data, batch.ids, weights, batch.info, mask)

    def _tensor(self, array: NDArray[Any]) -> Any:
        writeable = array if array.flags.writeable else array.copy()  # torch warns about read-only arrays
        return self._torch.from_numpy(writeable).to(self._device, non_blocking=self._stream is not None)

    def _pinned(self, array: NDArray[Any]) -> NDArray[Any]:
        memory = self._torch.empty(array.nbytes, dtype=self._torch.uint8, pin_memory=True).numpy()
        pinned_array: NDArray[Any] = memory.view(array.dtype).reshape(array.shape)
        pinned_array[...] = array
        return pinned_array


def unpacked(records: Any, dtype: np.dtype[Any], keys: list[str]) -> dict[str, Any]:
    """Return the fields of records as tensors that view them.

    Args:
        records: uint8 tensor `[n, bytes]`.
        dtype: The NumPy dtype of a record.
        keys: The fields to return.
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
    """Return the keys whose arrays view the batch's block of records."""
    if batch.records is None:
        return []
    return [key for key, array in batch.data.items() if np.may_share_memory(array, batch.records)]


def _as_bytes(records: NDArray[Any]) -> NDArray[np.uint8]:
    return records.view(np.uint8).reshape(len(records), records.dtype.itemsize)


@dataclass(slots=True)
class _BatchBuffer:
    """Memory of one batch, and the CUDA event after which it may be overwritten; without an event, at any time."""

    batch: Batch | None = None
    event: Any = None


_Job = tuple[SampledIds, _BatchBuffer]
_Result = tuple[_BatchBuffer, Batch | BaseException]


class DeviceBatches:
    """Makes batches of tensors without prefetching; each batch owns its memory on the device.

    Not thread-safe.
    """

    def __init__(self) -> None:
        self._devices: dict[str, TorchBatches] = {}
        self._buffer = _BatchBuffer()  # page-locked memory, reused by the next batch with the same signature
        self._signature: tuple[Any, ...] = ()

    def make(
        self, device: str, out: Batch | None, signature: tuple[Any, ...], draw: Callable[[], SampledIds], fill: Fill
    ) -> Batch:
        """Draw and copy rows, and start their copy to the device.

        Args:
            device: A torch device, as for `TorchBatches`.
            out: Must be None.
            signature: Identifies the size and keys of the batch.
            draw: Chooses the rows of the batch.
            fill: Copies the rows, into the memory of an earlier batch if one is passed.

        Raises:
            ConfigurationError: The device does not exist, or `out` is not None.
        """
        if out is not None:
            raise ConfigurationError(
                f"sample(device={device!r}) allocates new tensors and cannot write into `out`; omit `out`, or use "
                "iter_batches(device=...), which reuses its memory"
            )
        if device not in self._devices:
            self._devices[device] = TorchBatches(device)
        tensors = self._devices[device]
        buffer = self._buffer if (device, *signature) == self._signature else _BatchBuffer()
        device_batch = _make(draw(), buffer, fill, tensors)
        if buffer.event is not None:  # without an event, the tensors may be views of that memory
            self._buffer, self._signature = buffer, (device, *signature)
        return tensors.received(device_batch, buffer.event)


class Prefetcher:
    """Yields batches forever; while one is in use, a thread copies the rows of the next ones.

    Draws happen in the calling thread, `depth` batches ahead; only the copying runs in the background. The batches
    therefore depend on the sequence of calls, never on timing: they equal `sample` called `depth` batches earlier.
    Rows must not change while they are copied: call `settle` before changing them.

    A batch is valid until the next one is requested. Not thread-safe.
    """

    def __init__(
        self, draw: Callable[[], SampledIds], fill: Fill, *, depth: int = 2, device: str | None = None
    ) -> None:
        """Start the thread; nothing is drawn yet.

        Args:
            draw: Chooses the rows of a batch.
            fill: Copies the rows, into the memory of an earlier batch if one is passed.
            depth: Number of batches to copy ahead.
            device: Return torch tensors on this device, such as `cpu` or `cuda`; NumPy if None. Ids are always NumPy.

        Raises:
            ConfigurationError: The depth is below 1, or the device does not exist.
        """
        if depth < 1:
            raise ConfigurationError(f"prefetch is {depth}; it must be at least 1 batch")
        self._draw = draw
        self._torch = None if device is None else TorchBatches(device)
        self._free = deque(_BatchBuffer() for _ in range(depth + 1))
        self._in_use: _BatchBuffer | None = None
        self._num_ahead = 0
        self._jobs: Queue[_Job | None] = Queue()
        self._results: Queue[_Result] = Queue()
        # the thread has no reference to this object, so it exits once the iterator is garbage-collected
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
            raise ReplayClosedError("a forked process has no prefetch thread; call iter_batches in it")
        if self._in_use is not None:
            self._free.append(self._in_use)
            self._in_use = None
        self._draw_ahead()
        buffer, result = self._results.get()
        self._num_ahead -= 1
        if isinstance(result, BaseException):
            self.close()
            raise result
        self._in_use = buffer
        return result if self._torch is None else self._torch.received(result, buffer.event)

    def settle(self) -> None:
        """Wait until all drawn rows are copied, so that rows may change."""
        if self._thread.is_alive():  # not in a forked process
            self._jobs.join()

    def close(self) -> None:
        """Stop the thread and discard the batches made ahead; iteration ends."""
        self._end()
        self._thread.join()

    def _draw_ahead(self) -> None:
        while self._free:
            try:
                draw = self._draw()
            except Exception:
                # yield the batches drawn so far; the next call draws again and may succeed by then
                if not self._num_ahead:
                    raise
                return
            self._jobs.put((draw, self._free.popleft()))
            self._num_ahead += 1


def _work(jobs: Queue[_Job | None], results: Queue[_Result], fill: Fill, torch_batches: TorchBatches | None) -> None:
    while (job := jobs.get()) is not None:
        draw, buffer = job
        try:
            results.put((buffer, _make(draw, buffer, fill, torch_batches)))
        except BaseException as error:  # noqa: BLE001  # re-raised in the thread that requests the batch
            results.put((buffer, error))
        finally:
            del job, draw, buffer
            jobs.task_done()
    jobs.task_done()


def _make(draw: SampledIds, buffer: _BatchBuffer, fill: Fill, torch_batches: TorchBatches | None) -> Batch:
    if buffer.event is not None:
        buffer.event.synchronize()
    batch = fill(draw, buffer.batch)
    if torch_batches is None:
        buffer.batch = batch
        return batch
    buffer.batch = batch if buffer.batch is not None else torch_batches.staged(batch)
    device_batch, buffer.event = torch_batches.copied(buffer.batch)
    return device_batch
