"""Conversion of command-line overrides to a grid."""

from collections.abc import Sequence
from typing import Any

from trieye.config.hydra.axes import axes_of
from trieye.config.sweeper import SweeperConfig
from trieye.sweeps.grid import Axis, Grid, with_seeds, zipped


def grid_of(overrides: Sequence[str], options: SweeperConfig, config_loader: Any = None) -> Grid:
    """Return the grid of a command line.

    Args:
        overrides: The overrides, as typed.
        options: Options of the sweeper: seeds, zipped keys, exclusions.
        config_loader: Hydra's config loader, which resolves the options of config groups.

    Raises:
        ConfigurationError: A word is no valid override, or a key has no axis.
    """
    axes = tuple(Axis((key,), tuple((value,) for value in values)) for key, values in axes_of(overrides, config_loader))
    axes = zipped(axes, options.zip)
    if options.seeds is not None:
        axes = with_seeds(axes, options.seeds)
    without = tuple({key: str(value) for key, value in combination.items()} for combination in options.exclude)
    return Grid(axes, without)
