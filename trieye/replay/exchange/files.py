"""Imports and exports replay rows as `.npz` files, or as Parquet files, which are streamed in chunks."""

import json
import os
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from trieye.exceptions import SerializationError
from trieye.files.atomic import replacing
from trieye.replay.buffer import ReplayBuffer

EPISODE = "__episode__"
"""The name of the array or column of episode numbers."""

# errors of NumPy and zipfile for damaged files
_DAMAGE = (OSError, EOFError, ValueError, TypeError, LookupError, RuntimeError, zipfile.BadZipFile, zlib.error)
_METADATA = b"trieye.replay"
_CHUNK_BYTES = 64 << 20


@contextmanager
def separate_episodes(buffer: ReplayBuffer) -> Iterator[None]:
    """Start a new episode before and after the block, so that no episode spans its borders."""
    buffer.interrupt()
    try:
        yield
    finally:
        buffer.interrupt()


def export_npz(buffer: ReplayBuffer, path: str | Path) -> int:
    """Write the rows of a buffer in their original form, oldest first; needs memory for a second copy of them.

    Args:
        buffer: The buffer.
        path: The file; replaces an existing file atomically.

    Returns:
        The number of rows written.

    Raises:
        OSError: The directory is missing or not writable, or the disk is full.
    """
    chunks = list(buffer.iter_rows())
    arrays = {key: np.concatenate([rows[key] for rows, _ in chunks]) for key in (chunks[0][0] if chunks else ())}
    episodes = np.concatenate([numbers for _, numbers in chunks]) if chunks else np.empty(0, np.int64)
    # np.savez would clash with keys named like its arguments, and has no `allow_pickle` before NumPy 2.2
    with _replaced(Path(path)) as file, zipfile.ZipFile(file, "w") as archive:
        for key, array in {EPISODE: episodes, **arrays}.items():
            with archive.open(f"{key}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)
    return len(episodes)


def import_npz(buffer: ReplayBuffer, path: str | Path) -> int:
    """Add the rows of a file to a buffer; accepts any `.npz` file whose arrays have one row per transition.

    Args:
        buffer: The buffer that receives the rows.
        path: The file. Its array `__episode__`, if present, separates episodes.

    Returns:
        The number of rows added.

    Raises:
        FileNotFoundError: The file does not exist.
        SerializationError: The file is damaged or not an `.npz` file of arrays.
        ConfigurationError: Its arrays do not fit the buffer.
    """
    try:
        with Path(path).open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        raise
    except _DAMAGE as error:
        raise SerializationError(f"{path} is damaged or not an .npz file of arrays ({error})") from error
    episodes = arrays.pop(EPISODE, None)
    with separate_episodes(buffer):
        return len(buffer.extend(arrays, episodes)) if arrays else 0


def export_parquet(buffer: ReplayBuffer, path: str | Path) -> int:
    """Write the rows of a buffer in their original form, oldest first.

    Args:
        buffer: The buffer.
        path: The file; replaces an existing file atomically.

    Returns:
        The number of rows written.

    Raises:
        OSError: The directory is missing or not writable, or the disk is full.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    count, writer = 0, None
    with _replaced(Path(path)) as file:
        for rows, episodes in buffer.iter_rows(_rows_at_a_time(buffer)):
            names = [EPISODE, *rows]
            arrays = [pa.array(episodes), *(_as_arrow(array) for array in rows.values())]
            batch = pa.record_batch(arrays, names=names)
            if writer is None:
                specs = {key: [array.dtype.str, list(array.shape[1:])] for key, array in rows.items()}
                schema = batch.schema.with_metadata({_METADATA: json.dumps(specs).encode()})
                writer = pq.ParquetWriter(file, schema)
            writer.write_batch(batch.cast(writer.schema))
            count += len(episodes)
        if writer is None:
            writer = pq.ParquetWriter(file, pa.schema([pa.field(EPISODE, pa.int64())]))
        writer.close()
    return count


def import_parquet(buffer: ReplayBuffer, path: str | Path) -> int:
    """Add the rows of a file to a buffer; columns contain numbers, or lists of numbers of one length.

    Args:
        buffer: The buffer that receives the rows.
        path: The file. Its column `__episode__`, if present, separates episodes.

    Returns:
        The number of rows added.

    Raises:
        FileNotFoundError: The file does not exist.
        SerializationError: The file is damaged, or a column has an unsupported type.
        ConfigurationError: Its columns do not fit the buffer.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    count = 0
    try:
        with pq.ParquetFile(path) as file, separate_episodes(buffer):
            specs = json.loads((file.schema_arrow.metadata or {}).get(_METADATA, b"{}"))
            for group in range(file.num_row_groups):
                table = file.read_row_group(group)
                rows = {name: _as_numpy(table.column(name), specs.get(name), name) for name in table.column_names}
                episodes = rows.pop(EPISODE, None)
                if rows and table.num_rows:
                    count += len(buffer.extend(rows, episodes))
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, json.JSONDecodeError) as error:
        raise SerializationError(f"{path} is damaged or not a Parquet file ({error})") from error
    return count


def _rows_at_a_time(buffer: ReplayBuffer) -> int:
    stats = buffer.stats()
    return max(int(_CHUNK_BYTES // max(stats["size_bytes"] / stats["capacity"], 1)), 1)


def _as_arrow(array: NDArray[Any]) -> Any:
    import pyarrow as pa

    values = np.ascontiguousarray(array)
    if values.ndim == 1:
        return pa.array(values)
    length = int(np.prod(values.shape[1:]))
    if not length:  # Arrow has no empty lists of a fixed size
        return pa.ListArray.from_arrays(np.zeros(len(values) + 1, np.int32), pa.array(values.reshape(-1)))
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), length)


def _as_numpy(column: Any, spec: list[Any] | None, name: str) -> NDArray[Any]:
    import pyarrow as pa

    values, length = column.combine_chunks(), None
    if column.null_count:
        raise SerializationError(f"column {name!r} has {column.null_count} missing values; every row needs a value")
    if pa.types.is_list(values.type) or pa.types.is_large_list(values.type) or pa.types.is_fixed_size_list(values.type):
        count = len(values)
        values = values.flatten()
        length = len(values) // count if count else 0
        if length * count != len(values) or pa.types.is_nested(values.type):
            raise SerializationError(f"column {name!r} has nested lists or lists of different lengths")
    array: NDArray[Any] = values.to_numpy(zero_copy_only=False)
    if array.dtype.kind not in "biuf":
        raise SerializationError(f"column {name!r} has type {values.type}; expected numbers or lists of numbers")
    shape = () if length is None else (length,)
    if spec is not None:
        dtype, shape = np.dtype(spec[0]), tuple(spec[1])
        array = array.astype(dtype, copy=False)
    return array.reshape(len(column), *shape)


@contextmanager
def _replaced(path: Path) -> Iterator[BinaryIO]:
    """Open a binary file that replaces `path` when the block ends, and is removed if it fails."""
    with replacing(path) as scratch, scratch.open("xb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
