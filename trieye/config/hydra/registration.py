"""Registration: the config type that Hydra composes for in this process; importing it loads no Hydra."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from trieye.config.persistence import default_run_name
from trieye.config.root import TrieyeConfig
from trieye.exceptions import ConfigurationError, TrieyeError

if TYPE_CHECKING:
    from hydra.core.config_search_path import ConfigSearchPath


class RefusedError(BaseException):
    """Carries an expected error through Hydra, which prints a traceback of every `Exception`, to `trieye.main`."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


@contextmanager
def refusing() -> Iterator[None]:
    """Let `trieye.main`, if this is its process, tell expected errors of the block by their words alone."""
    try:
        yield
    except TrieyeError as error:
        if current is None:
            raise
        raise RefusedError(error) from error


Config = TypeVar("Config", bound=TrieyeConfig)
OWN_CONFIGS = "pkg://trieye.conf"


@dataclass(frozen=True)
class Registration:
    """What Hydra is to compose.

    Attributes:
        config_type: The type of the config.
        run_name: The default of the key `run_name`; None = a new one whenever Hydra is initialized.
    """

    config_type: type[TrieyeConfig]
    run_name: str | None = None


current: Registration | None = None
"""What is registered; the plugin in `hydra_plugins` looks here, and does nothing while there is None."""


def register(config_type: type[Config]) -> type[Config]:
    """Let Hydra itself compose the configs of a project: `hydra.initialize` with `hydra.compose`, or `hydra.main`.

    From then on `schema` in a defaults list is the schema of the type, and the groups of trieye are found behind the
    project's own. `trieye.main` and `trieye.compose` need no registration; only they complete a part that is one of
    several models with the defaults of its kind. A process has one type at a time, the last one registered.

    Args:
        config_type: The type of the config.

    Returns:
        The same type, so that this can decorate it.

    Raises:
        ConfigurationError: It is no subclass of `TrieyeConfig`.
    """
    global current
    if not (isinstance(config_type, type) and issubclass(config_type, TrieyeConfig)):
        raise ConfigurationError(f"register({config_type!r}): use trieye.TrieyeConfig or a subclass of it")
    current = Registration(config_type)
    return config_type


def join(search_path: "ConfigSearchPath") -> None:
    """Store the schema of the registered type and add the groups of trieye, or do nothing if there is none.

    Args:
        search_path: Where Hydra will look for configs.
    """
    if current is None:
        return
    from trieye.config.hydra.schema import register_schema

    register_schema(current.config_type, run_name=current.run_name or default_run_name())
    if all(place.path != OWN_CONFIGS for place in search_path.get_path()):
        search_path.append(provider="trieye", path=OWN_CONFIGS)
