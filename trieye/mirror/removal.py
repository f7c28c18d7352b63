"""Finds and deletes the objects of a mirror that belong to one run directory."""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from trieye.exceptions import SerializationError
from trieye.mirror.layout import (
    COMMIT,
    STATES,
    StateMark,
    objects_of_run,
    state_directory,
    states_in,
    whole_states,
)
from trieye.mirror.store import MirrorStore


class MirrorObjects(NamedTuple):
    """The objects below the prefix of a run.

    Attributes:
        sizes: Keys and bytes of the run's objects.
        foreign: Keys of all others, which are never deleted.
    """

    sizes: dict[str, int]
    foreign: list[str]


def owned_objects(store: MirrorStore, *, run_id: str, owners: Collection[str]) -> MirrorObjects | None:
    """Return the objects of a mirror; None if it has another owner or none.

    Args:
        store: The store of the run's mirror.
        run_id: Id of the run.
        owners: Tokens of the directory, one of which the newest complete state must contain; without a complete state,
            after an interrupted upload or deletion, the names of all states.

    Raises:
        ConnectionError: The mirror does not answer.
    """
    try:
        index = store.list()
    except FileNotFoundError:  # the bucket was deleted
        index = {}
    sizes = objects_of_run(index)
    objects = MirrorObjects(sizes, sorted(index.keys() - sizes.keys()))
    if not sizes:
        return objects
    for _, key in whole_states(sizes)[:1]:
        try:
            state = StateMark.from_bytes(store.read(key))
        except (SerializationError, FileNotFoundError):
            return None
        return objects if state.run_id == run_id and state.owner in owners else None
    states = states_in(sizes)
    own_names = {state_directory(generation, owner) for generation in states.values() for owner in owners}
    return objects if states and states.keys() <= own_names else None


def delete_objects(store: MirrorStore, keys: Mapping[str, int]) -> None:
    """Delete objects so that a partially deleted run is never restored, and a retry recognizes its owner.

    The markers of complete states are deleted first, and other files of states last.

    Raises:
        ConnectionError: The mirror does not answer.
    """
    for key in sorted(keys, key=lambda key: (not key.endswith(COMMIT), key.startswith(f"{STATES}/"))):
        store.delete(key)
