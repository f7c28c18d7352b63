"""Explorer: steps environments with a policy for a remote learner; independent of threads and Ray."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from trieye.config.root import TrieyeConfig
from trieye.exceptions import EnvironmentLostError, NonFiniteError, TrieyeError
from trieye.process.progress import say
from trieye.replay.remote.writer import Writer
from trieye.training.collecting import STREAM_INCREMENT, Collector
from trieye.training.exploring.transports import SupersededError, Transport, load_weights
from trieye.training.finite import OnNonfinite
from trieye.training.policy import Moments, Policy
from trieye.training.reward_scale import ReturnMoments
from trieye.training.rows import Array, Rows
from trieye.training.seeds import training_seed
from trieye.training.spaces import Spaces

RECOVERY_FRAGMENTS = 10
"""Consecutive good fragments after which a fault counts as an accident, not as a bug in the environment."""


@dataclass(frozen=True, slots=True)
class Published:
    """Weights that explorers can fetch.

    Attributes:
        version: Sequence number, from 0 without gaps.
        handle: Argument of the transport's `fetch`.
    """

    version: int
    handle: Any = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class Assignment:
    """Assignment of one fragment to an explorer.

    Attributes:
        number: Number of the assignment, per explorer and unique over the whole run.
        steps: Steps of each environment.
        env_steps: Environment steps of the whole run so far, for schedules.
        published: The weights to start with, unless the explorer knows newer ones.
        returns: Moments of all discounted returns, with `env.normalize_rewards`, so that all explorers scale rewards
            alike.
    """

    number: int
    steps: int
    env_steps: int
    published: Published
    returns: ReturnMoments | None = None


@dataclass(slots=True)
class FragmentResult:
    """Result of an assignment: a collected fragment and its statistics.

    Attributes:
        explorer: Index of the explorer.
        number: Number of its assignment; after delivery, the number of fragments delivered before it.
        version_min: Version of the oldest weights used.
        version_max: Version of the newest weights used.
        env_steps: Environment steps made.
        ended: Values of the episodes that ended, by metric.
        moments: Moments of the observations, if the policy normalizes them.
        payload: The rows as returned by `Rows.as_payload`; None if they went to the replay.
        interrupted: Number of cut episodes.
        seconds: Duration of the collection.
        refused: Number of omitted non-finite rows.
        remarks: Messages about omitted rows.
        lost: Fragments abandoned before this one, because an environment raised.
        returns: Moments of its discounted returns, with `env.normalize_rewards`.
        streams: `Rows.streams` of the payload.
    """

    explorer: int
    number: int
    version_min: int
    version_max: int
    env_steps: int
    ended: dict[str, list[float]]
    moments: list[Moments]
    payload: dict[str, Array] | None
    interrupted: int
    seconds: float
    refused: int = 0
    remarks: list[str] = field(default_factory=list)
    lost: int = 0
    returns: ReturnMoments | None = None
    streams: Array | None = None


class WeightsError(TrieyeError):
    """Raised if a transport fails to fetch weights."""


class CancelledError(Exception):
    """Raised inside an explorer that was abandoned while it collected."""


_NON_ENV_ERRORS = (WeightsError, NonFiniteError, ConnectionError)


@dataclass(frozen=True, slots=True)
class Task:
    """Parameters shared by all explorers of a run; sent to their processes.

    Attributes:
        config: Config of the run.
        policy: Class of the policy.
        spaces: Spaces of its environment.
        transport: Delivers the weights.
        make_writer: Creates a writer to the replay; None: rows travel with the result.
    """

    config: TrieyeConfig
    policy: type[Policy]
    spaces: Spaces
    transport: Transport
    make_writer: Callable[[], Writer] | None = None


class Explorer:
    """Collects fragments, one at a time.

    Args:
        task: Parameters shared by all explorers.
        index: Index of the explorer.
        incarnation: Number of restarts; each incarnation has different seeds.
        policy: An existing policy; None creates one.
    """

    def __init__(self, task: Task, index: int, incarnation: int, policy: Policy | None = None) -> None:
        self._task, self._index = task, index
        config: Any = task.config
        self._config = config
        if config.agent.num_threads:
            torch.set_num_threads(config.agent.num_threads)
        device = torch.device("cuda" if config.explorer.num_gpus and torch.cuda.is_available() else "cpu")
        self._policy = (task.policy(config, task.spaces) if policy is None else policy).to(device)
        self._seed = training_seed(config.seed, *((index, incarnation) if index or incarnation else ()))
        self._remarks: list[str] = []
        mode, owner = config.loop.on_nonfinite, f" of explorer {index}"
        self._on_nonfinite = OnNonfinite(mode, owner=owner, show=self._remarks.append)
        self._collector = self._make_collector(self._seed)
        self._writer = None if task.make_writer is None else task.make_writer()
        self._version = self._requested_version = -1  # they differ if the requested weights were gone
        self._versions: list[int] = []
        self._newest: Published | None = None
        self._is_cancelled, self._num_good = False, 0

    def _make_collector(self, seed: int) -> Collector:
        env, gamma, on_nonfinite = self._config.env, self._config.agent.gamma, self._on_nonfinite
        return Collector(env, self._policy, gamma=gamma, seed=seed, on_nonfinite=on_nonfinite)

    def writer_name(self) -> str | None:
        """Return the name of its replay writer, or None."""
        return None if self._writer is None else self._writer.client

    def rollout(self, assignment: Assignment) -> FragmentResult:
        """Collect a fragment.

        If an environment raises after at least `RECOVERY_FRAGMENTS` good fragments, the environments are rebuilt. Any
        other error ends the explorer: its next fragment, which may already be assigned, would follow a gap.
        """
        try:
            return self._roll_out(assignment)
        except BaseException:
            self.cancel()
            raise

    def _roll_out(self, assignment: Assignment) -> FragmentResult:
        began, lost = time.perf_counter(), 0
        try:
            rows = self._collect(assignment)
        except Exception as error:
            is_of_env = isinstance(error, EnvironmentLostError) or not isinstance(error, _NON_ENV_ERRORS)
            if self._is_cancelled or self._num_good < RECOVERY_FRAGMENTS or not is_of_env:
                raise
            self._num_good = 0
            say(f"explorer {self._index} rebuilds its environments: {type(error).__name__}: {error}")
            self._rebuild(assignment)
            lost = 1
            rows = self._collect(assignment)
        self._num_good += 1
        payload = None
        if self._writer is None:
            payload = rows.as_payload()
        elif len(rows):
            data, env_ids = rows.transitions()
            self._writer.version = min(self._versions)
            self._writer.extend(data, env_ids)
            self._writer.flush()
        # before `metrics`, because the learner reports the cut episodes of all explorers together
        num_cut, self._collector.interrupted = self._collector.interrupted, 0
        num_refused, remarks = self._on_nonfinite.counts.pop("rows", 0), self._remarks.copy()
        self._remarks.clear()
        return FragmentResult(
            explorer=self._index,
            number=assignment.number,
            version_min=min(self._versions),
            version_max=max(self._versions),
            env_steps=len(rows),
            ended=self._collector.metrics(),
            moments=[moments.cpu() for moments in self._collector.take_moments()],
            payload=payload,
            interrupted=num_cut,
            seconds=time.perf_counter() - began,
            refused=num_refused,
            remarks=remarks,
            lost=lost,
            returns=None if self._collector.scale is None else self._collector.scale.newest,
            streams=None if payload is None else rows.streams,
        )

    def _collect(self, assignment: Assignment) -> Rows:
        published = assignment.published
        if (newest := self._newest) is not None and newest.version > published.version:
            published = newest
        self._load(published)
        self._versions = [self._version]
        self._collector.env_steps = assignment.env_steps
        if self._collector.scale is not None and assignment.returns is not None:
            self._collector.scale.moments = assignment.returns
        return self._collector.collect(assignment.steps, before_step=self._before_step)

    def _before_step(self) -> None:
        if self._is_cancelled:
            raise CancelledError(f"explorer {self._index} was abandoned")
        if self._newest is not None and self._newest.version > max(self._version, self._requested_version):
            self._load(self._newest)
            self._versions.append(self._version)

    def _load(self, published: Published) -> None:
        if published.version not in (self._version, self._requested_version):
            version = published.version
            try:
                weights = self._task.transport.fetch(published.handle)
            except SupersededError as newer:
                version, weights = newer.version, newer.weights
            except ConnectionError:  # such as a failed broadcast: the explorer restarts
                raise
            except Exception as error:
                raise WeightsError(
                    f"{type(self._task.transport).__name__} cannot fetch version {version} of the weights: "
                    f"{type(error).__name__}: {error}"
                ) from error
            load_weights(self._policy, weights)
            self._version, self._requested_version = version, published.version

    def _rebuild(self, assignment: Assignment) -> None:
        num_cut = self._collector.num_open
        generator, streams = self._collector.generator, self._collector.streams
        try:
            self._collector.close()
        except Exception as error:  # noqa: BLE001 - close() may fail for the same reason; a new collector replaces it
            say(f"explorer {self._index}: cannot close its environments: {type(error).__name__}: {error}")
        self._collector = self._make_collector(training_seed(self._seed, assignment.number))
        self._collector.generator, self._collector.streams = generator, streams + STREAM_INCREMENT
        self._collector.interrupted = num_cut
        if self._writer is not None:
            self._writer.interrupt()

    def announce(self, published: Published) -> None:
        """Replace the weights at the next step of the current fragment; another thread calls it."""
        self._newest = published

    def state_dict(self) -> dict[str, Any]:
        """Return the state of environments, episodes and random generators as plain data."""
        return self._collector.plain_state()

    def load_state_dict(self, state: Mapping[str, Any]) -> int:
        """Restore a state that `state_dict` returned; return the number of cut episodes."""
        num_before = self._collector.interrupted = int(state["interrupted"])
        is_whole, stacks_frames = self._collector.load_state_dict(state), self._config.env.frame_stack
        if is_whole and stacks_frames and self._writer is not None and self._collector.num_open:
            self._collector.cut("a new writer continues no episodes, so the replay would lack frames of their stacks")
        num_cut, self._collector.interrupted = self._collector.interrupted - num_before, 0
        self._collector.metrics()  # the learner reports the cut episodes of all explorers together
        return num_cut

    def cancel(self) -> None:
        """Stop the current fragment at its next step."""
        self._is_cancelled = True

    def close(self) -> None:
        """Close the environments, and the writer after its rows have arrived."""
        self.cancel()
        self._collector.close()
        if self._writer is not None:
            self._writer.close()
