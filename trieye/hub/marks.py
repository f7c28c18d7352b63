"""Structs that the ledger stores in the journal besides events, and FlushedPosition."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import msgspec
from pydantic import ValidationError

from trieye.config import StatsConfig
from trieye.hub.supersession import Continuation, Opening
from trieye.renames import current_config

_encode = msgspec.msgpack.Encoder().encode


class _Stored(msgspec.Struct, frozen=True):
    def to_bytes(self) -> bytes:
        """Encode the object for `from_bytes`."""
        return _encode(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Decode an object that `to_bytes` encoded."""
        return msgspec.msgpack.decode(data, type=cls)


class FlushMarker(_Stored, frozen=True, omit_defaults=True):
    """Journal entry that moves all queued events into windows and closes complete windows.

    Attributes:
        step: The highest completed step; None: the step before each metric's highest step.
        force: Close incomplete windows, too.
        ingest_only: Close no window.
        index: Index of the first item that this or a later entry produces, so that items retain their indices if the
            journal loses earlier entries; -1 in journals of earlier versions.
    """

    step: int | None = None
    force: bool = False
    ingest_only: bool = False
    index: int = -1


class FlushedPosition(NamedTuple):
    """A journal position at which the queue was empty: all events accepted before are in windows.

    Attributes:
        pos: The position.
        num_accepted: Events accepted up to the position, over all attempts.
        num_bytes: Bytes of the entries up to the position that no snapshot covers.
    """

    pos: int
    num_accepted: int
    num_bytes: int


class LedgerState(_Stored, frozen=True):
    """State of the ledger at a position of the journal.

    Attributes:
        aggregator: `Aggregator.to_state()`.
        pending: Kind and payload of entries with events that are not in a window yet.
        num_accepted: Events accepted up to the position, over all attempts, without pending ones.
        num_processed: Events moved into windows.
        continuation: Decisions about older points; None: the attempt supersedes no points.
    """

    aggregator: dict[str, Any]
    pending: list[tuple[str, bytes]]
    num_accepted: int
    num_processed: int
    continuation: Continuation | None = None


def pack_state(state: Mapping[str, Any]) -> bytes:
    """Encode the state of a hub for `unpack_state`: plain data, with parts that `packed` may have encoded."""
    return _encode(state)


def packed(data: Any) -> msgspec.Raw:
    """Encode plain data in advance, as bytes that `to_bytes` and `pack_state` insert unchanged."""
    return msgspec.Raw(_encode(data))


def unpack_state(data: bytes) -> Mapping[str, Any]:
    """Decode a state that `pack_state` encoded; raises `msgspec.MsgspecError` for other bytes."""
    return msgspec.msgpack.decode(data, type=dict[str, Any])


def position_of(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the position of a checkpoint: history `index`, journal time `at`, `attempt`, `run`, `superseded`."""
    position: Mapping[str, Any] = state.get("journal", {})
    return position


class AttemptMark(_Stored, frozen=True):
    """Start of an attempt, as positions in the journal and the history.

    Attributes:
        number: Number of the attempt.
        pos: Last position of the journal before the attempt.
        index: Index of the attempt's first item in the history.
        at: Journal time in seconds.
        started: Unix time in seconds.
        elapsed: Age of the run in seconds at the start of the attempt.
        decided: Whether the journal may delete the attempt's first events: its starting state is determined, or the
            events need too much space.
        resumed: Whether the starting state of the attempt, a checkpoint or the start of the run, is determined.
        config: The metrics, as JSON.
        run_id: Identity of the run.
        key: Key of the call that determined the starting state.
        dead: Index ranges that no checkpoint restores: the journal had lost them when the run resumed from one.
        openings: All openings of the run so far; empty: only this attempt's.
    """

    number: int
    pos: int
    index: int
    at: float
    started: float
    elapsed: float
    config: str
    decided: bool = True
    resumed: bool = False
    run_id: str = ""
    key: str = ""
    dead: tuple[tuple[int, int], ...] = ()
    openings: tuple[Opening, ...] = ()

    def after(self, last_mark: Self) -> Self:
        """Return this mark, made as for a first attempt, as the mark of the attempt after `last_mark`.

        The age of the run never decreases, even if the clock was set back between two attempts.
        """
        openings = last_mark.all_openings
        opening = Opening(max(self.number, openings[-1].number + 1), self.index, self.started)
        return msgspec.structs.replace(
            self,
            elapsed=max(self.elapsed, last_mark.elapsed + (self.at - last_mark.at)),
            decided=False,
            dead=last_mark.dead,
            openings=(*openings, opening),
        )

    @property
    def all_openings(self) -> tuple[Opening, ...]:
        """All openings of the run; the only one of a first attempt is not stored."""
        return self.openings or (Opening(self.number, self.index, self.started),)

    def opened_again(self, index: int, opened_at: float) -> Self:
        """Return the mark with another opening added, unless the last opening has no items yet."""
        openings = self.all_openings
        if openings[-1].index == index:
            return self
        opening = Opening(openings[-1].number + 1, index, opened_at, is_reopening=True)
        return msgspec.structs.replace(self, openings=(*openings, opening))

    def determined(self, **changes: Any) -> Self:
        """Return the mark with a determined starting state, and with other changes."""
        return msgspec.structs.replace(self, decided=True, resumed=True, **changes)

    def at_step(self, step: int | None) -> Self:
        """Return the mark with the step of the checkpoint that the last opening resumed from; None changes nothing."""
        *openings, last_opening = self.all_openings
        last_opening = last_opening if step is None else msgspec.structs.replace(last_opening, resumed_step=step)
        return msgspec.structs.replace(self, openings=(*openings, last_opening))

    def position(self, index: int, at: float, superseded_ranges: Sequence[tuple[int, int]]) -> dict[str, Any]:
        """Return the position of a checkpoint of this attempt, for `position_of`."""
        ranges = [list(indices) for indices in superseded_ranges]
        return {"index": index, "at": at, "attempt": self.number, "run": self.run_id, "superseded": ranges}

    def own_state(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a state, or an empty one if it belongs to another run."""
        return state if position_of(state).get("run", self.run_id) == self.run_id else {}

    def stats_config(self) -> StatsConfig | None:
        """Return the metrics config of the attempt; None if this version cannot read it."""
        try:
            return StatsConfig.model_validate(current_config({"stats": msgspec.json.decode(self.config)})["stats"])
        except (ValidationError, msgspec.DecodeError):
            return None
