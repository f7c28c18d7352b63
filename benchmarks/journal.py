"""Journal throughput for batches of 100 events at each durability level, against a bare sqlite3 loop.

The bare loop inserts blobs into a table: no checksum, client id or sequence number, and only `process` durability.
Goal: with `process`, the default, at least 0.7 times the events/s of the bare loop.
"""

import json
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np

from trieye.journal.event_payloads import encode_events
from trieye.journal.journal import Durability, Journal
from trieye.stats.batch import EventBatch, EventRow

BATCH_EVENTS = 100
BATCHES = {"bare": 3_000, "process": 3_000, "interval": 3_000, "always": 200}
ROUNDS = 5
GOAL = 0.7


def payload() -> bytes:
    """Return a batch in the encoding that the hub appends."""
    rows = [EventRow(f"loss/{number % 4}", 0.5 * number, number // 4, 1e9 + number) for number in range(BATCH_EVENTS)]
    return encode_events(EventBatch.from_rows(rows))


def time_appends(append: Callable[[int], object], num_batches: int) -> dict[str, float]:
    """Return the throughput and latency of sequential appends."""
    latencies_ms = []
    start = time.perf_counter()
    for number in range(num_batches):
        called = time.perf_counter()
        append(number)
        latencies_ms.append((time.perf_counter() - called) * 1e3)
    elapsed = time.perf_counter() - start
    return {
        "events_per_s": num_batches * BATCH_EVENTS / elapsed,
        "p50_ms": float(np.percentile(latencies_ms, 50)),
        "p99_ms": float(np.percentile(latencies_ms, 99)),
    }


def bare(path: Path, blob: bytes) -> dict[str, float]:
    """Return the figures of a sqlite3 loop with one blob per transaction."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("CREATE TABLE batches (pos INTEGER PRIMARY KEY, payload BLOB)")
        insert = "INSERT INTO batches (payload) VALUES (?)"
        return time_appends(lambda _: connection.execute(insert, (blob,)), BATCHES["bare"])


def ours(path: Path, blob: bytes, durability: Durability) -> dict[str, float]:
    """Return the figures of the journal with numbered batches of one client."""
    with closing(Journal(path, durability=durability)) as journal:
        return time_appends(
            lambda number: journal.append("events", blob, at=0.1 * number, client="client", seq=number + 1),
            BATCHES[durability],
        )


def measure(directory: Path, blob: bytes) -> dict[str, dict[str, float]]:
    """Return the figures of one round over all sides."""
    figures = {"bare": bare(directory / "bare.db", blob)}
    durabilities: tuple[Durability, ...] = ("process", "interval", "always")
    for durability in durabilities:
        figures[durability] = ours(directory / f"{durability}.db", blob, durability)
    return figures


def main() -> None:
    """Print one JSON line."""
    blob = payload()
    rounds = []
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as directory:
            rounds.append(measure(Path(directory), blob))
    medians = {
        side: {name: round(statistics.median(figures[side][name] for figures in rounds), 3) for name in rounds[0][side]}
        for side in BATCHES
    }
    ratio = statistics.median(
        figures["process"]["events_per_s"] / figures["bare"]["events_per_s"] for figures in rounds
    )
    figures = {**medians, "ratio": round(ratio, 2), "batch_bytes": len(blob), "rounds": ROUNDS}
    print(json.dumps({"benchmark": "journal", **figures, "goal": f"ratio >= {GOAL}", "met": ratio >= GOAL}))


if __name__ == "__main__":
    main()
