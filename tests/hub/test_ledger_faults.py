"""A ledger under faults: a full disk, the death of its hub, a damaged journal, concurrent threads."""

import contextlib
import shutil
import sqlite3
import sys
import threading
from functools import partial

import numpy as np
import pytest

from tests.drop_in import training_state
from tests.hub.conftest import NOW, Hub, event, events_in, steps_of
from trieye.compat.actor_logic import ActorLogic
from trieye.config import MetricConfig
from trieye.exceptions import CheckpointError, JournalError, JournalFullError
from trieye.files.run_record import RunRecord
from trieye.hub.supersession import after_restore
from trieye.journal.journal import Journal
from trieye.stats.batch import EventRow
from trieye.stats.operations import LogParams, LogText


def fails(monkeypatch, name, *, error=JournalFullError, after=0, stores=False):
    """Let a method of the journal fail after `after` calls; if `stores`, it does its work before it fails."""
    real, calls = getattr(Journal, name), []

    def failing(self, *values, **named):
        calls.append(name)
        if len(calls) <= after:
            return real(self, *values, **named)
        if stores:
            real(self, *values, **named)
        raise error("injected")

    monkeypatch.setattr(Journal, name, failing)


# events that cannot be encoded


class Text(str):
    """A string of another type, as NumPy's are."""

    __slots__ = ()


@pytest.mark.parametrize("value", ["\ud800", np.str_("long"), Text("long")])
def test_a_text_in_a_context_does_not_affect_other_events(tmp_path, value):
    metric = MetricConfig(name="length", raw_event_name="loss", context_key="length", aggregation="mean")
    hub = Hub(tmp_path, [metric]).start()
    rows = [EventRow("loss", 1.0, 1, NOW, {"length": value}), EventRow("loss", 1.0, 2, NOW, {"length": 5})]
    hub.ledger.accept_rows(rows)
    hub.ledger.advance(force=True)
    assert steps_of(hub.points("length")) == [2]
    hub.die()


# entries that are stored although the call failed


@pytest.mark.parametrize("kind", ["events", "operation", "pass"])
def test_an_entry_stored_by_a_failed_call_counts_once(hub, monkeypatch, kind):
    hub.start()
    hub.log(1, name="every", client="a", seq=1)
    with monkeypatch.context() as patch:
        fails(patch, "append", error=JournalError, stores=True)
        with pytest.raises(JournalError):
            if kind == "events":
                hub.log(2, name="every", client="a", seq=2)
            elif kind == "operation":
                hub.ledger.record(LogText("note", 1, NOW, "here"), key="k")
            else:
                hub.ledger.advance(step=1)
    if kind == "events":
        assert not hub.log(2, name="every", client="a", seq=2)
    if kind == "operation":
        hub.ledger.record(LogText("note", 1, NOW, "here"), key="k")
    hub.log(3, name="every", client="a", seq=3 if kind == "events" else 2)
    hub.ledger.advance(force=True)
    live = hub.items()
    hub.ledger.snapshot()
    hub.die()
    hub.start(attempt=1)
    assert hub.items() == live
    assert steps_of(hub.points("every")) == ([1, 2, 3] if kind == "events" else [1, 3])
    assert sum(isinstance(item, LogText) for item in live) == (kind == "operation")


# a full disk


@pytest.mark.parametrize("method", ["append", "commit"])
def test_memory_and_journal_agree_after_a_full_disk(hub, monkeypatch, method):
    hub.start()
    hub.log(*range(1, 16))
    state = hub.ledger.to_state(5)
    hub.log(16, 17)
    hub.ledger.advance()
    hub.die()
    hub.start()
    hub.log(18)
    for after in range(3):
        for name, values, named in (
            ("accept_rows", [[EventRow("loss", 1.0, 19, NOW)]], {}),
            ("advance", [], {}),
            ("advance", [], {"force": True}),
            ("ingest", [], {}),
            ("snapshot", [], {}),
            ("to_state", [3], {}),
            ("record", [LogParams({"a": "1"})], {}),
            ("rewind", [state], {}),
            ("open_again", [partial(after_restore, step=10)], {"resumed_at": 10}),
            ("finish", [], {"force": True}),
        ):
            with monkeypatch.context() as patch, contextlib.suppress(JournalFullError):
                fails(patch, method, after=after)
                getattr(hub.ledger, name)(*values, **named)
            live, counts = hub.items(), hub.ledger.counts
            windows = hub.ledger.stats.to_state()
            hub.die()
            hub.start(attempt=hub.attempt)
            assert hub.items() == live
            assert hub.ledger.counts == counts
            assert hub.ledger.stats.to_state() == windows


# rewinds


def test_a_rewind_keeps_all_parameters_and_the_media_of_its_attempt(hub):
    hub.start()
    hub.log(1)
    state = hub.ledger.to_state(1)
    hub.ledger.record(LogParams({"net": "small"}))
    hub.ledger.record(LogText("note", 1, NOW, "of the dead branch"))
    hub.die()
    hub.start()
    hub.ledger.record(LogParams({"lr": "0.1"}))
    hub.ledger.record(LogText("note", 2, NOW, "of this attempt"))
    hub.ledger.rewind(state)
    hub.log(2)
    hub.ledger.advance(force=True)

    def operations():
        return [item for item in hub.items() if isinstance(item, LogText | LogParams)]

    expected = [LogParams({"net": "small"}), LogParams({"lr": "0.1"}), LogText("note", 2, NOW, "of this attempt")]
    assert operations() == expected
    live = hub.items()
    hub.die()
    hub.start(attempt=hub.attempt)
    assert hub.items() == live
    assert operations() == expected


def test_a_checkpoint_newer_than_a_truncated_journal_duplicates_no_points(hub, tmp_path):
    hub.start()
    hub.log(*range(1, 21), name="every")
    hub.ledger.advance(step=20)
    hub.ledger.snapshot()
    hub.die()
    shutil.copytree(tmp_path, tmp_path / "old", ignore=lambda *_: ["old"])
    hub.start(attempt=1)
    hub.log(*range(21, 101), name="every")
    state = hub.ledger.to_state(100)
    hub.die()
    for name in ("journal.db", "journal.db-wal", "journal.db-shm"):
        (tmp_path / name).unlink(missing_ok=True)
        if (tmp_path / "old" / name).exists():
            shutil.copy(tmp_path / "old" / name, tmp_path / name)
    hub.start()
    hub.log(101, 102, name="every")
    hub.ledger.advance(step=102)
    hub.ledger.rewind(state)
    hub.log(*range(103, 151), name="every")
    hub.ledger.advance(force=True)
    assert steps_of(hub.points("every")) == [*range(1, 21), *range(101, 151)]
    hub.die()
    hub.start()
    hub.ledger.rewind(state)
    hub.log(*range(101, 111), name="every")
    hub.ledger.advance(force=True)
    assert steps_of(hub.points("every")) == [*range(1, 21), *range(101, 111)]
    hub.die()
    hub.start(attempt=hub.attempt)
    assert steps_of(hub.points("every")) == [*range(1, 21), *range(101, 111)]


def lose_records(hub, first, last):
    with contextlib.closing(sqlite3.connect(hub.directory / "journal.db")) as connection, connection:
        connection.execute("DELETE FROM records WHERE pos BETWEEN ? AND ?", (first, last))


def test_a_rewind_supersedes_points_after_lost_entries(hub):
    hub.start()
    for step in range(1, 31):
        hub.log(step, name="every")
        hub.ledger.advance(step=step)
        if step == 20:
            state = hub.ledger.to_state(20)
            hub.ledger.record(LogText("note", 20, NOW, "dead branch"))
    hub.ledger.record(LogText("note", 30, NOW, "dead branch"))
    hub.die()
    lose_records(hub, 3, 22)
    hub.start()
    assert hub.journal.num_lost == 62  # all entries from the first lost entry on, since no snapshot follows
    assert steps_of(hub.points("every")) == [1]
    hub.ledger.rewind(state)
    hub.log(*range(21, 26), name="every")
    hub.ledger.advance(force=True)
    for _ in range(2):
        assert steps_of(hub.points("every")) == [1, *range(21, 26)]
        assert not any(isinstance(item, LogText) for item in hub.items())
        assert not hub.history.is_whole
        hub.die()
        hub.start(attempt=hub.attempt)
    hub.ledger.rewind(state)
    assert steps_of(hub.points("every")) == [1]  # also the second time, although new points use the lost indices


def test_stored_points_are_not_duplicated_if_all_snapshots_are_lost(hub):
    hub.start()
    for step in range(1, 31):
        hub.log(step, name="every")
        hub.ledger.advance(step=step)
        if step in {10, 20}:
            hub.ledger.snapshot()
    hub.die()
    with contextlib.closing(sqlite3.connect(hub.directory / "journal.db")) as connection, connection:
        connection.execute("DELETE FROM snapshots")
    hub.start(attempt=hub.attempt)
    hub.log(31, name="every")
    hub.ledger.advance(force=True)
    assert steps_of(hub.points("every")) == [*range(1, 32)]


@pytest.mark.parametrize("is_restart", [True, False])
def test_indices_delivered_to_a_sink_before_a_loss_are_not_reused(hub, tmp_path, is_restart):
    hub.start()
    hub.log(*range(1, 21), name="every")
    hub.ledger.advance(force=True)
    hub.ledger.snapshot()
    hub.die()
    backup = (tmp_path / "journal.db").read_bytes()
    hub.start(attempt=hub.attempt)
    hub.log(*range(21, 51), name="every")
    hub.ledger.advance(force=True)
    cursor = hub.history.end
    hub.journal.set_cursor("tensorboard", cursor, "place")
    hub.die()
    (tmp_path / "journal.db").write_bytes(backup)
    hub.start(attempt=1 if is_restart else 2)
    assert hub.journal.num_lost == 2
    hub.log(99, name="every")
    hub.ledger.advance(force=True)
    (item,) = hub.history.read(cursor, 100)[0]
    assert (item.metric, item.step) == ("every", 99)
    for _ in range(2):
        assert not hub.history.is_whole
        hub.die()
        hub.start()
    hub.history.set_superseded([(20, hub.history.end)])
    assert hub.history.is_whole


def test_a_rewind_repeated_after_a_hub_crash_is_applied_once(hub):
    hub.start()
    hub.log(1, 2, name="every")
    state = hub.ledger.to_state(2)
    hub.die()
    hub.start()
    hub.log(3, name="every")
    hub.ledger.rewind(state, key="call-1")
    hub.die()
    hub.start(attempt=hub.attempt)
    hub.log(4, name="every")
    assert hub.ledger.rewind(state, key="call-1") is None
    hub.ledger.advance(force=True)
    assert steps_of(hub.points("every")) == [1, 2, 3, 4]


# configs


def test_the_undeclared_setting_applies_to_the_events_of_its_attempt(tmp_path):
    hub = Hub(tmp_path, [MetricConfig(name="known")]).start()
    hub.log(1, 2, 3, name="unknown")
    hub.ledger.advance(force=True)
    logged = hub.points()
    hub.die()
    hub.undeclared = "drop"
    hub.start()
    assert hub.points() == logged
    hub.die()


# bounds


def test_the_journal_of_an_attempt_without_a_rewind_stays_small(hub, monkeypatch):
    monkeypatch.setattr("trieye.hub.ledger.MAX_UNDECIDED_BYTES", 1 << 20)
    hub.start()
    hub.log(1)
    hub.die()
    hub.start()
    sizes = []
    for number in range(40):
        hub.ledger.record(LogText("note", number, NOW, str(number % 10) * 200_000))
        hub.now += 11
        hub.ledger.compact()
        hub.history.roll(force=True)
        sizes.append(hub.journal.size_bytes)
    assert sizes[-1] < 4 << 20


# threads


@pytest.mark.long
def test_stats_can_be_read_while_new_names_are_added(hub):
    hub.start()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    done, errors = threading.Event(), []

    def read():
        while not done.is_set():
            try:
                hub.ledger.counts  # noqa: B018 - the test is about reading
                hub.ledger.read(lambda stats: (stats.highest_step, stats.late_by_metric))
            except RuntimeError as error:
                errors.append(error)
                return

    thread = threading.Thread(target=read)
    thread.start()
    try:
        for number in range(2000):
            hub.log(number, name=f"new/{number}")
        hub.ledger.advance(force=True)
    finally:
        done.set()
        thread.join()
        sys.setswitchinterval(interval)
    assert not errors
    assert events_in(hub.points("new/0")) == 1


# the whole hub

CALM = {"stats": {"processing_interval_seconds": 3600}}


@pytest.mark.parametrize(
    ("method", "error", "after"),
    [("append", JournalFullError, 2), ("set_meta", JournalFullError, 0), ("set_meta", JournalError, 0)],
)
def test_a_full_journal_or_a_status_that_cannot_be_published_prevents_no_checkpoint(
    open_logic, monkeypatch, method, error, after
):
    logic = open_logic(**CALM)
    with monkeypatch.context() as patch:
        fails(patch, method, error=error, after=after)
        logic.save_training_state(**training_state(1))
    assert logic.load_initial_state().checkpoint_data.global_step == 1


def test_a_failed_save_is_reported_even_if_the_journal_is_full(open_logic, monkeypatch):
    logic = open_logic(**CALM)
    with monkeypatch.context() as patch:
        fails(patch, "append", after=2)
        with pytest.raises(CheckpointError):
            logic.save_training_state(**training_state(1, nn_state_dict=5))
    assert logic.status.health()["save_failures"] == 1


def test_an_event_rejected_by_a_full_journal_is_not_counted_as_accepted(open_logic, monkeypatch):
    monkeypatch.setattr("trieye.hub.ledger.MAX_PENDING_EVENTS", 2)
    logic = open_logic(**CALM)
    logic.log_batch_events([event(step=1), event(step=2), event(step=3)])
    with monkeypatch.context() as patch:
        fails(patch, "append")
        with pytest.raises(JournalFullError):
            logic.log_event(event(step=4))
    logic.log_event(event(step=4))
    assert logic.status.health()["accepted"] == 4


def test_a_hub_that_fails_to_open_leaves_no_threads(make_config, monkeypatch):
    before = {thread.name for thread in threading.enumerate()}
    with monkeypatch.context() as patch:
        fails(patch, "append")
        with pytest.raises(JournalFullError):
            ActorLogic(make_config(sinks={"tensorboard": {"enabled": True}})).open()
    assert {thread.name for thread in threading.enumerate()} <= before


def test_a_late_sink_does_not_overwrite_the_run_record_of_a_newer_attempt(open_logic):
    first = open_logic(**CALM)
    first.shutdown()
    second = open_logic(**CALM)
    first.files.note_mlflow_run_id("late")
    assert RunRecord.read(second.files.paths.run_record_path).attempt == 2
