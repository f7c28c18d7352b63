"""`trieye.compose`, and the wrapped task function that `trieye.main` returns."""

import functools
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar, overload

from trieye.config.hydra.hooks import Hooks
from trieye.config.hydra.launch import new_run_name
from trieye.config.hydra.registration import OWN_CONFIGS
from trieye.config.root import TrieyeConfig
from trieye.exceptions import ConfigurationError

Config = TypeVar("Config", bound=TrieyeConfig)
Result = TypeVar("Result")
Config_contra = TypeVar("Config_contra", bound=TrieyeConfig, contravariant=True)
Result_co = TypeVar("Result_co", covariant=True)


class Application(Protocol[Config_contra, Result_co]):
    """A task function decorated with `trieye.main`."""

    @overload
    def __call__(self) -> None: ...

    @overload
    def __call__(self, config: Config_contra) -> Result_co: ...

    def __call__(self, config: Config_contra | None = None) -> Result_co | None:
        """Run the command line in `sys.argv`; with a config, call the task with it and return its value."""


def application(
    task: Callable[[Config], Result], *, config_path: str, config_name: str, hooks: Hooks
) -> Application[Config, Result]:
    """Return a task function that runs the command line when called without a config.

    Args:
        task: The task function.
        config_path: See `trieye.main`.
        config_name: See `trieye.main`.
        hooks: Callbacks into higher packages.
    """

    @functools.wraps(task)
    def call(config: Config | None = None) -> Result | None:
        if config is not None:
            return task(config)
        from trieye.config.hydra.main import run_command_line

        run_command_line(task, config_path=config_path, config_name=config_name, hooks=hooks)
        return None

    return call  # type: ignore[return-value]  # wraps hides the overloads


def compose(
    overrides: Sequence[str] = (),
    *,
    config_path: str | os.PathLike[str] | None = None,
    config_name: str | None = None,
    config_type: type[Config] | None = None,
) -> Config:
    """Compose a typed config, for tests and notebooks.

    Args:
        overrides: Command-line overrides, such as `["runtime=local", "loop.steps=10"]`.
        config_path: Config directory: absolute, `pkg://` and a package, or relative to the file of the caller (in a
            notebook: to the working directory). If None, the configs of trieye itself.
        config_name: Primary config; by default `train`, or `trieye` if `config_path` is None.
        config_type: Type of the config; by default `TrieyeConfig`.

    Raises:
        ConfigurationError: The config does not compose, or a value is invalid.
    """
    from trieye.config.hydra.loader import ConfigSource, absolute, opened
    from trieye.config.hydra.preflight import Preflight

    model: Any = config_type or TrieyeConfig
    directory = OWN_CONFIGS
    if config_path is not None:
        directory = absolute(os.fspath(config_path), sys._getframe(1).f_globals.get("__file__"))  # noqa: SLF001 - the caller
    name = config_name or ("trieye" if config_path is None else "train")
    try:
        with opened(ConfigSource(directory, name), model, run_name=new_run_name()) as loader:
            config: Config = Preflight(loader, model).compose(overrides).config
            return config
    except ConfigurationError as error:
        raise error from None  # the message is complete; Hydra's frames would add 60 lines of traceback
