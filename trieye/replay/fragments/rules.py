"""FragmentRules: how much a fragment buffer keeps, for how long, and how it chooses."""

from dataclasses import dataclass
from typing import Literal, Self, get_args

from trieye.config.base import did_you_mean
from trieye.config.replay import ReplayConfig
from trieye.exceptions import ConfigurationError
from trieye.replay.fragments.sessions import Policy

SamplerName = Literal["uniform", "prioritized"]


@dataclass(frozen=True, kw_only=True)
class FragmentRules:
    """How much a fragment buffer keeps, for how long, and how it chooses.

    Attributes:
        max_chunks: Chunks that can be handed out; the oldest leaves for a new one.
        fragments_per_chunk: Consecutive fragments of one worker that make a chunk.
        max_staleness: A chunk whose lowest version is more versions behind is never handed out; None for no bound.
        max_reuse: A chunk leaves when it was handed out this often; None for no bound.
        max_bytes: Bytes of payload of everything held, chunks on lease included; None for no bound. The oldest chunks
            leave for new fragments; where that does not help, writers are told that it is full.
        max_early: Fragments kept aside because their session or version was not announced yet.
        partial_ttl_s: Seconds without a fragment after which a chunk that was not finished is dropped, and those after
            which an early fragment is.
        lease_ttl_s: Seconds since the fetch or the last `read` after which a lease runs out.
        session_policy: What happens to the content when another session is announced: `discard` it, or `resume` with
            it, as a run does that goes on under a new name.
        sampler: `uniform`, or `prioritized` by the priorities that `update_priorities` sets.
        alpha: Exponent of the priorities; 0 is uniform.
        beta: Exponent of the importance weights; 1 corrects the bias wholly.

    Raises:
        ConfigurationError: A value is out of its range.
    """

    max_chunks: int
    fragments_per_chunk: int = 1
    max_staleness: int | None = None
    max_reuse: int | None = None
    max_bytes: int | None = None
    max_early: int = 1024
    partial_ttl_s: float = 600.0
    lease_ttl_s: float = 600.0
    session_policy: Policy = "discard"
    sampler: SamplerName = "uniform"
    alpha: float = 0.6
    beta: float = 0.4

    def __post_init__(self) -> None:
        for name, lowest in _LOWEST.items():
            value = getattr(self, name)
            if value is None and name in _OPTIONAL:
                continue
            kinds = (int, float) if name in _REAL else (int,)
            if not isinstance(value, kinds) or isinstance(value, bool) or not value >= lowest:
                number = "a number" if name in _REAL else "a whole number"
                raise ConfigurationError(f"replay.{name}={value!r}: {number} of at least {lowest} is expected")
        for name, words in (("session_policy", get_args(Policy)), ("sampler", get_args(SamplerName))):
            value = getattr(self, name)
            if value not in words:
                raise ConfigurationError(
                    f"replay.{name}={value!r} is unknown{did_you_mean(str(value), words)} (known: {', '.join(words)})"
                )

    @classmethod
    def from_config(cls, config: ReplayConfig) -> Self:
        """Make the rules that the `replay` group of a config describes.

        Raises:
            ConfigurationError: Its kind is another than `fragment`.
        """
        if config.kind != "fragment":
            raise ConfigurationError(f"replay.kind={config.kind} is no buffer of fragments; set it to fragment")
        return cls(
            max_chunks=config.capacity,
            max_staleness=config.max_staleness,
            max_reuse=config.max_reuse,
            **config.fragment.model_dump(),
        )


_LOWEST = {
    "max_chunks": 1, "fragments_per_chunk": 1, "max_staleness": 0, "max_reuse": 1, "max_bytes": 1, "max_early": 0,
    "partial_ttl_s": 0, "lease_ttl_s": 0, "alpha": 0, "beta": 0,
}  # fmt: skip
_OPTIONAL = {"max_staleness", "max_reuse", "max_bytes"}
_REAL = {"partial_ttl_s", "lease_ttl_s", "alpha", "beta"}
