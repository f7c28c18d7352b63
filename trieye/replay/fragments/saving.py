"""Saves a fragment buffer incrementally: immutable groups of fragments, and a state that refers to them."""

import logging
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
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

Serials = NDArray[np.int64]

_FORMAT = 1
_GROUP_BYTES = 64 << 20  # of a new group: small enough for all its fragments to leave the buffer eventually
_SMALL_BYTES, _MAX_SMALL = 8 << 20, 32


class SavedGroups:
    """The fragments of each saved group.

    A group is rewritten with its remaining fragments when more than half of them are gone; many small groups are
    merged. A fragment is thus written about twice, and a checkpoint takes at most twice the size of the content.
    """

    def __init__(self) -> None:
        self._serials: dict[str, Serials] = {}

    def plan(
        self, live_serials: set[int], known_parts: Collection[str], fragment_bytes: int
    ) -> tuple[list[str], list[list[int]]]:
        """Return the names of the groups to reuse, and the serial numbers of each group to write."""
        remaining = {name: live_serials.intersection(serials.tolist()) for name, serials in self._serials.items()}
        self._serials = {name: serials for name, serials in self._serials.items() if remaining[name]}
        usable_names = [
            name
            for name, serials in self._serials.items()
            if name in known_parts and 2 * len(remaining[name]) >= len(serials)
        ]
        small_names = {name for name in usable_names if len(self._serials[name]) * fragment_bytes < _SMALL_BYTES}
        if len(small_names) > _MAX_SMALL:
            usable_names = [name for name in usable_names if name not in small_names]
        reused_names, covered_serials = [], set[int]()
        for name in usable_names:
            if remaining[name] - covered_serials:
                reused_names.append(name)
                covered_serials |= remaining[name]
        missing_serials = sorted(live_serials - covered_serials)
        size = max(_GROUP_BYTES // max(fragment_bytes, 1), 1)
        return reused_names, [missing_serials[start : start + size] for start in range(0, len(missing_serials), size)]

    def add(self, serials: Sequence[int]) -> str:
        """Name a group that is about to be written."""
        name = f"seg-{serials[0]}-{serials[-1] + 1}-{secrets.token_hex(4)}"
        self._serials[name] = np.array(serials, np.int64)
        return name

    def restore(self, serials: Mapping[str, Serials]) -> None:
        """Restore the result of `select`."""
        self._serials = {name: np.asarray(array, np.int64) for name, array in serials.items()}

    def select(self, names: Iterable[str]) -> dict[str, Serials]:
        """Return the serial numbers of some groups by name."""
        return {name: self._serials[name] for name in names}


def capture(
    fragments_state: FragmentState, groups: SavedGroups, known_parts: Collection[str], now: float
) -> tuple[dict[str, Any], tuple[str, ...], dict[str, list[int]]]:
    """Return the state, the names of the groups to reuse, and the serial numbers of each new group by name."""
    streams = list(fragments_state.streams.items())
    pending = [serial for _, stream in streams for serial in stream.pending]
    early = list(fragments_state.early)
    chunks = list(fragments_state.pool)
    serials = [*pending, *(row.serial for row in early), *(serial for chunk in chunks for serial in chunk.serials)]
    schema = fragments_state.schema
    reused_names, missing_groups = groups.plan(set(serials), known_parts, schema.size_bytes if schema else 0)
    new_groups = {groups.add(group): group for group in missing_groups}
    state = {
        "format": _FORMAT,
        "fragments_per_chunk": fragments_state.rules.fragments_per_chunk,
        "schema": None if schema is None else schema.spec,
        "next_serial": fragments_state.next_serial,
        "next_chunk": fragments_state.next_chunk,
        "top_priority": fragments_state.top_priority,
        "rng": fragments_state.rng.bit_generator.state,
        "sessions": fragments_state.sessions.state_dict(),
        "figures": fragments_state.figures.state_dict(),
        "limiter": None if fragments_state.limiter is None else fragments_state.limiter.state_dict(),
        "fragments": _fragment_table(fragments_state, serials),
        "streams": {
            "worker": [worker for worker, _ in streams],
            "incarnation": _ints(stream.incarnation for _, stream in streams),
            "last_fid": _ints(stream.last_fid for _, stream in streams),
            "age_s": np.array([now - stream.arrived for _, stream in streams], np.float64),
            "num_pending": _ints(len(stream.pending) for _, stream in streams),
            "pending": _ints(pending),
        },
        "early": {
            "serial": _ints(row.serial for row in early),
            "age_s": np.array([now - row.arrived for row in early], np.float64),
        },
        "chunks": {
            "id": _ints(chunk.id for chunk in chunks),
            "serials": _ints(serial for chunk in chunks for serial in chunk.serials),
            "version": _ints(chunk.version for chunk in chunks),
            "num_uses": _ints(chunk.num_uses for chunk in chunks),
            "priority": np.array([chunk.priority for chunk in chunks], np.float64),
            "places": _ints(fragments_state.pool.order()),
        },
        "groups": groups.select((*reused_names, *new_groups)),
    }
    return state, tuple(reused_names), new_groups


def stack_group(fragments: Sequence[Fragment]) -> dict[str, NDArray[Any]]:
    """Copy fragments into new arrays `[fragments, ...]` by key."""
    return {key: np.stack([fragment.data[key] for fragment in fragments]) for key in fragments[0].data}


def restore(
    fragments_state: FragmentState, groups: SavedGroups, saved: SavedParts, *, now: float, schema: PayloadSchema | None
) -> None:
    """Fill an empty state from a snapshot, then apply its own rules.

    Where `saved.on_damage` allows it, fragments of damaged groups are skipped together with the other fragments of
    their chunks. They are logged and counted as dropped with reason `damaged`.

    Args:
        fragments_state: A state with the rules of the buffer.
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
    _check(state, fragments_state, schema)
    try:
        fragments_state.schema = schema if state["schema"] is None else PayloadSchema.from_spec(state["schema"])
        fragments_state.next_serial, fragments_state.next_chunk = int(state["next_serial"]), int(state["next_chunk"])
        fragments_state.top_priority = float(state["top_priority"])
        fragments_state.sessions.load_state_dict(state["sessions"])
        fragments_state.figures.load_state_dict(state["figures"], now)
        lost, intact = _read_fragments(fragments_state, saved)
        groups.restore({name: state["groups"][name] for name in intact})
        _restore_streams(fragments_state, state, now, lost)
        lost_chunks = _restore_chunks(fragments_state, state["chunks"], lost)
        fragments_state.rng.bit_generator.state = state["rng"]
        if fragments_state.limiter is not None and state["limiter"] is not None:
            fragments_state.limiter.load_state_dict(state["limiter"])
            fragments_state.limiter.removed(lost_chunks)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise SerializationError(f"the saved fragment buffer is incomplete: {error!r}; {OTHER_CHECKPOINT}") from error


def _check(state: Any, fragments_state: FragmentState, schema: PayloadSchema | None) -> None:
    if not isinstance(state, Mapping) or state.get("format") != _FORMAT or "fragments_per_chunk" not in state:
        raise SerializationError(f"not a saved fragment buffer of format {_FORMAT}: {state!r:.80}")
    length, own_length = state["fragments_per_chunk"], fragments_state.rules.fragments_per_chunk
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


def _fragment_table(fragments_state: FragmentState, serials: Sequence[int]) -> dict[str, Any]:
    metas = [fragments_state.payloads[serial].meta for serial in serials]
    worker_indices = {worker: index for index, worker in enumerate(dict.fromkeys(meta.worker for meta in metas))}
    session_indices = {session: index for index, session in enumerate(dict.fromkeys(meta.session for meta in metas))}
    return {
        "workers": list(worker_indices),
        "sessions": list(session_indices),
        "serial": _ints(serials),
        "worker": _ints(worker_indices[meta.worker] for meta in metas),
        "session": _ints(session_indices[meta.session] for meta in metas),
        "fid": _ints(meta.fid for meta in metas),
        "model_version": _ints(meta.model_version for meta in metas),
        "incarnation": _ints(meta.incarnation for meta in metas),
    }


def _read_fragments(fragments_state: FragmentState, saved_parts: SavedParts) -> tuple[set[int], list[str]]:
    """Read all groups; return the serial numbers of lost fragments, and the names of the intact groups."""
    table, schema = saved_parts.state["fragments"], fragments_state.schema
    columns = [table[key].tolist() for key in ("worker", "fid", "model_version", "session", "incarnation")]
    metas = {
        serial: FragmentMeta(table["workers"][worker], fid, version, table["sessions"][session], incarnation)
        for serial, worker, fid, version, session, incarnation in zip(table["serial"].tolist(), *columns, strict=True)
    }
    intact_names = []
    for name in saved_parts.names:
        if (arrays := saved_parts.whole(name)) is None:
            continue
        intact_names.append(name)
        for row, serial in enumerate(np.asarray(saved_parts.state["groups"][name]).tolist()):
            if schema is None or serial not in metas or serial in fragments_state.payloads:
                continue
            data = schema.pack({key: array[row] for key, array in arrays.items()})
            fragments_state.payloads.put(serial, Fragment(metas[serial], data), schema.size_bytes)
    missing = {serial for serial in metas if serial not in fragments_state.payloads}
    if missing and len(intact_names) == len(saved_parts.names):
        raise SerializationError(
            f"the saved fragment buffer is incomplete: no part contains {len(missing)} fragments; {OTHER_CHECKPOINT}"
        )
    return missing, intact_names


def _restore_streams(fragments_state: FragmentState, state: Mapping[str, Any], now: float, lost: set[int]) -> None:
    streams, early = state["streams"], state["early"]
    ends = np.cumsum(streams["num_pending"]).tolist()
    for index, worker in enumerate(streams["worker"]):
        start = ends[index] - int(streams["num_pending"][index])
        pending = streams["pending"][start : ends[index]].tolist()
        # a chunk is consecutive, so only the fragments after the last gap are usable
        gap = max((position + 1 for position, serial in enumerate(pending) if serial in lost), default=0)
        fragments_state.payloads.drop(serial for serial in pending[:gap] if serial not in lost)
        fragments_state.streams.restore(
            worker,
            Stream(
                int(streams["incarnation"][index]),
                int(streams["last_fid"][index]),
                now - float(streams["age_s"][index]),
                pending[gap:],
            ),
        )
    for serial, age_s in zip(early["serial"].tolist(), early["age_s"].tolist(), strict=True):
        if serial not in lost:
            fragments_state.early.add(EarlyFragment(serial, fragments_state.payloads[serial].meta, now - age_s))


def _restore_chunks(fragments_state: FragmentState, chunks: Mapping[str, Any], lost: set[int]) -> int:
    """Restore the intact chunks, and return the number of the others."""
    num_lost = 0
    serials = chunks["serials"].reshape(-1, fragments_state.rules.fragments_per_chunk).tolist()
    columns = (chunks["id"].tolist(), serials, *(chunks[key].tolist() for key in ("version", "num_uses", "priority")))
    for chunk_id, members, version, num_uses, priority in zip(*columns, strict=True):
        if lost.isdisjoint(members):
            fragments_state.pool.add(
                StoredChunk(chunk_id, tuple(members), version, num_uses, priority, fragments_state.rank(members))
            )
        else:
            fragments_state.payloads.drop(serial for serial in members if serial not in lost)
            num_lost += 1
    if lost:
        logger.warning(
            "%d fragments of the replay are lost because their files are damaged, and %d chunks with them; continuing "
            "with the other %d chunks",
            len(lost),
            num_lost,
            len(fragments_state.pool),
        )
        fragments_state.figures.dropped["damaged"] += len(lost)
    fragments_state.pool.restore(chunks["places"].tolist())
    fragments_state.apply_bounds()
    return num_lost


def _ints(values: Iterable[int]) -> Serials:
    return np.fromiter(values, np.int64)
