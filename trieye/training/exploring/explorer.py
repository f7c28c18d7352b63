"""Explorer: environments and a policy that collects for a learner elsewhere; it knows nothing of where it runs."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from trieye.config.root import TrieyeConfig
from trieye.exceptions import EnvironmentLostError, NonFiniteError, TrieyeError
from trieye.process.progress import say
from trieye.replay.remote.writer import Writer
from trieye.training.collecting import Collector
from trieye.training.environments import make_envs
from trieye.training.exploring.synchronizer import Board, Published
from trieye.training.exploring.transports import SupersededError, Transport, load_weights
from trieye.training.finite import OnNonfinite
from trieye.training.policy import Moments, Policy
from trieye.training.reward_scale import ReturnMoments
from trieye.training.rows import Array, Rows
from trieye.training.seeds import training_seed
from trieye.training.spaces import Spaces

GOOD_RUN = 10
"""After so many fragments without a fault, one is taken for an accident and not for a mistake."""

LONG_S = 0.1
"""A fragment that takes longer looks for newer weights on its way; to ask for them costs as much as a tenth of that."""


@dataclass(frozen=True, slots=True, eq=False)
class Grant:
    """A fragment that an explorer is told to collect.

    Attributes:
        number: Counts the grants of the explorer over the whole run; never used twice.
        steps: Steps of each environment.
        env_steps: Environment steps of the whole run so far, for schedules.
        published: The weights to begin with, or newer ones that the explorer knows of.
        returns: Moments of all discounted returns, with `env.normalize_rewards`: all explorers scale rewards alike.
    """

    number: int
    steps: int
    env_steps: int
    published: Published
    returns: ReturnMoments | None = None


@dataclass(slots=True)
class Report:
    """What became of a fragment.

    Attributes:
        explorer: Number of the explorer.
        number: Number of its grant; after delivery, the number of fragments delivered before it.
        version_min: Version of the oldest weights that it was collected with.
        version_max: Version of the newest ones.
        env_steps: Environment steps made.
        ended: Values of the episodes that ended, by metric.
        moments: Of the observations, where the policy normalizes them.
        payload: The rows, as `Rows.as_payload` makes them; None if they went to the replay.
        interrupted: Episodes that were cut.
        seconds: How long it took.
        refused: Number of omitted non-finite rows.
        remarks: Messages about them.
        lost: Fragments that were abandoned before this one, because an environment raised.
        returns: Moments of its discounted returns, with `env.normalize_rewards`.
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

    @property
    def order(self) -> tuple[int, int, int]:
        """The order in which fragments are learned from: with the oldest weights first."""
        return self.version_min, self.number, self.explorer


class WeightsError(TrieyeError):
    """Raised where a transport does not give out weights."""


class CancelledError(Exception):
    """Raised inside an explorer that was given up while it collected."""


_NOT_OF_ENV = (WeightsError, NonFiniteError, ConnectionError)


@dataclass(frozen=True, slots=True)
class Task:
    """What every explorer of a training is made of; it is sent to where they run.

    Attributes:
        config: Of the run.
        policy: Class of the policy.
        spaces: Of its environment.
        transport: Brings the weights.
        board: Where newer weights are announced while a fragment is collected; None: they are not looked for.
        make_writer: Makes a way to the replay; None: rows travel with the report.
    """

    config: TrieyeConfig
    policy: type[Policy]
    spaces: Spaces
    transport: Transport
    board: Board | None = None
    make_writer: Callable[[], Writer] | None = None


class Explorer:
    """Collects fragments, one after the other.

    Args:
        task: What it is made of.
        index: Its number.
        incarnation: How often it was begun before; episodes of another one begin otherwise.
        policy: Its own, if it was made before.
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
        self._on_nonfinite = OnNonfinite(mode, owner=owner, tell=self._remarks.append)
        self._collector = self._make_collector(self._seed)
        self._writer = None if task.make_writer is None else task.make_writer()
        self._version = -1
        self._versions: list[int] = []
        self._newest: Published | None = None
        self._begins, self._ends = threading.Event(), threading.Event()
        self._is_cancelled, self._num_good = False, 0
        if task.board is not None:
            threading.Thread(target=self._follow, args=(task.board,), name="trieye-weights", daemon=True).start()

    def _make_collector(self, seed: int) -> Collector:
        config, self._envs = self._config, make_envs(self._config.env, seed=seed)
        gamma, on_nonfinite = config.agent.gamma, self._on_nonfinite
        return Collector(self._envs, self._policy, config.env, gamma=gamma, seed=seed, on_nonfinite=on_nonfinite)

    def writer_name(self) -> str | None:
        """Return the name of its writer."""
        return None if self._writer is None else self._writer.client

    def rollout(self, grant: Grant) -> Report:
        """Collect a fragment.

        Environments that raise after `GOOD_RUN` fragments without a fault are rebuilt. Any other error ends the
        explorer: the next fragment, which it may have been granted already, would follow a gap.
        """
        try:
            return self._rolled_out(grant)
        except BaseException:
            self.cancel()
            raise

    def _rolled_out(self, grant: Grant) -> Report:
        began, lost = time.perf_counter(), 0
        try:
            rows = self._collected(grant)
        except Exception as error:
            is_of_env = isinstance(error, EnvironmentLostError) or not isinstance(error, _NOT_OF_ENV)
            if self._is_cancelled or self._num_good < GOOD_RUN or not is_of_env:
                raise
            self._num_good = 0
            say(f"explorer {self._index} rebuilds its environments: {type(error).__name__}: {error}")
            self._rebuild(grant)
            lost = 1
            rows = self._collected(grant)
        self._num_good += 1
        payload = None
        if self._writer is None:
            payload = rows.as_payload()
        elif len(rows):
            data, env_ids = rows.transitions()
            self._writer.version = min(self._versions)
            self._writer.extend(data, env_ids)
            self._writer.flush()
        cut, self._collector.interrupted = self._collector.interrupted, 0
        refused, remarks = self._on_nonfinite.counts.pop("rows", 0), self._remarks.copy()
        self._remarks.clear()
        return Report(
            explorer=self._index,
            number=grant.number,
            version_min=min(self._versions),
            version_max=max(self._versions),
            env_steps=len(rows),
            ended=self._collector.take_ended(),
            moments=[moments.cpu() for moments in self._collector.take_moments()],
            payload=payload,
            interrupted=cut,
            seconds=time.perf_counter() - began,
            refused=refused,
            remarks=remarks,
            lost=lost,
            returns=None if self._collector.scale is None else self._collector.scale.newest,
        )

    def _collected(self, grant: Grant) -> Rows:
        newest = self._newest
        published = grant.published
        if newest is not None and newest.version > published.version:
            published = newest
        self._take(published)
        self._versions = [self._version]
        self._collector.env_steps = grant.env_steps
        if self._collector.scale is not None and grant.returns is not None:
            self._collector.scale.moments = grant.returns
        self._ends.clear()
        self._begins.set()
        try:
            return self._collector.collect(grant.steps, before_step=self._look_up)
        finally:
            self._begins.clear()
            self._ends.set()

    def _look_up(self) -> None:
        if self._is_cancelled:
            raise CancelledError(f"explorer {self._index} was given up")
        if self._newest is not None and self._newest.version > self._version:
            self._take(self._newest)
            self._versions.append(self._version)

    def _take(self, published: Published) -> None:
        if published.version != self._version:
            version = published.version
            try:
                weights = self._task.transport.fetch(published.handle)
            except SupersededError as newer:
                version, weights = newer.version, newer.weights
            except ConnectionError:  # as of a broadcast: the explorer is restarted
                raise
            except Exception as error:
                raise WeightsError(
                    f"version {version} of the weights cannot be fetched by {type(self._task.transport).__name__}: "
                    f"{type(error).__name__}: {error}"
                ) from error
            load_weights(self._policy, weights)
            self._version = version

    def _rebuild(self, grant: Grant) -> None:
        cut = self._collector.num_open
        with_state = self._collector.generator
        try:
            self._collector.close()
        except Exception as error:  # noqa: BLE001 - it may be what was wrong; nobody uses it any more
            say(f"explorer {self._index}: its environments did not close: {type(error).__name__}: {error}")
        self._collector = self._make_collector(training_seed(self._seed, grant.number))
        self._collector.generator = with_state
        self._collector.interrupted = cut
        if self._writer is not None:
            self._writer.interrupt()

    def _follow(self, board: Board) -> None:
        pause = threading.Event()
        while not self._is_cancelled:
            self._begins.wait()
            if self._ends.wait(LONG_S):  # a short one, and the next is granted with the newest weights
                continue
            version = self._version if self._newest is None else self._newest.version
            try:
                found = board.wait_newer(max(version, self._version), 10.0)
            except ConnectionError:  # it is made anew, and told of the newest weights with the next version
                pause.wait(0.2)
                continue
            if found is not None:
                self._newest = found

    def state_dict(self) -> dict[str, Any]:
        """Return how far its environments, episodes and draws are, as plain data."""
        return self._collector.plain_state()

    def load_state_dict(self, state: Mapping[str, Any]) -> int:
        """Go on where `state_dict` was called; return how many episodes were cut."""
        before = self._collector.interrupted = int(state["interrupted"])
        self._collector.load_state_dict(state)
        self._collector.take_ended()  # the learner says how many were cut, of all explorers together
        cut, self._collector.interrupted = self._collector.interrupted - before, 0
        return cut

    def cancel(self) -> None:
        """End a fragment that is being collected."""
        self._is_cancelled = True
        self._begins.set()  # the thread that follows the board sees it

    def close(self) -> None:
        """Close the environments; what the writer holds has arrived."""
        self.cancel()
        self._collector.close()
        if self._writer is not None:
            self._writer.close()
