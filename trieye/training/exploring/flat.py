"""Flat: weights as a few contiguous buffers, one per dtype, for broadcasts."""

import torch

from trieye.training.exploring.transports import Weights

Layout = tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]
"""Name, dtype and shape of each tensor."""

_MIN_TIMEOUT_S, _BYTES_PER_S = 10.0, 20e6
"""Timeout of a broadcast: a constant, plus the weights' transfer time at a low rate; detects hanging processes."""


class Flat:
    """Weights in one buffer per dtype.

    Attributes:
        layout: Name, dtype and shape of each tensor.
        buffers: The buffers, in the order of their dtypes' first occurrence in the layout.
        tensors: Views of the buffers, by name.
    """

    def __init__(self, layout: Layout, device: torch.device) -> None:
        self.layout = layout
        self.tensors: dict[str, torch.Tensor] = {}
        sizes: dict[torch.dtype, int] = {}
        for _, dtype, shape in layout:
            sizes[dtype] = sizes.get(dtype, 0) + torch.Size(shape).numel()
        by_dtype = {dtype: torch.empty(size, dtype=dtype, device=device) for dtype, size in sizes.items()}
        self.buffers = [buffer for buffer in by_dtype.values() if buffer.numel()]
        offsets = dict.fromkeys(sizes, 0)
        for name, dtype, shape in layout:
            size = torch.Size(shape).numel()
            self.tensors[name] = by_dtype[dtype][offsets[dtype] : offsets[dtype] + size].view(shape)
            offsets[dtype] += size

    @property
    def timeout_s(self) -> float:
        """Timeout of a broadcast of these buffers in seconds."""
        return _MIN_TIMEOUT_S + sum(buffer.nbytes for buffer in self.buffers) / _BYTES_PER_S


def layout_of(weights: Weights) -> Layout:
    """Return name, dtype and shape of each tensor."""
    return tuple((name, tensor.dtype, tuple(tensor.shape)) for name, tensor in weights.items())
