"""Conversion of trieye 0.1.5's pickles into checkpoints of this version; `trieye convert` on the command line."""

import contextlib
import filecmp
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError

from trieye.checkpoints.legacy import numbered_pickles
from trieye.checkpoints.store import CheckpointStore
from trieye.compat.pickles import load_pickle
from trieye.compat.serializer import BufferData, CheckpointData, Serializer
from trieye.exceptions import ConfigurationError, SerializationError, UntrustedPickleError
from trieye.files.run_files import BUFFER_PREFIX, BUFFERS, CHECKPOINT_PREFIX, CHECKPOINTS, RUN_RECORD, step_in
from trieye.process.lock import RunLock

LATEST, BEST, BUFFER = "latest.pkl", "best.pkl", "buffer.pkl"


class Converted(NamedTuple):
    """A file of trieye 0.1.5.

    Attributes:
        path: The file, which stays.
        target: The new directory; None if there is none.
        reason: Why there is none.
    """

    path: Path
    target: Path | None
    reason: str = ""


def convert(source: Path, *, allow_pickle: bool | None = None, output: Path | None = None) -> Iterator[Converted]:
    """Convert a file, or the files of a run, and yield each one when that is done.

    A buffer without a step in its name gets the step of the newest checkpoint before it.

    Args:
        source: The file, or the directory of the run.
        allow_pickle: Read the pickles, which runs the code in them; None: as `TRIEYE_ALLOW_PICKLE` says.
        output: Directory for the new ones; None: next to the old ones.

    Raises:
        ConfigurationError: There is nothing to convert.
        RunLockedError: Another process writes to the run.
        UntrustedPickleError: Pickles were not allowed.
    """
    path = source.absolute()
    run_dir, files = (path.parent.parent, [(path, step_in(path.name))]) if path.is_file() else (path, _files_of(path))
    is_in_run = output is None and (run_dir / RUN_RECORD).is_file()
    with RunLock(run_dir / "run.lock") if is_in_run else contextlib.nullcontext():
        yield from _converted(files, Serializer(allow_pickle=allow_pickle), output)


def _converted(
    files: list[tuple[Path, int | None]], serializer: Serializer, output: Path | None
) -> Iterator[Converted]:
    newest = 0
    for path, step_in_name in files:
        try:
            data = _read(path, serializer)
            step = newest if step_in_name is None else step_in_name
            step = data.global_step if isinstance(data, CheckpointData) else step
            target = _save(path, data, step, serializer, output or path.parent)
        except UntrustedPickleError:
            raise
        except SerializationError as error:
            yield Converted(path, None, str(error))
        else:
            newest = max(newest, step) if isinstance(data, CheckpointData) else newest
            yield Converted(path, target)


def _files_of(run_dir: Path) -> list[tuple[Path, int | None]]:
    """Return the old files of a run, checkpoints first, with the steps in their names; the lowest step first."""
    checkpoints, buffers = run_dir / CHECKPOINTS, run_dir / BUFFERS
    step_paths = [*_numbered(checkpoints, CHECKPOINT_PREFIX, LATEST), *_numbered(buffers, BUFFER_PREFIX, BUFFER)]
    if not step_paths:
        raise ConfigurationError(
            f"run {run_dir.name!r}: there is nothing to convert: no {CHECKPOINT_PREFIX}<step>.pkl or {LATEST} in "
            f"{checkpoints}, and no {BUFFER_PREFIX}<step>.pkl or {BUFFER} in {buffers}"
        )
    return step_paths


def _numbered(directory: Path, prefix: str, link_name: str) -> list[tuple[Path, int | None]]:
    """Return the files with a step in their names; where there is none, the file that has the name of the link."""
    path_steps: list[tuple[Path, int | None]] = [(path, step) for step, path in numbered_pickles(directory, prefix)]
    link = directory / link_name
    return path_steps or ([(link, None)] if link.is_file() and not link.is_symlink() else [])


def _read(path: Path, serializer: Serializer) -> CheckpointData | BufferData:
    content = load_pickle(path, allow_pickle=serializer.allow_pickle)
    fields = dict(vars(content)) if isinstance(content, BaseModel) else content
    kind = BufferData if isinstance(fields, dict) and "buffer_list" in fields else CheckpointData
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise SerializationError(
            f"the file contains a {type(content).__name__}, which is neither a checkpoint nor a buffer of trieye 0.1.5"
        ) from error


def _save(path: Path, data: CheckpointData | BufferData, step: int, serializer: Serializer, directory: Path) -> Path:
    """Save the content of an old file and return the new directory, or the existing one of an earlier conversion."""
    prefix = CHECKPOINT_PREFIX if isinstance(data, CheckpointData) else BUFFER_PREFIX
    store = CheckpointStore(directory, prefix=prefix)
    saved_entries = store.entries()
    with path.open("rb") as file:
        metadata: dict[str, Any] = {
            "converted_from": path.name,
            "sha256": hashlib.file_digest(file, "sha256").hexdigest(),
        }
    if isinstance(data, CheckpointData):
        best_path = path.with_name(BEST)  # 0.1.5 copied the best checkpoint to this name
        is_best = best_path.is_file() and filecmp.cmp(path, best_path, shallow=False)
        metadata |= {"run_name": data.run_name, "is_best": is_best}
    if earlier_entry := next((entry for entry in saved_entries if entry.step == step), None):
        if earlier_entry.metadata.get("sha256") != metadata["sha256"]:
            raise SerializationError(f"{earlier_entry.path} comes from another file; use another --output")
        return earlier_entry.path
    if saved_entries and saved_entries[-1].step > step:  # it would count as the newest one
        raise SerializationError(
            f"{saved_entries[-1].path.name} has a later step; convert {path.name} to another directory with --output"
        )
    return store.save(step, serializer.encode(data, copy=False), metadata=metadata)
