"""Where a fragment belongs: the streams of the workers, the present session, and what came too early."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from trieye.exceptions import ConfigurationError
from trieye.replay.fragments.fragment import FragmentMeta, Policy

Place = Literal["next", "gap", "restarted", "duplicate", "old_incarnation"]

_MAX_STREAMS = 1 << 16


Verdict = Literal["fits", "early", "stale", "wrong_session"]
_MAX_PAST = 1000
_Key = tuple[str, int, int]


@dataclass(slots=True)
class Stream:
    """What is known of one worker.

    Attributes:
        incarnation: The one that its newest fragment had.
        last_fid: Number of that fragment.
        arrived: When it came, in seconds of the buffer's clock.
        pending: Serial numbers of the fragments of the chunk being filled, consecutive up to `last_fid`.
    """

    incarnation: int
    last_fid: int
    arrived: float
    pending: list[int] = field(default_factory=list)


class Streams:
    """The newest fragment of each worker, and the chunk that it is filling.

    Of workers without a chunk under way only the newest 65 536 are remembered.
    """

    def __init__(self) -> None:
        self._streams: OrderedDict[str, Stream] = OrderedDict()  # in the order of their newest fragments
        self._partial: OrderedDict[str, Stream] = OrderedDict()  # those with pending fragments, in the same order

    @property
    def num_partial(self) -> int:
        """How many chunks are being filled."""
        return len(self._partial)

    def items(self) -> Iterator[tuple[str, Stream]]:
        """Yield worker and stream, the one that was silent longest first."""
        yield from self._streams.items()

    def place(self, meta: FragmentMeta) -> Place:
        """Return how a fragment continues its stream; the first one of an unknown worker is `next`."""
        stream = self._streams.get(meta.worker)
        if stream is None:
            return "next"
        if meta.incarnation != stream.incarnation:
            return "restarted" if meta.incarnation > stream.incarnation else "old_incarnation"
        if meta.fid <= stream.last_fid:
            return "duplicate"
        return "next" if meta.fid == stream.last_fid + 1 else "gap"

    def num_pending(self, meta: FragmentMeta) -> int:
        """Return how many fragments the chunk holds that this one would continue."""
        stream = self._streams.get(meta.worker)
        return len(stream.pending) if stream is not None and self.place(meta) == "next" else 0

    def advance(self, meta: FragmentMeta, now: float) -> list[int]:
        """Make this fragment the newest of its stream, and return the pending ones that it does not continue."""
        stream = self._streams.get(meta.worker)
        dropped = []
        if stream is None:
            stream = self._streams[meta.worker] = Stream(meta.incarnation, meta.fid, now)
        else:
            if self.place(meta) != "next":
                dropped = self.take(meta.worker)
            stream.incarnation, stream.last_fid, stream.arrived = meta.incarnation, meta.fid, now
        self._streams.move_to_end(meta.worker)
        if meta.worker in self._partial:
            self._partial.move_to_end(meta.worker)
        if len(self._streams) > _MAX_STREAMS:
            self._forget_one()
        return dropped

    def append(self, worker: str, serial: int) -> list[int]:
        """Add the newest fragment to the pending ones of its stream, and return all of those."""
        stream = self._streams[worker]
        stream.pending.append(serial)
        self._partial[worker] = stream
        return stream.pending

    def take(self, worker: str) -> list[int]:
        """Empty the chunk being filled, and return what it held."""
        stream = self._streams[worker]
        pending, stream.pending = stream.pending, []
        self._partial.pop(worker, None)
        return pending

    def take_all(self) -> list[int]:
        """Empty every chunk being filled, and return what they held."""
        return [serial for worker in list(self._partial) for serial in self.take(worker)]

    def take_silent(self, before: float) -> list[int]:
        """Empty the chunks of workers whose newest fragment came before that time, and return what they held."""
        taken: list[int] = []
        while self._partial:
            worker, stream = next(iter(self._partial.items()))
            if stream.arrived >= before:
                break
            taken += self.take(worker)
        return taken

    def take_oldest(self, apart_from: str) -> list[int]:
        """Empty the chunk of the worker that was silent longest, of all but one, and return what it held."""
        worker = next((worker for worker in self._partial if worker != apart_from), None)
        return [] if worker is None else self.take(worker)

    def keep_if(self, is_kept: Callable[[int], bool]) -> list[int]:
        """Cut every chunk being filled behind its last fragment that is not kept, and return what was cut."""
        cut: list[int] = []
        for worker, stream in list(self._partial.items()):
            start = max((place + 1 for place, serial in enumerate(stream.pending) if not is_kept(serial)), default=0)
            pending = stream.pending
            if start == len(pending):
                cut += self.take(worker)
            elif start:
                cut, stream.pending = cut + pending[:start], pending[start:]
        return cut

    def restore(self, worker: str, stream: Stream) -> None:
        """Put a stream back; the one that was silent longest first."""
        self._streams[worker] = stream
        if stream.pending:
            self._partial[worker] = stream

    def _forget_one(self) -> None:
        worker = next((worker for worker, stream in self._streams.items() if not stream.pending), None)
        if worker is not None:
            del self._streams[worker]


class Sessions:
    """The present session and version; before the first update the session is empty and the version -1."""

    def __init__(self, policy: Policy, max_staleness: int | None) -> None:
        self.policy = policy
        self._max_staleness = max_staleness
        self.session = ""
        self.version = -1
        self._past: dict[str, None] = {}  # sessions that were left, oldest first
        self._continued: dict[str, None] = {}  # sessions whose content the present one goes on with

    @property
    def lowest_version(self) -> int | None:
        """The lowest version that is fresh enough; None if every one is."""
        return None if self._max_staleness is None else self.version - self._max_staleness

    def is_fresh(self, version: int) -> bool:
        """Tell whether the version is recent enough."""
        return self._max_staleness is None or self.version - version <= self._max_staleness

    def judge(self, meta: FragmentMeta) -> Verdict:
        """Return what the session and version of a fragment mean now; one of an unknown session is early."""
        is_present = meta.session == self.session
        if not is_present and meta.session not in self._continued:
            return "wrong_session" if meta.session in self._past else "early"
        if meta.model_version > self.version:
            return "early" if is_present else "wrong_session"
        return "fits" if self.is_fresh(meta.model_version) else "stale"

    def check(self, session: str, version: int) -> None:
        """Check an announcement.

        Raises:
            ConfigurationError: The version is lower than one that this session had.
        """
        if session == self.session and version < self.version:
            raise ConfigurationError(
                f"set_version({session!r}, {version}): the session has version {self.version} already and versions "
                "only rise; a run that goes on from an older state needs a session name of its own"
            )

    def change(self, session: str, version: int) -> bool:
        """Take over a session and version, and tell whether what is held has to go."""
        is_other = session != self.session
        if is_other:
            self._continued[self.session] = None
            if self.policy == "discard":
                self._past |= self._continued
                self._continued = {}
            while len(self._past) > _MAX_PAST:
                del self._past[next(iter(self._past))]
        self.session, self.version = session, version
        return is_other and self.policy == "discard"

    def state_dict(self) -> dict[str, Any]:
        """Return everything but the policy, as plain data."""
        return {
            "session": self.session,
            "version": self.version,
            "past": list(self._past),
            "continued": list(self._continued),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        self.session, self.version = str(state["session"]), int(state["version"])
        self._past, self._continued = dict.fromkeys(state["past"]), dict.fromkeys(state["continued"])


@dataclass(frozen=True, slots=True)
class EarlyFragment:
    """One that waits.

    Attributes:
        serial: Its number in the table of payloads.
        meta: Where it comes from.
        arrived: When it came, in seconds of the buffer's clock.
    """

    serial: int
    meta: FragmentMeta
    arrived: float


class EarlyFragments:
    """Fragments in the order in which they came, each once."""

    def __init__(self) -> None:
        self._rows: OrderedDict[_Key, EarlyFragment] = OrderedDict()
        self._workers: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[EarlyFragment]:
        return iter(self._rows.values())

    def __contains__(self, meta: object) -> bool:
        return isinstance(meta, FragmentMeta) and _key(meta) in self._rows

    def has_worker(self, worker: str) -> bool:
        """Tell whether a fragment of this worker waits, so that later ones have to wait behind it."""
        return worker in self._workers

    def add(self, row: EarlyFragment) -> None:
        """Let a fragment wait."""
        self._rows[_key(row.meta)] = row
        self._workers[row.meta.worker] += 1

    def take_all(self) -> list[EarlyFragment]:
        """Return all, and let none wait."""
        rows = list(self._rows.values())
        self._rows.clear()
        self._workers.clear()
        return rows

    def take_oldest(self) -> EarlyFragment | None:
        """Return the one that waits longest, if there is one, and let it wait no more."""
        if not self._rows:
            return None
        row = next(iter(self))
        self._forget(row)
        return row

    def take_left(self, meta: FragmentMeta, session: str) -> list[EarlyFragment]:
        """Return those that the worker of a fragment made before it in other sessions, and let them wait no more."""
        if not self.has_worker(meta.worker):
            return []
        made = (meta.incarnation, meta.fid)
        taken = [
            row
            for (worker, *order), row in self._rows.items()
            if worker == meta.worker and tuple(order) < made and row.meta.session != session
        ]
        for row in taken:
            self._forget(row)
        return taken

    def take_before(self, time: float) -> list[EarlyFragment]:
        """Return those that came before that time, and let them wait no more."""
        taken: list[EarlyFragment] = []
        while self._rows and next(iter(self)).arrived < time:
            row = self.take_oldest()
            if row is not None:
                taken.append(row)
        return taken

    def _forget(self, row: EarlyFragment) -> None:
        del self._rows[_key(row.meta)]
        self._workers[row.meta.worker] -= 1
        if not self._workers[row.meta.worker]:
            del self._workers[row.meta.worker]


def _key(meta: FragmentMeta) -> _Key:
    return meta.worker, meta.incarnation, meta.fid
