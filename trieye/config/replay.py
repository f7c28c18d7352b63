"""ReplayConfig: capacity, storage and sampling of a replay buffer."""

from typing import Any, Literal, Self, get_args

from pydantic import Field, model_validator

from trieye.config.base import StrictModel

ReplayKind = Literal["uniform", "prioritized", "sequence", "fragment"]


class PrioritizedConfig(StrictModel):
    """Prioritized sampling (Schaul et al. 2016)."""

    alpha: float = Field(default=0.6, ge=0, le=10, description="Exponent of the priorities; 0 = uniform sampling.")
    beta: float = Field(
        default=0.4, ge=0, le=1, description="Exponent of the importance weights; 1 = full bias correction."
    )
    beta_draws: int | None = Field(
        default=None, ge=1, description="Number of batches until beta reaches 1, linearly; null = constant beta."
    )
    epsilon: float = Field(
        default=1e-6, ge=0, le=1e6, description="Added to every priority; with 0, rows of priority 0 are never sampled."
    )


class SequenceConfig(StrictModel):
    """Length and start of sequences of consecutive rows."""

    length: int = Field(default=16, ge=1, description="Rows per sequence.")
    period: int = Field(
        default=1, ge=1, description="1 = sequences start at any row; 8 = at rows 0, 8, 16, ... of an episode."
    )
    cross_episodes: bool = Field(default=False, description="Let sequences continue in the next episode.")
    pad: bool = Field(default=False, description="Allow shorter sequences at the end of an episode, with a mask.")


class FragmentConfig(StrictModel):
    """Chunks, leases and sampling of a fragment buffer; `capacity`, `max_staleness` and `max_reuse` apply to chunks."""

    fragments_per_chunk: int = Field(default=1, ge=1, description="Consecutive fragments of one worker per chunk.")
    max_bytes: int | None = Field(default=None, ge=1, description="Maximum bytes of stored fragments; null = no limit.")
    partial_ttl_s: float = Field(
        default=600.0, gt=0, description="Seconds without a fragment after which an incomplete chunk is dropped."
    )
    lease_ttl_s: float = Field(
        default=600.0,
        gt=0,
        description="Seconds without a read after which a reader's lease on the chunks it fetched expires: the next "
        "read fails, and the buffer may free their memory.",
    )
    session_policy: Literal["resume", "discard"] = Field(
        default="discard",
        description="What happens to chunks left by the previous session when a new one starts: resume = keep; "
        "discard = drop. In training, a session is a run name, so this concerns a run that starts from the "
        "checkpoint of another run.",
    )
    sampler: Literal["uniform", "prioritized", "oldest"] = Field(
        default="uniform",
        description="Order of fetched chunks: uniform = random; prioritized = by priority; oldest = lowest weight "
        "version first.",
    )


class LimiterConfig(StrictModel):
    """Ratio of sampled to inserted rows."""

    samples_per_insert: float | None = Field(
        default=None, gt=0, description="Sampled rows per inserted row; null disables the limiter."
    )
    min_size_to_sample: int = Field(default=1, ge=1, description="Rows in the buffer before sampling starts.")
    error_buffer: float | None = Field(
        default=None,
        gt=0,
        description="Allowed deviation from the ratio, in sampled rows; must exceed half a batch. A batch of inserted "
        "rows may exceed it. null = 10% of min_size_to_sample * samples_per_insert, but at least 2 and "
        "2 * samples_per_insert.",
    )


_SAME_IN_BUFFER = (
    "capacity", "sampler_options", "storage", "storage_dir", "n_step", "gamma", "frame_stack", "padding", "dedup_next",
    "max_reuse", "max_staleness", "prefault",
)  # fmt: skip


class ReplayConfig(StrictModel):
    """Capacity, storage and sampling of a replay buffer."""

    kind: ReplayKind = Field(
        default="uniform",
        description="Unit of sampling: uniform, prioritized = single rows; sequence = consecutive rows; fragment "
        "= chunks.",
    )
    capacity: int = Field(
        default=100_000, ge=1, le=1 << 40, description="Maximum number of rows or chunks; the oldest are overwritten."
    )
    storage: Literal["ram", "shm", "mmap"] = Field(
        default="ram",
        description="ram = memory of the process; shm = memory that other processes can read; mmap = files, "
        "which may be larger than the memory.",
    )
    storage_dir: str | None = Field(
        default=None, min_length=1, description="Directory of the files, for storage=mmap only."
    )
    prefault: bool = Field(default=True, description="Allocate memory or disk space at the start.")
    n_step: int = Field(default=1, ge=1, le=1000, description="Rewards summed in an n-step return.")
    gamma: float = Field(default=0.99, ge=0, le=1, description="Discount factor of rewards and values, per row.")
    frame_stack: dict[str, int] = Field(
        default_factory=dict, description="Frames per stack, by key; rows then store single frames."
    )
    padding: Literal["reset", "zero"] = Field(
        default="reset",
        description="What fills a frame stack at the start of an episode: reset = copies of the first frame; zero = "
        "zeros.",
    )
    dedup_next: bool = Field(
        default=False, description="Do not store next_<key> separately; read it from <key> of the next row."
    )
    max_reuse: int | None = Field(default=None, ge=1, description="How often a row may be sampled; null = no limit.")
    max_staleness: int | None = Field(
        default=None, ge=0, description="Weight versions that a sampled row may lag; null = no limit."
    )
    limiter: LimiterConfig = Field(default_factory=LimiterConfig, description="Ratio of samples to inserts.")
    prioritized: PrioritizedConfig = Field(
        default_factory=PrioritizedConfig,
        description="Exponents of priorities and importance weights, for kind=prioritized.",
    )
    sequence: SequenceConfig = Field(
        default_factory=SequenceConfig, description="Shape of sequences, for kind=sequence."
    )
    fragment: FragmentConfig = Field(
        default_factory=FragmentConfig, description="Chunks and leases, for kind=fragment."
    )

    @model_validator(mode="after")
    def _options_match_the_kind(self) -> Self:
        for kind in get_args(ReplayKind):
            options = getattr(self, kind, None)
            if options and kind != self.kind and options.model_fields_set and options != type(options)():
                raise ValueError(f"{kind}.* is only for kind={kind}, but kind is {self.kind}")
        if (self.storage_dir is not None) != (self.storage == "mmap"):
            raise ValueError(f"storage_dir is required by storage=mmap and only for it, but storage is {self.storage}")
        is_bounded = self.max_reuse is not None or self.max_staleness is not None
        if is_bounded and self.kind not in {"uniform", "prioritized", "fragment"}:
            raise ValueError(f"max_reuse and max_staleness apply to single rows and chunks, not to kind={self.kind}")
        return self

    @property
    def sampler_options(self) -> dict[str, Any]:
        """Keyword arguments of the sampler of this kind, for `ReplayBuffer`."""
        options = None if self.kind == "fragment" else getattr(self, self.kind, None)
        return options.model_dump() if options else {}

    @property
    def buffer_arguments(self) -> dict[str, Any]:
        """Keyword arguments for `trieye.replay.ReplayBuffer`, except its limiter and seed."""
        return {"sampler": self.kind, **{name: getattr(self, name) for name in _SAME_IN_BUFFER}}

    @property
    def fragment_rules(self) -> dict[str, Any]:
        """Keyword arguments for `trieye.replay.fragments.FragmentRules`."""
        bounds = {"max_staleness": self.max_staleness, "max_reuse": self.max_reuse}
        return {"max_chunks": self.capacity, **bounds, **self.fragment.model_dump()}
