"""The states of random generators, NumPy's, Python's and torch's, as plain data: of objects, and those of a process."""

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

logger = logging.getLogger(__name__)

_BIT_GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
_NUMPY, _LEGACY, _PYTHON, _TORCH = (
    "numpy.random.Generator",
    "numpy.random.RandomState",
    "random.Random",
    "torch.Generator",
)
_ERRORS = (KeyError, TypeError, ValueError, RuntimeError, AttributeError)


def generator_state(value: Any) -> dict[str, Any] | None:
    """Return the state of a generator, or None for anything else.

    Known are `np.random.Generator` on a bit generator of NumPy's own, `np.random.RandomState`, `random.Random` and
    `torch.Generator`, not their subclasses. The state holds dicts, tuples, numbers, strings and arrays that nobody
    changes; its key `generator` says what it is of.
    """
    if type(value) is np.random.Generator:
        return _numpy_state(value.bit_generator)
    if type(value) is np.random.RandomState:
        state = value.get_state(legacy=False)
        return {"generator": _LEGACY, "state": state} if state["bit_generator"] in _BIT_GENERATORS else None
    if type(value) is random.Random:
        return {"generator": _PYTHON, "state": value.getstate()}
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, _class_of(torch)):
        return {"generator": _TORCH, "device": str(value.device), "state": value.get_state().numpy().copy()}
    return None


def set_generator_state(generator: Any, held: Any) -> None:
    """Bring a generator to a state.

    Generator states of different device types are incompatible: a torch generator given the state of another type is
    seeded with a hash of that state, with a warning that its draws differ from here on.

    Args:
        generator: One that `generator_state` knows.
        held: What `generator_state` returned, or another generator of the same kind.

    Raises:
        SerializationError: The state is not one of such a generator; the message says of which it is.
    """
    own = generator_state(generator)
    state = held if isinstance(held, Mapping) else generator_state(held)
    if own is None or state is None or own["generator"] != state.get("generator"):
        found = type(held).__name__ if state is None else state.get("generator", "something else")
        raise SerializationError(f"the saved state of a {found} cannot be given to a {_name(generator, own)}")
    try:
        _set(generator, own["generator"], state)
    except _ERRORS as error:
        raise SerializationError(
            f"the saved state cannot be given to this {_name(generator, own)}: {error}; make it as it was made before"
        ) from error


def new_generator(state: Mapping[str, Any]) -> Any:
    """Return a generator in a state that `generator_state` returned.

    A torch generator of a device that is not there comes back as its state, which `set_generator_state` takes.

    Raises:
        SerializationError: The state is not whole, or of a generator that is not known.
    """
    try:
        generator = _new(state)
    except _ERRORS as error:
        raise SerializationError(f"the saved state of a random generator does not fit together: {error!r}") from error
    if generator is None:
        return dict(state)
    set_generator_state(generator, state)
    return generator


def _class_of(torch: Any) -> Any:
    return getattr(torch, "Generator", ())  # it lacks one half-way through its import in another thread


def _numpy_state(bits: Any) -> dict[str, Any] | None:
    kind = type(bits).__name__
    if kind not in _BIT_GENERATORS or type(bits) is not getattr(np.random, kind):
        return None
    seeds = bits.seed_seq
    # `spawn` depends on it, and the state of a bit generator leaves it out
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
        return random.Random()  # noqa: S311 - it continues somebody's training
    if kind == _TORCH:
        import torch

        try:
            return torch.Generator(device=state["device"])
        except RuntimeError:
            return None
    if kind not in {_NUMPY, _LEGACY} or state["state"]["bit_generator"] not in _BIT_GENERATORS:
        raise ValueError(f"generator {kind!r} is not known")
    bits = getattr(np.random, state["state"]["bit_generator"])(0)
    return np.random.Generator(bits) if kind == _NUMPY else np.random.RandomState(bits)


def _name(generator: Any, own: Mapping[str, Any] | None) -> str:
    if own is None:
        return type(generator).__name__
    on = f" on {own['state']['bit_generator']}" if own["generator"] in {_NUMPY, _LEGACY} else ""
    return f"{own['generator']}{on}"


def seed_all(value: int) -> None:
    """Seed the generators with a value from 0 to 2**32 - 1; torch's only if it is loaded."""
    random.seed(value)
    np.random.seed(value)  # noqa: NPY002 - the global one
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(value)


@contextmanager
def preserved_generators() -> Iterator[None]:
    """Restore the global generators of Python, NumPy and torch after the block.

    Other threads that draw during the block draw the same numbers again.
    """
    state = capture_all()
    try:
        yield
    finally:
        restore_all(state)


def capture_all() -> dict[str, Any]:
    """Return the states of Python's, NumPy's and, where torch is loaded, torch's global generators.

    Those of all CUDA devices are among them if the process has initialized CUDA; else there is nothing to take.
    The result holds tuples, integers and uint8 arrays only, so that reading it needs no torch.
    """
    state: dict[str, Any] = {"python": random.getstate(), "numpy": np.random.get_state()}  # noqa: NPY002 - the global one
    torch = sys.modules.get("torch")
    if torch is not None:
        state["torch"] = torch.get_rng_state().numpy().copy()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            state["torch_cuda"] = [device.cpu().numpy().copy() for device in torch.cuda.get_rng_state_all()]
    return state


def restore_all(state: dict[str, Any]) -> None:
    """Set the generators to what `capture_all` returned; torch is imported if its state is there.

    States of missing CUDA devices are ignored, with a warning if this process has no CUDA device.

    Raises:
        SerializationError: `state` is not what `capture_all` returns.
    """
    try:
        random.setstate(state["python"])
        np.random.set_state(state["numpy"])  # noqa: NPY002 - the global one
        if "torch" in state:
            _restore_all_of_torch(state)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise SerializationError(f"the saved states of the random generators cannot be restored: {error!r}") from error


def _restore_all_of_torch(state: dict[str, Any]) -> None:
    import torch

    torch.set_rng_state(torch.from_numpy(np.array(state["torch"])))
    if "torch_cuda" not in state:
        return
    if not torch.cuda.is_available():
        _warn_of_other_device("cuda", "cpu")
    else:
        # until CUDA is initialized torch puts states and seeds off, and a seed given before a state is taken after it
        torch.cuda.init()  # type: ignore[no-untyped-call]  # of torch
        devices = zip(range(torch.cuda.device_count()), state["torch_cuda"], strict=False)
        for device, saved in devices:
            torch.cuda.set_rng_state(torch.from_numpy(np.array(saved)), device)
