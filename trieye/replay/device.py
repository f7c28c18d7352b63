"""TorchBatches: batches as torch tensors, on any device."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trieye.exceptions import ConfigurationError
from trieye.replay.batch import Batch


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

        try:
            self._device = torch.device(device)
            torch.empty(0, device=self._device)
        except (RuntimeError, AssertionError) as error:  # what torch raises differs from backend to backend
            raise ConfigurationError(f"device {device!r} cannot be used: {error}") from error
        self._stream: Any = None
        if self._device.type == "cuda":
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]  # torch 2.13 has no types

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
        import torch

        if self._stream is None:
            return self._moved(batch), None
        with torch.cuda.stream(self._stream):
            moved = self._moved(batch)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch 2.13 has no types
            event.record(self._stream)
        return moved, event

    def received(self, batch: Batch, event: Any) -> Batch:
        """Return a batch that was copied, for use on the current stream of the calling thread."""
        import torch

        if event is not None:
            current = torch.cuda.current_stream(self._device)
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
        import torch

        writeable = array if array.flags.writeable else array.copy()  # torch knows no read-only tensors, and warns
        return torch.from_numpy(writeable).to(self._device, non_blocking=self._stream is not None)

    def _pinned(self, array: NDArray[Any]) -> NDArray[Any]:
        import torch

        memory = torch.empty(array.nbytes, dtype=torch.uint8, pin_memory=True).numpy()
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
