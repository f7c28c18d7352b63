"""From a command line to a typed config: what is behind `trieye.main`, and `trieye.compose`."""

import functools
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar, overload

from trieye.config.hydra.hooks import Hooks
from trieye.config.hydra.registration import OWN_CONFIGS
from trieye.config.persistence import default_run_name
from trieye.config.root import TrieyeConfig
from trieye.exceptions import ConfigurationError

Config = TypeVar("Config", bound=TrieyeConfig)
Result = TypeVar("Result")
Config_contra = TypeVar("Config_contra", bound=TrieyeConfig, contravariant=True)
Result_co = TypeVar("Result_co", covariant=True)


class Application(Protocol[Config_contra, Result_co]):
    """What `trieye.main` makes of a task function."""

    @overload
    def __call__(self) -> None: ...

    @overload
    def __call__(self, config: Config_contra) -> Result_co: ...

    def __call__(self, config: Config_contra | None = None) -> Result_co | None:
        """Run the command line; with a config, run the task with it and return its value."""


def application(
    task: Callable[[Config], Result], *, config_path: str, config_name: str, hooks: Hooks
) -> Application[Config, Result]:
    """Return what `trieye.main` makes of a task function.

    Args:
        task: The task function.
        config_path: See `trieye.main`.
        config_name: Likewise.
        hooks: Calls into the packages above.
    """

    @functools.wraps(task)
    def made(config: Config | None = None) -> Result | None:
        if config is not None:
            return task(config)
        from trieye.config.hydra.main import run_command_line

        run_command_line(task, config_path=config_path, config_name=config_name, hooks=hooks)
        return None

    return made  # type: ignore[return-value]  # wraps hides the overloads


def compose(
    overrides: Sequence[str] = (),
    *,
    config_path: str | os.PathLike[str] | None = None,
    config_name: str | None = None,
    config_type: type[Config] | None = None,
) -> Config:
    """Return the typed config of a command line, for tests and notebooks.

    Args:
        overrides: What one would type, such as `["runtime=local", "loop.steps=10"]`.
        config_path: The config directory, relative to the file of the caller (in a notebook: to the working directory),
            or absolute, or `pkg://` and a package; the configs of trieye itself if None.
        config_name: The primary config; `train`, or `trieye` among the configs of trieye itself.
        config_type: The type of the config; `TrieyeConfig` if None.

    Raises:
        ConfigurationError: The config cannot be composed, or a value is not allowed.
    """
    from trieye.config.hydra.loader import Source, absolute, opened
    from trieye.config.hydra.preflight import Preflight

    chosen: Any = config_type or TrieyeConfig
    directory = OWN_CONFIGS
    if config_path is not None:
        directory = absolute(os.fspath(config_path), sys._getframe(1).f_globals.get("__file__"))  # noqa: SLF001 - its caller
    name = config_name or ("trieye" if config_path is None else "train")
    try:
        with opened(Source(directory, name), chosen, run_name=default_run_name()) as loader:
            config: Config = Preflight(loader, chosen).compose(overrides).config
            return config
    except ConfigurationError as error:
        raise error from None  # it says what Hydra found; the frames of Hydra would be 60 lines above it
