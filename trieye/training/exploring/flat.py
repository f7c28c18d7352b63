"""Flat: weights as few long buffers, which is how a broadcast carries them."""

import torch

from trieye.training.exploring.transports import Weights

Layout = tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]
"""Name, type and shape of each tensor."""

_LEAST_S, _BYTES_PER_S = 10.0, 20e6
"""A broadcast may take so long, and longer for weights that are large; a process that hangs is found out by then."""


class Flat:
    """Weights in one buffer for each type of number.

    Attributes:
        layout: Name, type and shape of each tensor.
        buffers: In the order in which their types first occur in the layout.
        tensors: Views of the buffers, by name.
    """

    def __init__(self, layout: Layout, device: torch.device) -> None:
        self.layout = layout
        self.tensors: dict[str, torch.Tensor] = {}
        sizes: dict[torch.dtype, int] = {}
        for _, dtype, shape in layout:
            sizes[dtype] = sizes.get(dtype, 0) + torch.Size(shape).numel()
        by_type = {dtype: torch.empty(size, dtype=dtype, device=device) for dtype, size in sizes.items()}
        self.buffers = [buffer for buffer in by_type.values() if buffer.numel()]
        at = dict.fromkeys(sizes, 0)
        for name, dtype, shape in layout:
            size = torch.Size(shape).numel()
            self.tensors[name] = by_type[dtype][at[dtype] : at[dtype] + size].view(shape)
            at[dtype] += size

    @property
    def timeout_s(self) -> float:
        """How long a broadcast may take."""
        return _LEAST_S + sum(buffer.nbytes for buffer in self.buffers) / _BYTES_PER_S


def layout_of(weights: Weights) -> Layout:
    """Return name, type and shape of each tensor."""
    return tuple((name, tensor.dtype, tuple(tensor.shape)) for name, tensor in weights.items())
