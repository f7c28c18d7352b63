"""Pace: when weights are published, and when an explorer may begin a fragment; pure functions of counts."""

from collections.abc import Sequence
from dataclasses import dataclass

from trieye.config.explorer import SyncConfig


@dataclass(frozen=True, slots=True)
class Counts:
    """How far a training with explorers is.

    Attributes:
        version: Of the newest weights that were published; the first ones are 0.
        explorers: How many there are that were not given up.
        produced: Fragments that were learned from, wait to be, or are under way; lost ones are not counted.
        own_produced: Of these, those of the explorer in question.
        own_on_version: Of these, those that it began with the newest weights.
    """

    version: int
    explorers: int
    produced: int
    own_produced: int
    own_on_version: int


class Pace:
    """The rules of `sync.style`.

    A step of the learner takes as many fragments as there are explorers. A fragment is held back, rather than dropped
    later, if it could be learned from only when it is too stale: with `a` fragments to a version, those that are
    produced stay below `a * (version + 1 + max_staleness)`, so that whatever is granted now can be learned from before
    version + max_staleness is superseded; and the learner waits for old fragments where taking newer ones would leave
    too many of them for later. `fixed` counts the fragments of each explorer for itself, with `offset` in
    place of the staleness.

    Args:
        config: The style and its numbers.
    """

    def __init__(self, config: SyncConfig) -> None:
        self._config = config

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

    def may_begin(self, counts: Counts) -> bool:
        """Tell whether an explorer may begin a fragment now, if it does not ask for weights."""
        config = self._config
        if config.style == "fixed":
            return counts.own_produced < config.offset + config.interval * (counts.version + 1)
        per_version = counts.explorers * config.interval
        return counts.produced < per_version * (counts.version + 1 + config.max_staleness)

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
        if config.style == "fixed":
            return True
        per_version = 1 if config.style == "explorer_driven" else config.interval
        for ahead in range(config.max_staleness + 1):
            due = sum(begun <= version + ahead - config.max_staleness for begun in left)
            if due > explorers * (steps_left + ahead * per_version):
                return False
        return True
