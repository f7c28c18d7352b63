"""Finds and deletes the objects of a mirror that belong to one run directory."""

from collections.abc import Collection, Mapping

from trieye.exceptions import SerializationError
from trieye.mirror.layout import COMMIT, StateMark, whole_states
from trieye.mirror.store import MirrorStore


def owned_objects(store: MirrorStore, *, run_id: str, owners: Collection[str]) -> dict[str, int] | None:
    """Return keys and sizes of all objects, {} if there are none; None if the mirror has another owner or none.

    Args:
        store: The store of the run's mirror.
        run_id: Id of the run.
        owners: Tokens of the directory, one of which the newest complete state must contain.

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
        return index if state.run_id == run_id and state.owner in owners else None
    return None


def delete_objects(store: MirrorStore, keys: Mapping[str, int]) -> None:
    """Delete objects, the markers of complete states first, so that a partially deleted run is never restored.

    Raises:
        ConnectionError: The mirror does not answer.
    """
    for key in sorted(keys, key=lambda key: not key.endswith(COMMIT)):
        store.delete(key)
