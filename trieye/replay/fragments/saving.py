"""The saved form of a fragment buffer: groups of fragments that never change, and a state that says what is in them."""

import logging
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trieye.exceptions import ConfigurationError, SerializationError
from trieye.replay.fragments.content import Content
from trieye.replay.fragments.fragment import Fragment, FragmentMeta
from trieye.replay.fragments.payloads import PayloadSchema
from trieye.replay.fragments.pool import HeldChunk
from trieye.replay.fragments.streams import EarlyFragment, Stream
from trieye.replay.rows.schema import describe
from trieye.snapshot.parts import SavedParts

logger = logging.getLogger(__name__)

Serials = NDArray[np.int64]

_FORMAT = 1
_GROUP_BYTES = 64 << 20  # of a new group: small enough that it leaves as a whole now and then
_SMALL_BYTES, _MAX_SMALL = 8 << 20, 32


class SavedGroups:
    """Which fragments each saved group has.

    A group is written anew, with the fragments that are left of it, when more than half of them are gone; so are all
    small ones together when there are many. A fragment is thus written about twice, and a checkpoint takes at most
    twice the size of the content.
    """

    def __init__(self) -> None:
        self._serials: dict[str, Serials] = {}

    def plan(self, live: set[int], known: Collection[str], fragment_bytes: int) -> tuple[list[str], list[list[int]]]:
        """Return the names of the groups to keep, and the serial numbers of each group to write."""
        rests = {name: live.intersection(serials.tolist()) for name, serials in self._serials.items()}
        self._serials = {name: serials for name, serials in self._serials.items() if rests[name]}
        usable = [
            name for name, serials in self._serials.items() if name in known and 2 * len(rests[name]) >= len(serials)
        ]
        small = {name for name in usable if len(self._serials[name]) * fragment_bytes < _SMALL_BYTES}
        if len(small) > _MAX_SMALL:
            usable = [name for name in usable if name not in small]
        kept, covered = [], set[int]()
        for name in usable:
            if rests[name] - covered:
                kept.append(name)
                covered |= rests[name]
        missing = sorted(live - covered)
        size = max(_GROUP_BYTES // max(fragment_bytes, 1), 1)
        return kept, [missing[start : start + size] for start in range(0, len(missing), size)]

    def add(self, serials: Sequence[int]) -> str:
        """Give a group that is about to be written its name."""
        name = f"seg-{serials[0]}-{serials[-1] + 1}-{secrets.token_hex(4)}"
        self._serials[name] = np.array(serials, np.int64)
        return name

    def restore(self, serials: Mapping[str, Serials]) -> None:
        """Take over what `select` returned."""
        self._serials = {name: np.asarray(found, np.int64) for name, found in serials.items()}

    def select(self, names: Iterable[str]) -> dict[str, Serials]:
        """Return the serial numbers of some groups by name."""
        return {name: self._serials[name] for name in names}


def capture(
    content: Content, groups: SavedGroups, known: Collection[str], now: float
) -> tuple[dict[str, Any], tuple[str, ...], dict[str, list[int]]]:
    """Return the state, the names of the groups to keep, and the serial numbers of each new group by its name."""
    streams = list(content.streams.items())
    pending = [serial for _, stream in streams for serial in stream.pending]
    early = list(content.early)
    chunks = list(content.pool)
    serials = [*pending, *(row.serial for row in early), *(serial for chunk in chunks for serial in chunk.serials)]
    schema = content.schema
    kept, missing = groups.plan(set(serials), known, schema.size_bytes if schema else 0)
    new = {groups.add(found): found for found in missing}
    state = {
        "format": _FORMAT,
        "fragments_per_chunk": content.rules.fragments_per_chunk,
        "schema": None if schema is None else schema.spec,
        "next_serial": content.next_serial,
        "next_chunk": content.next_chunk,
        "top_priority": content.top_priority,
        "rng": content.rng.bit_generator.state,
        "sessions": content.sessions.state_dict(),
        "figures": content.figures.state_dict(),
        "limiter": None if content.limiter is None else content.limiter.state_dict(),
        "fragments": _fragment_table(content, serials),
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
            "places": _ints(content.pool.order()),
        },
        "groups": groups.select((*kept, *new)),
    }
    return state, tuple(kept), new


def stack_group(fragments: Sequence[Fragment]) -> dict[str, NDArray[Any]]:
    """Copy fragments into new arrays `[fragments, ...]` by key."""
    return {key: np.stack([fragment.data[key] for fragment in fragments]) for key in fragments[0].data}


def restore(
    content: Content, groups: SavedGroups, saved: SavedParts, *, now: float, schema: PayloadSchema | None
) -> None:
    """Fill an empty content with what was captured; its own rules then apply.

    Args:
        content: Made with the rules of the buffer.
        groups: Takes note of the groups.
        saved: What was captured.
        now: Seconds of the buffer's clock.
        schema: What the buffer had before, None if it never had a fragment.

    Fragments of damaged groups are left out where `saved.on_damage` allows it, with those that were to be in a chunk
    with them: said in the log, and counted as dropped because `damaged`.

    Raises:
        CheckpointError: A group is damaged, and that is refused.
        ConfigurationError: Chunks have another length, or fragments another schema.
        SerializationError: Something is missing.
    """
    state = saved.state
    _check(state, content, schema)
    try:
        content.schema = schema if state["schema"] is None else PayloadSchema.from_spec(state["schema"])
        content.next_serial, content.next_chunk = int(state["next_serial"]), int(state["next_chunk"])
        content.top_priority = float(state["top_priority"])
        content.sessions.load_state_dict(state["sessions"])
        content.figures.load_state_dict(state["figures"], now)
        lost, whole = _read_fragments(content, saved)
        groups.restore({name: state["groups"][name] for name in whole})
        _restore_streams(content, state, now, lost)
        lost_chunks = _restore_chunks(content, state["chunks"], lost)
        content.rng.bit_generator.state = state["rng"]
        if content.limiter is not None and state["limiter"] is not None:
            content.limiter.load_state_dict(state["limiter"])
            content.limiter.removed(lost_chunks)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise SerializationError(f"the saved fragment buffer is not whole: {error!r}") from error
    content.expire()


def _check(state: Any, content: Content, schema: PayloadSchema | None) -> None:
    if not isinstance(state, Mapping) or state.get("format") != _FORMAT or "fragments_per_chunk" not in state:
        raise SerializationError(f"this is no saved fragment buffer of format {_FORMAT}: {state!r:.80}")
    length, own = state["fragments_per_chunk"], content.rules.fragments_per_chunk
    if length != own:
        raise ConfigurationError(
            f"replay.fragments_per_chunk={own}, and the saved chunks have {length} fragments; set it to {length}"
        )
    if schema is not None and state.get("schema") is not None:
        found = PayloadSchema.from_spec(state["schema"])
        if found != schema:
            raise ConfigurationError(
                f"the saved fragments have {describe(found.columns)}, this buffer has {describe(schema.columns)}; load "
                "them into a new buffer"
            )


def _fragment_table(content: Content, serials: Sequence[int]) -> dict[str, Any]:
    metas = [content.payloads[serial].meta for serial in serials]
    workers = dict.fromkeys(meta.worker for meta in metas)
    sessions = dict.fromkeys(meta.session for meta in metas)
    worker_places = {worker: place for place, worker in enumerate(workers)}
    session_places = {session: place for place, session in enumerate(sessions)}
    return {
        "workers": list(workers),
        "sessions": list(sessions),
        "serial": _ints(serials),
        "worker": _ints(worker_places[meta.worker] for meta in metas),
        "session": _ints(session_places[meta.session] for meta in metas),
        "fid": _ints(meta.fid for meta in metas),
        "model_version": _ints(meta.model_version for meta in metas),
        "incarnation": _ints(meta.incarnation for meta in metas),
    }


def _read_fragments(content: Content, saved: SavedParts) -> tuple[set[int], list[str]]:
    """Read all groups; return the serial numbers of the fragments that are lost, and the names of the whole groups."""
    table, schema = saved.state["fragments"], content.schema
    columns = [table[key].tolist() for key in ("worker", "fid", "model_version", "session", "incarnation")]
    metas = {
        serial: FragmentMeta(table["workers"][worker], fid, version, table["sessions"][session], incarnation)
        for serial, worker, fid, version, session, incarnation in zip(table["serial"].tolist(), *columns, strict=True)
    }
    whole = []
    for name in saved.names:
        if (arrays := saved.whole(name)) is None:
            continue
        whole.append(name)
        for row, serial in enumerate(np.asarray(saved.state["groups"][name]).tolist()):
            if schema is None or serial not in metas or serial in content.payloads:
                continue
            data = schema.pack({key: array[row] for key, array in arrays.items()})
            content.payloads.put(serial, Fragment(metas[serial], data), schema.size_bytes)
    missing = {serial for serial in metas if serial not in content.payloads}
    if missing and len(whole) == len(saved.names):
        raise SerializationError(f"the saved fragment buffer is not whole: {len(missing)} fragments are in no part")
    return missing, whole


def _restore_streams(content: Content, state: Mapping[str, Any], now: float, lost: set[int]) -> None:
    streams, early = state["streams"], state["early"]
    ends = np.cumsum(streams["num_pending"]).tolist()
    for place, worker in enumerate(streams["worker"]):
        start = ends[place] - int(streams["num_pending"][place])
        pending = streams["pending"][start : ends[place]].tolist()
        # the fragments of a chunk follow each other: those after the last gap
        gap = max((index + 1 for index, serial in enumerate(pending) if serial in lost), default=0)
        content.payloads.drop(serial for serial in pending[:gap] if serial not in lost)
        content.streams.restore(
            worker,
            Stream(
                int(streams["incarnation"][place]),
                int(streams["last_fid"][place]),
                now - float(streams["age_s"][place]),
                pending[gap:],
            ),
        )
    for serial, age_s in zip(early["serial"].tolist(), early["age_s"].tolist(), strict=True):
        if serial not in lost:
            content.early.add(EarlyFragment(serial, content.payloads[serial].meta, now - age_s))


def _restore_chunks(content: Content, chunks: Mapping[str, Any], lost: set[int]) -> int:
    """Put back the chunks that are whole, and return how many are not."""
    num_lost = 0
    serials = chunks["serials"].reshape(-1, content.rules.fragments_per_chunk).tolist()
    columns = (chunks["id"].tolist(), serials, *(chunks[key].tolist() for key in ("version", "num_uses", "priority")))
    for chunk_id, found, version, num_uses, priority in zip(*columns, strict=True):
        if lost.isdisjoint(found):
            content.pool.add(HeldChunk(chunk_id, tuple(found), version, num_uses, priority, content.rank(found)))
        else:
            content.payloads.drop(serial for serial in found if serial not in lost)
            num_lost += 1
    if lost:
        logger.warning(
            "%d fragments of the replay are lost, as their files are damaged, and with them %d chunks: it goes on with "
            "the other %d",
            len(lost),
            num_lost,
            len(content.pool),
        )
        content.figures.dropped["damaged"] += len(lost)
    content.pool.restore(chunks["places"].tolist())
    content.apply_bounds()
    return num_lost


def _ints(values: Iterable[int]) -> Serials:
    return np.fromiter(values, np.int64)
