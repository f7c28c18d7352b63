"""TrainEngine: base class of algorithms; an experiment that collects experience and updates a policy."""

import math
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Generic, cast, get_args

import torch
from typing_extensions import TypeVar

from trieye.config.agent import AgentConfig, ReplayAgentConfig
from trieye.config.replay import ReplayConfig
from trieye.exceptions import ConfigurationError
from trieye.experiment.experiment import Experiment, StepValues, checked_values
from trieye.process import watchdog
from trieye.process.progress import say
from trieye.process.stopping import StepInterrupted, StopRequest
from trieye.run.run import Run
from trieye.snapshot.environments import stateful
from trieye.snapshot.generators import preserved_generators
from trieye.training.attributes import Attributes
from trieye.training.batches import Experience, Minibatch
from trieye.training.collecting import Collector
from trieye.training.config import TrainingConfig
from trieye.training.environments import spaces_of_config
from trieye.training.evaluating import Evaluator
from trieye.training.evaluation import Evaluation, summary
from trieye.training.exploring.explorers import Explorers
from trieye.training.exploring.making import make_explorers
from trieye.training.exporting import export_policy
from trieye.training.finite import OnNonfinite, UpdateGuard
from trieye.training.policy import AgentT, ConfigT, Moments, Policy, merge_moments
from trieye.training.rows import Rows
from trieye.training.sample_table import table_of
from trieye.training.sampling import data_of, make_sampling, replay_config
from trieye.training.seeds import training_seed
from trieye.training.spaces import Spaces, as_data
from trieye.training.update_ratio import UpdateRatio

PolicyT = TypeVar("PolicyT", bound=Policy[Any, Any], default=Policy[Any, Any])
BatchT = TypeVar("BatchT", bound=Minibatch, default=Minibatch)
_GENERATOR_SEED_OFFSET = 1 << 30  # exploration uses the seed itself
_NO_STATE = {"config", "agent", "device", "envs", "generator", "policy", "replay"}
"""Attributes that are created from the config, or saved under other names."""


class TrainEngine(Experiment[ConfigT], Generic[ConfigT, AgentT, PolicyT]):
    """An algorithm: `step` collects and learns, `train_step` makes one update.

    A subclass declares its config, agent and policy types, `class DQN(TrainEngine[TrainConfig, DQNConfig, QPolicy])`,
    and creates its objects in `setup` as attributes. Checkpoints contain modules, optimizers, schedulers and random
    generators, and the numbers, strings, arrays and tensors that have changed since `setup`. Attributes whose names
    begin with `_` are not saved. After a restore an optimizer has the hyperparameters of the current config, such as
    the learning rate, unless a scheduler changes them.

    Attributes:
        config: The config of the run.
        agent: `config.agent`.
        device: Device of the policy and the updates.
        envs: The vector environment; None if explorers collect.
        generator: Random generator on the device, saved in checkpoints; exploration uses another one.
        policy: The acting module, on `device`.
        replay: The replay buffer of an agent whose config is a `ReplayAgentConfig`, else None.
        updates: Completed updates; within `train_step` the current one is included.
    """

    policy_class: ClassVar[type[Policy[Any, Any]]]
    config_class: ClassVar[type[TrainingConfig]] = TrainingConfig
    agent_class: ClassVar[type[AgentConfig]] = AgentConfig

    def __init_subclass__(cls, *, policy: type[Policy[Any, Any]] | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for base in vars(cls).get("__orig_bases__", ()):
            for kind in get_args(base):
                for name, base_class in (("config", TrainingConfig), ("agent", AgentConfig), ("policy", Policy)):
                    if isinstance(kind, type) and issubclass(kind, base_class):
                        setattr(cls, f"{name}_class", kind)
        if policy is not None:
            cls.policy_class = policy

    def __init__(self, config: ConfigT, run: Run | None = None) -> None:
        kind = type(self).__name__
        if not hasattr(self, "policy_class"):
            raise ConfigurationError(f"{kind} has no policy; write `class {kind}(TrainEngine[Config, Agent, Policy])`")
        # compare names: if a module runs as a program and is also imported, each of its classes exists twice
        if self.agent_class.__qualname__ not in {base.__qualname__ for base in type(config.agent).__mro__}:
            name = type(config.agent).__name__
            raise ConfigurationError(f"agent.engine: {kind} trains a {self.agent_class.__name__}, not a {name}")
        if config.loop.background_evaluation and self._overrides_only_evaluate:
            raise ConfigurationError(
                f"loop.background_evaluation: {kind} overrides evaluate(), whose state exists only in the "
                "training process; override evaluate_saved() too, or leave out loop.background_evaluation"
            )
        self.agent = cast("AgentT", config.agent)
        if config.agent.num_threads:
            torch.set_num_threads(config.agent.num_threads)
        self.device = device_of(config.agent.device)
        self.envs: Any = None
        self.updates, self._run = 0, run
        self._stop = StopRequest(lambda: None if self._run is None else self._run.stop_requested_at)
        if run is not None:
            watchdog.start(run.name, config.env.id, self._stop)
        spaces = spaces_of_config(config.env)
        self.policy = cast("PolicyT", self.policy_class(config, spaces).to(self.device))
        if config.agent.compile:
            for module in self.policy.children():
                module.compile()
        replay = replay_config(config, spaces)
        self.replay: Any = None
        self.generator = torch.Generator(self.device).manual_seed(config.seed + _GENERATOR_SEED_OFFSET)
        self._on_nonfinite = OnNonfinite(config.loop.on_nonfinite)
        self._row_source, self.replay = self._make_source(config, replay, spaces)
        self._evaluation = Evaluation(config.env, self._stop)
        self._evaluator = Evaluator(config, self.policy_class)
        self._sampling = make_sampling(config, spaces, replay)
        self._update_ratio = UpdateRatio(
            getattr(config.agent, "updates_per_env_step", 0.0), getattr(config.agent, "learning_starts", 0)
        )
        self._reported_counts, self._version = (0, 0), 0
        self._last_table_step: int | None = None
        self._newest_batch: Minibatch | None = None
        super().__init__(config, run)
        self._state = Attributes(self, _NO_STATE)
        self._on_nonfinite.where = lambda: f"at environment step {self.env_steps}, update {self.updates}"
        if self.replay is not None:
            self.replay.on_nonfinite = self._on_nonfinite
        self._guard = UpdateGuard(self, self._on_nonfinite)
        self._on_nonfinite.check_weights = self._guard.check_weights

    @classmethod
    def check_machine(cls, config: ConfigT) -> None:
        """Reject a device that torch does not find; see `Experiment.check_machine`."""
        device_of(config.agent.device)

    @property
    def _overrides_only_evaluate(self) -> bool:
        kind = type(self)
        has_evaluate_saved = kind.evaluate_saved is not TrainEngine.evaluate_saved
        return kind.evaluate is not TrainEngine.evaluate and not has_evaluate_saved

    def _make_source(self, config: ConfigT, replay: ReplayConfig, spaces: Spaces) -> tuple[Collector | Explorers, Any]:
        """Create the source of rows, and the replay buffer if the agent has one."""
        has_replay = isinstance(config.agent, ReplayAgentConfig)
        if config.explorer.num:
            replay_config = replay if has_replay else None
            return make_explorers(config, self.policy, replay_config, self._on_nonfinite, self._stop)
        gamma, seed, on_nonfinite = config.agent.gamma, training_seed(config.seed), self._on_nonfinite
        source = Collector(config.env, self.policy, gamma=gamma, seed=seed, on_nonfinite=on_nonfinite)
        self.envs = source.envs
        if not has_replay:
            return source, None
        is_offline = config.mode == "train"
        clip_rewards = config.env.clip_rewards
        read_data = partial(data_of, config.data or "", spaces, on_nonfinite=on_nonfinite, clip_rewards=clip_rewards)
        make_experience = read_data if is_offline else Experience.from_config
        experience = make_experience(replay, seed=config.seed)
        if is_offline and config.env.normalize_observations:
            merge_moments(
                self.policy, (Moments.of(torch.from_numpy(rows["obs"])) for rows, _ in experience.iter_rows())
            )
        return source, experience

    @property
    def env_steps(self) -> int:
        """Environment steps made so far in the run, including earlier attempts."""
        return self._row_source.env_steps

    @property
    def schedule_step(self) -> int:
        """Argument of schedules: environment steps, or updates with `mode=train`, which makes no environment steps."""
        return self.updates if self.config.schedule_axis == "updates" else self.env_steps

    def collect(self, steps: int | None = None) -> Rows:
        """Make `steps` steps of each environment with the exploring policy; default `agent.rollout_steps`.

        The last rollout is shortened to the environment steps that the limits of `loop` allow.

        With explorers, wait for one fragment from each instead. If there is a replay, it receives their rows directly,
        and the result is empty. With `mode=train` nothing is collected and the result is empty.
        """
        if self.config.mode == "train":
            return Rows.nothing(self.envs.num_envs, self.device)
        if isinstance(self._row_source, Explorers):
            return self._row_source.collect(steps)
        if self.config.replay.max_staleness is not None and self.replay is not None:
            self._version += 1
            self.replay.set_version(self._version)
        steps, limit = steps or self.agent.rollout_steps, self.config.loop.limit_on("env_steps")
        if limit is not None and limit > self.env_steps:
            steps = min(steps, math.ceil((limit - self.env_steps) / self.envs.num_envs))
        return self._row_source.collect(steps)

    def due_batches(self, kind: type[BatchT] = Minibatch, /) -> Iterator[BatchT]:  # type: ignore[assignment]  # mypy 3737
        """Yield the minibatches that are due: `agent.updates_per_env_step` since `agent.learning_starts`.

        With `mode=train`, yield as many as `agent.rollout_steps` steps of each environment would make due. After a
        resume without the replay (`persistence.save_buffer=false`), `agent.learning_starts` environment steps are
        collected before the next update. Each batch counts as an update.

        Args:
            kind: Class of the batches, a subclass of `Minibatch` that declares further columns.
        """
        agent = self.agent
        if not isinstance(agent, ReplayAgentConfig):
            raise ConfigurationError(f"due_batches() needs a ReplayAgentConfig, not {type(agent).__name__}")
        target_updates = self._update_ratio.due(self.env_steps)
        if self.config.mode == "train":
            target_updates = self.updates + max(
                1, int(agent.rollout_steps * self.envs.num_envs * agent.updates_per_env_step)
            )
            self._update_ratio.start(self.env_steps, target_updates)
        limit = self.config.loop.limit_on("updates")
        while self.updates < (target_updates if limit is None else min(target_updates, limit)):
            batch = self._sampling.minibatch(self.replay, agent.batch_size, self.device, updates=self.updates)
            yield self._counted_batch(kind(batch.data, batch.ids, batch.weights))

    def minibatches(
        self,
        rows: Rows,
        kind: type[BatchT] = Minibatch,  # type: ignore[assignment]  # mypy 3737
        /,
        *,
        epochs: int = 1,
        **columns: torch.Tensor,
    ) -> Iterator[BatchT]:
        """Yield all valid rows in random order, in batches of about `agent.batch_size` rows, `epochs` times.

        The number of batches depends only on the size of the rollout, see `Rows.minibatches`. Each batch counts as an
        update; iteration stops at a limit of updates.

        Args:
            rows: Rows returned by `collect`.
            kind: Class of the batches, a subclass of `Minibatch` that declares the additional columns.
            epochs: Number of passes over the rows.
            columns: Additional columns `[t, n, ...]`, such as advantages.
        """
        size, limit = self.agent.batch_size, self.config.loop.limit_on("updates")
        for data in rows.minibatches(size, epochs=epochs, generator=self.generator, **columns):
            if limit is not None and self.updates >= limit:
                return
            yield self._counted_batch(kind(data))

    def _counted_batch(self, batch: BatchT) -> BatchT:
        self._newest_batch = batch
        self.updates += 1
        return batch

    def autocast(self) -> AbstractContextManager[Any]:
        """Return a context manager under which modules compute in `agent.precision`."""
        if self.agent.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, getattr(torch, self.agent.precision))

    def train_step(self, batch: Any) -> Mapping[str, Any]:
        """Make one update.

        Args:
            batch: The data of the update, on `device`.

        Returns:
            Metrics, as numbers or tensors without gradients.
        """
        raise NotImplementedError(f"{type(self).__name__} has no train_step()")

    def advance(self) -> StepValues:
        """Run `step`, and add metrics of learning rates, collection, episodes and the replay.

        Raises:
            NonFiniteError: A row, loss, gradient or weight is NaN or infinite; `loop.on_nonfinite` selects which are
                skipped instead.
            StepInterrupted: A stop was requested, and the step does not return.
        """
        try:
            with self._guard:
                values = dict(checked_values(self, "step", self.step()))
            self._guard.settle(values)
            self._row_source.learned()
        except StepInterrupted as interruption:
            interruption.made = self._take_progress()
            raise
        progress = self._take_progress()
        metrics = {**self._row_source.metrics(), **self._on_nonfinite.metrics()}
        if self.replay is not None:
            metrics |= self.replay.metrics()
        self._show_sample({"step": 1, **progress})
        return {**progress, **metrics, **self._learning_rates(), **values}

    def _learning_rates(self) -> dict[str, float]:
        """Return the learning rate of each optimizer: `train/lr` of `optimizer`, `train/lr_actor` of `actor_optimizer`.

        An optimizer with several parameter groups has one for each: `train/lr/0`, `train/lr/1`.
        """
        rates = {}
        for name, optimizer in vars(self).items():
            if isinstance(optimizer, torch.optim.Optimizer):
                metric = f"train/lr_{name.strip('_').removesuffix('optimizer')}".rstrip("_")
                groups = optimizer.param_groups
                for index, group in enumerate(groups):
                    rates[metric if len(groups) == 1 else f"{metric}/{index}"] = float(group["lr"])
        return rates

    def _take_progress(self) -> dict[str, float]:
        """Return the environment steps and updates since the last call."""
        last_counts, self._reported_counts = self._reported_counts, (self.env_steps, self.updates)
        return {"env_steps": self.env_steps - last_counts[0], "updates": self.updates - last_counts[1]}

    def _show_sample(self, progress: Mapping[str, float]) -> None:
        """Log a table of the newest batch if one is due, and release the batch."""
        batch, self._newest_batch = self._newest_batch, None
        every = self.config.sample.table_every_steps
        if batch is None or not every or self._run is None:
            return
        step = self._run.step + int(progress[self.config.loop.axis])  # the loop counts this step only after it ends
        if self._last_table_step is None:
            self._last_table_step = self._run.step  # near the start of this attempt
        if step // every > self._last_table_step // every:
            self._last_table_step = step
            self._run.log_table("sample/rows", table_of(batch), step=step)

    def evaluate(self) -> Mapping[str, float]:
        """Play `env.eval_episodes` whole episodes without exploration, from the same initial states each time."""
        env = self.config.env
        with_frames = env.eval_video and self._run is not None
        episodes = self._evaluation.play(
            self.policy, env.eval_episodes, env_steps=self.schedule_step, with_frames=with_frames
        )
        if with_frames:
            episodes[0].encoded(partial(self.run.log_video, "eval/episode"))
        return summary(episodes)

    def evaluate_saved(self, checkpoint: Path) -> "Future[Mapping[str, float]]":
        """Start a background evaluation of a checkpoint, in a Ray actor, or in a thread with `runtime=local`."""
        return self._evaluator.begin(checkpoint)

    @property
    def can_save(self) -> bool:
        """Whether a run resumed from a checkpoint taken now is bit-identical; see `EnvState`."""
        return self._row_source.can_save

    def save_checkpoint(self, checkpoint_dir: Path) -> Mapping[str, Any] | None:  # noqa: ARG002 - no extra files
        """Return the state of policy, attributes, replay, environments and random generators.

        Raises:
            NonFiniteError: A weight or a moment of an optimizer is NaN or infinite.
        """
        self._guard.check_weights()
        return {
            "policy": self.policy,
            "spaces": as_data(self.policy.spaces),
            "attributes": self._state.state_dict(),
            "collector": self._row_source,
            "generator": self.generator,
            "nonfinite": dict(self._on_nonfinite.counts),
            "version": self._version,
            "update_ratio": self._update_ratio.state_dict(),
            "sampling": self._sampling,
            **({"replay": self.replay} if self.replay is not None and self.config.persistence.save_buffer else {}),
        }

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Restore the state that `save_checkpoint` returned."""
        self.policy.load_state_dict(checkpoint["policy"])
        self._state.load_state_dict(checkpoint["attributes"])
        stateful(self.generator).load_state_dict(checkpoint["generator"])
        source_state = {"version": checkpoint["version"], **checkpoint["collector"]}
        if isinstance(self._row_source, Collector):  # explorers count versions themselves
            self._version = source_state["version"]
        self._on_nonfinite.counts.update(checkpoint.get("nonfinite", {}))
        is_whole = self._row_source.load_state_dict(source_state)
        self._reported_counts = (self.env_steps, self.updates)
        self._sampling.load_state_dict(checkpoint["sampling"])
        if "update_ratio" in checkpoint:
            self._update_ratio.load_state_dict(checkpoint["update_ratio"], self.env_steps, self.updates)
        if self.replay is None:
            return
        if "replay" in checkpoint:
            self.replay.load_state_dict(checkpoint["replay"])
        elif self.config.mode != "train":
            source = self._row_source
            if is_whole and isinstance(source, Collector) and self.config.env.frame_stack and source.num_open:
                source.cut("the replay would lack frames of their stacks")
            self._update_ratio.restart(self.env_steps, self.updates)
            say(
                "the checkpoint has no replay buffer (persistence.save_buffer=false): learning starts after "
                f"another agent.learning_starts={getattr(self.agent, 'learning_starts', 0)} environment steps"
            )
        if not is_whole:
            self.replay.interrupt()

    def export_model(self, export_dir: Path) -> list[Path]:
        """Write the current policy for use without trieye, and return the files; see `export_policy`.

        Raises:
            ConfigurationError: A file blocks the export, or the directory is not writable.
        """
        with preserved_generators():  # the constructor draws initial weights
            # a deep copy would share the normalizer and compiled modules
            policy = self.policy_class(self.config, self.policy.spaces)
            policy.load_state_dict(self.policy.state_dict())
            return export_policy(policy.eval(), export_dir, env_steps=self.schedule_step)

    def cleanup(self) -> None:
        """Close the environments and the replay, and stop explorers."""
        self._evaluator.close()
        self._row_source.close()
        self._evaluation.close()
        if self.replay is not None:
            self.replay.close()


def mean(metrics: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return the mean of each metric over the updates that report it; transfer once from each device.

    Args:
        metrics: Results of `train_step`, numbers or tensors with one element; empty if there were no updates.

    Raises:
        TypeError: A result is not a dict, or a metric is not a single number; the message names it.
    """
    columns: dict[str, list[float]] = {}
    by_device: dict[torch.device, list[tuple[str, torch.Tensor]]] = {}
    for row in metrics:
        if not isinstance(row, Mapping):
            hint = "; is a `return` missing?" if row is None else ""
            raise TypeError(f"train_step() returned {row!r}; expected a dict of numbers{hint}")
        for name, value in row.items():
            columns[name] = []
            tensor = _one_number(name, value)
            by_device.setdefault(tensor.device, []).append((name, tensor))
    for named_tensors in by_device.values():
        numbers = torch.stack([tensor for _, tensor in named_tensors]).cpu().tolist()
        for (name, _), number in zip(named_tensors, numbers, strict=True):
            columns[name].append(number)
    return {name: sum(column) / len(column) for name, column in columns.items()}


def _one_number(name: str, value: Any) -> torch.Tensor:
    if isinstance(value, torch.Tensor) and value.dtype is torch.float32 and not value.ndim:
        return value.detach()
    try:
        tensor = torch.as_tensor(value).detach().float()
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"metric {name!r} is {value!r:.60}; expected one number: {error}") from error
    if tensor.numel() != 1:
        raise TypeError(f"metric {name!r} has the shape {list(tensor.shape)}; expected one number, such as its mean()")
    return tensor.reshape(())


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of all parameter groups of an optimizer, for example from a schedule."""
    for group in optimizer.param_groups:
        group["lr"] = lr


def device_of(name: str, key: str = "agent.device") -> torch.device:
    """Return the torch device named by the config key `key`.

    Raises:
        ConfigurationError: The name is not a device, or torch does not find it.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:  # pydantic validates AgentConfig.device only
        raise ConfigurationError(f"{key}={name}: choose auto, cpu, mps, cuda, or cuda:N") from error
    is_missing = {"cuda": not torch.cuda.is_available(), "mps": not torch.backends.mps.is_available()}
    if is_missing.get(device.type, False):
        raise ConfigurationError(f"{key}={name}: torch finds no such device here; choose auto or cpu")
    return device
