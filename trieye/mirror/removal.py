"""Finds and deletes the objects of a mirror that belong to one run directory."""

from collections.abc import Mapping

from trieye.exceptions import SerializationError
from trieye.mirror.layout import COMMIT, StateMark, whole_states
from trieye.mirror.store import MirrorStore


def owned_objects(store: MirrorStore, *, run_id: str, owner: str) -> dict[str, int] | None:
    """Return keys and sizes of all objects, {} if there are none; None if the mirror has another owner or none.

    Args:
        store: The store of the run's mirror.
        run_id: Id of the run.
        owner: Token of the directory, which the newest complete state must contain.

    Raises:
        ConnectionError: The mirror does not answer.
    """
    try:
        index = store.list()
    except FileNotFoundError:  # the bucket was deleted
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
    """Delete objects, the markers of complete states first, so that a partially deleted run is never restored.

    Raises:
        ConnectionError: The mirror does not answer.
    """
    for key in sorted(keys, key=lambda key: not key.endswith(COMMIT)):
        store.delete(key)
