"""Files of trieye 0.1.5, one pickle for each checkpoint or buffer: how to recognize them without reading them."""

import io
import re
from pathlib import Path

from trieye.exceptions import SerializationError, UntrustedPickleError
from trieye.snapshot.signing import ALLOW_PICKLE_VARIABLE

_PROTOCOL_MARK = 0x80
_END_MARK = ord(".")


def unreadable(path: Path) -> SerializationError:
    """Return why `Run.restore` refuses a file of 0.1.5; starting from scratch would lose its content."""
    return UntrustedPickleError(
        f"{path} is a pickle of trieye 0.1.5, and reading it could run any code; Run.restore reads none. If you trust "
        f"it, continue with TrieyeActor and {ALLOW_PICKLE_VARIABLE}=1, or read its weights: make it a checkpoint with "
        f"`trieye convert {path} --allow-pickle`, or call trieye.Serializer(allow_pickle=True).load_checkpoint(path). "
        "To start afresh, choose another run_name"
    )


def is_whole_pickle(path: Path) -> bool:
    """Return whether a file begins and ends like a pickle; 0.1.5 wrote in place, so a kill left it cut short."""
    try:
        with path.open("rb") as file:
            first_byte = file.read(1)
            file.seek(-1, io.SEEK_END)
            return first_byte == bytes([_PROTOCOL_MARK]) and file.read(1) == bytes([_END_MARK])
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

    Where no file has a step in its name, it is the file `link_name`, whose step only its content knows.
    """
    step_paths = numbered_pickles(directory, prefix)
    for step, path in reversed(step_paths):
        if (max_step is None or step <= max_step) and is_whole_pickle(path):
            return path, step
    link = directory / link_name
    return (link, None) if not step_paths and link.is_file() and is_whole_pickle(link) else None
