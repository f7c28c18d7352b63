"""RateLimiter: bounds the ratio of samples to inserts."""

from collections.abc import Mapping
from typing import Any, Self

from trieye.config.replay import LimiterConfig
from trieye.exceptions import ConfigurationError


class RateLimiter:
    """Bounds how far the number of samples may deviate from `samples_per_insert` times the number of inserts.

    Implements Reverb's SampleToInsertRatio (Cassirer et al. 2021, https://arxiv.org/abs/2102.04736, section 3.2). With
    balance = inserts * samples_per_insert - samples and middle = min_size_to_sample * samples_per_insert,

    - rows may be sampled while balance stays at or above middle - error_buffer, once there are `min_size_to_sample`;
    - rows may be inserted while one more row keeps balance at or below middle + error_buffer, and always below
      `min_size_to_sample`. A batch is inserted as a whole, so its other rows may exceed the bound.

    It neither blocks nor locks: the owner of the rows waits, and asks again after each insert or draw.
    """

    def __init__(
        self, samples_per_insert: float, *, min_size_to_sample: int = 1, error_buffer: float | None = None
    ) -> None:
        """Create a limiter with zero counts.

        Args:
            samples_per_insert: Rows drawn per row added.
            min_size_to_sample: Rows that the buffer needs before the first draw.
            error_buffer: Permitted deviation of the balance to either side, in drawn rows. Twice this value must be at
                least the rows of one draw plus `samples_per_insert`, or both can wait forever. If None: a tenth of the
                middle, but at least 2 and 2 * samples_per_insert.

        Raises:
            ConfigurationError: An argument is out of range.
        """
        middle = min_size_to_sample * samples_per_insert
        min_buffer = max(1.0, samples_per_insert)
        error_buffer = max(0.1 * middle, 2 * min_buffer) if error_buffer is None else error_buffer
        if not 0 < samples_per_insert < float("inf"):
            raise ConfigurationError(f"samples_per_insert is {samples_per_insert}; it must be above 0")
        if min_size_to_sample < 1:
            raise ConfigurationError(f"min_size_to_sample is {min_size_to_sample}; it must be at least 1 row")
        if error_buffer < min_buffer:
            raise ConfigurationError(
                f"error_buffer is {error_buffer}; below {min_buffer} for {samples_per_insert} samples per insert, "
                "adding and drawing single rows would deadlock"
            )
        self.samples_per_insert = samples_per_insert
        self.min_size_to_sample = min_size_to_sample
        self.error_buffer = error_buffer
        self._least, self._most = middle - error_buffer, middle + error_buffer
        self._inserts = self._samples = self._removals = 0

    @classmethod
    def from_config(cls, config: LimiterConfig) -> Self | None:
        """Create the limiter that a config describes; None if it sets no ratio."""
        return None if config.samples_per_insert is None else cls(**config.model_dump())

    def can_insert(self) -> bool:
        """Return whether a row, or a whole batch, may be inserted now."""
        if self._inserts - self._removals < self.min_size_to_sample:
            return True
        return (self._inserts + 1) * self.samples_per_insert - self._samples <= self._most

    def can_sample(self, n: int = 1) -> bool:
        """Return whether `n` rows may be drawn now.

        Raises:
            ConfigurationError: `n` rows can never be drawn at once.
        """
        is_allowed = self._inserts * self.samples_per_insert - self._samples - n >= self._least
        if is_allowed and self._inserts - self._removals >= self.min_size_to_sample:
            return True
        if (room := n + self.samples_per_insert) > self._most - self._least:
            raise ConfigurationError(
                f"sample({n}) can never succeed: with {self.samples_per_insert:g} samples per insert it needs an "
                f"error_buffer of at least {room / 2:g}, got {self.error_buffer:g}"
            )
        return False

    def inserted(self, n: int) -> None:
        """Record that `n` rows were inserted."""
        self._inserts += n

    def sample(self, n: int = 1) -> bool:
        """Count `n` drawn rows if drawing is allowed now, and return whether it is.

        Raises:
            ConfigurationError: `n` rows can never be drawn at once.
        """
        is_allowed = self.can_sample(n)
        self._samples += n * is_allowed
        return is_allowed

    def removed(self, n: int) -> None:
        """Record that `n` rows were removed other than by being overwritten, as by `clear`."""
        self._removals += n

    def state_dict(self) -> dict[str, Any]:
        """Return the counts as plain data."""
        return {"inserts": self._inserts, "samples": self._samples, "removed": self._removals}

    def initial_state_dict(self, num_rows: int, num_samples: float = float("inf")) -> dict[str, Any]:
        """Return counts for rows that were stored without a limiter; the ratio then applies to later inserts and draws.

        Args:
            num_rows: Number of rows.
            num_samples: How often they were drawn; draws beyond the ratio do not count, so that readers need not wait.
        """
        most_samples = max(num_rows - self.min_size_to_sample, 0) * self.samples_per_insert
        return {"inserts": num_rows, "samples": min(num_samples, most_samples), "removed": 0}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore saved counts."""
        self._inserts, self._samples = int(state["inserts"]), int(state["samples"])
        self._removals = int(state["removed"])
