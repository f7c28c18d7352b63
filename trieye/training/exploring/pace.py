"""Pace: when weights are published, and when an explorer may begin a fragment; pure functions of counts."""

from collections.abc import Sequence
from dataclasses import dataclass

from trieye.config.explorer import SyncConfig


@dataclass(frozen=True, slots=True)
class Counts:
    """How far a training with explorers is. A fragment is outstanding until the learner takes it.

    Attributes:
        explorers: How many there are that were not given up.
        steps_left: Steps of the learner until the next version that have not taken their fragments; see `steps_left`.
        outstanding: Fragments of all explorers that are outstanding.
        own_outstanding: Outstanding fragments of this explorer.
        own_on_version: Fragments that it began with the newest weights.
    """

    explorers: int
    steps_left: int
    outstanding: int
    own_outstanding: int
    own_on_version: int


class Pace:
    """The rules of `sync.style`.

    A step of the learner takes as many fragments as there are explorers. A fragment is held back, rather than dropped
    later, if the learner could take it only when it is too stale: with `n` explorers, and `s` steps left until the next
    version, fewer than `n * (s + interval * max_staleness)` fragments are outstanding, so that all of them are taken
    before version + max_staleness is superseded. The learner waits for old fragments where taking newer ones would
    leave too many of them for later, and does not publish a version for which one that is outstanding would be too
    stale. `fixed` counts the fragments of each explorer for itself, with `offset` instead of the staleness.

    No rule looks at what happened before: each holds after a resume with other numbers, too.

    Args:
        config: The style and its numbers.
        max_staleness: Versions that a fragment may be behind; None: as in the config.
    """

    def __init__(self, config: SyncConfig, max_staleness: int | None = None) -> None:
        self._config = config
        self._staleness = config.max_staleness if max_staleness is None else min(max_staleness, config.max_staleness)

    def needs_publish(self, step: int, published_step: int, *, is_asked: bool) -> bool:
        """Tell whether the learner publishes after so many steps.

        Args:
            step: Steps of the learner.
            published_step: Those at the last publish.
            is_asked: Whether an explorer waits for weights.
        """
        if step <= published_step:
            return False
        if self._config.style == "explorer_driven":
            return is_asked
        return step - published_step >= self._config.interval

    def asks(self, counts: Counts) -> bool:
        """Tell whether an explorer asks for newer weights before it begins another fragment."""
        return self._config.style == "explorer_driven" and counts.own_on_version >= self._config.interval

    def steps_left(self, steps: int, *, has_taken: bool) -> int:
        """Return how many steps of the learner will take fragments before the next version.

        Args:
            steps: Steps since the last publish.
            has_taken: Whether the present one has taken its fragments.
        """
        if self._config.style == "explorer_driven":  # there is a version when one is asked for
            return self._config.interval
        return max(self._config.interval - steps, 1) - has_taken

    def may_begin(self, counts: Counts) -> bool:
        """Tell whether an explorer may begin a fragment now, if it does not ask for weights."""
        config = self._config
        if config.style == "fixed":
            return counts.own_outstanding < config.offset + counts.steps_left
        return counts.outstanding < counts.explorers * (counts.steps_left + self._staleness * config.interval)

    def may_take(self, version: int, left: Sequence[int], *, explorers: int, steps_left: int) -> bool:
        """Tell whether the learner may take now what is there, or has to wait for older fragments under way.

        What is left over then must all be learned from before it is too stale, with `explorers` fragments to a step.

        Args:
            version: Of the newest weights.
            left: Versions of the fragments that are left, those under way included.
            explorers: How many there are.
            steps_left: Steps of the learner after this one until the next version.
        """
        config = self._config
        if config.style in {"fixed", "explorer_driven"}:
            return True
        for ahead in range(self._staleness + 1):
            due = sum(begun <= version + ahead - self._staleness for begun in left)
            if due > explorers * (steps_left + ahead * config.interval):
                return False
        return True

    def is_fresh(self, begun: int, version: int) -> bool:
        """Return whether a fragment of one version may be learned from with another."""
        return self._config.style == "fixed" or version - begun <= self._staleness
