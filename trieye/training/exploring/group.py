"""ExplorerGroup: explorers that are told what to do, watched, and begun anew when they fail."""

import platform
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from trieye.config.explorer import ExplorerConfig
from trieye.exceptions import NonFiniteError, TrieyeError
from trieye.process.progress import say
from trieye.process.stopping import SAVE_PATIENCE_S, StopRequest
from trieye.training.exploring.explorer import GOOD_RUN, Grant, Report, Task
from trieye.training.exploring.places import Place, Worker

_LONGEST_PAUSE_S = 60.0
_REFUSED_EVERY_S = 10.0
PATIENCE_S = 20.0
"""How long an explorer waits for room before that is said."""

OVERDUE_S = 5.0
"""Seconds until a fragment is overdue if it takes `_UNUSUAL` times as long as others of its explorer, too."""

_UNUSUAL = 4.0
_FORGETS = 0.9
_CLOSE_STOPPED_S = 1.5
_POLL_S = 0.2
"""Seconds until a waiting learner notices a stop request; answers of explorers wake it at once."""


@dataclass(slots=True)
class Slot:
    """One explorer, whatever process it is by now.

    Attributes:
        index: Its number.
        worker: Where it is; None while it is away.
        machine: Name of the machine that it is on; None while it is away, or waits for room on a cluster.
        is_there: Whether it has answered; one that has not is told nothing.
        incarnation: How often it was begun anew.
        delivered: Fragments that were delivered over the whole run.
        granted: Fragments granted over the whole run, including lost ones.
        grants: Undelivered grants, the oldest first.
        early: Reports that arrived before the report of an older grant, by number.
        failures: In a row, with fewer than `GOOD_RUN` fragments between.
        num_good: Fragments since the last one.
        resumes_at: When it is begun anew, seconds of `time.monotonic`.
        error: Why it failed last.
        is_given_up: Whether it failed too often.
        client: The name of its writer, if it has one.
        state: With which it goes on when it begins.
        on_version: Fragments that it was told to begin with the newest version.
        asks_until: How long it waits for newer weights at most; None if it waits for none.
        began_at: When it began its oldest grant, or was begun itself.
        usual_s: The longest of its recent fragments, seconds; 0 before the first.
        is_overdue: Whether its oldest grant takes unusually long, so that it is no longer waited for.
    """

    index: int
    worker: Worker | None = None
    machine: str | None = None
    is_there: bool = False
    incarnation: int = 0
    delivered: int = 0
    granted: int = 0
    grants: deque[Grant] = field(default_factory=deque)
    early: dict[int, Report] = field(default_factory=dict)
    failures: int = 0
    num_good: int = 0
    resumes_at: float | None = None
    error: BaseException | None = None
    is_given_up: bool = False
    client: str | None = None
    state: Any = None
    on_version: tuple[int, int] = (-1, 0)
    asks_until: float | None = None
    began_at: float = 0.0
    usual_s: float = 0.0
    is_overdue: bool = False

    @property
    def is_awaited(self) -> bool:
        """Whether something has to come from it."""
        return bool(self.grants) or (self.machine is not None and not self.is_there)

    @property
    def has_no_room(self) -> bool:
        """Whether it waits for room on a machine, which may take until one comes."""
        return self.worker is not None and self.machine is None

    @property
    def produced(self) -> int:
        """Fragments that were delivered, and those under way."""
        return self.delivered + len(self.grants)

    @property
    def is_expected(self) -> bool:
        """Whether a fragment of it is under way that is worth waiting for."""
        return bool(self.grants) and not self.is_overdue

    @property
    def overdue_at(self) -> float:
        """When the current fragment becomes overdue, by `time.monotonic`."""
        if not self.usual_s:  # its first fragment, or its start, for which processes import for seconds
            return self.began_at + PATIENCE_S / 2
        return self.began_at + max(OVERDUE_S, _UNUSUAL * self.usual_s)


class ExplorerGroup:
    """Explorers, and a thread that hears what they say.

    The thread alone changes slots; it holds `lock` while it does, and whoever else looks at them holds it, too.

    Args:
        task: What explorers are made of.
        place: Where they run.
        config: How many, and what is done when they fail.
        deliver: Called with each report, those of an explorer in the order of collection; returns why the fragment is
            refused, empty if it is not.
        grant: Called whenever something changed; tells explorers what to do by `submit`.
        leave: Called with the name of the writer of an explorer that is gone.
        stop: Whether a stop was requested.

    Attributes:
        slots: The explorers.
        lock: Held while slots change, and while `deliver` and `grant` are called.
        restarts: How often an explorer was begun anew.
        lost: Fragments that were granted and never learned from: they never came, or were refused.
        interrupted: Episodes that were cut.
        fault: An error that restarting explorers cannot fix; None if there is none.
    """

    def __init__(
        self,
        task: Task,
        place: Place,
        config: ExplorerConfig,
        *,
        deliver: Callable[[Report], str],
        grant: Callable[[], None],
        leave: Callable[[str], None],
        stop: StopRequest | None = None,
    ) -> None:
        self._task, self._place, self._config = task, place, config
        self._stop = stop or StopRequest()
        self._deliver, self._grant, self._leave = deliver, grant, leave
        self.slots = [Slot(index) for index in range(config.num)]
        self.lock = threading.RLock()
        self.restarts = self.lost = self.interrupted = 0
        self.fault: BaseException | None = None
        self._refused: Counter[str] = Counter()
        self._tells_refused_at = 0.0
        self._has_delivered = self._is_closed = False
        self._has_moved, self._told_where = True, ""
        whole: Any = task.config
        self._is_in_step, self._env_id = whole.sync.style == "fixed", whole.env.id
        self._heard: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._listen, name="trieye-explorers", daemon=True)

    def start(self) -> None:
        """Begin all explorers, and listen to them."""
        with self.lock:
            for slot in self.slots:
                self._begin(slot)
        self._thread.start()

    @property
    def alive(self) -> list[Slot]:
        """The explorers that were not given up."""
        return [slot for slot in self.slots if not slot.is_given_up]

    def submit(self, slot: Slot, grant: Grant) -> None:
        """Tell an explorer to collect a fragment; only inside `grant`."""
        assert slot.worker is not None  # noqa: S101 - `grant` looks at it
        slot.began_at = slot.began_at if slot.grants else time.monotonic()
        slot.grants.append(grant)
        slot.granted = grant.number + 1
        incarnation, call = slot.incarnation, slot.worker.begin("rollout", grant)
        call.add_done_callback(lambda done: self._heard.put(lambda: self._settle(slot, incarnation, grant, done)))

    def poke(self) -> None:
        """Let the thread look whether something can be granted."""
        self._heard.put(lambda: None)

    def wait(self, is_there: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait until a condition holds, and return whether it does; checked after every change, and often.

        Raises:
            BaseException: What the last explorer raised, if all were given up, or the first one if none ever collected.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            while not self._bell.empty():
                self._bell.get()
            with self.lock:
                self.check()
                if is_there():
                    return True
            left_s = None if until is None else until - time.monotonic()
            if left_s is not None and left_s <= 0:
                return False
            try:  # no Condition: Ctrl-C inside one leaves it locked
                self._bell.get(timeout=_POLL_S if left_s is None else min(left_s, _POLL_S))
            except queue.Empty:
                continue

    def check(self) -> None:
        """Raise what cannot be mended by beginning explorers anew."""
        if self.fault is not None:
            raise self.fault

    def ask(self, method: str, timeout_s: float) -> list[Any]:
        """Call a method of each explorer; None for explorers that are away, busy or slow."""
        with self.lock:
            workers = [slot.worker if slot.is_there and not slot.grants else None for slot in self.slots]
            calls = [None if worker is None else worker.begin(method) for worker in workers]
        until = time.monotonic() + timeout_s
        return [None if call is None else self._answer(call, until) for call in calls]

    def _answer(self, call: "Future[Any]", until: float) -> Any:
        while not self._stop.is_older_than(SAVE_PATIENCE_S):
            try:
                return call.result(max(min(until - time.monotonic(), _POLL_S), 0.0))
            except (ConnectionError, TrieyeError):
                return None
            except TimeoutError:
                if call.done() or time.monotonic() >= until:
                    return None
        return None

    def close(self, timeout_s: float = 5.0) -> None:
        """End all explorers, which close their environments first unless they hang."""
        with self.lock:
            self._is_closed = True
            present = [(slot, slot.worker) for slot in self.slots if slot.worker is not None]
            hung = [slot.index for slot, _ in present if self._hangs(slot)]
            asked = [(slot, worker) for slot, worker in present if slot.machine is not None and slot.index not in hung]
        if hung:
            say(f"explorers {hung} are ended in the middle of a fragment: {self._env_id} does not return")
        until = time.monotonic() + (timeout_s if not self._stop.is_made else min(timeout_s, _CLOSE_STOPPED_S))
        calls = [] if self.fault is not None else [(slot, worker.begin("close")) for slot, worker in asked]
        for slot, call in calls:
            try:
                call.result(max(until - time.monotonic(), 0.0))
            except Exception as error:  # noqa: BLE001 - it is ended in any case
                say(f"explorer {slot.index} did not close {self._env_id}: {type(error).__name__}: {error}")
        for _, worker in present:
            worker.kill()
        self._heard.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _hangs(self, slot: Slot) -> bool:
        seems_so = self._stop.is_made and time.monotonic() - slot.began_at > _CLOSE_STOPPED_S
        return slot.is_overdue or (bool(slot.grants) and seems_so)

    def _listen(self) -> None:
        try:
            while (heard := self._next()) is not None:
                with self.lock:
                    if self._is_closed:
                        continue
                    heard()
                    self._tend()
                    self._grant()
                self._bell.put(None)
        except BaseException as error:  # noqa: BLE001 - the border of the thread: `wait` raises it in the learner
            self.fault = error
            self._bell.put(None)

    def _next(self) -> Callable[[], None] | None:
        """Return what was said next; nothing in particular if it is time to look after somebody."""
        now = time.monotonic()
        times = [at for slot in self.slots if (at := self._next_look(slot, now)) is not None]
        try:
            return self._heard.get(timeout=None if not times else max(min(times) - now, 0.0))
        except queue.Empty:
            return lambda: None

    def _next_look(self, slot: Slot, now: float) -> float | None:
        """Return when there may be something to do for an explorer, though nobody says anything."""
        if slot.is_given_up:
            return None
        times = [] if slot.resumes_at is None else [slot.resumes_at]
        times += [slot.began_at + self._config.fragment_timeout_s] if slot.is_awaited else []
        times += [slot.overdue_at] if slot.is_awaited and not slot.is_overdue else []
        patience_ends = slot.began_at + PATIENCE_S
        times += [patience_ends] if slot.has_no_room and patience_ends > now else []
        times += [slot.asks_until] if slot.asks_until is not None and slot.asks_until > now else []
        return min(times, default=None)

    def _tend(self) -> None:
        now = time.monotonic()
        for slot in self.slots:
            if slot.resumes_at is not None and slot.resumes_at <= now:
                self.restarts += 1
                slot.incarnation += 1
                self._begin(slot)
            if slot.is_awaited and slot.began_at + self._config.fragment_timeout_s <= now:
                limit = f"explorer.fragment_timeout_s={self._config.fragment_timeout_s:g} s"
                what = "delivered no fragment" if slot.is_there else "did not start"
                self._fail(slot, TimeoutError(f"{self._env_id} {what} within {limit}"))
            elif slot.is_awaited and not slot.is_overdue and slot.overdue_at <= now:
                slot.is_overdue = True
                self._tell_overdue(slot, now)
        self._tell_where(now)

    def _tell_overdue(self, slot: Slot, now: float) -> None:
        what = "has not returned from a fragment" if slot.is_there else "has been starting"
        others = "the training waits for it (sync.style=fixed)" if self._is_in_step else "the others continue"
        say(
            f"explorer {slot.index}: {self._env_id} {what} for {now - slot.began_at:.0f} s; {others}, and it is "
            f"restarted after explorer.fragment_timeout_s={self._config.fragment_timeout_s:g} s"
        )

    def _tell_where(self, now: float) -> None:
        """Say on which machines explorers are, if that is more than this one, or if some find no room."""
        if not self._has_moved:
            return
        waiting = [slot for slot in self.alive if slot.machine is None]
        if any(slot.worker is None or now < slot.began_at + PATIENCE_S for slot in waiting):
            return  # they have hardly been begun
        self._has_moved = False
        machines = Counter(slot.machine for slot in self.alive if slot.machine is not None)
        parts = [f"{num} on {machine}" for machine, num in sorted(machines.items())]
        if waiting:
            demand = _demand(self._config)  # without one there is always room: the machine is slow
            parts.append(f"{len(waiting)} {'without room on any node yet' if demand else 'still starting'}{demand}")
        told = f"explorers: {', '.join(parts)}"
        told += "; the training waits for all of them: sync.style=fixed" if waiting and self._is_in_step else ""
        if told != self._told_where and (waiting or self._told_where or set(machines) != {platform.node()}):
            self._told_where = told
            say(told)

    def _begin(self, slot: Slot) -> None:
        slot.resumes_at, slot.began_at = None, time.monotonic()
        self._has_moved = True
        slot.worker = self._place.start(self._task, slot.index, slot.incarnation)
        self._note(slot, slot.worker.find(), partial(self._placed, slot))
        if slot.state is not None:
            state, slot.state = slot.state, None
            self._note(slot, slot.worker.begin("load_state_dict", state), self._cut)
        self._note(slot, slot.worker.begin("writer_name"), partial(self._arrived, slot))

    def _placed(self, slot: Slot, machine: str) -> None:
        slot.machine, slot.began_at, slot.is_overdue = machine, time.monotonic(), False
        self._has_moved = True

    @staticmethod
    def _arrived(slot: Slot, client: str | None) -> None:
        slot.client, slot.is_there, slot.is_overdue = client, True, False

    def _cut(self, count: int) -> None:
        self.interrupted += count

    def _note(self, slot: Slot, call: "Future[Any]", take: Callable[[Any], None]) -> None:
        incarnation = slot.incarnation

        def settle(done: "Future[Any]") -> None:
            if slot.incarnation != incarnation or slot.worker is None:
                return
            error = done.exception()
            if error is None:
                take(done.result())
            else:
                self._fail(slot, error)

        call.add_done_callback(lambda done: self._heard.put(lambda: settle(done)))

    def _settle(self, slot: Slot, incarnation: int, grant: Grant, done: "Future[Report]") -> None:
        if slot.incarnation != incarnation or slot.worker is None or grant not in slot.grants:
            return  # it was given up meanwhile
        error = done.exception()
        if error is not None:
            self._fail(slot, error)
            return
        report = done.result()
        if slot.is_overdue:
            say(f"explorer {slot.index}: {self._env_id} has returned after {time.monotonic() - slot.began_at:.0f} s")
        slot.began_at, slot.is_overdue = time.monotonic(), False
        slot.usual_s = max(report.seconds, _FORGETS * slot.usual_s)
        self._has_delivered, slot.num_good = True, slot.num_good + 1
        slot.failures = slot.failures if slot.num_good < GOOD_RUN else 0
        slot.early[grant.number] = report
        while slot.grants and slot.grants[0].number in slot.early:
            self._take(slot, slot.grants.popleft())

    def _take(self, slot: Slot, grant: Grant) -> None:
        """Deliver the report of a grant; a missing report counts as lost."""
        report = slot.early.pop(grant.number, None)
        if report is None:
            self.lost += 1
            return
        self.interrupted += report.interrupted
        self.lost += report.lost
        report.number = slot.delivered
        slot.delivered += 1
        if reason := self._deliver(report):
            self.lost += 1
            self._refused[reason] += 1
            self._tell_refused()

    def _tell_refused(self) -> None:
        """Report number and reason of refused fragments, at most every few seconds."""
        if time.monotonic() < self._tells_refused_at:
            return
        self._tells_refused_at = time.monotonic() + _REFUSED_EVERY_S
        delivered = sum(slot.delivered for slot in self.slots)
        reasons = ", ".join(f"{count} {reason}" for reason, count in self._refused.most_common())
        say(f"{self._refused.total()} of {delivered} fragments were dropped when they arrived: {reasons}")

    def _fail(self, slot: Slot, error: BaseException) -> None:
        """Take note that an explorer is gone, and begin it anew after a pause, or give it up."""
        slot.error, slot.failures, slot.num_good = error, slot.failures + 1, 0
        while slot.grants:
            self._take(slot, slot.grants.popleft())
        if slot.worker is not None:
            slot.worker.kill()
            slot.worker, slot.machine, slot.is_there = None, None, False
        if slot.client is not None:
            self._leave(slot.client)
            slot.client = None
        is_mistake = not self._has_delivered and not isinstance(error, ConnectionError | TimeoutError)
        is_mistake |= isinstance(error, NonFiniteError)  # explorers begin again when a process fails, not a number
        slot.is_given_up = is_mistake or slot.failures > self._config.max_restarts
        slot.asks_until, slot.is_overdue, slot.usual_s = None, False, 0.0
        what = f"explorer {slot.index}: {_line(error)}"
        if is_mistake or not self.alive:
            error.add_note(f"in explorer {slot.index}, begun {slot.incarnation + 1} times")
            self.fault = error
        elif slot.is_given_up:
            say(f"{what}; it is given up, after {slot.failures} failures in a row")
        else:
            pause_s = 0.0 if slot.failures == 1 else self._config.restart_backoff_s * 2.0 ** (slot.failures - 2)
            slot.resumes_at = time.monotonic() + min(pause_s, _LONGEST_PAUSE_S)
            say(f"{what}; it is begun anew {'now' if not pause_s else f'in {pause_s:g} s'}")


def _demand(config: ExplorerConfig) -> str:
    """Return what each explorer asks a node for, in brackets."""
    asked = [f"explorer.{name}={value:g}" for name in ("num_cpus", "num_gpus") if (value := getattr(config, name))]
    asked += [f"explorer.resources={config.resources}"] if config.resources else []
    return f" ({', '.join(asked)})" if asked else ""


def _line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[-1] if lines else ''}".strip()
