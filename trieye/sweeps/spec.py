"""Conversion of command-line overrides to a grid."""

from collections.abc import Iterable, Sequence
from typing import Any

from trieye.config.base import did_you_mean
from trieye.config.hydra.axes import axes_of, typed
from trieye.config.hydra.conditions import Conditions
from trieye.config.hydra.override_text import bare
from trieye.config.sweeper import SweeperConfig
from trieye.exceptions import ConfigurationError
from trieye.sweeps.grid import Axis, Grid


def grid_of(overrides: Sequence[str], options: SweeperConfig, config_loader: Any = None) -> Grid:
    """Return the grid of a command line.

    Args:
        overrides: The overrides, as typed.
        options: Options of the sweeper: seeds, zipped keys, exclusions, conditions.
        config_loader: Hydra's config loader, which resolves the options of config groups.

    Raises:
        ConfigurationError: A word is not a valid override, or a key has no axis.
    """
    axes = tuple(Axis((key,), tuple((value,) for value in values)) for key, values in axes_of(overrides, config_loader))
    axes = zipped(axes, options.zip)
    if options.seeds is not None:  # the slowest axis, so that seeds added later renumber nothing
        if any("seed" in map(bare, axis.keys) for axis in axes):
            raise ConfigurationError("seed is already an axis of the sweep; remove the axis or the number of seeds")
        axes = (Axis(("seed",), tuple((str(seed),) for seed in range(options.seeds))), *axes)
    without = tuple({key: typed(value) for key, value in combination.items()} for combination in options.exclude)
    return Grid(axes, without, Conditions.of(options.when or {}))


def zipped(axes: Iterable[Axis], groups: Iterable[Sequence[str]]) -> tuple[Axis, ...]:
    """Merge groups of axes that vary together into one axis, at the position of the first member.

    Args:
        axes: The axes, with one key each.
        groups: Keys that vary together.

    Raises:
        ConfigurationError: A key has no axis, or the axes of a group differ in length.
    """
    merged_axes = list(axes)
    for group in (list(map(bare, keys)) for keys in groups):
        by_key = {bare(key): axis for axis in merged_axes for key in axis.keys}
        for key in group:
            if key not in by_key:
                raise ConfigurationError(
                    f"zip={','.join(group)}: the sweep has no axis {key}{did_you_mean(key, by_key)} "
                    f"(axes: {', '.join(by_key) or 'none'})"
                )
        members = list(dict.fromkeys(by_key[key] for key in group))
        lengths = {key: len(by_key[key].places) for key in group}
        if len(set(lengths.values())) > 1:
            counts = ", ".join(f"{key} has {length}" for key, length in lengths.items())
            raise ConfigurationError(
                f"zip={','.join(group)}: keys that vary together need equal numbers of values; {counts}"
            )
        places = tuple(sum(parts, ()) for parts in zip(*(axis.places for axis in members), strict=True))
        merged_axis = Axis(sum((axis.keys for axis in members), ()), places)
        position = min(map(merged_axes.index, members))
        merged_axes = [axis for axis in merged_axes if axis not in members]
        merged_axes.insert(position, merged_axis)
    return tuple(merged_axes)
