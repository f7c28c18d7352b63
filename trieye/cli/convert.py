"""`trieye convert`: checkpoints of trieye 0.1.5 as checkpoints of this version.

Make checkpoints of the pickles of trieye 0.1.5: those of a run, RUN, or one file.

trieye 0.1.5 saved pickles, and reading a pickle runs whatever code it holds, so --allow-pickle says that you trust
where they come from. Classes in them must be importable: run it as `PYTHONPATH=. trieye convert ...` beside your code.
The old files stay as they are. The new ones lie beside them, or below --output.

Examples:
  trieye convert my_agent/run_20250102_030405 --allow-pickle
  trieye convert downloads/checkpoint_step_9.pkl --allow-pickle
"""

import argparse
import contextlib
import filecmp
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from trieye.checkpoints.legacy import is_whole_pickle, load_pickle, numbered_pickles
from trieye.checkpoints.serializer import BufferData, CheckpointData, Serializer
from trieye.checkpoints.store import CheckpointStore
from trieye.cli.arguments import add_run
from trieye.cli.output import print_json
from trieye.exceptions import ConfigurationError, SerializationError, UntrustedPickleError
from trieye.files.run_files import BUFFER_PREFIX, CHECKPOINT_PREFIX, RUN_RECORD, step_in
from trieye.process.lock import RunLock
from trieye.runs.checkpoint_rows import SAVED_DIRECTORIES
from trieye.runs.finding import run_directory

EXIT_FAILED = 1
LATEST, BEST, BUFFER = "latest.pkl", "best.pkl", "buffer.pkl"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    add_run(parser)
    parser.add_argument("--allow-pickle", action="store_true", help="read the pickles, which runs the code in them")
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help="directory for the new ones")


def run(options: argparse.Namespace) -> int:
    """Convert a file or what a run has, say what came of it, and return whether something was left out."""
    given = Path(options.run_name)
    if given.is_file():
        path = given.absolute()
        run_dir, found = path.parent.parent, [(path, step_in(path.name))]
    else:
        run_dir = run_directory(options.run_name, root=options.root, marks=(RUN_RECORD, *SAVED_DIRECTORIES))
        found = _files_of(run_dir)
    is_in_run = options.output is None and (run_dir / RUN_RECORD).is_file()
    with RunLock(run_dir / "run.lock") if is_in_run else contextlib.nullcontext():
        serializer = Serializer(allow_pickle=options.allow_pickle or None)
        converted, left_out = _convert(found, serializer, options.output, quiet=options.json)
    if options.json:
        done = [{"path": path, "checkpoint": checkpoint} for path, checkpoint in converted.items()]
        failed = [{"path": path, "reason": reason} for path, reason in left_out.items()]
        print_json("convert", {"converted": done, "left_out": failed})
    for path, reason in () if options.json else left_out.items():
        print(f"left out: {path}: {reason}", file=sys.stderr)
    return EXIT_FAILED if left_out else 0


def _files_of(run_dir: Path) -> list[tuple[Path, int | None]]:
    """Return the old files of a run, checkpoints first, with the steps in their names; the lowest step first."""
    checkpoints, buffers = (run_dir / name for name in SAVED_DIRECTORIES)
    found = [*_numbered(checkpoints, CHECKPOINT_PREFIX, LATEST), *_numbered(buffers, BUFFER_PREFIX, BUFFER)]
    if not found:
        raise ConfigurationError(
            f"run {run_dir.name!r}: there is nothing to convert: no {CHECKPOINT_PREFIX}<step>.pkl or {LATEST} in "
            f"{checkpoints}, and no {BUFFER_PREFIX}<step>.pkl or {BUFFER} in {buffers}"
        )
    return found


def _numbered(directory: Path, prefix: str, link_name: str) -> list[tuple[Path, int | None]]:
    """Return the files with a step in their names; where there is none, the file that has the name of the link."""
    found: list[tuple[Path, int | None]] = [(path, step) for step, path in numbered_pickles(directory, prefix)]
    link = directory / link_name
    return found or ([(link, None)] if link.is_file() and not link.is_symlink() else [])


def _convert(
    found: list[tuple[Path, int | None]], serializer: Serializer, output: Path | None, *, quiet: bool
) -> tuple[dict[Path, Path], dict[Path, str]]:
    """Convert old files; return the new checkpoint of each, and why the others cannot be converted.

    A buffer without a step in its name gets that of the newest checkpoint before it.
    """
    newest, converted, left_out = 0, dict[Path, Path](), dict[Path, str]()
    for path, step_in_name in found:
        try:
            data = _read(path, serializer)
            step = newest if step_in_name is None else step_in_name
            step = data.global_step if isinstance(data, CheckpointData) else step
            converted[path] = _save(path, data, step, serializer, output or path.parent)
            if not quiet:
                print(f"{path} -> {converted[path]}")
        except UntrustedPickleError:
            raise
        except SerializationError as error:
            left_out[path] = str(error)
        else:
            newest = max(newest, step) if isinstance(data, CheckpointData) else newest
    return converted, left_out


def _read(path: Path, serializer: Serializer) -> CheckpointData | BufferData:
    if not is_whole_pickle(path):
        raise SerializationError("it is cut short, as a process leaves it that is killed while it saves")
    held = load_pickle(path, allow_pickle=serializer.allow_pickle)
    fields = dict(vars(held)) if isinstance(held, BaseModel) else held
    kind = BufferData if isinstance(fields, dict) and "buffer_list" in fields else CheckpointData
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise SerializationError(
            f"it holds a {type(held).__name__}, and neither a checkpoint nor a buffer of trieye 0.1.5"
        ) from error


def _save(path: Path, data: CheckpointData | BufferData, step: int, serializer: Serializer, directory: Path) -> Path:
    """Save what an old file holds and return the new directory, or the one that is there already."""
    prefix = CHECKPOINT_PREFIX if isinstance(data, CheckpointData) else BUFFER_PREFIX
    store = CheckpointStore(directory, prefix=prefix)
    saved = store.entries()
    if any(entry.step == step for entry in saved):
        return store.path(step)
    if saved and saved[-1].step > step:  # it would count as the newest one
        raise SerializationError(f"{saved[-1].path.name} was saved since; convert it elsewhere, with --output")
    metadata: dict[str, Any] = {"converted_from": path.name}
    if isinstance(data, CheckpointData):
        best = path.with_name(BEST)  # 0.1.5 copied the best checkpoint to this name
        is_best = best.is_file() and filecmp.cmp(path, best, shallow=False)
        metadata |= {"run_name": data.run_name, "is_best": is_best}
    return store.save(step, serializer.encode(data, copy=False), metadata=metadata)
