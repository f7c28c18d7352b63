"""What of a mirror nobody needs any more."""

from collections.abc import Collection, Sequence

from trieye.mirror.layout import BUFFERS, CHECKPOINTS, COMMIT, HISTORY, PARTS, STATES, SavedName, StateMark
from trieye.mirror.local import LocalSave

_SAVES = (f"{CHECKPOINTS}/", f"{BUFFERS}/")


def surplus(
    keys: Collection[str],
    states: Sequence[StateMark],
    saves: Sequence[Sequence[LocalSave]],
    *,
    kept: Sequence[SavedName],
    parts_kept: Collection[str] | None,
) -> list[str]:
    """Return the keys to delete, in that order: a mark first, since what has none is not there.

    Args:
        keys: All that is there.
        states: The states that stay.
        saves: What the run has, checkpoints and buffers, each the oldest first.
        kept: What stays although the run does not have it.
        parts_kept: The parts of that; None: they are not known, and so every part stays.
    """
    directories = {state.directory for state in states}
    shared = {file.key for state in states for file in state.files.values()}
    gone = [key for key in keys if key.startswith(f"{STATES}/") and _directory(key) not in directories]
    gone += [key for key in keys if key.startswith(f"{HISTORY}/") and key not in shared]
    gone += _gone_saves(keys, saves, kept)
    if parts_kept is not None:
        gone += _gone_parts(keys, set(gone), saves, kept, parts_kept)
    return sorted(gone, key=lambda key: not key.endswith(f"/{COMMIT}"))


def _gone_saves(keys: Collection[str], saves: Sequence[Sequence[LocalSave]], kept: Sequence[SavedName]) -> list[str]:
    # of a checkpoint and its buffer, too: what is older goes when both are complete
    if not any(saves) or any(found and found[-1].saved.commit not in keys for found in saves):
        return []
    stay = {saved.key for saved in (*kept, *(save.saved for found in saves for save in found))}
    return [key for key in keys if key.startswith(_SAVES) and _directory(key) not in stay]


def _gone_parts(
    keys: Collection[str],
    gone: Collection[str],
    saves: Sequence[Sequence[LocalSave]],
    kept: Sequence[SavedName],
    parts_kept: Collection[str],
) -> list[str]:
    """Return the parts of no saved directory; none while there is one of which they are not known."""
    local = [save for found in saves for save in found]
    known = {saved.key for saved in (*kept, *(save.saved for save in local))}
    if not {_directory(key) for key in keys if key.startswith(_SAVES) and key not in gone} <= known:
        return []
    needed = set(parts_kept).union(*(save.parts for save in local))
    return [key for key in keys if key.startswith(f"{PARTS}/") and key not in needed]


def _directory(key: str) -> str:
    return "/".join(key.split("/")[:2])
