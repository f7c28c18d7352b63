"""Gathering: rows collected with the policy of a checkpoint, without a learner, and written as a file."""

import math
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
from trieye.replay.exchange import export_npz, export_parquet
from trieye.training.batches import Experience
from trieye.training.collecting import Collector
from trieye.training.config import TrainingConfig
from trieye.training.environments import make_envs
from trieye.training.exploring.explorer import Grant, Report, Task
from trieye.training.exploring.group import ExplorerGroup
from trieye.training.exploring.making import place_and_transport
from trieye.training.exploring.synchronizer import Published
from trieye.training.exploring.transports import CheckpointTransport, load_weights
from trieye.training.finite import OnNonfinite
from trieye.training.loading import policy_of
from trieye.training.policy import Policy
from trieye.training.rows import Rows

_OTHER_SEED = 3_000_000
"""Other starts than those of the training and of evaluations."""

_STEPS = 64
"""Of each environment in a fragment: nobody waits to learn from it."""


def explore(config: TrainingConfig) -> Path:
    """Collect with the policy of the run that `config.run_name` names, and return the file of the rows.

    The policy explores as the training did when the checkpoint was saved, in the environment of the run. Rewards are
    those that the training learned from, but not normalized, as the moments of that belong to the run.

    Nothing of the run changes, and it may be trained meanwhile. Whatever ends the collecting early, what was collected
    by then is written.

    Raises:
        CheckpointError: There is no such checkpoint, or it is not that of an engine.
        ConfigurationError: The file is there already, or the environment cannot be made.
    """
    run_dir = RunFiles(config.persistence).run_base_dir
    saved = load_checkpoint(run_dir, reference_of(config.explore.checkpoint, asked="explore.checkpoint").which)
    policy = policy_of(run_dir, saved)
    own, limit = policy.config, config.explore_steps
    env = own.env.model_copy(update={"num": config.env.num, "normalize_rewards": False})
    loop = own.loop.model_copy(update={"on_nonfinite": config.loop.on_nonfinite})
    changed = {
        "env": env,
        "loop": loop,
        "explorer": config.explorer,
        "runtime": config.runtime,
        "seed": config.seed + _OTHER_SEED,
    }
    gathered = _Gathered(limit, config.explorer.num * env.num or env.num, config.explorer.fragment_steps or _STEPS)
    follows = config.sync.transport == "checkpoint"
    newer = _Newer(RunFiles(config.persistence).weights_dir, saved.path) if follows else None
    say(f"{run_dir.name}: {limit} steps are collected with the policy of step {saved.step}")
    with _reserved(run_dir, config.explore.output) as path:
        try:
            gather = _by_explorers if config.explorer.num else _alone
            gather(own.model_copy(update=changed), policy, newer, gathered)
        finally:
            if gathered.num:
                gathered.write(path)
    return path


class _Gathered:
    """The rows that there are.

    Args:
        limit: How many are wanted.
        num_envs: Environments that collect.
        steps: Steps of each in a fragment.

    Attributes:
        num: How many there are.
    """

    def __init__(self, limit: int, num_envs: int, steps: int) -> None:
        self.limit, self.steps, self.num = limit, steps, 0
        # with n-step returns, which nobody draws here, a buffer knows of episodes, and so does the file
        config = ReplayConfig(capacity=limit + num_envs * steps, n_step=2)
        self._buffer = Experience.from_config(config, seed=0)
        self._returns: list[float] = []

    @property
    def is_enough(self) -> bool:
        """Whether there are as many as are wanted."""
        return self.num >= self.limit

    def take(self, rows: Rows, ended: Mapping[str, list[float]], *, first_env: int, were_cut: bool = False) -> None:
        """Take rows, and the values of the episodes that ended; `were_cut`: those under way before do not go on."""
        data, env_ids = rows.transitions()
        if were_cut:
            for member in range(rows.valid.shape[1]):
                self._buffer.interrupt(first_env + member)
        if len(env_ids):
            self._buffer.extend(data, env_ids + first_env)
        self.num += len(env_ids)
        self._returns += ended.get("episode/return", [])

    def write(self, path: Path) -> None:
        """Write the rows."""
        export = export_npz if path.suffix == ".npz" else export_parquet
        num = export(self._buffer, path)
        mean = f", {len(self._returns)} whole episodes, mean return {np.mean(self._returns):g}" if self._returns else ""
        say(f"{num} rows{mean} are in {path}; mode=train data={path} loop.axis=updates learns from them")


class _Newer:
    """The weights that another process publishes as files while it trains the run."""

    def __init__(self, directory: Path, checkpoint: Path) -> None:
        self._files = CheckpointTransport(directory)
        saved = checkpoint.stat().st_mtime
        self._seen = [path.name for path in self._files.paths() if path.stat().st_mtime <= saved][-1:]

    def weights(self) -> Mapping[str, Any] | None:
        """Return weights that are newer than those before; None if there are none."""
        newest = self._files.paths()[-1:]
        if not newest or [newest[0].name] <= self._seen:
            return None
        self._seen = [newest[0].name]
        return self._files.fetch(str(newest[0]))


def _alone(config: TrainingConfig, policy: Policy, newer: _Newer | None, gathered: _Gathered) -> None:
    """Collect in this process."""
    num = config.env.num
    on_nonfinite, gamma = OnNonfinite(config.loop.on_nonfinite), config.agent.gamma
    envs = make_envs(config.env, seed=config.seed)
    collector = Collector(envs, policy, config.env, gamma=gamma, seed=config.seed, on_nonfinite=on_nonfinite)
    collector.env_steps = policy.schedule_step
    try:
        while not gathered.is_enough:
            if newer is not None and (weights := newer.weights()) is not None:
                load_weights(policy, weights)
            steps = min(gathered.steps, math.ceil((gathered.limit - gathered.num) / num))
            gathered.take(collector.collect(steps), collector.take_ended(), first_env=0)
            collector.take_moments()  # nobody learns from them
    finally:
        collector.close()


def _by_explorers(config: TrainingConfig, policy: Policy, newer: _Newer | None, gathered: _Gathered) -> None:
    """Let explorers collect."""
    num = config.env.num
    place, transport = place_and_transport(config)
    published = Published(0, 0, transport.publish(0, policy.state_dict()))
    waiting: deque[tuple[Report, int]] = deque()

    def deliver(report: Report) -> str:
        waiting.append((report, group.slots[report.explorer].incarnation))
        return ""

    def grant() -> None:
        for slot in group.alive:
            while slot.worker is not None and len(slot.grants) < config.explorer.max_in_flight:
                promised = len(waiting) + sum(len(other.grants) for other in group.slots if other.is_expected)
                if gathered.num + promised * gathered.steps * num >= gathered.limit:
                    return
                env_steps = policy.schedule_step + gathered.num
                group.submit(slot, Grant(slot.granted, gathered.steps, env_steps, published))

    task = Task(config, type(policy), policy.spaces, transport)
    group = ExplorerGroup(task, place, config.explorer, deliver=deliver, grant=grant, leave=lambda _: None)
    group.start()
    try:
        while not gathered.is_enough:
            group.poke()
            group.wait(lambda: bool(waiting))
            report, incarnation = waiting.popleft()
            first = (incarnation * config.explorer.num + report.explorer) * num  # episodes of another one do not go on
            rows = Rows.of_payloads([report.payload or {}], policy.device)
            gathered.take(rows, report.ended, first_env=first, were_cut=bool(report.interrupted))
            if newer is not None and (weights := newer.weights()) is not None:
                load_weights(policy, weights)
                version = published.version + 1
                published = Published(version, 0, transport.publish(version, policy.state_dict()))
    finally:
        group.close()


@contextmanager
def _reserved(run_dir: Path, name: str | None) -> Iterator[Path]:
    """Give a file that nobody else had, and take it away if it is still empty when the block ends."""
    wanted = (run_dir / f"explored_{number}.npz" for number in count(1)) if name is None else iter([Path(name)])
    for path in wanted:
        try:
            path.touch(exist_ok=False)
        except FileExistsError:
            continue
        except OSError as error:
            raise ConfigurationError(f"explore.output={path} cannot be written: {error}") from error
        break
    else:
        raise ConfigurationError(f"explore.output={name} is there already, and is not overwritten; choose another name")
    try:
        yield path
    finally:
        with suppress(FileNotFoundError):
            if not path.stat().st_size:
                path.unlink()
