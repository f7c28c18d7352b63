"""Tensors of a simulated GPU, for machines without a GPU."""

from typing import Any, Self

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

_JOINS = {torch.ops.aten.cat.default, torch.ops.aten.stack.default}


class Elsewhere(torch.Tensor):
    """A tensor on another device: as on a GPU, operations with CPU tensors fail, except scalars.

    `.cpu()` returns a plain tensor. The numbers are on the CPU; the device is `xla`, which torch does not try to
    start.
    """

    content: torch.Tensor

    @staticmethod
    def __new__(cls, content: torch.Tensor) -> Self:
        return torch.Tensor._make_wrapper_subclass(
            cls, content.shape, strides=content.stride(), dtype=content.dtype, device="xla"
        )

    def __init__(self, content: torch.Tensor) -> None:
        self.content = content

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise RuntimeError("a tensor of a GPU was pickled")

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def inner(value: Any) -> Any:
            if isinstance(value, cls):
                return value.content
            if isinstance(value, torch.Tensor) and (value.ndim or func in _JOINS):
                raise RuntimeError("Expected all tensors to be on the same device, but found two")
            return value

        options = dict(kwargs or {})
        stays = options.get("device") is None or torch.device(options["device"]).type != "cpu"
        if options.get("device") is not None:
            options["device"] = torch.device("cpu")
        output = func(*tree_map(inner, args), **tree_map(inner, options))
        if not stays:
            return output
        return tree_map(lambda value: cls(value) if isinstance(value, torch.Tensor) else value, output)


class AsTensor(TorchFunctionMode):
    """Makes `torch.as_tensor` return these tensors unchanged, as it does for a real device."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.as_tensor and isinstance(args[0], Elsewhere):
            return args[0]
        return func(*args, **(kwargs or {}))
