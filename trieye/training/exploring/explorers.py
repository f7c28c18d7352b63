"""Explorers: what an engine collects with in place of a `Collector`, when others collect for it."""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from trieye.exceptions import ConfigurationError
from trieye.process.progress import say
from trieye.process.stopping import SAVE_PATIENCE_S, StopRequest
from trieye.process.waiting import Backoff
from trieye.snapshot.generators import preserved_generators
from trieye.training.exploring.explorer import Grant, Report, Task
from trieye.training.exploring.group import ExplorerGroup, Slot
from trieye.training.exploring.inbox import Fragments, Reports
from trieye.training.exploring.pace import Counts, Pace
from trieye.training.exploring.places import Place
from trieye.training.exploring.synchronizer import Board, Published
from trieye.training.finite import OnNonfinite
from trieye.training.policy import Policy, merge_moments
from trieye.training.reward_scale import RewardScale
from trieye.training.rows import Rows

_PUBLISH_TRIES = 4
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 1.0


class Explorers:
    """Explorers from the learner's side: it publishes weights, grants fragments, and hands out what came.

    Args:
        task: What explorers are made of.
        place: Where they run.
        inbox: What waits to be learned from.
        board: Where versions are announced.
        policy: Of the learner.
        on_nonfinite: Handles non-finite rows, which explorers report.
        leave: Called with the name of the writer of an explorer that is gone.
        stop: Whether a stop was requested.

    Attributes:
        env_steps: Environment steps of the whole run that the learner knows of.
        version: Of the newest weights; -1 before the first.
    """

    def __init__(
        self,
        task: Task,
        place: Place,
        inbox: Reports | Fragments,
        board: Board,
        policy: Policy,
        *,
        on_nonfinite: OnNonfinite | None = None,
        leave: Callable[[str], None] = lambda _: None,
        stop: StopRequest | None = None,
    ) -> None:
        config: Any = task.config
        self._session = config.run_name
        self._task, self._inbox, self._board, self._policy = task, inbox, board, policy
        self._config, self._sync = config.explorer, config.sync
        self._on_nonfinite = on_nonfinite or OnNonfinite()
        self._num_envs = config.env.num
        self._scale = RewardScale(0, config.agent.gamma)  # moments of all explorers
        self._steps = config.explorer.fragment_steps or config.agent.rollout_steps
        self._pace = Pace(config.sync, inbox.max_staleness)
        self.env_steps = 0
        self.version = -1
        self._step = self._published_step = 0
        self._has_taken = self._is_publishing = False
        self._published: Published | None = None
        self._publish_s: list[float] = []
        self._ended: dict[str, list[float]] = defaultdict(list)
        self._learned: list[Report] = []
        self._lags: dict[int, int] = {}
        self._told_interrupted = 0
        self._retired: list[dict[str, Any]] = []
        self._is_paused, self._is_waiting = True, False
        self._stop = stop or StopRequest()
        self._group = ExplorerGroup(
            task,
            place,
            config.explorer,
            deliver=self._deliver,
            grant=self._grant,
            leave=leave,
            stop=self._stop,
        )
        self._has_begun = False

    def begin(self) -> None:
        """Start the explorers; they begin to collect with the first `collect`."""
        if not self._has_begun:
            self._has_begun = True
            with preserved_generators():  # in threads of this process, explorers draw their first weights from them
                self._group.start()

    def collect(self, steps: int | None = None) -> Rows:
        """Return the fragments of one step of the learner, one for each explorer; wait until they are there.

        With a replay the rows have gone there, and none are returned.

        Raises:
            ConfigurationError: Another number of steps is wanted than a fragment has.
            StepInterrupted: A stop was requested, and the fragments do not arrive.
        """
        if steps not in {None, self._steps}:
            raise ConfigurationError(
                f"collect({steps}): explorers collect fragments of {self._steps} steps; set "
                f"explorer.fragment_steps={steps}"
            )
        self.begin()
        if self._published is None:
            self._announce(max(self.version, 0))
        self._is_paused, self._is_waiting = False, True
        self._group.poke()
        try:
            self._group.wait(self._may_take)
        finally:
            self._is_waiting = False
        with self._group.lock:
            reports, rows = self._inbox.take(self._wanted)
            self._has_taken = True
            for report in reports:
                self._account(report)
        self._group.poke()
        return rows

    @property
    def _wanted(self) -> int:
        """How many fragments the learner takes: one for each explorer, and all of explorers that are gone."""
        alive = {slot.index for slot in self._group.alive}
        return len(alive) + sum(num for index, num in self._inbox.counts().items() if index not in alive)

    def _may_take(self) -> bool:
        if self._has_enough():
            return True
        self._stop.check("the fragments of this step")
        return False

    def _has_enough(self) -> bool:
        if self._sync.style == "fixed":
            counts = self._inbox.counts()
            return all(counts[slot.index] for slot in self._group.alive)
        waiting = self._inbox.versions()
        wanted = self._wanted
        if len(waiting) < wanted:
            return False
        under_way = self._under_way()
        if not under_way or not self._inbox.is_bounded:
            return True
        left = sorted(waiting)[wanted:] + under_way
        explorers, steps_left = len(self._group.alive), self._steps_left(has_taken=True)
        return self._pace.may_take(self.version, left, explorers=explorers, steps_left=steps_left)

    def _steps_left(self, *, has_taken: bool) -> int:
        return self._pace.steps_left(self._step - self._published_step, has_taken=has_taken)

    def _account(self, report: Report) -> None:
        self.env_steps += report.env_steps
        for name, values in report.ended.items():
            self._ended[name] += values
        self._learned.append(report)
        self._on_nonfinite.counts["rows"] += report.refused
        for remark in report.remarks:
            self._on_nonfinite.tell("rows", remark)
        self._lags[report.explorer] = self.version - report.version_min

    def learned(self) -> None:
        """Take note that a step of the learner is over: normalizers learn, and weights are published if it is time."""
        for report in self._learned:
            merge_moments(self._policy, report.moments)
            if report.returns is not None:
                self._scale.merge(*report.returns)
        self._learned.clear()
        self._step += 1
        with self._group.lock:
            is_asked = any(slot.asks_until is not None for slot in self._group.slots)
            is_due = self._pace.needs_publish(self._step, self._published_step, is_asked=is_asked)
            self._is_publishing = is_due and self._may_publish()
        if self._is_publishing:
            try:
                self._announce(self.version + 1)
                self._published_step = self._step
            finally:
                self._is_publishing = False
        self._has_taken = False
        self._group.poke()
        self._group.check()

    def _may_publish(self) -> bool:
        """Return whether all outstanding fragments would still be fresh enough with the next version."""
        return all(self._is_usable(begun, self.version + 1) for begun in [*self._inbox.versions(), *self._under_way()])

    def _under_way(self) -> list[int]:
        """Return the versions of fragments under way, of explorers that do not hang."""
        return [grant.published.version for slot in self._group.slots if slot.is_expected for grant in slot.grants]

    def _is_usable(self, begun: int, version: int) -> bool:
        """Return whether a fragment of one version may be learned from with another."""
        return not self._inbox.is_bounded or self._pace.is_fresh(begun, version)

    def _announce(self, version: int) -> None:
        """Publish the weights: the transport first, then the board, then fragments may begin with them."""
        began = time.perf_counter()
        handle = self._handed_over(version)
        published = Published(version, self._step, handle, self._session)
        self._board.publish(published)
        self._publish_s.append(time.perf_counter() - began)
        with self._group.lock:
            self.version, self._published = version, published
            for report in self._inbox.set_version(version):
                self._account(report)
            for slot in self._group.slots:
                slot.asks_until = None

    def _handed_over(self, version: int) -> Any:
        """Give the weights to the transport, again after a pause if that fails."""
        backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        while True:
            try:
                return self._task.transport.publish(version, self._policy.state_dict())
            except Exception as error:
                pause_s = backoff.failed()
                if backoff.failures == _PUBLISH_TRIES:
                    error.add_note(f"publishing version {version} of the weights failed {_PUBLISH_TRIES} times")
                    raise
                say(f"publishing version {version} of the weights failed and is tried again: {error}")
                time.sleep(pause_s)

    def _deliver(self, report: Report) -> str:
        return self._inbox.put(report, self._group.slots[report.explorer].incarnation)

    def _grant(self) -> None:
        """Tell explorers to collect what the pace allows; the group calls it with its lock."""
        published = self._published
        if self._is_paused or published is None:
            return
        if not self._is_usable(published.version, self.version + self._is_publishing):
            return  # it would be too stale when it comes
        waiting = self._inbox.counts()
        outstanding = waiting.total() + sum(len(slot.grants) for slot in self._group.slots if slot.is_expected)
        granted, alive = True, self._group.alive
        while granted:
            granted = False
            for slot in sorted(alive, key=lambda slot: (len(slot.grants), slot.produced, slot.index)):
                is_free = slot.is_there and len(slot.grants) < self._most_in_flight
                own = waiting[slot.index] + len(slot.grants)
                if is_free and self._may_begin(slot, own, outstanding, len(alive)):
                    self._tell(slot, published)
                    granted, outstanding = True, outstanding + 1
        self._keep_from_starving(published)

    @property
    def _most_in_flight(self) -> int:
        return 1 if self._sync.style == "explorer_driven" else self._config.max_in_flight

    def _tell(self, slot: Slot, published: Published) -> None:
        version, count = slot.on_version
        slot.on_version = (published.version, count + 1 if version == published.version else 1)
        self._group.submit(slot, Grant(slot.granted, self._steps, self.env_steps, published, self._scale.moments))

    def _may_begin(self, slot: Slot, own: int, outstanding: int, explorers: int) -> bool:
        version, on_version = slot.on_version
        counts = Counts(
            explorers=explorers,  # counted once for all: with a thousand of them that is most of a report's cost
            steps_left=self._steps_left(has_taken=self._has_taken),
            outstanding=outstanding,
            own_outstanding=own,
            own_on_version=on_version if version == self.version else 0,
        )
        if self._pace.asks(counts) and (slot.asks_until is None or time.monotonic() < slot.asks_until):
            slot.asks_until = slot.asks_until or time.monotonic() + self._sync.timeout_s
            return False
        return self._pace.may_begin(counts)

    def _keep_from_starving(self, published: Published) -> None:
        """Grant fragments against the rules where the learner waits for some, and nothing is under way.

        So it is if it collects more than once in a step, or after explorers were given up.
        """
        if not self._is_waiting or any(slot.is_expected for slot in self._group.slots) or self._has_enough():
            return
        there = self._inbox.counts()
        for slot in self._group.alive:
            if slot.is_there and not slot.grants and not there[slot.index]:
                self._tell(slot, published)

    def metrics(self) -> dict[str, float]:
        """Return what there is to say since the last call: of episodes, versions, explorers and fragments."""
        found = {name: float(np.mean(values)) for name, values in self._ended.items()}
        self._ended.clear()
        with self._group.lock:
            if self.interrupted != self._told_interrupted:
                found["episode/interrupted"] = self._told_interrupted = self.interrupted
            found |= {"sync/version": self.version, "explorer/alive": self._num_working}
            found |= {"explorer/restarts": self._group.restarts, "explorer/lost_fragments": self._group.lost}
            found |= {f"explorer/{index}/staleness": lag for index, lag in self._lags.items()}
            found |= self._inbox.metrics()
        if self._publish_s:
            found["sync/publish_ms"] = 1000.0 * float(np.mean(self._publish_s))
            self._publish_s.clear()
        return found

    @property
    def _num_working(self) -> int:
        return sum(slot.is_there for slot in self._group.slots)

    @property
    def interrupted(self) -> int:
        """Episodes that were cut."""
        return self._group.interrupted

    @property
    def can_save(self) -> bool:
        """Whether what is saved now goes on exactly; explorers are in different places of their episodes anyway."""
        return True

    def state_dict(self) -> dict[str, Any]:
        """Wait for outstanding fragments, and return the progress; explorers pause until the next `collect`.

        Hanging explorers are not waited for, nor any explorer long after a stop request: their fragments count as lost,
        and their episodes as interrupted.
        """
        self._is_paused = True
        timeout_s = self._config.fragment_timeout_s
        if not self._has_begun:
            states: list[Any] = [slot.state for slot in self._group.slots]
        else:
            if self._group.fault is None:
                self._group.wait(self._is_quiet, timeout_s)
            states = self._group.ask("state_dict", timeout_s)
        return {
            "env_steps": self.env_steps,
            "version": self.version,
            "step": self._step,
            "published_step": self._published_step,
            "explorers": [
                {
                    "state": state,
                    "delivered": slot.delivered,
                    "granted": slot.granted,
                    "incarnation": slot.incarnation,
                }
                for slot, state in zip(self._group.slots, states, strict=True)
            ],
            "retired": self._retired,
            "restarts": self._group.restarts,
            "lost": self._group.lost + sum(len(slot.grants) for slot in self._group.slots),
            "interrupted": self._group.interrupted,
            "returns": self._scale.moments,
            "inbox": self._inbox.state_dict(),
        }

    def _is_quiet(self) -> bool:
        is_late = self._stop.is_older_than(SAVE_PATIENCE_S)
        return is_late or not any(slot.is_expected for slot in self._group.slots)

    def load_state_dict(self, state: Mapping[str, Any]) -> bool:
        """Go on where `state_dict` was called; return False, as writers and with them episodes of a replay are new."""
        self.env_steps, self.version = int(state["env_steps"]), int(state["version"])
        self._step, self._published_step = int(state["step"]), int(state["published_step"])
        self._scale.moments = tuple(state.get("returns", self._scale.moments))
        group = self._group
        group.restarts, group.lost = int(state["restarts"]), int(state["lost"])
        group.interrupted = int(state["interrupted"])
        self._load_explorers(state["explorers"], state.get("retired", []))
        self._inbox.load_state_dict(state["inbox"])
        return False

    def _load_explorers(self, saved: Sequence[Mapping[str, Any]], retired: Sequence[Mapping[str, Any]]) -> None:
        """Give each explorer the state of its number; the counts of explorers that are no more are kept for later."""
        slots = self._group.slots
        if len(saved) != len(slots):
            say(f"explorer.num was {len(saved)} and is {len(slots)}")
        for slot in slots:  # new ones start at the same point as the others
            slot.delivered = max((held["delivered"] for held in saved), default=0)
        for slot, held in zip(slots, [*saved, *retired], strict=False):
            slot.state, slot.delivered = held["state"], held["delivered"]
            slot.incarnation = held["incarnation"] + (held["state"] is None)  # its environments get other seeds
            slot.granted = held.get("granted", slot.delivered)
        self._retired = [{**held, "state": None} for held in [*saved, *retired][len(slots) :]]
        for index, held in enumerate(saved):
            if held["state"] is None:
                self._group.interrupted += self._num_envs
            elif index >= len(slots):
                self._group.interrupted += int(np.count_nonzero(~np.asarray(held["state"]["done"])))

    def close(self) -> None:
        """End the explorers."""
        if self._has_begun:
            self._group.close()
        if (close := getattr(self._task.transport, "close", None)) is not None:
            close()
        self._board.close()
        self._inbox.close()
