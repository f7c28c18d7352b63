"""Saves a fragment buffer incrementally: immutable groups of fragments, and a state that refers to them."""

import logging
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trieye.exceptions import ConfigurationError, SerializationError
from trieye.replay.fragments.content import FragmentState
from trieye.replay.fragments.fragment import Fragment, FragmentMeta
from trieye.replay.fragments.payloads import PayloadSchema
from trieye.replay.fragments.pool import StoredChunk
from trieye.replay.fragments.streams import EarlyFragment, Stream
from trieye.replay.rows.schema import describe
from trieye.snapshot.nodes import OTHER_CHECKPOINT
from trieye.snapshot.parts import SavedParts

logger = logging.getLogger(__name__)

Ids = NDArray[np.int64]

_FORMAT = 2
_COUNTERS = ("next_fragment", "next_chunk", "top_priority")
_GROUP_BYTES = 64 << 20  # of a new group: small enough for all its fragments to leave the buffer eventually
_SMALL_BYTES, _MAX_SMALL = 8 << 20, 32


class SavedGroups:
    """The fragments of each saved group.

    A group is rewritten with its remaining fragments when more than half of them are gone; many small groups are
    merged. A fragment is thus written about twice, and a checkpoint takes at most twice the size of the content.

    Attributes:
        ids: The fragments of each group by its name.
    """

    def __init__(self) -> None:
        self.ids: dict[str, Ids] = {}

    def plan(
        self, live_ids: set[int], known_parts: Collection[str], fragment_bytes: int
    ) -> tuple[list[str], list[list[int]]]:
        """Return the names of the groups to reuse, and the ids of each group to write."""
        remaining = {name: live_ids.intersection(ids.tolist()) for name, ids in self.ids.items()}
        self.ids = {name: ids for name, ids in self.ids.items() if remaining[name]}
        usable_names = [
            name for name, ids in self.ids.items() if name in known_parts and 2 * len(remaining[name]) >= len(ids)
        ]
        small_names = {name for name in usable_names if len(self.ids[name]) * fragment_bytes < _SMALL_BYTES}
        if len(small_names) > _MAX_SMALL:
            usable_names = [name for name in usable_names if name not in small_names]
        reused_names, covered_ids = [], set[int]()
        for name in usable_names:
            if remaining[name] - covered_ids:
                reused_names.append(name)
                covered_ids |= remaining[name]
        missing_ids = sorted(live_ids - covered_ids)
        size = max(_GROUP_BYTES // max(fragment_bytes, 1), 1)
        return reused_names, [missing_ids[start : start + size] for start in range(0, len(missing_ids), size)]

    def add(self, ids: Sequence[int]) -> str:
        """Name a group that is about to be written."""
        name = f"seg-{ids[0]}-{ids[-1] + 1}-{secrets.token_hex(4)}"
        self.ids[name] = np.array(ids, np.int64)
        return name


def capture(
    content: FragmentState, groups: SavedGroups, known_parts: Collection[str], now: float
) -> tuple[dict[str, Any], tuple[str, ...], dict[str, list[Fragment]]]:
    """Return the state, the names of the groups to reuse, and the fragments of each new group by name."""
    workers, streams = [worker for worker, _ in content.streams.items()], [one for _, one in content.streams.items()]
    pending = [fragment for stream in streams for fragment in stream.pending]
    early, chunks, schema = list(content.early), content.pool.by_slot, content.schema
    in_chunks = [fragment for chunk in chunks for fragment in chunk.fragments]
    fragments = {one.id: one for one in (*pending, *(row.fragment for row in early), *in_chunks)}
    metas = [fragment.meta for fragment in fragments.values()]
    reused_names, missing_groups = groups.plan(set(fragments), known_parts, schema.size_bytes if schema else 0)
    new_groups = {groups.add(ids): [fragments[number] for number in ids] for ids in missing_groups}
    state = {
        "format": _FORMAT,
        "fragments_per_chunk": content.rules.fragments_per_chunk,
        "schema": None if schema is None else schema.spec,
        **{name: getattr(content, name) for name in _COUNTERS},
        "rng": content.rng.bit_generator.state,
        "sessions": content.sessions.state_dict(),
        "figures": content.figures.state_dict(),
        "limiter": None if content.limiter is None else content.limiter.state_dict(),
        "fragments": {
            "id": _ints(fragments),
            "worker": [meta.worker for meta in metas],
            "session": [meta.session for meta in metas],
            **_table(metas, "fid", "model_version", "incarnation"),
        },
        "streams": {
            "worker": workers,
            **_table(streams, "incarnation", "last_fid"),
            "age_s": np.array([now - stream.arrived for stream in streams]),
            "num_pending": _ints(len(stream.pending) for stream in streams),
            "pending": _ints(fragment.id for fragment in pending),
        },
        "early": {
            "id": _ints(row.fragment.id for row in early),
            "age_s": np.array([now - row.arrived for row in early]),
        },
        "chunks": {
            **_table(chunks, "id", "num_uses", "priority"),
            "fragments": _ints(fragment.id for fragment in in_chunks),
        },
        "groups": {name: groups.ids[name] for name in (*reused_names, *new_groups)},
    }
    return state, tuple(reused_names), new_groups


def stack_group(fragments: Sequence[Fragment]) -> dict[str, NDArray[Any]]:
    """Copy fragments into new arrays `[fragments, ...]` by key."""
    return {key: np.stack([fragment.data[key] for fragment in fragments]) for key in fragments[0].data}


def restore(
    content: FragmentState, groups: SavedGroups, saved: SavedParts, *, now: float, schema: PayloadSchema | None
) -> None:
    """Fill an empty state from a snapshot, then apply its own rules.

    Where `saved.on_damage` allows it, fragments of damaged groups are skipped together with the other fragments of
    their chunks. They are logged and counted as dropped with reason `damaged`.

    Args:
        content: A state with the rules of the buffer.
        groups: Receives the groups.
        saved: The snapshot.
        now: Seconds of the buffer's clock.
        schema: The buffer's current schema; None if it never had a fragment.

    Raises:
        CheckpointError: A group is damaged and `saved.on_damage` forbids skipping it.
        ConfigurationError: Chunks have another length, or fragments another schema.
        SerializationError: The snapshot is incomplete.
    """
    state = saved.state
    _check(state, content, schema)
    try:
        content.schema = schema if state["schema"] is None else PayloadSchema.from_spec(state["schema"])
        for name in _COUNTERS:
            setattr(content, name, state[name])
        content.sessions.load_state_dict(state["sessions"])
        content.figures.load_state_dict(state["figures"], now)
        fragments, intact = _read_fragments(content.schema, saved)
        groups.ids = {name: np.asarray(state["groups"][name], np.int64) for name in intact}
        _restore_streams(content, state, now, fragments)
        num_lost_chunks = _restore_chunks(content, state["chunks"], fragments)
        if num_lost := len(state["fragments"]["id"]) - len(fragments):
            logger.warning(
                "%d fragments of the replay are lost because their files are damaged, and %d chunks with them; "
                "continuing with the other %d chunks",
                num_lost,
                num_lost_chunks,
                len(content.pool),
            )
            content.figures.dropped["damaged"] += num_lost
        limiter = content.limiter
        if limiter is not None and state["limiter"] is not None:
            limiter.load_state_dict(state["limiter"])
            limiter.removed(num_lost_chunks)
        content.apply_bounds()  # counts the chunks that it removes in the limiter
        if limiter is not None and state["limiter"] is None:
            num_uses = sum(chunk.num_uses for chunk in content.pool)
            limiter.load_state_dict(limiter.initial_state_dict(len(content.pool), num_uses))
        content.rng.bit_generator.state = state["rng"]
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise SerializationError(f"the saved fragment buffer is incomplete: {error!r}; {OTHER_CHECKPOINT}") from error


def _check(state: Any, content: FragmentState, schema: PayloadSchema | None) -> None:
    if not isinstance(state, Mapping) or state.get("format") != _FORMAT or "fragments_per_chunk" not in state:
        raise SerializationError(f"not a saved fragment buffer of format {_FORMAT}: {state!r:.80}")
    length, own_length = state["fragments_per_chunk"], content.rules.fragments_per_chunk
    if length != own_length:
        raise ConfigurationError(
            f"replay.fragments_per_chunk={own_length}, but the saved chunks have {length} fragments; set it to {length}"
        )
    if schema is not None and state.get("schema") is not None:
        saved_schema = PayloadSchema.from_spec(state["schema"])
        if saved_schema.columns != schema.columns:
            raise ConfigurationError(
                f"the saved fragments have {describe(saved_schema.columns)}, this buffer has "
                f"{describe(schema.columns)}; load them into a new buffer"
            )


def _read_fragments(schema: PayloadSchema | None, saved: SavedParts) -> tuple[dict[int, Fragment], list[str]]:
    """Read all groups; return the intact fragments by id, and the names of the intact groups."""
    table, fragments, intact_names = saved.state["fragments"], dict[int, Fragment](), []
    columns = (table[key] for key in ("worker", "fid", "model_version", "session", "incarnation"))
    metas = {number: FragmentMeta(*values) for number, *values in zip(table["id"].tolist(), *columns, strict=True)}
    for name in saved.names:
        if (arrays := saved.whole(name)) is None:
            continue
        intact_names.append(name)
        for row, number in enumerate(np.asarray(saved.state["groups"][name]).tolist()):
            if schema is not None and number in metas and number not in fragments:
                data = schema.copied({key: array[row] for key, array in arrays.items()})
                fragments[number] = Fragment(metas[number], data, number)
    num_missing = len(metas) - len(fragments)
    if num_missing and len(intact_names) == len(saved.names):
        raise SerializationError(
            f"the saved fragment buffer is incomplete: no part contains {num_missing} fragments; {OTHER_CHECKPOINT}"
        )
    return fragments, intact_names


def _restore_streams(
    content: FragmentState, state: Mapping[str, Any], now: float, fragments: Mapping[int, Fragment]
) -> None:
    streams, early = state["streams"], state["early"]
    columns = (streams[key].tolist() for key in ("incarnation", "last_fid", "age_s"))
    members = np.split(streams["pending"], np.cumsum(streams["num_pending"], dtype=np.int64))
    for worker, incarnation, last_fid, age_s, ids in zip(streams["worker"], *columns, members[:-1], strict=True):
        # a chunk is consecutive, so only the fragments after the last gap are usable
        usable_ids = list(takewhile(fragments.__contains__, reversed(ids.tolist())))
        pending = [fragments[number] for number in reversed(usable_ids)]
        content.holders.hold(pending)
        content.streams.restore(worker, Stream(incarnation, last_fid, now - age_s, pending))
    for number, age_s in zip(early["id"].tolist(), early["age_s"].tolist(), strict=True):
        if number in fragments:
            content.holders.hold([fragments[number]])
            content.early.add(EarlyFragment(fragments[number], now - age_s))


def _restore_chunks(content: FragmentState, table: Mapping[str, Any], fragments: Mapping[int, Fragment]) -> int:
    """Restore the intact chunks, and return the number of the others."""
    members = table["fragments"].reshape(-1, content.rules.fragments_per_chunk).tolist()
    columns = (table[key].tolist() for key in ("num_uses", "priority"))
    chunks = [
        StoredChunk(chunk_id, tuple(fragments[number] for number in ids), num_uses, priority)
        for chunk_id, ids, num_uses, priority in zip(table["id"].tolist(), members, *columns, strict=True)
        if fragments.keys() >= set(ids)
    ]
    for chunk in chunks:
        content.holders.hold(chunk.fragments)
    content.pool.restore(chunks)
    return len(members) - len(chunks)


def _table(rows: Sequence[Any], *names: str) -> dict[str, NDArray[Any]]:
    """Return attributes of the rows as arrays by name."""
    return {name: np.array([getattr(row, name) for row in rows]) for name in names}


def _ints(values: Iterable[int]) -> Ids:
    return np.fromiter(values, np.int64)
