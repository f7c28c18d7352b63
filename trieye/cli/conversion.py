"""Conversion: pickles of trieye 0.1.5 read once, with permission, and saved as this version saves."""

import filecmp
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from trieye.checkpoints.legacy import is_whole_pickle, load_pickle, numbered_pickles
from trieye.checkpoints.serializer import Serializer
from trieye.checkpoints.store import CheckpointStore
from trieye.exceptions import ConfigurationError, SerializationError, UntrustedPickleError
from trieye.files.run_files import BUFFER_PREFIX, BUFFERS, CHECKPOINT_PREFIX, CHECKPOINTS, step_in
from trieye.schemas import BufferData, CheckpointData

LATEST, BEST, BUFFER = "latest.pkl", "best.pkl", "buffer.pkl"


class Conversion:
    """Makes checkpoints and buffers of old files, which stay as they are.

    Args:
        allow_pickle: Whether the files may be read, which runs the code in them; None asks the environment.
        output: Directory for what is made; None: beside the old files.

    Attributes:
        made: New directories, by old file; those that were there already, too.
        left_out: Why nothing was made, by old file.
    """

    def __init__(self, *, allow_pickle: bool | None = None, output: Path | None = None) -> None:
        self.made: dict[Path, Path] = {}
        self.left_out: dict[Path, str] = {}
        self._serializer = Serializer(allow_pickle=allow_pickle)
        self._output = output

    def run(self, run_dir: Path) -> None:
        """Convert the checkpoints of a run, the oldest first, and its buffers.

        Raises:
            ConfigurationError: It has none of trieye 0.1.5.
            UntrustedPickleError: Pickles were not allowed.
        """
        checkpoints = _numbered(run_dir / CHECKPOINTS, CHECKPOINT_PREFIX, LATEST)
        buffers = _numbered(run_dir / BUFFERS, BUFFER_PREFIX, BUFFER)
        if not checkpoints and not buffers:
            raise ConfigurationError(
                f"run {run_dir.name!r}: there is nothing to convert: no {CHECKPOINT_PREFIX}<step>.pkl or {LATEST} in "
                f"{run_dir / CHECKPOINTS}, and no {BUFFER_PREFIX}<step>.pkl or {BUFFER} in {run_dir / BUFFERS}"
            )
        newest = -1
        for _, path in checkpoints:
            newest = max(newest, self._convert(path, None))
        for step, path in buffers:
            self._convert(path, step if step >= 0 else max(newest, 0))

    def file(self, path: Path) -> None:
        """Convert one file; a buffer gets the step in its name, or 0.

        Raises:
            UntrustedPickleError: Pickles were not allowed.
        """
        self._convert(path, step_in(path.name) or 0)

    def _convert(self, path: Path, buffer_step: int | None) -> int:
        """Convert one file and return the step of the checkpoint, -1 if it is none."""
        try:
            data = self._read(path)
            step = data.global_step if isinstance(data, CheckpointData) else buffer_step or 0
            self.made[path] = self._saved(path, data, step)
        except UntrustedPickleError:
            raise
        except SerializationError as error:
            self.left_out[path] = str(error)
            return -1
        return step if isinstance(data, CheckpointData) else -1

    def _read(self, path: Path) -> CheckpointData | BufferData:
        if not is_whole_pickle(path):
            raise SerializationError("it is cut short, as a process leaves it that is killed while it saves")
        held = load_pickle(path, allow_pickle=self._serializer.allow_pickle)
        fields = dict(vars(held)) if isinstance(held, BaseModel) else held
        kind = BufferData if isinstance(fields, dict) and "buffer_list" in fields else CheckpointData
        try:
            return kind.model_validate(fields)
        except ValidationError as error:
            raise SerializationError(
                f"it holds a {type(held).__name__}, and neither a checkpoint nor a buffer of trieye 0.1.5"
            ) from error

    def _saved(self, path: Path, data: CheckpointData | BufferData, step: int) -> Path:
        is_checkpoint = isinstance(data, CheckpointData)
        prefix = CHECKPOINT_PREFIX if is_checkpoint else BUFFER_PREFIX
        store = CheckpointStore(self._output or path.parent, prefix=prefix)
        saved = store.entries()
        if any(entry.step == step for entry in saved):
            return store.path(step)
        if saved and saved[-1].step > step:  # it would count as the newest one
            raise SerializationError(f"{saved[-1].path.name} was saved since; convert it elsewhere, with --output")
        metadata: dict[str, Any] = {"converted_from": path.name}
        if isinstance(data, CheckpointData):
            metadata |= {"run_name": data.run_name, "is_best": _is_best(path)}
        return store.save(step, self._serializer.encode(data, copy=False), metadata=metadata)


def _numbered(directory: Path, prefix: str, link_name: str) -> list[tuple[int, Path]]:
    """Return the old files with their steps, the lowest first; the link, as -1, where no file has a step."""
    link = directory / link_name
    return numbered_pickles(directory, prefix) or ([(-1, link)] if link.is_file() and not link.is_symlink() else [])


def _is_best(path: Path) -> bool:
    """Tell whether `best.pkl`, which 0.1.5 copied, is this one."""
    best = path.with_name(BEST)
    return best.is_file() and filecmp.cmp(path, best, shallow=False)
