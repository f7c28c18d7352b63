"""States of NumPy, Python and torch random generators as plain data, for single objects and the whole process."""

import hashlib
import logging
import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

from trieye.exceptions import SerializationError
from trieye.snapshot.nodes import OTHER_CHECKPOINT

logger = logging.getLogger(__name__)

_BIT_GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
_NUMPY, _LEGACY = "numpy.random.Generator", "numpy.random.RandomState"
_PYTHON, _TORCH = "random.Random", "torch.Generator"
_ERRORS = (KeyError, TypeError, ValueError, RuntimeError, AttributeError)


def generator_state(value: Any) -> dict[str, Any] | None:
    """Return the state of a generator, or None for any other value.

    Supported are `np.random.Generator` with a bit generator of NumPy, `np.random.RandomState`, `random.Random` and
    `torch.Generator`, but not their subclasses. The state consists of dicts, tuples, numbers, strings and arrays that
    never change; its key `generator` is the kind of the generator.
    """
    if type(value) is np.random.Generator:
        return _numpy_state(value.bit_generator)
    if type(value) is np.random.RandomState:
        state = value.get_state(legacy=False)
        return {"generator": _LEGACY, "state": state} if state["bit_generator"] in _BIT_GENERATORS else None
    if type(value) is random.Random:
        return {"generator": _PYTHON, "state": value.getstate()}
    torch_generator: Any = getattr(sys.modules.get("torch"), "Generator", ())  # missing during the import of torch
    if isinstance(value, torch_generator):
        return {"generator": _TORCH, "device": str(value.device), "state": value.get_state().numpy().copy()}
    return None


def set_generator_state(generator: Any, saved_state: Any) -> None:
    """Set the state of a generator.

    Generator states of different device types are incompatible: a torch generator is seeded with a hash of the state
    of another device type, with a warning that its draws differ from then on.

    Args:
        generator: A generator that `generator_state` supports.
        saved_state: A result of `generator_state`, or another generator of the same kind.

    Raises:
        SerializationError: The state belongs to another kind of generator; the message names it.
    """
    own_state = generator_state(generator)
    state = saved_state if isinstance(saved_state, Mapping) else generator_state(saved_state)
    if own_state is None or state is None or own_state["generator"] != state.get("generator"):
        kind = type(saved_state).__name__ if state is None else state.get("generator", "unknown generator")
        raise SerializationError(f"the saved state of a {kind} does not fit a {_name(generator, own_state)}")
    try:
        _set(generator, own_state["generator"], state)
    except _ERRORS as error:
        raise SerializationError(
            f"the saved state does not fit this {_name(generator, own_state)}: {error}; create it as in the saved run"
        ) from error


def new_generator(state: Mapping[str, Any]) -> Any:
    """Create a generator with a state from `generator_state`.

    For a torch generator of a missing device, the state itself is returned, which `set_generator_state` accepts.

    Raises:
        SerializationError: The state is incomplete, or the kind of generator is unknown.
    """
    try:
        generator = _new(state)
    except _ERRORS as error:
        raise SerializationError(
            f"the saved state of a random generator is inconsistent: {error!r}; {OTHER_CHECKPOINT}"
        ) from error
    if generator is None:
        return dict(state)
    set_generator_state(generator, state)
    return generator


def _numpy_state(bits: Any) -> dict[str, Any] | None:
    kind = type(bits).__name__
    if kind not in _BIT_GENERATORS or type(bits) is not getattr(np.random, kind):
        return None
    seeds = bits.seed_seq
    # `spawn` depends on the seed sequence, which the state of a bit generator lacks
    spawning = type(seeds) is np.random.SeedSequence
    return {"generator": _NUMPY, "state": bits.state, "seeds": seeds.state if spawning else None}


def _set(generator: Any, kind: str, state: Mapping[str, Any]) -> None:
    if kind == _PYTHON:
        generator.setstate(state["state"])
    elif kind == _TORCH:
        _set_torch(generator, state)
    elif kind == _LEGACY:
        generator.set_state(state.get("legacy", state["state"]))  # the former of a checkpoint of an earlier version
    else:
        bits = generator.bit_generator
        bits.state = state["state"]
        if state["seeds"] is not None:
            bits.__setstate__((state["state"], np.random.SeedSequence(**state["seeds"])))


def _set_torch(generator: Any, state: Mapping[str, Any]) -> None:
    import torch

    saved_on, device, content = torch.device(state["device"]).type, generator.device.type, np.array(state["state"])
    if saved_on == device:
        generator.set_state(torch.from_numpy(content))
        return
    generator.manual_seed(int.from_bytes(hashlib.blake2b(content.tobytes(), digest_size=8).digest()))
    _warn_of_other_device(saved_on, device)


@cache
def _warn_of_other_device(saved_on: str, device: str) -> None:
    logger.warning(
        "random generators were saved on %s and continue on %s: they are seeded from the saved states, and the resume "
        "is not bit-exact",
        saved_on,
        device,
    )


def _new(state: Mapping[str, Any]) -> Any:
    kind = state["generator"]
    if kind == _PYTHON:
        return random.Random()  # noqa: S311 - not for cryptography
    if kind == _TORCH:
        import torch

        try:
            return torch.Generator(device=state["device"])
        except RuntimeError:
            return None
    if kind not in {_NUMPY, _LEGACY} or state["state"]["bit_generator"] not in _BIT_GENERATORS:
        raise ValueError(f"unknown generator {kind!r}")
    bits = getattr(np.random, state["state"]["bit_generator"])(0)
    return np.random.Generator(bits) if kind == _NUMPY else np.random.RandomState(bits)


def _name(generator: Any, state: Mapping[str, Any] | None) -> str:
    if state is None:
        return type(generator).__name__
    on = f" on {state['state']['bit_generator']}" if state["generator"] in {_NUMPY, _LEGACY} else ""
    return f"{state['generator']}{on}"


def seed_all(value: int) -> None:
    """Seed the global generators with a value from 0 to 2**32 - 1; torch's only if torch is imported."""
    random.seed(value)
    np.random.seed(value)  # noqa: NPY002 - the global one
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(value)


@contextmanager
def preserved_generators() -> Iterator[None]:
    """Restore the global generators of Python, NumPy and torch after the block.

    Numbers that other threads draw during the block are drawn again afterwards.
    """
    state = capture_all()
    try:
        yield
    finally:
        restore_all(state)


def capture_all() -> dict[str, Any]:
    """Return the states of the global generators of Python, NumPy and, if it is imported, torch.

    CUDA states of all devices are included if the process has initialized CUDA; otherwise none exist. The result
    contains only tuples, integers and uint8 arrays, so that reading it does not require torch.
    """
    state: dict[str, Any] = {"python": random.getstate(), "numpy": np.random.get_state()}  # noqa: NPY002 - the global one
    torch = sys.modules.get("torch")
    if torch is not None:
        state["torch"] = torch.get_rng_state().numpy().copy()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            state["torch_cuda"] = [device.cpu().numpy().copy() for device in torch.cuda.get_rng_state_all()]
    return state


def restore_all(state: dict[str, Any]) -> None:
    """Restore the global generators from a result of `capture_all`; imports torch if its state is included.

    States of missing CUDA devices are ignored, with a warning if this process has no CUDA device.

    Raises:
        SerializationError: `state` is not a result of `capture_all`.
    """
    try:
        random.setstate(state["python"])
        np.random.set_state(state["numpy"])  # noqa: NPY002 - the global one
        if "torch" in state:
            _restore_all_of_torch(state)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise SerializationError(
            f"the saved states of the random generators cannot be restored: {error!r}; {OTHER_CHECKPOINT}"
        ) from error


def _restore_all_of_torch(state: dict[str, Any]) -> None:
    import torch

    torch.set_rng_state(torch.from_numpy(np.array(state["torch"])))
    if "torch_cuda" not in state:
        return
    if not torch.cuda.is_available():
        _warn_of_other_device("cuda", "cpu")
    else:
        # before the initialization of CUDA torch defers states and seeds, and applies an earlier seed after the state
        torch.cuda.init()
        devices = zip(range(torch.cuda.device_count()), state["torch_cuda"], strict=False)
        for device, cuda_state in devices:
            torch.cuda.set_rng_state(torch.from_numpy(np.array(cuda_state)), device)
