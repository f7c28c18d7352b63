"""ExplorerGroup: starts explorers, supervises them, and restarts failed ones."""

import math
import platform
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from trieye.config.explorer import ExplorerConfig
from trieye.exceptions import NonFiniteError, TrieyeError
from trieye.process.progress import say
from trieye.process.stopping import SAVE_PATIENCE_S, StopRequest
from trieye.training.exploring.explorer import RECOVERY_FRAGMENTS, Assignment, FragmentResult, Task
from trieye.training.exploring.places import ExplorerPool, WorkerHandle

_MAX_PAUSE_S = 60.0
_REFUSED_REPORT_INTERVAL_S = 10.0
PATIENCE_S = 20.0
"""Seconds without a free node after which a waiting explorer is reported."""

OVERDUE_S = 5.0
"""Minimum age of an overdue fragment, which also exceeds `_OVERDUE_FACTOR` times the longest recent one."""

_OVERDUE_FACTOR = 4.0
_DURATION_DECAY = 0.9
_CLOSE_STOPPED_S = 1.5
_POLL_S = 0.2
"""Seconds between checks of deadlines and stop requests; results of explorers are processed at once."""


@dataclass(slots=True)
class ExplorerSlot:
    """State of one explorer across restarts.

    Attributes:
        index: Index of the explorer.
        worker: Handle of the current process or thread; None between restarts.
        machine: Name of its machine; None between restarts and while it waits for a node.
        is_ready: Whether it has answered; nothing is assigned to it before.
        incarnation: Number of restarts.
        delivered: Fragments delivered over the whole run.
        granted: Fragments assigned over the whole run, including lost ones.
        assignments: Undelivered assignments, oldest first.
        early: Results that arrived before older assignments' results, by number.
        failures: Consecutive failures, with fewer than `RECOVERY_FRAGMENTS` fragments between them.
        num_good_fragments: Fragments since the last failure.
        restarts_at: Time of the restart, seconds of `time.monotonic`.
        is_abandoned: Whether it failed too often to be restarted.
        client: Name of its replay writer, if any.
        state: Restored state, until the first fragment is assigned or the explorer fails twice.
        on_version: Newest version assigned to it, and the number of fragments assigned with that version.
        waits_until: Time until which it waits for newer weights; None if it does not wait.
        began_at: Start of its oldest assignment, or of the explorer itself.
        usual_s: Decaying maximum of its fragment durations in seconds; 0 before the first.
        is_overdue: Whether its oldest assignment takes unusually long, so that the learner does not wait for it.
    """

    index: int
    worker: WorkerHandle | None = None
    machine: str | None = None
    is_ready: bool = False
    incarnation: int = 0
    delivered: int = 0
    granted: int = 0
    assignments: deque[Assignment] = field(default_factory=deque)
    early: dict[int, FragmentResult] = field(default_factory=dict)
    failures: int = 0
    num_good_fragments: int = 0
    restarts_at: float | None = None
    is_abandoned: bool = False
    client: str | None = None
    state: Any = None
    on_version: tuple[int, int] = (-1, 0)
    waits_until: float | None = None
    began_at: float = 0.0
    usual_s: float = 0.0
    is_overdue: bool = False

    @property
    def is_awaited(self) -> bool:
        """Whether a fragment or the first answer is outstanding."""
        return bool(self.assignments) or (self.machine is not None and not self.is_ready)

    @property
    def is_expected(self) -> bool:
        """Whether a fragment is in flight that is not overdue."""
        return bool(self.assignments) and not self.is_overdue

    @property
    def overdue_at(self) -> float:
        """Deadline after which the current fragment or start is overdue, by `time.monotonic`."""
        if not self.usual_s:  # the first fragment, or the start, when processes import modules for seconds
            return self.began_at + PATIENCE_S / 2
        return self.began_at + max(OVERDUE_S, _OVERDUE_FACTOR * self.usual_s)


class ExplorerGroup:
    """Explorers, and a thread that processes their results.

    Only the thread changes slots, while holding `lock`; other threads hold it to read them.

    Args:
        task: Parameters shared by all explorers.
        pool: Starts the explorers.
        config: Number of explorers, and the policy for failures.
        deliver: Called with each result, in the order of collection for each explorer; returns the reason if the
            fragment is refused, else an empty string.
        assignment: Called after every change; assigns fragments with `submit`.
        leave: Called with the writer name of an explorer that is gone.
        stop: The stop request of the run.

    Attributes:
        slots: One slot for each explorer.
        lock: Guards the slots; held during `deliver` and `assignment`.
        restarts: Number of restarts of all explorers.
        lost: Assigned fragments that were never learned from, because they did not arrive or were refused.
        interrupted: Number of cut episodes.
        fault: An error that restarting explorers cannot fix; None if there is none.
    """

    def __init__(
        self,
        task: Task,
        pool: ExplorerPool,
        config: ExplorerConfig,
        *,
        deliver: Callable[[FragmentResult], str],
        assignment: Callable[[], None],
        leave: Callable[[str], None],
        stop: StopRequest | None = None,
    ) -> None:
        self._task, self._pool, self._config = task, pool, config
        self._stop = stop or StopRequest()
        self._deliver, self._grant, self._leave = deliver, assignment, leave
        self.slots = [ExplorerSlot(index) for index in range(config.num)]
        self.lock = threading.RLock()
        self.restarts = self.lost = self.interrupted = 0
        self.fault: BaseException | None = None
        self._refusals: Counter[str] = Counter()
        self._next_refused_report = 0.0
        self._has_delivered = self._is_closed = False
        self._machines_changed, self._last_machines_report = True, ""
        run_config: Any = task.config
        self._env_id = run_config.env.id
        self._time_limit = f"explorer.fragment_timeout_s={config.fragment_timeout_s:g} s"
        self._events: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._changed: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="trieye-explorers", daemon=True)

    def start(self) -> None:
        """Start all explorers and the thread."""
        with self.lock:
            for slot in self.slots:
                self._start(slot)
        self._thread.start()

    @property
    def alive(self) -> list[ExplorerSlot]:
        """Explorers that were not abandoned."""
        return [slot for slot in self.slots if not slot.is_abandoned]

    def submit(self, slot: ExplorerSlot, assignment: Assignment) -> None:
        """Assign a fragment to an explorer; call it only inside `assignment`."""
        assert slot.worker is not None  # noqa: S101 - `assignment` checks it
        slot.began_at = slot.began_at if slot.assignments else time.monotonic()
        slot.assignments.append(assignment)
        slot.state = None
        slot.granted = assignment.number + 1
        self._on_result(slot, slot.worker.begin("rollout", assignment), partial(self._on_fragment, slot, assignment))

    def poke(self) -> None:
        """Make the thread call `assignment`."""
        self._events.put(lambda: None)

    def wait(self, condition: Callable[[], bool], timeout_s: float = math.inf) -> bool:
        """Wait until a condition holds, and return whether it does; it is checked after every change and every 0.2 s.

        Raises:
            BaseException: `fault`: the error of the last explorer when all were abandoned, or an error that restarts
                cannot fix.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            while not self._changed.empty():
                self._changed.get()
            with self.lock:
                self.check()
                if condition():
                    return True
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            with suppress(queue.Empty):  # not a Condition: Ctrl-C inside its wait leaves the lock acquired
                self._changed.get(timeout=min(left_s, _POLL_S))

    def check(self) -> None:
        """Raise `fault`, if set."""
        if self.fault is not None:
            raise self.fault

    def ask(self, method: str, timeout_s: float) -> list[Any]:
        """Call a method of each explorer; the result is None for explorers that are absent, busy or slow."""
        with self.lock:
            workers = [slot.worker if slot.is_ready and not slot.assignments else None for slot in self.slots]
            calls = [None if worker is None else worker.begin(method) for worker in workers]
        deadline = time.monotonic() + timeout_s
        return [None if call is None else self._answer(call, deadline) for call in calls]

    def _answer(self, call: "Future[Any]", deadline: float) -> Any:
        while not self._stop.is_older_than(SAVE_PATIENCE_S):
            try:
                return call.result(max(min(deadline - time.monotonic(), _POLL_S), 0.0))
            except (ConnectionError, TrieyeError):
                return None
            except TimeoutError:
                if call.done() or time.monotonic() >= deadline:
                    return None
        return None

    def close(self, timeout_s: float = 5.0) -> None:
        """Stop all explorers; responsive ones close their environments first."""
        with self.lock:
            self._is_closed = True
            workers = [(slot, slot.worker) for slot in self.slots if slot.worker is not None]
            hung = [slot.index for slot, _ in workers if self._hangs(slot)]
            responsive_workers = [
                (slot, worker) for slot, worker in workers if slot.machine is not None and slot.index not in hung
            ]
        if hung:
            say(f"stopping explorers {hung} in the middle of a fragment: {self._env_id} does not return")
        deadline = time.monotonic() + (timeout_s if not self._stop.is_made else min(timeout_s, _CLOSE_STOPPED_S))
        calls = [] if self.fault is not None else [(slot, worker.begin("close")) for slot, worker in responsive_workers]
        for slot, call in calls:
            try:
                call.result(max(deadline - time.monotonic(), 0.0))
            except Exception as error:  # noqa: BLE001 - it is killed in any case
                say(f"explorer {slot.index} could not close {self._env_id}: {type(error).__name__}: {error}")
        for _, worker in workers:
            worker.kill()
        self._events.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _hangs(self, slot: ExplorerSlot) -> bool:
        is_late = self._stop.is_made and time.monotonic() - slot.began_at > _CLOSE_STOPPED_S
        return slot.is_overdue or (bool(slot.assignments) and is_late)

    def _serve(self) -> None:
        try:
            while (event := self._next_event()) is not None:
                with self.lock:
                    if self._is_closed:
                        continue
                    event()
                    self._supervise()
                    self._grant()
                self._changed.put(None)
        except BaseException as error:  # noqa: BLE001 - the border of the thread: `wait` raises it in the learner
            self.fault = error
            self._changed.put(None)

    def _next_event(self) -> Callable[[], None] | None:
        """Return the next event; an empty one after `_POLL_S`, because deadlines pass without events."""
        try:
            return self._events.get(timeout=_POLL_S)
        except queue.Empty:
            return lambda: None

    def _supervise(self) -> None:
        now = time.monotonic()
        for slot in self.slots:
            if slot.restarts_at is not None and slot.restarts_at <= now:
                self.restarts += 1
                slot.incarnation += 1
                self._start(slot)
            if slot.is_awaited and slot.began_at + self._config.fragment_timeout_s <= now:
                problem = "delivered no fragment" if slot.is_ready else "did not start"
                self._fail(slot, TimeoutError(f"{self._env_id} {problem} within {self._time_limit}"))
            elif slot.is_awaited and not slot.is_overdue and slot.overdue_at <= now:
                slot.is_overdue = True
                activity = "has not returned from a fragment" if slot.is_ready else "has been starting"
                duration = f"for {now - slot.began_at:.0f} s; it is restarted after {self._time_limit}"
                say(f"explorer {slot.index}: {self._env_id} {activity} {duration}")
        self._report_machines(now)

    def _report_machines(self, now: float) -> None:
        """Report the machines of the explorers if they include others, or if some explorers wait for a node."""
        if not self._machines_changed:
            return
        waiting = [slot for slot in self.alive if slot.machine is None]
        if any(slot.worker is None or now < slot.began_at + PATIENCE_S for slot in waiting):
            return  # they started recently
        self._machines_changed = False
        machines = Counter(slot.machine for slot in self.alive if slot.machine is not None)
        parts = [f"{num} on {machine}" for machine, num in sorted(machines.items())]
        if waiting:
            names = ("num_cpus", "num_gpus", "resources")
            demand = ", ".join(f"explorer.{name}={value}" for name in names if (value := getattr(self._config, name)))
            # without a demand every node has room, and only the start is slow
            reason = f"waiting for a node with free resources ({demand})" if demand else "still starting"
            parts.append(f"{len(waiting)} {reason}")
        message = f"explorers: {', '.join(parts)}"
        if message != self._last_machines_report and (
            waiting or self._last_machines_report or set(machines) != {platform.node()}
        ):
            self._last_machines_report = message
            say(message)

    def _start(self, slot: ExplorerSlot) -> None:
        slot.restarts_at, slot.began_at = None, time.monotonic()
        self._machines_changed = True
        slot.worker = self._pool.start(self._task, slot.index, slot.incarnation)
        self._on_result(slot, slot.worker.find(), partial(self._on_placed, slot))
        if slot.state is not None:
            self._on_result(slot, slot.worker.begin("load_state_dict", slot.state), self._count_interrupted)
        self._on_result(slot, slot.worker.begin("writer_name"), partial(self._on_ready, slot))

    def _on_placed(self, slot: ExplorerSlot, machine: str) -> None:
        slot.machine, slot.began_at, slot.is_overdue = machine, time.monotonic(), False
        self._machines_changed = True

    @staticmethod
    def _on_ready(slot: ExplorerSlot, client: str | None) -> None:
        slot.client, slot.is_ready, slot.is_overdue = client, True, False

    def _count_interrupted(self, count: int) -> None:
        self.interrupted += count

    def _on_result(self, slot: ExplorerSlot, call: "Future[Any]", take: Callable[[Any], None]) -> None:
        incarnation = slot.incarnation

        def settle(done: "Future[Any]") -> None:
            if slot.incarnation != incarnation or slot.worker is None:
                return  # the explorer failed in the meantime
            error = done.exception()
            if error is None:
                take(done.result())
            else:
                self._fail(slot, error)

        call.add_done_callback(lambda done: self._events.put(lambda: settle(done)))

    def _on_fragment(self, slot: ExplorerSlot, assignment: Assignment, report: FragmentResult) -> None:
        if slot.is_overdue:
            say(f"explorer {slot.index}: {self._env_id} returned after {time.monotonic() - slot.began_at:.0f} s")
        slot.began_at, slot.is_overdue = time.monotonic(), False
        slot.usual_s = max(report.seconds, _DURATION_DECAY * slot.usual_s)
        self._has_delivered, slot.num_good_fragments = True, slot.num_good_fragments + 1
        slot.failures = slot.failures if slot.num_good_fragments < RECOVERY_FRAGMENTS else 0
        slot.early[assignment.number] = report
        while slot.assignments and slot.assignments[0].number in slot.early:
            self._deliver_oldest(slot, slot.assignments.popleft())

    def _deliver_oldest(self, slot: ExplorerSlot, assignment: Assignment) -> None:
        """Deliver the result of an assignment; a missing result counts as lost."""
        report = slot.early.pop(assignment.number, None)
        if report is None:
            self.lost += 1
            return
        self.interrupted += report.interrupted
        self.lost += report.lost
        report.number = slot.delivered
        slot.delivered += 1
        if reason := self._deliver(report):
            self.lost += 1
            self._refusals[reason] += 1
            self._report_refused()

    def _report_refused(self) -> None:
        """Report the number of refused fragments and the reasons, at most once per `_REFUSED_REPORT_INTERVAL_S`."""
        if time.monotonic() < self._next_refused_report:
            return
        self._next_refused_report = time.monotonic() + _REFUSED_REPORT_INTERVAL_S
        num_delivered = sum(slot.delivered for slot in self.slots)
        reasons = ", ".join(f"{count} {reason}" for reason, count in self._refusals.most_common())
        say(f"{self._refusals.total()} of {num_delivered} fragments were dropped on arrival: {reasons}")

    def _fail(self, slot: ExplorerSlot, error: BaseException) -> None:
        """Handle the failure of an explorer: restart it after a pause, abandon it, or set `fault`."""
        slot.failures, slot.num_good_fragments = slot.failures + 1, 0
        if slot.failures > 1 or not isinstance(error, ConnectionError):
            slot.state = None  # may be the cause; a process may die without one
        while slot.assignments:
            self._deliver_oldest(slot, slot.assignments.popleft())
        if slot.worker is not None:
            slot.worker.kill()
            slot.worker, slot.machine, slot.is_ready = None, None, False
        if slot.client is not None:
            self._leave(slot.client)
            slot.client = None
        is_permanent = not self._has_delivered and not isinstance(error, ConnectionError | TimeoutError)
        is_permanent |= isinstance(error, NonFiniteError)  # a restart does not fix the numbers
        slot.is_abandoned = is_permanent or slot.failures > self._config.max_restarts
        slot.waits_until, slot.is_overdue, slot.usual_s = None, False, 0.0
        last_line = str(error).strip().rpartition("\n")[2]
        message = f"explorer {slot.index}: {type(error).__name__}: {last_line}"
        if is_permanent or not self.alive:
            error.add_note(f"in explorer {slot.index}, after {slot.incarnation} restarts")
            self.fault = error
        elif slot.is_abandoned:
            say(f"{message}; abandoned after {slot.failures} consecutive failures")
        else:
            pause_s = 0.0 if slot.failures == 1 else self._config.restart_backoff_s * 2.0 ** (slot.failures - 2)
            slot.restarts_at = time.monotonic() + min(pause_s, _MAX_PAUSE_S)
            say(f"{message}; restarting {'now' if not pause_s else f'in {min(pause_s, _MAX_PAUSE_S):g} s'}")
