"""ReplayConfig: what a replay buffer keeps, where, and how it is drawn."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from trieye.config.base import StrictModel


class PrioritizedConfig(StrictModel):
    """How much priorities count (Schaul et al. 2016)."""

    alpha: float = Field(default=0.6, ge=0, le=10, description="Exponent of the priorities; with 0 they do not count.")
    beta: float = Field(
        default=0.4, ge=0, le=1, description="Exponent of the importance weights; with 1 no bias is left."
    )
    beta_draws: int | None = Field(
        default=None, ge=1, description="Batches over which beta grows to 1, linearly; null = it stays as it is."
    )
    epsilon: float = Field(
        default=1e-6, ge=0, le=1e6, description="Added to every priority; with 0, rows of priority 0 are never drawn."
    )


class SequenceConfig(StrictModel):
    """Which consecutive rows make a sequence."""

    length: int = Field(default=16, ge=1, description="Rows in a sequence.")
    period: int = Field(
        default=1, ge=1, description="1 = any row starts a sequence; 8 = rows 0, 8, 16, ... of an episode do."
    )
    cross_episodes: bool = Field(default=False, description="Let a sequence go on with the next episode.")
    pad: bool = Field(default=False, description="Let a sequence be shorter, with a mask, where the episode ends.")


class FragmentConfig(StrictModel):
    """What a buffer of fragments keeps; `capacity` counts chunks, `max_staleness` and `max_reuse` bound them."""

    fragments_per_chunk: int = Field(default=1, ge=1, description="Consecutive fragments of one worker in a chunk.")
    max_bytes: int | None = Field(default=None, ge=1, description="Bytes of all that is held; null = no bound.")
    partial_ttl_s: float = Field(
        default=600.0, gt=0, description="Seconds without a fragment after which an unfinished chunk is dropped."
    )
    lease_ttl_s: float = Field(default=600.0, gt=0, description="Seconds without use after which a lease runs out.")
    session_policy: Literal["resume", "discard"] = Field(
        default="discard", description="What a new session does with the chunks of the one before."
    )
    sampler: Literal["uniform", "prioritized", "oldest"] = Field(
        default="uniform", description="How chunks are drawn: at random, by priorities, the lowest version first."
    )


class LimiterConfig(StrictModel):
    """How often a row is drawn, on average."""

    samples_per_insert: float | None = Field(
        default=None, gt=0, description="Rows drawn for each row added; null = as one likes."
    )
    min_size_to_sample: int = Field(default=1, ge=1, description="Rows that must be there before any is drawn.")
    error_buffer: float | None = Field(
        default=None,
        gt=0,
        description="Rows drawn that may be too many or too few, over half a batch; null = a tenth of the first ones.",
    )


class ReplayConfig(StrictModel):
    """What a replay buffer keeps, where, and how it is drawn."""

    kind: Literal["uniform", "prioritized", "sequence", "fragment"] = Field(
        default="uniform",
        description="`uniform` and `prioritized` = single rows; `sequence` = consecutive rows; `fragment` = chunks.",
    )
    capacity: int = Field(
        default=100_000, ge=1, le=1 << 40, description="Rows (chunks) kept; the oldest is overwritten first."
    )
    storage: Literal["ram", "shm", "mmap"] = Field(
        default="ram",
        description="Where rows live: memory; memory that other processes can read; files larger than the memory.",
    )
    storage_dir: str | None = Field(default=None, min_length=1, description="Directory for `mmap`, and for no other.")
    prefault: bool = Field(default=True, description="Take the memory or disk space at the start.")
    n_step: int = Field(default=1, ge=1, le=1000, description="Rows that a reward is summed over.")
    gamma: float = Field(default=0.99, ge=0, le=1, description="Discount of a reward, or a value, one row later.")
    frame_stack: dict[str, int] = Field(
        default_factory=dict, description="Frames in a stack, by key; rows then hold single frames."
    )
    padding: Literal["reset", "zero"] = Field(
        default="reset", description="What a stack has before an episode: its first frame again, or zeros."
    )
    dedup_next: bool = Field(default=False, description="Keep next_<key> once, as the <key> of the next row.")
    max_reuse: int | None = Field(default=None, ge=1, description="Times that a row may be drawn; null = any.")
    max_staleness: int | None = Field(
        default=None, ge=0, description="Model versions that a drawn row may be behind; null = any."
    )
    limiter: LimiterConfig = Field(default_factory=LimiterConfig, description="Keeps draws and inserts in a ratio.")
    prioritized: PrioritizedConfig = Field(
        default_factory=PrioritizedConfig, description="How much priorities count, for kind=prioritized."
    )
    sequence: SequenceConfig = Field(
        default_factory=SequenceConfig, description="Which rows make a sequence, for kind=sequence."
    )
    fragment: FragmentConfig = Field(
        default_factory=FragmentConfig, description="What is kept of fragments, for kind=fragment."
    )

    @model_validator(mode="after")
    def _settings_are_those_of_the_kind(self) -> Self:
        for kind in ("prioritized", "sequence", "fragment"):
            options = getattr(self, kind)
            if kind != self.kind and options.model_fields_set and options != type(options)():
                raise ValueError(f"{kind}.* is only for kind={kind}, and kind is {self.kind}")
        if (self.storage_dir is not None) != (self.storage == "mmap"):
            raise ValueError(f"storage_dir is needed for storage=mmap and for no other, and storage is {self.storage}")
        if self.kind == "sequence" and (self.max_reuse is not None or self.max_staleness is not None):
            raise ValueError("max_reuse and max_staleness bound single rows and chunks; kind=sequence has neither")
        return self

    @property
    def sampler_options(self) -> dict[str, Any]:
        """The options of the sampler of this kind, as `ReplayBuffer` takes them."""
        if self.kind == "prioritized":
            return self.prioritized.model_dump()
        return self.sequence.model_dump() if self.kind == "sequence" else {}

    @property
    def fragment_rules(self) -> dict[str, Any]:
        """The rules of a buffer of fragments, as `trieye.replay.fragments.FragmentRules` takes them."""
        bounds = {"max_staleness": self.max_staleness, "max_reuse": self.max_reuse}
        return {"max_chunks": self.capacity, **bounds, **self.fragment.model_dump()}
