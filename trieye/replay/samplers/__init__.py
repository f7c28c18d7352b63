"""Creates samplers, which choose the rows to draw from a replay buffer, by name."""

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
    """Check the arguments of `make_sampler` without rows, and return the kind of saved state that the sampler accepts.

    Raises:
        ConfigurationError: As for `make_sampler`.
    """
    bounds = {"max_reuse": max_reuse, "max_staleness": max_staleness}
    make_sampler(name, options, capacity=1, links=EpisodeLinks(1, count_steps=True), **bounds)
    parts = {**bounds, "priorities": options.get("priorities")}
    has = [part for part, value in parts.items() if value is not None]
    return f"{name} with {' and '.join(has)}" if has else name


def make_sampler(
    name: str,
    options: Mapping[str, Any],
    capacity: int,
    links: EpisodeLinks | None = None,
    *,
    max_reuse: int | None = None,
    max_staleness: int | None = None,
) -> Sampler:
    """Create a sampler.

    Args:
        name: A key of `SAMPLERS`.
        options: Its keyword arguments. `sequence` also accepts `priorities`, the options of a `prioritized` sampler
            that draws the first rows.
        capacity: Maximum number of rows in the buffer.
        links: Successor links of the rows; required by `sequence`, with `count_steps` if its `period` is above 1.
        max_reuse: Maximum number of times a row is drawn; unlimited if None.
        max_staleness: Maximum number of versions that a row may lag behind; unlimited if None.

    Raises:
        ConfigurationError: The name or an option is unknown, an option is out of range, or the sampler rejects bounds.
    """
    check_known(f"sampler {name!r}", name, SAMPLERS)
    if name == "sequence":
        rows: Sampler = _make_sequence(dict(options), capacity, links)
    else:
        needs_capacity = "capacity" in signature(SAMPLERS[name]).parameters
        rows = _make(SAMPLERS[name], name, options, *((capacity,) if needs_capacity else ()))
    if max_reuse is None and max_staleness is None:
        return rows
    if type(rows) is UniformSampler:  # a subclass chooses rows differently
        rows = PrioritizedSampler(capacity, alpha=0.0)  # eligible rows are equally likely
    if not isinstance(rows, PrioritizedSampler):
        raise ConfigurationError(
            "max_reuse and max_staleness bound the rows of the samplers 'uniform' and 'prioritized'; "
            f"sampler {name!r} has neither"
        )
    return EligibleSampler(rows, max_reuse=max_reuse, max_staleness=max_staleness)


def _make_sequence(options: dict[str, Any], capacity: int, links: EpisodeLinks | None) -> SequenceSampler:
    assert links is not None  # noqa: S101 - `RowOptions.walks` is set for this sampler
    if (priorities := options.pop("priorities", None)) is not None:
        options["starts"] = _make(PrioritizedSampler, "prioritized", priorities, capacity)
    if "length" not in options:
        raise ConfigurationError("sampler 'sequence' needs the option length (rows per sequence)")
    return _make(SequenceSampler, "sequence", options, links)


def _make(kind: Callable[..., _Made], name: str, options: Mapping[str, Any], *positional: Any) -> _Made:
    option_names = list(signature(kind).parameters)[len(positional) :]
    for key in options:
        check_known(f"sampler {name!r}: option {key!r}", key, option_names)
    return kind(*positional, **options)
