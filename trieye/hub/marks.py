"""What the ledger writes into the journal besides events: passes, its state, and the beginning of an attempt."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import msgspec
from pydantic import ValidationError

from trieye.config import StatsConfig
from trieye.hub.supersession import Continuation, Opening
from trieye.renames import current_config

_encode = msgspec.msgpack.Encoder().encode


class _Stored(msgspec.Struct, frozen=True):
    def to_bytes(self) -> bytes:
        """Return bytes from which `from_bytes` makes the same object."""
        return _encode(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return what `to_bytes` wrote."""
        return msgspec.msgpack.decode(data, type=cls)


class Pass(_Stored, frozen=True, omit_defaults=True):
    """One pass over what was accepted.

    Attributes:
        step: The step that is complete; None: the one before each metric's highest.
        force: Open windows are closed, too.
        ingest_only: None is closed.
        index: Index of the first item that it or a later record gives, so that items keep their indices when the
            journal loses records before it; -1 in journals of earlier versions.
    """

    step: int | None = None
    force: bool = False
    ingest_only: bool = False
    index: int = -1


class LedgerState(_Stored, frozen=True):
    """Everything that the ledger remembers at a position of the journal.

    Attributes:
        aggregator: `Aggregator.to_state()`.
        pending: Kind and payload of event records that are in no window yet.
        num_accepted: Events accepted before, over all attempts; those that are pending not counted.
        num_processed: Events put into windows.
        continuation: Which older points the attempt has superseded; None: it supersedes none.
    """

    aggregator: dict[str, Any]
    pending: list[tuple[str, bytes]]
    num_accepted: int
    num_processed: int
    continuation: Continuation | None = None


def pack_state(state: Mapping[str, Any]) -> bytes:
    """Return the state of a hub, plain data, some of it perhaps as `packed` returns it, as bytes for `unpack_state`."""
    return _encode(state)


def packed(data: Any) -> msgspec.Raw:
    """Return plain data as bytes that take their place in what `to_bytes` and `pack_state` encode."""
    return msgspec.Raw(_encode(data))


def unpack_state(data: bytes) -> Mapping[str, Any]:
    """Return what `pack_state` was given; raises `msgspec.MsgspecError` for other bytes."""
    return msgspec.msgpack.decode(data, type=dict[str, Any])


def place_of(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return where a checkpoint was made: `index` of the history, journal time `at`, `attempt`, `run`, `superseded`."""
    place: Mapping[str, Any] = state.get("journal", {})
    return place


class AttemptMark(_Stored, frozen=True):
    """Where an attempt began.

    Attributes:
        number: Number of the attempt.
        pos: Last position of the journal before it.
        index: Index of its first item of the history.
        at: Journal time in seconds.
        started: Unix time in seconds.
        elapsed: Seconds of the run's life before it.
        decided: Whether the journal may drop the attempt's first events: the hub knows from which state the attempt
            goes on, or the events are too many.
        resumed: Whether the hub knows from which state the attempt goes on.
        config: The metrics, as JSON.
        run_id: Identity of the run.
        key: Key of the call that said from which state the attempt goes on.
        dead: Indices that no checkpoint brings back: the journal had lost them when the run went on from a checkpoint.
        openings: All of them so far.
    """

    number: int
    pos: int
    index: int
    at: float
    started: float
    elapsed: float
    decided: bool
    resumed: bool
    config: str
    run_id: str = ""
    key: str = ""
    dead: tuple[tuple[int, int], ...] = ()
    openings: tuple[Opening, ...] = ()

    @classmethod
    def begin(  # noqa: PLR0913 - all of them are stored
        cls,
        number: int,
        *,
        run_id: str,
        pos: int,
        index: int,
        at: float,
        now: float,
        created: float,
        earlier: Self | None,
        config: StatsConfig,
    ) -> Self:
        """Return the mark of an attempt that begins.

        The life of the run never gets shorter: a clock that was set back between two attempts does not count.

        Args:
            number: Number of the attempt.
            run_id: Identity of the run.
            pos: Last position of the journal.
            index: End of the history.
            at: Journal time in seconds.
            now: Unix time in seconds.
            created: Unix time in seconds at which the run began.
            earlier: The attempt before.
            config: The metrics.
        """
        lived = 0.0 if earlier is None else earlier.elapsed + (at - earlier.at)
        openings = () if earlier is None else earlier.all_openings
        number_of_opening = max(number, openings[-1].number + 1 if openings else 1)
        return cls(
            number=number,
            pos=pos,
            index=index,
            at=at,
            started=now,
            elapsed=max(lived, now - created),
            decided=earlier is None,
            resumed=False,
            config=config.model_dump_json(),
            run_id=run_id,
            dead=() if earlier is None else earlier.dead,
            openings=(*openings, Opening(number_of_opening, index, now)),
        )

    @property
    def all_openings(self) -> tuple[Opening, ...]:
        """The openings so far; an earlier version knew only its own attempt."""
        return self.openings or (Opening(self.number, self.index, self.started),)

    def opened_again(self, index: int, now: float) -> Self:
        """Return the mark of an attempt in which another opening begins, unless the last one has no items yet."""
        openings = self.all_openings
        if openings[-1].index == index:
            return self
        return msgspec.structs.replace(self, openings=(*openings, Opening(openings[-1].number + 1, index, now)))

    def is_of(self, run_id: str, number: int) -> bool:
        """Tell whether this is the mark of an attempt."""
        return (self.run_id, self.number) == (run_id, number)

    def place(self, *, index: int, at: float, superseded: Sequence[tuple[int, int]]) -> dict[str, Any]:
        """Return where a checkpoint of this attempt is made, for `place_of`."""
        spans = [list(span) for span in superseded]
        return {"index": index, "at": at, "attempt": self.number, "run": self.run_id, "superseded": spans}

    def own(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a state, or an empty one if it is of another run."""
        return state if place_of(state).get("run", self.run_id) == self.run_id else {}

    def stats_config(self) -> StatsConfig | None:
        """Return the metrics of the attempt; None if this version cannot read them."""
        try:
            return StatsConfig.model_validate(current_config({"stats": msgspec.json.decode(self.config)})["stats"])
        except (ValidationError, msgspec.DecodeError):
            return None
