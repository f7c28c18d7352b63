"""TrainingConfig: the complete config of a reinforcement-learning run."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from trieye.config.agent import AgentConfig, ReplayAgentConfig
from trieye.config.base import StrictModel, did_you_mean
from trieye.config.env import EnvConfig
from trieye.config.explorer import ExplorerConfig, SyncConfig
from trieye.config.loop import LoopConfig
from trieye.config.replay import LimiterConfig, ReplayConfig
from trieye.config.root import TrieyeConfig
from trieye.config.sample import SampleConfig
from trieye.exceptions import ConfigurationError

_METHODS = {"sync.transport": ("publish", "fetch"), "sample.kind": ("minibatch", "state_dict", "load_state_dict")}
"""Methods that classes of a project must have. A config key names such a class, so that no installation is necessary;
sinks are entry points instead, because every run uses them without a config key."""


class BenchConfig(StrictModel):
    """Selects the checkpoints that `mode=bench` evaluates."""

    checkpoints: str = Field(
        default="each",
        min_length=1,
        description="Checkpoints to evaluate: best, latest, step:N, each, or a pattern such as checkpoint_step_*000.",
    )
    episodes: int = Field(default=100, ge=1, description="Number of episodes per checkpoint.")


class ExploreConfig(StrictModel):
    """Selects the checkpoint that `mode=explore` acts with, and the output file."""

    checkpoint: (
        Literal["best", "latest"] | Annotated[str, Field(pattern=r"^step:\d{1,18}$", examples=["step:1200"])]
    ) = Field(default="latest", description="Checkpoint whose policy collects: best, latest or step:N.")
    output: Annotated[str, Field(pattern=r"\.(npz|parquet)$", examples=["rows.npz"])] | None = Field(
        default=None,
        description="Output file, .npz or .parquet, which must not exist yet; null = explored_<N>.npz in the run "
        "directory.",
    )


class TrainingConfig(TrieyeConfig):
    """Options of the commands that train; the config of a project is a subclass of it."""

    agent: AgentConfig = Field(description="Algorithm and its hyperparameters.")
    env: EnvConfig = Field(description="Environment and its wrappers.")
    mode: Literal["both", "train", "explore", "bench"] = Field(
        default="both",
        description="What the program does: both = collect and learn; train = learn from `data` alone; explore = "
        "collect rows with a checkpoint of the run `run_name`; bench = evaluate its checkpoints, in the "
        "environment of the run.",
    )
    data: str | None = Field(
        default=None,
        min_length=1,
        description="Recorded rows to learn from: .npz or .parquet exported by trieye, minari:ID, or sb3:FILE; "
        "null = none.",
    )
    sample: SampleConfig = Field(default_factory=SampleConfig, description="Source of the rows in a batch.")
    explorer: ExplorerConfig = Field(
        default_factory=ExplorerConfig, description="Explorers: processes that collect for the learner."
    )
    sync: SyncConfig = Field(default_factory=SyncConfig, description="When and how explorers get new weights.")
    explore: ExploreConfig = Field(
        default_factory=ExploreConfig, description="Checkpoint and output file of mode=explore."
    )
    bench: BenchConfig = Field(default_factory=BenchConfig, description="Checkpoints and episodes of mode=bench.")
    loop: LoopConfig = Field(
        default_factory=lambda: LoopConfig(axis="env_steps"), description="Length of the training, and evaluations."
    )

    @model_validator(mode="after")
    def _check_data(self) -> Self:
        samples = None if self.sample.kind == "default" else f"sample={self.sample.kind}"
        use = "mode=train" if self.mode == "train" else samples
        may_have_data = use == samples and ":" in self.sample.kind  # for a class of the project data is optional
        if use is None and self.data is not None:
            raise ValueError(f"data={self.data} is not used; set mode=train, sample=mix or sample=warmup")
        if use is not None and self.data is None and not may_have_data:
            raise ValueError(f"{use} needs recorded rows: set data=<file>")
        if use is not None and not isinstance(self.agent, ReplayAgentConfig):
            raise ValueError(f"{use} needs an agent with a replay; this agent learns from each rollout only")
        if self.data is not None and self.env.normalize_rewards:
            raise ValueError(f"env.normalize_rewards=true does not apply to data={self.data}; set it to false")
        if self.mode == "train" and self.loop.axis != "updates":
            raise ValueError(f"mode=train makes no environment steps; set loop.axis=updates, not {self.loop.axis}")
        return self

    @property
    def min_waiting_fragments(self) -> int:
        """Number of fragments that `replay=fragment` must hold until the learner has one of each explorer."""
        return self.explorer.num * (self.sync.offset + self.sync.interval if self.sync.style == "fixed" else 1)

    @model_validator(mode="after")
    def _check_replay(self) -> Self:
        replay, kind = self.replay, getattr(self.agent, "kind", type(self.agent).__name__)
        if not isinstance(self.agent, ReplayAgentConfig):
            if replay != ReplayConfig() and not (replay.kind == "fragment" and self.explorer.num):
                raise ValueError(f"agent={kind} learns from each rollout and has no replay; leave out replay")
            return self
        if replay.kind not in {"uniform", "prioritized"}:
            raise ValueError(f"replay.kind={replay.kind} does not support agent={kind}; choose uniform or prioritized")
        if replay.frame_stack:
            raise ValueError("replay.frame_stack: set env.frame_stack instead, so that the policy gets stacks, too")
        if replay.limiter != LimiterConfig():
            raise ValueError("replay.limiter: not used; set agent.updates_per_env_step and agent.learning_starts")
        uses = self.agent.updates_per_env_step * self.agent.batch_size
        if replay.max_reuse is not None and replay.max_reuse < 2 * uses:
            raise ValueError(
                f"replay.max_reuse={replay.max_reuse}: rows would run out, because each is drawn {uses:g} times on "
                "average (agent.updates_per_env_step x agent.batch_size); set at least twice that number"
            )
        num_rows = self.agent.rollout_steps * self.env.num
        if self.mode == "both" and replay.capacity < num_rows:
            raise ValueError(
                f"replay.capacity={replay.capacity} is smaller than one rollout of {num_rows} rows "
                "(agent.rollout_steps x env.num): some rows would be overwritten before any is used"
            )
        if "gamma" in replay.model_fields_set and replay.gamma not in {self.agent.gamma, ReplayConfig().gamma}:
            raise ValueError(f"replay.gamma={replay.gamma} differs from agent.gamma={self.agent.gamma}; leave it out")
        return self

    @model_validator(mode="after")
    def _check_chunks(self) -> Self:
        per_chunk = self.replay.fragment.fragments_per_chunk
        if self.explorer.num and per_chunk > 1:
            raise ValueError(
                f"replay.fragment.fragments_per_chunk={per_chunk}: explorers deliver chunks of one fragment; set it to "
                "1, and raise explorer.fragment_steps for longer fragments"
            )
        if self.replay.kind == "fragment" and self.replay.capacity < self.min_waiting_fragments:
            raise ValueError(
                f"replay.capacity={self.replay.capacity} is too small for the fragments that wait for the learner; set "
                f"at least {self.min_waiting_fragments} (explorer.num; with sync.style=fixed times sync.offset + "
                "sync.interval)"
            )
        return self

    @model_validator(mode="after")
    def _check_loop(self) -> Self:
        if self.mode == "explore" and self.loop.axis != "env_steps":
            raise ValueError(f"mode=explore makes environment steps; set loop.axis=env_steps, not {self.loop.axis}")
        if self.mode == "explore" and self.loop.steps is None and self.loop.env_steps is None:
            raise ValueError("mode=explore would never stop; set loop.env_steps, the number of steps to collect")
        if self.loop.background_evaluation and self.env.eval_video:
            raise ValueError("env.eval_video is not supported by background evaluations; leave out one of them")
        return self

    @property
    def schedule_axis(self) -> Literal["env_steps", "updates"]:
        """Unit of schedules: environment steps, or updates with `mode=train`, which makes no environment steps."""
        return "updates" if self.mode == "train" else "env_steps"

    @property
    def explore_steps(self) -> int:
        """Number of environment steps that `mode=explore` makes."""
        return min(steps for steps in (self.loop.steps, self.loop.env_steps) if steps is not None)

    @model_validator(mode="after")
    def _check_explorers(self) -> Self:
        explorer, sync, runtime = self.explorer, self.sync, self.runtime.kind
        if self.mode == "explore":
            if sync not in (SyncConfig(), SyncConfig(transport="checkpoint")):
                raise ValueError("mode=explore has no learner; the only sync option is sync.transport=checkpoint")
            return self
        if not explorer.num:
            if sync != SyncConfig():
                raise ValueError("sync delivers weights to explorers, and there are none; set explorer.num")
            return self
        if self.mode == "train":
            raise ValueError(f"mode=train learns from data only; leave out explorer.num={explorer.num}")
        of_one_runtime = sync.transport in {"local", "object_store", "collective"}
        if of_one_runtime and (sync.transport == "local") != (runtime == "local"):
            raise ValueError(f"sync.transport={sync.transport} does not fit runtime={runtime}; set sync.transport=auto")
        if sync.offset and sync.style != "fixed":
            raise ValueError(f"sync.offset={sync.offset} requires sync.style=fixed; set sync.max_staleness instead")
        return self

    def check(self) -> None:
        """Reject a missing run or directory, an unusable project class or environment, before anything starts."""
        super().check()
        directory = self.persistence.get_run_base_dir()
        if self.mode in {"explore", "bench"} and not directory.is_dir():
            runs = sorted(path.name for path in directory.parent.glob("*") if path.is_dir())
            raise ConfigurationError(
                f"run_name={directory.name}: mode={self.mode} needs a trained run{did_you_mean(directory.name, runs)} "
                f"(runs in {directory.parent}: {', '.join(runs) or 'none'})"
            )
        if self.replay.storage_dir is not None and not Path(self.replay.storage_dir).is_dir():
            raise ConfigurationError(
                f"replay.storage_dir={self.replay.storage_dir} is not a directory; create it first"
            )
        from trieye.training.environments import check_env

        for key, name in (("sync.transport", self.sync.transport), ("sample.kind", self.sample.kind)):
            if ":" in name:
                project_class(key, name)
        check_env(self.env, self.agent.actions)


def project_class(key: str, name: str) -> Any:
    """Return the class of the project named by the config key `sync.transport` or `sample.kind`.

    Raises:
        ConfigurationError: The class does not exist, or lacks a method.
    """
    from trieye.experiment.experiment import imported

    try:
        return imported(name, _METHODS[key])
    except ConfigurationError as error:
        raise ConfigurationError(f"{key}={error}") from error
