"""The states of the random generators of a process, as plain data."""

import random
import sys
from typing import Any

import numpy as np

from trieye.exceptions import SerializationError


def seed(value: int) -> None:
    """Seed the generators with a value from 0 to 2**32 - 1; torch's only if it is loaded."""
    random.seed(value)
    np.random.seed(value)  # noqa: NPY002 - the global one
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(value)


def capture() -> dict[str, Any]:
    """Return the states of Python's, NumPy's and, where torch is loaded, torch's global generators.

    The result holds tuples, integers and uint8 arrays only, so that reading it needs no torch.
    """
    state: dict[str, Any] = {"python": random.getstate(), "numpy": np.random.get_state()}  # noqa: NPY002 - the global one
    torch = sys.modules.get("torch")
    if torch is not None:
        state["torch"] = torch.get_rng_state().numpy().copy()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            state["torch_cuda"] = [device.cpu().numpy().copy() for device in torch.cuda.get_rng_state_all()]
    return state


def restore(state: dict[str, Any]) -> None:
    """Set the generators to what `capture` returned; torch is imported if its state is there.

    A state of more CUDA devices than there are is used as far as it goes.

    Raises:
        SerializationError: `state` is not what `capture` returns.
    """
    try:
        random.setstate(state["python"])
        np.random.set_state(state["numpy"])  # noqa: NPY002 - the global one
        if "torch" in state:
            _restore_torch(state)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise SerializationError(f"the saved states of the random generators cannot be restored: {error!r}") from error


def _restore_torch(state: dict[str, Any]) -> None:
    import torch

    torch.set_rng_state(torch.from_numpy(np.array(state["torch"])))
    if torch.cuda.is_available():
        devices = zip(range(torch.cuda.device_count()), state.get("torch_cuda", []), strict=False)
        for device, saved in devices:
            torch.cuda.set_rng_state(torch.from_numpy(np.array(saved)), device)
