"""What writers bring to a fragment buffer and readers get, and the rules that a buffer keeps."""

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray

from trieye.config.replay import ReplayConfig
from trieye.exceptions import ConfigurationError
from trieye.replay.rows.schema import check_keys, check_known

Array = NDArray[Any]

AddStatus = Literal[
    "accepted", "gap", "early", "duplicate", "old_incarnation", "stale", "wrong_session", "future_version", "rejected",
    "full",
]  # fmt: skip

Policy = Literal["discard", "resume"]
SamplerName = Literal["uniform", "prioritized", "oldest"]

_LIMIT = 1 << 63


@dataclass(frozen=True, slots=True)
class FragmentMeta:
    """Where a fragment comes from.

    Attributes:
        worker: Name of the stream; one environment of one process, say.
        fid: Number of the fragment in its stream: 0, 1, 2, ...
        model_version: Version of the weights at the fragment's first step; -1 before the first update.
        session: The training run that the weights belong to; empty before the first update.
        incarnation: Raised by a worker that was restarted, whose fragments are numbered from the start again.

    Raises:
        ConfigurationError: A number is out of its range, or a name is no text.
    """

    worker: str
    fid: int
    model_version: int = -1
    session: str = ""
    incarnation: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.worker, str) or not self.worker or not isinstance(self.session, str):
            raise ConfigurationError(
                f"fragment of worker {self.worker!r}, session {self.session!r}: both must be text, worker not empty"
            )
        for name, lowest in (("fid", 0), ("model_version", -1), ("incarnation", 0)):
            try:
                value = operator.index(getattr(self, name))
            except TypeError as error:
                raise ConfigurationError(
                    f"fragment of worker {self.worker!r}: {name}={getattr(self, name)!r} is no whole number"
                ) from error
            if not lowest <= value < _LIMIT:
                raise ConfigurationError(
                    f"fragment of worker {self.worker!r}: {name}={value} is not from {lowest} to 2**63 - 1"
                )
            object.__setattr__(self, name, value)  # a NumPy integer would overflow, or fail to be written as JSON


@dataclass(frozen=True, slots=True)
class AddResult:
    """What became of a fragment.

    - `accepted`: it is in the chunk that its worker is filling; `gap`: too, but fragments before it are missing, so
      the chunk begins anew with it.
    - `early`: kept aside until `set_version` announces its session or version.
    - `duplicate`, `old_incarnation`: it, or a later one of the worker, came before; ignored.
    - `stale`, `wrong_session`: of no use any more; dropped.
    - `future_version`, `full`: there is no room for it now; nothing was kept, and the same fragment may be sent again.
    - `rejected`: it does not fit the schema.

    Attributes:
        status: One of these words.
        reason: For `rejected`, `full` and `future_version`, a sentence that says why; else empty.
    """

    status: AddStatus
    reason: str = ""

    @property
    def is_kept(self) -> bool:
        """Whether the buffer holds the fragment now."""
        return self.status in {"accepted", "gap", "early"}

    @property
    def should_retry(self) -> bool:
        """Whether the same fragment may be taken later."""
        return self.status in {"full", "future_version"}


@dataclass(frozen=True, slots=True)
class Fragment:
    """A slice of the experience of one worker.

    Attributes:
        meta: Where it comes from.
        data: Read-only arrays by key, views of one block of memory; `[time, ...]` for what every step has.
    """

    meta: FragmentMeta
    data: Mapping[str, Array]

    def __getitem__(self, key: str) -> Array:
        return self.data[key]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive fragments of one worker, as a reader gets them.

    Attributes:
        id: Counts the chunks over the life of the buffer; `update_priorities` takes it.
        fragments: In the order of time, so that returns and advantages can be computed along them.
        model_version: The lowest version among the fragments.
        staleness: The buffer's version when the chunk was handed out, minus `model_version`.
        num_uses: How often it was handed out, this time included.
        weight: Importance weight; 1 without priorities.
    """

    id: int
    fragments: tuple[Fragment, ...]
    model_version: int
    staleness: int
    num_uses: int
    weight: float


@dataclass(frozen=True, slots=True)
class Lease:
    """Chunks that stay readable until the lease is released or runs out.

    Attributes:
        id: What other ranks give to `read`; never used again, not even by a restored buffer.
        chunks: Distinct chunks, in the order in which they were drawn.
    """

    id: str
    chunks: tuple[Chunk, ...]

    def stack(self, keys: Iterable[str] | None = None) -> dict[str, Array]:
        """Copy the chunks into arrays `[chunks, fragments, ...]`, which are the reader's own; see `stack`."""
        return stack(self.chunks, keys)


def lease_id(lease: Lease | str) -> str:
    """Return the id of a lease, or of what is one already."""
    return lease if isinstance(lease, str) else lease.id


def stack(chunks: Iterable[Chunk], keys: Iterable[str] | None = None) -> dict[str, Array]:
    """Copy chunks into new arrays `[chunks, fragments, ...]`.

    Args:
        chunks: At least one.
        keys: The keys wanted; all if None.

    Raises:
        ConfigurationError: A key is unknown, or there is no chunk.
    """
    rows = [[fragment.data for fragment in chunk.fragments] for chunk in chunks]
    if not rows:
        raise ConfigurationError("stack: at least one chunk is needed")
    known = list(rows[0][0])
    wanted = known if keys is None else list(keys)
    check_keys([*known, *wanted], known)
    stacked = {}
    for key in wanted:
        first = rows[0][0][key]
        block = stacked[key] = np.empty((len(rows), len(rows[0]), *first.shape), first.dtype)
        for place, row in enumerate(rows):
            for step, data in enumerate(row):
                block[place, step] = data[key]
    return stacked


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
        sampler: `uniform`; `prioritized` by the priorities that `update_priorities` sets; or the `oldest` first, those
            of the lowest version.
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
            check_known(f"replay.{name}={getattr(self, name)!r}", getattr(self, name), words)

    def check_count(self, n: int) -> None:
        """Check how many chunks are asked for.

        Raises:
            ConfigurationError: It is no whole number from 1 to `max_chunks`.
        """
        if isinstance(n, bool) or not isinstance(n, int | np.integer) or not 1 <= n <= self.max_chunks:
            raise ConfigurationError(
                f"fetch({n!r}): from 1 to max_chunks={self.max_chunks} chunks can be fetched at once, each of "
                f"{self.fragments_per_chunk} fragments"
            )

    @classmethod
    def from_config(cls, config: ReplayConfig) -> Self:
        """Make the rules that the `replay` group of a config describes.

        Raises:
            ConfigurationError: Its kind is another than `fragment`.
        """
        if config.kind != "fragment":
            raise ConfigurationError(f"replay.kind={config.kind} is no buffer of fragments; set it to fragment")
        return cls(**config.fragment_rules)


_LOWEST = {
    "max_chunks": 1, "fragments_per_chunk": 1, "max_staleness": 0, "max_reuse": 1, "max_bytes": 1, "max_early": 0,
    "partial_ttl_s": 0, "lease_ttl_s": 0, "alpha": 0, "beta": 0,
}  # fmt: skip
_OPTIONAL = {"max_staleness", "max_reuse", "max_bytes"}
_REAL = {"partial_ttl_s", "lease_ttl_s", "alpha", "beta"}
