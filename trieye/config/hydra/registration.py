"""Registration of the config type that Hydra composes in this process; does not import Hydra."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, TypeVar

from trieye.config.packages import explaining
from trieye.config.persistence import default_run_name
from trieye.config.redaction import redacted_text
from trieye.config.root import TrieyeConfig
from trieye.exceptions import ConfigurationError, TrieyeError

if TYPE_CHECKING:
    from hydra.core.config_search_path import ConfigSearchPath


class RefusedError(BaseException):
    """Carries an expected error through Hydra to `trieye.main`; Hydra prints a traceback for every `Exception`."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


@contextmanager
def refusing() -> Iterator[None]:
    """Report expected errors of the block in one line, without a traceback, if a program runs it.

    Otherwise, or with HYDRA_FULL_ERROR=1, the errors propagate.
    """
    try:
        with explaining("this command"):
            yield
    except TrieyeError as error:
        if current is not None:
            raise RefusedError(error) from error
        if not _is_in_hydra_main() or os.environ.get("HYDRA_FULL_ERROR") == "1":
            raise
        lines = "\n       ".join(redacted_text(str(error)).splitlines())
        print(f"error: {lines}", file=sys.stderr)  # noqa: T201 - Hydra would print a traceback
        raise SystemExit(error.exit_code) from error


def _is_in_hydra_main() -> bool:
    """Return whether `hydra.main` has called this function, and would report an exception."""
    frame: FrameType | None = sys._getframe()  # noqa: SLF001 - of the standard library
    while frame is not None:
        if frame.f_code.co_name == "run_and_report" and frame.f_globals.get("__name__") == "hydra._internal.utils":
            return True
        frame = frame.f_back
    return False


Config = TypeVar("Config", bound=TrieyeConfig)
OWN_CONFIGS = "pkg://trieye.conf"


@dataclass(frozen=True)
class Registration:
    """The config type that Hydra composes.

    Attributes:
        config_type: Type of the config.
        run_name: Default of the key `run_name`; None = a new name each time Hydra is initialized.
    """

    config_type: type[TrieyeConfig]
    run_name: str | None = None


current: Registration | None = None
"""The current registration, read by the plugin in `hydra_plugins`, which does nothing while it is None."""


def register(config_type: type[Config]) -> type[Config]:
    """Register a config type, so that plain Hydra (`hydra.compose`, `hydra.main`) can compose a project's configs.

    `schema` in a defaults list then is the schema of the type, and the groups of trieye are on the search path, after
    the project's own. `trieye.main` and `trieye.compose` need no registration; only they add the defaults of the
    selected kind to a field with several models. A process has one registered type, the last one.

    Args:
        config_type: The type of the config.

    Returns:
        The same type, so that `register` works as a decorator.

    Raises:
        ConfigurationError: `config_type` is not a subclass of `TrieyeConfig`.
    """
    global current
    if not (isinstance(config_type, type) and issubclass(config_type, TrieyeConfig)):
        raise ConfigurationError(f"register({config_type!r}): use trieye.TrieyeConfig or a subclass of it")
    current = Registration(config_type)
    return config_type


def join(search_path: "ConfigSearchPath") -> None:
    """Store the schema of the registered type and add the groups of trieye; do nothing without a registration.

    Args:
        search_path: Hydra's config search path.
    """
    if current is None:
        return
    from trieye.config.hydra.schema import register_schema

    register_schema(current.config_type, run_name=current.run_name or default_run_name())
    if all(element.path != OWN_CONFIGS for element in search_path.get_path()):
        search_path.append(provider="trieye", path=OWN_CONFIGS)
