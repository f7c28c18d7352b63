"""What the directory of a run, or a path given by the user, offers to load."""

import logging
import os
import re
from pathlib import Path

from trieye.config import PersistenceConfig
from trieye.exceptions import CheckpointError, ConfigurationError
from trieye.persistence.checkpoints import BUFFER_PREFIX, CHECKPOINT_PREFIX, CheckpointStore
from trieye.persistence.legacy import is_whole_pickle, newest_pickle
from trieye.persistence.manifest import MANIFEST_NAME, verify

logger = logging.getLogger(__name__)

Found = tuple[Path, int | None]
"""Where something lies, and its step; None where only the content of a 0.1.5 file knows it."""


def find_checkpoint(directory: Path, config: PersistenceConfig, *, read_only: bool = True) -> Found | None:
    """Return the newest whole checkpoint of the run in `directory` and its step.

    Raises:
        CheckpointError: There are some, and none is whole.
    """
    checkpoints = directory / config.checkpoint_save_dir_name
    entry = CheckpointStore(checkpoints, prefix=CHECKPOINT_PREFIX, read_only=read_only).latest()
    if entry is not None:
        return entry.path, entry.step
    return newest_pickle(checkpoints, CHECKPOINT_PREFIX, config.latest_checkpoint_filename)


def find_buffer(
    directory: Path, config: PersistenceConfig, max_step: int | None = None, *, read_only: bool = True
) -> Found | None:
    """Return the newest whole buffer of the run in `directory`, not newer than `max_step`, and its step.

    Raises:
        CheckpointError: There are some, and none is whole.
    """
    buffers = directory / config.buffer_save_dir_name
    entry = CheckpointStore(buffers, prefix=BUFFER_PREFIX, read_only=read_only).latest(max_step)
    if entry is not None:
        return entry.path, entry.step
    return newest_pickle(buffers, BUFFER_PREFIX, config.buffer_filename, max_step=max_step)


def locate(path: Path, config: PersistenceConfig, *, buffers: bool = False) -> Found | None:
    """Return the checkpoint or buffer that a path given by the user stands for, and its step; None if nothing is there.

    The path may be a saved directory or a link to one, a 0.1.5 file, a run's directory, or that of its checkpoints.

    Raises:
        CheckpointError: Something is there, and it is nothing whole of that kind.
    """
    real = path.resolve()
    if (real / MANIFEST_NAME).exists():
        return real, verify(real).step
    if real.is_file():
        if not is_whole_pickle(real):
            raise CheckpointError(f"{path} is neither a saved directory nor a whole file of trieye 0.1.5")
        return real, _step_in(real.name)
    if not real.is_dir():
        return None
    inside = {config.checkpoint_save_dir_name, config.buffer_save_dir_name}
    run_directory = real.parent if real.name in inside else real
    found = find_buffer(run_directory, config) if buffers else find_checkpoint(run_directory, config)
    if found is None:
        prefix = BUFFER_PREFIX if buffers else CHECKPOINT_PREFIX
        raise CheckpointError(f"{path} holds nothing to load: neither {MANIFEST_NAME} nor a directory {prefix}<step>")
    return found


def given_path(key: str, value: str, config: PersistenceConfig, *, strict: bool) -> Found | None:
    """Return what the path under a config key stands for, and its step.

    Raises:
        ConfigurationError: Nothing is there, and `strict` says that this is no mere warning.
        CheckpointError: Something is there, and it is nothing whole of that kind.
    """
    path = absolute(value, config)
    found = locate(path, config, buffers=key == "load_buffer_path")
    if found is None and strict:
        raise ConfigurationError(
            f"{key}={value!r} does not exist (looked for {path}); give a checkpoint directory, a run's directory or a "
            "file of trieye 0.1.5, or leave it null"
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
    path, step = found
    return path.name if step is None or str(step) in path.name else f"{path.name} of step {step}"


def _step_in(name: str) -> int | None:
    match = re.search(r"_step_(\d+)", name)
    return int(match[1]) if match else None
