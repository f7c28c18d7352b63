"""Streams: fragments of each worker in order, collected until they make a chunk."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from trieye.replay.fragments.fragment import FragmentMeta

Place = Literal["next", "gap", "restarted", "duplicate", "old_incarnation"]

_MAX_STREAMS = 1 << 16


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

    def __len__(self) -> int:
        return len(self._streams)

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
