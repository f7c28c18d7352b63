"""SyncRules: decides when weights are published and explorers may start fragments; pure functions of counts."""

from collections.abc import Sequence

from trieye.config.explorer import SyncConfig


class SyncRules:
    """The rules of `sync.style`.

    With `n` explorers, a learner step takes `n` fragments. A fragment that the learner could only take when it is too
    stale is delayed instead of dropped later: with `s` steps left until the next version, fewer than
    `n * (s + interval * max_staleness)` fragments are outstanding, so that all of them are taken before
    version + max_staleness is superseded. The learner waits for old fragments if taking newer ones would leave too many
    old ones for later, and does not publish a version for which an outstanding fragment would be too stale. `fixed`
    counts the fragments of each explorer separately, with `offset` instead of the staleness.

    The rules depend only on current counts, so that they also hold after a resume with other settings.

    Args:
        config: The style and its parameters.
        max_staleness: Largest number of versions that a fragment may lag; None: as in the config.
    """

    def __init__(self, config: SyncConfig, max_staleness: int | None = None) -> None:
        self._config = config
        self._staleness = config.max_staleness if max_staleness is None else min(max_staleness, config.max_staleness)

    def needs_publish(self, step: int, published_step: int, *, is_requested: bool) -> bool:
        """Return whether the learner publishes after a step.

        Args:
            step: Learner steps so far.
            published_step: Learner steps at the last publish.
            is_requested: Whether an explorer waits for weights.
        """
        if step <= published_step:
            return False
        if self._config.style == "explorer_driven":
            return is_requested
        return step - published_step >= self._config.interval

    def wants_weights(self, own_on_version: int) -> bool:
        """Return whether an explorer waits for newer weights before it starts another fragment.

        Args:
            own_on_version: Fragments that it started with the newest weights.
        """
        return self._config.style == "explorer_driven" and own_on_version >= self._config.interval

    def steps_left(self, steps: int, *, has_fragments: bool) -> int:
        """Return how many learner steps will take fragments before the next version.

        Args:
            steps: Steps since the last publish.
            has_fragments: Whether the current step has taken its fragments.
        """
        if self._config.style == "explorer_driven":  # publishes on request
            return self._config.interval
        return max(self._config.interval - steps, 1) - has_fragments

    def may_begin(self, num_own: int, outstanding: int, *, explorers: int, steps_left: int) -> bool:
        """Return whether an explorer that does not wait for weights may start a fragment now.

        A fragment is outstanding until the learner takes it.

        Args:
            num_own: Outstanding fragments of this explorer.
            outstanding: Outstanding fragments of all explorers.
            explorers: Number of explorers that were not abandoned.
            steps_left: Learner steps before the next version that have not taken their fragments; see `steps_left`.
        """
        config = self._config
        if config.style == "fixed":
            return num_own < config.offset + steps_left
        return outstanding < explorers * (steps_left + self._staleness * config.interval)

    def may_take(self, version: int, remaining: Sequence[int], *, explorers: int, steps_left: int) -> bool:
        """Return whether the learner may take the waiting fragments, or has to wait for older ones in flight.

        The remaining fragments must all be usable before they are too stale, with `explorers` fragments per step.

        Args:
            version: Version of the newest weights.
            remaining: Versions of the remaining fragments, including those in flight.
            explorers: Number of explorers.
            steps_left: Learner steps after this one until the next version.
        """
        config = self._config
        if config.style in {"fixed", "explorer_driven"}:
            return True
        for ahead in range(self._staleness + 1):
            num_due = sum(fragment_version <= version + ahead - self._staleness for fragment_version in remaining)
            if num_due > explorers * (steps_left + ahead * config.interval):
                return False
        return True

    def is_fresh(self, fragment_version: int, version: int) -> bool:
        """Return whether the learner may use a fragment of version `fragment_version` at `version`."""
        return self._config.style == "fixed" or version - fragment_version <= self._staleness
