"""Rows as an `.npz` file: an array for each key, and the numbers of the episodes."""

import zipfile
import zlib
from pathlib import Path

import numpy as np

from trieye.exceptions import SerializationError
from trieye.replay.buffer import ReplayBuffer
from trieye.replay.exchange.apart import apart
from trieye.replay.exchange.scratch import replaced

EPISODE = "__episode__"
"""The name under which the numbers of the episodes are kept."""

# what NumPy and zipfile raise for bytes that are not what was written
_DAMAGE = (OSError, EOFError, ValueError, TypeError, LookupError, RuntimeError, zipfile.BadZipFile, zlib.error)


def export_npz(buffer: ReplayBuffer, path: str | Path) -> int:
    """Write the rows of a buffer, oldest first, as they were added; all of them are in memory a second time meanwhile.

    Args:
        buffer: The buffer.
        path: The file; an old one is replaced when the new one is whole.

    Returns:
        How many rows were written.

    Raises:
        OSError: The directory is missing or not writable, or the disk is full.
    """
    chunks = list(buffer.iter_rows())
    arrays = {key: np.concatenate([rows[key] for rows, _ in chunks]) for key in (chunks[0][0] if chunks else ())}
    episodes = np.concatenate([numbers for _, numbers in chunks]) if chunks else np.empty(0, np.int64)
    with replaced(Path(path)) as file:
        np.savez(file, allow_pickle=False, **{EPISODE: episodes, **arrays})
    return len(episodes)


def import_npz(buffer: ReplayBuffer, path: str | Path) -> int:
    """Add the rows of a file to a buffer; any `.npz` file will do whose arrays have a row for each transition.

    Args:
        buffer: Where the rows are added.
        path: The file. Its array `__episode__`, if there is one, tells rows of different episodes apart.

    Returns:
        How many rows were added.

    Raises:
        FileNotFoundError: There is no such file.
        SerializationError: It is damaged, or something else.
        ConfigurationError: Its arrays do not fit the buffer.
    """
    try:
        with Path(path).open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        raise
    except _DAMAGE as error:
        raise SerializationError(f"{path} is no whole .npz file of arrays ({error})") from error
    episodes = arrays.pop(EPISODE, None)
    with apart(buffer):
        return len(buffer.extend(arrays, episodes)) if arrays else 0
