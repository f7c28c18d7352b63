"""TrainingConfig: the whole config of a training by reinforcement."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from trieye.config.agent import AgentConfig, ReplayAgentConfig
from trieye.config.base import StrictModel
from trieye.config.env import EnvConfig
from trieye.config.explorer import ExplorerConfig, SyncConfig
from trieye.config.loop import LoopConfig
from trieye.config.replay import LimiterConfig, ReplayConfig
from trieye.config.root import TrieyeConfig
from trieye.config.sample import SampleConfig
from trieye.exceptions import ConfigurationError

_METHODS = {"sync.transport": ("publish", "fetch"), "sample.kind": ("minibatch", "state_dict", "load_state_dict")}
"""Of a project's own classes; they are chosen by a key, so that their module says all, and nothing is installed. Sinks
are found by entry points, since every run has them without being asked."""


class BenchConfig(StrictModel):
    """Evaluation of stored checkpoints."""

    checkpoints: str = Field(
        default="each",
        min_length=1,
        description="Checkpoints to evaluate: best, latest, step:N, each, or a pattern such as checkpoint_step_*000.",
    )
    episodes: int = Field(default=100, ge=1, description="Number of episodes per checkpoint.")


class ExploreConfig(StrictModel):
    """Collection of rows with the policy of a stored checkpoint."""

    checkpoint: (
        Literal["best", "latest"] | Annotated[str, Field(pattern=r"^step:\d{1,18}$", examples=["step:1200"])]
    ) = Field(default="latest", description="Checkpoint whose policy acts: best, latest or step:N.")
    output: Annotated[str, Field(pattern=r"\.(npz|parquet)$", examples=["rows.npz"])] | None = Field(
        default=None,
        description="Output file, .npz or .parquet, which must not exist yet; null = explored_<N>.npz in the run "
        "directory.",
    )


class TrainingConfig(TrieyeConfig):
    """Everything that a command that trains can be told; a project's own config is a subclass of it."""

    agent: AgentConfig = Field(description="The algorithm and its hyperparameters.")
    env: EnvConfig = Field(description="The environment.")
    mode: Literal["both", "train", "explore", "bench"] = Field(
        default="both",
        description="both = collect and learn; train = learn from `data` alone; explore = collect with a checkpoint of "
        "the run `run_name`; bench = evaluate checkpoints of it.",
    )
    data: str | None = Field(
        default=None,
        min_length=1,
        description="Rows that others collected: a .npz or .parquet file that trieye exported, minari:ID, or sb3:FILE.",
    )
    sample: SampleConfig = Field(default_factory=SampleConfig, description="Where the rows of a batch come from.")
    explorer: ExplorerConfig = Field(
        default_factory=ExplorerConfig, description="Processes that collect for the learner."
    )
    sync: SyncConfig = Field(default_factory=SyncConfig, description="When and how they get the learner's weights.")
    explore: ExploreConfig = Field(
        default_factory=ExploreConfig, description="What is collected with mode=explore, and where it goes."
    )
    bench: BenchConfig = Field(default_factory=BenchConfig, description="What is evaluated with mode=bench.")
    loop: LoopConfig = Field(
        default_factory=lambda: LoopConfig(axis="env_steps"), description="Length and rhythm of the training."
    )

    @model_validator(mode="after")
    def _data_has_a_use(self) -> Self:
        samples = None if self.sample.kind == "default" else f"sample={self.sample.kind}"
        use = "mode=train" if self.mode == "train" else samples
        may_have_data = use == samples and ":" in self.sample.kind  # a class of the project knows whether it wants some
        if use is None and self.data is not None:
            raise ValueError(f"data={self.data} has no use here; choose mode=train, sample=mix or sample=warmup")
        if use is not None and self.data is None and not may_have_data:
            raise ValueError(f"{use} needs rows that others collected: set data=<file>")
        if use is not None and not isinstance(self.agent, ReplayAgentConfig):
            raise ValueError(f"{use} is not for an agent that learns from what it has just collected")
        if self.mode == "train" and self.loop.axis != "updates":
            raise ValueError(f"mode=train makes no environment steps; set loop.axis=updates, not {self.loop.axis}")
        return self

    @model_validator(mode="after")
    def _the_replay_fits(self) -> Self:
        replay, kind = self.replay, getattr(self.agent, "kind", type(self.agent).__name__)
        if not isinstance(self.agent, ReplayAgentConfig):
            if replay.kind == "fragment" and self.explorer.num:
                return self
            if replay != ReplayConfig():
                raise ValueError(
                    f"agent={kind} learns from what it has just collected, and has no replay: leave it out"
                )
            return self
        if replay.kind not in {"uniform", "prioritized"}:
            raise ValueError(f"replay.kind={replay.kind} is not for agent={kind}; choose uniform or prioritized")
        if replay.frame_stack:
            raise ValueError("replay.frame_stack: stacks are made by env.frame_stack, for the policy sees them, too")
        if replay.limiter != LimiterConfig():
            raise ValueError("replay.limiter: the ratio is agent.updates_per_env_step, from agent.learning_starts on")
        uses = self.agent.updates_per_env_step * self.agent.batch_size
        if replay.max_reuse is not None and replay.max_reuse < 2 * uses:
            raise ValueError(
                f"replay.max_reuse={replay.max_reuse}: the rows would run out, since each is drawn {uses:g} times on "
                "average (agent.updates_per_env_step x agent.batch_size); at least twice as many are needed"
            )
        collected = self.agent.rollout_steps * self.env.num
        if self.mode == "both" and replay.capacity < collected:
            raise ValueError(
                f"replay.capacity={replay.capacity} holds fewer rows than are collected at once, {collected} "
                "(agent.rollout_steps x env.num): some would be overwritten before any is learned from"
            )
        if "gamma" in replay.model_fields_set and replay.gamma not in {self.agent.gamma, ReplayConfig().gamma}:
            raise ValueError(
                f"replay.gamma={replay.gamma}: the discount of a training is agent.gamma={self.agent.gamma}"
            )
        return self

    @model_validator(mode="after")
    def _chunks_are_single_fragments(self) -> Self:
        per_chunk = self.replay.fragment.fragments_per_chunk
        if self.explorer.num and per_chunk > 1:
            raise ValueError(
                f"replay.fragment.fragments_per_chunk={per_chunk}: explorers deliver chunks of one fragment; "
                "raise explorer.fragment_steps for longer fragments"
            )
        return self

    @model_validator(mode="after")
    def _exploring_ends(self) -> Self:
        if self.mode == "explore" and self.loop.axis != "env_steps":
            raise ValueError(f"mode=explore makes environment steps; set loop.axis=env_steps, not {self.loop.axis}")
        if self.mode == "explore" and self.loop.steps is None and self.loop.env_steps is None:
            raise ValueError("mode=explore would never stop; set loop.env_steps, how many steps are collected")
        return self

    @model_validator(mode="after")
    def _evaluations_fit(self) -> Self:
        if self.loop.background_evaluation and self.env.eval_video:
            raise ValueError(
                "env.eval_video records where the training is; leave it out, or loop.background_evaluation"
            )
        return self

    @property
    def schedule_axis(self) -> Literal["env_steps", "updates"]:
        """What schedules count; `mode=train` makes no environment steps."""
        return "updates" if self.mode == "train" else "env_steps"

    @property
    def explore_steps(self) -> int:
        """How many environment steps `mode=explore` makes."""
        return min(steps for steps in (self.loop.steps, self.loop.env_steps) if steps is not None)

    @model_validator(mode="after")
    def _explorers_fit(self) -> Self:
        explorer, sync, runtime = self.explorer, self.sync, self.runtime.kind
        if self.mode == "explore":
            if sync not in (SyncConfig(), SyncConfig(transport="checkpoint")):
                raise ValueError(
                    "mode=explore has no learner to be in step with; all that sync can say is "
                    "sync.transport=checkpoint, to follow the weights of the run while another process trains it"
                )
            return self
        if not explorer.num:
            if sync != SyncConfig():
                raise ValueError("sync is how explorers get weights, and there are none; set explorer.num")
            return self
        if self.mode == "train":
            raise ValueError(f"mode=train learns from data alone; leave out explorer.num={explorer.num}")
        if runtime == "local" and sync.transport in {"object_store", "collective"}:
            raise ValueError(
                f"sync.transport={sync.transport} is for processes, and with runtime=local explorers are threads; set "
                "runtime=ray, or sync.transport=auto"
            )
        if runtime != "local" and sync.transport == "local":
            raise ValueError(f"sync.transport=local is for threads, and with runtime={runtime} explorers are processes")
        if sync.offset and sync.style != "fixed":
            raise ValueError(f"sync.offset={sync.offset} is for sync.style=fixed; set sync.max_staleness")
        return self

    def check(self) -> None:
        """Refuse an environment or a directory that is not there or of no use, before anything is started."""
        super().check()
        if self.replay.storage_dir is not None and not Path(self.replay.storage_dir).is_dir():
            raise ConfigurationError(f"replay.storage_dir={self.replay.storage_dir} is no directory; make it first")
        from trieye.training.environments import check_env

        for key, name in (("sync.transport", self.sync.transport), ("sample.kind", self.sample.kind)):
            if ":" in name:
                own_class(key, name)
        check_env(self.env, self.agent.actions)


def own_class(key: str, name: str) -> Any:
    """Return the class of a project that a key names, `sync.transport` or `sample.kind`.

    Raises:
        ConfigurationError: It is not there, or lacks a method.
    """
    from trieye.experiment.experiment import imported

    try:
        return imported(name, _METHODS[key])
    except ConfigurationError as error:
        raise ConfigurationError(f"{key}={error}") from error
