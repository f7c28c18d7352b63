"""Paths of a config: can the run be written where it should be, and is there what it should start from."""

import difflib
import os
import tempfile
from pathlib import Path

from trieye.config.base import nearest
from trieye.config.locations import REFERENCE_FORMS, is_reference
from trieye.config.persistence import PersistenceConfig
from trieye.exceptions import ConfigurationError


def check_paths(persistence: PersistenceConfig) -> None:
    """Make sure that the paths of a config can be used; nothing is left behind.

    Raises:
        ConfigurationError: The run's directory cannot be written, or a file to start from does not exist.
    """
    _check_writable(persistence)
    for name in ("load_checkpoint_path", "load_buffer_path"):
        path = getattr(persistence, name)
        if path is not None and not is_reference(name, path):
            mistyped = _mistyped_reference(persistence) if name == "load_checkpoint_path" else None
            _check_exists(f"persistence.{name}", Path(path).expanduser(), mistyped=mistyped)
    for path in persistence.get_resume_roots().values():
        _check_exists("persistence.resume_dirs", path)


def _check_writable(persistence: PersistenceConfig) -> None:
    key = f"persistence.root_data_dir={persistence.root_data_dir}"
    advice = "choose a directory that you may write to"
    try:
        if "\0" in persistence.root_data_dir:
            raise ValueError("it holds a NUL byte")  # noqa: TRY301 - one message for all reasons
        existing = _nearest_existing(persistence.get_run_base_dir())
        if not existing.is_dir():
            raise ConfigurationError(f"{key}: {existing} is a file and no directory; {advice}")
        # asking for permissions is not enough: root may do everything, and still nothing can be made in /proc
        Path(tempfile.mkdtemp(prefix=".trieye_", dir=existing)).rmdir()
    except (OSError, ValueError) as error:
        if isinstance(error, ConfigurationError):
            raise
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigurationError(f"{key}: nothing can be written there ({reason}); {advice}") from error


def _nearest_existing(path: Path) -> Path:
    for candidate in (path, *path.parents):
        if os.path.lexists(candidate):
            return candidate
    return Path(path.anchor)


def _mistyped_reference(persistence: PersistenceConfig) -> str | None:
    """Return what to say of a word that is nearly a name of a checkpoint, as `bets` for `best`; None for a path."""
    typed = Path(persistence.load_checkpoint_path or "").expanduser()
    run, colon, word = typed.name.rpartition(":")
    match = nearest(word, ("best", "latest"))
    if match is None or typed.parent not in {persistence._made_in, Path()}:  # noqa: SLF001 - as root_data_dir is resolved
        return None
    meant = f"{run}{colon}{match}"
    return f"={typed.name}: there is no such checkpoint; did you mean {meant!r}? ({REFERENCE_FORMS}, or a path)"


def _check_exists(key: str, path: Path, *, mistyped: str | None = None) -> None:
    try:
        if path.exists():
            return
        parent = _nearest_existing(path.parent)
        known = sorted(entry.name for entry in parent.iterdir()) if parent.is_dir() else []
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{key}={path}: this path cannot be read ({error})") from error
    if mistyped is not None:
        raise ConfigurationError(f"{key}{mistyped}")
    wanted = path.relative_to(parent).parts[0] if path.is_relative_to(parent) else path.name
    match = difflib.get_close_matches(wanted, known, n=1)
    hint = (
        f"; did you mean {str(path).replace(str(parent / wanted), str(parent / match[0]), 1)!r}?"
        if match
        else f"; {parent} holds {_some(known)}"
    )
    raise ConfigurationError(f"{key}={path}: there is no such file or directory{hint}")


def _some(names: list[str]) -> str:
    most = 5
    return (", ".join(names[:most]) + (", ..." if len(names) > most else "")) or "nothing"
