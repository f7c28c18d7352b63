"""A history on disk and a plain list with its expected items, for the tests of all its parts."""

import itertools
import random

from trieye.history.history import History
from trieye.journal.journal import Journal, Snapshot
from trieye.journal.ranges import merged
from trieye.stats.operations import LogArtifact, LogHistogram, LogImage, LogParams, LogText, SetTags
from trieye.stats.point import Point

NOW = 1.8e9
TARGETS = [("mlflow", "tensorboard"), ("mlflow",), (), ("a,b", '"', "c\0d")]
EDGES = [0.0, -0.0, 5e-324, -1.7976931348623157e308, 1.0000000000000002, float("inf")]
STEPS = [0, 1, -1, (1 << 63) - 1, -(1 << 63), 1 << 53 | 1]


def point(number, *, metric="loss"):
    """Return a point that differs from the points of all other numbers."""
    return Point(metric, number * 0.1, number, NOW + number, ("mlflow", "tensorboard"), number + 1)


def points(first, end):
    return [point(number) for number in range(first, end)]


def random_items(rng, count):
    """Return points of all kinds, with some operations among them."""
    return [_operation(rng, number) if rng.random() < 0.05 else _point(rng, number) for number in range(count)]


def _point(rng, number):
    value = rng.choice(EDGES) if rng.random() < 0.1 else rng.gauss(0, 1e3)
    step = rng.choice(STEPS) if rng.random() < 0.1 else number
    metric = rng.choice(["loss", "été/\0 ", "a" * 300, "", f"m{number % 7}"])
    return Point(metric, value, step, NOW + rng.random(), rng.choice(TARGETS), rng.randrange(1 << 40))


def _operation(rng, number):
    name = f"n{number}"
    return rng.choice(
        [
            LogParams({"lr": name}),
            SetTags({"tag": name}),
            LogArtifact(f"/somewhere/{name}", None),
            LogHistogram(name, number, NOW, [0.0, 1.0, float("inf")], [3.0, 4.0], 1.0, 2.0),
            LogImage(name, number, NOW, 2, 2, 3, rng.randbytes(rng.choice([0, 10, 5000]))),
            LogText(name, number, NOW, "text \ud7ff" * rng.randrange(20)),
        ]
    )


def is_of_a_branch(item):
    return not isinstance(item, LogParams | SetTags | LogArtifact)


def exact(items):
    """Return representations that distinguish equal items: -0.0 and 0.0, 1 and 1.0."""
    return [repr(item) for item in items]


def drain(history, start=0, limit=1000):
    """Return all items that a reader receives from an index on."""
    received = []
    while start < history.end:
        items, after = history.read(start, limit)
        assert after > start
        assert len(items) <= limit
        received += items
        start = after
    return received


class Written:
    """A history that is opened, written and reopened, as by the hubs of a run."""

    def __init__(self, run_dir):
        self.run_dir = run_dir
        self.directory = run_dir / "history"
        self.items = []
        self.superseded = set()
        self.open()

    def open(self):
        self.journal = Journal(self.run_dir / "journal.db")
        self.history = History(self.journal, self.directory)
        return self

    def reopen(self):
        """Reopen as after a kill: the journal is replayed, and uncommitted items are appended again."""
        self.journal.close()
        self.open()
        self.history.append(self.items[self.history.end :])
        return self

    def append(self, items):
        self.items += items
        self.history.append(items)
        return self

    def commit(self, superseded=None):
        end = self.history.end
        self.journal.append("pass", b"", at=0.0)
        self.journal.commit(
            Snapshot(self.journal.last_pos, end, 0.0, b"state"),
            chunks=self.history.pending(),
            keep_after=self.journal.last_pos,
            superseded=superseded,
        )
        self.history.committed(end)
        return self

    def supersede(self, first, end):
        ranges = merged([*self.history.superseded_ranges, (first, end)])
        self.commit(ranges)
        self.history.set_superseded(ranges)
        self.superseded.update(range(first, end))
        return self

    def roll(self, *, force=True):
        self.history.roll(force=force)
        return self

    def segment(self, *items):
        """Write items into a new file."""
        return self.append(list(itertools.chain(*items))).commit().roll()

    def surviving(self, start=0):
        return [
            item
            for index, item in enumerate(self.items)
            if index >= start and not (index in self.superseded and is_of_a_branch(item))
        ]

    def lost_branch(self, end=None):
        """Return the superseded points before an index."""
        indices = sorted(index for index in self.superseded if end is None or index < end)
        return [self.items[index] for index in indices if isinstance(self.items[index], Point)]

    def files(self):
        return sorted(path.name for path in self.directory.iterdir()) if self.directory.exists() else []

    def path_of(self, number):
        """Return the file at a position in the order of the items."""
        segment = self.journal.segments()[number]
        return self.directory / segment.name

    def close(self):
        self.journal.close()


def seeded(seed):
    print(f"seed {seed}")  # noqa: T201 - makes a failing random test repeatable
    return random.Random(seed)
