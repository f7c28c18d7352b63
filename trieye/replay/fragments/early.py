"""EarlyFragments: those that came before their session or version was announced."""

from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from trieye.replay.fragments.fragment import FragmentMeta

_Key = tuple[str, int, int]


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
