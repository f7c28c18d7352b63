"""Gathering: collects rows with the policy of a checkpoint, without a learner, and writes them to a file."""

import fcntl
import math
import os
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from trieye.checkpoints.choose import reference_of
from trieye.checkpoints.store import load_checkpoint
from trieye.config.replay import ReplayConfig
from trieye.exceptions import ConfigurationError
from trieye.files.run_files import RunFiles
from trieye.process.progress import say
from trieye.process.signals import LeaveOnSignal
from trieye.process.text import counted
from trieye.replay.exchange import export_npz, export_parquet
from trieye.training.batches import Experience
from trieye.training.collecting import Collector
from trieye.training.config import TrainingConfig
from trieye.training.exploring.explorer import Assignment, FragmentResult, Published, Task
from trieye.training.exploring.group import ExplorerGroup
from trieye.training.exploring.making import pool_and_transport
from trieye.training.exploring.transports import CheckpointTransport, SupersededError, load_weights, weights_of
from trieye.training.finite import OnNonfinite
from trieye.training.loading import policy_of
from trieye.training.policy import Policy
from trieye.training.rows import Rows
from trieye.training.seeds import training_seed
from trieye.training.spaces import stacks_in

_SEED_OFFSET = 3_000_000
"""Added to the seed, so that episodes start differently from training and evaluations."""

_DEFAULT_STEPS = 64
"""Steps of each environment in a fragment; long, because no learner waits."""


def explore(config: TrainingConfig) -> Path:
    """Collect with the policy of the run named by `config.run_name`, and return the path of the rows.

    The policy explores as at the time of the checkpoint, in the environment of the run. Rewards are clipped as in the
    training, but not normalized, because the moments for that belong to the run.

    The run is not modified, and may be training at the same time. If an error or a signal ends the collection early,
    the rows collected before are written.

    Raises:
        CheckpointError: The checkpoint does not exist, or no engine saved it.
        ConfigurationError: The file exists, its directory does not, or the environment cannot be created.
        RunInterrupted: A signal arrived.
    """
    output = config.explore.output
    if output is not None and not (directory := Path(output).parent).is_dir():
        raise ConfigurationError(f"explore.output={output}: {directory} is not a directory; create it first")
    run_dir = RunFiles(config.persistence).run_base_dir
    saved = load_checkpoint(run_dir, reference_of(config.explore.checkpoint, option="explore.checkpoint").which)
    policy = policy_of(run_dir, saved)
    run_config, limit = policy.config, config.explore_steps
    env_config = run_config.env.model_copy(update={"num": config.env.num, "normalize_rewards": False})
    loop_config = run_config.loop.model_copy(update={"on_nonfinite": config.loop.on_nonfinite})
    overrides = {
        "env": env_config,
        "loop": loop_config,
        "explorer": config.explorer,
        "runtime": config.runtime,
        "sync": run_config.sync.model_copy(update={"style": "trainer_driven"}),  # explorers never wait for each other
    }
    collected_rows = _CollectedRows(
        limit,
        config.explorer.num * env_config.num or env_config.num,
        config.explorer.fragment_steps or _DEFAULT_STEPS,
        OnNonfinite(config.loop.on_nonfinite),
    )
    follows = config.sync.transport == "checkpoint"
    published_weights = _PublishedWeights(RunFiles(config.persistence).weights_dir, saved.path) if follows else None
    say(f"{run_dir.name}: collecting {limit} steps with the policy of step {saved.step}")
    with (
        LeaveOnSignal("the rows collected so far are kept"),
        _reserved(run_dir, output) as (path, file_number),
    ):
        overrides["seed"] = training_seed(config.seed + _SEED_OFFSET, *([file_number] if file_number > 1 else []))
        try:
            gather = _collect_by_explorers if config.explorer.num else _collect_here
            gather(run_config.model_copy(update=overrides), policy, published_weights, collected_rows)
        finally:
            if collected_rows.num:
                collected_rows.write(path)
    return path


class _CollectedRows:
    """The rows collected so far.

    Args:
        limit: Number of rows to collect.
        num_envs: Number of environments.
        steps: Steps of each in a fragment.
        on_nonfinite: Counts and reports the non-finite rows that are omitted.

    Attributes:
        num: Number of rows collected.
        num_lost: Number of fragments lost with an explorer.
    """

    def __init__(self, limit: int, num_envs: int, steps: int, on_nonfinite: OnNonfinite) -> None:
        self.limit, self.steps, self.on_nonfinite = limit, steps, on_nonfinite
        self.num = self.num_lost = 0
        # n-step returns, though unused here, make the buffer and thus the file record episodes
        config = ReplayConfig(capacity=limit + num_envs * steps, n_step=2)
        self._buffer = Experience.from_config(config, seed=0)
        self._returns: list[float] = []

    @property
    def is_complete(self) -> bool:
        """Whether the limit is reached."""
        return self.num >= self.limit

    def add(self, rows: Rows, ended: Mapping[str, list[float]], *, first_env: int) -> None:
        """Add rows, and the values of ended episodes.

        Raises:
            ConfigurationError: There is not enough memory; the first rows reserve it for all.
        """
        data, env_ids = rows.transitions()
        try:
            if len(env_ids):
                self._buffer.extend(data, env_ids + first_env)
        except ConfigurationError as error:
            problem, advice, _ = str(error).partition("; lower replay.capacity")  # not a key of mode=explore
            if not advice:
                raise
            advice = "collect fewer rows at a time; each collection writes a file of its own, explored_<N>.npz"
            raise ConfigurationError(f"loop.env_steps={self.limit}: {problem}; {advice}") from error
        self.num += len(env_ids)
        self._returns += ended.get("episode/return", [])

    def add_result(self, result: FragmentResult, first_env: int, policy: Policy) -> None:
        """Add the rows of an explorer, whose environments have ids from `first_env`."""
        rows = Rows.of_payloads([result.payload or {}], policy.device)
        rows.streams = result.streams
        rows.stacked = stacks_in(policy.spaces.observation, policy.config.env.frame_stack)
        self.add(rows, result.ended, first_env=first_env)
        self.on_nonfinite.counts["rows"] += result.refused
        for remark in result.remarks:
            self.on_nonfinite.show("rows", remark)

    def write(self, path: Path) -> None:
        """Write the rows to a file."""
        export = export_npz if path.suffix == ".npz" else export_parquet
        num = export(self._buffer, path)
        counts = {
            "row": num,
            "omitted non-finite row": self.on_nonfinite.counts["rows"],
            "lost fragment": self.num_lost,
            "complete episode": len(self._returns),
        }
        summary = ", ".join(counted(count, noun) for noun, count in counts.items() if count)
        mean = f", mean return {np.mean(self._returns):g}" if self._returns else ""
        say(f"wrote {path}: {summary}{mean}; learn from them with mode=train data={path} loop.axis=updates")


class _PublishedWeights:
    """Weights that another process publishes as files while it trains the run."""

    def __init__(self, directory: Path, checkpoint: Path) -> None:
        self._files = CheckpointTransport(directory)
        newest = self._newest()
        self._fetched_file = newest if newest is not None and newest[2] <= checkpoint.stat().st_mtime_ns else None

    def weights(self) -> Mapping[str, Any] | None:
        """Return weights that were published since the last call, or None.

        Their version is lower than the last one if the training has resumed from an earlier checkpoint.
        """
        newest = self._newest()
        if newest in {None, self._fetched_file}:
            return None
        self._fetched_file = newest
        try:
            return self._files.fetch(newest[0])
        except SupersededError as newer:
            return newer.weights

    def _newest(self) -> tuple[Path, int, int] | None:
        """Return path, inode and modification time of the newest file; each publish creates an inode."""
        for path in reversed(self._files.paths()):
            with suppress(FileNotFoundError):  # deleted since it was listed
                status = path.stat()
                return path, status.st_ino, status.st_mtime_ns
        return None


def _collect_here(
    config: TrainingConfig, policy: Policy, published_weights: _PublishedWeights | None, collected_rows: _CollectedRows
) -> None:
    """Collect in this process."""
    num = config.env.num
    on_nonfinite, gamma = collected_rows.on_nonfinite, config.agent.gamma
    collector = Collector(config.env, policy, gamma=gamma, seed=config.seed, on_nonfinite=on_nonfinite)
    try:
        while not collected_rows.is_complete:
            if published_weights is not None and (weights := published_weights.weights()) is not None:
                load_weights(policy, weights)
            collector.env_steps = policy.schedule_step  # each fragment, because the collector counts on
            steps = min(collected_rows.steps, math.ceil((collected_rows.limit - collected_rows.num) / num))
            collected_rows.add(collector.collect(steps), collector.metrics(), first_env=0)
            collector.take_moments()  # discard: there is no learner
    finally:
        collector.close()


def _collect_by_explorers(
    config: TrainingConfig, policy: Policy, published_weights: _PublishedWeights | None, collected_rows: _CollectedRows
) -> None:
    """Collect with explorers."""
    num = config.env.num
    pool, transport = pool_and_transport(config)
    published = Published(0, transport.publish(0, weights_of(policy)))
    waiting: deque[tuple[FragmentResult, int]] = deque()

    def deliver(report: FragmentResult) -> str:
        incarnation = group.slots[report.explorer].incarnation  # a restart begins new episodes
        waiting.append((report, (incarnation * config.explorer.num + report.explorer) * num))
        return ""

    def assignment() -> None:
        for slot in group.alive:
            while slot.is_ready and len(slot.assignments) < config.explorer.max_in_flight:
                num_promised = len(waiting) + sum(len(other.assignments) for other in group.slots if other.is_expected)
                if collected_rows.num + num_promised * collected_rows.steps * num >= collected_rows.limit:
                    return
                group.submit(slot, Assignment(slot.granted, collected_rows.steps, policy.schedule_step, published))

    task = Task(config, type(policy), policy.spaces, transport)
    group = ExplorerGroup(task, pool, config.explorer, deliver=deliver, assignment=assignment, leave=lambda _: None)
    group.start()
    try:
        while not collected_rows.is_complete:
            group.poke()
            group.wait(lambda: bool(waiting))
            collected_rows.add_result(*waiting.popleft(), policy)
            if published_weights is not None and (weights := published_weights.weights()) is not None:
                load_weights(policy, weights)
                version = published.version + 1
                published = Published(version, transport.publish(version, weights_of(policy)))
    finally:
        collected_rows.num_lost = group.lost
        group.close()
        while waiting and not collected_rows.is_complete:  # after an error or a signal
            collected_rows.add_result(*waiting.popleft(), policy)


@contextmanager
def _reserved(run_dir: Path, name: str | None) -> Iterator[tuple[Path, int]]:
    """Create an empty file and lock it, and delete it if it is still empty when the block ends.

    Yields:
        The path, and the number in its name, 1 for `name`.
    """
    files = ((run_dir / f"explored_{file_number}.npz", file_number) for file_number in count(1))
    for path, file_number in files if name is None else [(Path(name), 1)]:
        try:
            lock = _lock_empty(path)
        except OSError as error:
            raise ConfigurationError(f"explore.output={path} cannot be written: {error}") from error
        if lock is not None:
            path_and_number = path, file_number
            break
    else:
        raise ConfigurationError(f"explore.output={name} already exists; choose another name")
    try:
        yield path_and_number
    finally:
        with suppress(FileNotFoundError):
            if not path.stat().st_size:
                path.unlink()
        os.close(lock)


def _lock_empty(path: Path) -> int | None:
    """Create and lock an empty file, or one that a killed process left; None if it has content or is locked."""
    if path.exists() and path.stat().st_size:
        return None
    lock = os.open(path, os.O_RDWR | os.O_CREAT)
    with suppress(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        status = os.fstat(lock)
        if status.st_nlink and not status.st_size:  # not deleted or replaced since it was opened
            return lock
    os.close(lock)
    return None
