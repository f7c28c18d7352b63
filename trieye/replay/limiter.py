"""Limiter: keeps samples and inserts of a replay buffer in a ratio; Pacing: all that a buffer has to wait for."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Self
from weakref import WeakSet

from trieye.config.replay import LimiterConfig
from trieye.exceptions import ConfigurationError, ReplayTimeoutError
from trieye.replay.prefetch import Prefetcher


class Limiter:
    """Bounds how far samples may be ahead of, or behind, a number of samples per insert.

    It follows Reverb's SampleToInsertRatio (Cassirer et al. 2021, https://arxiv.org/abs/2102.04736, section 3.2). With
    balance = inserts * samples_per_insert - samples and middle = min_size_to_sample * samples_per_insert,

    - rows may be sampled while balance stays at or above middle - error_buffer, once there are `min_size_to_sample`;
    - rows may be inserted while balance stays at or below middle + error_buffer, and always until there are so many.

    It waits for nothing and has no lock: whoever owns the rows does, and asks again when some came or were drawn.
    """

    def __init__(
        self, samples_per_insert: float, *, min_size_to_sample: int = 1, error_buffer: float | None = None
    ) -> None:
        """Make a limiter that has seen nothing.

        Args:
            samples_per_insert: Rows drawn for each row added.
            min_size_to_sample: Rows that must be there before any is drawn.
            error_buffer: Rows drawn that the balance may be off to either side. Twice as much must be room for the
                rows that are drawn at once together with those that are added at once, or both wait for ever. If None:
                a tenth of the middle, at least 2 and 2 * samples_per_insert.

        Raises:
            ConfigurationError: One of them is out of range.
        """
        middle = min_size_to_sample * samples_per_insert
        least = max(1.0, samples_per_insert)
        error_buffer = max(0.1 * middle, 2 * least) if error_buffer is None else error_buffer
        if not 0 < samples_per_insert < float("inf"):
            raise ConfigurationError(f"samples_per_insert is {samples_per_insert}; it must be above 0")
        if min_size_to_sample < 1:
            raise ConfigurationError(f"min_size_to_sample is {min_size_to_sample}; it must be at least 1 row")
        if error_buffer < least:
            raise ConfigurationError(
                f"error_buffer is {error_buffer}; below {least} for {samples_per_insert} samples per insert, "
                "adding and drawing single rows would wait for each other for ever"
            )
        self.samples_per_insert = samples_per_insert
        self.min_size_to_sample = min_size_to_sample
        self.error_buffer = error_buffer
        self._least, self._most = middle - error_buffer, middle + error_buffer
        self._inserts = self._samples = self._removed = 0

    @classmethod
    def from_config(cls, config: LimiterConfig) -> Self | None:
        """Make the limiter that a config describes; None if it describes none."""
        return None if config.samples_per_insert is None else cls(**config.model_dump())

    def __reduce__(self) -> tuple[Any, ...]:
        """Send a new limiter with these settings; what it has counted is part of the buffer's state."""
        return partial(Limiter, min_size_to_sample=self.min_size_to_sample, error_buffer=self.error_buffer), (
            self.samples_per_insert,
        )

    def can_insert(self, n: int = 1) -> bool:
        """Return whether `n` rows may be inserted now.

        Raises:
            ConfigurationError: So many rows could never be inserted at once.
        """
        if self._inserts - self._removed + n <= self.min_size_to_sample:
            return True
        is_allowed = (self._inserts + n) * self.samples_per_insert - self._samples <= self._most
        return is_allowed or self._later(f"insert({n})", n * self.samples_per_insert + 1)

    def can_sample(self, n: int = 1) -> bool:
        """Return whether `n` rows may be drawn now.

        Raises:
            ConfigurationError: So many rows could never be drawn at once.
        """
        is_allowed = self._inserts * self.samples_per_insert - self._samples - n >= self._least
        if is_allowed and self._inserts - self._removed >= self.min_size_to_sample:
            return True
        return self._later(f"sample({n})", n + self.samples_per_insert)

    def insert(self, n: int = 1) -> bool:
        """Count `n` rows that are inserted, if they may be, and return whether they may.

        Raises:
            ConfigurationError: So many rows could never be inserted at once.
        """
        is_allowed = self.can_insert(n)
        self._inserts += n * is_allowed
        return is_allowed

    def sample(self, n: int = 1) -> bool:
        """Count `n` rows that are drawn, if they may be, and return whether they may.

        Raises:
            ConfigurationError: So many rows could never be drawn at once.
        """
        is_allowed = self.can_sample(n)
        self._samples += n * is_allowed
        return is_allowed

    def removed(self, n: int) -> None:
        """Take note that `n` rows were removed other than by being overwritten, as by `clear`."""
        self._removed += n

    def state_dict(self) -> dict[str, Any]:
        """Return the counts as plain data."""
        return {"inserts": self._inserts, "samples": self._samples, "removed": self._removed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over saved counts."""
        self._inserts, self._samples = int(state["inserts"]), int(state["samples"])
        self._removed = int(state["removed"])

    def _later(self, call: str, room: float) -> bool:
        """Return False, not yet; or raise if never."""
        if room > self._most - self._least:
            raise ConfigurationError(
                f"{call} would wait for ever: with {self.samples_per_insert:g} samples per insert it needs an "
                f"error_buffer of {room / 2:g} at least, found {self.error_buffer:g}"
            )
        return False


class Pacing:
    """What adding and drawing rows have to wait for.

    Args:
        limiter: Keeps draws and inserts in a ratio; none if None.

    Attributes:
        limiter: The limiter.
        is_needed: Whether anything has to be waited for or counted.
    """

    def __init__(self, limiter: Limiter | None) -> None:
        self.is_needed = limiter is not None
        self.limiter = limiter
        self._prefetchers: WeakSet[Prefetcher] = WeakSet()

    def watch(self, prefetcher: Prefetcher) -> Prefetcher:
        """Take note of a thread that copies rows, and return it."""
        self._prefetchers.add(prefetcher)
        self.is_needed = True
        return prefetcher

    def settle(self) -> None:
        """Wait until no row is being copied ahead."""
        for prefetcher in list(self._prefetchers):
            prefetcher.settle()

    def before_rows(self, count: int) -> None:
        """Wait until rows may be added.

        Raises:
            ReplayTimeoutError: The limiter wants rows to be drawn first.
        """
        self.settle()
        if self.limiter is not None and not self.limiter.can_insert(count):
            raise ReplayTimeoutError(f"{count} more rows may be added when some were drawn: the limiter says so")

    def after_rows(self, count: int) -> None:
        """Count rows that were added."""
        if self.limiter is not None:
            self.limiter.insert(count)

    def before_draw(self, count: int) -> None:
        """Ask whether rows may be drawn.

        Raises:
            ReplayTimeoutError: The limiter wants rows to be added first.
        """
        if self.limiter is not None and not self.limiter.can_sample(count):
            raise ReplayTimeoutError(f"{count} rows may be drawn when more were added: the limiter says so")

    def after_draw(self, count: int) -> None:
        """Count rows that were drawn."""
        if self.limiter is not None:
            self.limiter.sample(count)

    def close(self) -> None:
        """End the threads."""
        for prefetcher in list(self._prefetchers):
            prefetcher.close()
