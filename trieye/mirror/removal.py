"""Find the objects of a mirror that belong to one directory, and delete them."""

from collections.abc import Mapping

from trieye.exceptions import SerializationError
from trieye.mirror.layout import COMMIT, StateMark, whole_states
from trieye.mirror.store import MirrorStore


def owned_objects(store: MirrorStore, *, run_id: str, owner: str) -> dict[str, int] | None:
    """Return keys and sizes of all objects, {} if there are none; None if the mirror names another owner or none.

    Args:
        store: The mirror, below it the run.
        run_id: Identity of the run.
        owner: Token of the directory, which the newest complete state has to name.

    Raises:
        ConnectionError: The mirror does not answer.
    """
    try:
        index = store.list()
    except FileNotFoundError:  # there is no such bucket any more
        return {}
    if not index:
        return {}
    for _, key in whole_states(index)[:1]:
        try:
            state = StateMark.from_bytes(store.read(key))
        except (SerializationError, FileNotFoundError):
            return None
        return index if (state.run_id, state.owner) == (run_id, owner) else None
    return None


def delete_objects(store: MirrorStore, keys: Mapping[str, int]) -> None:
    """Delete objects; the marks that make a state complete go first, so that nobody restores half a run.

    Raises:
        ConnectionError: The mirror does not answer.
    """
    for key in sorted(keys, key=lambda key: not key.endswith(COMMIT)):
        store.delete(key)
