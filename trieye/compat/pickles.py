"""Reading the files of trieye 0.1.5: one cloudpickle for each checkpoint or buffer."""

import io
import pickle
from pathlib import Path
from typing import Any

from trieye.exceptions import SerializationError, UntrustedPickleError
from trieye.snapshot.signing import ALLOW_PICKLE_VARIABLE, pickles_allowed


def load_pickle(path: Path, *, allow_pickle: bool | None = None) -> Any:
    """Return the object in a file of trieye 0.1.5.

    Raises:
        UntrustedPickleError: Pickles were not allowed; these files are not signed, and reading one can run any code.
        SerializationError: The file cannot be read.
    """
    if not pickles_allowed(allow_pickle):
        raise UntrustedPickleError(
            f"{path} is a pickle, as trieye 0.1.5 wrote them, and reading it could run any code; if you trust where it "
            f"comes from, make it a checkpoint with `trieye convert {path} --allow-pickle`, or pass allow_pickle=True "
            f"or set {ALLOW_PICKLE_VARIABLE}=1"
        )
    try:
        return _Unpickler(io.BytesIO(path.read_bytes())).load()
    except OSError as error:
        raise SerializationError(f"{path} cannot be read: {error.strerror or error}") from error
    except (EOFError, pickle.UnpicklingError) as error:
        raise SerializationError(f"{path} is not a complete pickle: {error}") from error
    except Exception as error:  # a border: user classes run here and may raise anything
        raise SerializationError(f"{path} cannot be unpickled: {type(error).__name__}: {error}") from error


class _Unpickler(pickle.Unpickler):
    """Loads tensors onto the CPU: 0.1.5 saved GPU tensors, which a machine without a GPU cannot read."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch.storage", "_load_from_bytes"):
            return _storage_on_cpu
        return super().find_class(module, name)


def _storage_on_cpu(content: bytes) -> Any:
    import torch

    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
