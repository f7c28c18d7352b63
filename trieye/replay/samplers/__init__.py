"""Samplers by name: which rows of a replay buffer are drawn."""

from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any, TypeVar

from trieye.exceptions import ConfigurationError
from trieye.replay.rows.episodes import EpisodeLinks
from trieye.replay.rows.schema import check_known
from trieye.replay.samplers.base import Sampler, UniformSampler
from trieye.replay.samplers.eligible import EligibleSampler
from trieye.replay.samplers.prioritized import PrioritizedSampler
from trieye.replay.samplers.sequence import SequenceSampler

_Made = TypeVar("_Made")

SAMPLERS: Mapping[str, Callable[..., Sampler]] = {
    "uniform": UniformSampler,
    "prioritized": PrioritizedSampler,
    "sequence": SequenceSampler,
}


def checked_kind(
    name: str, options: Mapping[str, Any], *, max_reuse: int | None = None, max_staleness: int | None = None
) -> str:
    """Check the arguments of `make_sampler` before there are rows, and say in words whose saved states will fit.

    Raises:
        ConfigurationError: As `make_sampler`.
    """
    bounds = {"max_reuse": max_reuse, "max_staleness": max_staleness}
    make_sampler(name, options, capacity=1, links=EpisodeLinks(1, count_steps=True), **bounds)
    parts = {**bounds, "priorities": options.get("priorities")}
    has = [part for part, value in parts.items() if value is not None]
    return f"{name} with {' and '.join(has)}" if has else name


def make_sampler(  # one place that knows what each sampler is made of
    name: str,
    options: Mapping[str, Any],
    *,
    capacity: int,
    links: EpisodeLinks | None = None,
    max_reuse: int | None = None,
    max_staleness: int | None = None,
) -> Sampler:
    """Make a sampler.

    Args:
        name: One of `SAMPLERS`.
        options: Its keyword arguments. Those of `sequence` may have `priorities`: the options of `prioritized`, by
            which first rows are then drawn.
        capacity: Rows of the ring.
        links: Which row follows which; needed by `sequence`, with `count_steps` if its `period` is above 1.
        max_reuse: Times that a row may be drawn; any if None.
        max_staleness: Versions that a row may be behind; any if None.

    Raises:
        ConfigurationError: The name or an option is unknown, an option is out of range, or bounds do not go with it.
    """
    check_known(f"sampler {name!r}", name, SAMPLERS)
    is_bounded = max_reuse is not None or max_staleness is not None
    if name == "sequence":
        if is_bounded:
            raise ConfigurationError("max_reuse and max_staleness bound single rows; sampler 'sequence' has neither")
        return _make_sequence(dict(options), capacity, links)
    rows = _make(SAMPLERS[name], name, options, *(() if name == "uniform" else (capacity,)))
    if not is_bounded:
        return rows
    if not isinstance(rows, PrioritizedSampler):
        rows = PrioritizedSampler(capacity, alpha=0.0)  # each row with the same chance, or none
    return EligibleSampler(rows, max_reuse=max_reuse, max_staleness=max_staleness)


def _make_sequence(options: dict[str, Any], capacity: int, links: EpisodeLinks | None) -> SequenceSampler:
    if links is None:
        raise AssertionError("sampler 'sequence' needs links")
    if (priorities := options.pop("priorities", None)) is not None:
        options["starts"] = _make(PrioritizedSampler, "prioritized", priorities, capacity)
    if "length" not in options:
        raise ConfigurationError("sampler 'sequence' needs the option length, the number of rows in a sequence")
    return _make(SequenceSampler, "sequence", options, links)


def _make(kind: Callable[..., _Made], name: str, options: Mapping[str, Any], *positional: Any) -> _Made:
    known = list(signature(kind).parameters)[len(positional) :]
    for key in options:
        check_known(f"sampler {name!r}: option {key!r}", key, known)
    return kind(*positional, **options)
