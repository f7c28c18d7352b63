"""Fragments, chunks and leases: what writers add to a fragment buffer, what readers get, and the buffer's rules."""

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
    """Origin of a fragment.

    Attributes:
        worker: Name of the stream, for instance an environment of a process.
        fid: Number of the fragment in its stream: 0, 1, 2, ...
        model_version: Version of the weights at the fragment's first step; -1 before the first update.
        session: The training run that the weights belong to; empty before the first update.
        incarnation: Incremented when a worker restarts; fragment numbers then start from 0 again.

    Raises:
        ConfigurationError: A number is out of range, or a name is not a string.
    """

    worker: str
    fid: int
    model_version: int = -1
    session: str = ""
    incarnation: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.worker, str) or not self.worker or not isinstance(self.session, str):
            raise ConfigurationError(
                f"fragment of worker {self.worker!r}, session {self.session!r}: both must be strings, worker not empty"
            )
        for name, lowest in (("fid", 0), ("model_version", -1), ("incarnation", 0)):
            try:
                value = operator.index(getattr(self, name))
            except TypeError as error:
                raise ConfigurationError(
                    f"fragment of worker {self.worker!r}: {name}={getattr(self, name)!r} is not an integer"
                ) from error
            if not lowest <= value < _LIMIT:
                raise ConfigurationError(
                    f"fragment of worker {self.worker!r}: {name}={value} is not from {lowest} to 2**63 - 1"
                )
            object.__setattr__(self, name, value)  # NumPy integers can overflow and are not JSON-serializable


@dataclass(frozen=True, slots=True)
class AddResult:
    """Outcome of adding a fragment.

    - `accepted`: the fragment joined the chunk that its worker is filling; `gap`: the same, but earlier fragments are
      missing, so it starts a new chunk.
    - `early`: stored until `set_version` announces its session or version.
    - `duplicate`, `old_incarnation`: the buffer already got it or a later fragment of the worker; ignored.
    - `stale`, `wrong_session`: no longer usable; dropped.
    - `future_version`, `full`: no room now; not stored, and the same fragment may be sent again.
    - `rejected`: does not match the schema.

    Attributes:
        status: One of these words.
        reason: The cause of `rejected`, `full` or `future_version`; otherwise empty.
    """

    status: AddStatus
    reason: str = ""

    @property
    def is_kept(self) -> bool:
        """True if the buffer stored the fragment."""
        return self.status in {"accepted", "gap", "early"}

    @property
    def should_retry(self) -> bool:
        """True if the same fragment may be accepted later."""
        return self.status in {"full", "future_version"}


@dataclass(frozen=True, slots=True)
class Fragment:
    """A slice of the experience of one worker.

    Attributes:
        meta: The fragment's origin.
        data: Read-only arrays by key; `[time, ...]` for per-step values.
        id: Sequence number over the lifetime of the buffer.
    """

    meta: FragmentMeta
    data: Mapping[str, Array]
    id: int

    def __getitem__(self, key: str) -> Array:
        return self.data[key]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive fragments of one worker, as returned to a reader.

    Attributes:
        id: Sequence number over the lifetime of the buffer; the key for `update_priorities`.
        fragments: In time order, so that returns and advantages can be computed across them.
        model_version: The lowest version among the fragments.
        staleness: The buffer's version when the chunk was fetched, minus `model_version`.
        num_uses: Number of fetches, including this one.
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
    """Chunks that stay readable until the lease is released or expires.

    Attributes:
        id: The argument of `read` for other ranks; never reused, not even by a restored buffer.
        chunks: Distinct chunks in draw order.
    """

    id: str
    chunks: tuple[Chunk, ...]

    def stack(self, keys: Iterable[str] | None = None) -> dict[str, Array]:
        """Copy the chunks into new arrays `[chunks, fragments, ...]`; see `stack`."""
        return stack(self.chunks, keys)


def lease_id(lease: Lease | str) -> str:
    """Return the id of a lease, or the argument if it is an id."""
    return lease if isinstance(lease, str) else lease.id


def stack(chunks: Iterable[Chunk], keys: Iterable[str] | None = None) -> dict[str, Array]:
    """Copy chunks into new arrays `[chunks, fragments, ...]`.

    Args:
        chunks: At least one chunk.
        keys: The keys to return; all if None.

    Raises:
        ConfigurationError: A key is unknown, or there are no chunks.
    """
    rows = [[fragment.data for fragment in chunk.fragments] for chunk in chunks]
    if not rows:
        raise ConfigurationError("stack: expected at least one chunk")
    fragment_keys = list(rows[0][0])
    selected_keys = fragment_keys if keys is None else list(keys)
    check_keys([*fragment_keys, *selected_keys], fragment_keys)
    columns = {}
    for key in selected_keys:
        first_array = rows[0][0][key]
        block = columns[key] = np.empty((len(rows), len(rows[0]), *first_array.shape), first_array.dtype)
        for index, row in enumerate(rows):
            for step, data in enumerate(row):
                block[index, step] = data[key]
    return columns


@dataclass(frozen=True, kw_only=True)
class FragmentRules:
    """Capacity, retention and sampling of a fragment buffer.

    Attributes:
        max_chunks: Maximum number of chunks that can be fetched; a new chunk evicts the oldest.
        fragments_per_chunk: Consecutive fragments of one worker per chunk.
        max_staleness: Maximum versions that a fetched chunk's lowest version may lag behind; unlimited if None.
        max_reuse: Number of fetches after which a chunk is removed; unlimited if None.
        max_bytes: Maximum payload bytes of all stored fragments, including leased chunks; unlimited if None. New
            fragments evict the oldest chunks; if that frees too little, they are refused as `full`.
        max_early: Maximum number of stored fragments whose session or version has not been announced yet.
        partial_ttl_s: Seconds without a new fragment after which an incomplete chunk is dropped, and age in seconds at
            which an early fragment is dropped.
        lease_ttl_s: Lifetime of a lease in seconds since its fetch or last `read`.
        session_policy: Effect of a new session on the content: `discard` it, or `resume` with it, for a run that
            resumes under a new name.
        sampler: `uniform`; `prioritized`, by the priorities of `update_priorities`; or `oldest`, lowest version first.
        alpha: Exponent of the priorities; 0 is uniform.
        beta: Exponent of the importance weights; 1 corrects the bias fully.

    Raises:
        ConfigurationError: A value is out of range.
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
                expected_type = "a number" if name in _REAL else "an integer"
                raise ConfigurationError(f"replay.{name}={value!r}: expected {expected_type} >= {lowest}")
        for name, words in (("session_policy", get_args(Policy)), ("sampler", get_args(SamplerName))):
            check_known(f"replay.{name}={getattr(self, name)!r}", getattr(self, name), words)

    def check_count(self, n: int) -> None:
        """Check the number of chunks to fetch.

        Raises:
            ConfigurationError: The number is not an integer from 1 to `max_chunks`.
        """
        if isinstance(n, bool) or not isinstance(n, int | np.integer) or not 1 <= n <= self.max_chunks:
            raise ConfigurationError(
                f"fetch({n!r}): expected 1 to max_chunks={self.max_chunks} chunks, each of "
                f"{self.fragments_per_chunk} fragments"
            )

    @classmethod
    def from_config(cls, config: ReplayConfig) -> Self:
        """Create the rules that the `replay` group of a config describes.

        Raises:
            ConfigurationError: Its kind is not `fragment`.
        """
        if config.kind != "fragment":
            raise ConfigurationError(f"replay.kind={config.kind} is not a fragment buffer; set replay.kind=fragment")
        return cls(**config.fragment_rules)


_LOWEST = {
    "max_chunks": 1, "fragments_per_chunk": 1, "max_staleness": 0, "max_reuse": 1, "max_bytes": 1, "max_early": 0,
    "partial_ttl_s": 0, "lease_ttl_s": 0, "alpha": 0, "beta": 0,
}  # fmt: skip
_OPTIONAL = {"max_staleness", "max_reuse", "max_bytes"}
_REAL = {"partial_ttl_s", "lease_ttl_s", "alpha", "beta"}
