"""Files of trieye 0.1.5: one cloudpickle for each checkpoint or buffer."""

import io
import pickle
import re
from pathlib import Path
from typing import Any

from trieye.exceptions import SerializationError, UntrustedPickleError
from trieye.snapshot.signing import ALLOW_PICKLE_VARIABLE, pickles_allowed

_PROTOCOL_MARK = 0x80
_END_MARK = ord(".")


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
        raise SerializationError(f"{path} is not a whole pickle: {error}") from error
    except Exception as error:  # a border: user classes run here and raise what they like
        raise SerializationError(f"{path} cannot be unpickled: {type(error).__name__}: {error}") from error


class _Unpickler(pickle.Unpickler):
    """Puts tensors on the CPU: 0.1.5 saved those of a GPU as such, which a machine without one could not read."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch.storage", "_load_from_bytes"):
            return _storage_on_cpu
        return super().find_class(module, name)


def _storage_on_cpu(content: bytes) -> Any:
    import torch

    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)


def unreadable(path: Path) -> SerializationError:
    """Return why `Run.restore` does not go on from a file of 0.1.5: a fresh start instead would lose what it holds."""
    return UntrustedPickleError(
        f"{path} is a pickle of trieye 0.1.5, and reading it could run any code; Run.restore reads none. If you trust "
        f"it, go on with TrieyeActor and {ALLOW_PICKLE_VARIABLE}=1, or read its weights: make it a checkpoint with "
        f"`trieye convert {path} --allow-pickle`, or call trieye.Serializer(allow_pickle=True).load_checkpoint(path). "
        "To start afresh, choose another run_name"
    )


def is_whole_pickle(path: Path) -> bool:
    """Tell whether a file begins and ends like a pickle; 0.1.5 wrote in place, so a kill left it cut short."""
    try:
        with path.open("rb") as file:
            first = file.read(1)
            file.seek(-1, io.SEEK_END)
            return first == bytes([_PROTOCOL_MARK]) and file.read(1) == bytes([_END_MARK])
    except OSError:
        return False


def numbered_pickles(directory: Path, prefix: str) -> list[tuple[int, Path]]:
    """Return the files `<prefix><step>.pkl`, whole or not, with their steps, the lowest first."""
    pattern = re.compile(re.escape(prefix) + r"(\d+)\.pkl")
    paths = directory.iterdir() if directory.is_dir() else ()
    return sorted((int(match[1]), path) for path in paths if (match := pattern.fullmatch(path.name)) and path.is_file())


def newest_pickle(
    directory: Path, prefix: str, link_name: str, *, max_step: int | None = None
) -> tuple[Path, int | None] | None:
    """Return the whole file `<prefix><step>.pkl` of the highest step and that step.

    Where no file has a step in its name, it is the file `link_name`, of which only its content knows the step.
    """
    numbered = numbered_pickles(directory, prefix)
    for step, path in reversed(numbered):
        if (max_step is None or step <= max_step) and is_whole_pickle(path):
            return path, step
    link = directory / link_name
    return (link, None) if not numbered and link.is_file() and is_whole_pickle(link) else None
