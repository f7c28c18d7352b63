"""Explorers: publishes weights to explorers, assigns fragments to them, and returns the collected rows."""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from trieye.exceptions import ConfigurationError
from trieye.process.progress import say
from trieye.process.stopping import SAVE_PATIENCE_S, StopRequest
from trieye.process.text import counted
from trieye.process.waiting import Backoff
from trieye.snapshot.generators import preserved_generators
from trieye.training.exploring.explorer import Assignment, FragmentResult, Published, Task
from trieye.training.exploring.group import ExplorerGroup, ExplorerSlot
from trieye.training.exploring.inbox import Fragments, Reports
from trieye.training.exploring.pace import SyncRules
from trieye.training.exploring.places import ExplorerPool
from trieye.training.exploring.transports import Weights, weights_of
from trieye.training.finite import OnNonfinite
from trieye.training.policy import Policy, merge_moments
from trieye.training.reward_scale import RewardScale
from trieye.training.rows import Rows

_PUBLISH_TRIES = 4
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 1.0
_ANNOUNCE_AFTER_S = 0.1
"""Usual duration of fragments above which an explorer gets new weights within a fragment, by one more message."""


class Explorers:
    """The learner's side of explorers: publishes weights, assigns fragments, and returns the collected rows.

    Args:
        task: Parameters shared by all explorers.
        pool: Starts the explorers.
        queue: Holds the results until the learner takes them.
        policy: Policy of the learner.
        on_nonfinite: Handles the non-finite rows that explorers report.
        leave: Called with the writer name of an explorer that is gone.
        stop: The stop request of the run.

    Attributes:
        env_steps: Environment steps of the whole run, in fragments that were taken or dropped after delivery.
        version: Version of the newest weights; -1 before the first.
    """

    def __init__(
        self,
        task: Task,
        pool: ExplorerPool,
        queue: Reports | Fragments,
        policy: Policy,
        *,
        on_nonfinite: OnNonfinite | None = None,
        leave: Callable[[str], None] = lambda _: None,
        stop: StopRequest | None = None,
    ) -> None:
        config: Any = task.config
        self._task, self._queue, self._policy = task, queue, policy
        self._config, self._sync = config.explorer, config.sync
        self._on_nonfinite = on_nonfinite or OnNonfinite()
        self._num_envs = config.env.num
        self._scale = RewardScale(0, config.agent.gamma)  # moments of all explorers
        self._steps = config.explorer.fragment_steps or config.agent.rollout_steps
        self._rules = SyncRules(config.sync, queue.max_staleness)
        self.env_steps = 0
        self.version = -1
        self._step = self._published_step = 0
        self._has_fragments = self._is_publishing = False
        self._published: Published | None = None
        self._weights: Weights | None = None  # of the newest version, if it lasts for several exact steps
        self._publish_s: list[float] = []
        self._episode_values: dict[str, list[float]] = defaultdict(list)
        self._learned: list[FragmentResult] = []
        self._lags: dict[int, int] = {}
        self._last_interrupted = 0
        self._retired_entries: list[dict[str, Any]] = []
        self._is_paused, self._is_waiting = True, False
        self._stop = stop or StopRequest()
        self._group = ExplorerGroup(
            task,
            pool,
            config.explorer,
            deliver=self._deliver,
            assignment=self._grant,
            leave=leave,
            stop=self._stop,
        )
        self._has_started = False

    def begin(self) -> None:
        """Start the explorers; the first `collect` assigns the first fragments."""
        if not self._has_started:
            self._has_started = True
            with preserved_generators():  # policies of explorer threads draw initial weights from the global generators
                self._group.start()

    def collect(self, steps: int | None = None) -> Rows:
        """Wait for the fragments of one learner step, on average one per explorer, and return their rows.

        If there is a replay, the rows went there, and the result is empty.

        Raises:
            ConfigurationError: `steps` differs from the steps of a fragment.
            StepInterrupted: A stop was requested, and the fragments do not arrive.
        """
        if steps not in {None, self._steps}:
            raise ConfigurationError(f"collect({steps}): set explorer.fragment_steps={steps}; it is {self._steps}")
        self.begin()
        if self._published is None:
            self._announce(max(self.version, 0), self._weights or weights_of(self._policy))
        self._is_paused, self._is_waiting = False, True
        self._group.poke()
        try:
            self._group.wait(self._is_ready_to_take)
        finally:
            self._is_waiting = False
        with self._group.lock:
            reports, rows = self._queue.take(self._wanted)
            self._has_fragments = True
            for report in reports:
                self._account(report)
        self._group.poke()
        return rows

    @property
    def _wanted(self) -> int:
        """Number of fragments that the learner takes: one for each explorer, and all of abandoned explorers."""
        alive = {slot.index for slot in self._group.alive}
        return len(alive) + sum(num for index, num in self._queue.counts().items() if index not in alive)

    def _is_ready_to_take(self) -> bool:
        if self._has_enough():
            return True
        self._stop.check("the fragments of this step")
        return False

    def _has_enough(self) -> bool:
        if self._sync.style == "fixed":
            counts = self._queue.counts()
            return all(counts[slot.index] for slot in self._group.alive)
        waiting = self._queue.versions()
        num_wanted = self._wanted
        if len(waiting) < num_wanted:
            return False
        in_flight = self._in_flight_versions()
        if not in_flight or not self._queue.is_bounded:
            return True
        remaining = sorted(waiting)[num_wanted:] + in_flight
        explorers, steps_left = len(self._group.alive), self._steps_left(has_fragments=True)
        return self._rules.may_take(self.version, remaining, explorers=explorers, steps_left=steps_left)

    def _steps_left(self, *, has_fragments: bool) -> int:
        return self._rules.steps_left(self._step - self._published_step, has_fragments=has_fragments)

    def _account(self, report: FragmentResult) -> None:
        self.env_steps += report.env_steps
        for name, values in report.ended.items():
            self._episode_values[name] += values
        self._learned.append(report)
        self._on_nonfinite.counts["rows"] += report.refused
        for remark in report.remarks:
            self._on_nonfinite.show("rows", remark)
        self._lags[report.explorer] = self.version - report.version_min

    def learned(self) -> None:
        """End a learner step: update the normalizers, and publish weights if they are due."""
        for report in self._learned:
            merge_moments(self._policy, report.moments)
            if report.returns is not None:
                self._scale.merge(*report.returns)
        self._learned.clear()
        self._step += 1
        with self._group.lock:
            is_requested = any(slot.waits_until is not None for slot in self._group.slots)
            is_due = self._rules.needs_publish(self._step, self._published_step, is_requested=is_requested)
            self._is_publishing = is_due and self._may_publish()
        if self._is_publishing:
            try:
                self._announce(self.version + 1, weights_of(self._policy))
                self._published_step = self._step
            finally:
                self._is_publishing = False
        self._has_fragments = False
        self._group.poke()
        self._group.check()

    def _may_publish(self) -> bool:
        """Return whether all outstanding fragments would still be usable with the next version."""
        return all(
            self._is_usable(fragment_version, self.version + 1)
            for fragment_version in [*self._queue.versions(), *self._in_flight_versions()]
        )

    def _in_flight_versions(self) -> list[int]:
        """Return the versions of the fragments in flight, without hanging explorers."""
        return [
            assignment.published.version
            for slot in self._group.slots
            if slot.is_expected
            for assignment in slot.assignments
        ]

    def _is_usable(self, fragment_version: int, version: int) -> bool:
        """Return whether the learner may use a fragment of version `fragment_version` at `version`."""
        return not self._queue.is_bounded or self._rules.is_fresh(fragment_version, version)

    def _announce(self, version: int, weights: Weights) -> None:
        """Publish weights through the transport, then start fragments with them, and announce them to long ones."""
        began = time.perf_counter()
        published = Published(version, self._publish_with_retries(version, weights))
        self._publish_s.append(time.perf_counter() - began)
        is_kept = self._sync.style == "fixed" and self._sync.interval > 1
        self._weights = {name: tensor.detach().clone() for name, tensor in weights.items()} if is_kept else None
        with self._group.lock:
            self.version, self._published = version, published
            for report in self._queue.set_version(version):
                self._account(report)
            for slot in self._group.slots:
                slot.waits_until = None
                if self._sync.style == "fully_async" and slot.worker is not None and slot.usual_s > _ANNOUNCE_AFTER_S:
                    slot.worker.tell("announce", published)

    def _publish_with_retries(self, version: int, weights: Weights) -> Any:
        """Publish weights through the transport; retry with pauses if it fails."""
        backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        while True:
            try:
                return self._task.transport.publish(version, weights)
            except ConfigurationError:
                raise
            except Exception as error:
                pause_s = backoff.failed()
                if backoff.failures == _PUBLISH_TRIES:
                    error.add_note(f"publishing version {version} of the weights failed {_PUBLISH_TRIES} times")
                    raise
                say(f"publishing version {version} of the weights failed, retrying in {pause_s:g} s: {error}")
                time.sleep(pause_s)

    def _deliver(self, report: FragmentResult) -> str:
        return self._queue.put(report, self._group.slots[report.explorer].incarnation)

    def _grant(self) -> None:
        """Assign as many fragments as the rules allow; the group calls it while holding its lock."""
        published = self._published
        if self._is_paused or published is None:
            return
        if not self._is_usable(published.version, self.version + self._is_publishing):
            return  # the fragment would be too stale on arrival
        waiting = self._queue.counts()
        outstanding = waiting.total() + sum(len(slot.assignments) for slot in self._group.slots if slot.is_expected)
        has_granted, alive_slots = True, self._group.alive
        max_in_flight = 1 if self._sync.style == "explorer_driven" else self._config.max_in_flight
        while has_granted:
            has_granted = False
            for slot in sorted(alive_slots, key=lambda slot: (len(slot.assignments), slot.delivered, slot.index)):
                is_free = slot.is_ready and len(slot.assignments) < max_in_flight
                num_own = waiting[slot.index] + len(slot.assignments)
                if is_free and self._may_begin(slot, num_own, outstanding, len(alive_slots)):
                    self._assign(slot, published)
                    has_granted, outstanding = True, outstanding + 1
        self._prevent_starvation(published)

    def _assign(self, slot: ExplorerSlot, published: Published) -> None:
        version, count = slot.on_version
        slot.on_version = (published.version, count + 1 if version == published.version else 1)
        self._group.submit(slot, Assignment(slot.granted, self._steps, self.env_steps, published, self._scale.moments))

    def _may_begin(self, slot: ExplorerSlot, num_own: int, outstanding: int, explorers: int) -> bool:
        version, on_version = slot.on_version
        wants_weights = self._rules.wants_weights(on_version if version == self.version else 0)
        if wants_weights and (slot.waits_until is None or time.monotonic() < slot.waits_until):
            slot.waits_until = slot.waits_until or time.monotonic() + self._sync.timeout_s
            return False
        steps_left = self._steps_left(has_fragments=self._has_fragments)
        # `explorers` is counted once for all of them: with 1000 explorers this dominates the cost per result
        return self._rules.may_begin(num_own, outstanding, explorers=explorers, steps_left=steps_left)

    def _prevent_starvation(self, published: Published) -> None:
        """Assign fragments against the rules if the learner waits and none is in flight.

        This happens if the learner collects more than once per step, or after explorers were abandoned.
        """
        if not self._is_waiting or any(slot.is_expected for slot in self._group.slots) or self._has_enough():
            return
        waiting = self._queue.counts()
        for slot in self._group.alive:
            if slot.is_ready and not slot.assignments and not waiting[slot.index]:
                self._assign(slot, published)

    def metrics(self) -> dict[str, float | list[float]]:
        """Return metrics of episodes, versions, explorers and fragments since the last call."""
        metrics: dict[str, float | list[float]] = dict(self._episode_values)
        self._episode_values.clear()
        with self._group.lock:
            if self.interrupted != self._last_interrupted:
                metrics["episode/interrupted"] = self._last_interrupted = self.interrupted
            metrics["sync/version"] = self.version
            metrics["explorer/alive"] = sum(slot.is_ready for slot in self._group.slots)
            metrics |= {"explorer/restarts": self._group.restarts, "explorer/lost_fragments": self._group.lost}
            metrics |= {f"explorer/{index}/staleness": lag for index, lag in self._lags.items()}
            metrics |= self._queue.metrics()
        if self._publish_s:
            metrics["sync/publish_ms"] = 1000.0 * float(np.mean(self._publish_s))
            self._publish_s.clear()
        return metrics

    @property
    def interrupted(self) -> int:
        """Number of cut episodes."""
        return self._group.interrupted

    @property
    def can_save(self) -> bool:
        """Whether a checkpoint taken now resumes bit-exactly; always True: waiting for all explorers is futile."""
        return True

    def state_dict(self) -> dict[str, Any]:
        """Wait for outstanding fragments, and return the state; explorers pause until the next `collect`.

        Hanging explorers are skipped; long after a stop request, so are all others. Their fragments count as lost, and
        their episodes as interrupted.
        """
        self._is_paused = True
        timeout_s = self._config.fragment_timeout_s
        if self._has_started and self._group.fault is None:
            self._group.wait(self._is_idle, timeout_s)
        states = self._group.ask("state_dict", timeout_s)
        return {
            "env_steps": self.env_steps,
            "version": self.version,
            "step": self._step,
            "published_step": self._published_step,
            "weights": None if self._step == self._published_step else self._weights,
            "explorers": [
                {
                    "state": slot.state if state is None else state,  # starting explorers do not answer
                    "delivered": slot.delivered,
                    "granted": slot.granted,
                    "incarnation": slot.incarnation,
                }
                for slot, state in zip(self._group.slots, states, strict=True)
            ],
            "retired": self._retired_entries,
            "restarts": self._group.restarts,
            "lost": self._group.lost + sum(len(slot.assignments) for slot in self._group.slots),
            "interrupted": self._group.interrupted,
            "returns": self._scale.moments,
            "fragment_steps": self._steps,
            "num_envs": self._num_envs,
            "inbox": self._queue.state_dict(),
        }

    def _is_idle(self) -> bool:
        is_late = self._stop.is_older_than(SAVE_PATIENCE_S)
        return is_late or not any(slot.is_expected for slot in self._group.slots)

    def load_state_dict(self, state: Mapping[str, Any]) -> bool:
        """Restore a state, also that of a `Collector`; return False: new writers interrupt the episodes in a replay."""
        self._last_interrupted = int(state["interrupted"])
        if "explorers" not in state:
            state = self._after_collector(state)
        self.env_steps, self.version = int(state["env_steps"]), int(state["version"])
        self._step, self._published_step = int(state["step"]), int(state["published_step"])
        self._weights = state.get("weights")
        self._scale.moments = tuple(state.get("returns", self._scale.moments))
        group = self._group
        group.restarts, group.lost = int(state["restarts"]), int(state["lost"])
        group.interrupted = int(state["interrupted"])
        self._load_explorers(state["explorers"], state.get("retired", []))
        # early checkpoints have no num_envs
        sizes = [len(entry["state"]["done"]) for entry in state["explorers"] if entry["state"] is not None]
        num_envs = state.get("num_envs", sizes[0] if sizes else self._num_envs)
        self._load_queue(state["inbox"], state.get("fragment_steps", self._steps), num_envs)
        if self._sync.style == "fixed":
            self._say_inexact()
        return False

    def _after_collector(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the state of explorers that continue after a collector, with new episodes."""
        if state["scale"] is not None:
            self._scale.load_state_dict(state["scale"])
        return {
            **{name: state[name] for name in ("env_steps", "version")},
            **dict.fromkeys(("step", "published_step", "restarts", "lost"), 0),
            "interrupted": int(state["interrupted"]) + int(np.count_nonzero(~np.asarray(state["done"]))),
            "explorers": [],
            # the collector had the first seed of explorer 0
            "retired": state.get("retired") or [{"state": None, "delivered": 0, "incarnation": 0}],
            "inbox": {"reports": []},
        }

    def _load_queue(self, state: Mapping[str, Any], fragment_steps: int, num_envs: int) -> None:
        """Restore the waiting fragments, unless the learner cannot join their rows with those of new ones."""
        is_same = (fragment_steps, num_envs) == (self._steps, self._num_envs)
        if is_same or self._task.make_writer is not None:
            self._queue.load_state_dict(state)
        elif num := len(state["reports"]):
            self._group.lost += num
            say(
                f"lost {counted(num, 'waiting fragment')} of {counted(fragment_steps, 'step')} of "
                f"{counted(num_envs, 'environment')}: explorers now collect {self._steps} (explorer.fragment_steps, by "
                f"default agent.rollout_steps) of {self._num_envs} (env.num)"
            )

    def _say_inexact(self) -> None:
        config: Any = self._task.config
        ahead, limit = self._sync.offset + self._sync.interval, self._config.max_in_flight
        in_replay = self._task.make_writer is not None
        reasons = {
            f"sync.offset + sync.interval = {ahead} exceeds explorer.max_in_flight={limit}, so the schedules of "
            "explorers depend on timing": ahead > limit,
            "the order of the rows of several explorers in the replay depends on timing": in_replay
            and self._config.num > 1,
            f"the returns of replay.n_step={config.replay.n_step} steps end at the checkpoint": in_replay
            and config.replay.n_step > 1,
            "episodes with env.frame_stack start again": in_replay and bool(config.env.frame_stack),
        }
        if any(reasons.values()):
            say(f"the resume is not exact: {'; '.join(reason for reason, applies in reasons.items() if applies)}")

    def _load_explorers(self, entries: Sequence[Mapping[str, Any]], retired: Sequence[Mapping[str, Any]]) -> None:
        """Restore each explorer by its index; keep the counts of surplus explorers for a later resume."""
        slots = self._group.slots
        if len(entries) != len(slots):
            say(f"explorer.num was {len(entries)} and is {len(slots)}")
        for slot in slots:  # additional explorers start with the counts of the others
            slot.delivered = max((entry["delivered"] for entry in (*entries, *retired)), default=0)
        for slot, entry in zip(slots, [*entries, *retired], strict=False):
            slot.state, slot.delivered = entry["state"], entry["delivered"]
            slot.incarnation = entry["incarnation"] + (entry["state"] is None)  # without a state: other seeds
            slot.granted = entry.get("granted", slot.delivered)
        self._retired_entries = [{**entry, "state": None} for entry in [*entries, *retired][len(slots) :]]
        for index, entry in enumerate(entries):
            if entry["state"] is None:
                self._group.interrupted += self._num_envs
            elif index >= len(slots):
                self._group.interrupted += int(np.count_nonzero(~np.asarray(entry["state"]["done"])))

    def close(self) -> None:
        """Stop the explorers."""
        if self._has_started:
            self._group.close()
        if (close := getattr(self._task.transport, "close", None)) is not None:
            close()
        self._queue.close()
