"""What the directory of a run, or a path given by the user, offers to load."""

import logging
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

from trieye.config import PersistenceConfig
from trieye.config.locations import REFERENCE_FORMS
from trieye.exceptions import CheckpointError, ConfigurationError
from trieye.persistence.checkpoints import (
    BUFFER_PREFIX,
    CHECKPOINT_PREFIX,
    CheckpointEntry,
    CheckpointStore,
    Read,
    check,
    mode_of,
)
from trieye.persistence.legacy import is_whole_pickle, newest_pickle
from trieye.persistence.manifest import MANIFEST_NAME, read_manifest
from trieye.persistence.nodes import EncodedState

logger = logging.getLogger(__name__)

MAX_SHOWN = 10


class Found(NamedTuple):
    """Something that can be loaded.

    Attributes:
        path: Where it lies.
        step: Its step; None where only the content of a 0.1.5 file knows it.
        state: What is in it, if it was read to find out whether it is whole.
    """

    path: Path
    step: int | None
    state: EncodedState | None = None


def find_checkpoint(
    directory: Path, config: PersistenceConfig, *, read_only: bool = True, read: Read = check
) -> Found | None:
    """Return the newest whole checkpoint of the run in `directory` and its step.

    Raises:
        CheckpointError: There are some, and none is whole, or they are links.
    """
    folder, link_name = config.checkpoint_save_dir_name, config.latest_checkpoint_filename
    return _newest(directory / folder, CHECKPOINT_PREFIX, link_name, read_only=read_only, read=read)


def find_buffer(
    directory: Path,
    config: PersistenceConfig,
    max_step: int | None = None,
    *,
    read_only: bool = True,
    read: Read = check,
) -> Found | None:
    """Return the newest whole buffer of the run in `directory`, not newer than `max_step`, and its step.

    Raises:
        CheckpointError: There are some, and none is whole, or they are links.
    """
    folder, link_name = config.buffer_save_dir_name, config.buffer_filename
    return _newest(directory / folder, BUFFER_PREFIX, link_name, max_step, read_only=read_only, read=read)


def _newest(
    directory: Path, prefix: str, link_name: str, max_step: int | None = None, *, read_only: bool, read: Read
) -> Found | None:
    check_inside(directory, directory.parent)
    for link in (links := _links(directory, prefix)):
        logger.warning("%s is a link and is not used", link)
    try:
        entry = CheckpointStore(directory, prefix=prefix, read_only=read_only).latest(max_step, read=read)
    except CheckpointError as error:
        if not links:
            raise
        raise CheckpointError(
            f"{links[0]} is a link, which somebody else may have made, and is not followed; if you trust it, give "
            f"load_checkpoint_path={links[0].resolve()} to a new run ({error})"
        ) from error
    pickled = newest_pickle(directory, prefix, link_name, max_step=max_step)
    if pickled is not None:
        if entry is None:
            return Found(*pickled)
        _mention_newer(Found(*pickled), entry)
    return None if entry is None else Found(entry.path, entry.step, entry.state)


def check_inside(path: Path, parent: Path) -> None:
    """Make sure that a directory of a run is where it seems to be.

    Raises:
        CheckpointError: It is a link that leaves `parent`.
    """
    if path.is_symlink() and not path.resolve().is_relative_to(parent.resolve()):
        raise CheckpointError(
            f"{path} is a link to {path.resolve()}, outside of {parent}, and nothing is read there; let root_data_dir "
            "be a directory, or a link to one, that has room for all of the run"
        )


def _names(entries: list[CheckpointEntry]) -> str:
    return ", ".join(entry.path.name for entry in entries[:MAX_SHOWN])


def _links(directory: Path, prefix: str) -> list[Path]:
    return sorted(
        path
        for path in (directory.glob(f"{prefix}*") if directory.is_dir() else ())
        if path.is_symlink() and path.name.removeprefix(prefix).isdigit()
    )


def _mention_newer(pickled: Found, entry: CheckpointEntry) -> None:
    """Say that trieye 0.1.5 went on after this version, or `trieye convert`, had saved something."""
    path, step, _ = pickled
    if step is not None and step > entry.step and not path.with_suffix("").exists():
        logger.warning(
            "%s of trieye 0.1.5 has a higher step than %s and is not used; `trieye convert` makes it a checkpoint",
            path,
            entry.path.name,
        )


def called(
    directory: Path,
    which: Literal["best", "latest"] | int,
    config: PersistenceConfig,
    *,
    read_only: bool = True,
    read: Read = check,
) -> CheckpointEntry:
    """Return the best or newest whole checkpoint of the run in `directory`, or that of a step.

    Raises:
        ConfigurationError: There is none of that kind.
        CheckpointError: Those that there are are damaged.
    """
    store, entries, asked = _offered(directory, config, read_only=read_only)
    if isinstance(which, int):
        entry = _of_step(entries, which, asked)
        return replace(entry, state=read(entry.path))
    if which == "best":
        return _best(store, entries, asked, read)
    return store.latest(read=read) or entries[-1]  # it raises where none is whole


def check_called(directory: Path, which: Literal["best", "latest"] | int, config: PersistenceConfig) -> None:
    """Make sure that `called` will find something, as far as names tell; nothing is read or changed.

    Raises:
        ConfigurationError: There is none of that kind.
        CheckpointError: Those that there are are damaged.
    """
    store, entries, asked = _offered(directory, config, read_only=True)
    if isinstance(which, int):
        _of_step(entries, which, asked)
    elif which == "best":
        _ranked(store, entries, asked)


def _offered(
    directory: Path, config: PersistenceConfig, *, read_only: bool
) -> tuple[CheckpointStore, list[CheckpointEntry], str]:
    """Return the checkpoints of the run in `directory`, at least one, and how a message about them begins."""
    folder = directory / config.checkpoint_save_dir_name
    check_inside(folder, directory)
    store = CheckpointStore(folder, prefix=CHECKPOINT_PREFIX, read_only=read_only)
    entries = store.entries()
    asked = f"persistence.load_checkpoint_path={config.load_checkpoint_path}: run {directory.name!r}"
    if not entries and store.latest() is None:  # which raises if there are only damaged ones
        raise ConfigurationError(f"{asked} has no checkpoint{_about_pickles(folder, config)}")
    return store, entries, asked


def _about_pickles(folder: Path, config: PersistenceConfig) -> str:
    pickled = newest_pickle(folder, CHECKPOINT_PREFIX, config.latest_checkpoint_filename)
    return f" of this version; `trieye convert {folder.parent}` makes one of {pickled[0].name}" if pickled else ""


def _best(store: CheckpointStore, entries: list[CheckpointEntry], asked: str, read: Read) -> CheckpointEntry:
    ranked = _ranked(store, entries, asked)
    best = store.best(mode_of(entries), read=read)
    if best is None:
        raise CheckpointError(f"{asked} has no whole checkpoint that says how good it is: {_names(ranked)} are damaged")
    return best


def _ranked(store: CheckpointStore, entries: list[CheckpointEntry], asked: str) -> list[CheckpointEntry]:
    ranked = store.ranked(mode_of(entries))
    if not ranked:
        raise ConfigurationError(
            f"{asked} has no best checkpoint, since none says how good it is; give `objective` or `is_best` to the "
            f"save, or choose one: latest, step:{entries[-1].step}"
        )
    return ranked


def _of_step(entries: list[CheckpointEntry], step: int, asked: str) -> CheckpointEntry:
    for entry in entries:
        if entry.step == step:
            return entry
    steps = sorted((entry.step for entry in entries), key=lambda other: abs(other - step))
    shown = ", ".join(map(str, sorted(steps[:MAX_SHOWN]))) + (", ..." if len(steps) > MAX_SHOWN else "")
    raise ConfigurationError(f"{asked} has no checkpoint of step {step} (steps: {shown or 'none'})")


def locate(path: Path, config: PersistenceConfig, *, buffers: bool = False, read: Read = check) -> Found | None:
    """Return the checkpoint or buffer that a path given by the user stands for, and its step; None if nothing is there.

    The path may be a saved directory or a link to one, a 0.1.5 file, a run's directory, or that of its checkpoints.

    Raises:
        CheckpointError: Something is there, and it is nothing whole of that kind.
    """
    real = path.resolve()
    if (real / MANIFEST_NAME).exists():
        return Found(real, read_manifest(real).step, read(real))
    if real.is_file():
        if not is_whole_pickle(real):
            raise CheckpointError(f"{path} is neither a saved directory nor a whole file of trieye 0.1.5")
        return Found(real, _step_in(real.name))
    if not real.is_dir():
        return None
    inside = {config.checkpoint_save_dir_name, config.buffer_save_dir_name}
    run_directory = real.parent if real.name in inside else real
    find = find_buffer if buffers else find_checkpoint
    found = find(run_directory, config, read=read)
    if found is None:
        prefix = BUFFER_PREFIX if buffers else CHECKPOINT_PREFIX
        raise CheckpointError(f"{path} holds nothing to load: neither {MANIFEST_NAME} nor a directory {prefix}<step>")
    return found


def given_path(key: str, value: str, config: PersistenceConfig, *, strict: bool, read: Read = check) -> Found | None:
    """Return what the path under a config key stands for, and its step.

    Raises:
        ConfigurationError: Nothing is there, and `strict` says that this is no mere warning.
        CheckpointError: Something is there, and it is nothing whole of that kind.
    """
    path = absolute(value, config)
    found = locate(path, config, buffers=key == "load_buffer_path", read=read)
    if found is None and strict:
        forms = f", one of {REFERENCE_FORMS}," if key == "load_checkpoint_path" else ""
        raise ConfigurationError(
            f"{key}={value!r} does not exist (looked for {path}); give a checkpoint directory, a run's "
            f"directory{forms} or a file of trieye 0.1.5, or leave it null"
        )
    if found is None:
        logger.warning("%s=%r does not exist (looked for %s) and is ignored", key, value, path)
    return found


def absolute(path: str, config: PersistenceConfig) -> Path:
    """Return a path given in the config; a relative one belongs to where the config was made."""
    made_in = config._made_in  # noqa: SLF001 - as root_data_dir is resolved
    return Path(os.path.abspath(made_in / Path(path).expanduser()))  # noqa: PTH100 - links stay


def named(found: Found) -> str:
    """Return how a log line calls it: the name, with the step where the name lacks it."""
    path, step, _ = found
    return path.name if step is None or str(step) in path.name else f"{path.name} of step {step}"


def _step_in(name: str) -> int | None:
    match = re.search(r"_step_(\d+)", name)
    return int(match[1]) if match else None
