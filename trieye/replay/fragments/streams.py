"""The streams of workers, the current session, and fragments that arrived before their session or version."""

import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import Any, Literal

from trieye.exceptions import ConfigurationError
from trieye.replay.fragments.fragment import Fragment, FragmentMeta, Policy
from trieye.replay.fragments.payloads import uncount

Continuation = Literal["next", "gap", "restarted", "duplicate", "old_incarnation"]

Verdict = Literal["fits", "early", "stale", "wrong_session"]
_Key = tuple[str, int, int]


@dataclass(slots=True)
class Stream:
    """State of one worker's stream.

    Attributes:
        incarnation: Incarnation of its newest fragment.
        last_fid: Number of that fragment.
        arrived: Arrival time of that fragment, in seconds of the buffer's clock.
        pending: The fragments of the incomplete chunk, consecutive up to `last_fid`.
    """

    incarnation: int
    last_fid: int
    arrived: float
    pending: list[Fragment] = field(default_factory=list)


class Streams:
    """The newest fragment and the incomplete chunk of each worker."""

    def __init__(self) -> None:
        self._streams: OrderedDict[str, Stream] = OrderedDict()  # in arrival order of their newest fragments
        self._partial: OrderedDict[str, Stream] = OrderedDict()  # streams with pending fragments, in the same order

    @property
    def num_partial(self) -> int:
        """The number of incomplete chunks."""
        return len(self._partial)

    def items(self) -> Iterable[tuple[str, Stream]]:
        """Return the workers and their streams, the longest silent one first."""
        return self._streams.items()

    def classify(self, meta: FragmentMeta) -> Continuation:
        """Return how a fragment continues its stream; the first fragment of a new worker is `next`."""
        stream = self._streams.get(meta.worker)
        if stream is None:
            return "next"
        if meta.incarnation != stream.incarnation:
            return "restarted" if meta.incarnation > stream.incarnation else "old_incarnation"
        if meta.fid <= stream.last_fid:
            return "duplicate"
        return "next" if meta.fid == stream.last_fid + 1 else "gap"

    def num_pending(self, meta: FragmentMeta) -> int:
        """Return the size of the incomplete chunk that this fragment would extend."""
        stream = self._streams.get(meta.worker)
        return len(stream.pending) if stream is not None and self.classify(meta) == "next" else 0

    def advance(self, meta: FragmentMeta, now: float) -> list[Fragment]:
        """Make this fragment the newest of its stream, and return the pending fragments that it does not continue."""
        stream = self._streams.get(meta.worker)
        dropped_fragments = []
        if stream is None:
            stream = self._streams[meta.worker] = Stream(meta.incarnation, meta.fid, now)
        else:
            if self.classify(meta) != "next":
                dropped_fragments = self.take(meta.worker)
            stream.incarnation, stream.last_fid, stream.arrived = meta.incarnation, meta.fid, now
        self._streams.move_to_end(meta.worker)
        if meta.worker in self._partial:
            self._partial.move_to_end(meta.worker)
        return dropped_fragments

    def append(self, worker_id: str, fragment: Fragment) -> list[Fragment]:
        """Append the newest fragment to the pending ones of its stream, and return all pending ones."""
        stream = self._streams[worker_id]
        stream.pending.append(fragment)
        self._partial[worker_id] = stream
        return stream.pending

    def take(self, worker_id: str) -> list[Fragment]:
        """Remove and return the pending fragments of a worker."""
        stream = self._streams[worker_id]
        pending, stream.pending = stream.pending, []
        self._partial.pop(worker_id, None)
        return pending

    def take_all(self) -> list[Fragment]:
        """Remove and return the pending fragments of all workers."""
        return [fragment for worker_id in list(self._partial) for fragment in self.take(worker_id)]

    def take_silent(self, before: float) -> list[Fragment]:
        """Remove and return the pending fragments of workers whose newest fragment arrived before `before`."""
        silent_workers = list(takewhile(lambda worker_id: self._partial[worker_id].arrived < before, self._partial))
        return [fragment for worker_id in silent_workers for fragment in self.take(worker_id)]

    def take_longest_silent(self, apart_from: str) -> list[Fragment]:
        """Remove and return the pending fragments of the longest silent worker, excluding one."""
        worker_id = next((worker_id for worker_id in self._partial if worker_id != apart_from), None)
        return [] if worker_id is None else self.take(worker_id)

    def keep_if(self, is_usable: Callable[[Fragment], bool]) -> list[Fragment]:
        """Keep the pending fragments after the last unusable one of each chunk, and return the removed ones."""
        removed: list[Fragment] = []
        for worker_id, stream in list(self._partial.items()):
            start = max(
                (index + 1 for index, fragment in enumerate(stream.pending) if not is_usable(fragment)), default=0
            )
            removed += stream.pending[:start]
            del stream.pending[:start]
            if not stream.pending:
                del self._partial[worker_id]
        return removed

    def restore(self, worker_id: str, stream: Stream) -> None:
        """Restore a stream; call in order of silence, the longest silent first."""
        self._streams[worker_id] = stream
        if stream.pending:
            self._partial[worker_id] = stream


class Sessions:
    """The current session and version; initially "" and -1."""

    def __init__(self, policy: Policy, max_staleness: int | None) -> None:
        self.policy = policy
        self._max_staleness = math.inf if max_staleness is None else max_staleness
        self.session = ""
        self.version = -1
        self._past: dict[str, None] = {}  # discarded sessions, oldest first
        self._continued_sessions: dict[str, None] = {}  # earlier sessions whose content the current one retained

    @property
    def lowest_version(self) -> float:
        """The lowest version that is fresh enough; -inf without a bound."""
        return self.version - self._max_staleness

    def is_fresh(self, version: int) -> bool:
        """Return True if the version is recent enough."""
        return version >= self.lowest_version

    def judge(self, meta: FragmentMeta) -> Verdict:
        """Judge a fragment by its session and version; an unknown session is early."""
        is_current = meta.session == self.session
        if not is_current and meta.session not in self._continued_sessions:
            return "wrong_session" if meta.session in self._past else "early"
        if meta.model_version > self.version:
            return "early" if is_current else "wrong_session"
        return "fits" if self.is_fresh(meta.model_version) else "stale"

    def is_ahead(self, session: str, version: int) -> bool:
        """Return True if the session is unknown, or the current one with a higher version."""
        if session == self.session:
            return version > self.version
        return session not in self._past and session not in self._continued_sessions

    def change(self, session: str, version: int) -> bool:
        """Change session and version, and return whether the current content must be discarded.

        Raises:
            ConfigurationError: The session already had a higher version.
        """
        is_other = session != self.session
        if version < self.version and not is_other:
            raise ConfigurationError(
                f"set_version({session!r}, {version}): the session already has version {self.version}, and versions "
                "never decrease; a run that resumes from an older state needs a new session name"
            )
        if is_other:
            self._continued_sessions[self.session] = None
            if self.policy == "discard":
                self._past |= self._continued_sessions
                self._continued_sessions = {}
        self.session, self.version = session, version
        return is_other and self.policy == "discard"

    def state_dict(self) -> dict[str, Any]:
        """Return everything except the policy, as plain data."""
        return {
            "session": self.session,
            "version": self.version,
            "past": list(self._past),
            "continued": list(self._continued_sessions),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state."""
        self.session, self.version = str(state["session"]), int(state["version"])
        self._past, self._continued_sessions = dict.fromkeys(state["past"]), dict.fromkeys(state["continued"])


@dataclass(frozen=True, slots=True)
class EarlyFragment:
    """A fragment that waits for its session or version.

    Attributes:
        fragment: The fragment.
        arrived: Arrival time in seconds of the buffer's clock.
    """

    fragment: Fragment
    arrived: float

    @property
    def meta(self) -> FragmentMeta:
        """The fragment's origin."""
        return self.fragment.meta


class EarlyFragments:
    """Unique fragments in order of arrival."""

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
        """Return True if a fragment of this worker waits, so that its later fragments must queue behind it."""
        return worker in self._workers

    def add(self, row: EarlyFragment) -> None:
        """Add a waiting fragment."""
        self._rows[_key(row.meta)] = row
        self._workers[row.meta.worker] += 1

    def take_all(self) -> list[EarlyFragment]:
        """Remove and return all waiting fragments."""
        return self._take(self)

    def take_oldest(self) -> list[EarlyFragment]:
        """Remove and return the fragment that has waited longest, if any."""
        return self._take(islice(self, 1))

    def take_left(self, meta: FragmentMeta, session: str) -> list[EarlyFragment]:
        """Remove and return the worker's earlier fragments that belong to other sessions."""
        if not self.has_worker(meta.worker):
            return []
        return self._take(
            row
            for key, row in self._rows.items()
            if key[0] == meta.worker and key < _key(meta) and row.meta.session != session
        )

    def take_before(self, time: float) -> list[EarlyFragment]:
        """Remove and return the fragments that arrived before `time`."""
        return self._take(takewhile(lambda row: row.arrived < time, self))

    def _take(self, rows: Iterable[EarlyFragment]) -> list[EarlyFragment]:
        taken = list(rows)
        for row in taken:
            del self._rows[_key(row.meta)]
            uncount(self._workers, row.meta.worker)
        return taken


def _key(meta: FragmentMeta) -> _Key:
    return meta.worker, meta.incarnation, meta.fid
